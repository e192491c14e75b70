//! Causeway's own connection to an ensemble for one session.
//!
//! The client crate can neither adopt a session by id and password nor relay. This connection
//! does both: [`Upstream::connect`] shakes hands as asked, [`Upstream::submit`] pipelines requests
//! under xids of its own, and [`RawUpstream`] passes frames as they are. Reconnecting is the
//! caller's: after a loss the caller decides what the requests in flight have become.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use causeway_backend::{BackendError, Certainty, ErrorKind};
use causeway_wire::zk::record::Record;
use causeway_wire::zk::{ConnectRequest, OpCode, ReplyHeader, WatcherEvent, xid};
use parking_lot::Mutex;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::raw::lost;
pub use crate::raw::{FrameReceiver, FrameSender, Handshake, RawUpstream, UpstreamOptions};
use crate::servers::Servers;

/// Who sends pings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pings {
    /// The connection does whenever it was silent for a third of the session's timeout.
    Automatic,
    /// The caller does, so that the session lives as long as its client does.
    ByCaller,
}

/// A server's answer to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// As the server sent it, but for the xid, which is this connection's own.
    pub header: ReplyHeader,
    /// What follows the header.
    pub body: Bytes,
    /// How many notifications the server had sent before it: the caller delivers those first.
    pub events_before: u64,
}

/// A watch that fired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    /// Counts this connection's notifications from 1.
    pub number: u64,
    /// The change's zxid, from ZooKeeper 3.9 on; -1 before.
    pub zxid: i64,
    /// What fired.
    pub event: WatcherEvent,
}

/// Notifications in the order in which they came; ends with the connection.
///
/// They do not wait for their reader, since a reader that waits for an answer would then wait for
/// ever: a connection whose notifications are left lying (beyond [`NOTIFICATIONS`]) is given up.
/// Dropping the receiver is no fault: notifications are then only counted.
pub type Notifications = mpsc::Receiver<Notification>;

/// How many notifications may wait for their reader.
pub const NOTIFICATIONS: usize = 65_536;

/// A connection for one session. Dropping it closes the connection and leaves the session alone.
#[derive(Debug)]
pub struct Upstream {
    shared: Arc<Shared>,
    tasks: [JoinHandle<()>; 2],
}

impl Upstream {
    /// Connects and shakes hands as [`RawUpstream::connect`] does.
    ///
    /// # Errors
    /// As [`RawUpstream::connect`].
    pub async fn connect(
        servers: &Servers,
        request: &ConnectRequest,
        options: &UpstreamOptions,
        pings: Pings,
    ) -> Result<Handshake<(Self, Notifications)>, BackendError> {
        let handshake = RawUpstream::connect(servers, request, options).await?;
        Ok(handshake.map(|raw, response| {
            let timeout = u64::try_from(response.timeout_ms).unwrap_or(0);
            Self::over(
                raw,
                Duration::from_millis(timeout),
                options.max_in_flight,
                pings,
            )
        }))
    }

    /// Takes over a connection after its handshake, when no request is in flight on it.
    ///
    /// `session_timeout` is what the server answered; from it follow pings and how long a silent
    /// server is waited for.
    pub fn over(
        raw: RawUpstream,
        session_timeout: Duration,
        max_in_flight: usize,
        pings: Pings,
    ) -> (Self, Notifications) {
        let has_create2 = raw.has_create2();
        let (sender, receiver) = raw.split();
        let (events, notifications) = mpsc::channel(NOTIFICATIONS);
        let shared = Arc::new(Shared {
            server: receiver.server().to_owned(),
            has_create2,
            session_timeout,
            max_in_flight,
            state: Mutex::default(),
            work: Notify::new(),
            lost: watch::channel(None).0,
            events: AtomicU64::new(0),
        });
        let tasks = [
            tokio::spawn(write(shared.clone(), sender, pings)),
            tokio::spawn(read(shared.clone(), receiver, events)),
        ];
        (Self { shared, tasks }, notifications)
    }

    /// The server at the other end, `host:port`.
    pub fn server(&self) -> &str {
        &self.shared.server
    }

    /// Whether the server knows create2 (from ZooKeeper 3.5 on).
    pub fn has_create2(&self) -> bool {
        self.shared.has_create2
    }

    /// Sends a request. Requests go out in the order of calls, before their futures are polled,
    /// and any number may be in flight.
    ///
    /// A refusal by the server is an answer with an error code. The future fails when there is no
    /// answer: [`Certainty::Unknown`] when the request may have reached the server, else
    /// [`Certainty::NotApplied`].
    pub fn submit(&self, op: i32, body: &[u8]) -> Pending {
        match self.shared.ask(op, body) {
            Ok(asked) => Pending(Ok(asked)),
            Err(error) => Pending(Err(Some(error))),
        }
    }

