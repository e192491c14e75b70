'use strict';
const crypto = require('crypto');
const { step, equal } = require('../common');
const { zookeeper, connect, call, create, set, get, readable, refused } = require('./support');
const { ACL, Id, Permission } = zookeeper;

const SECRET = 'user:secret';
// ZooKeeper: DigestAuthenticationProvider.generateDigest
const DIGEST = `user:${crypto.createHash('sha1').update(SECRET).digest('base64')}`;

const shown = async (client, path) => {
  const [acls, stat] = await call(client, 'getACL', path);
  return { acls: acls.map(acl => [acl.permission, acl.id.scheme, acl.id.id]), aversion: readable(stat).aversion };
};

module.exports = async ({ address, prefix }) => {
  const a = await connect(address);
  const b = await connect(address);
  await create(a, prefix);
  await step('open', async () => {
    equal(await shown(a, prefix), { acls: [[31, 'world', 'anyone']], aversion: 0 }, 'list');
  });
  const node = `${prefix}/mine`;
  await step('digest', async () => {
    a.addAuthInfo('digest', Buffer.from(SECRET));
    const [path] = await call(a, 'create', node, Buffer.from('zero'), ACL.CREATOR_ALL_ACL);
    equal(path, node, 'path');
  });
  await step('shown', async () => {
    equal(await shown(a, node), { acls: [[31, 'digest', DIGEST]], aversion: 0 }, 'list');
  });
  await step('own', async () => {
    await set(a, node, 'one');
    equal((await get(a, node)).data, Buffer.from('one'), 'value');
  });
  await step('stranger', async () => {
    await refused(get(b, node), 'NO_AUTH', 'get');
    await refused(set(b, node, 'two'), 'NO_AUTH', 'set');
  });
  await step('admitted', async () => {
    b.addAuthInfo('digest', Buffer.from(SECRET));
    equal((await get(b, node)).data, Buffer.from('one'), 'value');
  });
  await step('changed', async () => {
    const list = [new ACL(Permission.READ, Id.ANYONE_ID_UNSAFE)];
    const [stat] = await call(a, 'setACL', node, list, 0);
    equal(readable(stat).aversion, 1, 'aversion');
    equal(await shown(a, node), { acls: [[1, 'world', 'anyone']], aversion: 1 }, 'list');
    const c = await connect(address);
    equal((await get(c, node)).data, Buffer.from('one'), 'value');
    await refused(set(c, node, 'two'), 'NO_AUTH', 'set');
  });
  await step('bad-version', async () => {
    await refused(call(a, 'setACL', prefix, ACL.OPEN_ACL_UNSAFE, 7), 'BAD_VERSION', 'setACL');
    equal((await shown(a, prefix)).aversion, 0, 'aversion');
    // Who may administrate is asked before the version.
    await refused(call(a, 'setACL', node, ACL.OPEN_ACL_UNSAFE, 7), 'NO_AUTH', 'setACL of the other');
    equal(await shown(a, node), { acls: [[1, 'world', 'anyone']], aversion: 1 }, 'list of the other');
  });
};
