'use strict';
const { step, note, equal, within } = require('../common');
const { connect, refused, revision, Watch } = require('./support');

module.exports = async ({ address, prefix }) => {
  const client = connect(address);
  const key = `${prefix}/a`;
  const at = [];
  const compact = target => client.kv.compact({ revision: String(target) });
  await step('compact', async () => {
    for (let i = 1; i <= 10; i += 1) {
      at[i] = revision(await client.put(key).value(i).exec());
    }
    await compact(at[8]);
  });
  const COMPACTED = 'etcdserver: mvcc: required revision has been compacted';
  await step('range', async () => {
    await refused(client.get(key).revision(String(at[2])).exec(), COMPACTED, 'range');
    equal((await client.get(key).revision(String(at[9])).exec()).kvs[0].value.toString(), '9', 'value');
  });
  await step('again', () => refused(compact(at[8]), COMPACTED, 'compaction'));
  await step('future', async () =>
    refused(compact(at[10] + 1000000n), 'etcdserver: mvcc: required revision is a future revision', 'compaction'));
  await step('watch', async () => {
    // The server sends the compact revision and no reason; of the two the library shows the reason.
    note('the library shows neither the compact revision nor that it is for compaction');
    const watch = await Watch.of(client.watch().key(key).startRevision(String(at[2])));
    const error = await within(5000, watch.failed, 'the watch ends');
    equal(error.message.startsWith('Watcher canceled: '), true, `cancelled by the server, not "${error.message}"`);
    equal(watch.items, [], 'events');
  });
  await step('watch-later', async () => {
    const watch = await Watch.of(client.watch().key(key).startRevision(String(at[9])));
    await watch.expect([['9', at[9]], ['10', at[10]]], ['value', 'mod'], 'events');
    await watch.silent(200, 'more events');
  });
};
