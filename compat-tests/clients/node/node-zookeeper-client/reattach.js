'use strict';
const { step, fault, equal, holds, sleep, within } = require('../common');
const { zookeeper, connect, create, set, get, exists, children, sessionOf, Events } = require('./support');

module.exports = async ({ address, prefix, link }) => {
  const b = await connect(address);
  await create(b, prefix);
  await create(b, `${prefix}/w`, Buffer.from('zero'));
  await create(b, `${prefix}/p`);
  const a = await connect(link);
  const session = sessionOf(a);
  const data = new Events();
  const child = new Events();
  let made;
  await step('created', async () => {
    await create(a, `${prefix}/e`, Buffer.from('mine'), zookeeper.CreateMode.EPHEMERAL);
    made = await exists(a, `${prefix}/e`);
    await get(a, `${prefix}/w`, data.watcher());
    await children(a, `${prefix}/p`, child.watcher());
  });
  const back = new Promise(resolve => a.on('connected', resolve));
  await step('away', async () => {
    const lost = new Promise(resolve => a.once('disconnected', resolve));
    await fault('cut');
    await within(5000, lost, 'disconnected');
    await set(b, `${prefix}/w`, 'one');
    await create(b, `${prefix}/p/c`);
    await sleep(2000);
    equal([data.items, child.items], [[], []], 'events while away');
    await fault('mend');
  });
  await step('same', async () => {
    await within(8000, back, 'connected again');
    equal(sessionOf(a), session, 'session id');
  });
  await step('stays', async () => {
    const stat = await exists(a, `${prefix}/e`);
    holds(stat !== null, 'the ephemeral node is gone');
    equal(stat, made, 'stat');
  });
  await step('data-watch', async () => {
    equal(await data.next(1, 3000, 'event'), [['NODE_DATA_CHANGED', `${prefix}/w`]], 'event');
    await data.silent(500, 'second event');
  });
  await step('child-watch', async () => {
    equal(await child.next(1, 3000, 'event'), [['NODE_CHILDREN_CHANGED', `${prefix}/p`]], 'event');
    await child.silent(500, 'second event');
  });
  await step('works', async () => {
    await set(a, `${prefix}/w`, 'two');
    equal((await get(a, `${prefix}/w`)).data, Buffer.from('two'), 'value');
  });
};
