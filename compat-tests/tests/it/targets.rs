//! Every kind of target serves, and does what its verbs say.

use std::process::Command;

use anyhow::{Result, ensure};
use causeway_compat_tests::clients::{output, python};
use causeway_compat_tests::target::{self, Options, Running};
use causeway_compat_tests::{Etcdctl, Work};

/// A kazoo application: `put PATH VALUE` prints the time of the write in milliseconds, `get PATH` the value.
const TREE: &str = r#"
import sys
from kazoo.client import KazooClient
client = KazooClient(hosts=sys.argv[1], timeout=10)
client.start(timeout=8)
if sys.argv[2] == "put":
    client.ensure_path(sys.argv[3])
    print(client.set(sys.argv[3], sys.argv[4].encode()).mtime)
elif client.exists(sys.argv[3]):
    print(client.get(sys.argv[3])[0].decode())
client.stop()
"#;

fn tree(address: &str, args: &[&str]) -> Result<String> {
    let text = output(
        Command::new(python())
            .args(["-c", TREE, address])
            .args(args),
    )?;
    Ok(text.trim().to_string())
}

/// The stores of a target, as one place for text under a name.
struct Store {
    zookeeper: Option<String>,
    etcd: Option<String>,
}

impl Store {
    fn of(target: &dyn Running) -> Store {
        Store {
            zookeeper: target.zookeeper(),
            etcd: target.etcd(),
        }
    }

    fn put(&self, name: &str, value: &str) -> Result<()> {
        if let Some(address) = &self.zookeeper {
            tree(address, &["put", &format!("/bench/{name}"), value])?;
        }
        if let Some(address) = &self.etcd {
            Etcdctl::new(address).run(&["put", &format!("bench/{name}"), value])?;
        }
        Ok(())
    }

    /// What each protocol has, an empty text for nothing.
    fn get(&self, name: &str) -> Result<Vec<String>> {
        let mut found = Vec::new();
        if let Some(address) = &self.zookeeper {
            found.push(tree(address, &["get", &format!("/bench/{name}")])?);
        }
        if let Some(address) = &self.etcd {
            let key = format!("bench/{name}");
            let text = Etcdctl::new(address).run(&["get", &key, "--print-value-only"])?;
            found.push(text.trim().to_string());
        }
        ensure!(!found.is_empty(), "the target serves nothing");
        Ok(found)
    }

    fn expect(&self, name: &str, value: &str) -> Result<()> {
        let found = self.get(name)?;
        ensure!(
            found.iter().all(|one| one == value),
            "{name} is {value:?}, not {found:?}"
        );
        Ok(())
    }
}

/// Starts `kind`, keeps data over a kill, loses it by `restart empty`.
fn check(kind: &str) {
    Work::scenario(&format!("target-{kind}"), |work| {
        let mut target = target::start(work, kind, &Options::default())?;
        let store = Store::of(&*target);
        eprintln!("{kind}: {}", target.version());
        store.put("kept", "one")?;
        store.expect("kept", "one")?;
        target.fault(&"kill".parse()?)?;
        ensure!(store.put("lost", "two").is_err(), "it is down");
        target.fault(&"start".parse()?)?;
        store.expect("kept", "one")?;
        target.fault(&"restart empty".parse()?)?;
        store.expect("kept", "")
    });
}

#[test]
fn zookeeper_3_9() {
    check("zookeeper-3.9");
}

#[test]
fn zookeeper_3_8() {
    check("zookeeper-3.8");
}

#[test]
fn etcd_3_4() {
    check("etcd-3.4");
}

#[test]
fn causeway_embedded() {
    check("causeway-embedded");
}
