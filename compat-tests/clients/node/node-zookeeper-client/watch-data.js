'use strict';
const { step, equal, holds } = require('../common');
const { connect, create, remove, set, get, refused, Events } = require('./support');

module.exports = async ({ address, prefix }) => {
  const a = await connect(address);
  const b = await connect(address);
  const node = `${prefix}/node`;
  await create(b, prefix);
  await create(b, node, Buffer.from('zero'));
  const events = new Events();
  await step('once', async () => {
    await get(a, node, events.watcher());
    await set(b, node, 'one');
    await set(b, node, 'two');
    equal(await events.next(1, 5000, 'event'), [['NODE_DATA_CHANGED', node]], 'event');
    await events.silent(1000, 'second event');
  });
  await step('before', async () => {
    // The order in which A's library hands out the event and a reply that shows the change.
    const order = [];
    await get(a, node, () => order.push('event'));
    const written = set(b, node, 'three');
    let value;
    do {
      value = (await get(a, node)).data.toString();
      order.push(value);
    } while (value !== 'three');
    await written;
    holds(order.includes('event'), `no event before the reply: ${order}`);
    holds(order.indexOf('event') < order.indexOf('three'), `the reply came first: ${order}`);
  });
  await step('again', async () => {
    for (const value of ['four', 'five']) {
      await get(a, node, events.watcher());
      await set(b, node, value);
      equal(await events.next(1, 5000, 'event'), [['NODE_DATA_CHANGED', node]], 'event');
    }
  });
  await step('deleted', async () => {
    await get(a, node, events.watcher());
    await remove(b, node);
    equal(await events.next(1, 5000, 'event'), [['NODE_DELETED', node]], 'event');
    await create(b, node);
  });
  await step('both', async () => {
    const second = new Events();
    await get(a, node, events.watcher());
    await get(a, node, second.watcher());
    await set(b, node, 'six');
    equal(await events.next(1, 5000, 'event'), [['NODE_DATA_CHANGED', node]], 'event of the first');
    equal(await second.next(1, 5000, 'event'), [['NODE_DATA_CHANGED', node]], 'event of the second');
    await set(b, node, 'seven');
    await events.silent(500, 'more events of the first');
    await second.silent(0, 'more events of the second');
  });
  await step('none', async () => {
    await refused(get(a, `${prefix}/missing`, events.watcher()), 'NO_NODE', 'get');
    await create(b, `${prefix}/missing`);
    await events.silent(1000, 'events');
  });
  await step('own', async () => {
    await get(a, node, events.watcher());
    await set(a, node, 'eight');
    equal(await events.next(1, 5000, 'event'), [['NODE_DATA_CHANGED', node]], 'event');
  });
};
