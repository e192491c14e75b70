//! Words of the key space: pairs, requests, commands, replies, events, errors.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::cluster::Alarm;

/// One key with its value and etcd's bookkeeping (mvccpb.KeyValue).
///
/// A deletion is told with a pair that holds only `key` and `mod_revision`, as etcd does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyValue {
    /// Opaque bytes, never empty in the space.
    pub key: Bytes,
    /// Opaque bytes, may be empty.
    pub value: Bytes,
    /// Number of the change that created the key's present life.
    pub create_revision: i64,
    /// Number of the last change.
    pub mod_revision: i64,
    /// Puts in the key's present life, from 1.
    pub version: i64,
    /// Lease that the key is attached to; 0 is none.
    pub lease: i64,
}

/// Order of a range (etcd: RangeRequest.SortOrder).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SortOrder {
    /// By key; a target other than the key makes it ascending by that target.
    #[default]
    None,
    /// Smallest first.
    Ascend,
    /// Largest first.
    Descend,
    /// One that does not exist: by key, where the release takes it at all.
    Unknown,
}

/// What a range is ordered by (etcd: RangeRequest.SortTarget).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SortTarget {
    /// Key bytes.
    #[default]
    Key,
    /// `version`.
    Version,
    /// `create_revision`.
    Create,
    /// `mod_revision`.
    Mod,
    /// Value bytes.
    Value,
    /// One that does not exist: by key, where the release takes it at all.
    Unknown,
}

/// A read, with all of etcd's fields.
///
/// `range_end` here and everywhere: empty is the single key, one zero byte is "all keys from
/// `key` on", an end at or below `key` matches nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeRequest {
    /// First key.
    pub key: Bytes,
    /// End of the range, excluded.
    pub range_end: Bytes,
    /// Most pairs to return; 0 or less is no limit.
    pub limit: i64,
    /// State to read; 0 or less is the present.
    pub revision: i64,
    /// Order of the pairs.
    pub sort_order: SortOrder,
    /// What the order is by.
    pub sort_target: SortTarget,
    /// May be stale. The space is always its own latest; kept for the front end's routing.
    pub serializable: bool,
    /// Pairs without their values.
    pub keys_only: bool,
    /// Only the count.
    pub count_only: bool,
    /// Lowest `mod_revision` to show; 0 is no bound. None of the four bounds changes `count`.
    pub min_mod_revision: i64,
    /// Highest `mod_revision` to show; 0 is no bound.
    pub max_mod_revision: i64,
    /// Lowest `create_revision` to show; 0 is no bound.
    pub min_create_revision: i64,
    /// Highest `create_revision` to show; 0 is no bound.
    pub max_create_revision: i64,
}

/// How a compare relates what is stored (left) to what is given (right).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompareResult {
    /// `=`
    #[default]
    Equal,
    /// `>`
    Greater,
    /// `<`
    Less,
    /// `!=`
    NotEqual,
    /// A relation that is not known: it holds (etcd: apply.go, compareKV).
    Unknown,
}

/// What a compare looks at, with the value it is compared to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompareTarget {
    /// `version`; 0 for an absent key.
    Version(i64),
    /// `create_revision`; 0 for an absent key.
    Create(i64),
    /// `mod_revision`; 0 for an absent key.
    Mod(i64),
    /// Value bytes; on an absent key no relation holds, not even "not equal".
    Value(Bytes),
    /// `lease`; 0 for an absent key.
    Lease(i64),
    /// Something that is not known: equal, whatever is stored (etcd: apply.go, compareKV).
    Unknown,
}

/// One condition of a transaction. Over a range it must hold for every pair in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compare {
    /// First key.
    pub key: Bytes,
    /// End of the range, excluded.
    pub range_end: Bytes,
    /// What is compared.
    pub target: CompareTarget,
    /// The relation that must hold.
    pub result: CompareResult,
}

/// One operation inside a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// A read; sees the writes before it in the same transaction.
    Range(RangeRequest),
    /// See [`KeyCommand::Put`].
    Put {
        /// The key.
        key: Bytes,
        /// The value.
        value: Bytes,
        /// Lease to attach to; 0 detaches.
        lease: i64,
        /// Return the pair that was there.
        prev_kv: bool,
        /// Keep the value that is there.
        ignore_value: bool,
        /// Keep the lease that is there.
        ignore_lease: bool,
    },
    /// See [`KeyCommand::DeleteRange`].
    DeleteRange {
        /// First key.
        key: Bytes,
        /// End of the range, excluded.
        range_end: Bytes,
        /// Return the pairs that were there.
        prev_kv: bool,
    },
    /// A transaction inside; its compares see the state before the whole transaction.
    Txn(Txn),
    /// A request without content; always refused (etcd answers "key not found").
    Empty,
}

/// A transaction: if all compares hold `success` is done, else `failure`, in one revision.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Txn {
    /// The conditions; none at all hold.
    pub compare: Vec<Compare>,
    /// Done when they hold.
    pub success: Vec<Op>,
    /// Done when not.
    pub failure: Vec<Op>,
}

