'use strict';
const { step, fault, equal, holds, sleep } = require('../common');
const { connect, pair, Watch } = require('./support');

module.exports = async ({ address, prefix, link }) => {
  const a = connect(link);
  const b = connect(address);
  const lease = a.lease(15);
  const held = `${prefix}/held`;
  const name = suffix => `${prefix}/w/${suffix}`;
  let watch;
  let before;
  await step('before', async () => {
    await lease.put(held).value('x').exec();
    before = await pair(b, held);
    watch = await Watch.of(a.watch().prefix(`${prefix}/w/`));
    await b.put(name(0)).value('0').exec();
    await watch.expect([['Put', name(0)]], ['type', 'key'], 'event');
  });
  await step('away', async () => {
    await fault('cut');
    for (const i of [1, 2, 3]) {
      await b.put(name(i)).value(i).exec();
    }
    await b.delete().key(name(0)).exec();
    await sleep(2000);
    equal(watch.items, [], 'events while away');
    await fault('mend');
  });
  await step('missed', async () => {
    await watch.expect(
      [
        ['Put', name(1)],
        ['Put', name(2)],
        ['Put', name(3)],
        ['Delete', name(0)],
      ],
      ['type', 'key'],
      'events',
      15000,
    );
    await watch.silent(1000, 'more events');
  });
  await step('alive', async () => {
    await sleep(8000);
    equal(await pair(b, held), before, 'pair');
    equal(String(before.lease), await lease.grant(), 'lease');
    const { TTL } = await b.leaseClient.leaseTimeToLive({ ID: await lease.grant() });
    holds(Number(TTL) >= 8, `TTL ${TTL} of 15`);
    await b.put(name(4)).value('4').exec();
    await watch.expect([['Put', name(4), '4']], ['type', 'key', 'value'], 'event of the same watch');
    await watch.silent(300, 'more events');
  });
};
