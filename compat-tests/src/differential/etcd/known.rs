//! What may differ between etcd and Causeway, and what does but should not.

use crate::differential::{Allowed, Known, Rule};

/// Differences that are meant to stay; Causeway imitates the release that it shows, the newest unless it is told
/// otherwise.
pub const ALLOWED: &[Allowed] = &[
    Allowed {
        id: "etcd-status-quota",
        subject: "etcd",
        place: "Status of the embedded store",
        real: "the quota, 2 GiB by default",
        causeway: "-1, as a real server without one (`--quota-backend-bytes` below 0)",
        reason: "there is no quota: its size is that of the memory",
        scripts: &["status.script"],
        rules: &[
            Rule::fields("Maintenance/Status*", &["dbSizeQuota"]),
            Rule::fields("http POST /v3/maintenance/status*", &["dbSizeQuota"]),
        ],
    },
    Allowed {
        id: "etcd-json-errors",
        subject: "etcd",
        place: "the body of a refusal over JSON",
        real: "`error`, `message`, `code` up to 3.5; `message` and `code` from 3.6 on; a stream's error has other names in each",
        causeway: "all of them",
        reason: "each is read by somebody",
        scripts: &["json/errors.script"],
        rules: &[Rule::fields("http *", &["error"])],
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
