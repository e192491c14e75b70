//! Following a scope.

use std::time::Duration;

use bytes::Bytes;
use causeway_backend::{BackendName, Event, Revision, Scope, Snapshot};
use etcd_client::{EventType, WatchOptions, WatchResponse};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::names::{KeyRange, ranges};
use crate::{EtcdBackend, entry};

/// Pauses between attempts to come back, growing from the first to the last.
const RETRY_FROM: Duration = Duration::from_millis(100);
const RETRY_TO: Duration = Duration::from_secs(3);

/// Snapshot, then changes from the revision after it; again from the start after a loss. Ends
/// when nobody reads.
pub(crate) async fn follow(backend: EtcdBackend, scope: Scope, events: mpsc::Sender<Event>) {
    let feed = Feed {
        name: backend.name.clone(),
        events,
    };
    let ranges = ranges(&scope);
    let mut pause = RETRY_FROM;
    let mut lost = false;
    loop {
        let reason = match backend.list(&ranges).await {
            Ok((snapshot, revision)) => {
                lost = false;
                pause = RETRY_FROM;
                let Some(()) = feed.snapshot(snapshot).await else {
                    return;
                };
                let Some(reason) = watch_from(&backend, &ranges, revision + 1, &feed).await else {
                    return;
                };
                reason
            }
            Err(error) => error.to_string(),
        };
        tracing::debug!(backend = %feed.name, %reason, "watch lost");
        if !lost {
            lost = true;
            let Some(()) = feed.send(Event::Lost { reason }).await else {
                return;
            };
        }
        tokio::select! {
            () = sleep(pause) => pause = (pause * 2).min(RETRY_TO),
            () = feed.events.closed() => return,
        }
    }
}

/// Passes changes on until the watch breaks and gives the reason, or `None` when nobody reads.
async fn watch_from(
    backend: &EtcdBackend,
    ranges: &[KeyRange],
    revision: i64,
    feed: &Feed,
) -> Option<String> {
    let server = backend.server();
    let options = |range: &KeyRange| {
        // Fragments keep messages small; a key is at most once in a revision, so that they may
        // be passed on one by one. The leader is asked for because a server cut off from it
        // would keep the stream open and silent.
        WatchOptions::new()
            .with_range(range.end.clone())
            .with_start_revision(revision)
            .with_fragment()
            .with_progress_notify()
    };
    let Some((first, rest)) = ranges.split_first() else {
        feed.events.closed().await;
        return None;
    };
    let mut client = match backend.client().await {
        Ok(client) => client.watch_client().max_decoding_message_size(usize::MAX),
        Err(error) => return Some(error.to_string()),
    };
    let opened = client.watch(first.key.clone(), Some(options(first)));
    let mut stream = match timeout(backend.request_timeout(), opened).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Some(crate::error::from_client(&server, &error).to_string()),
        Err(_) => {
            return Some(crate::error::timed_out(&server, backend.request_timeout()).to_string());
        }
    };
    for range in rest {
        if let Err(error) = stream.watch(range.key.clone(), Some(options(range))).await {
            return Some(crate::error::from_client(&server, &error).to_string());
        }
    }
    loop {
        let message = tokio::select! {
            message = stream.message() => message,
            () = feed.events.closed() => return None,
        };
        match message {
            Ok(Some(response)) if response.canceled() => {
                return Some(canceled(&server, &response));
            }
            Ok(Some(response)) => feed.changes(&response).await?,
            Ok(None) => return Some(format!("etcd at {server} ended the watch")),
            Err(error) => return Some(crate::error::from_client(&server, &error).to_string()),
        }
    }
}

fn canceled(server: &str, response: &WatchResponse) -> String {
    match response.compact_revision() {
        0 => format!(
            "etcd at {server} cancelled the watch: {}",
            response.cancel_reason()
        ),
        revision => {
            format!("etcd at {server} compacted its history up to revision {revision}")
        }
    }
}

/// Where events go; every method gives `None` when nobody reads any more.
struct Feed {
    name: BackendName,
    events: mpsc::Sender<Event>,
}

impl Feed {
    async fn send(&self, event: Event) -> Option<()> {
        self.events.send(event).await.ok()
    }

    async fn snapshot(&self, snapshot: Snapshot) -> Option<()> {
        self.send(Event::SnapshotStart).await?;
        for entry in snapshot.entries {
            self.send(Event::Put(entry)).await?;
        }
        self.send(Event::SnapshotDone {
            revision: snapshot.revision,
        })
        .await
    }

    async fn changes(&self, response: &WatchResponse) -> Option<()> {
        for event in response.events() {
            let Some(pair) = event.kv() else { continue };
            self.send(match event.event_type() {
                EventType::Put => Event::Put(entry(&self.name, pair.clone())),
                EventType::Delete => Event::Delete {
                    key: Bytes::copy_from_slice(pair.key()),
                    revision: Revision::from_i64(self.name.clone(), pair.mod_revision()),
                },
            })
            .await?;
        }
        Some(())
    }
}
