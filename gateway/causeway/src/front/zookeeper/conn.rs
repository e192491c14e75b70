//! One connection: bytes in, requests to their places, replies and events out in order. What a request
//! means is decided elsewhere.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use causeway_engine::core::Core;
use causeway_engine::route::Mode;
use causeway_engine::session::ConnId;
use causeway_engine::watch::EventKind;
use causeway_engine::znode_tree::AuthId;
use causeway_registry::{LeaseId, StoreKind};
use causeway_wire::zk::record::RecordError;
use causeway_wire::zk::{
    ConnectRequest, ConnectResponse, Connection, ConnectionLimits, ErrorCode, OpCode, Request,
    RequestHeader, SlotId, Watches,
};
use futures::FutureExt;
use tokio::net::TcpStream;

use super::figures::{Asked, Board, Figures, InTurn, Peer};
use super::general::{General, Incident};
use super::handshake::{self, Outcome};
use super::limits::Waiting;
use super::numbers::Numbers;
use super::socket::{Broken, Ended, First, Flush, Incoming, Outgoing};
use super::translate::{self, Answer, Write};
use super::{Admitted, Front, HANDSHAKE, answers, four_letter, local, relay, taken_over};
use crate::journal::Position;
use crate::mailbox::{News, TreeNews};
use crate::tls::{self, Port, Socket};

/// Requests handled in a row before the connection looks at anything else.
const TURN: usize = 128;

/// Bytes handed to the socket's queue at a time; more stays in the reply slots, where it counts.
const OUTGOING: usize = 256 * 1024;

/// Bytes of replies that wait for a slow reader before nothing more is read from it.
const PAUSE_READING: usize = 4 << 20;

/// Bytes of replies and events that wait before the connection is closed: it lags, and costs only itself.
const TOO_SLOW: usize = 64 << 20;

/// Length, xid, zxid and code, in front of each reply's body.
const REPLY_HEADER: usize = 4 + 4 + 8 + 4;

/// Serves one connection to its end. It is off the books before its socket closes, so that a client that saw the end
/// is not counted any more (ZooKeeper: `NIOServerCnxn.close`).
pub(super) async fn run(
    front: &Arc<Front>,
    stream: TcpStream,
    address: SocketAddr,
    port: &Port,
    admitted: Admitted,
) {
    let _ = stream.set_nodelay(true);
    let opening = async {
        let socket = port.open(stream, address).await.ok_or(Broken::Nothing)?;
        let auth = identities(front, &socket, address).ok_or(Broken::Nothing)?;
        let (read, write) = socket.into_split();
        let mut incoming = Incoming::new(read, front.gateway.config.max_frame);
        let first = incoming.first().await?;
        Ok((auth, incoming, Outgoing::new(write), first))
    };
    // Boxed, so that connections have no room for it afterwards.
    let opened = tokio::time::timeout(HANDSHAKE, Box::pin(opening)).await;
    let (auth, mut incoming, mut outgoing, first) = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(broken)) => {
            if let Broken::TooLarge = broken {
                front.frame_too_large(&address);
            }
            return;
        }
        Err(_) => {
            front.board.silent.fetch_add(1, Relaxed);
            return;
        }
    };
    match first {
        First::Word(word) => {
            front.board.received_one();
            let answering = four_letter::answer(front, word, address, &mut incoming);
            if let Ok(Some(text)) = tokio::time::timeout(HANDSHAKE, answering).await {
                front.board.sent_one();
                let _ = tokio::time::timeout(HANDSHAKE, outgoing.write_whole(text.into())).await;
            }
            drop(admitted);
            outgoing.shut_down().await;
        }
        First::Connect(request) => {
            let _ = shake_hands(front, &request, address, admitted, auth, incoming, outgoing).await;
        }
    }
}

/// Who the client is before it says a word: its address, and the name in the certificate that it has shown
/// (ZooKeeper: `X509AuthenticationProvider.handleAuthentication`).
fn identities(front: &Front, socket: &Socket, address: SocketAddr) -> Option<Vec<AuthId>> {
    let mut auth = vec![AuthId::ip(address.ip())];
    if let Some(certificate) = socket.client_certificate() {
        let subject = tls::subject(certificate)
            .inspect_err(|error| {
                tracing::warn!(%address, %error, "the name in a client's certificate cannot be read: closed");
            })
            .ok()?;
        if front.gateway.config.x509_superuser.as_ref() == Some(&subject) {
            tracing::info!(%address, subject, "a superuser");
            auth.push(AuthId::superuser());
        }
        auth.push(AuthId::x509(subject));
    }
    Some(auth)
}

