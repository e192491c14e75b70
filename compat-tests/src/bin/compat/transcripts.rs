//! `causeway-compat transcripts`: records clients, sends what they said again, and looks for calls that are not known.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use causeway_compat_tests::Work;
use causeway_compat_tests::bench::run::{self, Playbill, Run as Part};
use causeway_compat_tests::bench::scenario::{self, Place};
use causeway_compat_tests::bench::{Protocol, client};
use causeway_compat_tests::raw::zookeeper::{
    Client, ConnectRequest, Greeting, Request, op, open_acl,
};
use causeway_compat_tests::record::known::{self, Known, Standing};
use causeway_compat_tests::record::replay::{Options, Report, replay_with};
use causeway_compat_tests::record::{Recorder, Run, Transcript, folder, patterns, transcripts};
use causeway_compat_tests::target::{self, Fault, Running};
use causeway_compat_tests::workers::{lock, side_by_side};
use clap::{Args, Subcommand};

use crate::chosen::{self, Chosen};
use crate::servers;

#[derive(Args)]
pub(crate) struct Transcripts {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Play scenarios on the current real servers, write down what is said, and renew the list of call patterns
    Record(Selection),
    /// Send what clients said to a target again, and report every answer that differs
    Replay(Replay),
    /// Fail on a call pattern that is not in the list for its client
    Check(Check),
}

#[derive(Args)]
struct Selection {
    #[command(flatten)]
    chosen: Chosen,
    /// Side by side, each on a server of its own
    #[arg(long, default_value_t = 4)]
    jobs: usize,
}

#[derive(Args)]
struct Replay {
    #[command(flatten)]
    selection: Selection,
    /// The targets; the current real servers when none is named. May be repeated
    #[arg(long)]
    target: Vec<String>,
    /// Only the part that every change has to pass, as transcripts/known.toml names it
    #[arg(long)]
    ci: bool,
    /// Writes into each transcript whether it came out as recorded; for real servers
    #[arg(long)]
    mark: bool,
    /// Writes the number of transcripts that came out, and of those that did not, into this folder
    #[arg(long)]
    ledger: Option<PathBuf>,
}

#[derive(Args)]
struct Check {
    #[command(flatten)]
    selection: Selection,
    /// Records what is selected once more, and holds that against the list; nothing is written
    #[arg(long)]
    anew: bool,
}

impl Transcripts {
    pub(crate) fn run(&self) -> Result<bool> {
        match &self.verb {
            Verb::Record(selection) => record(selection),
            Verb::Replay(replay) => replay.run(),
            Verb::Check(check) => check.run(),
        }
    }
}

impl Selection {
    /// What is recorded of it.
    fn transcripts(&self) -> Result<Vec<(PathBuf, Transcript)>> {
        let mut found = transcripts(&folder())?;
        found.retain(|(_, transcript)| {
            let run = &transcript.run;
            self.chosen
                .wants(transcript.subject, &run.scenario, run.name())
        });
        ensure!(!found.is_empty(), "no transcript is of what was asked for");
        Ok(found)
    }
}

/// The real server that transcripts are of.
fn model(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::ZooKeeper => "zookeeper-3.9",
        Protocol::Etcd => "etcd-3.7",
    }
}

fn record(selection: &Selection) -> Result<bool> {
    let known = patterns::read(&folder().join("patterns.txt")).unwrap_or_default();
    let good = play(selection, &|transcript| {
        transcript.write(&folder().join(transcript.file_name()))
    })?;
    let all = transcripts(&folder())?;
    let all = || all.iter().map(|(_, transcript)| transcript);
    for unknown in patterns::unknown(&known, all()) {
        println!("new: {unknown}");
    }
    let list = patterns::collect(all());
    fs::write(folder().join("patterns.txt"), patterns::print(&list))?;
    println!("{} patterns of {} transcripts", list.len(), all().count());
    Ok(good)
}

