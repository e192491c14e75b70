//! One connection: bytes in, requests to their places, replies and events out in order. What a request
//! means is decided elsewhere.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use causeway_engine::route::Mode;
use causeway_engine::session::ConnId;
use causeway_engine::znode_tree::AuthId;
use causeway_registry::{LeaseId, StoreKind};
use causeway_wire::zk::record::RecordError;
use causeway_wire::zk::{
    ConnectRequest, ConnectResponse, Connection, ErrorCode, OpCode, Request, RequestHeader, SlotId,
    Watches,
};
use futures::FutureExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::general::{General, Incident};
use super::handshake::{self, Outcome};
use super::socket::{Ended, First, Flush, Incoming, Outgoing};
use super::translate::{self, Answer};
use super::{Front, HANDSHAKE, Peer, Traffic, answers, four_letter, local, relay, taken_over};
use crate::gateway::TreeNews;
use crate::journal::Position;

/// Requests handled in a row before the connection looks at anything else.
const TURN: usize = 128;

/// Bytes handed to the socket's queue at a time; more stays in the reply slots, where it counts.
const OUTGOING: usize = 256 * 1024;

/// Bytes of replies that wait for a slow reader before nothing more is read from it.
const PAUSE_READING: usize = 4 << 20;

/// Bytes of replies and events that wait before the connection is closed: it lags, and costs only itself.
const TOO_SLOW: usize = 64 << 20;

/// Serves one connection to its end.
pub(super) async fn run(front: &Arc<Front>, stream: TcpStream, address: SocketAddr) {
    let _ = stream.set_nodelay(true);
    let (read, write) = stream.into_split();
    let mut incoming = Incoming::new(read, front.gateway.config.max_frame);
    let mut outgoing = Outgoing::new(write);
    let Ok(Some(first)) = tokio::time::timeout(HANDSHAKE, incoming.first()).await else {
        return;
    };
    front.traffic.received();
    match first {
        First::Word(word) => {
            let text = four_letter::answer(front, word, address);
            let _ = tokio::time::timeout(HANDSHAKE, outgoing.write_whole(text.into())).await;
        }
        First::Connect(request) => {
            let _ = shake_hands(front, &request, address, incoming, outgoing).await;
        }
    }
}

async fn shake_hands(
    front: &Arc<Front>,
    request: &ConnectRequest,
    address: SocketAddr,
    incoming: Incoming,
    mut outgoing: Outgoing,
) -> Result<(), Ended> {
    let gateway = &front.gateway;
    let conn = ConnId(gateway.next_connection());
    // From here on whatever ends the connection also takes it off the books.
    let mut books = Books {
        front: front.clone(),
        conn,
        session: None,
    };
    let mode = gateway.with(|core| core.mode(StoreKind::Zookeeper)).0;
    if mode == Mode::Relay {
        return relay::run(front, request, address, incoming, outgoing, books).await;
    }
    let news = gateway.tree_queue(conn);
    let opened = match handshake::open(front, request, conn).await {
        Outcome::Opened(opened) => *opened,
        Outcome::Expired => {
            let expired = ConnectResponse::expired(request).encode_frame();
            let _ = tokio::time::timeout(HANDSHAKE, outgoing.write_whole(expired)).await;
            return Err(Ended);
        }
        Outcome::Silent => return Err(Ended),
    };
    books.session = Some(opened.session);
    let general = opened.general;
    let me = Arc::new(Peer {
        address,
        session: opened.session,
        timeout_ms: opened.timeout_ms,
        established_ms: gateway.now_ms(),
        traffic: Traffic::default(),
    });
    front.peers.insert(conn, me.clone());
    let timeout_ms = i32::try_from(opened.timeout_ms).unwrap_or(i32::MAX);
    let mut wire = Connection::default();
    wire.open(
        &ConnectResponse::established(request, opened.session, timeout_ms, opened.password),
        opened.floor_zxid,
    );
    let auth = vec![AuthId::ip(address.ip())];
    gateway.with(|core| core.set_auth(conn.into_watcher(), auth.clone()));
    let client = Client {
        front: front.clone(),
        conn,
        session: opened.session,
        address,
        peer: address.ip().to_canonical().to_string(),
        auth,
        replies: Replies {
            wire,
            news,
            after: opened.after,
            closing: false,
            me,
            front: front.clone(),
        },
        general,
        _books: books,
    };
    client.run(incoming, outgoing).await
}

/// A connection is also a watcher: same number, two names.
pub(super) trait IntoWatcher {
    fn into_watcher(self) -> causeway_engine::watch::WatcherId;
}

