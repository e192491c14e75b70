//! Watch: one task for each stream. Registrations and the embedded store are watched in the machine,
//! general keys in the legacy cluster (`upstream_watch.rs`); a watch over both gets both under one id.

use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use causeway_engine::key_watch::{CreateOutcome, StreamId, WatchSpec, WatchStart};
use causeway_engine::route::{Mode, Touches};
use causeway_registry::StoreKind;
use causeway_wire::etcd::messages::etcdserverpb as pb;
use causeway_wire::etcd::messages::etcdserverpb::watch_request::RequestUnion;
use causeway_wire::etcd::{CreateWatch, WatchAction, WatchStream, WatchStreamLimits, WatcherKey};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use super::connection::{Caller, ended};
use super::relay::Responses;
use super::services::etcdserverpb::watch_server::Watch;
use super::upstream_watch::{Generals, News};
use super::{Api, caller, translate};
use crate::gateway::{Gateway, KeyNews};
use crate::journal::Position;

/// Messages that a client has not read yet; more wait in the stream's queue.
const UNREAD: usize = 16;

/// Interval of progress notifications (etcd: v3rpc/watch.go, with up to a tenth of jitter).
const PROGRESS: Duration = Duration::from_secs(600);

/// Encoded size from which on a message is split: what a foreign number is answered with can be all there
/// is, and some clients take 4 MiB at most.
const MAX_MESSAGE: usize = 1 << 20;

#[tonic::async_trait]
impl Watch for Api {
    type WatchStream = Responses<pb::WatchResponse>;

    async fn watch(
        &self,
        request: Request<Streaming<pb::WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let caller = caller(&request);
        let (metadata, _, inbound) = request.into_parts();
        let (to_client, responses) = mpsc::channel(UNREAD);
        tokio::spawn(serve(self.clone(), caller, metadata, inbound, to_client));
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }
}

type ToClient = mpsc::Sender<Result<pb::WatchResponse, Status>>;

/// Why a stream ends.
enum End {
    /// The client is gone.
    Gone,
    /// The client is told.
    With(Status),
}

impl From<Status> for End {
    fn from(status: Status) -> Self {
        End::With(status)
    }
}

async fn serve(
    front: Api,
    caller: Arc<Caller>,
    metadata: MetadataMap,
    inbound: Streaming<pb::WatchRequest>,
    to_client: ToClient,
) {
    let id = StreamId(front.gateway.next_connection());
    // Before the first watch, so that no event is missed.
    let news = front.gateway.key_queue(id);
    let registered = Registered::new(front.gateway.clone(), id);
    let limits = WatchStreamLimits {
        max_message: MAX_MESSAGE,
        ..WatchStreamLimits::default()
    };
    let serving = Serving {
        stream: WatchStream::new(front.identity.ids(), limits),
        id,
        news,
        early: None,
        locals: BTreeMap::new(),
        keys: BTreeMap::new(),
        next_id: 1,
        generals: Generals::new(metadata),
        asked: None,
        after: 0,
        front,
    };
    let end = serving.run(caller, inbound, &to_client).await;
    drop(registered);
    if let Err(End::With(status)) = end {
        let _ = to_client.send(Err(status)).await;
    }
}

/// Takes the stream's watches out of the machine however its task ends.
pub(super) struct Registered {
    gateway: Arc<Gateway>,
    id: StreamId,
}

impl Registered {
    pub(super) fn new(gateway: Arc<Gateway>, id: StreamId) -> Self {
        Registered { gateway, id }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.gateway.drop_stream(self.id);
    }
}

struct Serving {
    front: Api,
    stream: WatchStream,
    id: StreamId,
    news: mpsc::Receiver<KeyNews>,
    /// News taken from the queue too early.
    early: Option<KeyNews>,
    /// Watches in the machine, by the id that they have there. Clients see the stream's own ids.
    locals: BTreeMap<i64, WatcherKey>,
    keys: BTreeMap<WatcherKey, i64>,
    next_id: i64,
    generals: Generals,
    /// The create request under way: what its action does not repeat.
    asked: Option<pb::WatchCreateRequest>,
    /// What the output depends on.
    after: Position,
}

