//! Node: `etcd3` and `node-zookeeper-client`, at the versions of `package-lock.json`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::bench::Protocol;
use crate::bench::client::{Client, Family, tool};

/// The family.
pub struct Node;

const CLIENTS: &[Client] = &[
    Client {
        // Python has a library of the same name.
        name: "node-etcd3",
        protocol: Protocol::Etcd,
        folder: "etcd3",
        support: &["support"],
    },
    Client {
        name: "node-zookeeper-client",
        protocol: Protocol::ZooKeeper,
        folder: "node-zookeeper-client",
        support: &["support"],
    },
];

impl Family for Node {
    fn name(&self) -> &'static str {
        "node"
    }

    fn clients(&self) -> &'static [Client] {
        CLIENTS
    }

    fn build(&self, sources: &Path, built: &Path) -> Result<()> {
        for file in ["package.json", "package-lock.json"] {
            fs::copy(sources.join(file), built.join(file)).context(file)?;
        }
        // Neither library needs the scripts of its packages; they would be code of others run at build time.
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
            .current_dir(built);
        tool(&mut npm, "npm").map(drop)
    }

    fn versions(&self, sources: &Path, _built: &Path) -> Result<BTreeMap<String, String>> {
        let lock: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(sources.join("package-lock.json"))?)?;
        let version = |client: &Client| {
            let version = lock["packages"][format!("node_modules/{}", client.folder)]["version"]
                .as_str()
                .with_context(|| format!("{} is not locked", client.folder))?;
            Ok((client.name.to_owned(), version.to_owned()))
        };
        CLIENTS.iter().map(version).collect()
    }

    fn command(&self, sources: &Path, built: &Path, client: &Client) -> Command {
        let mut command = Command::new("node");
        command
            .arg(sources.join("main.js"))
            .arg(client.folder)
            .env("NODE_PATH", built.join("node_modules"));
        command
    }
}
