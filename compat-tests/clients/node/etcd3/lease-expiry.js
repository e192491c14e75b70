'use strict';
const { step, equal, holds, sleep, until } = require('../common');
const { connect, pair, Watch } = require('./support');

module.exports = async ({ address, prefix }) => {
  const client = connect(address);
  await step('expires', async () => {
    const key = `${prefix}/short`;
    const watch = await Watch.of(client.watch().key(key).only('delete'));
    const lease = client.lease(2, { autoKeepAlive: false });
    await lease.grant();
    const granted = Date.now();
    await lease.put(key).value('x').exec();
    await watch.expect([['Delete', key]], ['type', 'key'], 'event', 6000);
    const after = Date.now() - granted;
    holds(after >= 1500 && after <= 6000, `deleted after ${after} ms`);
    equal(await pair(client, key), null, 'pair');
    await watch.watcher.cancel();
  });
  const key = `${prefix}/kept`;
  const lease = client.lease(2);
  await step('kept', async () => {
    await lease.put(key).value('x').exec();
    await sleep(7000);
    holds((await pair(client, key)) !== null, 'the key is gone');
  });
  await step('stopped', async () => {
    lease.release();
    await until(7000, () => pair(client, key), null, 'pair');
  });
};
