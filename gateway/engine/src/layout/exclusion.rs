//! Uses of the stores that look like registrations and are none: locks, elections, brokers' state.
//! Two copies of such a record break what it is for.

use super::codec::is_seq10;
use crate::path::Protocol;

/// Whether a znode's name is one that lock, election, semaphore and queue recipes make (Curator,
/// kazoo, the clients after ZooKeeper's recipes page).
pub fn looks_like_lock(name: &str) -> bool {
    if name.starts_with("_c_")
        && name.get(3..39).is_some_and(is_uuid)
        && name.get(39..40) == Some("-")
    {
        return true;
    }
    if ["singleton_candidate_", "__READ__", "__WRIT__"]
        .iter()
        .any(|start| name.starts_with(start))
    {
        return true;
    }
    // Every way to see a sequence at the end: the minus of a negative one looks like a separator.
    name.char_indices().any(|(at, _)| {
        let (head, tail) = name.split_at(at);
        let ends = [
            "lock-",
            "latch-",
            "lease-",
            "__READ__",
            "__WRIT__",
            "__lock__",
            "__rlock__",
            "__lease__",
        ];
        is_seq10(tail)
            && (matches!(head, "qn-" | "n_") || ends.iter().any(|end| head.ends_with(end)))
    })
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, b)| match at {
            8 | 13 | 18 | 23 => b == b'-',
            _ => b.is_ascii_hexdigit(),
        })
}

/// Whether the key is an etcd lock or election: etcd's `concurrency` package names it by its lease
/// in hex.
pub(crate) fn is_concurrency_key(key: &str, lease: Option<i64>) -> bool {
    lease.is_some_and(|lease| lease != 0 && crate::path::name(key) == format!("{lease:x}"))
}

/// What a record that no layout owns is known to be, when it is known to be no registration.
pub(crate) fn known_use(protocol: Protocol, key: &str, lease: Option<i64>) -> Option<&'static str> {
    let words: Vec<&str> = key.split('/').filter(|word| !word.is_empty()).collect();
    let first = words.first().copied().unwrap_or_default();
    let parents = words.split_last().map_or(&[][..], |(_, parents)| parents);
    let within = |path: &[&str]| words.windows(path.len()).any(|window| window == path);
    const PATRONI: [&str; 8] = [
        "leader",
        "members",
        "config",
        "sync",
        "failover",
        "history",
        "status",
        "initialize",
    ];
    if first == "service"
        && words.get(2).is_some_and(|word| PATRONI.contains(word))
        && words.len() <= 4
    {
        return Some("Patroni's cluster state");
    }
    match protocol {
        Protocol::Etcd => {
            if is_concurrency_key(key, lease) {
                return Some("a lock or an election (etcd concurrency)");
            }
            if parents.contains(&"locks") {
                return Some("a lock (Vitess topology)");
            }
        }
        Protocol::Zookeeper => {
            if words.iter().any(|word| looks_like_lock(word)) {
                return Some("a lock, an election or a queue (Curator recipes)");
            }
            if parents.contains(&"locks") || parents.contains(&"leases") {
                return Some("a lock or a semaphore");
            }
            if within(&["brokers", "ids"])
                || within(&["controller"])
                || within(&["isr_change_notification"])
            {
                return Some("Kafka's broker state");
            }
            if within(&["loadbalance", "brokers"])
                || first == "managed-ledgers"
                || first == "ledgers"
            {
                return Some("Pulsar's or BookKeeper's state");
            }
            for (root, what) in [
                ("hbase", "HBase's state"),
                ("hadoop-ha", "a Hadoop fail-over lock"),
                ("yarn-leader-election", "a YARN election"),
                ("flink", "Flink's leader state"),
                ("spark", "Spark's leader state"),
                ("clickhouse", "ClickHouse's replication state"),
            ] {
                if first == root {
                    return Some(what);
                }
            }
        }
    }
    None
}
