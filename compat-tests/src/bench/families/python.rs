//! kazoo, etcd3 and etcd3gw, in the environment that `scripts/bootstrap` makes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::bench::Protocol;
use crate::bench::client::{Client, Family, tool};
use crate::clients::python;

/// The Python libraries.
pub struct Python;

const CLIENTS: &[Client] = &[
    Client {
        name: "kazoo",
        protocol: Protocol::ZooKeeper,
        folder: "kazoo",
        support: &["support"],
    },
    Client {
        name: "etcd3",
        protocol: Protocol::Etcd,
        folder: "etcd3",
        support: &["support"],
    },
    Client {
        name: "etcd3gw",
        protocol: Protocol::Etcd,
        folder: "etcd3gw",
        support: &["support"],
    },
];

impl Family for Python {
    fn name(&self) -> &'static str {
        "python"
    }

    fn clients(&self) -> &'static [Client] {
        CLIENTS
    }

    /// `scripts/bootstrap test` makes the environment; [`Family::versions`] holds it against the pins.
    fn build(&self, _sources: &Path, _built: &Path) -> Result<()> {
        Ok(())
    }

    /// The environment holds exactly what is pinned: other versions would be reported under the pinned numbers.
    fn versions(&self, sources: &Path, _built: &Path) -> Result<BTreeMap<String, String>> {
        let check = "import sys; from importlib.metadata import PackageNotFoundError, version
def found(name):
    try: return version(name)
    except PackageNotFoundError: return 'missing'
for pin in open(sys.argv[1]):
    name, _, wanted = pin.strip().partition('==')
    if wanted and found(name) != wanted:
        sys.exit(f'{name} is {found(name)}, not {wanted}')";
        tool(
            Command::new(python())
                .args(["-c", check])
                .arg(sources.join("requirements.txt")),
            "python3",
        )
        .context("`scripts/bootstrap test` prepares the Python clients")?;
        let pins = fs::read_to_string(sources.join("requirements.txt"))?;
        CLIENTS
            .iter()
            .map(|client| {
                let version = pins
                    .lines()
                    .find_map(|line| line.strip_prefix(client.name)?.strip_prefix("=="))
                    .with_context(|| format!("{} is not pinned", client.name))?;
                Ok((client.name.to_string(), version.trim().to_string()))
            })
            .collect()
    }

    fn command(&self, sources: &Path, _built: &Path, client: &Client) -> Command {
        let mut command = Command::new(python());
        command.arg(sources.join("run.py")).arg(client.name);
        command
    }
}
