//! Rust: the crates `etcd-client` and `zookeeper-client`, at the versions of the workspace's lock file.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::bench::client::{Client, Family, tool};
use crate::bench::scenario::Protocol;

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

    fn build(&self, sources: &Path, built: &Path) -> Result<()> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .args(["build", "--package", "causeway-compat-tests"])
            .args(["--bin", "compat-rust", "--message-format", "json"])
            .current_dir(sources);
        // Where cargo puts the program is its own matter; it says so.
        let said = tool(&mut cargo, "cargo")?;
        let program = said
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
            .filter(|message| message["target"]["name"] == "compat-rust")
            .find_map(|message| message["executable"].as_str().map(str::to_owned))
            .context("cargo names no program")?;
        fs::copy(program, built.join("compat-rust")).context("compat-rust")?;
        Ok(())
    }

    fn versions(&self, sources: &Path, _built: &Path) -> Result<BTreeMap<String, String>> {
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

    fn command(&self, _sources: &Path, built: &Path, client: &Client) -> Command {
        let mut command = Command::new(built.join("compat-rust"));
        command.arg(client.name);
        command
    }
}
