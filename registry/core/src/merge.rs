//! What passes between members: one value of one key, alive or dead, as its writer's log holds it.

use serde::{Deserialize, Serialize};

use crate::origin::Dot;
use crate::record::{Health, LeaseId, RecordBody, RecordKey, Stamp, Version};

/// One value of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Whose key.
    pub key: RecordKey,
    /// The client action it comes from.
    pub stamp: Stamp,
    /// The holder's transitions since then.
    pub sub: u32,
    /// The write in its holder's log.
    pub dot: Dot,
    /// The owner, and its timeout in milliseconds as the holder counts it (0: unknown).
    pub lease: Option<(LeaseId, u64)>,
    /// Alive or removed.
    pub value: Value,
}

/// What an entry says of its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Value {
    /// The record is there.
    Living {
        /// What it says.
        body: RecordBody,
        /// What its holder knows about the owner.
        health: Health,
    },
    /// The record was removed.
    Dead {
        /// The namespace it was in.
        namespace: String,
        /// The service it was in.
        service: String,
        /// The instance it stood for.
        instance: String,
    },
}

impl Entry {
    /// What decides against another value of the same key.
    pub fn version(&self) -> Version {
        Version {
            stamp: self.stamp,
            dead: matches!(self.value, Value::Dead { .. }),
            sub: self.sub,
        }
    }
}
