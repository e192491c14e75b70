use std::fmt::Debug;

use super::*;
use TreeError::*;

const OPEN: u32 = perms::ALL;

fn acl(perms: u32, scheme: &str, id: &str) -> Acl {
    Acl {
        perms,
        scheme: scheme.into(),
        id: id.into(),
    }
}

fn create(path: &str) -> TreeCommand {
    create_with(path, CreateMode::Persistent, vec![Acl::world(OPEN)], vec![])
}

fn create_as(path: &str, mode: CreateMode) -> TreeCommand {
    create_with(path, mode, vec![Acl::world(OPEN)], vec![])
}

fn create_with(path: &str, mode: CreateMode, acl: Vec<Acl>, auth: Vec<AuthId>) -> TreeCommand {
    TreeCommand::Create {
        path: path.into(),
        data: Some(Bytes::new()),
        acl,
        mode,
        session: 7,
        auth,
    }
}

fn ephemeral(path: &str, session: i64) -> TreeCommand {
    TreeCommand::Create {
        path: path.into(),
        data: None,
        acl: vec![Acl::world(OPEN)],
        mode: CreateMode::Ephemeral,
        session,
        auth: vec![],
    }
}

fn delete(path: &str, version: i32) -> TreeCommand {
    TreeCommand::Delete {
        path: path.into(),
        version,
        auth: vec![],
    }
}

fn set(path: &str, data: &str, version: i32) -> TreeCommand {
    TreeCommand::SetData {
        path: path.into(),
        data: Some(Bytes::from(data.to_owned())),
        version,
        auth: vec![],
    }
}

/// A tree with the zxid and time of the next command: 1, 2, … and 1001, 1002, ….
struct Log {
    tree: ZnodeTree,
    zxid: i64,
}

impl Log {
    fn new(commands: &[TreeCommand]) -> Self {
        let mut log = Log {
            tree: ZnodeTree::new(),
            zxid: 0,
        };
        for command in commands {
            let applied = log.apply(command);
            assert!(applied.result.is_ok(), "{command:?}: {:?}", applied.result);
        }
        log
    }

    fn paths(paths: &[&str]) -> Self {
        Log::new(&paths.iter().map(|p| create(p)).collect::<Vec<_>>())
    }

    fn apply(&mut self, command: &TreeCommand) -> Applied {
        self.zxid += 1;
        let applied = self.tree.apply(command, self.zxid, 1000 + self.zxid);
        assert_eq!(self.tree.last_zxid(), self.zxid);
        applied
    }

    /// Applies a command whose error, or success, `check` must have told before.
    fn result(&mut self, command: &TreeCommand) -> Result<TreeReply, TreeError> {
        let checked = self.tree.check(command);
        let before = self.tree.clone();
        let applied = self.apply(command);
        assert_eq!(checked.err(), applied.result.as_ref().err().copied());
        if applied.result.is_err() {
            assert_eq!(applied.changes, []);
            let mut after = self.tree.clone();
            after.last_zxid = before.last_zxid;
            assert_eq!(after, before, "{command:?}");
        }
        applied.result
    }

    /// What a command changed, as text.
    fn changes(&mut self, command: &TreeCommand) -> Vec<String> {
        let applied = self.apply(command);
        assert!(applied.result.is_ok(), "{command:?}: {:?}", applied.result);
        let zxid = self.zxid;
        applied
            .changes
            .iter()
            .map(|change| {
                assert_eq!(change.zxid, zxid);
                format!("{:?} {}", change.kind, change.path)
            })
            .collect()
    }

    fn stat(&self, path: &str) -> Stat {
        self.tree.exists(path, &[]).expect(path)
    }

    fn created(&mut self, command: &TreeCommand) -> String {
        match self.apply(command).result {
            Ok(TreeReply::Created { path, stat }) => {
                assert_eq!(stat, self.stat(&path), "create2 tells what exists does");
                path.to_string()
            }
            other => panic!("{command:?}: {other:?}"),
        }
    }
}

fn check_each<T: Debug>(
    cases: &[(T, Result<(), TreeError>)],
    run: impl Fn(&T) -> Result<(), TreeError>,
) {
    for (case, wanted) in cases {
        assert_eq!(run(case), *wanted, "{case:?}");
    }
}

#[test]
fn a_fresh_tree_looks_like_a_fresh_server() {
    let tree = ZnodeTree::new();
    let zero = Stat::default();
    for (path, stat) in [
        (
            "/",
            Stat {
                cversion: -1,
                num_children: 1,
                ..zero
            },
        ),
        (
            "/zookeeper",
            Stat {
                cversion: -2,
                num_children: 2,
                ..zero
            },
        ),
        ("/zookeeper/quota", zero),
        (
            "/zookeeper/config",
            Stat {
                aversion: -1,
                ..zero
            },
        ),
    ] {
        assert_eq!(tree.exists(path, &[]), Ok(stat), "{path}");
        assert_eq!(tree.get_data(path, &[]), Ok((Some(Bytes::new()), stat)));
    }
    assert_eq!((tree.node_count(), tree.data_size()), (4, 44));
    assert_eq!(tree.exists("", &[]), tree.exists("/", &[]));
    let config = |auth| TreeCommand::SetData {
        path: "/zookeeper/config".into(),
        data: None,
        version: -1,
        auth,
    };
    assert_eq!(tree.check(&config(vec![])), Err(NoAuth));
    assert_eq!(tree.check(&config(vec![AuthId::superuser()])), Ok(()));
}

#[test]
fn path_syntax() {
    check_each(
        &[
            ("/", Ok(())),
            ("/a", Ok(())),
            ("/a/...", Ok(())),
            ("/a/.b/c..d", Ok(())),
            ("/a b/é/\u{a0}/\u{d7ff}/\u{f900}/\u{ffef}", Ok(())),
            ("", Err(BadArguments)),
            ("a", Err(BadArguments)),
            ("/a/", Err(BadArguments)),
            ("//", Err(BadArguments)),
            ("/a//b", Err(BadArguments)),
            ("/.", Err(BadArguments)),
            ("/a/../b", Err(BadArguments)),
            ("/a/..", Err(BadArguments)),
            ("/a\0", Err(BadArguments)),
            ("/a\u{1f}", Err(BadArguments)),
            ("/a\u{7f}", Err(BadArguments)),
            ("/a\u{9f}", Err(BadArguments)),
            ("/a\u{e000}", Err(BadArguments)),
            ("/a\u{f8ff}", Err(BadArguments)),
            ("/a\u{fff0}", Err(BadArguments)),
            ("/a\u{ffff}", Err(BadArguments)),
            ("/a\u{1f600}", Err(BadArguments)),
        ],
        |path| validate_path(path),
    );
}

