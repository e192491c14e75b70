//! After the take-over: the client's own session in the ensemble, for all that is not a registration.
//!
//! It is opened when it is first needed. While it is being opened, and while the ensemble is asked about a
//! registration, nothing more of the client is handled: its requests take effect in their order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use causeway_backend::{BackendError, ErrorKind};
use causeway_backend_zookeeper::upstream::{Answer, Notification, Upstream};
use causeway_wire::zk::record::RecordError;
use causeway_wire::zk::request::{AuthRequest, CreateRequest, ReadRequest, SetWatches2Request};
use causeway_wire::zk::{OpCode, Request, SlotId, Watches};
use futures::future::BoxFuture;
use tokio::sync::mpsc;

use super::chroot::Chroot;
use super::create2;
use super::socket::Ended;
use super::translate::Write;
use crate::gateway::Gateway;
use crate::legacy::sessions::Upstreams;

/// Events that may wait between the ensemble and the client.
pub(super) const EVENTS: usize = 65_536;

/// What is done with an answer of the ensemble.
#[derive(Debug)]
pub(super) enum Then {
    /// It is the client's, with owners and paths as the client knows them.
    Pass,
    /// It is one part of a directory's answer; the view has the other.
    Union,
    /// It lacks the reads of registrations.
    MultiRead,
    /// A registration: what the ensemble acknowledged is recorded here, what it refused is refused.
    Record(Write),
    /// The watches of the view are still to be armed.
    SetWatches(Box<SetWatches2Request>),
    /// The client's session ends here too.
    Close,
}

/// A request that the ensemble has been asked.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) slot: SlotId,
    /// As the client sent it.
    pub(super) request: Request,
    pub(super) then: Then,
}

/// An answer of the ensemble.
pub(super) struct Answered {
    pub(super) asked: Asked,
    pub(super) answer: Answer,
    /// The names below the path, where the request itself does not ask for them.
    pub(super) names: Option<Answer>,
}

/// What happened on the way to the ensemble.
pub(super) enum Incident {
    /// A watch fired there.
    Event(Notification),
    /// It answered.
    Answered(Box<Result<Answered, BackendError>>),
    /// The session there is open.
    Attached(Result<Arc<Upstream>, BackendError>),
    /// The connection to it is lost.
    Lost(BackendError),
}

/// In the order in which they were asked, which is that of the answers.
type Pending = VecDeque<BoxFuture<'static, Result<Answered, BackendError>>>;

/// The way of one connection to the ensemble.
pub(super) struct General {
    upstreams: Arc<Upstreams>,
    pub(super) chroot: Chroot,
    session: i64,
    upstream: Option<Arc<Upstream>>,
    notifications: mpsc::Receiver<Notification>,
    /// The next of them, while answers that came before it are handed on.
    event: Option<Notification>,
    /// Number of the last event that was handed on.
    pub(super) last_event: u64,
    pending: Pending,
    attaching: Option<BoxFuture<'static, Result<Arc<Upstream>, BackendError>>>,
    lost: Option<BoxFuture<'static, BackendError>>,
    /// Waits for the session there: the request as it goes out, and what it is about.
    held: Option<(Request, Asked)>,
    /// An answer is waited for before anything else of the client is handled.
    exclusive: bool,
    /// The client's close of its session, while the ensemble is asked for it.
    closing: Option<SlotId>,
    /// The client would miss something if the session there were attached anew.
    pub(super) bound: bool,
    credentials: Vec<AuthRequest>,
    /// Answers that wait for events which the ensemble sent before them.
    early: Vec<Answered>,
}

impl General {
    pub(super) fn new(
        upstreams: Arc<Upstreams>,
        session: i64,
        bound: bool,
        notifications: mpsc::Receiver<Notification>,
    ) -> Self {
        General {
            chroot: Chroot::new(upstreams.servers().chroot()),
            upstreams,
            session,
            upstream: None,
            notifications,
            last_event: 0,
            event: None,
            pending: VecDeque::new(),
            attaching: None,
            lost: None,
            held: None,
            exclusive: false,
            closing: None,
            bound,
            credentials: Vec::new(),
            early: Vec::new(),
        }
    }

