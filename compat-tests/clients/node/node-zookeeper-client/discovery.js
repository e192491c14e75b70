'use strict';
const { step, equal, within, until } = require('../common');
const { zookeeper, connect, call, create, remove, set, get, children, close } = require('./support');

/** A service in Curator's form, as instances of other languages in the same directory have it. */
const value = (service, id, port, payload) =>
  Buffer.from(
    JSON.stringify({
      name: service,
      id,
      address: '127.0.0.1',
      port,
      sslPort: null,
      payload,
      registrationTimeUTC: Date.now(),
      serviceType: 'DYNAMIC',
      uriSpec: null,
    }),
  );

module.exports = async ({ address, prefix }) => {
  const service = prefix.slice(prefix.lastIndexOf('/') + 1);
  const reader = await connect(address);

  // The reader: children with a watch that is set again by each event, and the value of each child.
  let list = {};
  let turns = 0;
  const missing = error => error.getName && error.getName() === 'NO_NODE';
  const follow = async () => {
    const turn = (turns += 1);
    let names = [];
    try {
      ({ names } = await children(reader, prefix, follow));
    } catch (error) {
      if (!missing(error)) {
        throw error;
      }
      await call(reader, 'mkdirp', prefix);
      return follow();
    }
    const found = {};
    for (const name of names) {
      try {
        const record = JSON.parse((await get(reader, `${prefix}/${name}`)).data);
        found[record.id] = `${record.address}:${record.port}`;
      } catch (error) {
        // Gone between the list and the read: the event for that is on its way.
        if (!missing(error)) {
          throw error;
        }
      }
    }
    // The next event may have come while the values were read: then its list counts.
    if (turn === turns) {
      list = found;
    }
  };

  const register = async (id, port) => {
    const client = await connect(address);
    await create(client, `${prefix}/${id}`, value(service, id, port, null), zookeeper.CreateMode.EPHEMERAL);
    return { client, id, port };
  };
  const listed = instances => Object.fromEntries(instances.map(({ id, port }) => [id, `127.0.0.1:${port}`]));
  const sees = (instances, ms, what) => until(ms, () => list, listed(instances), what);

  let up = [];
  await step('empty', async () => {
    await within(5000, follow(), 'first list');
    equal(list, {}, 'list');
  });
  await step('registered', async () => {
    for (const [id, port] of [['one', 7001], ['two', 7002], ['three', 7003]]) {
      up.push(await register(id, port));
    }
    await sees(up, 3000, 'list');
  });
  await step('updated', async () => {
    const [one] = up;
    await set(one.client, `${prefix}/one`, value(service, 'one', 7001, 'changed'));
    await until(
      3000,
      async () => JSON.parse((await get(reader, `${prefix}/one`)).data).payload,
      'changed',
      'payload by a fresh read',
    );
  });
  await step('left', async () => {
    const two = up.splice(1, 1)[0];
    await remove(two.client, `${prefix}/two`);
    await sees(up, 2000, 'list');
    await close(two.client);
  });
  await step('died', async () => {
    up.push(await register('four', 7004), await register('five', 7005));
    await sees(up, 3000, 'list of four');
    const one = up.shift();
    await close(one.client);
    await sees(up, 3000, 'list');
  });
  await step('all-left', async () => {
    while (up.length > 0) {
      const instance = up.shift();
      await remove(instance.client, `${prefix}/${instance.id}`);
    }
    await sees([], 3000, 'list');
  });
};
