'use strict';
// The few lines that an application on node-zookeeper-client writes around its callbacks.

const zookeeper = require('node-zookeeper-client');
const { equal, within, Inbox } = require('../common');

/** A connected client; the library retries for ever, so the wait has its own limit. */
async function connect(address, sessionTimeout = 10000) {
  const client = zookeeper.createClient(address, { sessionTimeout });
  const connected = new Promise(resolve => client.once('connected', resolve));
  client.connect();
  await within(10000, connected, `connected to ${address}`);
  return client;
}

/** A call as a promise of all that its callback is given after the error. */
const call = (client, method, ...args) =>
  within(
    10000,
    new Promise((resolve, reject) => {
      client[method](...args, (error, ...results) => (error ? reject(error) : resolve(results)));
    }),
    `${method} ${args[0]}`,
  );

const create = async (client, path, data = Buffer.alloc(0), mode = zookeeper.CreateMode.PERSISTENT) =>
  (await call(client, 'create', path, data, mode))[0];
const remove = (client, path, version = -1) => call(client, 'remove', path, version);
const set = async (client, path, data, version = -1) =>
  (await call(client, 'setData', path, Buffer.from(data), version))[0];
const get = async (client, path, watcher) => {
  const [data, stat] = await call(client, 'getData', path, ...(watcher ? [watcher] : []));
  return { data, stat: readable(stat) };
};
const exists = async (client, path, watcher) =>
  readable((await call(client, 'exists', path, ...(watcher ? [watcher] : [])))[0]);
const children = async (client, path, watcher) => {
  const [names, stat] = await call(client, 'getChildren', path, ...(watcher ? [watcher] : []));
  return { names: names.slice().sort(), stat: readable(stat) };
};

/** The library leaves 64-bit numbers as bytes. */
function readable(stat) {
  if (!stat) {
    return null;
  }
  const out = {};
  for (const field of ['czxid', 'mzxid', 'ctime', 'mtime', 'ephemeralOwner', 'pzxid']) {
    out[field] = stat[field].readBigInt64BE();
  }
  for (const field of ['version', 'cversion', 'aversion', 'dataLength', 'numChildren']) {
    out[field] = stat[field];
  }
  return out;
}

const sessionOf = client => client.getSessionId().readBigInt64BE();

/** The call is refused with this exception, by name. */
async function refused(promise, name, what) {
  let seen = 'no error';
  try {
    await promise;
  } catch (error) {
    seen = error.getName ? error.getName() : `${error.name}: ${error.message}`;
  }
  equal(seen, name, what);
}

/** Collects a watcher's events as [name, path]. */
class Events extends Inbox {
  watcher() {
    return event => this.take([event.getName(), event.getPath()]);
  }
}

/** Closes a session and waits until the library says that it is. */
async function close(client) {
  const gone = new Promise(resolve => client.once('disconnected', resolve));
  client.close();
  await within(5000, gone, 'close');
}

module.exports = { zookeeper, connect, call, create, remove, set, get, exists, children, readable, sessionOf, refused, Events, close };
