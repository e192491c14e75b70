//! One connection: bytes in, requests to their places, replies and events out in order. What a request
//! means is decided elsewhere.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use causeway_engine::route::Mode;
use causeway_engine::session::ConnId;
use causeway_engine::znode_tree::AuthId;
use causeway_registry::{LeaseId, StoreKind};
use causeway_wire::zk::record::Record;
use causeway_wire::zk::{
    ConnectRequest, ConnectResponse, Connection, ErrorCode, FourLetterWord, FrameDecoder, FrameError, Opening, Request,
    RequestHeader, SlotId, Watches,
};
use futures::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

use super::general::{General, Incident};
use super::handshake::{self, Outcome};
use super::translate::{self, Answer};
use super::{Front, HANDSHAKE, Peer, Traffic, four_letter, local, relay, taken_over};
use crate::gateway::{Gateway, TreeNews};
use crate::journal::Position;

/// Requests handled in a row before the connection looks at anything else.
const TURN: usize = 128;

/// Bytes handed to the socket's queue at a time; more stays in the reply slots, where it counts.
const OUTGOING: usize = 256 * 1024;

/// Bytes of replies that wait for a slow reader before nothing more is read from it.
const PAUSE_READING: usize = 4 << 20;

/// Bytes of replies and events that wait before the connection is closed: it lags, and costs only itself.
const TOO_SLOW: usize = 64 << 20;

/// The connection ends now; the session does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended;