impl IntoWatcher for ConnId {
    fn into_watcher(self) -> causeway_engine::watch::WatcherId {
        causeway_engine::watch::WatcherId(self.0)
    }
}

/// Takes a connection off the books at its end, however it ends.
pub(super) struct Books {
    front: Arc<Front>,
    conn: ConnId,
    session: Option<i64>,
}

impl Books {
    pub(super) fn conn(&self) -> ConnId {
        self.conn
    }
}

impl Drop for Books {
    fn drop(&mut self) {
        self.front.peers.remove(&self.conn);
        if let (Some(session), Some(upstreams)) = (self.session, &self.front.legacy.sessions) {
            upstreams.gone(session, self.conn);
        }
        self.front.gateway.drop_connection(self.conn, self.session);
    }
}

/// A connection that speaks for a session.
pub(super) struct Client {
    pub(super) front: Arc<Front>,
    pub(super) conn: ConnId,
    pub(super) session: i64,
    pub(super) address: SocketAddr,
    /// The address without the port: who writes, for the books.
    pub(super) peer: String,
    pub(super) auth: Vec<AuthId>,
    pub(super) replies: Replies,
    /// The way to the ensemble, after the take-over.
    pub(super) general: Option<General>,
    _books: Books,
}

impl Client {
    async fn run(mut self, mut incoming: Incoming, mut outgoing: Outgoing) -> Result<(), Ended> {
        let ended = self.serve(&mut incoming, &mut outgoing).await;
        // What was answered before the end still goes out, as far as the socket takes it.
        let _ = self.send(&mut outgoing);
        ended
    }

    async fn serve(
        &mut self,
        incoming: &mut Incoming,
        outgoing: &mut Outgoing,
    ) -> Result<(), Ended> {
        loop {
            let more = self.take_requests(incoming)?;
            let flush = self.send(outgoing)?;
            if self.replies.wire.is_finished() && flush == Flush::Empty {
                outgoing.shut_down().await;
                return Ok(());
            }
            if self.replies.closing && !self.replies.wire.is_closing() {
                return Err(Ended);
            }
            if more {
                tokio::task::yield_now().await;
                self.replies.drain();
                continue;
            }
            tokio::select! {
                news = self.replies.news.recv(), if !self.replies.closing => self.replies.take(news),
                read = incoming.read(), if self.may_read() => read?,
                incident = next(&mut self.general), if self.general.is_some() => self.take_incidents(incident)?,
                sent = outgoing.writable(), if flush == Flush::Blocked => sent?,
                kept = self.front.gateway.durable(flush.position()), if matches!(flush, Flush::NotKept(_)) => {
                    kept.map_err(|_| Ended)?;
                }
            }
        }
    }

    /// Whether the next request may be handled.
    fn may_read(&self) -> bool {
        self.replies.may_read() && !self.general.as_ref().is_some_and(General::holds)
    }

    /// Takes what happened on the way to the ensemble, and what else has happened there by now.
    fn take_incidents(&mut self, first: Incident) -> Result<(), Ended> {
        let mut next_one = Some(first);
        for _ in 0..TURN {
            let Some(incident) = next_one.take() else {
                break;
            };
            answers::take(self, incident)?;
            next_one = next(&mut self.general).now_or_never();
        }
        match next_one {
            Some(incident) => answers::take(self, incident),
            None => Ok(()),
        }
    }

    /// Handles what has been read, up to a bound. Says whether more can be handled at once.
    fn take_requests(&mut self, incoming: &mut Incoming) -> Result<bool, Ended> {
        for handled in 0..TURN {
            if !self.may_read() {
                return Ok(false);
            }
            let Some(frame) = incoming.frame()? else {
                return Ok(false);
            };
            if handled == 0 {
                // ZooKeeper: every frame of the client extends its session (SessionTrackerImpl.touchSession).
                self.front
                    .gateway
                    .renew(LeaseId::session(self.session))
                    .map_err(|_| Ended)?;
            }
            self.request(frame)?;
        }
        Ok(true)
    }

    fn request(&mut self, frame: Bytes) -> Result<(), Ended> {
        self.replies.received();
        let (header, body) = RequestHeader::split(frame).map_err(|_| Ended)?;
        let request = Request::decode(header.op, body);
        let watches = request.as_ref().map_or(Watches::None, Watches::of);
        let slot = self
            .replies
            .wire
            .request(header.xid, header.op, watches)
            .map_err(|_| Ended)?;
        match request {
            Ok(request) if self.general.is_some() => taken_over::serve(self, slot, request),
            Ok(request) => local::serve(self, slot, request),
            // ZooKeeper: a known operation with wrong bytes fails, and the connection goes on.
            Err(error) => {
                tracing::debug!(peer = self.peer, op = header.op, %error, "a request cannot be decoded");
                // ZooKeeper: only a multi has taken its number by then (`PrepRequestProcessor.pRequestHelper`).
                if header.op == OpCode::Multi as i32 && error != RecordError::NullAcl {
                    local::refuse(self, slot, ErrorCode::MarshallingError);
                } else {
                    self.answer(slot, Err(ErrorCode::MarshallingError));
                }
                Ok(())
            }
        }
    }

