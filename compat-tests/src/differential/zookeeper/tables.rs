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
        id: "zk-wrong-password",
        subject: "zookeeper",
        place: "a session's id with a wrong password",
        real: "answered as expired; the session's living connection is closed too",
        causeway: "only the liar is told expired",
        reason: "a stranger must not cut off a client",
        scripts: &["wrong-password.script"],
        rules: &[Rule::result(
            "reattach password=wrong *",
            "closed",
            "nothing",
        )],
    },
    Allowed {
        id: "zk-merge-zxid-of-the-future",
        subject: "zookeeper",
        place: "connect with a larger zxid than the server's, after the take-over with a legacy store",
        real: "closed",
        causeway: "accepted",
        reason: "it is the ensemble's number",
        scripts: &["merge-new/zxid-of-the-future.script"],
        rules: &[
            Rule::result("reattach * zxid=future", "closed", "session *"),
            // One that is over is told so.
            Rule::harmless("reattach * zxid=future", "nothing", "expired *"),
        ],
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
    Allowed {
        id: "zk-merge-event-zxid",
        subject: "zookeeper",
        place: "the header of an event of a general node, after the take-over with a legacy store",
        real: "the change's zxid, since 3.9",
        causeway: "-1, as servers before 3.9",
        reason: "the ensemble's number would fall below those of replies, and one of Causeway's would be in no Stat of the node",
        scripts: &["merge-new/event-without-its-zxid.script"],
        rules: &[Rule {
            right: "* zxid=-1",
            ..Rule::fields("event", &["zxid"])
        }],
    },
    Allowed {
        id: "zk-38-event-zxid",
        subject: "zookeeper",
        place: "the header of a watch event",
        real: "zxid -1 before 3.9",
        causeway: "the change's zxid",
        reason: "as 3.9",
        scripts: &["zookeeper-3.8/event-zxid.script"],
        rules: &[Rule {
            left: "* zxid=-1",
            ..Rule::fields("event", &["zxid"])
        }],
    },
    Allowed {
        id: "zk-38-watch-kinds",
        subject: "zookeeper",
        place: "watches of several kinds of one client on one path",
        real: "in 3.8 the last one overwrites the others, and only kinds 1 to 3 can be asked for or removed",
        causeway: "independent",
        reason: "as 3.9",
        scripts: &["zookeeper-3.8/watch-kinds.script"],
        rules: &[
            Rule::result("removeWatches *", "MarshallingError *", "*"),
            Rule::harmless("checkWatches *", "MarshallingError *", "*"),
            Rule::result("removeWatches *", "ok *", "NoWatcher *"),
            Rule::harmless("checkWatches *", "ok *", "NoWatcher *"),
        ],
    },
    Allowed {
        id: "zk-38-multi",
        subject: "zookeeper",
        place: "create2, createContainer, a null ACL and flags of no mode in a multi",
        real: "in 3.8 the result has no Stat; the ACL or the flags fail their operation",
        causeway: "path and Stat; the whole multi is a MarshallingError",
        reason: "as 3.9",
        scripts: &[
            "zookeeper-3.8/multi.script",
            "zookeeper-3.8/multi-null-acl.script",
            "zookeeper-3.8/multi-no-mode.script",
        ],
        rules: &[
            // Further zxids are named after the Stats seen so far.
            Rule::result("multi *", "*create:ok*", "*create2:ok*"),
            Rule::result("multi *acl=null*", "*", "MarshallingError *"),
            // It fails in its turn there.
            Rule::result("multi *", "ok *error:*", "MarshallingError *"),
            Rule::fields("multiRead *", &["body"]),
        ],
    },
    Allowed {
        id: "zk-38-check-alone",
        subject: "zookeeper",
        place: "check outside a multi",
        real: "in 3.8.0 answered as in a multi",
        causeway: "Unimplemented, and the connection is closed",
        reason: "as 3.9",
        scripts: &["zookeeper-3.8/check-alone.script"],
        rules: &[
            Rule::result("check *", "*", "Unimplemented *"),
            Rule::result("raw 13 *", "*", "Unimplemented *"),
        ],
    },
    Allowed {
        id: "zk-38-exists",
        subject: "zookeeper",
        place: "exists and watch events on a node that the client may not read",
        real: "before 3.9.5 exists is not guarded, and in 3.8.0 events are not",
        causeway: "NoAuth, no event",
        reason: "a Stat and a name are told only to those who may read",
        scripts: &["zookeeper-3.8/exists.script"],
        rules: &[Rule::result("exists *", "ok *", "NoAuth *")],
    },
];

/// Found, and to be mended.
pub const KNOWN: &[Known] = &[];
