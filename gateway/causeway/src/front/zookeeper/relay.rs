//! Before the take-over: each client has its own connection to the ensemble, and the ensemble's answers,
//! numbers, ids and verdicts are its. What the ensemble acknowledges of registrations is told to the
//! machine before the client hears of it.
//!
//! At the take-over the connection is closed once, in its turn; the client comes back with its session.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use causeway_backend::BackendError;
use causeway_backend_zookeeper::upstream::{
    FrameReceiver, FrameSender, Handshake, RawUpstream, UpstreamOptions,
};
use causeway_engine::core::{Command, LegacyEvent};
use causeway_engine::path::Protocol;
use causeway_engine::route::Mode;
use causeway_engine::znode_tree::AuthId;
use causeway_registry::{LeaseId, StoreKind};
use causeway_wire::zk::record::Record;
use causeway_wire::zk::request::CreateRequest;
use causeway_wire::zk::{
    ConnectRequest, ConnectResponse, OpCode, ReplyHeader, Request, RequestHeader, WatcherEvent, xid,
};
use futures::FutureExt;
use tokio::time::Instant;

use super::chroot::Chroot;
use super::conn::Books;
use super::figures::{self, Figures, Peer};
use super::limits::Waiting;
use super::socket::{Ended, Flush, Incoming, Outgoing};
use super::{Front, HANDSHAKE, config_node, create2, observe, translate};
use crate::journal::Position;

/// Bytes that wait for the ensemble before nothing more is read from the client.
const TO_ENSEMBLE: usize = 1 << 20;

/// Bytes that wait for the client before nothing more is read from the ensemble.
const TO_CLIENT: usize = 4 << 20;

/// Frames passed on in a row in one direction.
const TURN: usize = 128;

/// How long a connection whose turn has come waits for answers that are under way.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// The xid of the requests that the gateway adds; no client library counts down to it.
const OWN_XID: i32 = i32::MIN;

/// Relays one connection to its end.
pub(super) async fn run(
    front: &Arc<Front>,
    request: &ConnectRequest,
    address: SocketAddr,
    incoming: Incoming,
    mut outgoing: Outgoing,
    books: Books,
) -> Result<(), Ended> {
    let Some(servers) = &front.legacy.zookeeper_servers else {
        return Err(Ended);
    };
    let began_ms = front.gateway.now_ms();
    let handshake = RawUpstream::connect(servers, request, &UpstreamOptions::default())
        .await
        .map_err(|error| {
            // The client tries again, as with a server that has no quorum.
            tracing::debug!(%address, %error, "the ensemble cannot be reached for a client");
            Ended
        })?;
    let (upstream, response) = match handshake {
        Handshake::Established {
            connection,
            response,
        } => (connection, response),
        Handshake::Expired(response) => {
            front.board.stale.fetch_add(1, Relaxed);
            // It says the same to a wrong password, which proves nothing about the session.
            let password = request.password.clone().unwrap_or_default();
            let proved = |core: &mut causeway_engine::core::Core| {
                core.sessions()
                    .may_resume(request.session_id, &password)
                    .is_ok()
            };
            if front.gateway.with(proved).0 {
                front.gateway.apply(Command::LegacySessionGone {
                    id: request.session_id,
                });
            }
            let _ = tokio::time::timeout(HANDSHAKE, outgoing.write_whole(response.encode_frame()))
                .await;
            drop(books);
            outgoing.shut_down().await;
            return Err(Ended);
        }
    };
    let after = adopt(front, &response);
    outgoing.push(response.encode_frame(), after);
    let me = Arc::new(Peer {
        address,
        session: response.session_id,
        timeout_ms: u32::try_from(response.timeout_ms).unwrap_or(0),
        established_ms: began_ms,
        figures: Figures::default(),
    });
    let is_new = request.session_id == 0;
    let now_ms = front.gateway.now_ms();
    me.figures.greeted(
        &front.board,
        is_new,
        request.last_zxid_seen,
        began_ms,
        now_ms,
    );
    front.board.joined(books.conn(), me.clone());
    let has_create2 = upstream.has_create2();
    let (sender, receiver) = upstream.split();
    let relay = Relay {
        front: front.clone(),
        session: response.session_id,
        peer: address.ip().to_canonical().to_string(),
        address,
        chroot: Chroot::new(servers.chroot()),
        auth: vec![AuthId::ip(address.ip())],
        in_flight: VecDeque::new(),
        has_create2,
        creating: None,
        behind: VecDeque::new(),
        sender,
        outgoing,
        batch: BytesMut::new(),
        after,
        me,
        waiting: Waiting::new(front.board.clone()),
        now_ms,
        taken_over: false,
        last: false,
        lost: false,
        books: Some(books),
    };
    relay.run(incoming, receiver).await
}