/// Plays what is selected, each part on a server that nobody else uses, and hands over what was said.
fn play(selection: &Selection, keep: &(dyn Fn(&Transcript) -> Result<()> + Sync)) -> Result<bool> {
    let parts = selection.chosen.runs()?;
    let versions = chosen::ready(&parts, true)?;
    let all = parts.len();
    let (count, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    side_by_side(selection.jobs, parts, Servers::default, |servers, part| {
        let start = Instant::now();
        let name = model(part.scenario.protocol);
        let recorded = servers
            .get(name)
            .and_then(|server| record_part(server, &part, &versions))
            .and_then(|transcript| {
                keep(&transcript)?;
                Ok(transcript.entries.len())
            });
        let end = match recorded {
            Ok(lines) => format!("{lines} lines"),
            Err(error) => {
                failed.fetch_add(1, Ordering::Relaxed);
                servers.leave(name);
                format!("FAILED: {error:#}").replace('\n', " ")
            }
        };
        if part.scenario.protocol == Protocol::Etcd {
            // Leases and revisions of one run are seen by the next.
            servers.renew(name);
        }
        println!(
            "  [{}/{all}] {:28} {:22} {:5.1} s  {end}",
            count.fetch_add(1, Ordering::Relaxed) + 1,
            part.scenario.to_string(),
            part.player.client.name,
            start.elapsed().as_secs_f32()
        );
    });
    Ok(failed.into_inner() == 0)
}

fn record_part(
    server: &Server,
    part: &Part,
    versions: &BTreeMap<String, String>,
) -> Result<Transcript> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let protocol = part.scenario.protocol;
    let recorder = Arc::new(Recorder::start(protocol, &server.address(protocol)?)?);
    let nonce = format!("r{:03}", COUNT.fetch_add(1, Ordering::Relaxed));
    let client = part.player.client.name;
    let run = Run {
        client: format!(
            "{client} {}",
            versions.get(client).map_or("unknown", String::as_str)
        ),
        scenario: part.scenario.name.clone(),
        server: lock(&server.target).version(),
        prefix: part.prefix(&nonce),
    };
    let front = Front {
        protocol,
        recorder: Arc::clone(&recorder),
        target: Arc::clone(&server.target),
    };
    let bill = Playbill {
        target: "recorded",
        runs: vec![part.clone()],
        jobs: 1,
        versions,
        nonce: Some(nonce),
        progress: &|_| {},
    };
    let outcomes = run::play(&server.work, Box::new(front), &bill)?;
    let outcome = outcomes.first().context("nothing was played")?;
    if let Some((step, why)) = &outcome.failure {
        bail!("at {step}: {why}");
    }
    let recorder = Arc::into_inner(recorder).context("the recorder is still in use")?;
    Ok(recorder.finish(run))
}

/// A recorder in front of a target. What the bench does to the target is written down too.
struct Front {
    protocol: Protocol,
    recorder: Arc<Recorder>,
    target: Arc<Mutex<Box<dyn Running>>>,
}

impl Running for Front {
    fn address(&self, protocol: Protocol) -> Option<String> {
        (self.protocol == protocol).then(|| self.recorder.address())
    }

    fn version(&self) -> String {
        lock(&self.target).version()
    }

    fn fault(&mut self, fault: &Fault) -> Result<()> {
        self.recorder.note(&format!("do {fault}"));
        lock(&self.target).fault(fault)
    }
}

impl Replay {
    fn run(&self) -> Result<bool> {
        servers()?;
        let list = known::read(&folder().join("known.toml"))?;
        let mut chosen = self.selection.transcripts()?;
        if self.ci {
            chosen.retain(|(path, _)| list.ci.contains(&known::name(path)));
            ensure!(!chosen.is_empty(), "the chosen part is empty");
        }
        if !self.mark {
            let before = chosen.len();
            chosen.retain(|(_, transcript)| transcript.fixed.is_none());
            let left_out = before - chosen.len();
            if left_out > 0 {
                println!("{left_out} transcripts cannot be replayed: their heads say why");
            }
        }
        let mut good = true;
        if self.target.is_empty() {
            good &= self.on(None, chosen, &list)?;
        } else {
            for name in &self.target {
                let kind = target::kind(name)?;
                ensure!(
                    kind.real || !self.mark,
                    "only a real server says what comes out"
                );
                let chosen = chosen
                    .iter()
                    .filter(|(_, transcript)| kind.speaks(transcript.subject))
                    .cloned()
                    .collect();
                good &= self.on(Some(kind.name), chosen, &list)?;
            }
        }
        Ok(good)
    }

