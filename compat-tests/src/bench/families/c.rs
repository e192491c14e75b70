//! C: libzookeeper as the distribution packages it, one program for all its scenarios.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::bench::Protocol;
use crate::bench::client::{Client, Family, tool};
use crate::files::files;

/// The family.
pub struct C;

const CLIENTS: &[Client] = &[Client {
    name: "libzookeeper",
    protocol: Protocol::ZooKeeper,
    folder: "libzookeeper",
    support: &["compat", "main"],
}];

const PACKAGE: &str = "libzookeeper-mt-dev";

impl Family for C {
    fn name(&self) -> &'static str {
        "c"
    }

    fn clients(&self) -> &'static [Client] {
        CLIENTS
    }

    fn build(&self, sources: &Path, built: &Path) -> Result<()> {
        let mut cc = Command::new("cc");
        // THREADED: the header shows its synchronous calls only so.
        cc.args(["-O1", "-g", "-std=gnu11", "-D_GNU_SOURCE", "-DTHREADED"])
            .args(["-Wall", "-Wextra", "-Werror", "-o"])
            .arg(built.join("compat-c"))
            .args(files(&sources.join("libzookeeper"), "c")?)
            .args(["-lzookeeper_mt", "-lpthread"]);
        tool(&mut cc, "gcc")
            .map(drop)
            .with_context(|| format!("is {PACKAGE} installed?"))
    }

    fn versions(&self, _sources: &Path, _built: &Path) -> Result<BTreeMap<String, String>> {
        let mut query = Command::new("dpkg-query");
        query.args(["--show", "--showformat=${Version}", PACKAGE]);
        let version = tool(&mut query, "dpkg").with_context(|| format!("install {PACKAGE}"))?;
        // Without what the distribution adds: 3.8.0-11+deb12u2 is 3.8.0.
        let version = version.split('-').next().unwrap_or_default().to_owned();
        Ok(BTreeMap::from([("libzookeeper".to_owned(), version)]))
    }

    fn command(&self, _sources: &Path, built: &Path, client: &Client) -> Command {
        let mut command = Command::new(built.join("compat-c"));
        command.arg(client.name);
        command
    }
}