/// Makes the ensemble's session known. Its password comes back with the client after the take-over.
fn adopt(front: &Front, response: &ConnectResponse) -> Position {
    let timeout_ms = u32::try_from(response.timeout_ms).unwrap_or(0);
    let password = password(response);
    front
        .gateway
        .apply(Command::AdoptSession {
            id: response.session_id,
            password,
            timeout_ms,
        })
        .after
}

/// The sixteen bytes of a server's password.
pub(super) fn password(response: &ConnectResponse) -> [u8; 16] {
    let mut password = [0; 16];
    for (to, from) in password.iter_mut().zip(response.password.iter().flatten()) {
        *to = *from;
    }
    password
}

/// A request on its way.
struct InFlight {
    xid: i32,
    op: i32,
    /// When it was read.
    at_ms: i64,
    then: Then,
}

/// A create that stands for a create2 has been answered, and the ensemble is asked for the node's Stat.
struct Creating {
    asked: InFlight,
    request: Box<CreateRequest>,
    header: ReplyHeader,
    path: String,
}

/// What the answer brings about, beside being passed on.
enum Then {
    /// Nothing.
    Pass,
    /// Registrations may have changed.
    Observe(Box<Request>),
    /// The session is over.
    Close,
    /// The answer shows `/zookeeper/config`.
    Config,
    /// The answer to a create that stands for a create2 lacks the Stat; then what the whole answer brings about.
    Stat(Box<CreateRequest>, Box<Then>),
}

struct Relay {
    front: Arc<Front>,
    session: i64,
    peer: String,
    address: SocketAddr,
    chroot: Chroot,
    /// Identities that the client has shown, for ACLs that name them as `auth`.
    auth: Vec<AuthId>,
    in_flight: VecDeque<InFlight>,
    /// Whether the server knows create2.
    has_create2: bool,
    creating: Option<Creating>,
    /// What the ensemble said after the answer that waits in `creating`.
    behind: VecDeque<Bytes>,
    sender: FrameSender,
    /// Until the connection has nothing more to say. Dropped before the socket.
    books: Option<Books>,
    outgoing: Outgoing,
    /// Frames for the client that are not in `outgoing` yet.
    batch: BytesMut,
    /// What is queued depends on this position.
    after: Position,
    me: Arc<Peer>,
    waiting: Waiting,
    /// When the frames that are handled now were read.
    now_ms: i64,
    taken_over: bool,
    /// Nothing more is asked: its turn to close has come, or the ensemble is lost.
    last: bool,
    /// The connection to the ensemble has ended.
    lost: bool,
}

