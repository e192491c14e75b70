'use strict';
const { step, lacks, equal, holds } = require('../common');
const { zookeeper, connect, create, remove, set, get, exists, children, sessionOf, readable, refused } = require('./support');
const { PERSISTENT_SEQUENTIAL, EPHEMERAL } = zookeeper.CreateMode;

module.exports = async ({ address, prefix }) => {
  const client = await connect(address);
  const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
  const node = `${prefix}/node`;
  let first;
  await step('create', async () => {
    equal(await create(client, prefix), prefix, 'path of the root');
    equal(await create(client, node, bytes), node, 'path');
  });
  await step('get', async () => {
    const { data, stat } = await get(client, node);
    equal(data, bytes, 'value');
    first = stat;
    holds(stat.czxid > 0n, `czxid ${stat.czxid}`);
    equal([stat.mzxid, stat.pzxid], [stat.czxid, stat.czxid], 'mzxid and pzxid');
    equal([stat.version, stat.cversion, stat.aversion], [0, 0, 0], 'versions');
    equal([stat.ephemeralOwner, stat.dataLength, stat.numChildren], [0n, 256, 0], 'owner, length, children');
    equal(stat.mtime, stat.ctime, 'mtime');
    holds(Math.abs(Number(stat.ctime) - Date.now()) < 60000, `ctime ${stat.ctime}`);
  });
  await step('set', async () => {
    const stat = readable(await set(client, node, 'one', 0));
    holds(stat.mzxid > stat.czxid, `mzxid ${stat.mzxid} czxid ${stat.czxid}`);
    holds(stat.mtime >= first.mtime, 'mtime went back');
    equal(stat, { ...first, version: 1, dataLength: 3, mzxid: stat.mzxid, mtime: stat.mtime }, 'stat');
  });
  await step('bad-version', async () => {
    const before = await get(client, node);
    await refused(set(client, node, 'two', 7), 'BAD_VERSION', 'set');
    await refused(remove(client, node, 7), 'BAD_VERSION', 'delete');
    equal(await get(client, node), before, 'node');
  });
  await step('any-version', async () => {
    equal((await set(client, node, 'two', -1)).version, 2, 'version');
  });
  await step('exists', async () => {
    equal(await exists(client, node), (await get(client, node)).stat, 'stat');
    equal(await exists(client, `${prefix}/missing`), null, 'missing');
  });
  await step('no-node', async () => {
    const missing = `${prefix}/missing`;
    await refused(get(client, missing), 'NO_NODE', 'get');
    await refused(set(client, missing, 'x'), 'NO_NODE', 'set');
    await refused(remove(client, missing), 'NO_NODE', 'delete');
    await refused(children(client, missing), 'NO_NODE', 'children');
    await refused(create(client, `${missing}/child`), 'NO_NODE', 'create');
  });
  await step('node-exists', () => refused(create(client, node), 'NODE_EXISTS', 'create'));
  await step('empty-data', async () => {
    await create(client, `${prefix}/empty`, Buffer.alloc(0));
    const { data, stat } = await get(client, `${prefix}/empty`);
    equal(data, Buffer.alloc(0), 'value');
    equal(stat.dataLength, 0, 'dataLength');
  });
  await step('large-data', async () => {
    const large = Buffer.alloc(1000000, 'causeway');
    await create(client, `${prefix}/large`);
    await set(client, `${prefix}/large`, large);
    const { data, stat } = await get(client, `${prefix}/large`);
    holds(data.equals(large), `another value of ${data.length} bytes`);
    equal(stat.dataLength, 1000000, 'dataLength');
  });
  const parent = `${prefix}/parent`;
  let family;
  await step('children', async () => {
    await create(client, parent);
    for (const name of ['a', 'b', 'c']) {
      await create(client, `${parent}/${name}`);
    }
    const { names, stat } = await children(client, parent);
    equal(names, ['a', 'b', 'c'], 'names');
    equal([stat.numChildren, stat.cversion], [3, 3], 'numChildren and cversion');
    equal(stat.pzxid, (await exists(client, `${parent}/c`)).czxid, 'pzxid');
    equal(await exists(client, parent), stat, 'stat by exists');
    family = stat;
  });
  await step('child-deleted', async () => {
    await remove(client, `${parent}/b`);
    const stat = await exists(client, parent);
    holds(stat.pzxid > family.pzxid, `pzxid ${stat.pzxid}, before ${family.pzxid}`);
    equal(stat, { ...family, numChildren: 2, cversion: 4, pzxid: stat.pzxid }, 'stat');
    family = stat;
  });
  await step('child-changed', async () => {
    await set(client, `${parent}/a`, 'changed');
    equal(await exists(client, parent), family, 'stat');
  });
  await step('not-empty', () => refused(remove(client, parent), 'NOT_EMPTY', 'delete'));
  const line = `${prefix}/line`;
  await step('sequential', async () => {
    await create(client, line);
    const made = [];
    for (const name of ['a-', 'a-', 'b-']) {
      made.push(await create(client, `${line}/${name}`, Buffer.alloc(0), PERSISTENT_SEQUENTIAL));
    }
    equal(made, [`${line}/a-0000000000`, `${line}/a-0000000001`, `${line}/b-0000000002`], 'paths');
  });
  await step('sequential-after', async () => {
    await remove(client, `${line}/b-0000000002`);
    equal(await create(client, `${line}/a-`, Buffer.alloc(0), PERSISTENT_SEQUENTIAL), `${line}/a-0000000003`, 'path');
  });
  await step('ephemeral', async () => {
    await create(client, `${prefix}/e`, Buffer.alloc(0), EPHEMERAL);
    equal((await exists(client, `${prefix}/e`)).ephemeralOwner, sessionOf(client), 'ephemeralOwner');
  });
  await step('no-children', () => refused(create(client, `${prefix}/e/child`), 'NO_CHILDREN_FOR_EPHEMERALS', 'create'));
  await step('bad-path', async () => {
    for (const path of ['//b', '/../b']) {
      let seen = 'accepted';
      try {
        client.create(`${prefix}${path}`, () => {});
      } catch (error) {
        seen = error.name;
      }
      equal(seen, 'AssertionError', `create of ${path}`);
    }
    equal((await get(client, node)).data, Buffer.from('two'), 'value');
  });
  lacks('sync', 'no sync call');
  await step('delete', async () => {
    // removeRecursive of this version misses grandchildren: its walk does not see what it appends.
    const removeTree = async path => {
      for (const name of (await children(client, path)).names) {
        await removeTree(`${path}/${name}`);
      }
      await remove(client, path);
    };
    await removeTree(prefix);
    equal(await exists(client, prefix), null, 'root');
  });
};
