//! Rust: the crates `etcd-client` and `zookeeper-client`, at the versions of the workspace's lock file.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::artefacts::beside;
use crate::bench::Protocol;
use crate::bench::client::{Client, Family};

/// The family.
pub struct Rust;

const CLIENTS: &[Client] = &[
    Client {
        name: "etcd-client",
        protocol: Protocol::Etcd,
        folder: "etcd_client",
        support: &["mod", "support"],
    },
    Client {
        name: "zookeeper-client",
        protocol: Protocol::ZooKeeper,
        folder: "zookeeper_client",
        support: &["mod", "support"],
    },
];

impl Family for Rust {
    fn name(&self) -> &'static str {
        "rust"
    }

    fn clients(&self) -> &'static [Client] {
        CLIENTS
    }

    /// The workspace's own build makes the program, with the features and flags of everything else.
    fn build(&self, _sources: &Path, _built: &Path) -> Result<()> {
        Ok(())
    }

    fn versions(&self, sources: &Path, _built: &Path) -> Result<BTreeMap<String, String>> {
        program()?;
        let lock: toml::Table =
            toml::from_str(&fs::read_to_string(sources.join("../../../Cargo.lock"))?)?;
        let packages = lock
            .get("package")
            .and_then(toml::Value::as_array)
            .context("no packages in Cargo.lock")?;
        let version = |client: &Client| {
            let text = |package: &toml::Value, field| {
                package
                    .get(field)
                    .and_then(toml::Value::as_str)
                    .map(str::to_owned)
            };
            let version = packages
                .iter()
                .find(|package| text(package, "name").as_deref() == Some(client.name))
                .and_then(|package| text(package, "version"))
                .with_context(|| format!("{} is not in Cargo.lock", client.name))?;
            Ok((client.name.to_owned(), version))
        };
        CLIENTS.iter().map(version).collect()
    }

    fn command(&self, _sources: &Path, _built: &Path, client: &Client) -> Command {
        // Where it is not, `versions` has said so already.
        let mut command = Command::new(program().unwrap_or_else(|_| PROGRAM.into()));
        command.arg(client.name);
        command
    }
}

const PROGRAM: &str = "compat-rust";

fn program() -> Result<PathBuf> {
    beside(PROGRAM)
}
