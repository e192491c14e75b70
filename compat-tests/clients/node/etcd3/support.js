'use strict';
// The few lines that an application on etcd3 writes around the library.

const etcd3 = require('etcd3');
const { equal, holds, within, Inbox } = require('../common');

const connect = (address, options = {}) => new etcd3.Etcd3({ hosts: address.split(','), ...options });

/** The call is refused with this text of the server's (the library wraps it). */
async function refused(promise, text, what) {
  let seen = 'no error';
  try {
    await promise;
  } catch (error) {
    seen = error.message;
  }
  holds(seen.includes(text), `${what}: expected an error with "${text}", saw "${seen}"`);
}

/** The first key-value pair of a key, with numbers where they are 64 bits on the wire. */
async function pair(client, key) {
  const { kvs } = await client.get(key).exec();
  return kvs.length ? readable(kvs[0]) : null;
}

const readable = kv => ({
  key: kv.key.toString(),
  value: kv.value.toString(),
  create: BigInt(kv.create_revision),
  mod: BigInt(kv.mod_revision),
  version: BigInt(kv.version),
  lease: BigInt(kv.lease),
});

const revision = answer => BigInt(answer.header.revision);

/**
 * A lease of an earlier scenario may end meanwhile and move the revision. What is said of one that nobody moved must hold
 * in one attempt of three; an answer that is wrong whoever writes is an error of the first.
 */
async function undisturbed(attempt, what) {
  let last;
  for (let i = 0; i < 3; i += 1) {
    last = await attempt(i);
    if (last === true) {
      return;
    }
  }
  throw new Error(`${what}: ${last} in each of three attempts`);
}

/** A watch that is in place, with all that it brings in order. */
class Watch extends Inbox {
  constructor(watcher) {
    super();
    this.watcher = watcher;
    this.connected = new Promise(resolve => watcher.once('connected', resolve));
    this.failed = new Promise(resolve => watcher.once('error', resolve));
    watcher.on('data', answer => {
      for (const event of answer.events) {
        this.take({
          type: event.type,
          ...readable(event.kv),
          previous: event.prev_kv && event.prev_kv.key.length ? readable(event.prev_kv) : null,
        });
      }
    });
  }

  /** Listens before the watch is asked for: create() hands it out only when its first events may be gone by. */
  static async of(builder) {
    const watch = new Watch(builder.watcher());
    await within(5000, Promise.race([watch.connected, watch.failed]), 'watch created');
    return watch;
  }

  /** The next events, cut down to the named fields. */
  async expect(expected, fields, what, ms = 5000) {
    const seen = await this.next(expected.length, ms, what);
    equal(
      seen.map(event => fields.map(field => event[field])),
      expected,
      what,
    );
    return seen;
  }
}

/** The library's lock refuses at once when the lock is held; an application that waits asks again. */
async function acquire(client, name, ttl, ms, what) {
  const end = Date.now() + ms;
  for (;;) {
    const lock = client.lock(name).ttl(ttl);
    try {
      await lock.acquire();
      return lock;
    } catch (error) {
      if (!(error instanceof etcd3.EtcdLockFailedError)) {
        throw error;
      }
      holds(Date.now() < end, `${what}: not within ${ms} ms`);
      await new Promise(resolve => setTimeout(resolve, 20));
    }
  }
}

module.exports = { etcd3, connect, refused, pair, readable, revision, undisturbed, Watch, acquire };
