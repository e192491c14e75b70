//! The council of one member: what the rest of the process sees of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use causeway_registry::StateMachine;
use openraft::{Config, Raft, SnapshotPolicy};
use tokio::sync::{Mutex, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use crate::applied::Applied;
use crate::batch::{self, Waiting, may_propose};
use crate::error::{CouncilError, Reason, StartError};
use crate::log::Log;
use crate::message::{Answer, Request, Response};
use crate::network::{CallError, Calls, Links, PeerNetwork};
use crate::store::Store;
use crate::ticket::{Ticket, Tickets};
use crate::types::{
    ClusterId, MemberId, MemberInfo, Operation, Peer, Proposal, Proposer, Reply, Types,
};

/// How long a proposer waits before it asks the next leader.
const AGAIN: Duration = Duration::from_millis(50);

/// How often a member looks whether the others know where it is.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(1);

/// Questions of other members that are worked on at a time; more are dropped, and asked again.
const QUESTIONS: usize = 4 * 1024;

/// How a member takes part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where other members reach this one, as the links take it.
    pub address: String,
    /// Interval of the leader's heartbeats; they leave at every 1.5 of it. A leader that is gone is missed
    /// after 6.25 to 7.5 of it, and noticed with the next tick: at most 3.6 s at the default of 400 ms.
    pub heartbeat: Duration,
    /// How long a proposal or a read may take before it fails.
    pub answer_within: Duration,
    /// How long a snapshot may take on its way into another member, per piece of 1 MB.
    pub snapshot_within: Duration,
    /// Entries after which the log is shortened to a snapshot.
    pub snapshot_every: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            address: String::new(),
            heartbeat: Duration::from_millis(400),
            answer_within: Duration::from_secs(5),
            snapshot_within: Duration::from_secs(30),
            snapshot_every: 20_000,
        }
    }
}

impl Settings {
    fn raft(&self) -> Result<Config, StartError> {
        let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        let heartbeat = ms(self.heartbeat);
        let config = Config {
            cluster_name: "council".into(),
            heartbeat_interval: heartbeat,
            election_timeout_min: heartbeat * 5 / 2,
            election_timeout_max: heartbeat * 15 / 4,
            install_snapshot_timeout: ms(self.snapshot_within),
            snapshot_max_chunk_size: 1 << 20,
            // Bytes bound it as well: `limited_get_log_entries`.
            max_payload_entries: 256,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(self.snapshot_every),
            // A member that is a little behind gets entries, not the whole state.
            replication_lag_threshold: self.snapshot_every.saturating_mul(2),
            max_in_snapshot_log_to_keep: self.snapshot_every / 4,
            ..Config::default()
        };
        config
            .validate()
            .map_err(|e| StartError::Settings(e.to_string()))
    }

    /// A leader that has heard from no majority for this long refuses what it would have to write.
    fn stale(&self) -> Duration {
        self.heartbeat * 15 / 4
    }
}

/// What a member knows of its council.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// This member.
    pub member: MemberId,
    /// Its cluster; `None`: not part of one yet.
    pub cluster: Option<ClusterId>,
    /// The leader, as far as known here.
    pub leader: Option<MemberId>,
    /// The leader's term.
    pub term: u64,
    /// Who decides.
    pub voters: Vec<MemberId>,
    /// Who only listens: members on their way in.
    pub learners: Vec<MemberId>,
    /// Position in the log up to which it was applied here.
    pub applied: u64,
    /// Whether writes have a chance now, as far as known here.
    pub has_majority: bool,
    /// The others have forgotten this member: it must stop serving.
    pub forgotten: bool,
    /// Why the council of this member has stopped, if it has.
    pub stopped: Option<String>,
}

/// A handle to this member's part of the council. Copies are cheap and mean the same.
pub struct Council<M: StateMachine> {
    pub(crate) inner: Arc<Inner<M>>,
}

pub(crate) struct Inner<M> {
    pub(crate) raft: Raft<Types>,
    pub(crate) applied: Applied<M>,
    pub(crate) calls: Arc<Calls>,
    pub(crate) store: Store,
    pub(crate) settings: Settings,
    pub(crate) me: Proposer,
    /// One change of the membership at a time.
    pub(crate) membership: Mutex<()>,
    pub(crate) forgotten: AtomicBool,
    pub(crate) questions: Arc<Semaphore>,
    queue: mpsc::Sender<Waiting>,
    tickets: Arc<Tickets>,
}

impl<M: StateMachine> Clone for Council<M> {
    fn clone(&self) -> Self {
        Council {
            inner: self.inner.clone(),
        }
    }
}

impl<M: StateMachine> std::fmt::Debug for Council<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Council")
            .field("me", &self.inner.me)
            .finish_non_exhaustive()
    }
}

