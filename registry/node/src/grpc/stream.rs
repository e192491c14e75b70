//! One client's stream: [`listen`] does what it asks, [`Outgoing`] sends what there is for it.
//!
//! Replies wait in a short queue, and no more is read from a client who does not take them. Everything else that
//! is sent is a mark: the services that may have changed, the last pong, the settings. What a mark stands for is
//! looked up when the connection can take it.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use causeway_registry::{Record, Revision, ServiceName};
use causeway_registry_proto::codec::{ToClient, Update};
use causeway_registry_proto::v1::{self, client_message, server_message};
use futures::Stream;
use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tonic::{Status, Streaming};

use super::holdings::Holdings;
use super::meter::{Meter, Metered};
use super::{Kept, discover, given, place, wanted};
use crate::hub::{Seat, Subscriber};
use crate::operations::{Answer, Failure, NativeApi};

/// Replies that may wait for a client before no more is read from it.
const REPLIES: usize = 256;

/// What both halves of a stream share.
pub(super) struct Line {
    api: Arc<NativeApi>,
    meter: Meter,
    out: Mutex<Outbox>,
    /// Never locked together with `out`: subscribers are rung while services are locked.
    seats: Mutex<Seats>,
    sender: AtomicWaker,
    /// Something for `listen`: room for replies, settings, the end.
    receiver: Notify,
}

#[derive(Default)]
struct Outbox {
    replies: VecDeque<v1::ServerMessage>,
    rung: VecDeque<u32>,
    pong: Option<v1::Pong>,
    settings: Option<v1::Settings>,
    leave: bool,
    /// Nothing more comes.
    end: Option<Option<Status>>,
    /// The other side is gone.
    dropped: bool,
}

impl Outbox {
    fn has_some(&self) -> bool {
        !self.replies.is_empty()
            || !self.rung.is_empty()
            || self.pong.is_some()
            || self.settings.is_some()
            || self.leave
            || self.end.is_some()
    }
}

#[derive(Default)]
struct Seats {
    by_number: BTreeMap<u32, Seat>,
    by_name: BTreeMap<ServiceName, u32>,
    next: u32,
}

impl Line {
    pub(super) fn new(api: Arc<NativeApi>, meter: Meter) -> Arc<Self> {
        Arc::new(Line {
            api,
            meter,
            out: Mutex::default(),
            seats: Mutex::default(),
            sender: AtomicWaker::new(),
            receiver: Notify::new(),
        })
    }

    fn put(&self, put: impl FnOnce(&mut Outbox)) {
        let has_some = {
            let mut out = self.out.lock();
            put(&mut out);
            out.has_some()
        };
        if has_some {
            self.meter.ready();
            self.sender.wake();
        }
    }

    fn reply(&self, id: u64, what: server_message::What) {
        let message = v1::ServerMessage {
            id,
            what: Some(what),
        };
        self.put(|out| out.replies.push_back(message));
    }

    fn end(&self, why: Option<Status>) {
        self.put(|out| {
            out.end.get_or_insert(why);
        });
    }
}

impl Subscriber for Line {
    fn ring(&self, seat: u32) {
        self.put(|out| out.rung.push_back(seat));
    }
}

impl Metered for Line {
    fn meter(&self) -> &Meter {
        &self.meter
    }

    fn leave(&self, end: bool) -> bool {
        self.put(|out| {
            out.leave = true;
            if end {
                out.end.get_or_insert(None);
            }
        });
        true
    }
}

/// What a client is sent, made when the connection can take it.
pub(super) struct Outgoing {
    line: Arc<Line>,
    ended: bool,
    _kept: Kept,
}

