//! The tree and the table of watches against what a real ZooKeeper answered.
//!
//! `recorded/record.py` made the recording from seeded random requests; here the same requests
//! must give the same answers, stats, events and, now and then, the same whole tree.

use std::collections::BTreeMap;

use bytes::Bytes;
use causeway_engine::watch::{WatchKind, WatchTable, WatcherId};
use causeway_engine::znode_tree::{
    Acl, Applied, AuthId, CreateMode, MultiOp, OpResult, Stat, TreeCommand, TreeError, TreeReply,
    ZnodeTree, permits, perms,
};
use serde_json::{Value, json};

#[test]
fn answers_as_the_real_server_did() {
    let recording = match std::env::var("ZOOKEEPER_RECORDING") {
        Ok(path) => std::fs::read_to_string(path).expect("the recording named can be read"),
        Err(_) => include_str!("recorded/zookeeper-3.8.jsonl").to_owned(),
    };
    let mut replay = Replay::new();
    let mut steps = 0;
    for (number, line) in recording.lines().enumerate() {
        let line: Value = serde_json::from_str(line).expect("each line is JSON");
        if line["dump"].is_null() {
            replay.step(number + 1, &line);
            steps += 1;
        } else {
            assert_eq!(
                replay.dump("/"),
                line["dump"],
                "tree at line {}",
                number + 1
            );
        }
    }
    assert!(steps >= 500, "the recording is whole");
}

struct Replay {
    tree: ZnodeTree,
    watches: WatchTable,
}

impl Replay {
    fn new() -> Self {
        Replay {
            tree: ZnodeTree::new(),
            watches: WatchTable::new(),
        }
    }

    fn step(&mut self, number: usize, line: &Value) {
        let (op, zxid) = (&line["do"], int(&line["zxid"]));
        let who = int(&line["who"]) as u64;
        let mut events: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
        let answer = match command(op, &auth(who)) {
            Some(command) => {
                let checked = self.tree.check(&command);
                let before = self.tree.clone();
                let applied = self.tree.apply(
                    &command,
                    zxid,
                    time(&line["answer"]).max(int(&line["time"])),
                );
                let failed = match &applied.result {
                    Ok(reply) => reply.is_failed_multi(),
                    Err(_) => true,
                };
                assert_eq!(checked.is_err(), failed, "check at line {number}");
                if failed {
                    assert_eq!(applied.changes, vec![], "line {number}");
                    assert_eq!(
                        self.dump("/"),
                        Replay {
                            tree: before,
                            watches: WatchTable::new()
                        }
                        .dump("/")
                    );
                }
                for change in &applied.changes {
                    let read =
                        |who: WatcherId, acl: &[Acl]| permits(acl, perms::READ, &auth(who.0));
                    for fired in self.watches.fire(change, read) {
                        let event = json!([format!("{:?}", fired.event.kind), &*fired.event.path]);
                        for watcher in fired.watchers {
                            events.entry(watcher.0).or_default().push(event.clone());
                        }
                    }
                }
                let mut answer = answer(applied);
                forget_unsaid_stats(&mut answer, &line["answer"]);
                answer
            }
            None => self.watch(op, WatcherId(who), &mut events),
        };
        assert_eq!(answer, line["answer"], "answer at line {number}: {line}");
        for who in [0, 1] {
            let mut ours = events.remove(&who).unwrap_or_default();
            let mut theirs = line["events"][who as usize]
                .as_array()
                .cloned()
                .unwrap_or_default();
            if op["op"] == "close" {
                // The server goes through a session's nodes in no particular order.
                ours.sort_by_key(Value::to_string);
                theirs.sort_by_key(Value::to_string);
            }
            assert_eq!(ours, theirs, "events of {who} at line {number}: {line}");
        }
    }

