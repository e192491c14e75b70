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
        id: "zk-multi-read-body",
        subject: "zookeeper",
        place: "a multiRead with a write in it",
        real: "MarshallingError with the end of a list behind the header",
        causeway: "MarshallingError with nothing behind the header",
        reason: "no reply with an error has a body, and no client reads one",
        scripts: &["multi-read-of-a-write.script"],
        rules: &[Rule::fields("multiRead *", &["body"])],
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
        id: "zk-multi-create2",
        subject: "zookeeper",
        scripts: &[
            "multi-create2.script",
            "multi-container-without-its-flag.script",
        ],
        reason: "create2 (and createContainer, createTTL without their flags) in a multi answers as create: no Stat",
        rules: &[Rule::harmless(
            "multi *create*",
            "ok *create2:ok*",
            "ok *create:ok*",
        )],
    },
    Known {
        id: "zk-multi-ephemeral-ttl",
        subject: "zookeeper",
        scripts: &["multi-ephemeral-ttl.script"],
        reason: "createTTL with the flags of an ephemeral node in a multi answers as create2, not as create",
        rules: &[Rule::harmless(
            "multi *createTTL *",
            "ok *create:ok*",
            "ok *create2:ok*",
        )],
    },
    Known {
        id: "zk-ttl-mode",
        subject: "zookeeper",
        scripts: &[
            "ttl-without-its-mode.script",
            "ttl-without-its-mode-on-a-node.script",
        ],
        reason: "createTTL with a mode that has no TTL is carried out instead of refused (BadArguments)",
        rules: &[
            Rule::result("createTTL * flags=0 *", "BadArguments *", "*"),
            Rule::result("createTTL * flags=1 *", "BadArguments *", "*"),
        ],
    },
    Known {
        id: "zk-multi-malformed",
        subject: "zookeeper",
        scripts: &[
            "multi-with-a-null-acl.script",
            "multi-with-a-mode-that-needs-a-ttl.script",
        ],
        reason: "a multi with a null ACL or a mode that does not exist fails at that operation, not as a whole (MarshallingError)",
        rules: &[Rule::result("multi *", "MarshallingError *", "ok *error:*")],
    },
    Known {
        id: "zk-multi-read-watch",
        subject: "zookeeper",
        scripts: &["multi-read-watch.script", "multi-read-watch-removed.script"],
        reason: "the watch flag in a multiRead arms a watch; a real server ignores it there",
        rules: &[],
    },
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
