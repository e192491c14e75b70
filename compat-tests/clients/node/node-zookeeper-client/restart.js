'use strict';
const { step, fault, equal, holds, within, until } = require('../common');
const { zookeeper, connect, create, set, get, exists, sessionOf, Events, close } = require('./support');
const { EPHEMERAL, PERSISTENT_SEQUENTIAL } = zookeeper.CreateMode;

module.exports = async ({ address, prefix }) => {
  const a = await connect(address, 20000);
  const b = await connect(address, 20000);
  const sessions = [sessionOf(a), sessionOf(b)];
  const [node, line] = [`${prefix}/node`, `${prefix}/line`];
  const events = new Events();
  let made;
  let highest;
  await step('before', async () => {
    await create(b, prefix);
    await create(b, node, Buffer.from('zero'));
    await create(b, line);
    await create(a, `${prefix}/e`, Buffer.from('mine'), EPHEMERAL);
    equal(await create(a, `${line}/s-`, Buffer.alloc(0), PERSISTENT_SEQUENTIAL), `${line}/s-0000000000`, 'path');
    made = await exists(a, `${prefix}/e`);
    highest = (await exists(a, `${line}/s-0000000000`)).czxid;
    await get(a, node, events.watcher());
  });
  await step('down', async () => {
    const back = [a, b].map(client => new Promise(resolve => client.once('disconnected', () => client.once('connected', resolve))));
    await fault('restart');
    await within(15000, Promise.all(back), 'both connected again');
    equal([sessionOf(a), sessionOf(b)], sessions, 'session ids');
  });
  await step('stays', async () => {
    equal(await exists(a, `${prefix}/e`), made, 'stat of the ephemeral node');
    equal((await get(a, `${prefix}/e`)).data, Buffer.from('mine'), 'value of the ephemeral node');
    equal((await get(b, node)).data, Buffer.from('zero'), 'value');
  });
  await step('watch', async () => {
    await set(b, node, 'one');
    equal(await events.next(1, 5000, 'event'), [['NODE_DATA_CHANGED', node]], 'event');
    await events.silent(500, 'second event');
  });
  await step('numbers', async () => {
    const path = await create(a, `${line}/s-`, Buffer.alloc(0), PERSISTENT_SEQUENTIAL);
    equal(path, `${line}/s-0000000001`, 'path');
    const { czxid } = await exists(a, path);
    holds(czxid > highest, `czxid ${czxid}, before ${highest}`);
  });
  await step('ends', async () => {
    await close(a);
    await until(2000, () => exists(b, `${prefix}/e`), null, 'the ephemeral node');
  });
};
