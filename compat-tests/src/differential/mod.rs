//! Two servers side by side: the same operations to both, and everything that differs.
//!
//! A seed gives a [`Script`]; a [`Subject`] runs it on an address and says what each client saw, normalised
//! (numbers that a server may choose are replaced by what they mean); [`compare`] finds the differences; what
//! [`allowed()`] forgives is counted, and the rest is made small by [`shrink`] and printed as a script that
//! [`replay`] runs again. The first target is the model: rules say what *it* shows first.
//!
//! To add a subject: implement [`Subject`], give it a table of [`Allowed`] and [`Known`], and name it in
//! the command line.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fs, thread};

use anyhow::{Context as _, Result, anyhow, ensure};

pub mod allowed;
pub mod compare;
pub mod etcd;
pub mod random;
pub mod script;
pub mod shrink;
pub mod zookeeper;

pub use allowed::{Allowed, Known, allowed, known};
pub use compare::{Difference, Rule, Seen, Then};
pub use random::Random;
pub use script::{Expect, Script, Step};
pub use shrink::Limits;

/// A protocol: what its operations are, and what its clients see.
pub trait Subject: Sync {
    /// One operation of one client, a connection's fate included.
    type Op: Clone + PartialEq + Send + Sync;

    /// `zookeeper` or `etcd`: the word in scripts and in the lists of differences.
    fn name(&self) -> &'static str;

    /// The script of a seed: the same one for ever. It may end before `shape.length` operations.
    fn generate(&self, seed: u64, shape: &Shape) -> Script<Self::Op>;

    /// An operation as one line, which [`Subject::parse`] reads back.
    fn print(&self, op: &Self::Op) -> String;

    /// Reads what [`Subject::print`] wrote, or what a person did.
    fn parse(&self, text: &str) -> Result<Self::Op>;

    /// Simpler variants of an operation, the simplest first. Each has to be simpler than `op`, so that
    /// shrinking ends.
    fn simplify(&self, op: &Self::Op) -> Vec<Self::Op>;

    /// Runs a script on one server, below `run.root`, and says what each client saw. Anything that the server
    /// did is an observation, a closed connection and a missing reply too; an error means that the run itself
    /// was not possible.
    fn run(&self, script: &Script<Self::Op>, address: &str, run: &Run) -> Result<Vec<Seen>>;
}

/// What a generator is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Operations.
    pub length: usize,
    /// Clients; the generator takes as many or fewer.
    pub clients: usize,
    /// `general`, or `registrations` for names that a layout of Causeway claims.
    pub place: String,
    /// The subject's settings that the script will have, as far as they matter for what can be compared.
    pub settings: BTreeMap<String, String>,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            length: 100,
            clients: 3,
            place: "general".to_string(),
            settings: BTreeMap::new(),
        }
    }
}

/// One run of one script.
#[derive(Debug, Clone)]
pub struct Run {
    /// A word that no run on this server had before; the same on both sides.
    pub root: String,
    /// When it has to be over; a subject checks it between steps.
    pub deadline: Instant,
}

/// What an exploration does.
#[derive(Debug, Clone)]
pub struct Options {
    /// The model's address.
    pub left: String,
    /// The other's.
    pub right: String,
    /// Seeds, one script each.
    pub seeds: Range<u64>,
    /// What the scripts are like.
    pub shape: Shape,
    /// The subject's settings, which each script gets as lines `set KEY VALUE`.
    pub settings: BTreeMap<String, String>,
    /// The exploration ends after this time, however many seeds are left.
    pub time: Duration,
    /// A single run of a script may take this long.
    pub run_time: Duration,
    /// How long a difference is shrunk.
    pub limits: Limits,
    /// Whether [`known()`] differences are forgiven too (counted by their ids).
    pub forgive_known: bool,
    /// Differences of classes that were found already are counted and passed over.
    pub go_on: bool,
    /// Prints progress on standard error.
    pub progress: bool,
}

impl Options {
    /// Defaults between two addresses.
    pub fn new(left: &str, right: &str, seeds: Range<u64>) -> Options {
        Options {
            left: left.to_string(),
            right: right.to_string(),
            seeds,
            shape: Shape::default(),
            settings: BTreeMap::new(),
            time: Duration::from_secs(600),
            run_time: Duration::from_secs(60),
            limits: Limits::default(),
            forgive_known: true,
            go_on: true,
            progress: true,
        }
    }
}

