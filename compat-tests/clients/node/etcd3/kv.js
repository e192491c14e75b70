'use strict';
const { step, equal, holds } = require('../common');
const { etcd3, connect, refused, pair, readable, revision, undisturbed } = require('./support');

module.exports = async ({ address, prefix }) => {
  const client = connect(address);
  const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
  const key = `${prefix}/a`;
  const now = async () => revision(await client.get(key).exec());
  await step('put', () =>
    undisturbed(async i => {
      const fresh = i === 0 ? key : `${prefix}/a${i}`;
      const before = await now();
      const put = revision(await client.put(fresh).value(bytes).exec());
      const { kvs, count } = await client.get(fresh).exec();
      equal(count, '1', 'count');
      equal(kvs[0].value, bytes, 'value');
      const { create, mod, version, lease } = readable(kvs[0]);
      equal([create, mod, version, lease], [put, put, 1n, 0n], 'create and mod revision, version, lease');
      return put === before + 1n || `revision ${put} after ${before}`;
    }, 'the revision rises by one'));
  await step('again', async () => {
    const before = await pair(client, key);
    await client.put(key).value('two').exec();
    const after = await pair(client, key);
    holds(after.mod > before.mod, `mod_revision ${after.mod}, before ${before.mod}`);
    equal([after.create, after.version, after.value], [before.create, 2n, 'two'], 'create_revision, version, value');
  });
  await step('prev-kv', async () => {
    const before = await pair(client, key);
    equal(readable(await client.put(key).value('three').getPrevious()), before, 'pair before the put');
    const second = await pair(client, key);
    equal((await client.delete().key(key).getPrevious()).map(readable), [second], 'pair before the delete');
    const none = await client.put(key).value('four').getPrevious().catch(error => error);
    // The library adds the header to a pair that is not there, or fails to: either way there is no key in it.
    holds(!none || !none.key, `pair before a new key's put: ${none && none.key}`);
  });
  await step('missing', async () => {
    const { kvs, count } = await client.get(`${prefix}/missing`).exec();
    equal([kvs, count], [[], '0'], 'pairs and count');
  });
  await step('delete', () =>
    undisturbed(async () => {
      const before = await now();
      const answer = await client.delete().key(key).exec();
      equal(answer.deleted, '1', 'deleted');
      equal(await pair(client, key), null, 'pair');
      await client.put(key).value('five').exec();
      equal((await pair(client, key)).version, 1n, 'version when made again');
      return revision(answer) === before + 1n || `revision ${revision(answer)} after ${before}`;
    }, 'the revision rises by one'));
  await step('delete-none', () =>
    undisturbed(async () => {
      const before = await now();
      const answer = await client.delete().key(`${prefix}/missing`).exec();
      equal(answer.deleted, '0', 'deleted');
      return revision(answer) === before || `revision ${revision(answer)} after ${before}`;
    }, 'the revision stays'));
  const folder = `${prefix}/f/`;
  const names = ['1', '2', '3', '4', '5'].map(name => folder + name);
  const all = () => client.getAll().prefix(folder);
  const keys = answer => answer.kvs.map(kv => kv.key.toString());
  await step('prefix', async () => {
    // The neighbours of "…/f/": what sorts just before and just after.
    await client.put(`${prefix}/f.`).value('before').exec();
    await client.put(`${prefix}/f0`).value('after').exec();
    for (const i of [2, 0, 4, 1, 3]) {
      await client.put(names[i]).value(`value ${i + 1}`).exec();
    }
    const answer = await all().exec();
    equal(keys(answer), names, 'keys');
    equal(answer.count, '5', 'count');
    // The same through a namespace of the library, whose keys are relative.
    equal(await client.namespace(folder).getAll().keys(), ['1', '2', '3', '4', '5'], 'keys in the namespace');
  });
  await step('limit', async () => {
    const answer = await all().limit(2).exec();
    equal([keys(answer), answer.more, answer.count], [names.slice(0, 2), true, '5'], 'keys, more, count');
  });
  await step('sort', async () => {
    equal(keys(await all().sort('Key', 'Descend').exec()), names.slice().reverse(), 'by key descending');
    const written = [2, 0, 4, 1, 3].map(i => names[i]);
    equal(keys(await all().sort('Mod', 'Ascend').exec()), written, 'by mod revision ascending');
    equal(keys(await all().sort('Mod', 'Descend').exec()), written.slice().reverse(), 'by mod revision descending');
  });
  await step('keys-only', async () => {
    const whole = (await all().exec()).kvs.map(readable);
    // keys() hands out the names alone; the call below it shows the rest.
    equal(await all().keys(), names, 'keys');
    const range = etcd3.Range.prefix(folder);
    const { kvs } = await client.kv.range({ key: range.start, range_end: range.end, keys_only: true });
    equal(kvs.map(readable), whole.map(kv => ({ ...kv, value: '' })), 'pairs');
  });
  await step('count-only', async () => {
    equal(await all().count(), 5, 'count');
    const range = etcd3.Range.prefix(folder);
    const answer = await client.kv.range({ key: range.start, range_end: range.end, count_only: true });
    equal([answer.kvs, answer.count], [[], '5'], 'pairs and count');
  });
  await step('from-key', async () => {
    const { end } = etcd3.Range.prefix(folder);
    equal(keys(await client.getAll().inRange({ start: names[2], end }).exec()), names.slice(2), 'keys');
  });
  await step('past', async () => {
    const then = (await pair(client, names[0])).mod;
    await client.put(names[0]).value('later').exec();
    const answer = await client.get(names[0]).revision(String(then)).exec();
    equal(answer.kvs[0].value.toString(), 'value 1', 'value');
    equal(readable(answer.kvs[0]).mod, then, 'mod_revision');
    holds(revision(answer) > then, `revision of the header ${revision(answer)}, asked for ${then}`);
  });
  await step('future', async () => {
    const future = String((await now()) + 1000000n);
    await refused(client.get(key).revision(future).exec(), 'etcdserver: mvcc: required revision is a future revision', 'range');
  });
  await step('serializable', async () => {
    equal((await client.get(names[0]).serializable(true).exec()).kvs[0].value.toString(), 'later', 'value');
  });
  await step('delete-prefix', async () => {
    // One revision: the deletes that a watch from there brings are all of it.
    const answer = await client.delete().prefix(folder).exec();
    equal(answer.deleted, '5', 'deleted');
    const gone = await client.getAll().prefix(folder).exec();
    equal(gone.count, '0', 'count');
    const watcher = client.watch().prefix(folder).startRevision(String(revision(answer))).watcher();
    const { events } = await new Promise((resolve, reject) => watcher.once('data', resolve).once('error', reject));
    equal(events.map(event => [event.type, event.kv.mod_revision]), names.map(() => ['Delete', answer.header.revision]), 'events');
    await watcher.cancel();
  });
  await step('ignore-value', async () => {
    await refused(client.put(`${prefix}/missing`).touch(), 'etcdserver: key not found', 'put with ignore_value');
    const before = await pair(client, key);
    await client.put(key).touch();
    const after = await pair(client, key);
    equal([after.value, after.version], [before.value, before.version + 1n], 'value and version');
  });
  await step('empty-key', () => refused(client.put('').value('x').exec(), 'etcdserver: key is not provided', 'put'));
  await step('too-large', async () => {
    await refused(client.put(key).value(Buffer.alloc(2000000)).exec(), 'etcdserver: request is too large', 'put');
    const large = Buffer.alloc(1000000, 'causeway');
    await client.put(key).value(large).exec();
    holds((await client.get(key).buffer()).equals(large), 'another value came back');
    await client.delete().key(key).exec();
  });
};
