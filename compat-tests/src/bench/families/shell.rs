//! What people type: ZooKeeper's command line, etcdctl, and curl against etcd's JSON gateway.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::artefacts::{go_program, zookeeper_jars};
use crate::bench::Protocol;
use crate::bench::client::{Client, Family, tool};
use crate::files::names;

/// The command lines.
pub struct Shell;

const CLIENTS: &[Client] = &[
    Client {
        name: "zkcli",
        protocol: Protocol::ZooKeeper,
        folder: "zkcli",
        support: &["support"],
    },
    Client {
        name: "etcdctl",
        protocol: Protocol::Etcd,
        folder: "etcdctl",
        support: &["support"],
    },
    Client {
        name: "etcdctl-3.4",
        protocol: Protocol::Etcd,
        folder: "etcdctl",
        support: &["support"],
    },
    Client {
        name: "curl",
        protocol: Protocol::Etcd,
        folder: "curl",
        support: &["support"],
    },
];

impl Family for Shell {
    fn name(&self) -> &'static str {
        "shell"
    }

    fn clients(&self) -> &'static [Client] {
        CLIENTS
    }

    /// There is nothing to build; the tools must be there.
    fn build(&self, sources: &Path, built: &Path) -> Result<()> {
        for (program, package) in [
            ("timeout", "coreutils"),
            ("java", "default-jre-headless"),
            ("jq", "jq"),
            ("curl", "curl"),
        ] {
            tool(Command::new(program).arg("--version"), package)?;
        }
        self.versions(sources, built)?;
        Ok(())
    }

    fn versions(&self, _sources: &Path, _built: &Path) -> Result<BTreeMap<String, String>> {
        let curl = tool(Command::new("curl").arg("--version"), "curl")?;
        Ok(BTreeMap::from([
            ("zkcli".to_string(), zookeeper_version()?),
            ("etcdctl".to_string(), etcdctl_version(&etcdctl())?),
            ("etcdctl-3.4".to_string(), etcdctl_version(&debian())?),
            (
                "curl".to_string(),
                curl.split(' ')
                    .nth(1)
                    .context("curl tells no version")?
                    .to_string(),
            ),
        ]))
    }

    fn command(&self, sources: &Path, _built: &Path, client: &Client) -> Command {
        let mut command = Command::new("bash");
        command
            .arg(sources.join("run.sh"))
            .arg(client.folder)
            .env("ETCDCTL_API", "3");
        let words = if client.name == "etcdctl" {
            etcdctl()
        } else {
            debian()
        };
        command.env("ETCDCTL", words.join(OsStr::new(" ")));
        if let Some(jars) = fetched_jars() {
            // The server does without this library; the command line does not.
            let mut classpath = jars.join("*").into_os_string();
            classpath.push(":/usr/share/java/commons-cli.jar");
            command.env("ZKCLI_CLASSPATH", classpath);
        }
        command
    }
}

/// The command of etcdctl, in words: `ETCDCTL`, else the one built beside the Go clients, else the system's.
fn etcdctl() -> Vec<OsString> {
    if let Ok(words) = std::env::var("ETCDCTL") {
        return words.split_whitespace().map(OsString::from).collect();
    }
    let built = go_program();
    if built.exists() {
        vec![built.into(), "etcdctl".into()]
    } else {
        vec!["etcdctl".into()]
    }
}

/// The command of the etcdctl that Debian packages, which is of 3.4.
fn debian() -> Vec<OsString> {
    vec!["/usr/bin/etcdctl".into()]
}

fn etcdctl_version(words: &[OsString]) -> Result<String> {
    let (program, arguments) = words.split_first().context("ETCDCTL is empty")?;
    let said = tool(
        Command::new(program)
            .args(arguments)
            .arg("version")
            .env("ETCDCTL_API", "3"),
        "etcd-client",
    )?;
    let version = said
        .lines()
        .find_map(|line| line.strip_prefix("etcdctl version: "));
    Ok(version.context("etcdctl tells no version")?.to_string())
}

/// The jars of the newest ZooKeeper that was fetched for the servers; without it the system's is taken.
fn fetched_jars() -> Option<PathBuf> {
    let jars = zookeeper_jars("3.9");
    jars.is_dir().then_some(jars)
}

/// By the name of the jar, as in `zookeeper-3.8.0.jar`.
fn zookeeper_version() -> Result<String> {
    let files = match fetched_jars() {
        Some(jars) => names(&jars, "jar")?,
        None => {
            let jar = Path::new("/usr/share/java/zookeeper.jar");
            let jar = jar.canonicalize().context("install zookeeper")?;
            let stem = jar.file_stem().unwrap_or_default();
            vec![stem.to_string_lossy().into_owned()]
        }
    };
    files
        .iter()
        .filter_map(|file| file.strip_prefix("zookeeper-"))
        .find(|version| version.starts_with(|first: char| first.is_ascii_digit()))
        .map(str::to_string)
        .context("no jar of ZooKeeper with a version in its name")
}