    fn on(
        &self,
        target: Option<&'static str>,
        chosen: Vec<(PathBuf, Transcript)>,
        list: &Known,
    ) -> Result<bool> {
        let start = Instant::now();
        let all = chosen.len();
        let title = target.unwrap_or("the real servers");
        println!("{title}: {all} transcripts");
        ensure!(all > 0, "it speaks nothing of what was asked for");
        let scenarios = scenario::all()?;
        let counts: Mutex<BTreeMap<&str, usize>> = Mutex::default();
        let count = AtomicUsize::new(0);
        side_by_side(
            self.selection.jobs,
            chosen,
            Servers::default,
            |servers, (path, transcript)| {
                let start = Instant::now();
                let server = target.unwrap_or_else(|| model(transcript.subject));
                let is_registration = scenarios.iter().any(|scenario| {
                    scenario.protocol == Protocol::Etcd
                        && transcript.subject == Protocol::Etcd
                        && scenario.name == transcript.run.scenario
                        && scenario.place == Place::Registrations
                });
                let report = servers
                    .get(server)
                    .and_then(|server| replay_one(server, &transcript, is_registration));
                let (standing, line) = match &report {
                    Ok(report) => (
                        list.judge(server, &known::name(&path), report),
                        told(report),
                    ),
                    Err(error) => (Standing::New, format!("{error:#}")),
                };
                if standing == Standing::New {
                    servers.leave(server);
                }
                let is_clean = report
                    .as_ref()
                    .is_ok_and(|report| report.differences.is_empty() && report.stopped.is_none());
                if !is_clean || transcript.subject == Protocol::Etcd {
                    // Whatever it has left behind is in nobody's way.
                    servers.renew(server);
                }
                let word = match &standing {
                    Standing::Clean => "as recorded",
                    Standing::Known(_) => "known",
                    Standing::New => "DIFFERS",
                    Standing::Mended => "LISTED, BUT AS RECORDED",
                };
                *lock(&counts).entry(word).or_default() += 1;
                let mut text = format!(
                    "  [{}/{all}] {:44} {:5.1} s  {word}, {line}",
                    count.fetch_add(1, Ordering::Relaxed) + 1,
                    known::name(&path),
                    start.elapsed().as_secs_f32()
                );
                if standing == Standing::New
                    && let Ok(report) = &report
                {
                    for difference in &report.differences {
                        text += &format!("\n      {difference}");
                    }
                }
                println!("{text}");
                if self.mark
                    && let Ok(report) = &report
                    && let Err(error) = mark(&path, transcript, report)
                {
                    println!("{}: {error:#}", path.display());
                }
            },
        );
        let counts = counts.into_inner().unwrap_or_else(PoisonError::into_inner);
        let told: Vec<String> = counts
            .iter()
            .map(|(word, count)| format!("{count} {word}"))
            .collect();
        println!(
            "{title}: {} in {:.0} s",
            told.join(", "),
            start.elapsed().as_secs_f32()
        );
        let good = counts.get("as recorded").copied().unwrap_or(0);
        let known = counts.get("known").copied().unwrap_or(0);
        if let Some(folder) = &self.ledger {
            let name = target.unwrap_or("real");
            let failed = all - good - known;
            chosen::note(
                folder,
                &format!("compat/replay--{name}"),
                good + failed,
                failed,
                0,
            )?;
        }
        Ok(good + known == all)
    }
}

fn told(report: &Report) -> String {
    let mut text = format!(
        "{} sent, {} compared, {} differences",
        report.sent,
        report.compared,
        report.differences.len()
    );
    if let Some(why) = &report.stopped {
        text += &format!(", stopped: {why}");
    }
    text
}