    /// Whether the client's next request has to wait.
    pub(super) fn holds(&self) -> bool {
        self.held.is_some() || self.exclusive
    }

    /// Whether the session there is attached.
    pub(super) fn is_attached(&self) -> bool {
        self.upstream
            .as_ref()
            .is_some_and(|u| u.lost_already().is_none())
    }

    /// Asks the ensemble: `outward` is the request as it shall be there, but for the chroot.
    pub(super) fn ask(
        &mut self,
        gateway: &Arc<Gateway>,
        outward: Request,
        asked: Asked,
    ) -> Result<(), Ended> {
        match self.upstream.clone() {
            Some(upstream) if upstream.lost_already().is_none() => {
                self.submit(&upstream, outward, asked)
            }
            Some(_) if self.bound => return Err(Ended),
            Some(_) | None => {
                self.held = Some((outward, asked));
                self.attach(gateway);
            }
        }
        Ok(())
    }

    /// Opens the session there, or attaches it again.
    pub(super) fn attach(&mut self, gateway: &Arc<Gateway>) {
        if self.attaching.is_none() {
            let (upstreams, gateway, session) =
                (self.upstreams.clone(), gateway.clone(), self.session);
            self.attaching = Some(Box::pin(async move {
                upstreams.attach(&gateway, session).await
            }));
        }
    }

    /// The session there is open: identities first, then what waited.
    pub(super) fn attached(&mut self, upstream: Arc<Upstream>) -> Result<(), Ended> {
        self.attaching = None;
        let known = self
            .upstream
            .as_ref()
            .is_some_and(|u| Arc::ptr_eq(u, &upstream));
        if !known {
            if self.upstream.is_some() && self.bound {
                return Err(Ended);
            }
            for credentials in &self.credentials {
                drop(upstream.submit_record(OpCode::Auth, credentials));
            }
            self.lost = Some(Box::pin(upstream.lost()));
            self.last_event = 0;
        }
        self.upstream = Some(upstream.clone());
        if let Some((outward, asked)) = self.held.take() {
            self.submit(&upstream, outward, asked);
        }
        Ok(())
    }

    /// What waited for the session there, when it cannot be opened.
    pub(super) fn give_up(&mut self) -> Option<Asked> {
        self.attaching = None;
        self.upstream = None;
        self.lost = None;
        self.held.take().map(|(_, asked)| asked)
    }

    /// The connection is lost. Whether the client has to be told, by closing its own.
    pub(super) fn lose(&mut self) -> bool {
        self.upstream = None;
        self.lost = None;
        self.bound || self.held.is_some() || !self.pending.is_empty() || !self.early.is_empty()
    }

    /// The ensemble has answered the client's close, and events that it sent before are still to be handed on.
    pub(super) fn is_closed_there(&self) -> bool {
        self.early
            .iter()
            .any(|answered| matches!(answered.asked.then, Then::Close))
    }

    /// The client's close, once: whatever became of it in the ensemble, it is done here.
    pub(super) fn take_closing(&mut self) -> Option<SlotId> {
        self.closing.take()
    }

    /// Shows an identity there too.
    pub(super) fn authenticate(&mut self, credentials: &AuthRequest) {
        self.upstreams.authenticate(self.session, credentials);
        if let Some(upstream) = &self.upstream {
            drop(upstream.submit_record(OpCode::Auth, credentials));
        }
        if !self.credentials.contains(credentials) {
            self.credentials.push(credentials.clone());
        }
    }