/// Serves one connection to its end.
pub(super) async fn run(front: &Arc<Front>, stream: TcpStream, address: SocketAddr) {
    let _ = stream.set_nodelay(true);
    let (read, write) = stream.into_split();
    let mut incoming = Incoming::new(read, front.gateway.config.max_frame);
    let mut outgoing = Outgoing::new(write);
    let Ok(Some(first)) = tokio::time::timeout(HANDSHAKE, incoming.first()).await else { return };
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
    let mut books = Books { front: front.clone(), conn, session: None };
    let mode = gateway.with(|core| core.mode(StoreKind::Zookeeper)).0;
    if mode == Mode::Relay {
        return relay::run(front, request, address, incoming, outgoing, books).await;
    }
    let news = gateway.tree_queue(conn);
    let opened = match handshake::open(front, request, conn).await {
        Outcome::Opened(opened) => opened,
        Outcome::Expired => {
            let expired = ConnectResponse::expired(request).encode_frame();
            let _ = tokio::time::timeout(HANDSHAKE, outgoing.write_whole(expired)).await;
            return Err(Ended);
        }
        Outcome::Silent => return Err(Ended),
    };
    books.session = Some(opened.session);
    let general = (mode == Mode::TakenOver).then(|| opened.general).flatten();
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
    wire.open(&ConnectResponse::established(request, opened.session, timeout_ms, opened.password), opened.floor_zxid);
    let auth = vec![AuthId::ip(address.ip())];
    gateway.with(|core| core.set_auth(conn.into_watcher(), auth.clone()));
    let client = Client {
        front: front.clone(),
        conn,
        session: opened.session,
        address,
        peer: address.ip().to_canonical().to_string(),
        auth,
        replies: Replies { wire, news, after: opened.after, closing: false, me, front: front.clone() },
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

    async fn serve(&mut self, incoming: &mut Incoming, outgoing: &mut Outgoing) -> Result<(), Ended> {
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
            let Some(incident) = next_one.take() else { break };
            taken_over::take(self, incident)?;
            next_one = next(&mut self.general).now_or_never();
        }
        match next_one {
            Some(incident) => taken_over::take(self, incident),
            None => Ok(()),
        }
    }

    /// Handles what has been read, up to a bound. Says whether more can be handled at once.
    fn take_requests(&mut self, incoming: &mut Incoming) -> Result<bool, Ended> {
        for handled in 0..TURN {
            if !self.may_read() {
                return Ok(false);
            }
            let Some(frame) = incoming.frame()? else { return Ok(false) };
            if handled == 0 {
                // ZooKeeper: every frame of the client extends its session (SessionTrackerImpl.touchSession).
                self.front.gateway.renew(LeaseId::session(self.session)).map_err(|_| Ended)?;
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
        let slot = self.replies.wire.request(header.xid, header.op, watches).map_err(|_| Ended)?;
        match request {
            Ok(request) if self.general.is_some() => taken_over::serve(self, slot, request),
            Ok(request) => local::serve(self, slot, request),
            // ZooKeeper: a known operation with wrong bytes fails, and the connection goes on.
            Err(error) => {
                tracing::debug!(peer = self.peer, op = header.op, %error, "a request cannot be decoded");
                self.answer(slot, Err(ErrorCode::MarshallingError));
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
            while outgoing.queued < OUTGOING {
                let Some(chunk) = self.replies.wire.poll_output() else { break };
                outgoing.push(chunk, self.replies.after);
            }
            let flush = outgoing.flush(&self.front.gateway)?;
            if flush != Flush::Empty {
                if self.replies.wire.queued_bytes() > TOO_SLOW {
                    tracing::warn!(peer = self.peer, "a ZooKeeper client does not read what it asked for: closed");
                    return Err(Ended);
                }
                return Ok(flush);
            }
            let Some(chunk) = self.replies.wire.poll_output() else { return Ok(Flush::Empty) };
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
                self.wire.event(event.zxid, &event.path, translate::event(&event));
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
        self.wire.has_room() && !self.wire.is_closing() && !self.closing && self.wire.queued_bytes() < PAUSE_READING
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

/// How a connection begins.
pub(super) enum First {
    Word(FourLetterWord),
    Connect(ConnectRequest),
}

/// The direction from the client.
pub(super) struct Incoming {
    stream: OwnedReadHalf,
    buffer: BytesMut,
    decoder: FrameDecoder,
}

impl Incoming {
    fn new(stream: OwnedReadHalf, max_frame: usize) -> Self {
        Incoming { stream, buffer: BytesMut::with_capacity(4096), decoder: FrameDecoder::new(max_frame) }
    }

    /// The first thing the client says; `None` when it is nothing that this port understands.
    async fn first(&mut self) -> Option<First> {
        loop {
            match Opening::detect(&self.buffer) {
                Opening::NeedMore => {}
                Opening::FourLetterWord(word) => return Some(First::Word(word)),
                Opening::Frames => {
                    if let Some(frame) = self.frame().ok()? {
                        return ConnectRequest::decode(frame).ok().map(First::Connect);
                    }
                }
            }
            self.read().await.ok()?;
        }
    }

    /// The next whole frame, if it has been read. ZooKeeper: a length that cannot be ends the connection
    /// without a reply (NIOServerCnxn.readLength).
    pub(super) fn frame(&mut self) -> Result<Option<Bytes>, Ended> {
        self.decoder.next(&mut self.buffer).map_err(|error| {
            match error {
                FrameError::Negative(_) | FrameError::TooLarge { .. } => {
                    tracing::debug!(%error, "a ZooKeeper connection is closed");
                }
            }
            Ended
        })
    }

    /// Reads some more. Nothing is lost when the future is dropped.
    pub(super) async fn read(&mut self) -> Result<(), Ended> {
        match self.stream.read_buf(&mut self.buffer).await {
            Ok(0) | Err(_) => Err(Ended),
            Ok(_) => Ok(()),
        }
    }
}

/// The direction to the client.
pub(super) struct Outgoing {
    stream: OwnedWriteHalf,
    chunks: VecDeque<(Bytes, Position)>,
    queued: usize,
}

/// What became of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flush {
    /// Everything was written.
    Empty,
    /// The socket takes no more for now.
    Blocked,
    /// The next chunk may leave once this position is on disk.
    NotKept(Position),
}

impl Flush {
    /// What is waited for.
    pub(super) fn position(self) -> Position {
        match self {
            Flush::NotKept(position) => position,
            Flush::Empty | Flush::Blocked => 0,
        }
    }
}

impl Outgoing {
    fn new(stream: OwnedWriteHalf) -> Self {
        Outgoing { stream, chunks: VecDeque::new(), queued: 0 }
    }

    pub(super) fn push(&mut self, chunk: Bytes, after: Position) {
        if !chunk.is_empty() {
            self.queued += chunk.len();
            self.chunks.push_back((chunk, after));
        }
    }

    /// Bytes that wait.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// Writes as much as may leave and as the socket takes.
    pub(super) fn flush(&mut self, gateway: &Gateway) -> Result<Flush, Ended> {
        while let Some((chunk, after)) = self.chunks.front_mut() {
            match gateway.is_durable(*after) {
                Ok(true) => {}
                Ok(false) => return Ok(Flush::NotKept(*after)),
                // Nothing is acknowledged that the disk did not take.
                Err(_) => return Err(Ended),
            }
            match self.stream.try_write(chunk) {
                Ok(0) => return Err(Ended),
                Ok(written) => {
                    self.queued = self.queued.saturating_sub(written);
                    chunk.advance(written);
                    if chunk.is_empty() {
                        self.chunks.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Flush::Blocked),
                Err(_) => return Err(Ended),
            }
        }
        Ok(Flush::Empty)
    }

    pub(super) async fn writable(&self) -> Result<(), Ended> {
        self.stream.writable().await.map_err(|_| Ended)
    }

    pub(super) async fn write_whole(&mut self, mut bytes: Bytes) -> Result<(), Ended> {
        self.stream.write_all_buf(&mut bytes).await.map_err(|_| Ended)?;
        self.shut_down().await;
        Ok(())
    }

    /// Lets the last bytes arrive before the socket goes.
    pub(super) async fn shut_down(&mut self) {
        let _ = self.stream.shutdown().await;
    }
}