/// A class of differences, with the script that shows it.
#[derive(Debug, Clone)]
pub struct Finding {
    /// See [`Difference::class`].
    pub class: String,
    /// The first seed that showed it.
    pub seed: u64,
    /// How many seeds did.
    pub count: usize,
    /// The shrunk script, as [`replay`] reads it.
    pub script: String,
    /// How many operations it has.
    pub operations: usize,
    /// What the shrunk script shows; what the seed's own did when that one does not show it each time.
    pub difference: Difference,
    /// Runs that shrinking took.
    pub runs: usize,
}

/// What an exploration found.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// The subject.
    pub subject: String,
    /// Scripts that were run on both sides.
    pub seeds: usize,
    /// Their operations.
    pub operations: usize,
    /// Lines that were compared.
    pub lines: usize,
    /// How long it took.
    pub elapsed: Duration,
    /// What is not forgiven.
    pub findings: Vec<Finding>,
    /// Seeds with a difference that was gone when they were run again, with that difference. One that was shown
    /// twice is a finding.
    pub unsteady: Vec<(u64, Difference)>,
    /// Runs that were not possible, with the reason.
    pub broken: Vec<(u64, String)>,
    /// Differences forgiven, by id.
    pub forgiven: BTreeMap<String, usize>,
    /// Ids of [`allowed()`] and [`known()`] differences that nothing showed: a long run should show every one.
    pub unused: Vec<String>,
    /// Seeds cut off behind a forgiven difference after which the states part.
    pub cut: usize,
}

impl Summary {
    /// For people.
    pub fn render(&self) -> String {
        let mut out = format!(
            "{}: {} operations in {} scripts, {} lines compared, {:.1} s\n",
            self.subject,
            self.operations,
            self.seeds,
            self.lines,
            self.elapsed.as_secs_f64()
        );
        for (id, count) in &self.forgiven {
            let _ = writeln!(out, "forgiven {id}: {count}");
        }
        if self.cut > 0 {
            let _ = writeln!(out, "cut off behind a forgiven difference: {}", self.cut);
        }
        if !self.unused.is_empty() {
            let _ = writeln!(out, "never shown: {}", self.unused.join(", "));
        }
        for (seed, difference) in &self.unsteady {
            let _ = writeln!(out, "\nseed {seed}, not shown again: {difference}");
        }
        for (seed, reason) in &self.broken {
            let _ = writeln!(out, "\nseed {seed} could not be run: {reason}");
        }
        for finding in &self.findings {
            let _ = writeln!(
                out,
                "\n== {} (seed {}, {} of {} scripts; {} operations after {} runs)\n{}\n{}",
                finding.class,
                finding.seed,
                finding.count,
                self.seeds,
                finding.operations,
                finding.runs,
                finding.difference,
                finding.script
            );
        }
        out
    }
}

/// What a script showed on two targets.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// Everything that differs and is not forgiven.
    pub differences: Vec<Difference>,
    /// Differences forgiven, by id.
    pub forgiven: BTreeMap<String, usize>,
    /// What the script expects.
    pub expect: Option<Expect>,
    /// Lines that were compared.
    pub lines: usize,
    /// Whether the rest of the script was left out behind a forgiven difference.
    pub cut: bool,
    /// Everything that the two sides showed, for reading.
    pub seen: [Vec<Seen>; 2],
}

impl Comparison {
    /// Fails unless the script showed what it expects.
    pub fn check(&self) -> Result<()> {
        let classes: Vec<String> = self.differences.iter().map(Difference::class).collect();
        match &self.expect {
            Some(Expect::Differs(class)) => ensure!(
                classes.contains(class),
                "expected a difference of `{class}`, found {classes:?}"
            ),
            Some(Expect::Same) | None => ensure!(
                classes.is_empty(),
                "expected none, found {}",
                self.differences
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join("\n")
            ),
        }
        Ok(())
    }