#[test]
fn create_checks_in_the_server_s_order() {
    let read_only = Acl::world(perms::READ);
    let log = Log::new(&[
        create("/a"),
        ephemeral("/e", 7),
        create("/ro"),
        create("/ro/x"),
        TreeCommand::SetAcl {
            path: "/ro".into(),
            acl: vec![read_only],
            version: -1,
            auth: vec![],
        },
    ]);
    let open = || vec![Acl::world(OPEN)];
    let with = |path: &str, acl: Vec<Acl>| create_with(path, CreateMode::Persistent, acl, vec![]);
    let ttl = |ttl_ms| create_as("/none/x", CreateMode::PersistentTtl { ttl_ms });
    let owned = |session| ephemeral("/a/e", session);
    check_each(
        &[
            (with("/a/x", open()), Ok(())),
            // The TTL comes first, then a missing slash, then the ACL.
            (ttl(0), Err(BadArguments)),
            (ttl(MAX_TTL_MS + 1), Err(BadArguments)),
            (ttl(MAX_TTL_MS), Err(NoNode)),
            (with("foo", vec![]), Err(BadArguments)),
            (with("/none/x", vec![]), Err(InvalidAcl)),
            (with("/a/\u{1}", vec![]), Err(InvalidAcl)),
            // The parent is the text before the last slash, whatever that is.
            (with("/none/\u{1}", open()), Err(NoNode)),
            (with("/a//b", open()), Err(NoNode)),
            (with("/a/../b", open()), Err(NoNode)),
            (with("foo/bar", open()), Err(NoNode)),
            (with("/a\0", open()), Err(BadArguments)),
            // Permission before the rest.
            (with("/ro/\u{1}", open()), Err(NoAuth)),
            (with("/ro/x", open()), Err(NoAuth)),
            (with("/a/", open()), Err(BadArguments)),
            (with("/e/\u{1}", open()), Err(BadArguments)),
            (with("/a", open()), Err(NodeExists)),
            (with("/", open()), Err(NodeExists)),
            (with("/e/x", open()), Err(NoChildrenForEphemerals)),
            (with("/zookeeper/config/x", open()), Err(NoAuth)),
            (owned(7), Ok(())),
            // Ids that would read as another kind of node.
            (owned(0), Err(SessionExpired)),
            (owned(i64::MIN), Err(SessionExpired)),
            (owned(-1 << 56 | 5), Err(SessionExpired)),
        ],
        |command| log.tree.check(command),
    );
}

#[test]
fn delete_set_and_check_in_the_server_s_order() {
    let mut log = Log::paths(&["/a", "/a/x", "/b", "/ro", "/ro/x"]);
    for path in ["/ro", "/b"] {
        log.result(&TreeCommand::SetAcl {
            path: path.into(),
            acl: vec![Acl::world(if path == "/ro" {
                perms::READ
            } else {
                perms::WRITE
            })],
            version: 0,
            auth: vec![],
        })
        .expect("open");
    }
    let set_acl = |path: &str, acl: Vec<Acl>, version| TreeCommand::SetAcl {
        path: path.into(),
        acl,
        version,
        auth: vec![],
    };
    let check = |path: &str, version| TreeCommand::Multi {
        ops: vec![MultiOp::Check {
            path: path.into(),
            version,
        }],
        session: 0,
        auth: vec![],
    };
    let open = || vec![Acl::world(OPEN)];
    check_each(
        &[
            (delete("/a/x", 0), Ok(())),
            (delete("/a/x", -1), Ok(())),
            (delete("/a", 7), Err(BadVersion)),
            (delete("/a", 0), Err(NotEmpty)),
            (delete("/none", -1), Err(NoNode)),
            (delete("/none/x", -1), Err(NoNode)),
            (delete("/a/", -1), Err(NoNode)),
            (delete("/ro/none", -1), Err(NoAuth)),
            (delete("/ro/x", 7), Err(NoAuth)),
            (delete("foo", -1), Err(BadArguments)),
            (delete("/", -1), Err(BadArguments)),
            (delete("/zookeeper", -1), Err(BadArguments)),
            (delete("/zookeeper/quota", -1), Err(BadArguments)),
            (delete("/zookeeper/config", -1), Err(BadArguments)),
            (set("/a", "", 0), Ok(())),
            (set("/a", "", 1), Err(BadVersion)),
            (set("/none", "", -1), Err(NoNode)),
            (set("/a/", "", -1), Err(BadArguments)),
            (set("", "", -1), Err(BadArguments)),
            (set("/ro", "", 9), Err(NoAuth)),
            (set_acl("/a", open(), 0), Ok(())),
            (set_acl("/a", open(), 1), Err(BadVersion)),
            (set_acl("/none", vec![], -1), Err(InvalidAcl)),
            (set_acl("/ro", vec![], 9), Err(InvalidAcl)),
            (set_acl("/ro", open(), 9), Err(NoAuth)),
            (set_acl("/a/", vec![], -1), Err(BadArguments)),
            (check("/a", 0), Ok(())),
            (check("/a", 1), Err(BadVersion)),
            (check("/none", -1), Err(NoNode)),
            (check("/b", 7), Err(NoAuth)),
        ],
        |command| log.tree.check(command),
    );
}

#[test]
fn stats_count_as_the_server_does() {
    let mut log = Log::paths(&["/a", "/a/x"]);
    let a = log.stat("/a");
    assert_eq!(
        (a.czxid, a.mzxid, a.pzxid, a.ctime, a.mtime),
        (1, 1, 2, 1001, 1001)
    );
    assert_eq!((a.cversion, a.num_children, a.version), (1, 1, 0));

    // A child's data is not the parent's business.
    log.result(&set("/a/x", "12", 0)).expect("set");
    assert_eq!(log.stat("/a"), a);
    let x = log.stat("/a/x");
    assert_eq!((x.czxid, x.mzxid, x.pzxid, x.mtime), (2, 3, 2, 1003));
    assert_eq!((x.version, x.data_length), (1, 2));

    log.result(&delete("/a/x", 1)).expect("delete");
    let a = log.stat("/a");
    assert_eq!((a.cversion, a.num_children, a.pzxid, a.mzxid), (2, 0, 4, 1));

    let set_acl = TreeCommand::SetAcl {
        path: "/a".into(),
        acl: vec![Acl::world(perms::ALL)],
        version: -1,
        auth: vec![],
    };
    assert_eq!(log.changes(&set_acl), [""; 0]);
    assert_eq!(log.stat("/a"), Stat { aversion: 1, ..a });
}

