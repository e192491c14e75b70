//! What may differ from ZooKeeper, and what should not but does.

use crate::differential::{Allowed, Known, Rule};

/// Meant; see `docs/divergences.md`.
pub const ALLOWED: &[Allowed] = &[
    Allowed {
        id: "zk-delete-container",
        subject: "zookeeper",
        place: "deleteContainer from a client",
        real: "deletes the node, container or not, without asking its ACL",
        causeway: "BadArguments",
        reason: "it is the server's own request, and no client library has it",
        scripts: &["delete-container.script"],
        rules: &[Rule::result("deleteContainer *", "*", "BadArguments*")],
    },
    Allowed {
        id: "zk-merge-zxid-of-the-future",
        subject: "zookeeper",
        place: "connect with a larger zxid than the server's, after the take-over with a legacy store",
        real: "closed",
        causeway: "accepted",
        reason: "it is the ensemble's number",
        scripts: &["merge-new/zxid-of-the-future.script"],
        rules: &[Rule::result(
            "reattach * zxid=future",
            "closed",
            "session *",
        )],
    },
    Allowed {
        id: "zk-merge-multi-over-both",
        subject: "zookeeper",
        place: "a multi over a registration and a general node, from `merge-new` on",
        real: "atomic",
        causeway: "refused (the failing operation: BadArguments)",
        reason: "the two have different stores",
        scripts: &["merge-new/multi-over-both.script"],
        rules: &[Rule::result("multi *", "*", "*error:BadArguments*")],
    },
];

/// Found, and to be mended.
pub const KNOWN: &[Known] = &[
    Known {
        id: "zk-merge-event-zxid",
        subject: "zookeeper",
        scripts: &["merge-new/event-without-its-zxid.script"],
        reason: "events of general nodes carry zxid -1",
        rules: &[Rule::fields("event", &["zxid"])],
    },
    Known {
        id: "zk-merge-set-watches",
        subject: "zookeeper",
        scripts: &["merge-new/set-watches.script"],
        reason: "setWatches fires the watches of general nodes whatever zxid was seen",
        rules: &[Rule::result("event", "nothing", "Node*Changed * zxid=-1")],
    },
    Known {
        id: "zk-merge-event-order",
        subject: "zookeeper",
        scripts: &[
            "merge-new/events-of-one-create.script",
            "merge-new/events-of-two-creates.script",
        ],
        reason: "events of general nodes come out of the order of the changes",
        rules: &[Rule::result("event", "Node* zxid=some", "Node* zxid=-1")],
    },
];
