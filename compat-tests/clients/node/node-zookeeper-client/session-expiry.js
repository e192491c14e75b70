'use strict';
const { step, fault, equal, holds, sleep, within } = require('../common');
const { zookeeper, connect, create, exists, sessionOf, Events } = require('./support');

module.exports = async ({ address, prefix, link }) => {
  const b = await connect(address);
  await create(b, prefix);
  const node = `${prefix}/e`;
  const a = await connect(link, 4000);
  const session = sessionOf(a);
  const events = new Events();
  await step('created', async () => {
    await create(a, node, Buffer.from('mine'), zookeeper.CreateMode.EPHEMERAL);
    equal((await exists(b, node, events.watcher())).ephemeralOwner, session, 'ephemeralOwner');
  });
  const expired = new Promise(resolve => a.once('expired', resolve));
  let cut;
  await step('kept', async () => {
    await fault('cut');
    cut = Date.now();
    await sleep(1500);
    holds((await exists(b, node)) !== null, 'the node is gone');
  });
  await step('gone', async () => {
    equal(await events.next(1, 9000 - (Date.now() - cut), 'event'), [['NODE_DELETED', node]], 'event');
    const after = Date.now() - cut;
    holds(after >= 2000, `gone after ${after} ms`);
    equal(await exists(b, node), null, 'the node');
  });
  await step('told', async () => {
    await fault('mend');
    await within(10000, expired, 'expired');
  });
  await step('again', async () => {
    const next = await connect(link, 4000);
    holds(sessionOf(next) !== session && sessionOf(next) !== 0n, 'the same session id');
    await create(next, node, Buffer.from('mine'), zookeeper.CreateMode.EPHEMERAL);
    equal((await exists(b, node)).ephemeralOwner, sessionOf(next), 'ephemeralOwner');
  });
};
