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
        shown_by: "compat-tests/differential/zookeeper/delete-container.script",
        rules: &[Rule::result("deleteContainer *", "*", "BadArguments*")],
    },
    Allowed {
        id: "zk-multi-read-body",
        subject: "zookeeper",
        place: "a multiRead with a write in it",
        real: "MarshallingError with the end of a list behind the header",
        causeway: "MarshallingError with nothing behind the header",
        reason: "no reply with an error has a body, and no client reads one",
        shown_by: "compat-tests/differential/zookeeper/multi-read-of-a-write.script",
        rules: &[Rule::fields("multiRead *", &["body"])],
    },
];

/// Found, and to be mended.
pub const KNOWN: &[Known] = &[
    Known {
        id: "zk-multi-create2",
        subject: "zookeeper",
        script: "multi-create2.script",
        reason: "create2 (and createContainer, createTTL without their flags) in a multi answers as create: no Stat",
        rules: &[Rule::harmless(
            "multi *create*",
            "ok *create2:ok*",
            "ok *create:ok*",
        )],
    },
    Known {
        id: "zk-ttl-mode",
        subject: "zookeeper",
        script: "ttl-without-its-mode.script",
        reason: "createTTL with a mode that has no TTL is carried out instead of refused (BadArguments)",
        rules: &[
            Rule::result("createTTL * flags=0 *", "BadArguments *", "*"),
            Rule::result("createTTL * flags=1 *", "BadArguments *", "*"),
        ],
    },
    Known {
        id: "zk-multi-malformed",
        subject: "zookeeper",
        script: "multi-with-a-null-acl.script",
        reason: "a multi with a null ACL or a mode that does not exist fails at that operation, not as a whole (MarshallingError)",
        rules: &[Rule::result("multi *", "MarshallingError *", "ok *error:*")],
    },
    Known {
        id: "zk-multi-read-watch",
        subject: "zookeeper",
        script: "multi-read-watch.script",
        reason: "the watch flag in a multiRead arms a watch; a real server ignores it there",
        rules: &[],
    },
];