impl Relay {
    async fn run(
        mut self,
        mut incoming: Incoming,
        mut receiver: FrameReceiver,
    ) -> Result<(), Ended> {
        let mut steps = self.front.gateway.steps();
        let mut close_at = self.check_mode();
        loop {
            let more = self.take_requests(&mut incoming)?;
            self.waiting.tell(self.in_flight.len());
            self.me.figures.wrote(self.batch.len());
            self.outgoing.push(self.batch.split().freeze(), self.after);
            let flush = self.outgoing.flush(&self.front.gateway)?;
            if self.last
                && self.in_flight.is_empty()
                && self.creating.is_none()
                && flush == Flush::Empty
            {
                self.books = None;
                self.outgoing.shut_down().await;
                return Ok(());
            }
            tokio::select! {
                read = incoming.read(), if !more && self.may_read() => read?,
                () = tokio::task::yield_now(), if more => {}
                frame = receiver.next_frame(), if !self.lost && self.outgoing.queued() < TO_CLIENT => {
                    self.now_ms = self.front.gateway.now_ms();
                    self.answered(frame)?;
                    for _ in 1..TURN {
                        if self.lost {
                            break;
                        }
                        let Some(frame) = receiver.next_frame().now_or_never() else { break };
                        self.answered(frame)?;
                    }
                }
                sent = self.sender.flush(), if !self.lost && self.sender.pending() > 0 => {
                    if let Err(error) = sent {
                        self.lose(&error)?;
                    }
                }
                sent = self.outgoing.writable(), if flush == Flush::Blocked => sent?,
                kept = self.front.gateway.durable(flush.position()), if matches!(flush, Flush::NotKept(_)) => {
                    kept.map_err(|_| Ended)?;
                }
                step = steps.changed(), if close_at.is_none() => {
                    step.map_err(|_| Ended)?;
                    close_at = self.check_mode();
                }
                () = tokio::time::sleep_until(close_at.unwrap_or_else(Instant::now)), if close_at.is_some() => {
                    if self.last {
                        return Err(Ended);
                    }
                    self.last = true;
                    close_at = Some(Instant::now() + LAST_ANSWERS);
                }
            }
        }
    }

    /// When the connection has to close, once the take-over has come.
    fn check_mode(&mut self) -> Option<Instant> {
        let mode = self
            .front
            .gateway
            .with(|core| core.mode(StoreKind::Zookeeper))
            .0;
        self.taken_over = mode != Mode::Relay;
        self.taken_over.then(|| Instant::now() + self.front.turn())
    }

    fn answered(&mut self, frame: Result<Bytes, BackendError>) -> Result<(), Ended> {
        match frame {
            Ok(frame) => self.hear(frame),
            Err(error) => self.lose(&error),
        }
    }

    /// The ensemble has closed: what it said before that still goes to the client, which then re-attaches by
    /// itself.
    fn lose(&mut self, error: &BackendError) -> Result<(), Ended> {
        tracing::debug!(peer = self.peer, %error, "a client's connection to the ensemble ended");
        self.lost = true;
        self.last = true;
        // No Stat comes any more.
        self.created(None)?;
        while let Some(frame) = self.behind.pop_front() {
            self.pass_back(frame)?;
            self.created(None)?;
        }
        self.in_flight.clear();
        Ok(())
    }

    fn may_read(&mut self) -> bool {
        !self
            .waiting
            .holds(self.in_flight.len(), self.now_ms, &self.peer)
            && !self.last
            && self.sender.pending() < TO_ENSEMBLE
    }