impl Serving {
    async fn run(
        mut self,
        caller: Arc<Caller>,
        mut inbound: Streaming<pb::WatchRequest>,
        to_client: &ToClient,
    ) -> Result<(), End> {
        let mut ends = pin!(caller.ends());
        let period = PROGRESS + Duration::from_secs(rand::random_range(0..PROGRESS.as_secs() / 10));
        let mut ticks = interval_at(Instant::now() + period, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut open = true;
        loop {
            self.flush(to_client, ends.as_mut()).await?;
            tokio::select! {
                message = inbound.message(), if open && self.stream.has_room() => match message {
                    Ok(Some(message)) => self.request(message).await?,
                    // etcd goes on sending after the client's half-close (v3rpc/watch.go).
                    Ok(None) => open = false,
                    Err(_) => return Err(End::Gone),
                },
                news = next(&mut self.early, &mut self.news) => match news {
                    Some(news) => self.tell(&news),
                    None => return Err(lagging().into()),
                },
                news = self.generals.next() => self.general_news(news).await?,
                _ = ticks.tick() => self.tick().await?,
                () = ends.as_mut() => return Err(ended().into()),
                () = to_client.closed() => return Err(End::Gone),
            }
        }
    }

    async fn flush(
        &mut self,
        to_client: &ToClient,
        mut ends: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), End> {
        let mut checked = false;
        while let Some(response) = self.stream.poll_output() {
            if !checked {
                self.front.durable(self.after).await?;
                checked = true;
            }
            tokio::select! {
                sent = to_client.send(Ok(response)) => sent.map_err(|_| End::Gone)?,
                () = ends.as_mut() => return Err(ended().into()),
            }
        }
        Ok(())
    }

    async fn request(&mut self, message: pb::WatchRequest) -> Result<(), End> {
        if let Some(RequestUnion::CreateRequest(create)) = &message.request_union {
            self.asked = Some(create.clone());
        }
        let revision = self.catch_up()?;
        self.stream.handle_request(message, revision);
        self.act()
    }

    fn act(&mut self) -> Result<(), End> {
        while let Some(action) = self.stream.poll_action() {
            match action {
                WatchAction::Create(create) => self.create(&create)?,
                WatchAction::Cancel(key) => self.cancel(key),
                WatchAction::Progress if self.generals.is_empty() => {
                    let revision = self.catch_up()?;
                    self.stream.progress(revision);
                }
                // Answered with what the legacy cluster answers: only it knows its own progress.
                WatchAction::Progress => self.generals.ask_progress(),
            }
        }
        Ok(())
    }

    fn create(&mut self, create: &CreateWatch) -> Result<(), End> {
        let asked = self.asked.take().unwrap_or_default();
        let touches = match self.front.mode() {
            Mode::Embedded => Touches::Owned,
            Mode::Relay | Mode::TakenOver => self.front.touches(&create.start, &create.range_end),
        };
        match touches {
            Touches::Owned => {
                let revision = self.watch_here(create)?;
                if let Some(revision) = revision {
                    self.stream.created(create.key, revision);
                }
            }
            Touches::General => {
                let announced = self.generals.add(&self.front, create, &asked, None);
                announced.tell(&mut self.stream, create.key);
            }
            Touches::Mixed => {
                let Some(revision) = self.watch_here(create)? else {
                    return Ok(());
                };
                let announced = self
                    .generals
                    .add(&self.front, create, &asked, Some(revision));
                announced.tell(&mut self.stream, create.key);
            }
        }
        Ok(())
    }

    /// Starts a watch in the machine; gives the revision for its announcement, or `None` when it has been
    /// answered otherwise. What it is told first waits in the stream until it is announced.
    fn watch_here(&mut self, create: &CreateWatch) -> Result<Option<i64>, End> {
        let id = self.next_id;
        self.next_id += 1;
        let (created, after) = self.front.gateway.with(|core| {
            let mode = core.mode(StoreKind::Etcd);
            let start = start_of(
                mode,
                core.revision_mark(),
                core.keys().revision(),
                create.start_revision,
            );
            let spec = WatchSpec {
                watch_id: id,
                key: create.start.clone(),
                range_end: create.range_end.clone(),
                start,
                // The stream filters.
                no_put: false,
                no_delete: false,
                prev_kv: create.prev_kv,
            };
            let (watches, space) = core.key_watches();
            watches.create(self.id, spec, space)
        });
        self.after = self.after.max(after);
        let revision = created.header_revision;
        // Events of the stream's other watches up to here go first: numbers in headers do not fall.
        self.catch_up_to(revision)?;
        match created.outcome {
            CreateOutcome::Live => {}
            CreateOutcome::Replay(groups) => {
                let events = groups
                    .iter()
                    .flat_map(|group| group.events.iter().map(translate::event))
                    .collect();
                self.stream.events(create.key, revision, events);
            }
            CreateOutcome::Compacted { compact_revision } => {
                self.stream.created(create.key, revision);
                self.stream.compacted(create.key, compact_revision);
                return Ok(None);
            }
            CreateOutcome::Rejected(reject) => {
                self.stream.created(create.key, revision);
                self.stream.ended(create.key, &reject.to_string());
                return Ok(None);
            }
        }
        self.locals.insert(id, create.key);
        self.keys.insert(create.key, id);
        Ok(Some(revision))
    }

    fn cancel(&mut self, key: WatcherKey) {
        if let Some(id) = self.keys.remove(&key) {
            self.locals.remove(&id);
            self.front
                .gateway
                .with(|core| core.key_watches().0.cancel(self.id, id));
        }
        self.generals.cancel(key);
    }

    /// Takes everything from the queue that has happened by now; gives the present revision.
    fn catch_up(&mut self) -> Result<i64, End> {
        let (revision, after) = self.front.gateway.with(|core| core.keys().revision());
        self.after = self.after.max(after);
        self.catch_up_to(revision)?;
        Ok(revision)
    }

    fn catch_up_to(&mut self, revision: i64) -> Result<(), End> {
        loop {
            let news = match self.early.take() {
                Some(news) => news,
                None => match self.news.try_recv() {
                    Ok(news) => news,
                    Err(TryRecvError::Empty) => return Ok(()),
                    Err(TryRecvError::Disconnected) => return Err(lagging().into()),
                },
            };
            if news.dispatch.revision > revision {
                self.early = Some(news);
                return Ok(());
            }
            self.tell(&news);
        }
    }

    fn tell(&mut self, news: &KeyNews) {
        self.after = self.after.max(news.after);
        let delivery = &news.dispatch.delivery;
        if let Some(key) = self.locals.get(&delivery.watch_id) {
            let events = delivery.events.iter().map(translate::event).collect();
            self.stream.events(*key, news.dispatch.revision, events);
        }
    }

    async fn general_news(&mut self, news: News) -> Result<(), End> {
        let has_locals = !self.locals.is_empty();
        if let News::Answer(answer) = &news {
            // A progress answer is a promise for the whole stream.
            if answer.watch_id == -1 && !answer.created {
                self.catch_up()?;
            }
        }
        let denied = self
            .generals
            .handle(&self.front, news, &mut self.stream, has_locals)?;
        for key in denied {
            self.cancel(key);
        }
        self.act()
    }

    async fn tick(&mut self) -> Result<(), End> {
        let revision = self.catch_up()?;
        for key in self.stream.idle_watchers() {
            // The legacy cluster says itself how far its watches are.
            if !self.generals.has(key) {
                self.stream.progress_of(key, revision);
            }
        }
        Ok(())
    }
}

async fn next(early: &mut Option<KeyNews>, queue: &mut mpsc::Receiver<KeyNews>) -> Option<KeyNews> {
    match early.take() {
        Some(news) => Some(news),
        None => queue.recv().await,
    }
}

/// The client did not read for too long: it comes back and is told what it missed.
fn lagging() -> Status {
    Status::unavailable("causeway: the watch stream fell too far behind")
}

/// Where a watch starts. Numbers up to the mark were given out elsewhere. A lone store counts like etcd, so
/// that a later number is waited for; otherwise it can only be another store's or member's.
fn start_of(mode: Mode, mark: i64, present: i64, asked: i64) -> WatchStart {
    match asked {
        0 => WatchStart::Now,
        ..0 => WatchStart::At(asked),
        _ if asked <= mark => WatchStart::Foreign(asked),
        _ if mode != Mode::Embedded && asked > present.saturating_add(1) => {
            WatchStart::Foreign(asked)
        }
        _ => WatchStart::At(asked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_watch_starts() {
        use WatchStart::{At, Foreign, Now};
        let check = |mode, asked, want| {
            let got = start_of(mode, 1000, 2000, asked);
            assert_eq!(got, want, "{mode:?} {asked}");
        };
        for mode in [Mode::Embedded, Mode::TakenOver] {
            check(mode, 0, Now);
            check(mode, -1, At(-1));
            check(mode, 1, Foreign(1));
            check(mode, 1000, Foreign(1000));
            check(mode, 1001, At(1001));
            check(mode, 2000, At(2000));
            check(mode, 2001, At(2001));
        }
        check(Mode::Embedded, 2002, At(2002));
        check(Mode::TakenOver, 2002, Foreign(2002));
    }
}
