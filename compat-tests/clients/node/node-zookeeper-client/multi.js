'use strict';
const { step, note, equal, holds } = require('../common');
const { zookeeper, connect, create, get, exists, children, Events } = require('./support');

/** A transaction's results, and the error that the library makes of them. */
const commit = transaction =>
  new Promise(resolve => transaction.commit((error, results) => resolve({ error: error ? error.getName() : null, results })));
const errors = ({ results }) => results.map(result => result.err);

module.exports = async ({ address, prefix }) => {
  const client = await connect(address);
  const other = await connect(address);
  await create(client, prefix);
  const p = `${prefix}/p`;
  await step('all', async () => {
    note('setData and check of a transaction turn version 0 into -1 (this library)');
    const { error, results } = await commit(
      client
        .transaction()
        .create(p, Buffer.from('zero'))
        .create(`${p}/c`, Buffer.from('zero'))
        .setData(`${p}/c`, Buffer.from('one'))
        .check(`${p}/c`, 1)
        .remove(`${p}/c`),
    );
    equal(error, null, 'error');
    equal(results.map(result => result.type), [1, 1, 5, 13, 2], 'kinds of the results');
    equal([results[0].path, results[1].path], [p, `${p}/c`], 'paths');
    equal([results[2].stat.version, results[2].stat.dataLength], [1, 3], 'version and length of P/c');
    equal((await children(client, prefix)).names, ['p'], 'children of the root');
    equal((await children(client, p)).names, [], 'children of P');
    equal((await get(client, p)).data, Buffer.from('zero'), 'value of P');
  });
  await step('one-zxid', async () => {
    const { error } = await commit(client.transaction().create(`${prefix}/x1`).create(`${prefix}/x2`));
    equal(error, null, 'error');
    const [one, two] = [await exists(client, `${prefix}/x1`), await exists(client, `${prefix}/x2`)];
    equal(two.czxid, one.czxid, 'czxid');
  });
  let refused;
  await step('none', async () => {
    refused = await commit(client.transaction().create(`${prefix}/x`).create(p).remove(p));
    equal(refused.error !== null, true, 'the transaction failed');
    holds((await exists(client, p)) !== null, 'P is gone');
    equal(await exists(client, `${prefix}/x`), null, 'X');
  });
  await step('which', async () => {
    note(`the library's error is ${refused.error}`);
    // The first failed operation keeps its error; those before it are rolled back with 0 in an error result, those after
    // it were not tried.
    equal(refused.results.map(result => result.type), [-1, -1, -1], 'kinds of the results');
    equal(errors(refused), [0, -110, -2], 'errors of the results');
  });
  await step('check-fails', async () => {
    const answer = await commit(client.transaction().check(p, 9).create(`${prefix}/x`));
    equal(errors(answer), [-103, -2], 'errors of the results');
    equal(answer.error, 'BAD_VERSION', 'error');
    equal(await exists(client, `${prefix}/x`), null, 'X');
  });
  await step('order', async () => {
    const y = `${prefix}/y`;
    const { error, results } = await commit(
      client.transaction().create(y).setData(y, Buffer.from('one'), 0).setData(y, Buffer.from('two'), 1),
    );
    equal(error, null, 'error');
    equal([results[1].stat.version, results[2].stat.version], [1, 2], 'versions');
    equal((await get(client, y)).data, Buffer.from('two'), 'value');
  });
  await step('sequential', async () => {
    await create(client, `${prefix}/line`);
    const mode = zookeeper.CreateMode.PERSISTENT_SEQUENTIAL;
    const { error, results } = await commit(
      client.transaction().create(`${prefix}/line/s-`, mode).create(`${prefix}/line/s-`, mode),
    );
    equal(error, null, 'error');
    equal(
      results.map(result => result.path),
      [`${prefix}/line/s-0000000000`, `${prefix}/line/s-0000000001`],
      'paths',
    );
  });
  await step('silent', async () => {
    const events = new Events();
    await children(other, p, events.watcher());
    const answer = await commit(client.transaction().create(`${p}/a`).create(p));
    equal(errors(answer), [0, -110], 'errors of the failed transaction');
    await events.silent(1000, 'events of the failed transaction');
    const { error } = await commit(client.transaction().create(`${p}/a`).create(`${p}/b`));
    equal(error, null, 'error');
    equal(await events.next(1, 2000, 'event'), [['NODE_CHILDREN_CHANGED', p]], 'event');
    await events.silent(500, 'second event');
  });
};