    fn take_requests(&mut self, incoming: &mut Incoming) -> Result<bool, Ended> {
        for handled in 0..TURN {
            if !self.may_read() {
                return Ok(false);
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
                self.now_ms = self.front.gateway.now_ms();
            }
            if handled == 0 && self.taken_over {
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
        self.me.figures.asked(frame.len());
        let (header, body) = RequestHeader::split(frame.clone()).map_err(|_| Ended)?;
        let Ok(request) = Request::decode(header.op, body) else {
            // The ensemble says what is wrong with it.
            self.in_flight.push_back(InFlight {
                xid: header.xid,
                op: header.op,
                at_ms: self.now_ms,
                then: Then::Pass,
            });
            self.sender.feed(&frame);
            return Ok(());
        };
        let (then, request) = self.then(request);
        if self.taken_over && matches!(then, Then::Observe(_)) {
            // Registrations are Causeway's from now on: the client asks again on its next connection.
            return Err(Ended);
        }
        if request.op() != OpCode::Ping as i32 {
            let (mut outward, mut then) = (header, then);
            if let Request::Create2(create) = &request
                && !self.has_create2
            {
                outward.op = create2::INSTEAD as i32;
                then = Then::Stat(Box::new(create.clone()), Box::new(then));
            }
            let as_it_is = self.chroot.is_none() && !matches!(then, Then::Config | Then::Stat(..));
            self.in_flight.push_back(InFlight {
                xid: header.xid,
                op: header.op,
                at_ms: self.now_ms,
                then,
            });
            if !as_it_is {
                let mut out = BytesMut::new();
                outward.write(&mut out);
                out.extend_from_slice(&self.chroot.request(request));
                self.sender.feed(&out);
                return Ok(());
            }
        }
        self.sender.feed(&frame);
        Ok(())
    }

    /// What the answer will bring about, and the request as the ensemble gets it.
    fn then(&mut self, mut request: Request) -> (Then, Request) {
        match &mut request {
            Request::Create(_)
            | Request::Create2(_)
            | Request::CreateContainer(_)
            | Request::CreateTtl(_)
            | Request::Delete(_)
            | Request::SetData(_)
            | Request::SetAcl(_)
            | Request::Multi(_) => {
                let layouts = &self.front.gateway.config.layouts;
                let owned = |path: &&str| layouts.is_owned(Protocol::Zookeeper, path.as_bytes());
                if translate::paths(&request).iter().any(owned) {
                    return (Then::Observe(Box::new(request.clone())), request);
                }
            }
            Request::CloseSession => return (Then::Close, request),
            Request::Exists(r)
            | Request::GetData(r)
            | Request::GetChildren(r)
            | Request::GetChildren2(r)
                if r.path == config_node::PATH =>
            {
                // The ensemble's own changes of it are none of the client's business.
                r.watch = false;
                return (Then::Config, request);
            }
            Request::Auth(auth) => {
                if let Ok(identity) = translate::identity(auth, self.address.ip(), &[]) {
                    self.auth.push(identity);
                }
            }
            _ => {}
        }
        (Then::Pass, request)
    }

    /// Everything in its order: what comes while a Stat is asked for waits behind it.
    fn hear(&mut self, frame: Bytes) -> Result<(), Ended> {
        if self.creating.is_none() {
            return self.pass_back(frame);
        }
        let (header, body) = ReplyHeader::split(frame.clone()).map_err(|_| Ended)?;
        if header.xid != OWN_XID {
            self.behind.push_back(frame);
            return Ok(());
        }
        self.created(Some((&header, body)))?;
        while self.creating.is_none()
            && let Some(frame) = self.behind.pop_front()
        {
            self.pass_back(frame)?;
        }
        Ok(())
    }

    /// Passes on the answer of a create that stands for a create2, with what exists said of the node.
    fn created(&mut self, exists: Option<(&ReplyHeader, Bytes)>) -> Result<(), Ended> {
        let Some(creating) = self.creating.take() else {
            return Ok(());
        };
        let body = create2::answer(
            creating.path,
            &creating.header,
            exists,
            &creating.request,
            self.session,
        )
        .map_err(|_| Ended)?;
        self.finish(creating.asked, &creating.header, body)
    }

    fn pass_back(&mut self, frame: Bytes) -> Result<(), Ended> {
        let frame_len = frame.len();
        let (header, body) = ReplyHeader::split(frame).map_err(|_| Ended)?;
        if header.xid == xid::NOTIFICATION {
            self.me.figures.told();
            let event = WatcherEvent::decode(body).map_err(|_| Ended)?;
            if let Some(event) = self.chroot.event(event) {
                self.push(&header, &event.encode());
            }
            return Ok(());
        }
        // Replies come in order, except that the ensemble lets auth and refusals overtake.
        let asked = match header.xid {
            xid::PING => None,
            _ => self
                .in_flight
                .iter()
                .position(|r| r.xid == header.xid)
                .and_then(|at| self.in_flight.remove(at)),
        };
        let request = figures::Asked {
            xid: header.xid,
            op: asked.as_ref().map_or(OpCode::Ping as i32, |a| a.op),
            at_ms: asked.as_ref().map_or(self.now_ms, |a| a.at_ms),
        };
        let board = &self.front.board;
        self.me.figures.sized(board, 4 + frame_len);
        self.me
            .figures
            .answered(board, &request, header.zxid, self.now_ms);
        let Some(asked) = asked else {
            self.push(&header, &body);
            return Ok(());
        };
        if header.err != 0 {
            self.push(&header, &body);
            return Ok(());
        }
        if let Then::Stat(request, then) = asked.then {
            let path = create2::path(body).map_err(|_| Ended)?;
            self.ask(OWN_XID, &create2::exists(&path));
            let asked = InFlight {
                then: *then,
                ..asked
            };
            self.creating = Some(Creating {
                asked,
                request,
                header,
                path,
            });
            return Ok(());
        }
        self.finish(asked, &header, body)
    }

    /// A request of the gateway's own, with paths as the ensemble has them.
    fn ask(&mut self, xid: i32, request: &Request) {
        let mut out = BytesMut::new();
        let op = request.op();
        RequestHeader { xid, op }.write(&mut out);
        request.write(&mut out);
        self.sender.feed(&out);
    }

    /// Passes a whole successful answer on.
    fn finish(&mut self, asked: InFlight, header: &ReplyHeader, body: Bytes) -> Result<(), Ended> {
        let op = OpCode::try_from(asked.op).map_err(|_| Ended)?;
        let body = self.chroot.reply(op, body).map_err(|_| Ended)?;
        let body = match asked.then {
            Then::Pass | Then::Stat(..) => body,
            Then::Observe(request) => {
                self.observe(&request, op, &body, header.zxid);
                body
            }
            Then::Close => {
                self.closed(header.zxid);
                body
            }
            Then::Config => {
                config_node::replace(&self.front.gateway.config, op, body).map_err(|_| Ended)?
            }
        };
        self.push(header, &body);
        Ok(())
    }

    fn push(&mut self, header: &ReplyHeader, body: &[u8]) {
        let mut frame = BytesMut::with_capacity(16 + body.len());
        header.write(&mut frame);
        frame.extend_from_slice(body);
        self.batch
            .put_u32(u32::try_from(frame.len()).unwrap_or(u32::MAX));
        self.batch.extend_from_slice(&frame);
    }

    /// The ensemble has acknowledged a write: the machine knows of it before the client does.
    fn observe(&mut self, request: &Request, op: OpCode, body: &Bytes, zxid: i64) {
        let gateway = &self.front.gateway;
        if self.taken_over || gateway.with(|core| core.mode(StoreKind::Zookeeper)).0 != Mode::Relay
        {
            // It was under way when the take-over came.
            let Ok(Some(write)) = translate::write(request, self.session, &self.auth, true) else {
                return;
            };
            let Ok(reply) = causeway_wire::zk::Reply::decode(op, body.clone()) else {
                return;
            };
            let layouts = &gateway.config.layouts;
            let owned = |path: &str| layouts.is_owned(Protocol::Zookeeper, path.as_bytes());
            if let Some(op) = translate::acknowledged(write.op, &reply, owned) {
                let (peer, session) = (self.peer.clone(), self.session);
                let done = gateway.apply(Command::TreeAcknowledged {
                    peer,
                    session,
                    op,
                    mark: zxid,
                });
                self.after = self.after.max(done.after);
            }
            return;
        }
        let seen = observe::Seen {
            session: self.session,
            auth: &self.auth,
            layouts: &gateway.config.layouts,
            now_ms: gateway.now_ms(),
        };
        let events = gateway
            .with(|core| seen.events(core, request, op, body.clone(), zxid))
            .0;
        self.tell(events);
    }

    /// The ensemble has closed the session, and with it all that it owned.
    fn closed(&mut self, zxid: i64) {
        let id = self.session;
        let gateway = &self.front.gateway;
        let gone = gateway.with(|core| match core.mode(StoreKind::Zookeeper) {
            Mode::Relay => core.tree().ephemerals(id).cloned().collect(),
            Mode::Embedded | Mode::TakenOver => Vec::new(),
        });
        let delete = |path: Arc<str>| LegacyEvent::Delete {
            key: Bytes::copy_from_slice(path.as_bytes()),
            mark: zxid,
        };
        self.tell(gone.0.into_iter().map(delete).collect());
        let done = self.front.gateway.apply(Command::CloseSession { id });
        self.after = self.after.max(done.after);
    }

    fn tell(&mut self, events: Vec<LegacyEvent>) {
        for event in events {
            let done = self.front.gateway.apply(Command::Legacy {
                store: StoreKind::Zookeeper,
                event,
            });
            self.after = self.after.max(done.after);
        }
    }
}
