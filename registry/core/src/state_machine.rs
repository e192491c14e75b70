//! What a replicated log drives: a machine that gives the same state for the same commands.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A deterministic state machine under a log that all members share.
///
/// Everything random and every time is inside the command: a machine reads no clock, draws no random
/// number and iterates nothing whose order differs between members. Members that applied the same
/// commands are equal, and give the same replies.
pub trait StateMachine: Send + Sync + 'static {
    /// What a log entry holds. Its binary form is read by members of other releases: only add at the end.
    type Command: Serialize + DeserializeOwned + Send + Sync + 'static;
    /// What the proposer is told.
    type Reply: Serialize + DeserializeOwned + Send + Sync + 'static;

    /// Applies the next command. `position` counts the commands of this machine from 1 on, without
    /// gaps, and is the same on every member.
    fn apply(&mut self, position: u64, command: Self::Command) -> Self::Reply;

    /// Writes the whole state, piece by piece where it is large.
    ///
    /// # Errors
    /// What `out` gives; the state itself can always be written.
    fn snapshot(&self, out: &mut dyn io::Write) -> io::Result<()>;

    /// Replaces the whole state by one that [`StateMachine::snapshot`] wrote. After an error the
    /// machine must not be used.
    ///
    /// # Errors
    /// What `from` gives, and `InvalidData` for bytes that are no snapshot of this machine.
    fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()>;
}
