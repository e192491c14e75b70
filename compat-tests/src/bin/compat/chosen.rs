//! Which scenarios and clients a command is for, and what these need.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use causeway_compat_tests::bench::run::Run;
use causeway_compat_tests::bench::{Protocol, client, families, scenario};
use clap::Args;

use crate::{build, servers};

/// The part of what there is; all of it when nothing is named.
#[derive(Args)]
pub(crate) struct Chosen {
    /// Only this protocol
    #[arg(long)]
    pub(crate) subject: Option<Protocol>,
    /// Only these scenarios (`lock`, or `etcd/lock`); may be repeated
    #[arg(long)]
    scenario: Vec<String>,
    /// Only these clients; may be repeated
    #[arg(long)]
    client: Vec<String>,
}

impl Chosen {
    pub(crate) fn wants(&self, protocol: Protocol, scenario: &str, client: &str) -> bool {
        self.subject.is_none_or(|subject| subject == protocol)
            && (self.scenario.is_empty()
                || self
                    .scenario
                    .iter()
                    .any(|name| named(name, protocol, scenario)))
            && (self.client.is_empty() || self.client.iter().any(|name| name == client))
    }

    /// What clients play of it.
    ///
    /// # Errors
    /// A name that nothing has.
    pub(crate) fn runs(&self) -> Result<Vec<Run>> {
        let scenarios = scenario::all()?;
        for name in &self.scenario {
            ensure!(
                scenarios.iter().any(|s| named(name, s.protocol, &s.name)),
                "there is no scenario {name}"
            );
        }
        let players = client::players();
        for name in &self.client {
            ensure!(
                players.iter().any(|player| player.client.name == name),
                "there is no client {name}"
            );
        }
        let mut runs = Vec::new();
        for player in players {
            for scenario in player.plays(&scenarios)? {
                if self.wants(scenario.protocol, &scenario.name, player.client.name) {
                    runs.push(Run { player, scenario });
                }
            }
        }
        ensure!(!runs.is_empty(), "no client plays what was asked for");
        Ok(runs)
    }
}

fn named(name: &str, protocol: Protocol, scenario: &str) -> bool {
    name == scenario || name == format!("{protocol}/{scenario}")
}

/// Builds what the runs need, and gives the version of each client library. The servers are fetched where `is_started`
/// says that one is started, or where a client is of their release.
pub(crate) fn ready(runs: &[Run], is_started: bool) -> Result<BTreeMap<String, String>> {
    let plays = |name: &str| runs.iter().any(|run| run.player.family.name() == name);
    if is_started || plays("shell") {
        servers()?;
    }
    let mut versions = BTreeMap::new();
    for family in families::all() {
        if plays(family.name()) {
            build(family)?;
            versions.extend(family.versions(&client::sources(family), &client::built(family))?);
        }
    }
    Ok(versions)
}

/// Notes what a suite ran, the failed included, in the ledger's folder.
pub(crate) fn note(
    folder: &Path,
    suite: &str,
    ran: usize,
    failed: usize,
    skipped: usize,
) -> Result<()> {
    fs::create_dir_all(folder)?;
    let file = folder.join(format!("{}.tsv", suite.replace('/', "--")));
    fs::write(&file, format!("{suite}\t{ran}\t{failed}\t{skipped}\n"))
        .with_context(|| file.display().to_string())
}