    /// Both sides, line by line, with the differences marked.
    pub fn render(&self) -> String {
        let mut out = String::new();
        for (name, seen) in ["left", "right"].iter().zip(&self.seen) {
            let _ = writeln!(out, "-- {name}");
            for seen in seen {
                let _ = writeln!(
                    out,
                    "{:>3} {} {} -> {}",
                    seen.step + 1,
                    script::client_name(seen.client),
                    seen.request,
                    seen.text
                );
            }
        }
        for difference in &self.differences {
            let _ = writeln!(out, "{difference}");
        }
        if self.differences.is_empty() {
            out.push_str("no difference\n");
        }
        out
    }
}

/// Runs the scripts of many seeds on both targets.
pub fn explore<S: Subject>(subject: &S, options: &Options) -> Result<Summary> {
    let start = Instant::now();
    let mut summary = Summary {
        subject: subject.name().to_string(),
        ..Summary::default()
    };
    let mut told = Instant::now();
    for seed in options.seeds.clone() {
        if start.elapsed() > options.time {
            break;
        }
        explore_seed(subject, options, seed, &mut summary)?;
        if options.progress && told.elapsed() > Duration::from_secs(5) {
            told = Instant::now();
            eprintln!(
                "{}: seed {seed}, {} operations, {} classes of differences, {:.0} s",
                subject.name(),
                summary.operations,
                summary.findings.len(),
                start.elapsed().as_secs_f64()
            );
        }
    }
    summary.elapsed = start.elapsed();
    let ids = allowed()
        .iter()
        .filter(|a| a.subject == subject.name())
        .map(|a| a.id);
    let known_ids = known()
        .iter()
        .filter(|k| k.subject == subject.name())
        .map(|k| k.id);
    let expected = ids.chain(known_ids.filter(|_| options.forgive_known));
    summary.unused = expected
        .filter(|id| !summary.forgiven.contains_key(*id))
        .map(str::to_string)
        .collect();
    Ok(summary)
}

fn explore_seed<S: Subject>(
    subject: &S,
    options: &Options,
    seed: u64,
    summary: &mut Summary,
) -> Result<()> {
    let mut shape = options.shape.clone();
    shape.settings = options.settings.clone();
    let mut script = subject.generate(seed, &shape);
    script.settings.extend(options.settings.clone());
    let found = match both(subject, &script, options) {
        Ok(comparison) => comparison,
        Err(error) => {
            summary.broken.push((seed, format!("{error:#}")));
            ensure!(
                summary.broken.len() < 5,
                "five runs were not possible: {error:#}"
            );
            return Ok(());
        }
    };
    summary.seeds += 1;
    summary.operations += script.operations();
    summary.lines += found.lines;
    summary.cut += usize::from(found.cut);
    for (id, count) in &found.forgiven {
        *summary.forgiven.entry(id.clone()).or_default() += count;
    }
    // Behind a difference in words the two are likely in different states, so that only the first of those
    // counts; in front of it each class counts once.
    let mut fresh = None;
    let mut counted: Vec<String> = Vec::new();
    for difference in &found.differences {
        let class = difference.class();
        match summary
            .findings
            .iter_mut()
            .find(|finding| finding.class == class)
        {
            Some(finding) if options.go_on => {
                if !counted.contains(&class) {
                    finding.count += 1;
                    counted.push(class.clone());
                }
                if class.contains(" / ") {
                    break;
                }
            }
            _ => {
                fresh = Some(difference.clone());
                break;
            }
        }
    }
    let Some(difference) = fresh else {
        return Ok(());
    };
    let class = difference.class();
    if options.progress {
        eprintln!("{}: seed {seed}: {difference}", subject.name());
    }
    // A run that is not possible shows nothing.
    let show = |script: &Script<S::Op>| -> Option<Difference> {
        let comparison = both(subject, script, options).ok()?;
        comparison
            .differences
            .into_iter()
            .find(|d| d.class() == class)
    };
    // Nothing behind the difference has a part in it.
    let head =
        script.with_steps(script.steps[..=difference.step.min(script.steps.len() - 1)].to_vec());
    if show(&head).is_none() {
        summary.unsteady.push((seed, difference));
        return Ok(());
    }
    let simplify = |op: &S::Op| subject.simplify(op);
    let (mut small, runs) = shrink::shrink(&head, options.limits, simplify, |script| {
        show(script).is_some()
    });
    let last = show(&small);
    small.about = vec![format!("Seed {seed}.")];
    small.expect = Some(Expect::Differs(class.clone()));
    summary.findings.push(Finding {
        class,
        seed,
        count: 1,
        script: small.print(|op| subject.print(op)),
        operations: small.operations(),
        difference: last.unwrap_or(difference),
        runs,
    });
    Ok(())
}

