'use strict';
const { step, equal } = require('../common');
const { connect, create, set, get, exists, children, refused, Events } = require('./support');

module.exports = async ({ address, prefix }) => {
  await step('missing', async () => {
    const client = await connect(`${address}${prefix}/missing`);
    await refused(create(client, '/node'), 'NO_NODE', 'create');
  });
  const whole = await connect(address);
  await create(whole, prefix);
  const inner = await connect(`${address}${prefix}`);
  await step('works', async () => {
    equal(await create(inner, '/node', Buffer.from('one')), '/node', 'path');
    equal((await get(inner, '/node')).data, Buffer.from('one'), 'value');
    equal((await children(inner, '/')).names, ['node'], 'children');
    equal((await get(whole, `${prefix}/node`)).data, Buffer.from('one'), 'value by the whole path');
    equal((await children(whole, prefix)).names, ['node'], 'children by the whole path');
  });
  await step('watch', async () => {
    const events = new Events();
    await get(inner, '/node', events.watcher());
    await exists(inner, '/later', events.watcher());
    await children(inner, '/node', events.watcher());
    await set(whole, `${prefix}/node`, 'two');
    await create(whole, `${prefix}/later`);
    await create(whole, `${prefix}/node/child`);
    equal(
      await events.next(3, 5000, 'events'),
      [
        ['NODE_DATA_CHANGED', '/node'],
        ['NODE_CREATED', '/later'],
        ['NODE_CHILDREN_CHANGED', '/node'],
      ],
      'events',
    );
  });
};
