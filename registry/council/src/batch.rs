//! Proposals that wait together become one entry of the log: one write to disk and one message carry
//! them all. (openraft 0.9 waits for the disk at each entry, so this is the council's group commit.)

use std::time::Duration;

use openraft::Raft;
use tokio::sync::{mpsc, oneshot};

use crate::error::Reason;
use crate::message::Answer;
use crate::types::{Batch, MemberId, Operation, Proposal, Reply, Types};

/// Proposals in one entry at most.
const PROPOSALS: usize = 512;

/// Bytes of commands after which an entry takes no more.
const BYTES: usize = 256 << 10;

/// Proposals that wait for their entry at most.
pub(crate) const QUEUE: usize = 8 * 1024;

/// A proposal that waits at the leader.
pub(crate) struct Waiting {
    pub(crate) proposal: Proposal,
    pub(crate) answer: oneshot::Sender<Answer<Reply>>,
}

/// Runs until the last sender is gone.
pub(crate) async fn run(
    raft: Raft<Types>,
    member: MemberId,
    mut queue: mpsc::Receiver<Waiting>,
    within: Duration,
    stale: Duration,
) {
    while let Some(first) = queue.recv().await {
        let mut bytes = size(&first.proposal);
        let mut waiting = vec![first];
        while waiting.len() < PROPOSALS && bytes < BYTES {
            let Ok(next) = queue.try_recv() else { break };
            bytes += size(&next.proposal);
            waiting.push(next);
        }
        // Looked at again for those that waited behind an entry that did not come through.
        if let Err(reason) = may_propose(&raft, member, stale) {
            answer_all(waiting, || Answer::Refused(reason.clone()));
            continue;
        }
        let batch = Batch(waiting.iter().map(|w| w.proposal.clone()).collect());
        let written = match raft.client_write_ff(batch).await {
            Ok(written) => written,
            Err(e) => {
                answer_all(waiting, || Answer::Refused(Reason::Stopped(e.to_string())));
                continue;
            }
        };
        match tokio::time::timeout(within, written).await {
            Ok(Ok(Ok(done))) => {
                for (waiting, reply) in waiting.into_iter().zip(done.data.0) {
                    // The proposer may have stopped waiting.
                    let _ = waiting.answer.send(Answer::Done(reply));
                }
            }
            // A leader that lost its office answers so too for entries that its log held already and
            // that the next leader may keep.
            Ok(Ok(Err(_))) | Ok(Err(_)) | Err(_) => answer_all(waiting, || Answer::Unknown),
        }
    }
}

fn answer_all(waiting: Vec<Waiting>, answer: impl Fn() -> Answer<Reply>) {
    for waiting in waiting {
        let _ = waiting.answer.send(answer());
    }
}

fn size(proposal: &Proposal) -> usize {
    match &proposal.operation {
        Operation::Command(bytes) => bytes.len(),
        Operation::Announce { .. } | Operation::Forget { .. } => 0,
    }
}

/// Whether this member leads and heard from a majority lately. Asked before anything is written, so that
/// the proposer learns that nothing was.
pub(crate) fn may_propose(
    raft: &Raft<Types>,
    member: MemberId,
    stale: Duration,
) -> Result<(), Reason> {
    let metrics = raft.metrics();
    let metrics = metrics.borrow();
    if let Err(e) = &metrics.running_state {
        return Err(Reason::Stopped(e.to_string()));
    }
    if metrics.current_leader != Some(member) {
        return Err(Reason::NoLeader);
    }
    // `None`: just elected, so a majority answered just now.
    let since = metrics.millis_since_quorum_ack.map(Duration::from_millis);
    if since.is_some_and(|since| since > stale) {
        return Err(Reason::NoMajority);
    }
    Ok(())
}