impl<M: StateMachine> Council<M> {
    /// Starts this member's part on its file, with a machine in its first state. A member that is part
    /// of a cluster takes up its place; a fresh one waits for [`Council::init`] or [`Council::join`].
    /// Frames from links have to be handed to [`Council::deliver`]. Needs a tokio runtime.
    ///
    /// # Errors
    /// The file cannot be read, or the settings contradict each other.
    pub async fn start(
        store: Store,
        machine: M,
        links: Arc<dyn Links>,
        settings: Settings,
    ) -> Result<Self, StartError> {
        let config = settings.raft()?;
        let identity = store.identity();
        let me = Proposer {
            member: identity.member,
            birth: identity.birth,
            incarnation: identity.incarnation,
        };
        store.resign().await?;
        let applied = Applied::recover(store.clone(), machine).await?;
        let calls = Calls::new(links, store.clone());
        let known = applied.clone();
        let network = PeerNetwork {
            calls: calls.clone(),
            addresses: Arc::new(move |member| {
                known.read(|l| l.members().get(&member).map(|m| m.address.clone()))
            }),
        };
        let raft = Raft::new(
            me.member,
            Arc::new(config),
            network,
            Log::guarded(store.clone()),
            applied.clone(),
        )
        .await
        .map_err(|e| StartError::Raft(e.to_string()))?;
        let (queue, waiting) = mpsc::channel(batch::QUEUE);
        tokio::spawn(batch::run(
            raft.clone(),
            me.member,
            waiting,
            settings.answer_within,
            settings.stale(),
        ));
        let inner = Arc::new(Inner {
            raft,
            applied,
            calls,
            store,
            settings,
            me,
            membership: Mutex::new(()),
            forgotten: AtomicBool::new(false),
            questions: Arc::new(Semaphore::new(QUESTIONS)),
            queue,
            tickets: Arc::default(),
        });
        let weak = Arc::downgrade(&inner);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(ANNOUNCE_EVERY).await;
                let Some(inner) = weak.upgrade() else { return };
                inner.announce().await;
            }
        });
        Ok(Council { inner })
    }

    /// Ends this member's part; others go on without it. Calls that wait fail.
    pub async fn stop(&self) {
        // An error means that it had ended by itself.
        let _ = self.inner.raft.shutdown().await;
    }

    /// Begins a cluster of this member alone. Only ever called for the first member; `cluster` is drawn
    /// at random. A second call changes nothing, also after a restart in between.
    ///
    /// # Errors
    /// This member joined another's cluster, or the file cannot be written.
    pub async fn init(&self, cluster: ClusterId) -> Result<ClusterId, StartError> {
        let inner = &self.inner;
        let cluster = match inner.store.identity() {
            identity if identity.founder => identity.cluster.unwrap_or(cluster),
            identity => match identity.cluster {
                Some(other) => return Err(StartError::NotFounder(other)),
                None => cluster,
            },
        };
        inner.store.bind(cluster, true).await?;
        let failed = |e: String| StartError::Raft(e);
        let initialized = inner.raft.is_initialized().await;
        if !initialized.map_err(|e| failed(e.to_string()))? {
            let members = std::collections::BTreeMap::from([(inner.me.member, inner.peer())]);
            let begun = inner.raft.initialize(members).await;
            begun.map_err(|e| failed(e.to_string()))?;
        }
        Ok(cluster)
    }

    /// A ticket for one change, to be able to propose it again when its outcome is unknown.
    ///
    /// # Errors
    /// Too many tickets of this member are kept.
    pub fn ticket(&self) -> Result<Ticket, CouncilError> {
        self.inner.ticket()
    }

    /// Has the council decide a command, from any member. Waits until it is applied by the leader.
    ///
    /// # Errors
    /// [`CouncilError::NotApplied`] when surely nothing changed, [`CouncilError::Unknown`] when it may
    /// have, both within [`Settings::answer_within`] and one more attempt.
    pub async fn propose(&self, command: &M::Command) -> Result<M::Reply, CouncilError> {
        let ticket = self.ticket()?;
        self.propose_with(&ticket, command).await
    }

    /// The same with a ticket: the change is applied at most once, however often it is proposed while the
    /// ticket is kept. The command has to be the same each time.
    ///
    /// # Errors
    /// As [`Council::propose`].
    pub async fn propose_with(
        &self,
        ticket: &Ticket,
        command: &M::Command,
    ) -> Result<M::Reply, CouncilError> {
        let stopped = |e: postcard::Error| Reason::Stopped(format!("binary form: {e}"));
        let bytes = postcard::to_stdvec(command).map_err(stopped)?;
        let operation = Operation::Command(bytes.into());
        let reply = self.inner.propose(ticket, operation).await?;
        // It is applied; what cannot be read is the answer alone.
        postcard::from_bytes(&reply).map_err(|_| CouncilError::Unknown)
    }

    /// Waits until everything that was decided before this call is applied here, so that a
    /// [`Council::read`] after it sees it.
    ///
    /// # Errors
    /// There is no leader with a majority within [`Settings::answer_within`].
    pub async fn read_index(&self) -> Result<(), Reason> {
        self.inner.read_index().await
    }

    /// Looks at the machine as it is here now: never waits for another member, and may lag behind.
    pub fn read<T>(&self, read: impl FnOnce(&M) -> T) -> T {
        self.inner.applied.read(|ledger| read(ledger.machine()))
    }

    /// The members that announced themselves, by number.
    pub fn members(&self) -> std::collections::BTreeMap<MemberId, MemberInfo> {
        self.inner.applied.read(|ledger| ledger.members().clone())
    }

    /// What this member knows of the council.
    pub fn status(&self) -> Status {
        let inner = &self.inner;
        let metrics = inner.raft.metrics();
        let metrics = metrics.borrow();
        let membership = metrics.membership_config.membership();
        let leads = metrics.current_leader == Some(inner.me.member);
        let since = metrics.millis_since_quorum_ack.map(Duration::from_millis);
        Status {
            member: inner.me.member,
            cluster: inner.store.identity().cluster,
            leader: metrics.current_leader,
            term: metrics.current_term,
            voters: membership.voter_ids().collect(),
            learners: membership.learner_ids().collect(),
            applied: metrics.last_applied.map_or(0, |l| l.index),
            has_majority: metrics.current_leader.is_some()
                && !(leads && since.is_some_and(|s| s > inner.settings.stale())),
            forgotten: inner.forgotten.load(Ordering::Relaxed),
            stopped: metrics.running_state.as_ref().err().map(|e| e.to_string()),
        }
    }
}

