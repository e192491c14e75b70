//! Watch: one task for each stream. Registrations and the embedded store are watched in the machine,
//! general keys in the legacy cluster (`upstream_watch.rs`); a watch over both gets both under one id.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use causeway_engine::key_auth::Demand;
use causeway_engine::key_watch::{CreateOutcome, StreamId, WatchSpec, WatchStart};
use causeway_engine::route::{Mode, Touches};
use causeway_registry::StoreKind;
use causeway_wire::etcd::messages::etcdserverpb as pb;
use causeway_wire::etcd::messages::etcdserverpb::watch_request::RequestUnion;
use causeway_wire::etcd::{CreateWatch, WatchAction, WatchStream, WatchStreamLimits, WatcherKey};
use futures::future::BoxFuture;
use futures::stream;
use hyper::http::{Request as HttpRequest, Response};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tonic::body::Body;
use tonic::metadata::MetadataMap;
use tonic::{Status, Streaming};

use super::answer::{Answer, messages};
use super::connection::{Caller, ended};
use super::permit::{Shown, may};
use super::translate::auth_error;
use super::upstream_watch::{Generals, News as GeneralNews};
use super::{Api, caller_in, translate};
use crate::gateway::Gateway;
use crate::journal::Position;
use crate::mailbox::{KeyNews, News};

/// Bytes that are sent at a time where more waits.
const PIECE: usize = 64 << 10;

/// Interval of progress notifications (etcd: v3rpc/watch.go, with up to a tenth of jitter).
const PROGRESS: Duration = Duration::from_secs(600);

/// Encoded size from which on a message is split: what a foreign number is answered with can be all there
/// is, and some clients take 4 MiB at most.
const MAX_MESSAGE: usize = 1 << 20;

/// Answers a stream of requests until one of both sides ends it.
pub(super) fn answer(api: Api, request: HttpRequest<Body>, limit: usize) -> Response<Answer> {
    let caller = caller_in(request.extensions());
    let (parts, body) = request.into_parts();
    let inbound = match messages(&parts.headers, body, limit) {
        Ok(inbound) => inbound,
        Err(status) => return Answer::refusal(status),
    };
    let metadata = MetadataMap::from_headers(parts.headers);
    let serving = Box::new(Serving::new(api, caller, metadata, inbound));
    let frames = stream::unfold(Some(serving), |serving| async {
        let mut serving = serving?;
        match serving.next_frames().await {
            Ok(frames) => Some((Ok(frames), Some(serving))),
            Err(End::Gone) => None,
            Err(End::With(status)) => Some((Err(status), None)),
        }
    });
    Answer::stream(Box::pin(frames))
}

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
    _registered: Registered,
    inbound: Streaming<pb::WatchRequest>,
    /// The client may send more.
    open: bool,
    news: News<KeyNews>,
    /// News taken from the queue too early.
    early: Option<KeyNews>,
    /// Watches in the machine, by the id that they have there. Clients see the stream's own ids.
    locals: BTreeMap<i64, WatcherKey>,
    keys: BTreeMap<WatcherKey, i64>,
    next_id: i64,
    generals: Generals,
    caller: Arc<Caller>,
    metadata: MetadataMap,
    /// The create request under way: what its action does not repeat.
    asked: Option<pb::WatchCreateRequest>,
    /// What the output depends on.
    after: Position,
    ticks: Interval,
    ends: BoxFuture<'static, ()>,
}

