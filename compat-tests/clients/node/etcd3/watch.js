'use strict';
const { step, equal, holds, sleep } = require('../common');
const { connect, pair, revision, Watch } = require('./support');

module.exports = async ({ address, prefix }) => {
  const client = connect(address);
  const other = connect(address);
  const key = `${prefix}/a`;
  const watch = await Watch.of(client.watch().key(key));
  await step('put', async () => {
    const put = revision(await other.put(key).value('one').exec());
    await watch.expect([['Put', key, 'one', put, 1n]], ['type', 'key', 'value', 'mod', 'version'], 'event');
    await watch.silent(200, 'second event');
  });
  await step('delete', async () => {
    const deleted = revision(await other.delete().key(key).exec());
    await watch.expect([['Delete', key, '', deleted]], ['type', 'key', 'value', 'mod'], 'event');
    await watch.watcher.cancel();
  });
  await step('prefix', async () => {
    const inside = await Watch.of(client.watch().prefix(`${prefix}/p/`));
    const expected = [];
    for (const name of ['c', 'a', 'b']) {
      const put = revision(await other.put(`${prefix}/p/${name}`).value(name).exec());
      expected.push(['Put', `${prefix}/p/${name}`, name, put]);
    }
    await inside.expect(expected, ['type', 'key', 'value', 'mod'], 'events');
    await other.put(`${prefix}/p0`).value('beside').exec();
    await inside.silent(1000, 'events');
    await inside.watcher.cancel();
  });
  await step('prev-kv', async () => {
    const before = await Watch.of(client.watch().key(key).withPreviousKV());
    await other.put(key).value('one').exec();
    const one = await pair(other, key);
    await other.put(key).value('two').exec();
    const two = await pair(other, key);
    await other.delete().key(key).exec();
    await before.expect([['Put', null], ['Put', one], ['Delete', two]], ['type', 'previous'], 'events');
    await before.watcher.cancel();
  });
  await step('filters', async () => {
    // only('delete') is NOPUT on the wire, only('put') NODELETE.
    const deletes = await Watch.of(client.watch().key(key).only('delete'));
    const puts = await Watch.of(client.watch().key(key).only('put'));
    await other.put(key).value('one').exec();
    await other.put(key).value('two').exec();
    await other.delete().key(key).exec();
    await puts.expect([['Put', 'one'], ['Put', 'two']], ['type', 'value'], 'events without deletes');
    await deletes.expect([['Delete', '']], ['type', 'value'], 'events without puts');
    await sleep(200);
    equal([deletes.items, puts.items], [[], []], 'more events');
    await deletes.watcher.cancel();
    await puts.watcher.cancel();
  });
  await step('history', async () => {
    const first = revision(await other.put(key).value('1').exec());
    await other.put(key).value('2').exec();
    await other.delete().key(key).exec();
    const past = await Watch.of(client.watch().key(key).startRevision(String(first)));
    await past.expect([['Put', '1'], ['Put', '2'], ['Delete', '']], ['type', 'value'], 'events since then');
    await other.put(key).value('3').exec();
    await past.expect([['Put', '3']], ['type', 'value'], 'event of later');
    await past.watcher.cancel();
  });
  await step('txn', async () => {
    const all = await Watch.of(client.watch().prefix(`${prefix}/t/`));
    await other.put(`${prefix}/t/b`).value('old').exec();
    await all.next(1, 5000, 'event');
    const answer = await other
      .if(`${prefix}/t/b`, 'Version', '>', 0)
      .then(
        other.put(`${prefix}/t/c`).value('1'),
        other.delete().key(`${prefix}/t/b`),
        other.put(`${prefix}/t/a`).value('2'),
      )
      .commit();
    const made = revision(answer);
    await all.expect(
      [
        ['Put', `${prefix}/t/c`, made],
        ['Delete', `${prefix}/t/b`, made],
        ['Put', `${prefix}/t/a`, made],
      ],
      ['type', 'key', 'mod'],
      'events',
    );
    await all.watcher.cancel();
  });
  const three = [];
  const names = ['x', 'y', 'z'].map(name => `${prefix}/${name}`);
  await step('many', async () => {
    for (const name of names) {
      three.push(await Watch.of(client.watch().key(name)));
    }
    for (const name of names) {
      await other.put(name).value(name).exec();
    }
    for (const [i, name] of names.entries()) {
      await three[i].expect([['Put', name]], ['type', 'key'], `events of ${name}`);
    }
    await sleep(300);
    equal(three.map(one => one.items.length), [0, 0, 0], 'more events');
  });
  await step('cancel', async () => {
    await three[1].watcher.cancel();
    for (const name of names) {
      await other.put(name).value('again').exec();
    }
    await three[0].expect([['Put', names[0]]], ['type', 'key'], 'events of the first');
    await three[2].expect([['Put', names[2]]], ['type', 'key'], 'events of the third');
    await three[1].silent(500, 'events of the cancelled one');
  });
  await step('burst', async () => {
    const all = await Watch.of(client.watch().prefix(`${prefix}/burst/`));
    const expected = [];
    for (let i = 0; i < 500; i += 1) {
      const name = `${prefix}/burst/${i}`;
      expected.push(['Put', name, revision(await other.put(name).value(i).exec())]);
    }
    const seen = await all.expect(expected, ['type', 'key', 'mod'], 'events', 20000);
    holds(seen.every((event, i) => i === 0 || event.mod > seen[i - 1].mod), 'the order of the revisions');
    await all.silent(300, 'more events');
  });
};
