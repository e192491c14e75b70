//! Members in one process, with virtual time and links that can be cut: every message is encoded and decoded.

mod liveness;
mod lives;
mod messages;
mod repair;
mod streams;

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::digest::Cell;
use crate::node::{NodeConfig, Output};
use crate::record::{LeaseId, Record, RecordBody, RecordKey, StoreKind};

/// Between two rounds of delivery.
const STEP_MS: u64 = 100;

/// Wall milliseconds at virtual time 0.
const EPOCH: u64 = 1_700_000_000_000;

struct Member {
    node: Node,
    replicator: Replicator,
    said: Vec<ReplicationOutput>,
    changes: Vec<Output>,
    /// The process is not running: it hears nothing and no time passes for it.
    stopped: bool,
}

struct Net {
    now: u64,
    members: BTreeMap<MemberId, Member>,
    /// Directed links that lose everything.
    cut: BTreeSet<(MemberId, MemberId)>,
    /// Bytes that left each member.
    sent: BTreeMap<MemberId, usize>,
    config: ReplicationConfig,
}

fn node(member: MemberId, wall: u64) -> Node {
    let mut config = NodeConfig::new(member, wall);
    config.cluster = true;
    config.digest_key = (1, 2);
    Node::new(config)
}

fn key(name: &str) -> RecordKey {
    RecordKey::new(StoreKind::Native, name.to_owned())
}

fn body(service: &str, instance: &str) -> RecordBody {
    RecordBody {
        namespace: "space".into(),
        service: service.into(),
        instance: instance.into(),
        ..RecordBody::default()
    }
}

impl Net {
    /// `count` members that are connected, in each other's lists, and ready.
    fn new(count: MemberId) -> Self {
        let mut net = Net::unconnected(count);
        let ids: Vec<MemberId> = net.members.keys().copied().collect();
        for id in &ids {
            net.list(*id, &ids);
        }
        net.connect_all();
        net.run(40_000);
        for member in net.members.values_mut() {
            assert_eq!(member.replicator.readiness(), Readiness::Ready);
            member.said.clear();
        }
        net
    }

    fn unconnected(count: MemberId) -> Self {
        let mut net = Net {
            now: 1,
            members: BTreeMap::new(),
            cut: BTreeSet::new(),
            sent: BTreeMap::new(),
            config: ReplicationConfig::default(),
        };
        for id in 1..=count {
            net.start(id, EPOCH);
        }
        net
    }

    /// A process with an empty table whose wall clock shows `wall` at virtual time 0.
    fn start(&mut self, id: MemberId, wall: u64) {
        let mut node = node(id, wall + self.now);
        node.restart(wall + self.now, self.now);
        self.put(id, node);
    }

    /// The process ends, and a new one reads what the last one had.
    fn restart(&mut self, id: MemberId, wall: u64) {
        let saved = postcard::to_allocvec(&self.members[&id].node).unwrap();
        let mut node: Node = postcard::from_bytes(&saved).unwrap();
        node.restart(wall + self.now, self.now);
        self.put(id, node);
    }

    fn put(&mut self, id: MemberId, node: Node) {
        for (other, member) in &mut self.members {
            if *other != id {
                member
                    .replicator
                    .handle_disconnected(&mut member.node, id, self.now);
            }
        }
        let replicator = Replicator::new(self.config.clone(), node.origin());
        let member = Member {
            node,
            replicator,
            said: Vec::new(),
            changes: Vec::new(),
            stopped: false,
        };
        self.members.insert(id, member);
    }

    /// Lists and links of a member that was started anew.
    fn rejoin(&mut self, id: MemberId) {
        let ids: Vec<MemberId> = self.members.keys().copied().collect();
        self.list(id, &ids);
        for other in ids {
            if other != id {
                self.connect(id, other);
            }
        }
    }

    fn list(&mut self, id: MemberId, members: &[MemberId]) {
        let now = self.now;
        let member = self.at(id);
        member
            .replicator
            .set_members(&mut member.node, members, now);
    }

    fn connect(&mut self, one: MemberId, two: MemberId) {
        let now = self.now;
        for (here, there) in [(one, two), (two, one)] {
            let member = self.at(here);
            member
                .replicator
                .handle_connected(&mut member.node, there, now);
        }
    }

    fn disconnect(&mut self, one: MemberId, two: MemberId) {
        let now = self.now;
        for (here, there) in [(one, two), (two, one)] {
            let member = self.at(here);
            member
                .replicator
                .handle_disconnected(&mut member.node, there, now);
        }
    }

