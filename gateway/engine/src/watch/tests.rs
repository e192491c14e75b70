use super::*;
use crate::znode_tree::{AuthId, CreateMode, TreeCommand, permits, perms};

const A: WatcherId = WatcherId(1);
const B: WatcherId = WatcherId(2);

/// A tree and a table, changed together.
struct World {
    tree: ZnodeTree,
    table: WatchTable,
    zxid: i64,
}

impl World {
    fn new(paths: &[&str]) -> Self {
        let mut world = World {
            tree: ZnodeTree::new(),
            table: WatchTable::new(),
            zxid: 0,
        };
        for path in paths {
            world.create(path);
        }
        world
    }

    fn apply(&mut self, command: &TreeCommand) -> Vec<String> {
        self.zxid += 1;
        let applied = self.tree.apply(command, self.zxid, 1000 + self.zxid);
        assert!(applied.result.is_ok(), "{command:?}: {:?}", applied.result);
        let mut seen = Vec::new();
        for change in &applied.changes {
            // A reads as a stranger, B as somebody with a password.
            let can_read = |watcher: WatcherId, acl: &[Acl]| match watcher {
                A => permits(acl, perms::READ, &[]),
                _ => permits(acl, perms::READ, &[AuthId::digest("u", "p")]),
            };
            for Fired { event, watchers } in self.table.fire(change, can_read) {
                assert_eq!(event.zxid, self.zxid);
                seen.extend(watchers.iter().map(|w| show(*w, &event)));
            }
        }
        seen
    }

    fn create(&mut self, path: &str) -> Vec<String> {
        self.create_with(path, Acl::world(perms::ALL))
    }

    fn create_with(&mut self, path: &str, acl: Acl) -> Vec<String> {
        self.apply(&TreeCommand::Create {
            path: path.into(),
            data: None,
            acl: vec![acl],
            mode: CreateMode::Persistent,
            session: 0,
            auth: vec![],
        })
    }

    fn delete(&mut self, path: &str) -> Vec<String> {
        self.apply(&TreeCommand::Delete {
            path: path.into(),
            version: -1,
            auth: vec![],
        })
    }

    fn set(&mut self, path: &str) -> Vec<String> {
        self.apply(&TreeCommand::SetData {
            path: path.into(),
            data: None,
            version: -1,
            auth: vec![AuthId::superuser()],
        })
    }
}

fn show(watcher: WatcherId, event: &WatchEvent) -> String {
    let who = if watcher == A { "A" } else { "B" };
    let what = match event.kind {
        EventKind::NodeCreated => "created",
        EventKind::NodeDeleted => "deleted",
        EventKind::NodeDataChanged => "changed",
        EventKind::NodeChildrenChanged => "children",
    };
    format!("{who} {what} {}", event.path)
}

#[test]
fn one_shot_watches_fire_once_each() {
    let mut world = World::new(&["/a", "/a/x"]);
    world.table.add_data(A, "/a/x");
    world.table.add_data(A, "/a/x");
    world.table.add_exist(A, "/a/x");
    assert_eq!(world.table.counts().watches, 1);
    assert_eq!(world.set("/a/x"), ["A changed /a/x"]);
    assert_eq!(world.set("/a/x"), [""; 0]);

    world.table.add_exist(A, "/a/y");
    world.table.add_child(B, "/a");
    assert_eq!(world.create("/a/y"), ["A created /a/y", "B children /a"]);
    assert_eq!(world.delete("/a/y"), [""; 0]);
    assert_eq!(world.table.counts(), WatchCounts::default());
}

#[test]
fn a_delete_is_told_once_to_each_connection() {
    let mut world = World::new(&["/a", "/a/x"]);
    world.table.add_data(A, "/a/x");
    world.table.add_child(A, "/a/x");
    world.table.add_child(B, "/a/x");
    world.table.add_child(B, "/a");
    assert_eq!(
        world.delete("/a/x"),
        ["A deleted /a/x", "B deleted /a/x", "B children /a"]
    );
    // The watch that was not needed is used up all the same.
    assert_eq!(world.table.counts(), WatchCounts::default());
}