/// Writes into its head whether a transcript can be replayed; a reason that somebody has found stays.
fn mark(path: &Path, mut transcript: Transcript, report: &Report) -> Result<()> {
    let now = match (&report.stopped, report.differences.first()) {
        (Some(why), _) => Some(why.clone()),
        (None, Some(first)) => Some(first.to_string()),
        (None, None) => None,
    };
    match (&transcript.fixed, now) {
        (None, None) | (Some(_), Some(_)) => return Ok(()),
        (_, now) => transcript.fixed = now.map(|why| why.replace('\n', " ")),
    }
    transcript.write(path)
}

fn replay_one(server: &Server, transcript: &Transcript, in_place: bool) -> Result<Report> {
    let address = server.address(transcript.subject)?;
    let mut fault = |note: &str| {
        let verb = note.strip_prefix("do ").context("no verb")?;
        lock(&server.target).fault(&verb.parse()?)
    };
    let options = Options {
        prefix: in_place.then(|| transcript.run.prefix.clone()),
        fault: Some(&mut fault),
    };
    replay_with(transcript, &address, options)
}

impl Check {
    fn run(&self) -> Result<bool> {
        let known = patterns::read(&folder().join("patterns.txt"))?;
        let fresh = Mutex::new(Vec::new());
        let mut good = true;
        if self.anew {
            good = play(&self.selection, &|transcript| {
                lock(&fresh).push(transcript.clone());
                Ok(())
            })?;
        } else {
            let kept = self.selection.transcripts()?;
            lock(&fresh).extend(kept.into_iter().map(|(_, transcript)| transcript));
        }
        let all = fresh.into_inner().unwrap_or_else(PoisonError::into_inner);
        let unknown = patterns::unknown(&known, &all);
        for unknown in &unknown {
            println!("unknown: {unknown}");
        }
        println!(
            "{} transcripts, {} call patterns that are not in patterns.txt",
            all.len(),
            unknown.len()
        );
        Ok(good && unknown.is_empty())
    }
}

/// A target with its files.
struct Server {
    // Before its files.
    target: Arc<Mutex<Box<dyn Running>>>,
    work: Work,
}

impl Server {
    fn start(name: &str) -> Result<Server> {
        let mut work = Work::new(name)?;
        let started = Server::start_in(&work, name).inspect_err(|_| work.leave());
        Ok(Server {
            target: Arc::new(Mutex::new(started?)),
            work,
        })
    }

    fn start_in(work: &Work, name: &str) -> Result<Box<dyn Running>> {
        let options = run::options(&client::players());
        let target = target::start(work, name, &options)?;
        if let Ok(address) = target.one_address(Protocol::ZooKeeper) {
            prepare(&address)?;
        }
        Ok(target)
    }

    /// A recorded client was sent to one server.
    fn address(&self, protocol: Protocol) -> Result<String> {
        lock(&self.target).one_address(protocol)
    }
}

/// Makes the node below which services register, so that every transcript finds it the same.
fn prepare(address: &str) -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(10);
    let Greeting::Answered(mut client, _) =
        Client::connect(address, &ConnectRequest::new(LIMIT), LIMIT)?
    else {
        bail!("the server takes no session");
    };
    let create = Request::Create {
        op: op::CREATE,
        path: "/discovery".to_string(),
        data: Some(Vec::new()),
        acl: Some(open_acl()),
        flags: 0,
        ttl: None,
    };
    // On Causeway it is there from the start.
    client.call(&create, LIMIT)?;
    client.send(&Request::Empty {
        op: op::CLOSE_SESSION,
    })?;
    Ok(())
}

/// The servers of one worker, started when they are needed.
#[derive(Default)]
struct Servers {
    running: BTreeMap<String, Server>,
}

impl Servers {
    fn get(&mut self, name: &str) -> Result<&Server> {
        if !self.running.contains_key(name) {
            self.running.insert(name.to_string(), Server::start(name)?);
        }
        self.running.get(name).context("it was started")
    }

    /// The next one who asks gets a fresh one.
    fn renew(&mut self, name: &str) {
        self.running.remove(name);
    }

    /// Likewise, and what this one and its clients wrote stays to be read.
    fn leave(&mut self, name: &str) {
        if let Some(mut server) = self.running.remove(name) {
            server.work.leave();
        }
    }
}