    fn submit(&mut self, upstream: &Arc<Upstream>, outward: Request, asked: Asked) {
        self.exclusive = matches!(asked.then, Then::Record(_) | Then::Close);
        self.closing = matches!(asked.then, Then::Close).then_some(asked.slot);
        // Watches there would be lost with the connection.
        self.bound |= sets_watches(&outward);
        let names_of = match (&asked.then, &outward) {
            (Then::Union, Request::Exists(r) | Request::GetData(r)) => Some(r.path.clone()),
            _ => None,
        };
        // Names first: the answer whose watch may fire is the last that is waited for.
        let names = names_of.map(|path| {
            let request = Request::GetChildren(ReadRequest { path, watch: false });
            upstream.submit(OpCode::GetChildren as i32, &self.chroot.request(request))
        });
        let create2 = match &outward {
            Request::Create2(create) if !upstream.has_create2() => Some(create.clone()),
            _ => None,
        };
        let op = match create2 {
            Some(_) => create2::INSTEAD as i32,
            None => outward.op(),
        };
        let answer = upstream.submit(op, &self.chroot.request(outward));
        let (upstream, session) = (upstream.clone(), self.session);
        // Unconstrained: an answer that is here must be seen, or an event would overtake it.
        self.pending
            .push_back(Box::pin(tokio::task::unconstrained(async move {
                let names = match names {
                    Some(names) => Some(names.await?),
                    None => None,
                };
                let mut answer = answer.await?;
                if let Some(create) = create2.filter(|_| answer.header.err == 0) {
                    answer = with_stat(&upstream, answer, &create, session).await?;
                }
                Ok(Answered {
                    asked,
                    answer,
                    names,
                })
            })));
    }

    /// The answer may be handed on; one that comes after events that are still under way waits.
    pub(super) fn in_order(&mut self, answered: Answered) -> Option<Answered> {
        if matches!(answered.asked.then, Then::Record(_) | Then::Close) {
            self.exclusive = false;
        }
        if answered.answer.events_before > self.last_event {
            self.early.push(answered);
            return None;
        }
        Some(answered)
    }

    /// Answers that had waited for events handed on by now.
    pub(super) fn ready(&mut self) -> Vec<Answered> {
        let last = self.last_event;
        let (ready, early) = std::mem::take(&mut self.early)
            .into_iter()
            .partition(|a| a.answer.events_before <= last);
        self.early = early;
        ready
    }

    /// What happens next on the way to the ensemble. Nothing is lost when the future is dropped.
    pub(super) async fn next(&mut self) -> Incident {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Answers come before events: one that the ensemble sent before an event is complete when the event is
    /// here, and a client drops an event whose watch no reply has set yet. (Those it sent after wait in
    /// `early`.)
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Incident> {
        if self.event.is_none()
            && let Poll::Ready(event) = self.notifications.poll_recv(cx)
        {
            self.event = event;
        }
        if let Some(front) = self.pending.front_mut()
            && let Poll::Ready(answered) = front.as_mut().poll(cx)
        {
            self.pending.pop_front();
            return Poll::Ready(Incident::Answered(Box::new(answered)));
        }
        if let Some(event) = self.event.take() {
            return Poll::Ready(Incident::Event(event));
        }
        // What has ended is not asked again.
        if let Some(attaching) = &mut self.attaching
            && let Poll::Ready(attached) = attaching.as_mut().poll(cx)
        {
            self.attaching = None;
            return Poll::Ready(Incident::Attached(attached));
        }
        if let Some(lost) = &mut self.lost
            && let Poll::Ready(error) = lost.as_mut().poll(cx)
        {
            self.lost = None;
            return Poll::Ready(Incident::Lost(error));
        }
        Poll::Pending
    }
}

/// The answer of a create as that of the create2 which it stands for.
async fn with_stat(
    upstream: &Upstream,
    created: Answer,
    request: &CreateRequest,
    owner: i64,
) -> Result<Answer, BackendError> {
    let wrong = |error: RecordError| {
        let message = format!("ZooKeeper at {}: {error}", upstream.server());
        BackendError::unknown(ErrorKind::Protocol, message)
    };
    let path = create2::path(created.body).map_err(wrong)?;
    let exists = create2::exists(&path);
    let mut body = BytesMut::new();
    exists.write(&mut body);
    // The session may have been closed behind the create: it is there all the same.
    let stat = upstream.submit(exists.op(), &body).await.ok();
    let events_before = stat
        .as_ref()
        .map_or(created.events_before, |stat| stat.events_before);
    let exists = stat.as_ref().map(|stat| (&stat.header, stat.body.clone()));
    Ok(Answer {
        header: created.header,
        body: create2::answer(path, &created.header, exists, request, owner).map_err(wrong)?,
        events_before,
    })
}

/// Asks for the names below a path.
pub(super) fn is_list(request: &Request) -> bool {
    matches!(request, Request::GetChildren(_) | Request::GetChildren2(_))
}

fn sets_watches(request: &Request) -> bool {
    Watches::of(request) != Watches::None
}