    /// Answers without the machine's help.
    pub(super) fn answer(&mut self, slot: SlotId, answer: Answer) {
        let replies = &mut self.replies;
        let ((), after) = self.front.gateway.with(|core| {
            replies.drain();
            replies.fill(slot, core.last_zxid(), answer);
        });
        replies.depends_on(after);
    }

    fn send(&mut self, outgoing: &mut Outgoing) -> Result<Flush, Ended> {
        loop {
            while outgoing.queued() < OUTGOING {
                let Some(chunk) = self.replies.wire.poll_output() else {
                    break;
                };
                outgoing.push(chunk, self.replies.after);
            }
            let flush = outgoing.flush(&self.front.gateway)?;
            if flush != Flush::Empty {
                if self.replies.wire.queued_bytes() > TOO_SLOW {
                    tracing::warn!(
                        peer = self.peer,
                        "a ZooKeeper client does not read what it asked for: closed"
                    );
                    return Err(Ended);
                }
                return Ok(flush);
            }
            let Some(chunk) = self.replies.wire.poll_output() else {
                return Ok(Flush::Empty);
            };
            outgoing.push(chunk, self.replies.after);
        }
    }
}

async fn next(general: &mut Option<General>) -> Incident {
    match general {
        Some(general) => general.next().await,
        None => std::future::pending().await,
    }
}

/// Replies and events of one connection, in order.
pub(super) struct Replies {
    pub(super) wire: Connection,
    news: mpsc::Receiver<TreeNews>,
    /// What was queued so far may leave from here on.
    after: Position,
    /// The session is over, or another connection speaks for it.
    closing: bool,
    me: Arc<Peer>,
    front: Arc<Front>,
}

impl Replies {
    /// Queues the events handed over so far. Called with the machine's lock held before a reply is
    /// queued: a change is never shown before its event (ZooKeeper: watches fire within
    /// `DataTree.processTxn`, before the reply is sent).
    pub(super) fn drain(&mut self) {
        loop {
            match self.news.try_recv() {
                Ok(news) => self.take(Some(news)),
                Err(mpsc::error::TryRecvError::Empty) => return,
                Err(mpsc::error::TryRecvError::Disconnected) => {
                    self.closing = true;
                    return;
                }
            }
        }
    }

    fn take(&mut self, news: Option<TreeNews>) {
        match news {
            Some(TreeNews::Event { event, after }) => {
                self.sent(event.zxid);
                self.wire
                    .event(event.zxid, &event.path, translate::event(&event));
                self.depends_on(after);
            }
            // Without a word the queue has ended because the connection lags.
            Some(TreeNews::Close) | None => self.closing = true,
        }
    }

    /// Queues an event of the ensemble; its number, if it has one, says nothing here.
    pub(super) fn event(&mut self, path: &str, body: Bytes) {
        self.sent(0);
        self.wire.event(0, path, body);
    }

    /// Queues a reply.
    pub(super) fn fill(&mut self, slot: SlotId, zxid: i64, answer: Answer) {
        let (err, body) = match answer {
            Ok(reply) => (0, reply.encode()),
            Err(code) => (code.number(), Bytes::new()),
        };
        self.fill_raw(slot, zxid, err, body);
    }

    /// Queues a reply whose body is encoded already.
    pub(super) fn fill_raw(&mut self, slot: SlotId, zxid: i64, err: i32, body: Bytes) {
        self.sent(zxid);
        // A slot that no longer waits was dropped because the connection closes before it.
        let _ = self.wire.fill(slot, zxid, err, body);
    }

    /// What is queued depends on this position.
    pub(super) fn depends_on(&mut self, after: Position) {
        self.after = self.after.max(after);
    }

    fn may_read(&self) -> bool {
        self.wire.has_room()
            && !self.wire.is_closing()
            && !self.closing
            && self.wire.queued_bytes() < PAUSE_READING
    }

    fn received(&self) {
        self.front.traffic.received();
        self.me.traffic.received();
    }

    fn sent(&self, zxid: i64) {
        self.front.traffic.sent(zxid);
        self.me.traffic.sent(zxid);
    }
}
