//! What may differ between etcd and Causeway, and what does but should not.

use crate::differential::{Allowed, Known, Rule};

/// Differences that are meant to stay; the model is etcd 3.5, and the newest etcd is held against it too.
pub const ALLOWED: &[Allowed] = &[
    Allowed {
        id: "etcd-unknown-sort",
        subject: "etcd",
        place: "an unknown sort order or target",
        real: "refused by releases after 3.5; an unknown target ends the process of those before",
        causeway: "the default",
        reason: "as the model",
        scripts: &["unknown-sort.script"],
        rules: &[Rule::result(
            "KV/*",
            "InvalidArgument: etcdserver: invalid sort option",
            "*",
        )],
    },
    Allowed {
        id: "etcd-status-after-3.5",
        subject: "etcd",
        place: "Status",
        real: "storage version, quota and downgrade information from 3.6 on",
        causeway: "without them",
        reason: "as the model",
        scripts: &["status.script"],
        rules: &[Rule::fields(
            "Maintenance/Status*",
            &["storageVersion", "dbSizeQuota", "downgradeInfo"],
        )],
    },
    Allowed {
        id: "etcd-keys-only-lease",
        subject: "etcd",
        place: "Range with `keys_only`",
        real: "drops the lease too from 3.7 on",
        causeway: "keeps it",
        reason: "as the model",
        scripts: &["keys-only-lease.script"],
        rules: &[Rule::fields("KV/*keys_only=true*", &["kvs.lease"])],
    },
    Allowed {
        id: "etcd-txn-check-order",
        subject: "etcd",
        place: "a transaction with several faults",
        real: "3.7 tells of the first operation at fault, and of a put's lease before its key",
        causeway: "of puts before ranges, of a put's key before its lease",
        reason: "as 3.4",
        scripts: &["txn-check-order.script"],
        rules: &[
            Rule::harmless(
                "KV/Txn *",
                "OutOfRange: etcdserver: mvcc: required revision *",
                "InvalidArgument: etcdserver: key not found",
            ),
            Rule::harmless(
                "KV/Txn *",
                "OutOfRange: etcdserver: mvcc: required revision *",
                "NotFound: etcdserver: requested lease not found",
            ),
            Rule::harmless(
                "KV/Txn *",
                "NotFound: etcdserver: requested lease not found",
                "InvalidArgument: etcdserver: key not found",
            ),
        ],
    },
    Allowed {
        id: "etcd-members",
        subject: "etcd",
        place: "MemberAdd, -Remove, -Update, -Promote, after the take-over",
        real: "change the cluster",
        causeway: "refused (FailedPrecondition)",
        reason: "the members shown are gateways",
        scripts: &["members.script"],
        rules: &[Rule::harmless(
            "Cluster/Member*",
            "NotFound: etcdserver: member not found",
            "FailedPrecondition: causeway: Member* is refused: *",
        )],
    },
    Allowed {
        id: "etcd-users",
        subject: "etcd",
        place: "users and roles of the embedded store",
        real: "available",
        causeway: "authentication is off; AuthEnable and the rest Unimplemented",
        reason: "it is a store for registrations and locks behind a trusted port",
        scripts: &["users.script"],
        rules: &[Rule::harmless("Auth/*", "*", "Unimplemented: *")],
    },
    Allowed {
        id: "etcd-merge-both-classes",
        subject: "etcd",
        place: "a put, delete or transaction over general keys and registrations, from `merge-new` on",
        real: "atomic",
        causeway: "refused (FailedPrecondition, by name)",
        reason: "the two have different stores",
        scripts: &["merge-new/both-classes.script"],
        rules: &[Rule::result(
            "KV/*",
            "*",
            "FailedPrecondition: causeway: the request touches both *",
        )],
    },
    Allowed {
        id: "etcd-merge-past-of-both",
        subject: "etcd",
        place: "range over both classes at a past revision",
        real: "the past",
        causeway: "registrations of then, general keys of now",
        reason: "the number means nothing to the legacy store",
        scripts: &["merge-new/past-of-both.script"],
        rules: &[Rule::result(
            "KV/Range *range_end=\"\\x00\"*revision=@*",
            "*",
            "*",
        )],
    },
    Allowed {
        id: "etcd-merge-headers",
        subject: "etcd",
        place: "headers of requests on different classes of keys",
        real: "one sequence",
        causeway: "a request on general keys alone shows its store's own revision, one on leases the gateway's",
        reason: "a lock's revision has to be exact",
        scripts: &["merge-new/header-of-a-lease.script"],
        rules: &[Rule::harmless(
            "KV/Range *revision=@*",
            "*",
            "OutOfRange: etcdserver: mvcc: required revision is a future revision",
        )],
    },
    Allowed {
        id: "etcd-merge-compact",
        subject: "etcd",
        place: "Compact after the take-over",
        real: "compacts all",
        causeway: "compacts the legacy store's general keys; the view's past stays",
        reason: "the number is the legacy store's",
        scripts: &["merge-new/compact.script"],
        rules: &[Rule::result(
            "KV/Compact *",
            "ok *",
            "OutOfRange: etcdserver: mvcc: required revision is a future revision",
        )],
    },
];

/// Differences that are to go.
pub const KNOWN: &[Known] = &[
    Known {
        id: "etcd-progress-after-compacted",
        subject: "etcd",
        scripts: &["progress-after-compacted.script"],
        reason: "once a watcher was cancelled by compaction, etcd 3.7 answers no progress request on that stream",
        rules: &[Rule::harmless("w*", "nothing", "progress *")],
    },
    Known {
        id: "etcd-malformed",
        subject: "etcd",
        scripts: &["malformed.script", "malformed-type.script"],
        reason: "a message that cannot be decoded: another text; a field of another wire type is unknown to etcd",
        rules: &[Rule::result(
            "raw *",
            "*",
            "Internal: failed to decode Protobuf message*",
        )],
    },
];
