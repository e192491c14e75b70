//! A machine for what needs one order and has no owner: counters that name each number once, and values
//! that change by compare-and-set. Pure.

use std::collections::BTreeMap;
use std::io;

use bytes::Bytes;
use causeway_registry::StateMachine;
use serde::{Deserialize, Serialize};

/// Changes of [`Registers`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RegisterCommand {
    /// Takes the next number of a counter.
    Next {
        /// The counter; one that was never used begins at 0.
        name: String,
    },
    /// Makes a counter give out nothing below a number.
    Raise {
        /// The counter.
        name: String,
        /// The lowest number it may give out from now on.
        at_least: u64,
    },
    /// Sets a value if it is what is expected.
    CompareAndSet {
        /// The key.
        key: Bytes,
        /// What has to be there; `None`: nothing.
        expected: Option<Bytes>,
        /// What is there afterwards; `None`: nothing.
        new: Option<Bytes>,
    },
}

/// Answers of [`Registers`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RegisterReply {
    /// The number taken, or the lowest one that the counter will give out next after a raise.
    Number(u64),
    /// The counter has no number left.
    Exhausted,
    /// The value was as expected and is set.
    Set,
    /// The value differs; this is what is there.
    Differs(Option<Bytes>),
}

/// Counters and values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registers {
    counters: BTreeMap<String, u64>,
    values: BTreeMap<Bytes, Bytes>,
}

impl Registers {
    /// A value.
    pub fn get(&self, key: &[u8]) -> Option<&Bytes> {
        self.values.get(key)
    }

    /// The number that a counter gives out next.
    pub fn next(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }
}

impl StateMachine for Registers {
    type Command = RegisterCommand;
    type Reply = RegisterReply;

    fn apply(&mut self, _position: u64, command: RegisterCommand) -> RegisterReply {
        match command {
            RegisterCommand::Next { name } => {
                let next = self.counters.entry(name).or_insert(0);
                let number = *next;
                let Some(following) = number.checked_add(1) else {
                    return RegisterReply::Exhausted;
                };
                *next = following;
                RegisterReply::Number(number)
            }
            RegisterCommand::Raise { name, at_least } => {
                let next = self.counters.entry(name).or_insert(0);
                *next = (*next).max(at_least);
                RegisterReply::Number(*next)
            }
            RegisterCommand::CompareAndSet { key, expected, new } => {
                let present = self.values.get(&key);
                if present != expected.as_ref() {
                    return RegisterReply::Differs(present.cloned());
                }
                match new {
                    Some(value) => self.values.insert(key, value),
                    None => self.values.remove(&key),
                };
                RegisterReply::Set
            }
        }
    }

    fn snapshot(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let bytes = postcard::to_stdvec(self).map_err(io::Error::other)?;
        out.write_all(&bytes)
    }

    fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes)?;
        *self = postcard::from_bytes(&bytes)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        Ok(())
    }
}
