//! The part of a watch stream that is on general keys: one stream to the legacy cluster for each client's,
//! in the client's name.
//!
//! A stream with nothing else on it ends as the cluster's does, so that the client comes back by itself.
//! One that also watches registrations stays while the cluster is away, and its general watches go on from
//! where they were.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use causeway_backend_etcd::stubs::WatchClient;
use causeway_wire::etcd::messages::etcdserverpb as pb;
use causeway_wire::etcd::messages::etcdserverpb::watch_request::RequestUnion;
use causeway_wire::etcd::messages::mvccpb::Event;
use causeway_wire::etcd::{CreateWatch, EtcdError, WatchStream, WatcherKey};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Status;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;

use super::relay::upstream_error;
use super::{Front, with_metadata};

/// How long the announcement of a watch over both classes waits for the legacy cluster's half.
const HALF: Duration = Duration::from_secs(1);

/// Pause before the legacy cluster is tried again.
const AGAIN: Duration = Duration::from_millis(500);

/// Answers that wait for a client that does not read; then the cluster's own queue fills.
const UNREAD: usize = 64;

/// What comes from the legacy cluster.
pub(super) enum News {
    /// A message.
    Answer(Box<pb::WatchResponse>),
    /// The stream broke, or was refused.
    Broken(Status),
    /// It is time to try again.
    Again,
    /// The cluster has not answered for a watch whose other half waits.
    Late,
}

/// What a new watch can be told at once.
pub(super) enum Announced {
    /// Nothing: the cluster's answer decides.
    Later,
    /// That it is there, complete from this revision on.
    Now(i64),
    /// That it cannot be.
    Denied(EtcdError),
}

impl Announced {
    pub(super) fn tell(self, stream: &mut WatchStream, key: WatcherKey) {
        match self {
            Announced::Later => {}
            Announced::Now(revision) => stream.created(key, revision),
            Announced::Denied(error) => stream.denied(key, error, 0),
        }
    }
}

/// A stream's watches on general keys.
pub(super) struct Generals {
    metadata: MetadataMap,
    link: Option<Link>,
    /// When to open the link again.
    again: Option<Instant>,
    watches: BTreeMap<WatcherKey, General>,
    by_id: BTreeMap<i64, WatcherKey>,
    next_id: i64,
    /// Creates without an answer, in the order in which they were sent: etcd answers in that order, and a
    /// refusal carries no id.
    sent: VecDeque<WatcherKey>,
    /// When the oldest watch over both classes stops waiting for its general half.
    late: Option<Instant>,
}

struct General {
    id: i64,
    create: pb::WatchCreateRequest,
    /// The revision to go on from; 0 until something is known.
    next: i64,
    announced: bool,
    /// The revision that the machine gave for its half of the watch.
    mixed: Option<i64>,
    wants_progress: bool,
}

struct Link {
    to_legacy: mpsc::UnboundedSender<pb::WatchRequest>,
    from_legacy: mpsc::Receiver<Result<pb::WatchResponse, Status>>,
}

