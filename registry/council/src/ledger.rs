//! The machine around the machine: applies each proposal once, and keeps the list of members. Pure: no
//! clock, no socket, no randomness.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use bytes::Bytes;
use causeway_registry::StateMachine;
use serde::{Deserialize, Serialize};

use crate::types::{MemberId, MemberInfo, Operation, Proposal, Proposer, Reply};

/// Why an entry cannot be applied. Going on without it would make this member differ from the others, so it stops.
#[derive(Debug, thiserror::Error)]
#[error(
    "entry of the council's log at position {position} cannot be read: {cause} (a newer release wrote it: bring this member to that release)"
)]
pub struct Unreadable {
    /// Which command of the machine it would have been.
    pub position: u64,
    /// What the decoder said.
    pub cause: String,
}

/// The replicated state: the machine, who is a member, and what was answered to whom.
#[derive(Debug)]
pub struct Ledger<M> {
    machine: M,
    books: Books,
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Books {
    /// Commands that the machine has applied.
    position: u64,
    members: BTreeMap<MemberId, MemberInfo>,
    /// Data folders that never count again.
    forgotten: BTreeSet<(MemberId, u64)>,
    proposers: BTreeMap<MemberId, Answered>,
}

/// What one run of a member was answered and may ask again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Answered {
    birth: u64,
    incarnation: u64,
    settled: u64,
    replies: BTreeMap<u64, Reply>,
}

impl<M: StateMachine> Ledger<M> {
    /// A ledger without members around a machine in its first state.
    pub fn new(machine: M) -> Self {
        Ledger {
            machine,
            books: Books::default(),
        }
    }

    /// The machine.
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// The members that announced themselves and were not forgotten.
    pub fn members(&self) -> &BTreeMap<MemberId, MemberInfo> {
        &self.books.members
    }

    /// Whether this data folder of the member was forgotten.
    pub fn is_forgotten(&self, member: MemberId, birth: u64) -> bool {
        self.books.forgotten.contains(&(member, birth))
    }

    /// Applies a proposal, unless it was applied before or must not be.
    ///
    /// # Errors
    /// The command cannot be decoded; the state is unchanged.
    pub fn apply(&mut self, proposal: &Proposal) -> Result<Reply, Unreadable> {
        let Proposer {
            member,
            birth,
            incarnation,
        } = proposal.proposer;
        if self.is_forgotten(member, birth) {
            return Ok(Reply::Forgotten);
        }
        let fresh = Answered {
            birth,
            incarnation,
            settled: 0,
            replies: BTreeMap::new(),
        };
        let answered = self
            .books
            .proposers
            .entry(member)
            .or_insert_with(|| fresh.clone());
        if answered.birth != birth || answered.incarnation < incarnation {
            *answered = fresh;
        }
        if answered.incarnation > incarnation {
            return Ok(Reply::Superseded);
        }
        if proposal.sequence < answered.settled {
            return Ok(Reply::Settled);
        }
        if let Some(reply) = answered.replies.get(&proposal.sequence) {
            return Ok(reply.clone());
        }
        let reply = Reply::Applied(self.run(&proposal.operation)?);
        // Forgetting may have removed the proposer itself.
        if let Some(answered) = self.books.proposers.get_mut(&member) {
            answered.settled = answered.settled.max(proposal.settled);
            answered.replies.insert(proposal.sequence, reply.clone());
            answered.replies = answered.replies.split_off(&answered.settled);
        }
        Ok(reply)
    }

    fn run(&mut self, operation: &Operation) -> Result<Bytes, Unreadable> {
        match operation {
            Operation::Command(bytes) => {
                let position = self.books.position + 1;
                let unreadable = |e: postcard::Error| Unreadable {
                    position,
                    cause: e.to_string(),
                };
                let command = postcard::from_bytes(bytes).map_err(unreadable)?;
                let reply = self.machine.apply(position, command);
                self.books.position = position;
                let reply = postcard::to_stdvec(&reply).map_err(unreadable)?;
                return Ok(reply.into());
            }
            Operation::Announce { member, info } => {
                if !self.is_forgotten(*member, info.birth) {
                    self.books.members.insert(*member, info.clone());
                }
            }
            Operation::Forget { member, birth } => {
                self.books.forgotten.insert((*member, *birth));
                if self.books.members.get(member).map(|m| m.birth) == Some(*birth) {
                    self.books.members.remove(member);
                }
                if self.books.proposers.get(member).map(|p| p.birth) == Some(*birth) {
                    self.books.proposers.remove(member);
                }
            }
        }
        Ok(Bytes::new())
    }

    /// Writes the whole state: the books with their length before them, then the machine.
    ///
    /// # Errors
    /// What `out` gives.
    pub fn snapshot(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let books = postcard::to_stdvec(&self.books).map_err(io::Error::other)?;
        out.write_all(&(books.len() as u64).to_be_bytes())?;
        out.write_all(&books)?;
        self.machine.snapshot(out)
    }

    /// Replaces the whole state by a snapshot's.
    ///
    /// # Errors
    /// What `from` gives, and `InvalidData` for what is no snapshot.
    pub fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        let mut length = [0; 8];
        from.read_exact(&mut length)?;
        let mut books = Vec::new();
        // Read as far as there is something: a wrong length must not allocate what it claims.
        let length = u64::from_be_bytes(length);
        let read = io::Read::read_to_end(&mut io::Read::take(&mut *from, length), &mut books)?;
        if read as u64 != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.books = postcard::from_bytes(&books)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        self.machine.restore(from)
    }
}

#[cfg(test)]
mod tests;