#[test]
fn persistent_watches_stay_and_cover_data_and_children() {
    let mut world = World::new(&["/a", "/a/x"]);
    world.table.add_persistent(A, "/a");
    for _ in 0..2 {
        assert_eq!(world.set("/a"), ["A changed /a"]);
        assert_eq!(world.create("/a/y"), ["A children /a"]);
        assert_eq!(world.set("/a/y"), [""; 0]);
        assert_eq!(world.delete("/a/y"), ["A children /a"]);
    }
    world.delete("/a/x");
    assert_eq!(world.delete("/a"), ["A deleted /a"]);
    assert_eq!(world.create("/a"), ["A created /a"]);
}

#[test]
fn recursive_watches_name_the_changed_node_and_never_its_children() {
    let mut world = World::new(&["/a"]);
    world.table.add_recursive(A, "/a");
    assert_eq!(world.create("/a/b"), ["A created /a/b"]);
    assert_eq!(world.create("/a/b/c"), ["A created /a/b/c"]);
    assert_eq!(world.set("/a/b/c"), ["A changed /a/b/c"]);
    assert_eq!(world.set("/a"), ["A changed /a"]);
    assert_eq!(world.delete("/a/b/c"), ["A deleted /a/b/c"]);
    assert_eq!(world.create("/ab"), [""; 0]);
    world.table.add_recursive(B, "/");
    assert_eq!(world.delete("/a/b"), ["A deleted /a/b", "B deleted /a/b"]);
    assert_eq!(world.set("/"), ["B changed /"]);
}

#[test]
fn kinds_of_watch_on_one_path_are_independent() {
    let mut world = World::new(&["/a"]);
    world.table.add_data(A, "/a");
    world.table.add_child(A, "/a");
    world.table.add_persistent(A, "/a");
    world.table.add_recursive(A, "/a");
    assert_eq!(world.table.counts().watches, 4);
    assert_eq!(world.set("/a"), ["A changed /a"]);
    assert_eq!(world.create("/a/x"), ["A created /a/x", "A children /a"]);
    // The one-shot ones are used up, the others stand.
    assert!(!world.table.check(A, "/a", WatchKind::Data));
    assert!(!world.table.check(A, "/a", WatchKind::Children));
    assert!(world.table.check(A, "/a", WatchKind::Persistent));
    assert!(world.table.remove(A, "/a", WatchKind::Persistent));
    assert!(!world.table.remove(A, "/a", WatchKind::Persistent));
    assert!(!world.table.remove(B, "/a", WatchKind::Any));
    assert_eq!(world.delete("/a/x"), ["A deleted /a/x"]);
    assert!(world.table.remove(A, "/a", WatchKind::Any));
    assert_eq!(world.set("/a"), [""; 0]);
}

#[test]
fn events_go_only_to_those_who_may_read_the_node() {
    let mut world = World::new(&["/open"]);
    let mine = Acl {
        perms: perms::ALL,
        scheme: "digest".into(),
        id: crate::znode_tree::digest_id("u", "p"),
    };
    for watcher in [A, B] {
        world.table.add_exist(watcher, "/secret");
        world.table.add_child(watcher, "/");
    }
    assert_eq!(
        world.create_with("/secret", mine.clone()),
        ["B created /secret", "A children /", "B children /"]
    );
    for watcher in [A, B] {
        world.table.add_child(watcher, "/secret");
        world.table.add_data(watcher, "/secret");
        world.table.add_recursive(watcher, "/");
    }
    assert_eq!(world.set("/secret"), ["B changed /secret"]);
    // Used up without an event.
    assert!(!world.table.check(A, "/secret", WatchKind::Data));
    assert_eq!(world.delete("/secret"), ["B deleted /secret"]);
    assert!(!world.table.check(A, "/secret", WatchKind::Children));
}