    fn watch(
        &mut self,
        op: &Value,
        who: WatcherId,
        events: &mut BTreeMap<u64, Vec<Value>>,
    ) -> Value {
        let path = op["path"].as_str().unwrap_or_default();
        let ids = auth(who.0);
        match op["op"].as_str() {
            Some("watch_data") => match self.tree.get_data(path, &ids) {
                Ok((data, stat)) => {
                    self.watches.add_data(who, path);
                    json!({"data": text(data.as_ref()), "stat": stat_json(&stat)})
                }
                Err(error) => error_json(error),
            },
            Some("watch_exist") => {
                self.watches.add_exist(who, path);
                match self.tree.exists(path, &ids) {
                    Ok(stat) => json!({"stat": stat_json(&stat)}),
                    Err(error) => error_json(error),
                }
            }
            Some("watch_child") => match self.tree.get_children(path, &ids) {
                Ok((children, stat)) => {
                    let names: Vec<&str> = children.iter().map(|name| &**name).collect();
                    let answer = json!({"children": names, "stat": stat_json(&stat)});
                    self.watches.add_child(who, path);
                    answer
                }
                Err(error) => error_json(error),
            },
            Some("add_watch") => {
                match int(&op["mode"]) {
                    0 => self.watches.add_persistent(who, path),
                    _ => self.watches.add_recursive(who, path),
                }
                json!("ok")
            }
            Some("remove_watches") => {
                let kind = match int(&op["type"]) {
                    1 => WatchKind::Children,
                    2 => WatchKind::Data,
                    _ => WatchKind::Any,
                };
                match self.watches.remove(who, path, kind) {
                    true => json!("ok"),
                    false => json!(-121),
                }
            }
            Some("set_watches") => {
                let paths = |key: &str| -> Vec<&str> {
                    op[key]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .filter_map(Value::as_str)
                        .collect()
                };
                let missed = self.watches.set_watches(
                    &self.tree,
                    who,
                    int(&op["zxid"]),
                    &paths("data"),
                    &paths("exist"),
                    &paths("child"),
                    &paths("persistent"),
                    &paths("recursive"),
                    false,
                );
                let missed = missed
                    .into_iter()
                    .map(|e| json!([format!("{:?}", e.kind), &*e.path]));
                events.entry(who.0).or_default().extend(missed);
                json!("ok")
            }
            other => panic!("unknown operation {other:?}"),
        }
    }

    fn dump(&self, path: &str) -> Value {
        let mut paths = self.tree.descendants(path);
        paths.insert(0, path.into());
        // Parents first, siblings in order: as the recorder walked.
        let node = |path: &str| {
            let node = self.tree.node(path).expect("a descendant exists");
            json!({"path": path, "stat": stat_json(&node.stat()), "data": text(node.data())})
        };
        Value::Array(paths.iter().map(|path| node(path)).collect())
    }
}

fn auth(who: u64) -> Vec<AuthId> {
    let mut ids = vec![AuthId::ip([127, 0, 0, 1].into())];
    if who == 0 {
        ids.push(AuthId::digest("u", "p"));
    }
    ids
}

fn command(op: &Value, auth: &[AuthId]) -> Option<TreeCommand> {
    let path = || op["path"].as_str().unwrap_or_default().to_owned();
    let version = int(&op["version"]) as i32;
    let (session, auth) = (int(&op["session"]), auth.to_vec());
    Some(match op["op"].as_str()? {
        "create" => TreeCommand::Create {
            path: path(),
            data: data(op),
            acl: acl(op),
            mode: mode(op),
            session,
            auth,
        },
        "delete" => TreeCommand::Delete {
            path: path(),
            version,
            auth,
        },
        "set" => TreeCommand::SetData {
            path: path(),
            data: data(op),
            version,
            auth,
        },
        "set_acl" => TreeCommand::SetAcl {
            path: path(),
            acl: acl(op),
            version,
            auth,
        },
        "multi" => TreeCommand::Multi {
            ops: op["ops"].as_array()?.iter().map(multi_op).collect(),
            session,
            auth,
        },
        "close" => TreeCommand::CloseSession {
            session,
            keep: vec![],
        },
        _ => return None,
    })
}