impl Outgoing {
    pub(super) fn new(line: Arc<Line>, kept: Kept) -> Self {
        Outgoing {
            line,
            ended: false,
            _kept: kept,
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.line.out.lock().dropped = true;
        self.line.receiver.notify_one();
        let seats = std::mem::take(&mut *self.line.seats.lock());
        drop(seats);
    }
}

enum Next {
    Item(ToClient),
    /// Look what this service has.
    Seat(u32),
    End(Option<Status>),
    Nothing,
}

impl Outbox {
    fn next(&mut self) -> Next {
        use server_message::What;
        let own = |what| {
            let message = v1::ServerMessage {
                id: 0,
                what: Some(what),
            };
            Next::Item(ToClient::Own(Box::new(message)))
        };
        if let Some(message) = self.replies.pop_front() {
            return Next::Item(ToClient::Own(Box::new(message)));
        }
        if let Some(pong) = self.pong.take() {
            return own(What::Pong(pong));
        }
        if let Some(settings) = self.settings.take() {
            return own(What::Settings(settings));
        }
        if std::mem::take(&mut self.leave) {
            return own(What::Move(v1::Move {}));
        }
        if let Some(end) = self.end.take() {
            return Next::End(end);
        }
        match self.rung.pop_front() {
            Some(seat) => Next::Seat(seat),
            None => Next::Nothing,
        }
    }
}

impl Stream for Outgoing {
    type Item = Result<ToClient, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let line = self.line.clone();
        line.sender.register(context.waker());
        loop {
            let (next, more, full) = {
                let mut out = line.out.lock();
                let full = out.replies.len() >= REPLIES;
                (out.next(), out.has_some(), full)
            };
            line.meter.taken(more);
            if full {
                line.receiver.notify_one();
            }
            match next {
                Next::Item(item) => return Poll::Ready(Some(Ok(item))),
                Next::Seat(number) => {
                    let frame = {
                        let mut seats = line.seats.lock();
                        let seat = seats.by_number.get_mut(&number);
                        seat.and_then(Seat::next_frame)
                    };
                    if let Some(frame) = frame {
                        return Poll::Ready(Some(Ok(ToClient::Shared(frame.update()))));
                    }
                }
                Next::End(why) => {
                    self.ended = true;
                    return Poll::Ready(why.map(Err));
                }
                Next::Nothing => return Poll::Pending,
            }
        }
    }
}

/// Does what a client asks on its stream, until either side ends.
pub(super) async fn listen(line: Arc<Line>, incoming: Streaming<v1::ClientMessage>) {
    let settings = line.api.settings_changes();
    let mut client = Client {
        line,
        settings,
        holdings: None,
        opened: false,
        asked_ttl_ms: 0,
        changed: Arc::new(AtomicBool::new(false)),
    };
    let why = client.run(incoming).await.err().map(Status::from);
    if let Some(holdings) = &client.holdings {
        client
            .line
            .api
            .hub
            .disown(holdings.lease.id, &client.changed);
    }
    // The lease is left alone: its client may be on its way to another stream.
    client.line.end(why);
}

/// The receiving half of a stream.
struct Client {
    line: Arc<Line>,
    settings: watch::Receiver<causeway_registry::api::ClientSettings>,
    /// None: no Hello yet.
    holdings: Option<Holdings>,
    /// The lease is open. It is opened with the first registration: who only discovers needs none.
    opened: bool,
    asked_ttl_ms: u64,
    /// A record of the lease was changed, maybe by somebody else.
    changed: Arc<AtomicBool>,
}

impl Client {
    async fn run(&mut self, mut incoming: Streaming<v1::ClientMessage>) -> Answer<()> {
        let hub = self.line.api.hub.clone();
        let registry_ends = hub.end();
        tokio::pin!(registry_ends);
        loop {
            let (dropped, full) = {
                let out = self.line.out.lock();
                (out.dropped, out.replies.len() >= REPLIES)
            };
            if dropped {
                return Ok(());
            }
            tokio::select! {
                message = incoming.message(), if !full => match message {
                    Ok(Some(message)) => self.handle(message)?,
                    // Half closed, or broken: nothing is asked any more.
                    Ok(None) | Err(_) => return Ok(()),
                },
                Ok(()) = self.settings.changed() => self.push_settings()?,
                () = self.line.receiver.notified() => {}
                () = &mut registry_ends => return Ok(()),
            }
        }
    }

    fn handle(&mut self, message: v1::ClientMessage) -> Answer<()> {
        use client_message::What;
        let v1::ClientMessage { id, what } = message;
        let Some(what) = what else {
            return Err(Failure::bad(
                "a message without content, or from a later version",
            ));
        };
        if let What::Hello(hello) = what {
            return self.hello(id, &hello);
        }
        let Some(holdings) = &mut self.holdings else {
            return Err(Failure::bad("the first message of a stream is Hello"));
        };
        match what {
            What::Hello(_) => {}
            What::Ping(ping) => self.ping(&ping)?,
            What::Complete(v1::Complete {}) => {
                for key in holdings.complete() {
                    self.line.api.access.deregister(&key)?;
                    holdings.remove(&key);
                }
            }
            what => {
                let reply = match what {
                    What::Register(registration) => self.register(registration),
                    What::Deregister(removal) => self.deregister(removal),
                    What::Watch(watch) => self.watch(watch),
                    What::Unwatch(watch) => self.unwatch(watch),
                    What::Discover(wanted) => {
                        let v1::DiscoverRequest { namespace, service } = wanted;
                        discover(&self.line.api, namespace, service)
                            .map(server_message::What::Update)
                    }
                    What::Hello(_) | What::Ping(_) | What::Complete(_) => return Ok(()),
                };
                let reply = reply.unwrap_or_else(|failure| {
                    server_message::What::Failure(v1::Failure::from(failure))
                });
                self.line.reply(id, reply);
            }
        }
        Ok(())
    }