/// One entry of the log that the space is built from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyCommand {
    /// Writes one pair. The same value again is a new revision too (heartbeats by re-put).
    Put {
        /// The key.
        key: Bytes,
        /// The value.
        value: Bytes,
        /// Lease to attach to; 0 detaches.
        lease: i64,
        /// Return the pair that was there.
        prev_kv: bool,
        /// Keep the value that is there.
        ignore_value: bool,
        /// Keep the lease that is there.
        ignore_lease: bool,
    },
    /// Deletes a range in one revision; nothing there leaves the revision alone.
    DeleteRange {
        /// First key.
        key: Bytes,
        /// End of the range, excluded.
        range_end: Bytes,
        /// Return the pairs that were there.
        prev_kv: bool,
    },
    /// A transaction.
    Txn(Txn),
    /// A client's compaction: history below `revision` is gone.
    Compact {
        /// Lowest revision that can still be read.
        revision: i64,
    },
    /// Makes a lease known. The id is chosen by the caller.
    LeaseGrant {
        /// Id, not 0; negative ones are legal.
        id: i64,
        /// Wanted seconds; raised to [`MIN_LEASE_TTL_S`].
        ttl_s: i64,
    },
    /// Ends a lease and deletes its keys in one revision, in key order.
    LeaseRevoke {
        /// The lease.
        id: i64,
        /// Keys that stay (held by protection); they keep showing the lease.
        keep: Vec<Bytes>,
    },
    /// Deletes keys as decided elsewhere, in one revision, in key order; absent ones are ignored.
    RemoveAll {
        /// The keys.
        keys: Vec<Bytes>,
    },
    /// Takes over a pair as another store gave it; see [`KeyCommand::ImportAll`].
    Import {
        /// The pair with that store's numbers.
        kv: KeyValue,
    },
    /// Takes over what another store or a peer gave as one batch, in one revision.
    ///
    /// A pair counts when its `mod_revision` is above that of the pair here; its numbers are kept.
    /// A number left 0 is filled in as a put here would (with `mod_revision` 0 the pair counts
    /// when its value or lease differs). There is an event only for a changed value or lease.
    /// Its lease need not be known.
    ImportAll {
        /// The pairs with that store's numbers.
        kvs: Vec<KeyValue>,
        /// Keys that are gone there; absent ones are ignored.
        removed: Vec<Bytes>,
    },
    /// Drops a lease and leaves its keys, which keep showing it.
    ForgetLease {
        /// The lease.
        id: i64,
    },
    /// Makes a lease known, or changes its time, without any check.
    AdoptLease {
        /// The lease.
        id: i64,
        /// Its granted seconds.
        ttl_s: i64,
    },
    /// Bounds what is kept of the past; a client's compaction is [`KeyCommand::Compact`].
    TrimHistory {
        /// Changes older than this many milliseconds go.
        keep_ms: i64,
        /// The oldest changes go while more than this is kept.
        keep_bytes: u64,
    },
    /// Raises an alarm, or clears it (etcd: Maintenance.Alarm).
    Alarm {
        /// Raise it.
        active: bool,
        /// Which, and of which etcd member.
        alarm: Alarm,
    },
    /// Begins the downgrade to the release before, or ends it (etcd: Maintenance.Downgrade).
    Downgrade {
        /// Begin it.
        enable: bool,
    },
}

/// Lowest lease time that is granted (etcd: 1.5 election timeouts, rounded up, at its defaults).
pub const MIN_LEASE_TTL_S: i64 = 2;
/// Highest lease time that may be asked for (etcd: lease.MaxLeaseTTL).
pub const MAX_LEASE_TTL_S: i64 = 9_000_000_000;
/// Most compares or operations in a transaction, shared with the depth (etcd: `--max-txn-ops`).
pub const MAX_TXN_OPS: usize = 128;
/// Most alarms that are kept; etcd has no bound, and one for each kind and member that a client names.
pub const MAX_ALARMS: usize = 4096;
/// Most bytes of one request that writes (etcd: `--max-request-bytes`).
pub const MAX_REQUEST_BYTES: usize = 1536 * 1024;

/// Whether an event is a put or a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventKind {
    /// Created or updated.
    Put,
    /// Deleted.
    Delete,
}

/// One changed key. Cheap to clone: the pairs are shared with the space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyEvent {
    /// What happened.
    pub kind: EventKind,
    /// The new pair; of a deletion only key and `mod_revision`.
    pub kv: Arc<KeyValue>,
    /// The pair before, absent on creation.
    pub prev: Option<Arc<KeyValue>>,
}

/// All events of one revision that a reader asked for, in the order they happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevisionEvents {
    /// Number of the change here.
    pub revision: i64,
    /// Never empty.
    pub events: Arc<[KeyEvent]>,
}

