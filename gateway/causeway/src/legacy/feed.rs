//! Follows a legacy store and tells the machine what it shows.

use std::sync::Arc;
use std::time::Duration;

use causeway_backend::{Backend, Entry, Event, Meta, Owner, Revision};
use causeway_engine::core::{Command, LegacyEntry, LegacyEvent, LegacyMeta};
use causeway_engine::znode_tree::{Acl, Stat};
use causeway_registry::StoreKind;
use futures::StreamExt;

use crate::gateway::Gateway;

/// How long a frozen store is left alone before it is listed anew.
const RESYNC_AFTER: Duration = Duration::from_secs(2);

/// Feeds the machine until the gateway stops.
pub async fn run(gateway: Arc<Gateway>, store: StoreKind, backend: Arc<dyn Backend>) {
    let scope = super::scope(&gateway, store);
    if scope.subtrees().is_empty() {
        // No layout of this protocol owns anything: the store is whole, with nothing to show.
        for event in [
            LegacyEvent::SnapshotStart,
            LegacyEvent::SnapshotDone { mark: 0 },
        ] {
            gateway.apply(Command::Legacy { store, event });
        }
        return;
    }
    let mut stopping = gateway.stopping();
    let mut resync = gateway.resyncs();
    loop {
        let mut events = backend.watch(scope.clone());
        loop {
            tokio::select! {
                event = events.next() => {
                    let Some(event) = event else { break };
                    if let Some(event) = translate(event) {
                        if let LegacyEvent::Lost { reason } = &event {
                            tracing::warn!(store = store.name(), reason, "the feed of the legacy store is lost; what it last showed stands");
                        }
                        gateway.apply(Command::Legacy { store, event });
                    }
                }
                asked = resync.recv() => {
                    if asked.is_ok_and(|s| s == store) {
                        tokio::time::sleep(RESYNC_AFTER).await;
                        break;
                    }
                }
                () = crate::gateway::stopped(&mut stopping) => return,
            }
        }
    }
}

fn translate(event: Event) -> Option<LegacyEvent> {
    Some(match event {
        Event::SnapshotStart => LegacyEvent::SnapshotStart,
        Event::Put(entry) => LegacyEvent::Put(entry_of(entry)?),
        Event::Delete { key, revision } => LegacyEvent::Delete {
            key,
            mark: mark(&revision),
        },
        Event::SnapshotDone { revision } => LegacyEvent::SnapshotDone {
            mark: mark(&revision),
        },
        Event::Lost { reason } => LegacyEvent::Lost { reason },
    })
}

fn mark(revision: &Revision) -> i64 {
    revision.as_i64().unwrap_or(i64::MAX)
}

/// An adapter's entry in the machine's words.
pub fn entry_of(entry: Entry) -> Option<LegacyEntry> {
    let owner = match entry.owner {
        Owner::Lease(lease) => lease.0,
        Owner::Persistent => 0,
    };
    let meta = match entry.meta {
        Meta::Zookeeper(m) => LegacyMeta::Znode {
            stat: Stat {
                czxid: m.czxid,
                mzxid: m.mzxid,
                ctime: m.ctime,
                mtime: m.mtime,
                version: m.version,
                cversion: m.cversion,
                aversion: m.aversion,
                ephemeral_owner: m.ephemeral_owner,
                data_length: i32::try_from(entry.value.len()).unwrap_or(i32::MAX),
                num_children: m.num_children,
                pzxid: m.pzxid,
            },
            acl: m
                .acl
                .unwrap_or_default()
                .into_iter()
                .map(|a| Acl {
                    perms: a.permissions,
                    scheme: a.scheme,
                    id: a.id,
                })
                .collect(),
        },
        Meta::Etcd(m) => LegacyMeta::Pair {
            create_revision: m.create_revision,
            version: m.version,
        },
        _ => return None,
    };
    Some(LegacyEntry {
        key: entry.key,
        value: Some(entry.value),
        owner,
        mark: mark(&entry.revision),
        meta,
    })
}