    fn connect_all(&mut self) {
        let ids: Vec<MemberId> = self.members.keys().copied().collect();
        for one in &ids {
            for two in ids.iter().filter(|two| *two > one) {
                self.connect(*one, *two);
            }
        }
    }

    /// Both directions between two groups.
    fn split(&mut self, left: &[MemberId], right: &[MemberId]) {
        for one in left {
            for two in right {
                self.cut.insert((*one, *two));
                self.cut.insert((*two, *one));
            }
        }
    }

    fn heal(&mut self) {
        self.cut.clear();
    }

    fn at(&mut self, id: MemberId) -> &mut Member {
        self.members.get_mut(&id).unwrap()
    }

    fn detect(&mut self, at: MemberId, peer: MemberId, detected: Detected) {
        let now = self.now;
        let member = self.at(at);
        member
            .replicator
            .handle_detector(&mut member.node, peer, detected, now);
    }

    /// Lets time pass, and delivers everything that is said in it.
    fn run(&mut self, ms: u64) {
        let end = self.now + ms;
        while self.now < end {
            self.now = (self.now + STEP_MS).min(end);
            let now = self.now;
            for member in self.members.values_mut().filter(|member| !member.stopped) {
                member.node.run_until(now);
                member.replicator.handle_timeout(&mut member.node, now);
            }
            self.deliver();
        }
    }

    /// Delivers until nobody has anything to say.
    fn deliver(&mut self) {
        for _ in 0..10_000 {
            let mut said = Vec::new();
            for (id, member) in self.members.iter_mut().filter(|(_, m)| !m.stopped) {
                while let Some((to, message)) = member.replicator.poll_transmit(&mut member.node) {
                    said.push((*id, to, postcard::to_allocvec(&message).unwrap()));
                }
            }
            if said.is_empty() {
                break;
            }
            for (from, to, bytes) in said {
                *self.sent.entry(from).or_default() += bytes.len();
                if self.cut.contains(&(from, to)) {
                    continue;
                }
                let now = self.now;
                let Some(member) = self.members.get_mut(&to).filter(|m| !m.stopped) else {
                    continue;
                };
                let message = postcard::from_bytes(&bytes).unwrap();
                member
                    .replicator
                    .handle_message(&mut member.node, from, message, now)
                    .unwrap();
            }
        }
        for member in self.members.values_mut() {
            while let Some(output) = member.replicator.poll_output() {
                member.said.push(output);
            }
            while let Some(output) = member.node.poll_output() {
                member.changes.push(output);
            }
        }
    }

    /// Registers an instance of `service` under a lease of its own.
    fn register(&mut self, at: MemberId, name: &str, lease: i64, ttl_ms: u64) -> crate::Stamp {
        let now = self.now;
        let node = &mut self.at(at).node;
        let lease = LeaseId::native(lease);
        if node.lease(lease).is_none() {
            node.open_lease(lease, ttl_ms, now);
        }
        node.register(key(name), body("service", name), Some(lease), now)
            .unwrap()
    }

    /// Registers an instance without an owner.
    fn put_record(&mut self, at: MemberId, name: &str) {
        let now = self.now;
        let node = &mut self.at(at).node;
        node.overwrite(key(name), body("service", name), None, now)
            .unwrap();
    }

    fn renew(&mut self, at: MemberId, lease: i64) -> bool {
        let now = self.now;
        self.at(at).node.renew(LeaseId::native(lease), now).known
    }

    fn get(&self, at: MemberId, name: &str) -> Option<Record> {
        self.members[&at].node.get(&key(name)).cloned()
    }

    fn digest(&self, at: MemberId) -> Cell {
        self.members[&at].node.digest().total()
    }

    /// Every running member holds the same.
    fn assert_equal(&self) {
        let mut running = self.members.iter().filter(|(_, member)| !member.stopped);
        let (_, first) = running.next().unwrap();
        for (id, member) in running {
            assert_eq!(
                member.node.digest().total(),
                first.node.digest().total(),
                "member {id}"
            );
            let all = |node: &Node| node.records().cloned().collect::<Vec<_>>();
            assert_eq!(all(&member.node), all(&first.node), "member {id}");
        }
    }

    fn said(&self, at: MemberId, wanted: &ReplicationOutput) -> usize {
        let said = &self.members[&at].said;
        said.iter().filter(|output| *output == wanted).count()
    }
}
