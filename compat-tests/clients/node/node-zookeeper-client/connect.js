'use strict';
const { step, equal, holds, sleep, until } = require('../common');
const { zookeeper, connect, create, exists, sessionOf, close } = require('./support');

module.exports = async ({ address, prefix }) => {
  let other;
  await step('session', async () => {
    other = await connect(address);
    holds(sessionOf(other) !== 0n, 'the session id is 0');
    equal(other.getSessionPassword().length, 16, 'length of the password');
    holds(other.getSessionPassword().some(byte => byte !== 0), 'the password is all zeros');
    await create(other, prefix);
  });
  await step('timeout-low', async () => {
    const client = await connect(address, 100);
    equal(client.getSessionTimeout(), 4000, 'negotiated timeout');
    await close(client);
  });
  await step('timeout-high', async () => {
    const client = await connect(address, 100000);
    equal(client.getSessionTimeout(), 40000, 'negotiated timeout');
    await close(client);
  });
  const client = await connect(address, 4000);
  await step('idle', async () => {
    const session = sessionOf(client);
    let lost = 0;
    client.on('disconnected', () => (lost += 1));
    await create(client, `${prefix}/e`, Buffer.from('here'), zookeeper.CreateMode.EPHEMERAL);
    await sleep(10000);
    equal(lost, 0, 'disconnections');
    equal((await exists(other, `${prefix}/e`)).ephemeralOwner, session, 'ephemeralOwner');
    client.removeAllListeners('disconnected');
  });
  await step('close', async () => {
    await close(client);
    await until(1000, () => exists(other, `${prefix}/e`), null, 'the ephemeral node after close');
  });
};
