'use strict';
// What every client program shares: reporting of steps, faults asked of the bench, exact checks, waits with a limit.

const { isDeepStrictEqual, inspect } = require('util');
const readline = require('readline');

const say = (...words) => process.stdout.write(words.join(' ') + '\n');
const oneLine = text => String(text).replace(/\s+/g, ' ').slice(0, 600);
const show = value => oneLine(inspect(value, { depth: 6, breakLength: Infinity }));

let current = 'start';

/** Ends the program: nothing after a wrong state is worth seeing. */
function fail(reason) {
  say('fail', current, oneLine(reason));
  process.exit(1);
}

process.on('uncaughtException', error => fail(`uncaught: ${error && (error.stack || error)}`));
process.on('unhandledRejection', error => fail(`unhandled: ${error && (error.stack || error)}`));

/** Checks one step of the scenario and reports it. */
async function step(name, check) {
  current = name;
  try {
    await check();
  } catch (error) {
    fail(error && error.message ? `${error.name}: ${error.message}` : error);
  }
  say('ok', name);
}

const lacks = (name, reason) => say('lacks', name, reason);
const note = text => say('note', oneLine(text));

let answers;
/** Asks the bench for a fault and waits until it is done. */
async function fault(verb) {
  if (!answers) {
    answers = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  }
  say('do', verb);
  const { value } = await answers.next();
  if (value !== 'done') {
    throw new Error(`the bench answered ${show(value)} to ${verb}`);
  }
}

function equal(seen, expected, what) {
  if (!isDeepStrictEqual(seen, expected)) {
    throw new Error(`${what}: expected ${show(expected)}, saw ${show(seen)}`);
  }
}

function holds(condition, what) {
  if (!condition) {
    throw new Error(what);
  }
}

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

/** The promise's value, or a failure after so many milliseconds. */
function within(ms, promise, what) {
  let timer;
  const limit = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: not within ${ms} ms`)), ms);
  });
  return Promise.race([promise, limit]).finally(() => clearTimeout(timer));
}

/** Asks again until the answer is the expected one. */
async function until(ms, ask, expected, what) {
  const end = Date.now() + ms;
  let seen;
  for (;;) {
    seen = await ask();
    if (isDeepStrictEqual(seen, expected)) {
      return;
    }
    if (Date.now() > end) {
      throw new Error(`${what}: expected ${show(expected)} within ${ms} ms, last saw ${show(seen)}`);
    }
    await sleep(50);
  }
}

/** What a callback was given, in order, for exact checks. */
class Inbox {
  constructor() {
    this.items = [];
    this.take = item => this.items.push(item);
  }

  /** The next so many items, which must come within the limit. */
  async next(count, ms, what) {
    const end = Date.now() + ms;
    while (this.items.length < count) {
      if (Date.now() > end) {
        throw new Error(`${what}: expected ${count} within ${ms} ms, saw ${show(this.items)}`);
      }
      await sleep(10);
    }
    return this.items.splice(0, count);
  }

  /** Nothing (more) comes for so long. */
  async silent(ms, what) {
    await sleep(ms);
    equal(this.items, [], what);
  }
}

module.exports = { step, lacks, note, fault, fail, equal, holds, sleep, within, until, show, say, Inbox };
