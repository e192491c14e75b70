//! Model clients: they keep a lease alive, notice a dead connection, and move to another member with what they were told.

use std::collections::BTreeMap;

use causeway_registry::{LeaseId, RecordBody, RecordKey, Stamp, StoreKind};

/// What a client wants to do with its registrations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Keep them.
    Stay,
    /// Take them away, then end.
    Leave,
    /// It is dead: it says nothing, and its records are nobody's.
    Dead,
    /// All is taken away, and that was confirmed.
    Done,
}

/// One registration of a client.
#[derive(Clone, Debug)]
pub struct Registration {
    /// Which one.
    pub key: RecordKey,
    /// Counts what the client writes into it.
    pub content: u64,
    /// What a member confirmed: the content and its stamp.
    pub acked: Option<(u64, Stamp)>,
    /// Since when that stands.
    pub acked_at: u64,
}

/// A connection to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Numbers all of them.
    pub number: u64,
    /// Where the member is.
    pub place: usize,
    /// The member's process that it was opened to.
    pub life: u64,
    /// Messages without an answer.
    pub missed: u64,
    /// When the last answer came.
    pub answered_at: Option<u64>,
}

/// One client.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its lease.
    pub lease: LeaseId,
    /// The service that its instances belong to.
    pub service: String,
    /// What it registers.
    pub registrations: Vec<Registration>,
    /// What it is up to.
    pub intent: Intent,
    /// Its connection, if it has one.
    pub connection: Option<Connection>,
    /// The highest clock value that it was given.
    pub claim: u64,
    /// Since when it has been answered on one connection after the other without a break of more than its patience.
    pub held_since: Option<u64>,
    /// When its end was decided.
    pub ended_at: u64,
    /// Bytes of payload.
    pub payload: usize,
    /// Its wakes are numbered; others than the last are void.
    pub wake: u64,
    /// It can reach this member only.
    pub bound_to: Option<usize>,
}

/// A message of a client.
#[derive(Clone, Debug)]
pub enum Request {
    /// Renew the lease; whatever is not as the list says is registered again.
    Keep {
        /// The client came here anew.
        moved: bool,
        /// Lease.
        lease: LeaseId,
        /// Its timeout in milliseconds.
        ttl_ms: u64,
        /// The highest clock value that the client was given.
        claim: u64,
        /// The registrations, with their contents.
        records: Vec<(RecordKey, u64, RecordBody)>,
    },
    /// End the lease and take everything away.
    Leave {
        /// Lease.
        lease: LeaseId,
        /// Its timeout in milliseconds.
        ttl_ms: u64,
        /// The highest clock value that the client was given.
        claim: u64,
    },
    /// Take one registration away.
    Drop {
        /// Which.
        key: RecordKey,
        /// The highest clock value that the client was given.
        claim: u64,
    },
}

/// An answer to a client.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Everything stands: contents and stamps.
    Kept(Vec<(RecordKey, u64, Stamp)>),
    /// Everything is gone, and another member or the disk knows it.
    Left,
    /// The one registration is gone.
    Dropped,
    /// Not served here, or nobody is there.
    Refused,
}

impl Client {
    /// What the client's registrations say.
    pub fn records(&self) -> Vec<(RecordKey, u64, RecordBody)> {
        self.registrations
            .iter()
            .map(|one| (one.key.clone(), one.content, body(self, one)))
            .collect()
    }
}

/// The key of an instance.
pub fn key(service: &str, instance: u64) -> RecordKey {
    RecordKey::new(StoreKind::Native, format!("space/{service}/{instance}"))
}

fn body(client: &Client, registration: &Registration) -> RecordBody {
    let content = registration.content.to_string();
    let attributes = [
        ("content".to_owned(), content),
        ("payload".to_owned(), "x".repeat(client.payload)),
    ];
    RecordBody {
        namespace: "space".into(),
        service: client.service.clone(),
        instance: String::from_utf8_lossy(&registration.key.key).into_owned(),
        attributes: BTreeMap::from(attributes),
        ..RecordBody::default()
    }
}

/// Which content a body has.
pub fn content(body: &RecordBody) -> Option<u64> {
    body.attributes.get("content")?.parse().ok()
}