    fn hello(&mut self, id: u64, hello: &v1::Hello) -> Answer<()> {
        if self.holdings.is_some() {
            return Err(Failure::bad("Hello comes once"));
        }
        let api = &self.line.api;
        self.asked_ttl_ms = api.ttl(Some(hello.ttl_ms).filter(|ttl| *ttl != 0))?;
        let ttl_ms = self.ttl_ms();
        let mut holdings = match api.stream_lease(hello.token) {
            Some(lease) => {
                self.opened = true;
                api.access.open_lease(lease, ttl_ms)?;
                Holdings::new(lease)
            }
            None => Holdings::new(api.unused_stream_lease()),
        };
        // Before the look: what changes from here on is looked at again.
        api.hub.own(holdings.lease.id, &self.changed);
        for record in api.access.by_lease(holdings.lease) {
            holdings.set(record.key, record.stamp);
        }
        let summary = api.access.summary();
        let welcome = v1::Welcome {
            token: token(&holdings),
            member: summary.origin.member.into(),
            incarnation: summary.origin.incarnation,
            settings: Some(api.settings().into()),
            ttl_ms,
            warming: api.access.warming(),
        };
        self.holdings = Some(holdings);
        self.line.reply(id, server_message::What::Welcome(welcome));
        Ok(())
    }

    /// Three heartbeats at least: one that is lost ends nothing.
    fn ttl_ms(&self) -> u64 {
        let heartbeat = u64::from(self.line.api.settings().heartbeat_interval_ms);
        self.asked_ttl_ms.max(3 * heartbeat)
    }

    fn push_settings(&mut self) -> Answer<()> {
        self.settings.mark_unchanged();
        if let Some(holdings) = &self.holdings {
            // Before the client is told to be heard less often.
            if self.opened {
                let ttl_ms = self.ttl_ms();
                self.line.api.access.open_lease(holdings.lease, ttl_ms)?;
            }
            let settings = self.line.api.settings().into();
            self.line.put(|out| out.settings = Some(settings));
        }
        Ok(())
    }

    fn ping(&mut self, ping: &v1::Ping) -> Answer<()> {
        let Some(holdings) = &mut self.holdings else {
            return Ok(());
        };
        let api = &self.line.api;
        if self.opened && !api.access.renew(holdings.lease).known {
            // It is over; what is sent again lives by another one.
            api.hub.disown(holdings.lease.id, &self.changed);
            *holdings = Holdings::new(api.unused_stream_lease());
            api.hub.own(holdings.lease.id, &self.changed);
            self.opened = false;
        }
        if self.changed.swap(false, Ordering::AcqRel) {
            let lease = holdings.lease;
            let mine = |record: &Record| record.lease == Some(lease);
            for key in holdings.keys() {
                match api.access.get(&key).filter(mine) {
                    Some(record) => holdings.set(key, record.stamp),
                    None => holdings.remove(&key),
                }
            }
        }
        let stale = ping.token != token(holdings);
        let pong = v1::Pong {
            resend: holdings.differs(ping.digest) || (stale && ping.digest != 0),
            token: token(holdings),
            warming: api.access.warming(),
        };
        // Only the last one matters.
        self.line.put(|out| out.pong = Some(pong));
        Ok(())
    }

    fn register(&mut self, registration: v1::Registration) -> Answer<server_message::What> {
        let ttl_ms = self.ttl_ms();
        let api = &self.line.api;
        let wanted = wanted(api, registration)?;
        let Some(holdings) = &mut self.holdings else {
            return Err(Failure::bad("the first message of a stream is Hello"));
        };
        let (at, key) = (wanted.place.clone(), wanted.place.key());
        let limit = api.limits.registrations_per_stream;
        if holdings.len() >= limit && !holdings.holds(&key) {
            return Err(Failure::too_many("instances on a stream", limit));
        }
        if !self.opened {
            api.access.open_lease(holdings.lease, ttl_ms)?;
            self.opened = true;
        }
        let (stamp, created) = api.register_under(wanted, holdings.lease)?;
        holdings.registered(key, stamp);
        Ok(server_message::What::Registered(v1::Registered {
            at: Some(at.into()),
            stamp: Some(stamp.into()),
            ttl_ms,
            created,
        }))
    }

