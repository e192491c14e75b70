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
  await step('before', async () => {
    await lease.put(held).value('x').exec();
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
    const kv = await pair(b, held);
    holds(kv !== null, 'the leased key is gone');
    equal(String(kv.lease), await lease.grant(), 'lease');
  });
};
