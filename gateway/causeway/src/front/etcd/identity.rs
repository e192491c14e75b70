//! The ids and the version that clients see: a legacy cluster's own, so that they do not change with the
//! migration, or constants of this member alone.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use causeway_backend_etcd::stubs::MaintenanceClient;
use causeway_engine::key_space::Release;
use causeway_engine::route::Mode;
use causeway_wire::etcd::ServerIds;
use causeway_wire::etcd::messages::etcdserverpb::{StatusRequest, StatusResponse};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};

use super::Front;
use crate::config::Config;

/// Where the legacy cluster's ids are kept: they must outlive it.
const FILE: &str = "etcd-identity.json";

/// Without a legacy cluster. Some clients refuse a cluster id that changes, so it is the same on every
/// member and after every restart.
const IDS: ServerIds = ServerIds {
    cluster_id: 0xca05_e3a1_e7cd_0001,
    member_id: 0xca05_e3a1_0000_0001,
    raft_term: 2,
};

/// How often the legacy cluster is asked for its version, which an upgrade changes.
const ASK_EVERY: Duration = Duration::from_secs(60);
/// The same while it does not answer.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// How often our revision is set beside the legacy cluster's.
const PAIR_EVERY: Duration = Duration::from_secs(1);
/// Pairs that are kept.
const PAIRS: usize = 4096;
/// Pairs, and so at least seconds, that an event may be under way to a client.
const SECONDS_UNDER_WAY: usize = 5;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    cluster_id: u64,
    member_id: u64,
    raft_term: u64,
    version: String,
}

/// What clients are shown.
pub(super) struct Identity {
    known: RwLock<Known>,
    /// That of the version, which every call asks for.
    release: RwLock<Release>,
    /// The legacy cluster's revision as last seen; 0 before.
    legacy_revision: AtomicI64,
    /// Our revision and the legacy cluster's at the same time, rising, at least a second apart.
    pairs: Mutex<VecDeque<(i64, i64)>>,
    file: Option<PathBuf>,
}

impl Identity {
    /// As last known.
    pub(super) fn load(config: &Config) -> Self {
        let file = match (&config.legacy_etcd, &config.data_dir) {
            (Some(_), Some(dir)) => Some(dir.join(FILE)),
            _ => None,
        };
        let saved = file.as_ref().and_then(|f| std::fs::read(f).ok());
        let known = saved
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_else(|| Known {
                cluster_id: IDS.cluster_id,
                member_id: IDS.member_id,
                raft_term: IDS.raft_term,
                version: config.etcd_version.clone(),
            });
        Identity {
            release: RwLock::new(Release::of(&known.version)),
            known: RwLock::new(known),
            legacy_revision: AtomicI64::new(0),
            pairs: Mutex::default(),
            file,
        }
    }

    pub(super) fn ids(&self) -> ServerIds {
        let known = self.known.read();
        ServerIds {
            cluster_id: known.cluster_id,
            member_id: known.member_id,
            raft_term: known.raft_term,
        }
    }

    pub(super) fn version(&self) -> String {
        self.known.read().version.clone()
    }

    /// The release that clients are shown, whose behaviour they expect.
    pub(super) fn release(&self) -> Release {
        *self.release.read()
    }

    /// A revision that the legacy cluster has surely reached; 0 when none is known.
    pub(super) fn legacy_revision(&self) -> i64 {
        self.legacy_revision.load(Ordering::Relaxed)
    }

    pub(super) fn saw_legacy_revision(&self, revision: i64) {
        self.legacy_revision.fetch_max(revision, Ordering::Relaxed);
    }

    /// A revision of the legacy cluster that a client which showed our number had surely been told of.
    pub(super) fn legacy_revision_at(&self, ours: i64) -> i64 {
        told_by(&self.pairs.lock(), ours)
    }

    fn note_pair(&self, ours: i64) {
        let theirs = self.legacy_revision();
        let mut pairs = self.pairs.lock();
        if theirs == 0 || pairs.back().is_some_and(|(last, _)| *last >= ours) {
            return;
        }
        if pairs.len() == PAIRS {
            pairs.pop_front();
        }
        pairs.push_back((ours, theirs));
    }

