'use strict';
const { step, equal, sleep, within, until } = require('../common');
const { connect } = require('./support');

module.exports = async ({ address, prefix }) => {
  const elections = [0, 1, 2].map(() => connect(address).namespace(`${prefix}/`).election('leader', 10));
  const observer = elections[2];
  const candidates = [];
  const campaign = i => {
    const candidate = elections[i].campaign(`candidate ${i}`);
    const state = { elected: false };
    candidate.on('elected', () => (state.elected = true));
    candidate.on('error', error => (state.error = error));
    candidates.push({ candidate, state });
    return candidate.wait();
  };
  await step('one', async () => {
    await within(5000, campaign(0), 'the first is elected');
    campaign(1).catch(() => {});
    await sleep(1000);
    equal(candidates.map(({ state }) => state.elected), [true, false], 'elected');
    equal(await observer.leader(), 'candidate 0', 'leader');
  });
  await step('proclaim', async () => {
    const seen = [];
    const watching = await observer.observe();
    watching.on('change', value => seen.push(value));
    await candidates[0].candidate.proclaim('another value');
    await until(3000, async () => watching.leader(), 'another value', 'leader by the observer');
    equal(seen[seen.length - 1], 'another value', 'last change');
    equal(await observer.leader(), 'another value', 'leader');
    await watching.cancel();
  });
  await step('resign', async () => {
    await candidates[0].candidate.resign();
    await until(3000, async () => candidates[1].state.elected, true, 'the second is elected');
    equal(await observer.leader(), 'candidate 1', 'leader');
  });
  await step('last', async () => {
    const key = await candidates[1].candidate.getCampaignKey();
    const lease = key.slice(key.lastIndexOf('/') + 1);
    await connect(address).leaseClient.leaseRevoke({ ID: lease });
    await until(3000, () => observer.leader(), undefined, 'leader');
  });
};
