'use strict';
const { step, equal, sleep, within } = require('../common');
const { etcd3, connect, acquire } = require('./support');

module.exports = async ({ address, prefix }) => {
  const [a, b] = [connect(address), connect(address)].map(client => client.namespace(`${prefix}/`));
  let held;
  await step('acquire', async () => {
    held = await within(5000, a.lock('lock').ttl(10).acquire(), 'lock');
  });
  await step('refused', async () => {
    const end = Date.now() + 500;
    while (Date.now() < end) {
      const seen = await b.lock('lock').ttl(10).acquire().catch(error => error);
      equal(seen.constructor, etcd3.EtcdLockFailedError, 'answer to the second');
      await sleep(50);
    }
  });
  await step('passed', async () => {
    const waiting = acquire(b, 'lock', 10, 2000, 'lock after release');
    await held.release();
    held = await waiting;
  });
  await step('died', async () => {
    const waiting = acquire(a, 'lock', 10, 4000, 'lock after the holder');
    await a.leaseClient.leaseRevoke({ ID: await held.leaseId() });
    await (await waiting).release();
  });
  await step('counter', async () => {
    await a.put('counter').value(0).exec();
    const play = async () => {
      const own = connect(address).namespace(`${prefix}/`);
      for (let i = 0; i < 10; i += 1) {
        const lock = await acquire(own, 'lock', 10, 20000, 'lock');
        await own.put('counter').value((await own.get('counter').number()) + 1).exec();
        await lock.release();
      }
    };
    await Promise.all([play(), play(), play()]);
    equal(await a.get('counter').number(), 30, 'counter');
  });
};