#[test]
fn a_session_that_ends_fires_per_node() {
    let mut world = World::new(&["/a"]);
    for path in ["/a/1", "/a/2"] {
        world.apply(&TreeCommand::Create {
            path: path.into(),
            data: None,
            acl: vec![Acl::world(perms::ALL)],
            mode: CreateMode::Ephemeral,
            session: 7,
            auth: vec![],
        });
    }
    world.table.add_child(A, "/a");
    world.table.add_persistent(B, "/a");
    world.table.add_data(A, "/a/2");
    let close = TreeCommand::CloseSession {
        session: 7,
        keep: vec![],
    };
    assert_eq!(
        world.apply(&close),
        [
            "A children /a",
            "B children /a",
            "A deleted /a/2",
            "B children /a"
        ]
    );
}

#[test]
fn set_watches_tells_what_was_missed_and_arms_the_rest() {
    // /a has mzxid 1 and pzxid 3, /a/x has mzxid 4 and pzxid 2.
    let mut world = World::new(&["/a", "/a/x", "/a/y"]);
    world.set("/a/x");
    let paths = ["/a", "/a/x", "/none"];
    // What is told, and what of data, exist and child watches is armed afterwards.
    let check = |relative_zxid: i64, foreign: bool, told: &[&str], armed: &[&str]| {
        let mut table = WatchTable::new();
        let events = table.set_watches(
            &world.tree,
            A,
            relative_zxid,
            &paths,
            &paths,
            &paths,
            &["/p"],
            &["/r"],
            foreign,
        );
        assert!(events.iter().all(|event| event.zxid == NO_ZXID));
        let events: Vec<String> = events.iter().map(|event| show(A, event)).collect();
        assert_eq!(events, told, "{relative_zxid} {foreign}");
        let mut now: Vec<String> = Vec::new();
        for path in paths {
            for (kind, name) in [(WatchKind::Data, "data"), (WatchKind::Children, "child")] {
                if table.check(A, path, kind) {
                    now.push(format!("{name} {path}"));
                }
            }
        }
        assert_eq!(now, armed, "{relative_zxid} {foreign}");
        assert!(table.check(A, "/p", WatchKind::Persistent));
        assert!(table.check(A, "/r", WatchKind::PersistentRecursive));
    };
    let created = ["A created /a", "A created /a/x"];
    let gone = "A deleted /none";
    let all = [
        "A changed /a",
        "A changed /a/x",
        gone,
        created[0],
        created[1],
        "A children /a",
        "A children /a/x",
        gone,
    ];
    check(0, false, &all, &["data /none"]);
    check(
        2,
        false,
        &[
            "A changed /a/x",
            gone,
            created[0],
            created[1],
            "A children /a",
            gone,
        ],
        &["data /a", "child /a/x", "data /none"],
    );
    check(
        4,
        false,
        &[gone, created[0], created[1], gone],
        &[
            "data /a",
            "child /a",
            "data /a/x",
            "child /a/x",
            "data /none",
        ],
    );
    check(i64::MAX, true, &all, &["data /none"]);
}

#[test]
fn a_connection_takes_its_watches_with_it() {
    let mut world = World::new(&["/a"]);
    world.table.add_data(A, "/a");
    world.table.add_recursive(A, "/");
    world.table.add_child(B, "/a");
    assert_eq!(
        world.table.counts(),
        WatchCounts {
            connections: 2,
            paths: 2,
            watches: 3
        }
    );
    assert_eq!(world.table.paths_of(A).len(), 2);
    world.table.remove_watcher(A);
    assert_eq!(world.table.paths_of(A).len(), 0);
    assert_eq!(world.table.watchers().collect::<Vec<_>>(), [B]);
    assert_eq!(world.create("/a/x"), ["B children /a"]);
    assert_eq!(world.table.counts(), WatchCounts::default());
}

#[test]
fn many_rounds_leave_nothing_behind() {
    let mut world = World::new(&["/a"]);
    for _ in 0..10_000 {
        world.table.add_data(A, "/a");
        assert_eq!(world.set("/a"), ["A changed /a"]);
    }
    assert_eq!(world.table.counts(), WatchCounts::default());
}
