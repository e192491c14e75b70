'use strict';
// node main.js CLIENT SCENARIO ADDRESS PREFIX: one client, one scenario, one target.

const fs = require('fs');
const path = require('path');
const { say, fail } = require('./common');

const [client, scenario, address, prefix] = process.argv.slice(2);
const file = path.join(__dirname, client, `${scenario}.js`);
if (!fs.existsSync(file)) {
  process.stderr.write(`${client} has no scenario ${scenario}\n`);
  process.exit(64);
}
const limit = scenario === 'restart' ? 115000 : 57000;
setTimeout(() => fail(`not through within ${limit} ms`), limit).unref();

require(file)({ address, prefix, link: process.env.COMPAT_LINK }).then(() => {
  say('done');
  process.exit(0);
});
