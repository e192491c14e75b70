//! Following a scope.

use std::sync::Arc;

use causeway_backend::{Event, Scope};
use causeway_registry::{Delta, Revision};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;

use crate::Inner;

/// Snapshot, then changes; again from the start when it was too slow. Ends when nobody reads.
pub(crate) async fn follow(backend: Arc<Inner>, scope: Scope, events: mpsc::Sender<Event>) {
    loop {
        let Some(reason) = follow_once(&backend, &scope, &events).await else {
            return;
        };
        tracing::debug!(backend = %backend.name, %reason, "watch lost");
        if events
            .send(Event::Lost {
                reason: reason.text,
            })
            .await
            .is_err()
        {
            return;
        }
        if reason.is_final {
            // There is nothing to come back to; the reader decides when to let go.
            events.closed().await;
            return;
        }
    }
}

struct Reason {
    text: String,
    is_final: bool,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Gives why it lost its place, or `None` when nobody reads.
async fn follow_once(
    backend: &Inner,
    scope: &Scope,
    events: &mpsc::Sender<Event>,
) -> Option<Reason> {
    // Before the snapshot, so that nothing falls between.
    let mut deltas = backend.access.subscribe();
    let (at, records) = backend.access.snapshot();
    let snapshot = backend.snapshot(scope, &records);
    drop(records);
    events.send(Event::SnapshotStart).await.ok()?;
    for entry in snapshot.entries {
        events.send(Event::Put(entry)).await.ok()?;
    }
    events
        .send(Event::SnapshotDone {
            revision: snapshot.revision,
        })
        .await
        .ok()?;
    loop {
        let delta = tokio::select! {
            delta = deltas.recv() => delta,
            () = events.closed() => return None,
        };
        match delta {
            Ok(delta) if is_in(&delta, at) => {}
            Ok(delta) => {
                for event in changes(backend, scope, &delta) {
                    events.send(event).await.ok()?;
                }
            }
            Err(RecvError::Lagged(missed)) => {
                let text = format!("registry {}: {missed} changes were missed", backend.name);
                return Some(Reason {
                    text,
                    is_final: false,
                });
            }
            Err(RecvError::Closed) => {
                let text = format!("registry {} has stopped", backend.name);
                return Some(Reason {
                    text,
                    is_final: true,
                });
            }
        }
    }
}

/// Whether the snapshot at this mark holds the change already.
fn is_in(delta: &Delta, at: Revision) -> bool {
    delta.revision.incarnation == at.incarnation && delta.revision.number <= at.number
}

fn changes(backend: &Inner, scope: &Scope, delta: &Delta) -> Vec<Event> {
    let mut events = Vec::new();
    for (at, change) in delta.changes.iter().enumerate() {
        let record = &change.record;
        if !backend.holds(scope, &record.key) {
            continue;
        }
        if !change.is_removal() {
            events.push(Event::Put(backend.entry(record)));
            continue;
        }
        // A record that moved to another service is told as gone there and new here; the key
        // itself only changed.
        let rest = delta.changes.iter().skip(at + 1);
        if !rest
            .filter(|later| later.record.key == record.key)
            .any(|later| !later.is_removal())
        {
            events.push(Event::Delete {
                key: record.key.key.clone(),
                revision: backend.removal(record.stamp),
            });
        }
    }
    events
}