/// Runs the script of a file on both targets; [`Comparison::check`] says whether it showed what it expects.
/// Only [`allowed()`] differences are forgiven: a script that shows a known one is there to show it.
///
/// The script gets `settings` beside its own.
pub fn replay<S: Subject>(
    subject: &S,
    file: &Path,
    settings: &BTreeMap<String, String>,
    left: &str,
    right: &str,
) -> Result<Comparison> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    replay_text(subject, &text, settings, left, right).with_context(|| file.display().to_string())
}

/// Like [`replay`], of a script in memory.
pub fn replay_text<S: Subject>(
    subject: &S,
    text: &str,
    settings: &BTreeMap<String, String>,
    left: &str,
    right: &str,
) -> Result<Comparison> {
    let mut script = Script::parse(text, |op| subject.parse(op))?;
    script.settings.extend(settings.clone());
    ensure!(
        script.subject == subject.name(),
        "a script for {}, not for {}",
        script.subject,
        subject.name()
    );
    let mut options = Options::new(left, right, 0..0);
    options.forgive_known = false;
    both(subject, &script, &options)
}

/// Runs a script on both targets at once and takes out what is forgiven.
fn both<S: Subject>(subject: &S, script: &Script<S::Op>, options: &Options) -> Result<Comparison> {
    let run = Run {
        root: fresh_root(),
        deadline: Instant::now() + options.run_time,
    };
    let (left, right) = thread::scope(|scope| {
        let right = scope.spawn(|| subject.run(script, &options.right, &run));
        let left = subject.run(script, &options.left, &run);
        (left, right.join())
    });
    let left = left.context("left")?;
    let right = right
        .map_err(|_| anyhow!("the run panicked"))?
        .context("right")?;
    let mut comparison = Comparison {
        differences: Vec::new(),
        forgiven: BTreeMap::new(),
        expect: script.expect.clone(),
        lines: left.len().max(right.len()),
        cut: false,
        seen: [left, right],
    };
    let [left, right] = &comparison.seen;
    let mut parted = usize::MAX;
    for difference in compare::compare(left, right) {
        if difference.step > parted {
            break;
        }
        match forgiving(script, &difference, options.forgive_known) {
            Some((id, then)) => {
                *comparison.forgiven.entry(id.to_string()).or_default() += 1;
                if then == Then::Stop {
                    parted = difference.step;
                }
            }
            None => comparison.differences.push(difference),
        }
    }
    // What clients show of the step in which the states parted may already be of the other state.
    comparison.cut = parted != usize::MAX;
    comparison
        .differences
        .retain(|difference| difference.step < parted);
    Ok(comparison)
}

fn forgiving<O>(
    script: &Script<O>,
    difference: &Difference,
    known_too: bool,
) -> Option<(&'static str, Then)> {
    let subject = script.subject.as_str();
    let merges = ["zxids", "revisions"]
        .iter()
        .any(|setting| script.settings.contains_key(*setting));
    // Of ZooKeeper alone.
    let old = script.settings.get("release").is_some_and(|r| r == "3.8");
    let allowed = allowed()
        .iter()
        .filter(|entry| entry.subject == subject)
        .map(|entry| (entry.id, entry.rules));
    let known = known()
        .iter()
        .filter(|entry| known_too && entry.subject == subject)
        .map(|entry| (entry.id, entry.rules));
    allowed.chain(known).find_map(|(id, rules)| {
        if id.contains(allowed::MERGES) && !merges || id.contains(allowed::OLD_ZOOKEEPER) && !old {
            return None;
        }
        let rule = rules.iter().find(|rule| rule.forgives(difference))?;
        Some((id, rule.then))
    })
}

/// A word that no run before had, on whatever server.
fn fresh_root() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    format!("d{:x}-{count}", since.as_micros())
}

#[cfg(test)]
mod tests;
