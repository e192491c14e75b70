//! Java: `zookeeper` (ZooKeeper's own client), `curator` and `jetcd`, at the versions of `pom.xml`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::bench::Protocol;
use crate::bench::client::{Client, Family, tool};
use crate::files::names;

/// The family.
pub struct Java;

const CLIENTS: &[Client] = &[
    Client {
        name: "zookeeper",
        protocol: Protocol::ZooKeeper,
        folder: "src/main/java/compat/zookeeper",
        support: &["Zk", "Events"],
    },
    Client {
        name: "curator",
        protocol: Protocol::ZooKeeper,
        folder: "src/main/java/compat/curator",
        support: &["Cf", "States"],
    },
    Client {
        name: "jetcd",
        protocol: Protocol::Etcd,
        folder: "src/main/java/compat/jetcd",
        support: &["Etcd", "Events"],
    },
];

impl Family for Java {
    fn name(&self) -> &'static str {
        "java"
    }

    fn clients(&self) -> &'static [Client] {
        CLIENTS
    }

    fn build(&self, sources: &Path, built: &Path) -> Result<()> {
        // Maven takes away neither the jars of older versions nor the classes of files that are gone.
        fs::remove_dir_all(built)?;
        fs::create_dir_all(built)?;
        let mut maven = Command::new("mvn");
        maven
            .args(["-q", "-B", "process-classes"])
            .arg(format!("-Dcompat.out={}", built.display()))
            .current_dir(sources);
        tool(&mut maven, "maven and openjdk-17-jdk-headless").map(drop)
    }

    fn versions(&self, _sources: &Path, built: &Path) -> Result<BTreeMap<String, String>> {
        let jars = names(&built.join("lib"), "jar")?;
        let version = |client: &Client| {
            let start = match client.name {
                "curator" => "curator-framework-",
                "jetcd" => "jetcd-core-",
                _ => "zookeeper-",
            };
            let version = jars
                .iter()
                .filter_map(|jar| jar.strip_prefix(start))
                .find(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
                .with_context(|| format!("no jar of {}", client.name))?;
            Ok((client.name.to_owned(), version.to_owned()))
        };
        CLIENTS.iter().map(version).collect()
    }

    fn command(&self, _sources: &Path, built: &Path, client: &Client) -> Command {
        let mut command = Command::new("java");
        command
            // One short scenario a process: a quick start counts, not the speed after minutes.
            .args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"])
            .arg("-cp")
            .arg(format!("{0}/classes:{0}/lib/*", built.display()))
            .args(["compat.Main", client.name]);
        command
    }
}
