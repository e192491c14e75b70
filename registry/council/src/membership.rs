//! Who decides: members come one at a time, first listening, then voting, and are forgotten by an operator's word.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use causeway_registry::StateMachine;
use openraft::ChangeMembers;
use openraft::error::{ChangeMembershipError, ClientWriteError, RaftError};
use tokio::time::Instant;

use crate::council::{Council, Inner};
use crate::error::{CouncilError, Reason, StartError};
use crate::message::{Answer, Request, Response};
use crate::types::{MemberId, Operation, Peer};

/// How far a listening member may be behind when it gets its vote.
const NEAR: u64 = 1_000;

/// Between two attempts.
const AGAIN: Duration = Duration::from_millis(200);

/// Why a member did not become part of the council.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// This member's file, or its cluster.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Not in time; trying again is right.
    #[error("not part of the council in time: {0}")]
    InTime(Reason),
    /// The council refuses.
    #[error("the council refuses this member: {0}")]
    Refused(Reason),
}

impl<M: StateMachine> Council<M> {
    /// Becomes a voter of the cluster that a member at `address` belongs to; returns at once when this
    /// member is one already. Bound to that cluster for ever once its name was learnt.
    ///
    /// # Errors
    /// Refused, or not done within `within`.
    pub async fn join(
        &self,
        via: MemberId,
        address: &str,
        within: Duration,
    ) -> Result<(), JoinError> {
        let inner = &self.inner;
        let deadline = Instant::now() + within;
        loop {
            if self.status().voters.contains(&inner.me.member) {
                return Ok(());
            }
            let reason = match inner.join_once(via, address).await? {
                Answer::Done(()) => return Ok(()),
                Answer::Refused(reason) if !reason.is_retryable() => match reason {
                    // It may be on its way in itself.
                    Reason::NotAMember => reason,
                    reason => return Err(JoinError::Refused(reason)),
                },
                Answer::Refused(reason) => reason,
                Answer::Unknown => Reason::NoLeader,
            };
            if Instant::now() + AGAIN >= deadline {
                return Err(JoinError::InTime(reason));
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Takes a member out for good; its data folder never counts again. The operator's word that its
    /// process is stopped. Doing it twice is harmless.
    ///
    /// # Errors
    /// There is no leader with a majority, or it is the only voter.
    pub async fn forget(&self, member: MemberId) -> Result<(), CouncilError> {
        let inner = &self.inner;
        let deadline = Instant::now() + inner.settings.answer_within;
        loop {
            let answer = match inner.find_leader() {
                Ok(None) => inner.expel(member).await,
                Ok(Some((leader, peer))) => {
                    inner.hand_on(leader, &peer, Request::Forget(member)).await
                }
                Err(reason) => Answer::Refused(reason),
            };
            let error = match answer {
                Answer::Done(()) => return Ok(()),
                Answer::Refused(reason) if !reason.is_retryable() => return Err(reason.into()),
                Answer::Refused(reason) => reason.into(),
                Answer::Unknown => CouncilError::Unknown,
            };
            if Instant::now() + AGAIN >= deadline {
                return Err(error);
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}

impl<M: StateMachine> Inner<M> {
    async fn join_once(&self, via: MemberId, address: &str) -> Result<Answer<()>, StartError> {
        let within = self.settings.answer_within;
        let call = |request| self.calls.call(via, address, None, request, within);
        if self.store.identity().cluster.is_none() {
            match call(Request::WhichCluster(self.peer())).await {
                Ok(Response::WhichCluster(Some(cluster))) => {
                    self.store.bind(cluster, false).await?;
                }
                Ok(Response::WhichCluster(None)) => {
                    return Ok(Answer::Refused(Reason::NotAMember));
                }
                Ok(_) | Err(_) => return Ok(Answer::Refused(Reason::NoLeader)),
            }
        }
        let request = Request::Join {
            member: self.me.member,
            peer: self.peer(),
        };
        Ok(match call(request).await {
            Ok(Response::Done(answer)) => answer,
            Err(crate::network::CallError::Forgotten) => Answer::Refused(Reason::Forgotten),
            Ok(_) | Err(_) => Answer::Unknown,
        })
    }

    /// At the leader: a member comes in.
    pub(crate) async fn admit(&self, member: MemberId, peer: Peer) -> Answer<()> {
        let Ok(_one) = self.membership.try_lock() else {
            return Answer::Refused(Reason::MembershipBusy);
        };
        if let Some(known) = self.known(member)
            && known.birth != peer.birth
        {
            return Answer::Refused(Reason::OtherFolder(member));
        }
        if self.applied.read(|l| l.is_forgotten(member, peer.birth)) {
            return Answer::Refused(Reason::Forgotten);
        }
        if self.voters().contains(&member) {
            return Answer::Done(());
        }
        let learns = ChangeMembers::AddNodes(BTreeMap::from([(member, peer)]));
        if self.known(member).is_none()
            && let Err(answer) = self.change(learns, true).await
        {
            return answer;
        }
        if !self.wait_until_near(member).await {
            // It goes on catching up; the member asks again.
            return Answer::Refused(Reason::MembershipBusy);
        }
        match self
            .change(ChangeMembers::AddVoterIds(BTreeSet::from([member])), true)
            .await
        {
            Ok(()) => Answer::Done(()),
            Err(answer) => answer,
        }
    }

    /// At the leader: a member goes.
    pub(crate) async fn expel(&self, member: MemberId) -> Answer<()> {
        let Ok(_one) = self.membership.try_lock() else {
            return Answer::Refused(Reason::MembershipBusy);
        };
        let announced = self
            .applied
            .read(|l| l.members().get(&member).map(|m| m.birth));
        let part = self.known(member).map(|peer| peer.birth);
        if part.is_some() {
            let voters = self.voters();
            let change = match voters.contains(&member) {
                true if voters.len() == 1 => {
                    return Answer::Refused(Reason::LastMember(member));
                }
                true => ChangeMembers::RemoveVoters(BTreeSet::from([member])),
                false => ChangeMembers::RemoveNodes(BTreeSet::from([member])),
            };
            if let Err(answer) = self.change(change, false).await {
                return answer;
            }
        }
        // Last, so that a crash in between leaves something to find when it is asked for again.
        let Some(birth) = part.or(announced) else {
            return Answer::Done(());
        };
        let Ok(ticket) = self.ticket() else {
            return Answer::Refused(Reason::Overloaded);
        };
        let operation = Operation::Forget { member, birth };
        match self.propose(&ticket, operation).await {
            Ok(_) => Answer::Done(()),
            Err(CouncilError::NotApplied(reason)) => Answer::Refused(reason),
            Err(CouncilError::Unknown) => Answer::Unknown,
        }
    }

    fn voters(&self) -> BTreeSet<MemberId> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        metrics.membership_config.membership().voter_ids().collect()
    }

    async fn change(
        &self,
        change: ChangeMembers<MemberId, Peer>,
        retain: bool,
    ) -> Result<(), Answer<()>> {
        let within = self.settings.answer_within;
        let changed = self.raft.change_membership(change, retain);
        match tokio::time::timeout(within, changed).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(e)))) => {
                tracing::info!(error = %e, "the council's membership is not changed");
                Err(Answer::Refused(match e {
                    ChangeMembershipError::InProgress(_)
                    | ChangeMembershipError::EmptyMembership(_)
                    | ChangeMembershipError::LearnerNotFound(_) => Reason::MembershipBusy,
                }))
            }
            Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) | Err(_) => {
                Err(Answer::Unknown)
            }
            Ok(Err(RaftError::Fatal(e))) => Err(Answer::Refused(Reason::Stopped(e.to_string()))),
        }
    }

    /// Whether a listening member has nearly everything, within the time that a piece of a snapshot may take.
    async fn wait_until_near(&self, member: MemberId) -> bool {
        let wait = self.raft.wait(Some(self.settings.snapshot_within));
        let near = wait.metrics(
            |metrics| {
                let Some(replication) = &metrics.replication else {
                    return true;
                };
                let matched = replication.get(&member).copied().flatten();
                let last = metrics.last_log_index.unwrap_or(0);
                matched.is_some_and(|m| m.index + NEAR >= last)
            },
            "a member to catch up",
        );
        near.await
            .is_ok_and(|metrics| metrics.replication.is_some())
    }
}
