//! Go: `clientv3` with its concurrency and naming packages, and `go-zookeeper`, at the versions of `go.mod`; the same
//! program is etcd itself and etcdctl. The applications on etcd are a second program of the module.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::bench::Protocol;
use crate::bench::client::{Client, Family, tool};

/// The family.
pub struct Go;

const CLIENTS: &[Client] = &[
    Client {
        name: "clientv3",
        protocol: Protocol::Etcd,
        folder: "clientv3",
        support: &["support"],
    },
    Client {
        name: "go-zookeeper",
        protocol: Protocol::ZooKeeper,
        folder: "gozookeeper",
        support: &["support"],
    },
];

/// The clients' program.
const PROGRAM: &str = "compat-go";
/// The module's programs: by the name of each, its package.
const PROGRAMS: &[(&str, &str)] = &[(PROGRAM, "."), ("compat-apps", "./apps")];

impl Family for Go {
    fn name(&self) -> &'static str {
        "go"
    }

    fn clients(&self) -> &'static [Client] {
        CLIENTS
    }

    fn build(&self, sources: &Path, built: &Path) -> Result<()> {
        for (program, package) in PROGRAMS {
            let mut go = Command::new("go");
            // Without paths and symbols a program is half as large and the same in every checkout.
            go.args(["build", "-mod=readonly", "-buildvcs=false", "-trimpath"])
                .arg("-ldflags=-s -w")
                .arg("-o")
                .arg(built.join(program))
                .arg(package)
                .current_dir(sources);
            tool(&mut go, "golang-go, of the version in go.mod or newer")?;
        }
        Ok(())
    }

    fn versions(&self, _sources: &Path, built: &Path) -> Result<BTreeMap<String, String>> {
        let mut program = Command::new(built.join(PROGRAM));
        let said = tool(program.arg("versions"), PROGRAM)?;
        let version = |client: &Client| {
            let version = said
                .lines()
                .filter_map(|line| line.split_once(' '))
                .find_map(|(name, version)| (name == client.name).then_some(version))
                .with_context(|| {
                    format!("{PROGRAM} does not tell the version of {}", client.name)
                })?;
            Ok((client.name.to_owned(), version.to_owned()))
        };
        CLIENTS.iter().map(version).collect()
    }

    fn command(&self, _sources: &Path, built: &Path, client: &Client) -> Command {
        let mut command = Command::new(built.join(PROGRAM));
        command.arg(client.name);
        command
    }
}