    fn deregister(&mut self, removal: v1::Deregistration) -> Answer<server_message::What> {
        let api = &self.line.api;
        let at = place(api, removal.at.unwrap_or_default())?;
        let Some(holdings) = &mut self.holdings else {
            return Err(Failure::bad("the first message of a stream is Hello"));
        };
        let key = at.key();
        let lease = holdings.lease;
        let claim = removal.claim.map(TryInto::try_into).transpose()?;
        let mine = |record: &Record| {
            record.lease == Some(lease) || claim.is_some_and(|claim| record.stamp == claim)
        };
        let existed = api.access.get(&key).is_some_and(|record| mine(&record));
        if existed {
            api.access.deregister(&key)?;
        }
        holdings.remove(&key);
        Ok(server_message::What::Deregistered(v1::Deregistered {
            at: Some(at.into()),
            existed,
        }))
    }

    fn watch(&mut self, watch: v1::WatchRequest) -> Answer<server_message::What> {
        let api = &self.line.api;
        let name = api.service(given(watch.namespace), watch.service)?;
        let limit = api.limits.watches_per_stream;
        let since = watch.revision.map(Revision::from);
        let whose: Arc<dyn Subscriber> = self.line.clone();
        let number = {
            let mut seats = self.line.seats.lock();
            let watched = seats.by_name.contains_key(&name);
            if seats.by_number.len() >= limit && !watched {
                return Err(Failure::too_many("watches on a stream", limit));
            }
            seats.next = seats.next.wrapping_add(1);
            seats.next
        };
        let seat = api
            .hub
            .sit(name.clone(), since, Arc::downgrade(&whose), number);
        // Asked twice: the later mark counts.
        let replaced = {
            let mut seats = self.line.seats.lock();
            let former = seats.by_name.insert(name.clone(), number);
            let replaced = former.and_then(|former| seats.by_number.remove(&former));
            seats.by_number.insert(number, seat);
            replaced
        };
        drop(replaced);
        self.line.ring(number);
        Ok(server_message::What::Watching(v1::Watching {
            namespace: name.namespace,
            service: name.service,
        }))
    }

    fn unwatch(&mut self, watch: v1::Watching) -> Answer<server_message::What> {
        let name = self
            .line
            .api
            .service(given(watch.namespace), watch.service)?;
        let left = {
            let mut seats = self.line.seats.lock();
            let number = seats.by_name.remove(&name);
            number.and_then(|number| seats.by_number.remove(&number))
        };
        drop(left);
        Ok(server_message::What::Watching(v1::Watching {
            namespace: name.namespace,
            service: name.service,
        }))
    }
}

fn token(holdings: &Holdings) -> u64 {
    u64::try_from(holdings.lease.id).unwrap_or(0)
}

/// The bell of a Watch call, which is metered like a stream.
pub(super) struct Bell {
    meter: Meter,
    rung: Notify,
    ended: AtomicBool,
}

impl Bell {
    pub(super) fn new(meter: Meter) -> Self {
        Bell {
            meter,
            rung: Notify::new(),
            ended: AtomicBool::new(false),
        }
    }
}

impl Subscriber for Bell {
    fn ring(&self, _seat: u32) {
        self.meter.ready();
        self.rung.notify_one();
    }
}

impl Metered for Bell {
    fn meter(&self) -> &Meter {
        &self.meter
    }

    fn leave(&self, end: bool) -> bool {
        if end {
            self.ended.store(true, Ordering::Release);
            self.rung.notify_one();
        }
        // A tool's call is not moved.
        end
    }
}

/// A Watch call. It makes its next message only when the connection has taken the last.
pub(super) struct Watcher {
    pub(super) seat: Seat,
    pub(super) bell: Arc<Bell>,
    pub(super) api: Arc<NativeApi>,
    pub(super) _kept: Kept,
}

impl Watcher {
    pub(super) async fn next(mut self) -> Option<(Result<Update, Status>, Self)> {
        loop {
            self.bell.rung.notified().await;
            self.bell.meter.taken(false);
            let frame = self.seat.next_frame();
            if let Some(frame) = frame {
                // Looked at again before the next wait: a ring may have come meanwhile.
                self.bell.rung.notify_one();
                return Some((Ok(Update::Shared(frame.update())), self));
            }
            if self.bell.ended.load(Ordering::Acquire) || self.api.hub.ended() {
                return None;
            }
        }
    }
}
