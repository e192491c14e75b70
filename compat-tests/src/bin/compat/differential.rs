//! `causeway-compat diff` and `replay`: two targets side by side.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use causeway_compat_tests::Work;
use causeway_compat_tests::bench::Protocol;
use causeway_compat_tests::differential::etcd::{Etcd, REGISTRATIONS};
use causeway_compat_tests::differential::zookeeper::ZooKeeper;
use causeway_compat_tests::differential::{self, Options, Subject};
use causeway_compat_tests::files::files;
use causeway_compat_tests::target::{self, Running};
use clap::Args;

use crate::{chosen, servers};

/// The two targets.
#[derive(Args)]
struct Sides {
    /// The model: a target, or HOST:PORT of a server that runs already
    #[arg(long)]
    left: String,
    /// What is held against it: the same
    #[arg(long)]
    right: String,
    /// The etcd behind a gateway is 3.4
    #[arg(long)]
    old_etcd: bool,
}

/// `causeway-compat diff`
#[derive(Args)]
pub(crate) struct Search {
    /// The protocol
    subject: Protocol,
    #[command(flatten)]
    sides: Sides,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// How many seeds, a script each
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// Operations of a script
    #[arg(long, default_value_t = 100)]
    length: usize,
    /// Clients of a script
    #[arg(long, default_value_t = 3)]
    clients: usize,
    /// `general`, or `registrations` for names that a layout of Causeway claims
    #[arg(long, default_value = "general")]
    place: String,
    /// A setting of the scripts, KEY=VALUE, for a target that numbers in its own way: etcd revisions=rank or keys,
    /// ZooKeeper zxids=stats; etcd wire=json goes through the JSON gateway
    #[arg(long = "set", value_parser = setting)]
    settings: Vec<(String, String)>,
    /// Ends the search after so many minutes
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// Reports the known differences too
    #[arg(long)]
    strict: bool,
    /// Writes the script of each difference into this folder
    #[arg(long)]
    save: Option<PathBuf>,
    #[command(flatten)]
    note: Note,
}

fn setting(text: &str) -> Result<(String, String)> {
    let (key, value) = text.split_once('=').context("KEY=VALUE")?;
    Ok((key.to_string(), value.to_string()))
}

/// `causeway-compat replay`
#[derive(Args)]
pub(crate) struct Replay {
    /// Scripts, or folders of them
    #[arg(required = true)]
    scripts: Vec<PathBuf>,
    #[command(flatten)]
    sides: Sides,
    /// A setting that the scripts get beside their own, as in diff
    #[arg(long = "set", value_parser = setting)]
    settings: Vec<(String, String)>,
    /// Shows what both sides saw
    #[arg(long)]
    show: bool,
    #[command(flatten)]
    note: Note,
}

/// Where to note what ran.
#[derive(Args)]
struct Note {
    /// Writes what ran and failed into this folder, under --suite
    #[arg(long, requires = "suite")]
    ledger: Option<PathBuf>,
    /// The suite's name in the ledger
    #[arg(long)]
    suite: Option<String>,
}

impl Note {
    fn write(&self, ran: usize, failed: usize, skipped: usize) -> Result<()> {
        let (Some(folder), Some(suite)) = (&self.ledger, &self.suite) else {
            return Ok(());
        };
        chosen::note(folder, suite, ran, failed, skipped)
    }
}

/// Two sides that are up: addresses, and the servers that were started for them.
struct Up {
    left: String,
    right: String,
    _running: Vec<Box<dyn Running>>,
}

impl Sides {
    /// Starts both and does `act` with them; when it does not come out well, the folders of both stay.
    fn up(&self, protocol: Protocol, act: impl FnOnce(&Up) -> Result<bool>) -> Result<bool> {
        Work::judged("left", |left| {
            Work::judged("right", |right| {
                let up = self.start([left, right], protocol)?;
                act(&up)
            })
        })
    }

