'use strict';
const { step, equal } = require('../common');
const { connect, create, remove, set, exists, Events } = require('./support');

module.exports = async ({ address, prefix }) => {
  const a = await connect(address);
  const b = await connect(address);
  const node = `${prefix}/node`;
  await create(b, prefix);
  const events = new Events();
  const fires = async (there, change, name) => {
    equal((await exists(a, node, events.watcher())) !== null, there, 'the node is there');
    await change();
    equal(await events.next(1, 5000, 'event'), [[name, node]], 'event');
    await events.silent(300, 'second event');
  };
  await step('created', () => fires(false, () => create(b, node), 'NODE_CREATED'));
  await step('changed', () => fires(true, () => set(b, node, 'one'), 'NODE_DATA_CHANGED'));
  await step('deleted', () => fires(true, () => remove(b, node), 'NODE_DELETED'));
  await step('children-silent', async () => {
    await create(b, node);
    await exists(a, node, events.watcher());
    await create(b, `${node}/child`);
    await events.silent(1000, 'events');
  });
};
