'use strict';
const { step, equal, within } = require('../common');
const { zookeeper, connect, create, remove, set, children, Events, close } = require('./support');

module.exports = async ({ address, prefix }) => {
  const a = await connect(address);
  const b = await connect(address);
  const parent = `${prefix}/parent`;
  await create(b, prefix);
  await create(b, parent);
  let events = new Events();
  const fires = async (change, name = 'NODE_CHILDREN_CHANGED') => {
    await children(a, parent, events.watcher());
    await change();
    equal(await events.next(1, 2000, 'event'), [[name, parent]], 'event');
    await events.silent(300, 'second event');
  };
  await step('created', () => fires(() => create(b, `${parent}/a`)));
  await step('deleted', () => fires(() => remove(b, `${parent}/a`)));
  await step('data-silent', async () => {
    await create(b, `${parent}/a`);
    await children(a, parent, events.watcher());
    await set(b, `${parent}/a`, 'one');
    await set(b, parent, 'one');
    await events.silent(1000, 'events');
  });
  await step('grandchild-silent', async () => {
    await children(a, parent, events.watcher());
    await create(b, `${parent}/a/b`);
    await events.silent(1000, 'events');
    await remove(b, `${parent}/a/b`);
    await remove(b, `${parent}/a`);
    // The two watches of the silent steps are spent by that last change.
    await events.next(2, 2000, 'events');
  });
  await step('parent-deleted', () => fires(() => remove(b, parent), 'NODE_DELETED'));
  await step('ephemeral', async () => {
    await create(b, parent);
    const c = await connect(address);
    await create(c, `${parent}/e`, Buffer.alloc(0), zookeeper.CreateMode.EPHEMERAL);
    await fires(() => close(c));
  });
  await step('follow', async () => {
    const expected = Array.from({ length: 20 }, (_, i) => `c${String(i).padStart(2, '0')}`);
    let seen = [];
    const followed = new Promise((resolve, reject) => {
      const list = () =>
        children(a, parent, list).then(({ names }) => {
          seen = names;
          if (names.length === expected.length) {
            resolve();
          }
        }, reject);
      list();
    });
    for (const name of expected) {
      await create(b, `${parent}/${name}`);
    }
    await within(5000, followed, 'all 20 children').catch(error => {
      throw new Error(`${error.message}; last list ${seen}`);
    });
    equal(seen, expected, 'children');
  });
};