impl<M: StateMachine> Inner<M> {
    pub(crate) fn peer(&self) -> Peer {
        Peer {
            address: self.settings.address.clone(),
            birth: self.me.birth,
        }
    }

    pub(crate) fn leader(&self) -> Option<MemberId> {
        self.raft.metrics().borrow().current_leader
    }

    /// Where a member is reached and which folder it stands on, as far as known.
    pub(crate) fn known(&self, member: MemberId) -> Option<Peer> {
        let metrics = self.raft.metrics();
        let peer = metrics
            .borrow()
            .membership_config
            .membership()
            .get_node(&member)
            .cloned();
        let said = self
            .applied
            .read(|ledger| ledger.members().get(&member).cloned());
        match (peer, said) {
            (Some(peer), Some(said)) if said.birth == peer.birth => Some(Peer {
                address: said.address,
                ..peer
            }),
            (peer, _) => peer,
        }
    }

    pub(crate) fn ticket(&self) -> Result<Ticket, CouncilError> {
        Ok(self.tickets.issue().ok_or(Reason::Overloaded)?)
    }

    /// Proposes until it is decided, surely refused, or out of time.
    pub(crate) async fn propose(
        &self,
        ticket: &Ticket,
        operation: Operation,
    ) -> Result<Bytes, CouncilError> {
        let deadline = Instant::now() + self.settings.answer_within;
        let mut uncertain = false;
        loop {
            let proposal = Proposal {
                proposer: self.me,
                sequence: ticket.sequence,
                settled: self.tickets.settled(),
                operation: operation.clone(),
            };
            let refused = match self.attempt(proposal, deadline).await {
                Answer::Done(Reply::Applied(bytes)) => return Ok(bytes),
                Answer::Done(Reply::Settled) => Reason::Settled,
                Answer::Done(Reply::Superseded) => Reason::Superseded,
                Answer::Done(Reply::Forgotten) => {
                    self.forgotten.store(true, Ordering::Relaxed);
                    Reason::Forgotten
                }
                Answer::Refused(reason) => reason,
                Answer::Unknown => {
                    uncertain = true;
                    Reason::NoLeader
                }
            };
            if !refused.is_retryable() || Instant::now() + AGAIN >= deadline {
                return Err(match uncertain {
                    true => CouncilError::Unknown,
                    false => refused.into(),
                });
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// One attempt, at the leader that is known now.
    async fn attempt(&self, proposal: Proposal, deadline: Instant) -> Answer<Reply> {
        let leader = match self.find_leader() {
            Ok(leader) => leader,
            Err(reason) => return Answer::Refused(reason),
        };
        let Some((leader, peer)) = leader else {
            return self.submit(proposal).await;
        };
        let within = deadline.saturating_duration_since(Instant::now());
        // An answer may be lost: leave time to ask again.
        let within = within.min(self.settings.answer_within / 2);
        let request = Request::Propose(proposal);
        match self.ask(leader, &peer, request, within).await {
            Ok(Response::Propose(answer)) => answer,
            Ok(_) | Err(CallError::NoAnswer | CallError::WrongAnswer) => Answer::Unknown,
            Err(CallError::NoLink) => Answer::Refused(Reason::NoLeader),
            Err(CallError::Forgotten) => Answer::Refused(Reason::Forgotten),
        }
    }

    /// The leader and how it is reached; `None`: this member.
    pub(crate) fn find_leader(&self) -> Result<Option<(MemberId, Peer)>, Reason> {
        if self.forgotten.load(Ordering::Relaxed) {
            return Err(Reason::Forgotten);
        }
        if self.store.identity().cluster.is_none() {
            return Err(Reason::NotAMember);
        }
        if let Err(e) = &self.raft.metrics().borrow().running_state {
            return Err(Reason::Stopped(e.to_string()));
        }
        let leader = self.leader().ok_or(Reason::NoLeader)?;
        if leader == self.me.member {
            return Ok(None);
        }
        Ok(Some((leader, self.known(leader).ok_or(Reason::NoLeader)?)))
    }

    pub(crate) async fn ask(
        &self,
        to: MemberId,
        peer: &Peer,
        request: Request,
        within: Duration,
    ) -> Result<Response, CallError> {
        let answer = self
            .calls
            .call(to, &peer.address, Some(peer.birth), request, within)
            .await;
        if matches!(answer, Err(CallError::Forgotten)) {
            self.forgotten.store(true, Ordering::Relaxed);
        }
        answer
    }

    /// Puts a proposal to the log, if this member leads.
    pub(crate) async fn submit(&self, proposal: Proposal) -> Answer<Reply> {
        if let Err(reason) = may_propose(&self.raft, self.me.member, self.settings.stale()) {
            return Answer::Refused(reason);
        }
        let (answer, answered) = oneshot::channel();
        if self.queue.try_send(Waiting { proposal, answer }).is_err() {
            return Answer::Refused(Reason::Overloaded);
        }
        match tokio::time::timeout(self.settings.answer_within, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Answer::Unknown,
        }
    }

    async fn read_index(&self) -> Result<(), Reason> {
        let deadline = Instant::now() + self.settings.answer_within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let reason = match self.read_index_once(left).await {
                Ok(()) => return Ok(()),
                Err(reason) => reason,
            };
            if !reason.is_retryable() || Instant::now() + AGAIN >= deadline {
                return Err(reason);
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn read_index_once(&self, within: Duration) -> Result<(), Reason> {
        let index = match self.find_leader()? {
            None => self.leader_read_index().await?,
            Some((leader, peer)) => {
                let asked = self.ask(
                    leader,
                    &peer,
                    Request::ReadIndex,
                    within.min(self.settings.answer_within / 2),
                );
                match asked.await {
                    Ok(Response::ReadIndex(Answer::Done(index))) => index,
                    Ok(Response::ReadIndex(Answer::Refused(reason))) => return Err(reason),
                    Err(CallError::Forgotten) => return Err(Reason::Forgotten),
                    Ok(_) | Err(_) => return Err(Reason::NoLeader),
                }
            }
        };
        let reached = self.raft.wait(Some(within));
        let reached = reached.applied_index_at_least(Some(index), "a read").await;
        reached.map(|_| ()).map_err(|_| Reason::NoLeader)
    }

    /// Up to where a read that begins now has to be applied: asks a majority whether this member leads still.
    pub(crate) async fn leader_read_index(&self) -> Result<u64, Reason> {
        use openraft::error::{CheckIsLeaderError, RaftError};
        match self.raft.get_read_log_id().await {
            Ok((read, _)) => Ok(read.map_or(0, |l| l.index)),
            Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(_))) => {
                Err(Reason::NoLeader)
            }
            Err(RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(_))) => {
                Err(Reason::NoMajority)
            }
            Err(RaftError::Fatal(e)) => Err(Reason::Stopped(e.to_string())),
        }
    }

    /// Tells the others where this member is in its present run, once it is part of the council.
    async fn announce(&self) {
        let info = MemberInfo {
            birth: self.me.birth,
            address: self.settings.address.clone(),
            incarnation: self.me.incarnation,
        };
        let member = self.me.member;
        let told = self
            .applied
            .read(|ledger| ledger.members().get(&member) == Some(&info));
        if told || self.known(member).is_none() {
            return;
        }
        if let Ok(ticket) = self.ticket() {
            let operation = Operation::Announce { member, info };
            if let Err(error) = self.propose(&ticket, operation).await {
                tracing::debug!(%error, "not announced to the council yet");
            }
        }
    }
}