    fn learn(&self, status: &StatusResponse) {
        self.saw_legacy_revision(status.header.as_ref().map_or(0, |h| h.revision));
        let was = self.known.read().clone();
        let known = learnt(&was, status);
        if known == was {
            return;
        }
        *self.release.write() = Release::of(&known.version);
        *self.known.write() = known.clone();
        let Some(file) = &self.file else { return };
        let saved = serde_json::to_vec(&known)
            .map_err(std::io::Error::other)
            .and_then(|bytes| std::fs::write(file, bytes));
        if let Err(error) = saved {
            tracing::warn!(file = %file.display(), %error, "the legacy etcd's ids cannot be kept; after a restart without it clients would see others");
        }
    }
}

/// The last pair at or below our number is of the same moment; events travel for a while, so it is one from
/// some seconds before. 0 when there is none.
fn told_by(pairs: &VecDeque<(i64, i64)>, ours: i64) -> i64 {
    let upto = pairs.partition_point(|(known, _)| *known <= ours);
    upto.checked_sub(1 + SECONDS_UNDER_WAY)
        .and_then(|at| pairs.get(at))
        .map_or(0, |(_, theirs)| *theirs)
}

/// The ids of the first member that answered stay: only one member is shown, and clients must not see it
/// change with the server that happens to be asked.
fn learnt(was: &Known, status: &StatusResponse) -> Known {
    let Some(header) = status.header.as_ref().filter(|h| h.cluster_id != 0) else {
        return was.clone();
    };
    let same_cluster = was.cluster_id == header.cluster_id;
    Known {
        cluster_id: header.cluster_id,
        member_id: if same_cluster {
            was.member_id
        } else {
            header.member_id
        },
        raft_term: was.raft_term.max(header.raft_term),
        version: if status.version.is_empty() {
            was.version.clone()
        } else {
            status.version.clone()
        },
    }
}

/// Keeps the identity up to date until the gateway stops.
pub(super) async fn follow(front: Arc<Front>) {
    let mut stopping = front.gateway.stopping();
    let Ok(channel) = front.upstream() else {
        return;
    };
    let mut client = MaintenanceClient::new(channel);
    loop {
        let asked = tokio::time::timeout(PATIENCE, client.status(StatusRequest {})).await;
        let wait = match asked {
            Ok(Ok(status)) => {
                front.identity.learn(status.get_ref());
                front.show_release();
                ASK_EVERY
            }
            _ => ASK_AGAIN,
        };
        tokio::select! {
            () = note_pairs(&front, wait) => {}
            _ = stopping.wait_for(|s| *s) => return,
        }
    }
}

async fn note_pairs(front: &Front, time: Duration) {
    let until = tokio::time::Instant::now() + time;
    while tokio::time::Instant::now() < until {
        tokio::time::sleep(PAIR_EVERY).await;
        if front.mode() == Mode::TakenOver {
            let ours = front.gateway.with(|core| core.keys().revision()).0;
            front.identity.note_pair(ours);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use causeway_wire::etcd::messages::etcdserverpb::ResponseHeader;

    #[test]
    fn what_a_client_with_our_number_was_told() {
        let pairs: VecDeque<(i64, i64)> = (1..=10).map(|n| (n * 1000, n)).collect();
        for (ours, told) in [
            (500, 0),
            (5000, 0),
            (6000, 1),
            (6999, 1),
            (10_000, 5),
            (i64::MAX, 5),
        ] {
            assert_eq!(told_by(&pairs, ours), told, "{ours}");
        }
    }

    #[test]
    fn the_ids_of_a_cluster_stay_and_its_version_follows() {
        let known = |cluster_id, member_id, raft_term, version: &str| Known {
            cluster_id,
            member_id,
            raft_term,
            version: version.into(),
        };
        let status = |cluster_id, member_id, raft_term, version: &str| StatusResponse {
            header: Some(ResponseHeader {
                cluster_id,
                member_id,
                revision: 1,
                raft_term,
            }),
            version: version.into(),
            ..StatusResponse::default()
        };
        let fresh = known(1, 2, 2, "3.5.21");
        let first = learnt(&fresh, &status(7, 8, 5, "3.4.23"));
        assert_eq!(first, known(7, 8, 5, "3.4.23"));
        assert_eq!(
            learnt(&first, &status(7, 9, 6, "3.5.1")),
            known(7, 8, 6, "3.5.1")
        );
        assert_eq!(learnt(&first, &status(0, 9, 6, "3.5.1")), first);
        assert_eq!(learnt(&first, &status(7, 8, 3, "")), first);
    }
}