fn multi_op(op: &Value) -> MultiOp {
    let path = op["path"].as_str().unwrap_or_default().to_owned();
    let version = int(&op["version"]) as i32;
    match op["op"].as_str() {
        Some("create") => MultiOp::Create {
            path,
            data: data(op),
            acl: acl(op),
            mode: mode(op),
        },
        Some("delete") => MultiOp::Delete { path, version },
        Some("set") => MultiOp::SetData {
            path,
            data: data(op),
            version,
        },
        Some("check") => MultiOp::Check { path, version },
        other => panic!("unknown operation {other:?}"),
    }
}

fn mode(op: &Value) -> CreateMode {
    let ttl_ms = int(&op["ttl"]);
    match op["mode"].as_str() {
        Some("Persistent") => CreateMode::Persistent,
        Some("PersistentSequential") => CreateMode::PersistentSequential,
        Some("Ephemeral") => CreateMode::Ephemeral,
        Some("EphemeralSequential") => CreateMode::EphemeralSequential,
        Some("Container") => CreateMode::Container,
        Some("PersistentTtl") => CreateMode::PersistentTtl { ttl_ms },
        Some("PersistentSequentialTtl") => CreateMode::PersistentSequentialTtl { ttl_ms },
        other => panic!("unknown mode {other:?}"),
    }
}

fn acl(op: &Value) -> Vec<Acl> {
    let entry = |entry: &Value| Acl {
        perms: int(&entry[0]) as u32,
        scheme: entry[1].as_str().unwrap_or_default().to_owned(),
        id: entry[2].as_str().unwrap_or_default().to_owned(),
    };
    op["acl"]
        .as_array()
        .into_iter()
        .flatten()
        .map(entry)
        .collect()
}

fn data(op: &Value) -> Option<Bytes> {
    op["data"].as_str().map(|text| Bytes::from(text.to_owned()))
}

fn answer(applied: Applied) -> Value {
    match applied.result {
        Err(error) => error_json(error),
        Ok(TreeReply::Created { path, stat }) => json!({"path": &*path, "stat": stat_json(&stat)}),
        Ok(TreeReply::Set(stat)) => json!({"stat": stat_json(&stat)}),
        Ok(TreeReply::Multi(results)) => results.iter().map(op_result).collect(),
        Ok(_) => json!("ok"),
    }
}

/// The server leaves out the stats of plain creates within a multi.
fn forget_unsaid_stats(ours: &mut Value, theirs: &Value) {
    let (Some(ours), Some(theirs)) = (ours.as_array_mut(), theirs.as_array()) else {
        return;
    };
    for (ours, theirs) in ours.iter_mut().zip(theirs) {
        if theirs["stat"].is_null()
            && let Some(ours) = ours.as_object_mut()
        {
            ours.remove("stat");
        }
    }
}

fn op_result(result: &OpResult) -> Value {
    match result {
        OpResult::Created { path, stat } => json!({"path": &**path, "stat": stat_json(stat)}),
        OpResult::Set(stat) => json!({"stat": stat_json(stat)}),
        OpResult::Deleted | OpResult::Checked => json!("ok"),
        OpResult::RolledBack => json!("RolledBack"),
        OpResult::NotTried => json!("NotTried"),
        OpResult::Failed(error) => error_json(*error),
    }
}

fn error_json(error: TreeError) -> Value {
    json!(format!("{error:?}"))
}

fn stat_json(s: &Stat) -> Value {
    json!([
        s.czxid,
        s.mzxid,
        s.ctime,
        s.mtime,
        s.version,
        s.cversion,
        s.aversion,
        s.ephemeral_owner,
        s.data_length,
        s.num_children,
        s.pzxid
    ])
}

/// When the request was carried out: the youngest time in its answer.
fn time(answer: &Value) -> i64 {
    match answer {
        Value::Array(results) => results.iter().map(time).max().unwrap_or(0),
        Value::Object(_) => int(&answer["stat"][3]),
        _ => 0,
    }
}

fn text(data: Option<&Bytes>) -> Value {
    data.map_or(Value::Null, |data| json!(String::from_utf8_lossy(data)))
}

fn int(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}