#[test]
fn null_and_empty_data_stay_apart() {
    let mut log = Log::new(&[ephemeral("/null", 7), create("/empty")]);
    for (path, data) in [("/null", None), ("/empty", Some(Bytes::new()))] {
        let (is, stat) = log.tree.get_data(path, &[]).expect("readable");
        assert_eq!((is, stat.data_length), (data, 0));
    }
    log.result(&set("/null", "", -1)).expect("set");
    assert_eq!(
        log.tree.node("/null").and_then(Node::data),
        Some(&Bytes::new())
    );
}

#[test]
fn sequence_numbers_are_the_creation_count() {
    let mut log = Log::paths(&["/q", "/q/plain"]);
    let seq = |path: &str| create_as(path, CreateMode::PersistentSequential);
    assert_eq!(
        log.tree.predict_sequence("/q/a-").as_deref(),
        Ok("/q/a-0000000001")
    );
    assert_eq!(log.created(&seq("/q/a-")), "/q/a-0000000001");
    assert_eq!(log.created(&seq("/q/")), "/q/0000000002");
    log.result(&delete("/q/a-0000000001", -1)).expect("delete");
    let mode = CreateMode::EphemeralSequential;
    assert_eq!(log.created(&create_as("/q/b", mode)), "/q/b0000000003");
    let mode = CreateMode::PersistentSequentialTtl { ttl_ms: 5 };
    assert_eq!(log.created(&create_as("/q/c", mode)), "/q/c0000000004");
    assert_eq!(log.created(&seq("/")), "/0000000001");
    assert_eq!(log.result(&seq("/none/")), Err(NoNode));
    assert_eq!(log.result(&seq("/q//")), Err(NoNode));
    assert_eq!(log.tree.predict_sequence("/none/"), Err(NoNode));
    assert_eq!(log.tree.predict_sequence("x"), Err(BadArguments));

    // A multi that fails gives its numbers back.
    let multi = |last: &str| TreeCommand::Multi {
        ops: ["/q/m", "/q/m", last]
            .map(|path| MultiOp::Create {
                path: path.into(),
                data: None,
                acl: vec![Acl::world(OPEN)],
                mode: match path {
                    "/q/m" => CreateMode::PersistentSequential,
                    _ => CreateMode::Persistent,
                },
            })
            .into(),
        session: 0,
        auth: vec![],
    };
    assert!(
        log.apply(&multi("/q"))
            .result
            .expect("reply")
            .is_failed_multi()
    );
    let Ok(TreeReply::Multi(results)) = log.result(&multi("/q/n")) else {
        panic!("a multi replies with results");
    };
    let paths: Vec<&str> = results
        .iter()
        .map(|result| match result {
            OpResult::Created { path, .. } => &**path,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(paths, ["/q/m0000000005", "/q/m0000000006", "/q/n"]);
}

#[test]
fn sequence_numbers_wrap() {
    let mut log = Log::new(&[]);
    log.result(&TreeCommand::Import {
        path: "/q".into(),
        data: None,
        acl: vec![Acl::world(OPEN)],
        stat: Stat {
            cversion: i32::MAX,
            num_children: i32::MAX,
            ..Stat::default()
        },
    })
    .expect("import");
    let seq = create_as("/q/x", CreateMode::PersistentSequential);
    assert_eq!(log.created(&seq), "/q/x2147483647");
    assert_eq!(log.created(&seq), "/q/x-2147483648");
    assert_eq!(log.created(&seq), "/q/x-2147483647");
    log.tree.nodes.get_mut("/q").expect("q").creations = -5;
    assert_eq!(log.created(&seq), "/q/x-000000005");
}

#[test]
fn creation_counts_survive_an_import() {
    for creations in [0, 1, 5, (1 << 30) - 1, 1 << 30, i32::MAX] {
        let mut log = Log::paths(&["/q", "/q/a", "/q/b"]);
        log.tree.nodes.get_mut("/q").expect("q").creations = creations;
        let mut copy = Log::new(&[]);
        for path in ["/q", "/q/a"] {
            copy.result(&import_from(&log.tree, path)).expect("import");
        }
        assert_eq!(copy.tree.node("/q").map(Node::creations), Some(creations));
    }
    // A stat that knows of fewer children than came here does not turn the count back.
    let mut log = Log::paths(&["/s", "/s/p", "/s/p/1", "/s/p/2"]);
    let mut copy = Log::new(&[]);
    for path in ["/s/p/1", "/s/p/2"] {
        copy.result(&import_from(&log.tree, path)).expect("import");
    }
    log.tree.nodes.get_mut("/s/p").expect("p").creations = 1;
    copy.result(&import_from(&log.tree, "/s/p"))
        .expect("import");
    assert_eq!(copy.tree.node("/s/p").map(Node::creations), Some(2));
}

#[test]
fn versions_wrap_past_any() {
    for (version, next) in [(0, 1), (i32::MAX, i32::MIN), (-2, 0), (-1, 0)] {
        assert_eq!(node::next_version(version), next);
    }
}

#[test]
fn a_failed_multi_changes_nothing_and_says_where_it_failed() {
    let mut log = Log::paths(&["/a"]);
    let op = |path: &str| MultiOp::Create {
        path: path.into(),
        data: None,
        acl: vec![Acl::world(OPEN)],
        mode: CreateMode::Persistent,
    };
    let before = log.tree.clone();
    let applied = log.apply(&TreeCommand::Multi {
        ops: vec![
            op("/b"),
            MultiOp::Delete {
                path: "/b".into(),
                version: -1,
            },
            op("/a"),
            op("/c"),
        ],
        session: 0,
        auth: vec![],
    });
    assert_eq!(
        applied.result,
        Ok(TreeReply::Multi(vec![
            OpResult::RolledBack,
            OpResult::RolledBack,
            OpResult::Failed(NodeExists),
            OpResult::NotTried,
        ]))
    );
    assert_eq!(applied.changes, []);
    let mut after = log.tree.clone();
    after.last_zxid = before.last_zxid;
    assert_eq!(after, before);
}

#[test]
fn operations_of_a_multi_see_each_other() {
    let mut log = Log::paths(&["/a"]);
    let set = |path: &str, version| MultiOp::SetData {
        path: path.into(),
        data: None,
        version,
    };
    let op = |path: &str, mode| MultiOp::Create {
        path: path.into(),
        data: None,
        acl: vec![Acl::world(OPEN)],
        mode,
    };
    let delete = |path: &str, version| MultiOp::Delete {
        path: path.into(),
        version,
    };
    let multi = |ops| TreeCommand::Multi {
        ops,
        session: 7,
        auth: vec![],
    };
    let changes = log.changes(&multi(vec![
        op("/a/x", CreateMode::Persistent),
        set("/a/x", 0),
        MultiOp::Check {
            path: "/a/x".into(),
            version: 1,
        },
        delete("/a/x", 1),
        delete("/a", 0),
        op("/a", CreateMode::Ephemeral),
    ]));
    let wanted = [
        "Created /a/x",
        "DataChanged /a/x",
        "Deleted /a/x",
        "Deleted /a",
        "Created /a",
    ];
    assert_eq!(changes, wanted);
    assert_eq!(log.tree.owner_of("/a"), Some(7));
    let results = |ops| log.tree.check(&multi(ops));
    assert_eq!(results(vec![]), Ok(()));
    check_each(
        &[
            (
                vec![op("/a/x", CreateMode::Persistent)],
                Err(NoChildrenForEphemerals),
            ),
            (
                vec![
                    op("/e", CreateMode::Ephemeral),
                    op("/e/x", CreateMode::Persistent),
                ],
                Err(NoChildrenForEphemerals),
            ),
            (
                vec![
                    op("/p", CreateMode::Persistent),
                    op("/p/x", CreateMode::Persistent),
                    delete("/p", -1),
                ],
                Err(NotEmpty),
            ),
            (vec![set("/a", 0), set("/a", 0)], Err(BadVersion)),
            (vec![set("/a", 0), set("/a", 1)], Ok(())),
            (vec![delete("/a", 0), set("/a", -1)], Err(NoNode)),
        ],
        |ops| log.tree.check(&multi(ops.clone())),
    );
}

#[test]
fn a_session_takes_its_ephemerals_with_it() {
    let mut log = Log::new(&[
        create("/a"),
        ephemeral("/a/1", 7),
        ephemeral("/a/2", 7),
        ephemeral("/a/3", 7),
        ephemeral("/a/4", 8),
    ]);
    assert_eq!(log.stat("/a/1").ephemeral_owner, 7);
    assert_eq!(log.tree.ephemeral_count(), 4);
    assert_eq!(
        log.tree.ephemeral_owners().collect::<Vec<_>>(),
        [(7, 3), (8, 1)]
    );
    // Session 8 takes over /a/1: what 7 leaves behind is not removed with 7.
    log.result(&delete("/a/1", -1)).expect("delete");
    log.result(&ephemeral("/a/1", 8)).expect("create");
    let close = |session, keep: &[&str]| TreeCommand::CloseSession {
        session,
        keep: keep.iter().map(|p| p.to_string()).collect(),
    };
    assert_eq!(log.changes(&close(7, &["/a/3", "/a/1"])), ["Deleted /a/2"]);
    let a = log.stat("/a");
    assert_eq!((a.pzxid, a.num_children, a.cversion), (log.zxid, 3, 7));
    assert_eq!(log.tree.get_ephemerals(7, "/"), [Arc::from("/a/3")]);
    assert_eq!(log.changes(&close(7, &[])), ["Deleted /a/3"]);
    assert_eq!(log.changes(&close(7, &[])), [""; 0]);
    assert_eq!(
        log.changes(&close(8, &[])),
        ["Deleted /a/1", "Deleted /a/4"]
    );
    assert_eq!(
        (log.tree.ephemeral_count(), log.stat("/a").cversion),
        (0, 10)
    );
}

#[test]
fn ephemerals_are_listed_by_prefix() {
    let log = Log::new(&[create("/a"), ephemeral("/a/1", 7), ephemeral("/b", 7)]);
    for (session, prefix, wanted) in [
        (7, "", &["/a/1", "/b"][..]),
        (7, " / ", &["/a/1", "/b"]),
        (7, "/a", &["/a/1"]),
        (7, "/c", &[]),
        (8, "/", &[]),
    ] {
        let paths = log.tree.get_ephemerals(session, prefix);
        assert_eq!(paths.iter().map(|p| &**p).collect::<Vec<_>>(), wanted);
    }
}

#[test]
fn removal_decided_elsewhere() {
    let mut log = Log::new(&[
        create("/a"),
        create("/a/b"),
        ephemeral("/a/b/1", 7),
        ephemeral("/a/b/2", 8),
        create("/c"),
        create("/c/x"),
    ]);
    let paths = |paths: &[&str]| paths.iter().map(|p| p.to_string()).collect::<Vec<_>>();
    let expire = TreeCommand::Expire {
        nodes: ["/a/b/1", "/a/b/2", "/c", "/none"]
            .map(|p| (p.to_owned(), 7))
            .into(),
    };
    assert_eq!(log.changes(&expire), ["Deleted /a/b/1"]);
    let remove = TreeCommand::RemoveAll {
        paths: paths(&[
            "/a",
            "/none",
            "/c",
            "/a/b/2",
            "/a/b",
            "/",
            "/zookeeper/quota",
        ]),
    };
    assert_eq!(
        log.changes(&remove),
        ["Deleted /a/b/2", "Deleted /a/b", "Deleted /a"]
    );
    assert!(log.tree.contains("/c") && log.tree.contains("/zookeeper/quota"));
    assert_eq!(log.stat("/").pzxid, log.zxid);
}

#[test]
fn containers_and_ttl_nodes_are_collected() {
    let mut log = Log::new(&[
        create_as("/used", CreateMode::Container),
        create("/used/x"),
        create_as("/unused", CreateMode::Container),
        create_as("/ttl", CreateMode::PersistentTtl { ttl_ms: 100 }),
        create("/ttl/x"),
    ]);
    for path in ["/used", "/ttl"] {
        // Their special owner values stay within the server.
        assert_eq!(log.stat(path).ephemeral_owner, 0);
        assert_eq!(log.tree.owner_of(path), None);
    }
    let due = |log: &Log, now| {
        log.tree
            .due_for_reap(now)
            .iter()
            .map(|p| p.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(due(&log, i64::MAX), [""; 0]);
    log.result(&delete("/used/x", -1)).expect("delete");
    log.result(&delete("/ttl/x", -1)).expect("delete");
    // The TTL counts from the last write, at 1004.
    assert_eq!(due(&log, 1104), ["/used"]);
    assert_eq!(due(&log, 1105), ["/ttl", "/used"]);
    // Looked at again when it is done: the time is too early for one, the other was used again.
    let reap = TreeCommand::Reap {
        paths: ["/ttl", "/used", "/unused", "/zookeeper", "/none"]
            .map(str::to_owned)
            .into(),
    };
    log.result(&create("/used/y")).expect("create");
    assert_eq!(log.changes(&reap), [""; 0]);
    log.result(&delete("/used/y", -1)).expect("delete");
    assert_eq!(log.changes(&reap), ["Deleted /used"]);
    assert_eq!(log.tree.apply(&reap, 99, 2000).changes.len(), 1);
    assert!(!log.tree.contains("/ttl"));
}

#[test]
fn a_container_with_a_sequential_name_is_one() {
    let mut log = Log::new(&[
        create("/p"),
        create_as("/p/box-", CreateMode::ContainerSequential),
        create("/p/box-0000000000/x"),
        delete("/p/box-0000000000/x", -1),
    ]);
    let reap = TreeCommand::Reap {
        paths: vec!["/p/box-0000000000".to_owned()],
    };
    assert_eq!(log.changes(&reap), ["Deleted /p/box-0000000000"]);
}

#[test]
fn acl_syntax() {
    let mine = [AuthId::digest("u", "p"), AuthId::ip([10, 0, 0, 1].into())];
    check_each(
        &[
            (("world", "anyone"), Ok(())),
            (("world", "x"), Err(InvalidAcl)),
            (("digest", "a:b"), Ok(())),
            (("digest", ":b"), Ok(())),
            (("digest", "a:b:"), Ok(())),
            (("digest", "a"), Err(InvalidAcl)),
            (("digest", "a:"), Err(InvalidAcl)),
            (("digest", "a:b:c"), Err(InvalidAcl)),
            (("digest", ""), Err(InvalidAcl)),
            (("digest", ":"), Err(InvalidAcl)),
            (("ip", "127.0.0.1"), Ok(())),
            (("ip", "127.0.0.1/0"), Ok(())),
            (("ip", "127.0.0.1/32"), Ok(())),
            (("ip", "127.0.0.1/33"), Err(InvalidAcl)),
            (("ip", "127.0.0.1/x"), Err(InvalidAcl)),
            (("ip", "127.0.0.1/"), Err(InvalidAcl)),
            (("ip", "::1/128"), Ok(())),
            (("ip", "::1/129"), Err(InvalidAcl)),
            (("ip", "1.2.3"), Err(InvalidAcl)),
            (("super", "x"), Err(InvalidAcl)),
            (("x509", "CN=a"), Ok(())),
            (("x509", ""), Ok(())),
            (("x509", "a"), Err(InvalidAcl)),
            (("", ""), Err(InvalidAcl)),
            (("auth", ""), Ok(())),
        ],
        |(scheme, id)| acl::fix_up(&[acl(OPEN, scheme, id)], &mine).map(drop),
    );
    assert_eq!(acl::fix_up(&[], &mine), Err(InvalidAcl));
    // An address proves nothing.
    assert_eq!(
        acl::fix_up(&[acl(OPEN, "auth", "")], &mine[1..]),
        Err(InvalidAcl)
    );
    let world = Acl::world(OPEN);
    let asked = [world.clone(), acl(1, "auth", "ignored"), world.clone()];
    let stored = [world, acl(1, "digest", &digest_id("u", "p"))];
    assert_eq!(acl::fix_up(&asked, &mine).as_deref(), Ok(&stored[..]));
}

#[test]
fn acl_matching() {
    // The value is from ZooKeeper's documentation of digest ACLs.
    assert_eq!(
        digest_id("super", "admin"),
        "super:xQJmxLMiHGwaqBvst5y6rkB6HQs="
    );
    let digest = |user: &str| vec![AuthId::digest(user, "p")];
    let ip = |address: &str| vec![AuthId::ip(address.parse().expect("address"))];
    for (entry, auth, passes) in [
        (acl(perms::READ, "world", "anyone"), vec![], true),
        (acl(perms::WRITE, "world", "anyone"), vec![], false),
        (acl(OPEN, "digest", &digest_id("u", "p")), digest("u"), true),
        (
            acl(OPEN, "digest", &digest_id("u", "p")),
            digest("v"),
            false,
        ),
        (acl(OPEN, "digest", &digest_id("u", "p")), vec![], false),
        (acl(0, "digest", "x:y"), vec![AuthId::superuser()], true),
        (acl(OPEN, "ip", "10.1.0.0/16"), ip("10.1.2.3"), true),
        (acl(OPEN, "ip", "10.1.0.0/16"), ip("10.2.2.3"), false),
        (acl(OPEN, "ip", "10.1.2.3"), ip("10.1.2.3"), true),
        (acl(OPEN, "ip", "10.1.2.3"), ip("10.1.2.4"), false),
        (acl(OPEN, "ip", "10.1.2.3/0"), ip("1.1.1.1"), true),
        (acl(OPEN, "ip", "0.0.0.0/0"), ip("::1"), false),
        (acl(OPEN, "ip", "10.1.2.3"), ip("::ffff:10.1.2.3"), true),
        (acl(OPEN, "ip", "fe80::/10"), ip("fe80::1"), true),
    ] {
        let list = [entry];
        assert_eq!(
            permits(&list, perms::READ, &auth),
            passes,
            "{list:?} {auth:?}"
        );
    }
    assert!(permits(&[], perms::ADMIN, &[]));
}

#[test]
fn reads_need_read() {
    let who = AuthId::digest("u", "p");
    let hash = digest_id("u", "p");
    let secret = acl(perms::READ | perms::WRITE, "digest", &hash);
    let with = |path: &str, acl: Vec<Acl>| create_with(path, CreateMode::Persistent, acl, vec![]);
    let log = Log::new(&[
        with("/s", vec![secret.clone()]),
        with(
            "/admin",
            vec![acl(perms::ADMIN, "world", "anyone"), secret.clone()],
        ),
    ]);
    let tree = &log.tree;
    let me = [who];
    assert_eq!(tree.exists("/s", &[]), Err(NoAuth));
    assert_eq!(tree.get_data("/s", &[]), Err(NoAuth));
    assert_eq!(tree.get_children("/s", &[]), Err(NoAuth));
    assert_eq!(tree.all_children_number("/s", &[]), Err(NoAuth));
    assert_eq!(tree.get_acl("/s", &[]), Err(NoAuth));
    assert!(tree.exists("/s", &me).is_ok() && tree.get_data("/s", &me).is_ok());
    for path in ["/none", "none", "/s/"] {
        assert_eq!(tree.exists(path, &me), Err(NoNode));
        assert_eq!(tree.get_data(path, &me), Err(NoNode));
        assert_eq!(tree.get_children(path, &me), Err(NoNode));
        assert_eq!(tree.get_acl(path, &me), Err(NoNode));
        assert_eq!(tree.all_children_number(path, &me), Err(NoNode));
    }
    let hidden = acl(perms::READ | perms::WRITE, "digest", "u:x");
    assert_eq!(
        tree.get_acl("/s", &me).map(|(acl, _)| acl),
        Ok(vec![hidden])
    );
    let whole = vec![acl(perms::ADMIN, "world", "anyone"), secret];
    assert_eq!(tree.get_acl("/admin", &[]).map(|(acl, _)| acl), Ok(whole));
}

#[test]
fn children_and_descendants() {
    let log = Log::paths(&["/b", "/b/y", "/b/x", "/b/x/1", "/b/x-1", "/c"]);
    let (children, stat) = log.tree.get_children("/b", &[]).expect("readable");
    assert_eq!(
        children.iter().map(|c| &**c).collect::<Vec<_>>(),
        ["x", "x-1", "y"]
    );
    assert_eq!(stat.num_children, 3);
    let descendants = log.tree.descendants("/b");
    let descendants: Vec<&str> = descendants.iter().map(|p| &**p).collect();
    assert_eq!(descendants, ["/b/x", "/b/x/1", "/b/x-1", "/b/y"]);
    assert_eq!(log.tree.all_children_number("/b", &[]), Ok(4));
    assert_eq!(log.tree.all_children_number("/b/x", &[]), Ok(1));
    assert_eq!(log.tree.all_children_number("/", &[]), Ok(9));
    assert_eq!(log.tree.descendants("/none"), Vec::<Arc<str>>::new());
    assert_eq!(log.tree.node_count(), 10);
}

fn edition(tree: &ZnodeTree, path: &str) -> Option<u64> {
    tree.node(path).map(Node::edition)
}

#[test]
fn the_edition_changes_with_an_import_that_the_parent_counts_already() {
    let mut log = Log::new(&[]);
    let import = |path: &str, stat: Stat| TreeCommand::Import {
        path: path.into(),
        data: None,
        acl: vec![Acl::world(OPEN)],
        stat,
    };
    let parent = Stat {
        czxid: 1,
        pzxid: 9,
        cversion: 1,
        num_children: 1,
        ..Stat::default()
    };
    log.result(&import("/a", parent)).expect("passes");
    let before = edition(&log.tree, "/a");
    let child = Stat {
        czxid: 9,
        ..Stat::default()
    };
    log.result(&import("/a/x", child)).expect("passes");
    assert_ne!(edition(&log.tree, "/a"), before);
}

#[test]
fn the_edition_changes_with_whatever_a_reply_shows() {
    let mut log = Log::new(&[create("/a"), create("/other"), ephemeral("/a/e", 7)]);
    let mut last = edition(&log.tree, "/a");
    let mut seen = vec![last];
    for command in [
        create("/a/x"),
        set("/a", "1", -1),
        delete("/a/x", -1),
        TreeCommand::SetAcl {
            path: "/a".into(),
            acl: vec![Acl::world(OPEN)],
            version: -1,
            auth: vec![],
        },
        TreeCommand::CloseSession {
            session: 7,
            keep: vec![],
        },
        delete("/a", -1),
        create("/a"),
    ] {
        log.result(&command).expect("passes");
        let now = edition(&log.tree, "/a");
        assert!(now != last && !seen.contains(&now), "{command:?}");
        log.result(&set("/other", "x", -1)).expect("passes");
        assert_eq!(edition(&log.tree, "/a"), now);
        last = now;
        seen.push(now);
    }
    log.result(&ephemeral("/a/e", 7)).expect("passes");
    let before = edition(&log.tree, "/a/e");
    let reown = TreeCommand::Reown {
        path: "/a/e".into(),
        session: 8,
    };
    assert_eq!(log.changes(&reown), [""; 0]);
    assert_ne!(edition(&log.tree, "/a/e"), before);
}

#[test]
fn an_owner_can_be_replaced() {
    let mut log = Log::new(&[ephemeral("/e", 7), create("/p")]);
    let reown = |path: &str, session| TreeCommand::Reown {
        path: path.into(),
        session,
    };
    let before = log.stat("/e");
    assert_eq!(log.result(&reown("/e", 8)), Ok(TreeReply::Reowned));
    assert_eq!(
        log.stat("/e"),
        Stat {
            ephemeral_owner: 8,
            ..before
        }
    );
    assert_eq!(log.tree.ephemerals(7).count(), 0);
    assert_eq!(log.tree.ephemerals(8).count(), 1);
    assert_eq!(log.result(&reown("/p", 8)), Err(BadArguments));
    assert_eq!(log.result(&reown("/none", 8)), Err(NoNode));
    assert_eq!(log.result(&reown("/e", 0)), Err(SessionExpired));
}

/// Copies nodes from one tree to another, as another store would give them.
fn import_from(source: &ZnodeTree, path: &str) -> TreeCommand {
    let node = source.node(path).expect("exists in the source");
    TreeCommand::Import {
        path: path.into(),
        data: node.data().cloned(),
        acl: node.acl().to_vec(),
        stat: node.stat(),
    }
}

#[test]
fn an_imported_tree_is_the_tree_it_came_from() {
    let mut source = Log::new(&[
        create("/s"),
        create("/s/p"),
        create("/s/p/gone"),
        ephemeral("/s/p/1", 7),
        ephemeral("/s/p/2", 8),
        set("/s/p", "data", -1),
        delete("/s/p/gone", -1),
        ephemeral("/s/p/3", 7),
    ]);
    let mut copy = Log::new(&[]);
    copy.zxid = 1000;
    for path in ["/s", "/s/p", "/s/p/1", "/s/p/2", "/s/p/3"] {
        assert_eq!(
            copy.changes(&import_from(&source.tree, path)),
            [format!("Created {path}")]
        );
        assert_eq!(copy.changes(&import_from(&source.tree, path)), [""; 0]);
    }
    for path in source.tree.descendants("/s") {
        assert_eq!(copy.stat(&path), source.stat(&path), "{path}");
    }
    assert_eq!(copy.tree.ephemerals(7).count(), 2);
    let predicted = source.tree.predict_sequence("/s/p/n");
    assert_eq!(copy.tree.predict_sequence("/s/p/n"), predicted);

    // What happens in the other store later counts here, under this tree's number.
    source.result(&ephemeral("/s/p/4", 9)).expect("create");
    assert_eq!(
        copy.changes(&import_from(&source.tree, "/s/p/4")),
        ["Created /s/p/4"]
    );
    let (ours, theirs) = (copy.stat("/s/p"), source.stat("/s/p"));
    assert_eq!(
        ours,
        Stat {
            pzxid: copy.zxid,
            ..theirs
        }
    );

    // A new owner and new data there are taken over.
    source.result(&delete("/s/p/4", -1)).expect("delete");
    source.result(&ephemeral("/s/p/4", 7)).expect("create");
    source.result(&set("/s/p/4", "new", -1)).expect("set");
    assert_eq!(
        copy.changes(&import_from(&source.tree, "/s/p/4")),
        ["DataChanged /s/p/4"]
    );
    assert_eq!(copy.stat("/s/p/4"), source.stat("/s/p/4"));
    assert_eq!(copy.tree.owner_of("/s/p/4"), Some(7));
    assert_eq!(copy.tree.ephemerals(9).count(), 0);
}

#[test]
fn an_import_makes_missing_parents() {
    let source = Log::new(&[
        create("/s"),
        create("/s/p"),
        create("/s/p/x"),
        ephemeral("/e", 7),
    ]);
    let mut copy = Log::new(&[ephemeral("/e2", 7)]);
    copy.zxid = 1000;
    assert_eq!(
        copy.changes(&import_from(&source.tree, "/s/p/x")),
        ["Created /s", "Created /s/p", "Created /s/p/x"]
    );
    let made = copy.stat("/s/p");
    assert_eq!(
        (made.cversion, made.num_children, made.pzxid),
        (1, 1, copy.zxid)
    );
    // The parent's own stat replaces the makeshift one, but what was seen to change stays seen.
    assert_eq!(copy.changes(&import_from(&source.tree, "/s/p")), [""; 0]);
    assert_eq!(
        copy.stat("/s/p"),
        Stat {
            pzxid: made.pzxid,
            ..source.stat("/s/p")
        }
    );

    let import = |path: &str, owner| TreeCommand::Import {
        path: path.into(),
        data: None,
        acl: vec![],
        stat: Stat {
            ephemeral_owner: owner,
            ..Stat::default()
        },
    };
    check_each(
        &[
            (import("/e2/x", 0), Err(NoChildrenForEphemerals)),
            (import("/e2/x/y/z", 0), Err(NoChildrenForEphemerals)),
            (import("/s", 7), Err(NoChildrenForEphemerals)),
            (import("/s/", 0), Err(BadArguments)),
            (import("s", 0), Err(BadArguments)),
            (import("/new", 7), Ok(())),
        ],
        |command| copy.tree.check(command),
    );
}

#[test]
fn a_container_is_not_lost_by_an_import_that_cannot_tell() {
    let mut log = Log::new(&[create_as("/c", CreateMode::Container)]);
    let same = import_from(&log.tree, "/c");
    log.result(&same).expect("import");
    assert_eq!(
        log.tree.node("/c").map(Node::kind),
        Some(NodeKind::Container)
    );
}

#[test]
fn changes_carry_the_acls_that_guard_their_events() {
    let mine = acl(OPEN, "digest", &digest_id("u", "p"));
    let mut log = Log::new(&[]);
    let command = create_with("/s", CreateMode::Persistent, vec![mine.clone()], vec![]);
    for command in [command, set("/s", "", -1), delete("/s", -1)] {
        let command = match command {
            TreeCommand::SetData {
                path,
                data,
                version,
                ..
            } => TreeCommand::SetData {
                path,
                data,
                version,
                auth: vec![AuthId::digest("u", "p")],
            },
            other => other,
        };
        let changes = log.apply(&command).changes;
        assert_eq!(changes.len(), 1, "{command:?}");
        assert_eq!(&*changes[0].acl, std::slice::from_ref(&mine));
        assert_eq!(*changes[0].parent_acl, [Acl::world(OPEN)]);
    }
}

#[test]
fn damaged_images_are_refused() {
    let tree = Log::paths(&["/a", "/a/b"]).tree;
    let image = serde_json::to_value(&tree).expect("a tree can be written");
    assert_eq!(
        serde_json::from_value::<ZnodeTree>(image.clone()).ok(),
        Some(tree)
    );
    let damages: [fn(&mut Vec<serde_json::Value>); 5] = [
        |nodes| drop(nodes.remove(0)),
        |nodes| drop(nodes.remove(1)),
        |nodes| nodes.push(nodes[1].clone()),
        |nodes| nodes[2]["acl"] = 99.into(),
        |nodes| nodes[2]["path"] = "/a/".into(),
    ];
    for (i, damage) in damages.iter().enumerate() {
        let mut image = image.clone();
        damage(image["nodes"].as_array_mut().expect("nodes are a list"));
        assert!(
            serde_json::from_value::<ZnodeTree>(image).is_err(),
            "damage {i}"
        );
    }
}

/// A model that keeps no index and counts nothing: everything is recomputed from the nodes.
#[derive(Default)]
struct Model {
    nodes: BTreeMap<String, ModelNode>,
}

#[derive(Default, Clone)]
struct ModelNode {
    data: Option<Bytes>,
    owner: i64,
    creates: i64,
    deletes: i64,
    version: i32,
    pzxid: i64,
}

impl Model {
    fn children(&self, path: &str) -> Vec<&str> {
        let below = if path == "/" {
            "/".to_owned()
        } else {
            format!("{path}/")
        };
        self.nodes
            .keys()
            .filter_map(|p| p.strip_prefix(&below))
            .filter(|name| !name.is_empty() && !name.contains('/'))
            .collect()
    }

    fn parent(&mut self, path: &str) -> Option<&mut ModelNode> {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        self.nodes
            .get_mut(if parent.is_empty() { "/" } else { parent })
    }

    fn create(&mut self, path: &str, owner: i64, zxid: i64) -> bool {
        if self.nodes.contains_key(path) {
            return false;
        }
        match self.parent(path) {
            Some(parent) if parent.owner == 0 => {
                parent.creates += 1;
                parent.pzxid = zxid;
            }
            _ => return false,
        }
        let node = ModelNode {
            owner,
            pzxid: zxid,
            ..ModelNode::default()
        };
        self.nodes.insert(path.into(), node);
        true
    }

    fn delete(&mut self, path: &str, zxid: i64) -> bool {
        if !self.nodes.contains_key(path) || !self.children(path).is_empty() {
            return false;
        }
        self.nodes.remove(path);
        if let Some(parent) = self.parent(path) {
            parent.deletes += 1;
            parent.pzxid = zxid;
        }
        true
    }

    fn owned(&self, session: i64) -> Vec<String> {
        let owned = self.nodes.iter().filter(|(_, node)| node.owner == session);
        owned.map(|(path, _)| path.clone()).collect()
    }

    fn agrees_with(&self, tree: &ZnodeTree) {
        assert_eq!(tree.node_count(), self.nodes.len());
        let mut size = 0;
        for (path, node) in &self.nodes {
            let (children, stat) = tree.get_children(path, &[]).expect(path);
            let children: Vec<&str> = children.iter().map(|name| &**name).collect();
            assert_eq!(children, self.children(path), "{path}");
            if !path.starts_with("/zookeeper") && path != "/" {
                assert_eq!(
                    i64::from(stat.cversion),
                    node.creates + node.deletes,
                    "{path}"
                );
                assert_eq!(
                    i64::from(stat.num_children),
                    node.creates - node.deletes,
                    "{path}"
                );
                assert_eq!(stat.pzxid, node.pzxid, "{path}");
            }
            assert_eq!(
                (stat.version, stat.ephemeral_owner),
                (node.version, node.owner),
                "{path}"
            );
            assert_eq!(
                tree.node(path).and_then(Node::data),
                node.data.as_ref(),
                "{path}"
            );
            size += path.len() + node.data.as_ref().map_or(0, Bytes::len);
        }
        assert_eq!(tree.data_size(), size as u64);
        let mut ephemerals = 0;
        for session in 1..4 {
            let ours: Vec<&str> = tree.ephemerals(session).map(|p| &**p).collect();
            assert_eq!(ours, self.owned(session));
            ephemerals += ours.len();
        }
        assert_eq!(tree.ephemeral_count(), ephemerals);
        let owners: usize = tree.ephemeral_owners().map(|(_, count)| count).sum();
        assert_eq!(owners, ephemerals);
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn path(&mut self) -> String {
        let depth = self.below(3) + 1;
        (0..depth)
            .map(|_| ["/a", "/b", "/c"][self.below(3) as usize])
            .collect()
    }
}

#[test]
fn random_commands_agree_with_a_naive_model() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let mut tree = ZnodeTree::new();
        let mut model = Model::default();
        for path in syntax::SPECIAL {
            let node = ModelNode {
                data: Some(Bytes::new()),
                ..ModelNode::default()
            };
            model.nodes.insert(path.into(), node);
        }
        let mut log = Vec::new();
        for zxid in 1..250 {
            let (path, session) = (random.path(), random.below(3) as i64 + 1);
            let (command, passes) = match random.below(20) {
                0..=5 => (create(&path), model.create(&path, 0, zxid)),
                6..=8 => (
                    ephemeral(&path, session),
                    model.create(&path, session, zxid),
                ),
                9..=12 => (delete(&path, -1), model.delete(&path, zxid)),
                13..=14 => {
                    let data = ["", "x", "long"][random.below(3) as usize];
                    let node = model.nodes.get_mut(&path).map(|node| {
                        node.version += 1;
                        node.data = Some(Bytes::from(data));
                    });
                    (set(&path, data, -1), node.is_some())
                }
                15 => {
                    let owner = model.nodes.get_mut(&path).filter(|node| node.owner != 0);
                    let passes = owner.map(|node| node.owner = session).is_some();
                    (TreeCommand::Reown { path, session }, passes)
                }
                16 => {
                    for path in model.owned(session) {
                        model.delete(&path, zxid);
                    }
                    (
                        TreeCommand::CloseSession {
                            session,
                            keep: vec![],
                        },
                        true,
                    )
                }
                17 => {
                    let mut paths: Vec<String> = (0..4).map(|_| random.path()).collect();
                    let command = TreeCommand::RemoveAll {
                        paths: paths.clone(),
                    };
                    paths.sort_by_key(|path| std::cmp::Reverse(path.len()));
                    for path in paths {
                        model.delete(&path, zxid);
                    }
                    (command, true)
                }
                _ => {
                    let paths = [path, random.path()];
                    let before = model.nodes.clone();
                    let ok = model.create(&paths[0], 0, zxid) && model.delete(&paths[1], zxid);
                    if !ok {
                        model.nodes = before;
                    }
                    let [path, gone] = paths;
                    let ops = vec![
                        MultiOp::Create {
                            path,
                            data: None,
                            acl: vec![Acl::world(OPEN)],
                            mode: CreateMode::Persistent,
                        },
                        MultiOp::Delete {
                            path: gone,
                            version: -1,
                        },
                    ];
                    (
                        TreeCommand::Multi {
                            ops,
                            session,
                            auth: vec![],
                        },
                        ok,
                    )
                }
            };
            if let (
                TreeCommand::Create {
                    path,
                    mode: CreateMode::Persistent,
                    ..
                },
                true,
            ) = (&command, passes)
            {
                model
                    .nodes
                    .entry(path.clone())
                    .and_modify(|node| node.data = Some(Bytes::new()));
            }
            assert_eq!(
                tree.check(&command).is_ok(),
                passes,
                "seed {seed}: {command:?}"
            );
            let applied = tree.apply(&command, zxid, zxid);
            let failed_multi = applied
                .result
                .as_ref()
                .is_ok_and(TreeReply::is_failed_multi);
            assert_eq!(
                applied.result.is_ok() && !failed_multi,
                passes,
                "seed {seed}: {command:?}"
            );
            model.agrees_with(&tree);
            log.push(command);
        }

        // Through the stored form and back; and the log, through its stored form, once more.
        let image = postcard::to_stdvec(&tree).expect("a tree can be written");
        let back: ZnodeTree = postcard::from_bytes(&image).expect("and read");
        assert_eq!(back, tree);
        model.agrees_with(&back);
        let log = postcard::to_stdvec(&log).expect("a log can be written");
        let log: Vec<TreeCommand> = postcard::from_bytes(&log).expect("and read");
        let mut again = ZnodeTree::new();
        for (command, zxid) in log.iter().zip(1..) {
            again.apply(command, zxid, zxid);
        }
        assert_eq!(postcard::to_stdvec(&again).ok(), Some(image), "seed {seed}");
    }
}
