//! Members in one process over the faulty network and faulty disks. Time is tokio's, paused in most tests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use causeway_registry_council::memory::Network;
use causeway_registry_council::{
    Council, CouncilError, MemberId, RegisterCommand, RegisterReply, Registers, Settings, Store,
};

use crate::disk::Disk;

pub(crate) const CLUSTER: u64 = 0x51c0_ffee_0dd5_ba11;

/// Long enough for an election and a few of its failures.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct World {
    pub(crate) network: Network,
    pub(crate) members: BTreeMap<MemberId, Council<Registers>>,
    pub(crate) disks: BTreeMap<MemberId, Disk>,
    pub(crate) settings: Settings,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        World {
            network: Network::new(seed),
            members: BTreeMap::new(),
            disks: BTreeMap::new(),
            settings: Settings::default(),
        }
    }

    /// A cluster of members 1 to `count`.
    pub(crate) async fn cluster(seed: u64, count: u64) -> Self {
        Self::new(seed).grown(count).await
    }

    pub(crate) async fn grown(mut self, count: u64) -> Self {
        self.start(1).await;
        self.members[&1]
            .init(CLUSTER)
            .await
            .expect("the first member");
        for member in 2..=count {
            self.start(member).await;
            let joined = self.members[&member].join(1, "", PATIENCE).await;
            joined.expect("joins");
        }
        let all: Vec<MemberId> = (1..=count).collect();
        self.until("all are known", |w| {
            w.members.values().all(|m| {
                m.status().voters == all && m.members().keys().copied().eq(all.iter().copied())
            })
        })
        .await;
        self
    }

    /// Starts a member on its disk.
    pub(crate) async fn start(&mut self, member: MemberId) {
        let disk = self.disks.entry(member).or_default().clone();
        // As long as one that is drawn at random, which counts in the traffic at rest.
        let birth = member.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.start_on(member, &disk, birth).await;
    }

    pub(crate) async fn start_on(&mut self, member: MemberId, disk: &Disk, birth: u64) {
        let store = Store::with_backend(disk.open(), member, birth).expect("opens");
        let settings = Settings {
            address: format!("member-{member}"),
            ..self.settings.clone()
        };
        let links = self.network.links(member);
        let council = Council::start(store, Registers::default(), links, settings)
            .await
            .expect("starts");
        let receiver = council.clone();
        self.network.attach(
            member,
            Arc::new(move |from, frame| receiver.deliver(from, &frame)),
        );
        self.members.insert(member, council);
    }

    /// Ends a member as a power cut does: nothing more leaves it, nothing more reaches its disk.
    pub(crate) async fn kill(&mut self, member: MemberId) {
        self.network.detach(member);
        if let Some(disk) = self.disks.get(&member) {
            disk.crash();
        }
        if let Some(council) = self.members.remove(&member) {
            council.stop().await;
        }
    }

    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&World) -> bool) {
        let end = tokio::time::Instant::now() + PATIENCE;
        while !holds(self) {
            let all: Vec<_> = self.members.values().map(Council::status).collect();
            assert!(
                tokio::time::Instant::now() < end,
                "{what}: not in time: {all:#?}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The leader that a majority agrees on.
    pub(crate) async fn leader(&self) -> MemberId {
        let leader = |w: &World| {
            let mut votes = BTreeMap::<MemberId, usize>::new();
            for member in w.members.values() {
                let status = member.status();
                if let Some(leader) = status.leader
                    && w.members.contains_key(&leader)
                    && status.has_majority
                {
                    *votes.entry(leader).or_default() += 1;
                }
            }
            let voters = w.members.values().next()?.status().voters.len();
            votes
                .into_iter()
                .find(|(_, n)| *n > voters / 2)
                .map(|(l, _)| l)
        };
        self.until("a leader", |w| leader(w).is_some()).await;
        leader(self).expect("just seen")
    }

    /// Cuts all links between two groups, both ways.
    pub(crate) fn split(&self, some: &[MemberId], others: &[MemberId]) {
        for a in some {
            for b in others {
                self.network.cut(*a, *b);
                self.network.cut(*b, *a);
            }
        }
    }

    /// Waits until all members have applied the same, and compares their states.
    pub(crate) async fn agree(&self) {
        self.until("the same everywhere", |w| {
            let mut applied = w.members.values().map(|m| m.status().applied);
            let first = applied.next();
            applied.all(|a| Some(a) == first)
        })
        .await;
        let mut states = self
            .members
            .values()
            .map(|m| (m.read(Registers::clone), m.members()));
        let first = states.next();
        for state in states {
            assert_eq!(Some(state), first, "the same log, another state");
        }
    }
}

pub(crate) async fn next(member: &Council<Registers>, name: &str) -> Result<u64, CouncilError> {
    let command = RegisterCommand::Next { name: name.into() };
    match member.propose(&command).await? {
        RegisterReply::Number(number) => Ok(number),
        other => panic!("{other:?} from a counter"),
    }
}

pub(crate) async fn compare_and_set(
    member: &Council<Registers>,
    key: &str,
    expected: Option<&str>,
    new: &str,
) -> Result<bool, CouncilError> {
    let command = RegisterCommand::CompareAndSet {
        key: key.to_string().into(),
        expected: expected.map(|e| e.to_string().into()),
        new: Some(new.to_string().into()),
    };
    match member.propose(&command).await? {
        RegisterReply::Set => Ok(true),
        RegisterReply::Differs(_) => Ok(false),
        other => panic!("{other:?} from compare-and-set"),
    }
}