async fn shake_hands(
    front: &Arc<Front>,
    request: &ConnectRequest,
    address: SocketAddr,
    admitted: Admitted,
    auth: Vec<AuthId>,
    incoming: Incoming,
    mut outgoing: Outgoing,
) -> Result<(), Ended> {
    let gateway = &front.gateway;
    let began_ms = gateway.now_ms();
    let board = &front.board;
    board.handshakes.fetch_add(1, Relaxed);
    let is_new = request.session_id == 0;
    if !is_new {
        board.revalidations.fetch_add(1, Relaxed);
    }
    let conn = ConnId(gateway.next_connection());
    // From here on whatever ends the connection also takes it off the books.
    let mut books = Books {
        front: front.clone(),
        conn,
        session: None,
        _admitted: admitted,
    };
    let mode = gateway.with(|core| core.mode(StoreKind::Zookeeper)).0;
    if mode == Mode::Relay {
        // Boxed, so that other connections have no room for it.
        return Box::pin(relay::run(
            front, request, address, incoming, outgoing, books,
        ))
        .await;
    }
    let news = gateway.tree_queue(conn);
    let opened = match Box::pin(handshake::open(front, request, conn)).await {
        Outcome::Opened(opened) => *opened,
        Outcome::Expired => {
            board.stale.fetch_add(1, Relaxed);
            let expired = ConnectResponse::expired(request).encode_frame();
            let _ = tokio::time::timeout(HANDSHAKE, outgoing.write_whole(expired)).await;
            drop(books);
            outgoing.shut_down().await;
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
        established_ms: began_ms,
        figures: Figures::default(),
    });
    me.figures
        .greeted(board, is_new, opened.floor_zxid, began_ms, gateway.now_ms());
    board.joined(conn, me.clone());
    let timeout_ms = i32::try_from(opened.timeout_ms).unwrap_or(i32::MAX);
    let mut wire = Connection::new(ConnectionLimits {
        max_slots: gateway.config.max_requests_per_connection,
    });
    wire.open(
        &ConnectResponse::established(request, opened.session, timeout_ms, opened.password),
        opened.floor_zxid,
    );
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
            both: HashSet::new(),
            theirs: 0,
            numbers: front.numbers.clone(),
            noted: false,
            closing: false,
            me,
            board: board.clone(),
            in_turn: InTurn::default(),
            unanswered: 0,
            waiting: Waiting::new(board.clone()),
            now_ms: began_ms,
        },
        general,
        books: Some(books),
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
    _admitted: Admitted,
}

impl Books {
    pub(super) fn conn(&self) -> ConnId {
        self.conn
    }
}