    /// Sends a record as a request.
    pub fn submit_record<R: Record>(&self, op: OpCode, record: &R) -> Pending {
        let mut body = BytesMut::new();
        record.write(&mut body);
        self.submit(op as i32, &body)
    }

    /// Sends a ping, which extends the session.
    pub fn ping(&self) -> Pending {
        self.submit(OpCode::Ping as i32, &[])
    }

    /// Waits until the connection is lost; gives the reason, to any number of callers and at any
    /// time after it.
    pub fn lost(&self) -> impl Future<Output = BackendError> + Send + use<> {
        let mut lost = self.shared.lost.subscribe();
        async move {
            match lost.wait_for(Option::is_some).await {
                Ok(reason) => reason.clone().unwrap_or_else(gone),
                Err(_) => gone(),
            }
        }
    }

    /// The reason if the connection is lost already.
    pub fn lost_already(&self) -> Option<BackendError> {
        self.shared.lost.borrow().clone()
    }

    /// Ends the session and with it its ephemeral nodes, waits for the server's yes, and closes.
    ///
    /// # Errors
    /// [`Certainty::Unknown`] when the connection was lost first: the session then ends now or by
    /// its timeout.
    pub async fn close_session(self) -> Result<(), BackendError> {
        let answer = self.submit(OpCode::CloseSession as i32, &[]).await?;
        match answer.header.err {
            0 => Ok(()),
            code => {
                let server = &self.shared.server;
                let message = format!("ZooKeeper at {server}: closing failed with code {code}");
                Err(BackendError::unknown(ErrorKind::Protocol, message))
            }
        }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        self.shared.fail(gone());
    }
}

/// The answer to a request that is on its way; see [`Upstream::submit`].
#[derive(Debug)]
#[must_use = "the request is sent, but only the answer tells what became of it"]
pub struct Pending(Result<Asked, Option<BackendError>>);

impl Future for Pending {
    type Output = Result<Answer, BackendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Ok(asked) => Pin::new(asked)
                .poll(context)
                .map(|answer| answer.unwrap_or_else(|_| Err(gone()))),
            Err(refused) => Poll::Ready(Err(refused.take().unwrap_or_else(gone))),
        }
    }
}

#[derive(Debug)]
struct Shared {
    server: String,
    has_create2: bool,
    session_timeout: Duration,
    max_in_flight: usize,
    state: Mutex<State>,
    /// Rings when there is something to write.
    work: Notify,
    /// The reason once the connection is lost.
    lost: watch::Sender<Option<BackendError>>,
    /// Notifications received so far.
    events: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Frames that wait to be written.
    output: BytesMut,
    /// Requests written or waiting in `output`, in their order.
    in_flight: VecDeque<Waiting>,
    last_xid: i32,
    closed: bool,
    /// When the server was last heard, or began to be waited for.
    heard: Option<Instant>,
}

#[derive(Debug)]
struct Waiting {
    xid: i32,
    answer: oneshot::Sender<Result<Answer, BackendError>>,
}

type Asked = oneshot::Receiver<Result<Answer, BackendError>>;

impl Shared {
    fn ask(&self, op: i32, body: &[u8]) -> Result<Asked, BackendError> {
        let (answer, asked) = oneshot::channel();
        let mut state = self.state.lock();
        if state.closed {
            let reason = self.lost.borrow().clone().unwrap_or_else(gone);
            return Err(reason.with_certainty(Certainty::NotApplied));
        }
        if state.in_flight.len() >= self.max_in_flight {
            let message = format!(
                "ZooKeeper at {}: {} requests are in flight already; wait for some",
                self.server, self.max_in_flight
            );
            return Err(BackendError::not_applied(ErrorKind::Unavailable, message));
        }
        let xid = match OpCode::try_from(op) {
            // The server answers a ping with this xid whatever was sent.
            Ok(OpCode::Ping) => xid::PING,
            _ => {
                // Positive, so that it never looks like one of the special ones.
                state.last_xid = state.last_xid.checked_add(1).unwrap_or(1);
                state.last_xid
            }
        };
        let length = i32::try_from(8 + body.len()).map_err(|_| {
            BackendError::not_applied(ErrorKind::TooLarge, "a request of more than 2 GB")
        })?;
        state.output.put_i32(length);
        state.output.put_i32(xid);
        state.output.put_i32(op);
        state.output.put_slice(body);
        if state.in_flight.is_empty() {
            state.heard = Some(Instant::now());
        }
        state.in_flight.push_back(Waiting { xid, answer });
        drop(state);
        self.work.notify_one();
        Ok(asked)
    }

