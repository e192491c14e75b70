'use strict';
const net = require('net');
const { step, equal, holds } = require('../common');
const { connect, undisturbed } = require('./support');

module.exports = async ({ address, prefix }) => {
  const client = connect(address);
  let cluster;
  await step('status', async () => {
    const status = await client.maintenance.status();
    holds(/^\d+\.\d+\.\d+/.test(status.version), `version ${status.version}`);
    holds(status.leader !== '0', 'leader is 0');
    for (const field of ['cluster_id', 'member_id', 'revision', 'raft_term']) {
      holds(BigInt(status.header[field]) !== 0n, `${field} of the header is 0`);
    }
    cluster = status.header.cluster_id;
  });
  await step('members', async () => {
    const { header, members } = await client.cluster.memberList({});
    equal(header.cluster_id, cluster, 'cluster id');
    holds(members.length > 0, 'no members');
    for (const member of members) {
      holds(member.ID !== '0', 'a member without id');
      holds(member.clientURLs.length > 0 && /^https?:\/\/./.test(member.clientURLs[0]), `client URLs ${member.clientURLs}`);
    }
  });
  await step('header', () =>
    undisturbed(async () => {
      const [one, two] = [await client.get(prefix).exec(), await client.get(prefix).exec()];
      equal([one.kvs, two.kvs], [[], []], 'pairs');
      equal([one.header.cluster_id, two.header.cluster_id], [cluster, cluster], 'cluster ids');
      holds(one.header.revision !== '0', 'revision is 0');
      return one.header.revision === two.header.revision || `revisions ${one.header.revision}, ${two.header.revision}`;
    }, 'the same revision twice'));
  await step('unreachable', async () => {
    // A port that was free a moment ago.
    const port = await new Promise(resolve => {
      const server = net.createServer().listen(0, '127.0.0.1', () => {
        const found = server.address().port;
        server.close(() => resolve(found));
      });
    });
    const started = Date.now();
    let seen = 'no error';
    try {
      await connect(`127.0.0.1:${port}`).get(prefix).options({ deadline: Date.now() + 3000 }).exec();
    } catch (error) {
      seen = error.constructor.name;
    }
    holds(['GRPCUnavailableError', 'GRPCDeadlineExceededError'].includes(seen), `error ${seen}`);
    holds(Date.now() - started < 3500, `after ${Date.now() - started} ms`);
  });
};