impl Serving {
    fn new(
        front: Api,
        caller: Arc<Caller>,
        metadata: MetadataMap,
        inbound: Streaming<pb::WatchRequest>,
    ) -> Self {
        let id = StreamId(front.gateway.next_connection());
        // Before the first watch, so that no event is missed.
        let news = front.gateway.key_queue(id);
        let limits = WatchStreamLimits {
            max_message: MAX_MESSAGE,
            ..WatchStreamLimits::default()
        };
        let period = PROGRESS + Duration::from_secs(rand::random_range(0..PROGRESS.as_secs() / 10));
        let mut ticks = interval_at(Instant::now() + period, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Serving {
            stream: WatchStream::new(front.identity.ids(), limits),
            id,
            _registered: Registered::new(front.gateway.clone(), id),
            inbound,
            open: true,
            news,
            early: None,
            locals: BTreeMap::new(),
            keys: BTreeMap::new(),
            next_id: 1,
            generals: Generals::new(metadata.clone()),
            caller: caller.clone(),
            metadata,
            asked: None,
            after: 0,
            ticks,
            ends: Box::pin(async move { caller.ends().await }),
            front,
        }
    }

    /// All that the client is to be told next, in one piece. While the client reads nothing, nobody asks for it, and the
    /// queue of news fills up.
    async fn next_frames(&mut self) -> Result<Bytes, End> {
        loop {
            if let Some(frames) = self.stream.poll_output(PIECE) {
                self.front.durable(self.after).await?;
                return Ok(frames);
            }
            tokio::select! {
                message = self.inbound.message(), if self.open && self.stream.has_room() => match message {
                    Ok(Some(message)) => self.request(message)?,
                    // etcd goes on sending after the client's half-close (v3rpc/watch.go).
                    Ok(None) => self.open = false,
                    Err(_) => return Err(End::Gone),
                },
                news = next(&mut self.early, &mut self.news) => self.tell_all(news)?,
                news = self.generals.next() => self.general_news(news)?,
                _ = self.ticks.tick() => self.tick()?,
                () = self.ends.as_mut() => return Err(ended().into()),
            }
        }
    }

    fn request(&mut self, message: pb::WatchRequest) -> Result<(), End> {
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
        let shown = Shown::new(&self.metadata, &self.caller);
        let demand = Demand::Read {
            key: &create.start,
            range_end: &create.range_end,
        };
        let now_ms = || self.front.gateway.now_ms();
        let (created, after) = self.front.gateway.with(|core| {
            may(core, shown, demand, now_ms).map_err(|error| (error, core.keys().revision()))?;
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
            Ok(watches.create(self.id, spec, space))
        });
        self.after = self.after.max(after);
        let created = match created {
            Ok(created) => created,
            Err((error, revision)) => {
                self.catch_up_to(revision)?;
                let error = auth_error(error);
                self.stream.denied(create.key, error, revision);
                return Ok(None);
            }
        };
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
        while let Some(news) = self.early.take().or_else(|| self.news.try_next()) {
            if matches!(news, KeyNews::Events { revision: later, .. } if later > revision) {
                self.early = Some(news);
                return Ok(());
            }
            self.tell(&news)?;
        }
        Ok(())
    }

    /// What waits behind these news goes into the same piece.
    fn tell_all(&mut self, news: KeyNews) -> Result<(), End> {
        self.tell(&news)?;
        while self.stream.queued_bytes() < PIECE
            && let Some(news) = self.news.try_next()
        {
            self.tell(&news)?;
        }
        Ok(())
    }

    fn tell(&mut self, news: &KeyNews) -> Result<(), End> {
        let KeyNews::Events {
            revision,
            events,
            watches,
            after,
        } = news
        else {
            return Err(lagging().into());
        };
        self.after = self.after.max(*after);
        let told = watches.iter().filter_map(|id| self.locals.get(id));
        for key in told {
            let messages = events.messages(translate::shared_events);
            self.stream.shared_events(*key, *revision, messages);
        }
        Ok(())
    }

    fn general_news(&mut self, news: GeneralNews) -> Result<(), End> {
        let has_locals = !self.locals.is_empty();
        if let GeneralNews::Answer(answer) = &news {
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

    fn tick(&mut self) -> Result<(), End> {
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

async fn next(early: &mut Option<KeyNews>, queue: &mut News<KeyNews>) -> KeyNews {
    match early.take() {
        Some(news) => news,
        None => queue.next().await,
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