    /// Takes the request that a reply answers. Replies come in order, except that pings overtake
    /// and that a refused operation or auth may (ZooKeeper: `FinalRequestProcessor` is not on
    /// their way).
    fn answered(&self, xid: i32) -> Option<Waiting> {
        let mut state = self.state.lock();
        state.heard = Some(Instant::now());
        let at = state
            .in_flight
            .iter()
            .position(|waiting| waiting.xid == xid)?;
        state.in_flight.remove(at)
    }

    fn heard(&self) {
        self.state.lock().heard = Some(Instant::now());
    }

    /// The connection is lost; only the first reason counts.
    fn fail(&self, reason: BackendError) {
        let in_flight = {
            let mut state = self.state.lock();
            if state.closed {
                return;
            }
            state.closed = true;
            std::mem::take(&mut state.in_flight)
        };
        self.lost.send_replace(Some(reason.clone()));
        let reason = reason.with_certainty(Certainty::Unknown);
        for waiting in in_flight {
            let _ = waiting.answer.send(Err(reason.clone()));
        }
    }

    /// When the server must have been heard by, if anything is asked.
    fn patience(&self) -> Option<Instant> {
        let state = self.state.lock();
        if state.in_flight.is_empty() {
            return None;
        }
        // ZooKeeper's own clients give a silent server two thirds of the session's timeout: the
        // last third is for finding another.
        state
            .heard
            .map(|heard| heard + self.session_timeout * 2 / 3)
    }
}

async fn write(shared: Arc<Shared>, mut sender: FrameSender, pings: Pings) {
    let far = Duration::from_secs(3600);
    let silence = match pings {
        Pings::Automatic => shared.session_timeout / 3,
        Pings::ByCaller => far,
    };
    let mut ping_at = Instant::now() + silence;
    loop {
        let output = std::mem::take(&mut shared.state.lock().output);
        if !output.is_empty() {
            sender.feed_framed(output);
            if let Err(error) = sender.flush().await {
                return shared.fail(error);
            }
            ping_at = Instant::now() + silence;
            continue;
        }
        let patience = shared.patience();
        let give_up = patience.unwrap_or_else(|| Instant::now() + far);
        tokio::select! {
            () = shared.work.notified() => {}
            () = sleep_until(ping_at), if pings == Pings::Automatic => {
                // Its answer only shows that the server lives.
                drop(shared.ask(OpCode::Ping as i32, &[]));
            }
            () = sleep_until(give_up) => {
                if shared.patience().is_some_and(|moment| moment <= Instant::now()) {
                    let wait = shared.session_timeout * 2 / 3;
                    let why = format!("nothing was heard for {wait:?}");
                    return shared.fail(lost(&shared.server, &why));
                }
            }
        }
    }
}

async fn read(
    shared: Arc<Shared>,
    mut receiver: FrameReceiver,
    events: mpsc::Sender<Notification>,
) {
    loop {
        let frame = match receiver.next_frame().await {
            Ok(frame) => frame,
            Err(error) => return shared.fail(error),
        };
        if let Err(why) = receive(&shared, frame, &events) {
            let message = format!("ZooKeeper at {}: {why}", shared.server);
            return shared.fail(BackendError::unknown(ErrorKind::Protocol, message));
        }
    }
}

fn receive(
    shared: &Shared,
    frame: Bytes,
    events: &mpsc::Sender<Notification>,
) -> Result<(), String> {
    let (header, body) = ReplyHeader::split(frame).map_err(|error| error.to_string())?;
    if header.xid == xid::NOTIFICATION {
        shared.heard();
        let event = WatcherEvent::decode(body).map_err(|error| error.to_string())?;
        let number = shared.events.fetch_add(1, Ordering::Relaxed) + 1;
        let notification = Notification {
            number,
            zxid: header.zxid,
            event,
        };
        if let Err(TrySendError::Full(_)) = events.try_send(notification) {
            return Err(format!("{NOTIFICATIONS} notifications wait unread"));
        }
        return Ok(());
    }
    let Some(waiting) = shared.answered(header.xid) else {
        return Err(format!(
            "a reply to xid {}, which was not asked",
            header.xid
        ));
    };
    let events_before = shared.events.load(Ordering::Relaxed);
    let _ = waiting.answer.send(Ok(Answer {
        header,
        body,
        events_before,
    }));
    Ok(())
}

fn gone() -> BackendError {
    let message = "the connection to ZooKeeper was closed by this gateway";
    BackendError::unknown(ErrorKind::Shutdown, message)
}
