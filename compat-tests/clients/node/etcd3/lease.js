'use strict';
const crypto = require('crypto');
const { step, equal, holds, note } = require('../common');
const { etcd3, connect, refused, pair, Watch } = require('./support');

module.exports = async ({ address, prefix }) => {
  const client = connect(address);
  const leases = client.leaseClient;
  const lease = client.lease(60, { autoKeepAlive: false });
  let id;
  await step('grant', async () => {
    id = await lease.grant();
    holds(BigInt(id) > 0n, `id ${id}`);
    equal((await leases.leaseTimeToLive({ ID: id })).grantedTTL, '60', 'granted TTL');
  });
  await step('own-id', async () => {
    const own = String(crypto.randomBytes(7).readUIntBE(0, 6) + 1);
    const answer = await leases.leaseGrant({ ID: own, TTL: 60 });
    equal([answer.ID, answer.TTL], [own, '60'], 'id and TTL');
    await refused(leases.leaseGrant({ ID: own, TTL: 60 }), 'etcdserver: lease already exists', 'second grant');
    await leases.leaseRevoke({ ID: own });
  });
  const [one, two] = [`${prefix}/1`, `${prefix}/2`];
  await step('attach', async () => {
    await lease.put(one).value('one').exec();
    await client.put(two).value('two').lease(id).exec();
    equal([(await pair(client, one)).lease, (await pair(client, two)).lease], [BigInt(id), BigInt(id)], 'leases');
  });
  await step('ttl', async () => {
    const answer = await leases.leaseTimeToLive({ ID: id, keys: true });
    equal([answer.ID, answer.grantedTTL], [id, '60'], 'id and granted TTL');
    holds(Number(answer.TTL) >= 50 && Number(answer.TTL) <= 60, `TTL ${answer.TTL}`);
    equal(answer.keys.map(key => key.toString()).sort(), [one, two], 'keys');
  });
  await step('leases', async () => {
    const answer = await leases.leaseLeases();
    holds(answer.leases.some(found => found.ID === id), `${id} is not in the list`);
  });
  await step('keep-alive', async () => {
    const answer = await lease.keepaliveOnce();
    equal([answer.ID, answer.TTL], [id, '60'], 'id and TTL');
  });
  await step('detach', async () => {
    await client.put(two).value('two').exec();
    equal((await pair(client, two)).lease, 0n, 'lease');
  });
  await step('no-lease', () =>
    refused(client.put(`${prefix}/3`).value('x').lease('123456789').exec(), 'etcdserver: requested lease not found', 'put'));
  await step('revoke', async () => {
    await lease.revoke();
    equal([await pair(client, one), (await pair(client, two)).value], [null, 'two'], 'pairs');
  });
  await step('revoke-again', async () => {
    note('revoke() of a lease swallows this refusal; the call below it shows it');
    await lease.revoke();
    await refused(leases.leaseRevoke({ ID: id }), 'etcdserver: requested lease not found', 'revoke');
  });
  await step('gone', async () => equal((await leases.leaseTimeToLive({ ID: id })).TTL, '-1', 'TTL'));
  await step('keep-alive-gone', async () => {
    let seen = 'no error';
    try {
      await lease.keepaliveOnce();
    } catch (error) {
      seen = error.constructor;
    }
    equal(seen, etcd3.EtcdLeaseInvalidError, 'error');
  });
  await step('one-revision', async () => {
    const short = client.lease(60, { autoKeepAlive: false });
    const keys = ['a', 'b', 'c'].map(name => `${prefix}/many/${name}`);
    for (const i of [2, 0, 1]) {
      await short.put(keys[i]).value('x').exec();
    }
    const watch = await Watch.of(client.watch().prefix(`${prefix}/many/`));
    await short.revoke();
    const seen = await watch.expect(keys.map(key => ['Delete', key]), ['type', 'key'], 'events');
    equal(new Set(seen.map(event => event.mod)).size, 1, 'number of revisions');
    await watch.watcher.cancel();
  });
};