impl Drop for Books {
    fn drop(&mut self) {
        self.front.board.parted(self.conn);
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
    /// Until the connection has nothing more to say.
    books: Option<Books>,
}

impl Client {
    async fn run(mut self, mut incoming: Incoming, mut outgoing: Outgoing) -> Result<(), Ended> {
        let ended = self.serve(&mut incoming, &mut outgoing).await;
        // What was answered before the end still goes out, as far as the socket takes it.
        let _ = self.send(&mut outgoing);
        drop(self);
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
                self.books = None;
                outgoing.shut_down().await;
                return Ok(());
            }
            if self.replies.closing && !self.replies.wire.is_closing() {
                return Err(Ended);
            }
            // What has been read is not announced by the socket again: once replies have made room, it goes on.
            if more && self.may_read() {
                tokio::task::yield_now().await;
                self.replies.drain();
                continue;
            }
            tokio::select! {
                news = self.replies.news.next(), if !self.replies.closing => self.replies.take(news),
                read = incoming.read(), if self.may_read() => read?,
                incident = next(&mut self.general), if self.general.is_some() => self.take_incidents(incident)?,
                sent = outgoing.writable(), if flush == Flush::Blocked => sent?,
                kept = self.front.gateway.durable(flush.position()), if matches!(flush, Flush::NotKept(_)) => {
                    kept.map_err(|_| Ended)?;
                }
                // Nothing is waited for, and something is still owed: no answer can come any more.
                else => return Err(Ended),
            }
        }
    }

    /// The write that a request of this client asks for.
    pub(super) fn write(&self, request: &Request) -> Result<Option<Write>, ErrorCode> {
        let x509 = self.front.gateway.config.zookeeper_tls.tls.is_some();
        translate::write(request, self.session, &self.auth, x509)
    }

    /// Whether the next request may be handled.
    fn may_read(&mut self) -> bool {
        self.replies.may_read(&self.peer) && !self.general.as_ref().is_some_and(General::holds)
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

    /// Handles what has been read, up to a bound. Says whether more may have been read already.
    fn take_requests(&mut self, incoming: &mut Incoming) -> Result<bool, Ended> {
        for handled in 0..TURN {
            if !self.may_read() {
                return Ok(true);
            }
            let frame = match incoming.frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(false),
                Err(_) => {
                    self.front.frame_too_large(&self.address);
                    return Err(Ended);
                }
            };
            if handled == 0 {
                self.replies.now_ms = self.front.gateway.now_ms();
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
        let bytes = frame.len();
        let (header, body) = RequestHeader::split(frame).map_err(|_| Ended)?;
        self.replies.received(&header, bytes);
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
            // ZooKeeper: a check alone is unknown whatever its bytes are (PrepRequestProcessor, UnimplementedRequestProcessor).
            Err(_) if header.op == OpCode::Check as i32 => {
                local::serve(self, slot, Request::Unknown { op: header.op })
            }
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
        if std::mem::take(&mut self.replies.noted) {
            self.replies.numbers.keep();
        }
        let flush = self.push(outgoing);
        self.replies.left(&self.front);
        flush
    }

    fn push(&mut self, outgoing: &mut Outgoing) -> Result<Flush, Ended> {
        loop {
            while outgoing.queued() < OUTGOING {
                let Some(chunk) = self.replies.wire.poll_output() else {
                    break;
                };
                self.replies.me.figures.wrote(chunk.len());
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
            self.replies.me.figures.wrote(chunk.len());
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
    news: News<TreeNews>,
    /// What was queued so far may leave from here on.
    after: Position,
    /// Directories of both classes that the client has a one-shot child watch on: armed here and in the ensemble, it
    /// fires once, whoever is first.
    pub(super) both: HashSet<String>,
    /// The ensemble's number in the answer that is being handed on; 0 for none.
    pub(super) theirs: i64,
    numbers: Arc<Numbers>,
    /// Something was noted that is not kept yet.
    noted: bool,
    /// The session is over, or another connection speaks for it.
    closing: bool,
    me: Arc<Peer>,
    board: Arc<Board>,
    /// Requests whose replies have not gone out.
    in_turn: InTurn,
    /// Those of them without an answer.
    unanswered: usize,
    waiting: Waiting,
    /// When the requests that are handled now were read.
    now_ms: i64,
}

impl Replies {
    /// Queues the events handed over so far. Called with the machine's lock held before a reply is
    /// queued: a change is never shown before its event (ZooKeeper: watches fire within
    /// `DataTree.processTxn`, before the reply is sent).
    pub(super) fn drain(&mut self) {
        while let Some(news) = self.news.try_next() {
            self.take(news);
        }
    }

    fn take(&mut self, news: TreeNews) {
        match news {
            TreeNews::Event { event, after } => {
                if matches!(
                    event.event().kind,
                    EventKind::NodeChildrenChanged | EventKind::NodeDeleted
                ) {
                    self.both.remove(&*event.event().path);
                }
                self.me.figures.told();
                let (zxid, path) = (event.event().zxid, &event.event().path);
                self.wire.event(zxid, path, event.body(translate::event));
                self.depends_on(after);
            }
            TreeNews::Close => self.closing = true,
        }
    }

    /// Queues an event of the ensemble; its number, if it has one, says nothing here.
    pub(super) fn event(&mut self, path: &str, body: Bytes) {
        self.me.figures.told();
        self.wire.event(0, path, body);
    }

    /// The number for a reply's header, under the machine's lock and with all events drained. A reply that shows more
    /// of the ensemble than those before it gets one of its own, by which a client that comes back tells what it saw.
    pub(super) fn number(&mut self, core: &mut Core) -> i64 {
        if self.theirs > 0 && self.numbers.is_news(self.me.session, self.theirs) {
            let fresh = core.fresh_zxid(self.now_ms);
            self.shown(fresh);
            return fresh;
        }
        core.last_zxid()
    }

    /// The answer that is being handed on is shown under this number, which is its own.
    pub(super) fn shown(&mut self, ours: i64) {
        let theirs = std::mem::take(&mut self.theirs);
        if theirs > 0 {
            self.numbers.note(self.me.session, ours, theirs);
            self.noted = true;
        }
    }

    /// Queues an event that the client missed before it came back, in front of the reply of its setWatches.
    pub(super) fn missed(&mut self, slot: SlotId, body: Bytes) {
        self.me.figures.told();
        let _ = self.wire.event_before(slot, body);
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
        self.me
            .figures
            .sized(&self.board, REPLY_HEADER + body.len());
        // A slot that no longer waits was dropped because the connection closes before it.
        if self.wire.fill(slot, zxid, err, body).is_ok() {
            self.unanswered = self.unanswered.saturating_sub(1);
        }
    }

    /// What is queued depends on this position.
    pub(super) fn depends_on(&mut self, after: Position) {
        self.after = self.after.max(after);
    }

    fn may_read(&mut self, who: &str) -> bool {
        let waiting = match self.wire.has_room() {
            true => self.unanswered,
            false => self.in_turn.len(),
        };
        !self.waiting.holds(waiting, self.now_ms, &who)
            && self.wire.has_room()
            && !self.wire.is_closing()
            && !self.closing
            && self.wire.queued_bytes() < PAUSE_READING
    }

    fn received(&mut self, header: &RequestHeader, bytes: usize) {
        self.me.figures.asked(bytes);
        self.unanswered += 1;
        self.in_turn.push(Asked {
            xid: header.xid,
            op: header.op,
            at_ms: self.now_ms,
        });
    }

    /// Counts what has been handed to the socket. The clock is read once for all of it.
    fn left(&mut self, front: &Front) {
        self.waiting.tell(self.unanswered);
        let waiting = self.wire.in_flight();
        if self.in_turn.len() <= waiting {
            return;
        }
        let (now_ms, zxid) = (front.gateway.now_ms(), self.wire.last_zxid());
        for asked in self.in_turn.left(waiting) {
            self.me.figures.answered(&self.board, &asked, zxid, now_ms);
        }
    }
}
