'use strict';
const { step, fault, equal, holds, sleep } = require('../common');
const { connect, pair, revision, Watch } = require('./support');

module.exports = async ({ address, prefix }) => {
  const client = connect(address);
  const lease = client.lease(15);
  const bare = client.lease(300, { autoKeepAlive: false });
  const held = `${prefix}/held`;
  const name = suffix => `${prefix}/w/${suffix}`;
  let watch;
  let bareId;
  let before;
  let highest;
  await step('before', async () => {
    await lease.put(held).value('x').exec();
    bareId = await bare.grant();
    before = await pair(client, held);
    watch = await Watch.of(client.watch().prefix(`${prefix}/w/`));
    highest = revision(await client.put(name(0)).value('0').exec());
    await watch.expect([['Put', name(0)]], ['type', 'key'], 'event');
  });
  await step('down', async () => {
    await fault('restart');
    const end = Date.now() + 15000;
    let last;
    do {
      last = await client.get(held).options({ deadline: Date.now() + 3000 }).exec().catch(error => error);
      if (!(last instanceof Error)) {
        return;
      }
      await sleep(200);
    } while (Date.now() < end);
    throw last;
  });
  await step('stays', async () => {
    equal(await pair(client, held), before, 'pair');
    const now = revision(await client.get(held).exec());
    holds(now >= highest, `revision ${now}, before ${highest}`);
    const kept = await client.leaseClient.leaseTimeToLive({ ID: bareId });
    equal(Number(kept.grantedTTL), 300, 'granted to the lease without a key');
    holds(Number(kept.TTL) > 200, `TTL ${kept.TTL} of the lease without a key`);
  });
  await step('watch', async () => {
    for (const i of [1, 2, 3]) {
      await client.put(name(i)).value(i).exec();
    }
    await watch.expect([1, 2, 3].map(i => ['Put', name(i), String(i)]), ['type', 'key', 'value'], 'events', 15000);
    await watch.silent(1000, 'more events');
  });
  await step('alive', async () => {
    await sleep(10000);
    equal(await pair(client, held), before, 'pair');
    const { TTL } = await client.leaseClient.leaseTimeToLive({ ID: await lease.grant() });
    holds(Number(TTL) >= 8, `TTL ${TTL} of 15`);
    await client.put(name(4)).value('4').exec();
    await watch.expect([['Put', name(4), '4']], ['type', 'key', 'value'], 'event of the same watch');
    await watch.silent(300, 'more events');
  });
};
