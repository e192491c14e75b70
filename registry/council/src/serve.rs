//! What a member answers to the others.

use causeway_registry::StateMachine;
use openraft::error::RaftError;

use bytes::Bytes;

use crate::council::{Council, Inner};
use crate::error::Reason;
use crate::message::{Answer, Body, Frame, Request, Response};
use crate::types::{MemberId, Peer};

impl<M: StateMachine> Council<M> {
    /// Takes a frame that a link brought from a member. Returns at once; frames that are not for this
    /// member, not of its cluster or not understood are dropped.
    pub fn deliver(&self, from: MemberId, frame: &Bytes) {
        let Some(frame) = Frame::decode(frame) else {
            tracing::debug!(
                from,
                "a frame of the council that cannot be read is dropped"
            );
            return;
        };
        match frame.body {
            Body::Response(response) => self.inner.calls.answered(from, frame.call, response),
            Body::Request(request) => {
                let identity = self.inner.store.identity();
                if frame.to_birth.is_some_and(|birth| birth != identity.birth) {
                    // Meant for a folder that is lost: its promises are not known here.
                    return;
                }
                // Asked again by those who need it.
                let Ok(permit) = self.inner.questions.clone().try_acquire_owned() else {
                    return;
                };
                let inner = self.inner.clone();
                let (cluster, birth, call) = (frame.cluster, frame.from_birth, frame.call);
                tokio::spawn(async move {
                    let _permit = permit;
                    let address = match &request {
                        Request::WhichCluster(peer) | Request::Join { peer, .. } => {
                            Some(peer.address.clone())
                        }
                        _ => inner.known(from).map(|peer| peer.address),
                    };
                    let response = inner.answer(from, birth, cluster, request).await;
                    if let Some(response) = response {
                        // A leader may be unknown here yet; the link knows the way back.
                        let address = address.unwrap_or_default();
                        inner.calls.respond(from, &address, call, response);
                    }
                });
            }
        }
    }
}

impl<M: StateMachine> Inner<M> {
    /// `None`: no answer is due.
    async fn answer(
        &self,
        from: MemberId,
        birth: u64,
        cluster: Option<u64>,
        request: Request,
    ) -> Option<Response> {
        let ours = self.store.identity().cluster;
        if let Request::WhichCluster(_) = request {
            return Some(Response::WhichCluster(ours));
        }
        let ours = ours?;
        if cluster != Some(ours) {
            return matches!(request, Request::Join { .. })
                .then_some(Response::Done(Answer::Refused(Reason::OtherCluster(ours))));
        }
        match self.known(from) {
            // The same number on an empty folder: it does not know what it promised.
            Some(peer) if peer.birth != birth && !matches!(request, Request::Join { .. }) => {
                return None;
            }
            Some(_) => {}
            None if self.applied.read(|l| l.is_forgotten(from, birth)) => {
                return Some(Response::Forgotten);
            }
            None => {}
        }
        Some(match request {
            Request::WhichCluster(_) => Response::WhichCluster(Some(ours)),
            // A member that has stopped says nothing, as one that is gone.
            Request::Append(rpc) => Response::Append(self.raft.append_entries(rpc).await.ok()?),
            Request::Vote(rpc) => Response::Vote(self.raft.vote(rpc).await.ok()?),
            Request::Snapshot(rpc) => match self.raft.install_snapshot(rpc).await {
                Ok(answer) => Response::Snapshot(Ok(answer)),
                Err(RaftError::APIError(e)) => Response::Snapshot(Err(e)),
                Err(RaftError::Fatal(_)) => return None,
            },
            Request::Propose(proposal) => {
                if proposal.proposer.member != from || proposal.proposer.birth != birth {
                    return None;
                }
                Response::Propose(for_others(self.submit(proposal).await))
            }
            Request::ReadIndex => {
                let answer = match self.leader_read_index().await {
                    Ok(index) => Answer::Done(index),
                    Err(reason) => Answer::Refused(reason),
                };
                Response::ReadIndex(for_others(answer))
            }
            Request::Join { member, peer } => {
                Response::Done(for_others(self.forward_or(member, Some(peer), from).await))
            }
            Request::Forget(member) => {
                Response::Done(for_others(self.forward_or(member, None, from).await))
            }
        })
    }

    /// Changes the membership here, or hands the request on to the leader, once.
    async fn forward_or(
        &self,
        member: MemberId,
        joins: Option<Peer>,
        from: MemberId,
    ) -> Answer<()> {
        let leader = match self.find_leader() {
            Ok(leader) => leader,
            Err(reason) => return Answer::Refused(reason),
        };
        match (leader, joins) {
            (None, Some(peer)) => self.admit(member, peer).await,
            (None, None) => self.expel(member).await,
            // One that handed it on here was wrong about the leader; going round in circles helps nobody.
            (Some((leader, _)), _) if leader == from => Answer::Refused(Reason::NoLeader),
            (Some((leader, peer)), Some(joins)) => {
                let request = Request::Join {
                    member,
                    peer: joins,
                };
                self.hand_on(leader, &peer, request).await
            }
            (Some((leader, peer)), None) => {
                self.hand_on(leader, &peer, Request::Forget(member)).await
            }
        }
    }

    pub(crate) async fn hand_on(&self, to: MemberId, peer: &Peer, request: Request) -> Answer<()> {
        let within = self.settings.answer_within * 2;
        match self.ask(to, peer, request, within).await {
            Ok(Response::Done(answer)) => answer,
            Ok(_) | Err(crate::network::CallError::NoAnswer) => Answer::Unknown,
            Err(crate::network::CallError::Forgotten) => Answer::Refused(Reason::Forgotten),
            Err(_) => Answer::Refused(Reason::NoLeader),
        }
    }
}

/// That this member has stopped is for those who ask it directly; to other members it is a leader less.
fn for_others<T>(answer: Answer<T>) -> Answer<T> {
    match answer {
        Answer::Refused(Reason::Stopped(_)) => Answer::Refused(Reason::NoLeader),
        answer => answer,
    }
}