impl Generals {
    pub(super) fn new(metadata: MetadataMap) -> Self {
        Generals {
            metadata,
            link: None,
            again: None,
            watches: BTreeMap::new(),
            by_id: BTreeMap::new(),
            next_id: 1,
            sent: VecDeque::new(),
            late: None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    pub(super) fn has(&self, key: WatcherKey) -> bool {
        self.watches.contains_key(&key)
    }

    /// Watches the general keys of a range; `mixed` is the machine's revision when it watches the others.
    pub(super) fn add(
        &mut self,
        front: &Front,
        create: &CreateWatch,
        asked: &pb::WatchCreateRequest,
        mixed: Option<i64>,
    ) -> Announced {
        let id = self.next_id;
        self.next_id += 1;
        let seen = front.identity.legacy_revision();
        let start = match mixed {
            None => create.start_revision,
            Some(_) => {
                let mark = front.gateway.with(|core| core.revision_mark()).0;
                let told = |ours| front.identity.legacy_revision_at(ours);
                general_start(create.start_revision, mark, told)
            }
        };
        let mut general = General {
            id,
            create: pb::WatchCreateRequest {
                key: create.start.clone(),
                range_end: create.range_end.clone(),
                start_revision: start,
                progress_notify: true,
                filters: asked.filters.clone(),
                prev_kv: create.prev_kv,
                watch_id: id,
                fragment: false,
            },
            next: start,
            announced: false,
            mixed,
            wants_progress: asked.progress_notify,
        };
        let announced = if self.again.is_none() {
            Announced::Later
        } else if let Some(revision) = mixed {
            general.announced = true;
            Announced::Now(revision)
        } else if seen > 0 {
            // The cluster is away. What it had shown before is complete.
            general.next = if start > 0 { start } else { seen + 1 };
            general.announced = true;
            Announced::Now(seen)
        } else {
            return Announced::Denied(EtcdError::NoLeader);
        };
        if self.again.is_none() {
            self.open(front);
            self.send(RequestUnion::CreateRequest(general.create.clone()));
            self.sent.push_back(create.key);
            if mixed.is_some() && self.late.is_none() {
                self.late = Some(Instant::now() + HALF);
            }
        }
        self.by_id.insert(id, create.key);
        self.watches.insert(create.key, general);
        announced
    }

    pub(super) fn cancel(&mut self, key: WatcherKey) {
        if let Some(general) = self.watches.remove(&key) {
            self.by_id.remove(&general.id);
            let watch_id = general.id;
            self.send(RequestUnion::CancelRequest(pb::WatchCancelRequest {
                watch_id,
            }));
        }
        if self.watches.is_empty() {
            // Its answers would find nobody.
            self.link = None;
            self.again = None;
            self.sent.clear();
        }
    }

    pub(super) fn ask_progress(&mut self) {
        self.send(RequestUnion::ProgressRequest(pb::WatchProgressRequest {}));
    }

    /// The next thing that happens; pending while there is nothing to wait for.
    pub(super) async fn next(&mut self) -> News {
        let late = self.late;
        let is_late = async move {
            match late {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        match (&mut self.link, self.again) {
            (Some(link), _) => tokio::select! {
                answer = link.from_legacy.recv() => match answer {
                    Some(Ok(answer)) => News::Answer(Box::new(answer)),
                    Some(Err(status)) => News::Broken(status),
                    None => {
                        News::Broken(Status::unavailable("causeway: the legacy etcd ended the watch stream"))
                    }
                },
                () = is_late => News::Late,
            },
            (None, Some(at)) => {
                sleep_until(at).await;
                News::Again
            }
            (None, None) => std::future::pending().await,
        }
    }

    /// Tells the stream. Gives the watches that the cluster refused; an error ends the stream.
    pub(super) fn handle(
        &mut self,
        front: &Front,
        news: News,
        stream: &mut WatchStream,
        has_locals: bool,
    ) -> Result<Vec<WatcherKey>, Status> {
        match news {
            News::Answer(answer) => return Ok(self.answer(front, *answer, stream)),
            News::Broken(status) => {
                if !has_locals {
                    return Err(status);
                }
                self.broken(front, stream, &status);
            }
            News::Again => self.reopen(front),
            News::Late => {
                self.late = None;
                for (key, general) in &mut self.watches {
                    if let (false, Some(revision)) = (general.announced, general.mixed) {
                        general.announced = true;
                        stream.created(*key, revision);
                    }
                }
            }
        }
        Ok(Vec::new())
    }

    fn answer(
        &mut self,
        front: &Front,
        answer: pb::WatchResponse,
        stream: &mut WatchStream,
    ) -> Vec<WatcherKey> {
        let revision = answer.header.as_ref().map_or(0, |h| h.revision);
        front.identity.saw_legacy_revision(revision);
        if answer.created {
            let Some(key) = self.sent.pop_front() else {
                return Vec::new();
            };
            if answer.canceled {
                if self.watches.get(&key).is_some_and(|g| !g.announced) {
                    deny(stream, key, &answer.cancel_reason, revision);
                } else {
                    stream.ended(key, &answer.cancel_reason);
                }
                return vec![key];
            }
            if let Some(general) = self.watches.get_mut(&key) {
                if general.next == 0 {
                    general.next = revision.saturating_add(1);
                }
                if !general.announced {
                    general.announced = true;
                    stream.created(key, general.mixed.unwrap_or(revision));
                }
            }
            return Vec::new();
        }
        if answer.watch_id == -1 {
            stream.progress(revision);
            return Vec::new();
        }
        let Some(key) = self.by_id.get(&answer.watch_id).copied() else {
            return Vec::new();
        };
        if answer.canceled {
            if answer.compact_revision != 0 {
                stream.compacted(key, answer.compact_revision);
            } else {
                stream.ended(key, &answer.cancel_reason);
            }
            return vec![key];
        }
        let Some(general) = self.watches.get_mut(&key) else {
            return Vec::new();
        };
        general.next = general.next.max(revision.saturating_add(1));
        let mut events = answer.events;
        if events.is_empty() {
            if general.wants_progress && general.mixed.is_none() {
                stream.progress_of(key, revision);
            }
            return Vec::new();
        }
        if general.mixed.is_some() {
            // Copies of registrations are not what readers see.
            events.retain(|event| !front.owns(key_of(event)));
        }
        stream.events(key, revision, events);
        Vec::new()
    }

    fn broken(&mut self, front: &Front, stream: &mut WatchStream, status: &Status) {
        tracing::debug!(%status, "a watch on general keys is interrupted");
        self.link = None;
        self.sent.clear();
        self.again = Some(Instant::now() + AGAIN);
        let seen = front.identity.legacy_revision();
        let waiting: Vec<WatcherKey> = self
            .watches
            .iter()
            .filter(|(_, g)| !g.announced)
            .map(|(k, _)| *k)
            .collect();
        for key in waiting {
            let Some(general) = self.watches.get_mut(&key) else {
                continue;
            };
            // Creates are answered in order: one that waits would hold up the others.
            match (general.mixed, seen) {
                (Some(revision), _) => {
                    general.announced = true;
                    stream.created(key, revision);
                }
                (None, 1..) => {
                    general.announced = true;
                    general.next = if general.next > 0 {
                        general.next
                    } else {
                        seen + 1
                    };
                    stream.created(key, seen);
                }
                (None, _) => {
                    stream.denied(key, EtcdError::NoLeader, 0);
                    self.cancel(key);
                }
            }
        }
    }

    fn reopen(&mut self, front: &Front) {
        self.again = None;
        self.open(front);
        let creates: Vec<(WatcherKey, pb::WatchCreateRequest)> = self
            .watches
            .iter()
            .map(|(key, g)| {
                (
                    *key,
                    pb::WatchCreateRequest {
                        start_revision: g.next,
                        ..g.create.clone()
                    },
                )
            })
            .collect();
        for (key, create) in creates {
            self.sent.push_back(key);
            self.send(RequestUnion::CreateRequest(create));
        }
    }

    fn open(&mut self, front: &Front) {
        if self.link.is_some() {
            return;
        }
        let (to_legacy, requests) = mpsc::unbounded_channel();
        let (answers, from_legacy) = mpsc::channel(UNREAD);
        match front.upstream() {
            Ok(channel) => {
                tokio::spawn(run(channel, self.metadata.clone(), requests, answers));
            }
            Err(status) => {
                let _ = answers.try_send(Err(status));
            }
        }
        self.link = Some(Link {
            to_legacy,
            from_legacy,
        });
    }

    fn send(&mut self, request: RequestUnion) {
        if let Some(link) = &self.link {
            // A link that is broken says so itself.
            let _ = link.to_legacy.send(pb::WatchRequest {
                request_union: Some(request),
            });
        }
    }
}

async fn run(
    channel: Channel,
    metadata: MetadataMap,
    requests: mpsc::UnboundedReceiver<pb::WatchRequest>,
    answers: mpsc::Sender<Result<pb::WatchResponse, Status>>,
) {
    let relay = async {
        let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
        let request = with_metadata(&metadata, UnboundedReceiverStream::new(requests));
        let mut responses = client.watch(request).await?.into_inner();
        while let Some(answer) = responses.message().await? {
            if answers.send(Ok(answer)).await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    };
    let end: Result<(), Status> = tokio::select! {
        end = relay => end,
        () = answers.closed() => Ok(()),
    };
    if let Err(status) = end {
        let _ = answers.send(Err(upstream_error(status))).await;
    }
}

/// Where the general half of a watch over both classes starts. A number up to the mark is the legacy
/// cluster's own. Ours means nothing to it; then the watch starts where that cluster surely was before: the
/// client may be told a change twice, and is told all of them, or that they are compacted.
fn general_start(asked: i64, mark: i64, told: impl Fn(i64) -> i64) -> i64 {
    match asked {
        0 => 0,
        _ if asked <= mark => asked,
        _ => told(asked).saturating_add(1),
    }
}

/// A refusal in the words in which the stream knows it, or as a watch that is there and ends.
fn deny(stream: &mut WatchStream, key: WatcherKey, reason: &str, revision: i64) {
    match EtcdError::ALL
        .iter()
        .find(|error| error.grpc_text() == reason)
    {
        Some(error) => stream.denied(key, *error, revision),
        None => {
            stream.created(key, revision);
            stream.ended(key, reason);
        }
    }
}

fn key_of(event: &Event) -> &[u8] {
    event.kv.as_ref().map_or(&[], |kv| &kv.key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_general_half_starts() {
        let told = |ours: i64| if ours > 2000 { 45 } else { 0 };
        for (asked, want) in [(0, 0), (40, 40), (1000, 1000), (1 << 50, 46), (1001, 1)] {
            assert_eq!(general_start(asked, 1000, told), want, "{asked}");
        }
    }
}
