'use strict';
const { step, equal } = require('../common');
const { connect, refused, pair, readable, revision, undisturbed } = require('./support');

module.exports = async ({ address, prefix }) => {
  const client = connect(address);
  const key = `${prefix}/a`;
  const make = () => client.if(key, 'Version', '==', 0).then(client.put(key).value('made')).else(client.get(key)).commit();
  await step('then', async () => {
    const answer = await make();
    equal([answer.succeeded, answer.responses.map(r => r.response)], [true, ['response_put']], 'succeeded and responses');
    const { value, create, mod, version } = await pair(client, key);
    equal([value, create, mod, version], ['made', revision(answer), revision(answer), 1n], 'pair');
  });
  await step('otherwise', async () => {
    const answer = await make();
    equal([answer.succeeded, answer.responses.map(r => r.response)], [false, ['response_range']], 'succeeded and responses');
    equal(answer.responses[0].response_range.kvs.map(readable), [await pair(client, key)], 'pair');
  });
  await step('compares', async () => {
    await client.put(key).value('m').exec();
    const { create, mod, version } = await pair(client, key);
    const around = number => [String(number - 1n), String(number), String(number + 1n)];
    for (const [column, [less, same, more]] of Object.entries({
      Value: ['l', 'm', 'n'],
      Version: around(version),
      Create: around(create),
      Mod: around(mod),
    })) {
      for (const [sign, truths] of Object.entries({
        '==': [false, true, false],
        '>': [true, false, false],
        '<': [false, false, true],
        '!=': [true, false, true],
      })) {
        const seen = [];
        for (const value of [less, same, more]) {
          seen.push((await client.if(key, column, sign, value).then(client.get(key)).commit()).succeeded);
        }
        equal(seen, truths, `${column} ${sign} less, same, more`);
      }
    }
  });
  const [one, two, three] = ['1', '2', '3'].map(name => `${prefix}/s/${name}`);
  await step('several', async () => {
    const answer = await client
      .if(key, 'Version', '>', 0)
      .then(client.put(one).value('1'), client.put(two).value('2'), client.put(three).value('3'), client.delete().key(key))
      .commit();
    equal(answer.succeeded, true, 'succeeded');
    equal(
      answer.responses.map(r => r.response),
      ['response_put', 'response_put', 'response_put', 'response_delete_range'],
      'kinds of the responses',
    );
    equal(answer.responses[3].response_delete_range.deleted, '1', 'deleted');
    const revisions = [];
    for (const made of [one, two, three]) {
      revisions.push((await pair(client, made)).mod);
    }
    equal(revisions, [revision(answer), revision(answer), revision(answer)], 'mod revisions');
    equal(await pair(client, key), null, 'pair');
  });
  await step('reads', async () => {
    const answer = await client.if(one, 'Version', '>', 0).then(client.put(one).value('new'), client.get(one)).commit();
    equal(answer.responses[1].response_range.kvs[0].value.toString(), 'new', 'value');
  });
  await step('read-only', () =>
    undisturbed(async () => {
      const before = revision(await client.get(one).exec());
      const answer = await client.if(one, 'Version', '>', 0).then(client.get(one), client.get(two)).commit();
      equal(answer.succeeded, true, 'succeeded');
      const seen = [revision(answer), revision(await client.get(one).exec())];
      return (seen[0] === before && seen[1] === before) || `revisions ${seen} after ${before}`;
    }, 'the revision stays'));
  await step('all-or-nothing', async () => {
    const before = [await pair(client, one), await pair(client, two)];
    const answer = await client
      .if(one, 'Version', '>', 0)
      .and(two, 'Version', '==', 77)
      .then(client.put(one).value('never'), client.delete().key(two))
      .commit();
    equal([answer.succeeded, answer.responses], [false, []], 'succeeded and responses');
    equal([await pair(client, one), await pair(client, two)], before, 'pairs');
  });
  await step('duplicate', async () => {
    const before = await pair(client, one);
    await refused(
      client.if(one, 'Version', '>', 0).then(client.put(one).value('x'), client.put(one).value('y')).commit(),
      'etcdserver: duplicate key given in txn request',
      'transaction',
    );
    equal(await pair(client, one), before, 'pair');
  });
  await step('nested', async () => {
    const inner = {
      compare: [{ key: Buffer.from(two), target: 'Version', result: 'Equal', version: '77' }],
      success: [{ request_put: { key: Buffer.from(two), value: Buffer.from('never') } }],
      failure: [{ request_put: { key: Buffer.from(two), value: Buffer.from('nested') } }],
    };
    const answer = await client.if(one, 'Version', '>', 0).then({ request_txn: inner }).commit();
    equal(answer.succeeded, true, 'succeeded');
    const { response, response_txn: nested } = answer.responses[0];
    equal([response, nested.succeeded, nested.responses.map(r => r.response)], ['response_txn', false, ['response_put']], 'response');
    equal((await pair(client, two)).value, 'nested', 'value');
  });
  await step('cas', async () => {
    const counter = `${prefix}/counter`;
    await client.put(counter).value('0').exec();
    // Two clients by transactions of their own, two by the library's software transactional memory.
    const compare = async own => {
      for (let done = 0; done < 10; ) {
        const { value, mod } = await pair(own, counter);
        const answer = await own
          .if(counter, 'Mod', '==', String(mod))
          .then(own.put(counter).value(Number(value) + 1))
          .commit();
        done += answer.succeeded ? 1 : 0;
      }
    };
    const memory = async own => {
      for (let done = 0; done < 10; done += 1) {
        await own.stm({ retries: 1000 }).transact(async tx => {
          await tx.put(counter).value((await tx.get(counter).number()) + 1);
        });
      }
    };
    await Promise.all([compare, compare, memory, memory].map(play => play(connect(address))));
    const { value, version } = await pair(client, counter);
    equal([value, version], ['40', 41n], 'value and version');
  });
};
