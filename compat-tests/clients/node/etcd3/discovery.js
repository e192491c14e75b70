'use strict';
const { step, lacks, equal, until } = require('../common');
const { connect, revision } = require('./support');

module.exports = async ({ address, prefix }) => {
  const folder = `${prefix}/`;
  const value = (addr, metadata = null) => JSON.stringify({ Op: 0, Addr: addr, Metadata: metadata });

  // The reader: the list, then a watch from the revision after it.
  const reader = connect(address);
  let list;
  const follow = async () => {
    const answer = await reader.getAll().prefix(folder).exec();
    list = Object.fromEntries(answer.kvs.map(kv => [kv.key.toString().slice(folder.length), JSON.parse(kv.value)]));
    const watcher = await reader
      .watch()
      .prefix(folder)
      .startRevision(String(revision(answer) + 1n))
      .create();
    watcher.on('put', kv => (list[kv.key.toString().slice(folder.length)] = JSON.parse(kv.value)));
    watcher.on('delete', kv => delete list[kv.key.toString().slice(folder.length)]);
  };
  const sees = (instances, ms, what) => until(ms, async () => Object.keys(list).sort(), instances.map(one => one.addr).sort(), what);

  const register = async (port, ttl = 10) => {
    const addr = `127.0.0.1:${port}`;
    const client = connect(address);
    const lease = client.lease(ttl);
    await lease.put(folder + addr).value(value(addr)).exec();
    return { client, lease, addr };
  };
  let up = [];
  await step('empty', async () => {
    await follow();
    equal(list, {}, 'list');
  });
  await step('registered', async () => {
    for (const port of [7001, 7002, 7003]) {
      up.push(await register(port));
    }
    await sees(up, 3000, 'list');
    equal(list['127.0.0.1:7002'], { Op: 0, Addr: '127.0.0.1:7002', Metadata: null }, 'value');
  });
  lacks('called', 'no grpc resolver');
  await step('left', async () => {
    await up.shift().lease.revoke();
    await sees(up, 2000, 'list');
  });
  await step('updated', async () => {
    const [{ lease, addr }] = up;
    await lease.put(folder + addr).value(value(addr, { weight: 2 })).exec();
    await until(3000, async () => list[addr], { Op: 0, Addr: addr, Metadata: { weight: 2 } }, 'value');
  });
  await step('died', async () => {
    up.push(await register(7004), await register(7005, 3));
    await sees(up, 3000, 'list of four');
    up.pop().lease.release();
    await sees(up, 8000, 'list');
  });
  await step('all-left', async () => {
    while (up.length > 0) {
      const { client, lease, addr } = up.shift();
      await client.delete().key(folder + addr).exec();
      await lease.revoke();
    }
    await sees([], 3000, 'list');
  });
};