/// A lease as the space knows it; its clock is kept elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Granted seconds.
    pub ttl_s: i64,
    /// False when only pairs mention it: imported before the lease, or kept after its end.
    pub known: bool,
    /// Attached keys.
    pub keys: std::collections::BTreeSet<Bytes>,
}

/// Answer to a put.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutReply {
    /// Revision for the header.
    pub revision: i64,
    /// The pair before, if asked for and there.
    pub prev_kv: Option<Arc<KeyValue>>,
}

/// Answer to a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteRangeReply {
    /// Revision for the header.
    pub revision: i64,
    /// How many keys went.
    pub deleted: i64,
    /// They, if asked for.
    pub prev_kvs: Vec<Arc<KeyValue>>,
}

/// Answer to a read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeReply {
    /// Revision for the header: the present one, whichever was read.
    pub revision: i64,
    /// The pairs.
    pub kvs: Vec<Arc<KeyValue>>,
    /// Pairs in the range, whatever limit and filters say.
    pub count: i64,
    /// The limit cut something off.
    pub more: bool,
}

/// Answer to a transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxnReply {
    /// Revision for the header; 0 in a nested transaction, as in etcd.
    pub revision: i64,
    /// The compares held.
    pub succeeded: bool,
    /// One per operation that was done.
    pub replies: Vec<OpReply>,
}

/// Answer to one operation of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpReply {
    /// To [`Op::Range`].
    Range(RangeReply),
    /// To [`Op::Put`].
    Put(PutReply),
    /// To [`Op::DeleteRange`].
    DeleteRange(DeleteRangeReply),
    /// To [`Op::Txn`].
    Txn(TxnReply),
}

/// Answer to a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyReply {
    /// To [`KeyCommand::Put`].
    Put(PutReply),
    /// To [`KeyCommand::DeleteRange`].
    DeleteRange(DeleteRangeReply),
    /// To [`KeyCommand::Txn`].
    Txn(TxnReply),
    /// To [`KeyCommand::LeaseGrant`].
    LeaseGrant {
        /// The lease.
        id: i64,
        /// Granted seconds.
        ttl_s: i64,
    },
    /// To commands that remove, import or alarm: how many keys or alarms it was about.
    Changed(usize),
    /// To commands that have nothing to say.
    Done,
}

/// What a command did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The answer, or why nothing was done.
    pub result: Result<KeyReply, KeyError>,
    /// What changed, in order; all of it has the number `revision`.
    pub events: Arc<[KeyEvent]>,
    /// The space's revision after the command: the header's.
    pub revision: i64,
    /// The number passed in was used up.
    pub revision_used: bool,
}

/// Why a request was refused. Nothing was changed; all but `RequestTooLarge` are answers a client
/// may rely on, so the texts are etcd's (api/v3rpc/rpctypes/error.go).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum KeyError {
    /// Empty key. InvalidArgument.
    #[error("etcdserver: key is not provided")]
    KeyNotProvided,
    /// `ignore_value` or `ignore_lease` on an absent key, or an empty operation. InvalidArgument.
    #[error("etcdserver: key not found")]
    KeyNotFound,
    /// `ignore_value` with a value. InvalidArgument.
    #[error("etcdserver: value is provided")]
    ValueProvided,
    /// `ignore_lease` with a lease. InvalidArgument.
    #[error("etcdserver: lease is provided")]
    LeaseProvided,
    /// More than [`MAX_TXN_OPS`]. InvalidArgument.
    #[error("etcdserver: too many operations in txn request")]
    TooManyOps,
    /// Two puts on a key, or a put inside a deleted range. InvalidArgument.
    #[error("etcdserver: duplicate key given in txn request")]
    DuplicateKey,
    /// A sort that does not exist. InvalidArgument.
    #[error("etcdserver: invalid sort option")]
    InvalidSortOption,
    /// Above [`MAX_REQUEST_BYTES`]. InvalidArgument.
    #[error("etcdserver: request is too large")]
    RequestTooLarge,
    /// The past asked for is no longer kept. OutOfRange.
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted {
        /// Lowest revision that can still be read.
        compact_revision: i64,
    },
    /// A number not given out yet. OutOfRange.
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,
    /// No such lease. NotFound.
    #[error("etcdserver: requested lease not found")]
    LeaseNotFound,
    /// The id is taken. FailedPrecondition.
    #[error("etcdserver: lease already exists")]
    LeaseExists,
    /// Above [`MAX_LEASE_TTL_S`]. OutOfRange.
    #[error("etcdserver: too large lease TTL")]
    LeaseTtlTooLarge,
    /// The alarm NOSPACE is raised. ResourceExhausted.
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    /// The alarm CORRUPT is raised. DataLoss.
    #[error("etcdserver: corrupt cluster")]
    Corrupt,
    /// More alarms than [`MAX_ALARMS`]. ResourceExhausted.
    #[error("etcdserver: too many requests")]
    TooManyAlarms,
    /// A downgrade is under way. FailedPrecondition.
    #[error("etcdserver: cluster has a downgrade job in progress")]
    DowngradeInProcess,
}