    fn start(&self, work: [&Work; 2], protocol: Protocol) -> Result<Up> {
        if [&self.left, &self.right]
            .iter()
            .any(|side| !side.contains(':'))
        {
            servers()?;
        }
        let mut running = Vec::new();
        let mut start = |side: &str, work: &Work| -> Result<String> {
            if side.contains(':') {
                return Ok(side.to_string());
            }
            let mut options = target::Options::default();
            // A script works below a root of its own; so many instances come and go that holding them back would be
            // all that is seen.
            options.settings.no_protection = true;
            options.old_etcd = self.old_etcd;
            options.grpc_targets = REGISTRATIONS.map(str::to_string).to_vec();
            let target = target::start(work, side, &options)?;
            // All clients on one member: what another shows a little later is no difference.
            let address = target.one_address(protocol);
            running.push(target);
            address.with_context(|| side.to_string())
        };
        let (left, right) = (start(&self.left, work[0])?, start(&self.right, work[1])?);
        Ok(Up {
            left,
            right,
            _running: running,
        })
    }
}

impl Search {
    pub(crate) fn run(&self) -> Result<bool> {
        match self.subject {
            Protocol::ZooKeeper => self.with(&ZooKeeper),
            Protocol::Etcd => self.with(&Etcd),
        }
    }

    fn with<S: Subject>(&self, subject: &S) -> Result<bool> {
        self.sides.up(self.subject, |up| self.search(subject, up))
    }

    fn search<S: Subject>(&self, subject: &S, up: &Up) -> Result<bool> {
        let mut options = Options::new(&up.left, &up.right, self.first..self.first + self.seeds);
        options.shape.length = self.length;
        options.shape.clients = self.clients;
        options.shape.place = self.place.clone();
        options.settings = self.settings.iter().cloned().collect();
        options.time = Duration::from_secs(self.minutes * 60);
        options.forgive_known = !self.strict;
        let summary = differential::explore(subject, &options)?;
        println!("{}", summary.render());
        if let Some(folder) = &self.save {
            fs::create_dir_all(folder)?;
            for finding in &summary.findings {
                let file = folder.join(format!("seed-{}.script", finding.seed));
                fs::write(&file, &finding.script).with_context(|| file.display().to_string())?;
            }
        }
        ensure!(summary.seeds > 0, "no script was run");
        let failed = summary.findings.len() + summary.broken.len();
        // What the same script does not show again is printed and counted, and decides nothing: the two servers and
        // the bench share a machine that may be slow at a wrong moment.
        self.note
            .write(summary.seeds, failed, summary.unsteady.len())?;
        Ok(failed == 0)
    }
}

impl Replay {
    pub(crate) fn run(&self) -> Result<bool> {
        let mut scripts = Vec::new();
        for path in &self.scripts {
            if path.is_dir() {
                scripts.extend(files(path, "script")?);
            } else {
                scripts.push(path.clone());
            }
        }
        scripts.sort();
        let first = scripts.first().context("no script there")?;
        // The first line names the subject: one pair of targets is started for all, so that all are of one.
        let text = fs::read_to_string(first).with_context(|| first.display().to_string())?;
        let protocol = Protocol::ALL
            .into_iter()
            .find(|protocol| {
                text.lines()
                    .any(|line| line.trim() == format!("subject {protocol}"))
            })
            .with_context(|| format!("{} names no subject", first.display()))?;
        match protocol {
            Protocol::ZooKeeper => self.with(&ZooKeeper, protocol, &scripts),
            Protocol::Etcd => self.with(&Etcd, protocol, &scripts),
        }
    }

    fn with<S: Subject>(
        &self,
        subject: &S,
        protocol: Protocol,
        scripts: &[PathBuf],
    ) -> Result<bool> {
        self.sides
            .up(protocol, |up| self.hold(subject, scripts, up))
    }

    fn hold<S: Subject>(&self, subject: &S, scripts: &[PathBuf], up: &Up) -> Result<bool> {
        let mut failed = 0;
        for file in scripts {
            if let Err(error) = self.one(subject, file, up) {
                println!("{}: {error:#}", file.display());
                failed += 1;
            }
        }
        println!("{} scripts, {failed} not as expected", scripts.len());
        self.note.write(scripts.len(), failed, 0)?;
        Ok(failed == 0)
    }

    fn one<S: Subject>(&self, subject: &S, file: &Path, up: &Up) -> Result<()> {
        let settings = self.settings.iter().cloned().collect();
        let comparison = differential::replay(subject, file, &settings, &up.left, &up.right)?;
        if self.show {
            println!("{}", comparison.render());
        }
        comparison.check()
    }
}

/// `causeway-compat divergences`
pub(crate) fn write_divergences() -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/divergences.md");
    let page = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let written = differential::allowed::write_into(&page)?;
    fs::write(&path, written).with_context(|| path.display().to_string())
}
