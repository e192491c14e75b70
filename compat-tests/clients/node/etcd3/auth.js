'use strict';
const { step, equal } = require('../common');
const { etcd3, connect, refused } = require('./support');

module.exports = async ({ address, prefix }) => {
  const open = connect(address);
  const key = `${prefix}/a`;
  const as = (username, password) => connect(address, { auth: { username, password } });
  await step('off', () =>
    refused(open.auth.authenticate({ name: 'root', password: 'x' }), 'etcdserver: authentication is not enabled', 'Authenticate'));
  await step('setup', async () => {
    await open.put(key).value('one').exec();
    await open.role('root').create();
    await (await open.user('root').create('rootpw')).addRole('root');
    await open.role('reading').create();
    await open.role('reading').grant({ permission: 'Read', range: etcd3.Range.prefix(`${prefix}/`) });
    await (await open.user('reader').create('readerpw')).addRole('reading');
    await open.auth.authEnable();
  });
  await step('anonymous', () => refused(open.put(key).value('two').exec(), 'etcdserver: user name is empty', 'put'));
  await step('wrong', () =>
    refused(as('reader', 'wrong').get(key).exec(), 'etcdserver: authentication failed, invalid user ID or password', 'get'));
  await step('reader', async () => {
    const reader = as('reader', 'readerpw');
    equal(await reader.get(key).string(), 'one', 'value');
    equal(await reader.getAll().prefix(`${prefix}/`).strings(), { [key]: 'one' }, 'pairs');
    await refused(reader.put(key).value('two').exec(), 'etcdserver: permission denied', 'put');
  });
  const root = as('root', 'rootpw');
  await step('root', async () => {
    await root.put(key).value('three').exec();
    equal(await root.get(key).string(), 'three', 'value');
  });
  await step('cleanup', async () => {
    await root.auth.authDisable();
    const plain = connect(address);
    for (const name of ['root', 'reader']) {
      await plain.user(name).delete();
    }
    for (const name of ['root', 'reading']) {
      await plain.role(name).delete();
    }
    equal([(await plain.getUsers()).length, (await plain.getRoles()).length], [0, 0], 'users and roles left');
  });
};
