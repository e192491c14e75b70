//! The processes of one framework, and what they say.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::{Framework, SESSION_MS, built};
use crate::clients::Program;
use crate::process::{Work, free_port};

/// How long an application may take to start or to stop. A machine that starts several at once is slow.
const STARTS: Duration = Duration::from_secs(90);

/// The applications of one framework on one registry.
#[derive(Debug)]
pub(super) struct Cast<'a> {
    pub(super) framework: &'static Framework,
    work: &'a Work,
    registry: String,
    providers: BTreeMap<&'static str, App>,
    consumer: Option<App>,
    view: View,
    /// What the providers wrote, as far as it was heard.
    writes: BTreeMap<String, usize>,
    /// The providers that the consumer has to list.
    pub(super) listed: BTreeSet<&'static str>,
}

#[derive(Debug)]
struct App {
    program: Program,
    port: u16,
}

impl<'a> Cast<'a> {
    pub(super) fn new(framework: &'static Framework, work: &'a Work, registry: &str) -> Cast<'a> {
        Cast {
            framework,
            work,
            registry: registry.to_string(),
            providers: BTreeMap::new(),
            consumer: None,
            view: View::default(),
            writes: BTreeMap::new(),
            listed: BTreeSet::new(),
        }
    }

    /// Starts a provider, or the consumer, and waits for nothing.
    pub(super) fn start(&mut self, name: &'static str) -> Result<()> {
        let consumer = name == CONSUMER;
        let port = if consumer { 0 } else { free_port()? };
        let label = self.label(name);
        // Frameworks keep caches there, and lock them.
        let home = self.work.path(&format!("{label}-home"));
        fs::create_dir_all(&home)?;
        let mut command = (self.framework.program)(&built(), &home);
        command
            .arg(if consumer { "consumer" } else { "provider" })
            .args([
                name,
                &self.registry,
                &port.to_string(),
                &SESSION_MS.to_string(),
            ])
            .current_dir(&home);
        let program = Program::spawn(self.work, &label, &mut command)?;
        let app = App { program, port };
        if consumer {
            self.consumer = Some(app);
        } else {
            self.providers.insert(name, app);
        }
        Ok(())
    }

    /// Waits until a provider has registered itself, or the consumer has started.
    pub(super) fn ready(&mut self, name: &'static str) -> Result<()> {
        if name == CONSUMER {
            let app = self.consumer.as_mut().context("no consumer")?;
            let view = &mut self.view;
            let mut strange = Ok(());
            app.program.expect_that(STARTS, "ready", |line| {
                if let Err(error) = view.take(line) {
                    strange = Err(error);
                }
                (line == "ready" || strange.is_err()).then_some(())
            })?;
            return strange;
        }
        let app = self.providers.get_mut(name).context("no such provider")?;
        let writes = &mut self.writes;
        app.program.expect_that(STARTS, "ready", |line| {
            count(writes, name, line);
            (line == "ready").then_some(())
        })
    }

    /// How often each application wrote into the registry, by its name and the call.
    pub(super) fn writes(&mut self) -> Result<BTreeMap<String, usize>> {
        for (name, app) in &mut self.providers {
            for line in app.program.drain() {
                count(&mut self.writes, name, &line);
            }
        }
        let mut all = self.writes.clone();
        for (call, often) in &self.hear()?.writes {
            all.insert(format!("{CONSUMER} {call}"), *often);
        }
        Ok(all)
    }

    /// SIGTERM.
    pub(super) fn stop(&mut self, name: &'static str) -> Result<()> {
        self.app(name)?.program.terminate();
        Ok(())
    }

    /// Waits until an application that was stopped has ended.
    pub(super) fn ended(&mut self, name: &'static str) -> Result<()> {
        let status = self.app(name)?.program.finish(STARTS)?;
        // What a Java process ends with when SIGTERM ran its hooks to their end, and the Go program likewise.
        ensure!(status.code() == Some(143), "{name} ended with {status}");
        Ok(())
    }

    /// `kill -9`.
    pub(super) fn kill(&mut self, name: &'static str) -> Result<()> {
        self.app(name)?.program.kill();
        Ok(())
    }

    fn app(&mut self, name: &'static str) -> Result<&mut App> {
        match name {
            CONSUMER => self.consumer.as_mut(),
            name => self.providers.get_mut(name),
        }
        .with_context(|| format!("{name} was not started"))
    }

    /// Hears what the consumer said meanwhile.
    pub(super) fn hear(&mut self) -> Result<&View> {
        let app = self.consumer.as_mut().context("no consumer")?;
        for line in app.program.drain() {
            self.view.take(&line)?;
        }
        Ok(&self.view)
    }

    /// Forgets what was called and what changed so far.
    pub(super) fn mark(&mut self) -> Result<()> {
        self.hear()?;
        self.view.mark();
        Ok(())
    }

    /// Fails unless every list of the consumer has exactly the providers that are due.
    pub(super) fn lists_are_due(&mut self) -> Result<()> {
        let due: BTreeSet<u16> = self
            .listed
            .iter()
            .filter_map(|name| self.providers.get(name))
            .map(|app| app.port)
            .collect();
        let lists = self.framework.lists;
        let name = self.framework.name;
        let listed = self.listed.clone();
        let view = self.hear()?;
        ensure!(
            view.lists.len() == lists && view.lists.values().all(|list| *list == due),
            "{name}: {lists} lists with {listed:?} at {due:?} are due, the consumer has {:?}",
            view.lists
        );
        Ok(())
    }

    /// Fails unless every way of calling reached each of `providers` since the mark.
    pub(super) fn all_are_called(&mut self, providers: &BTreeSet<&'static str>) -> Result<()> {
        let framework = self.framework;
        let view = self.hear()?;
        for how in framework.calls {
            for name in providers {
                let key = (how.to_string(), name.to_string());
                ensure!(
                    view.calls.contains_key(&key),
                    "{}: {name} was not called by {how}; calls since: {:?}, failed: {:?}",
                    framework.name,
                    view.calls,
                    view.failed
                );
            }
        }
        Ok(())
    }

    /// Fails when the consumer noticed anything since the mark: a changed list, an event, a failed call.
    pub(super) fn nothing_noticed(&mut self) -> Result<()> {
        self.lists_are_due()?;
        let name = self.framework.name;
        let view = self.hear()?;
        ensure!(
            view.changes.is_empty() && view.events == 0 && view.failed.is_empty(),
            "{name}: {}",
            view.noticed()
        );
        Ok(())
    }

    /// Fails when the consumer noticed since the mark what a lost connection does not cause.
    pub(super) fn steady(&mut self) -> Result<()> {
        let name = self.framework.name;
        let Some(steady) = self.framework.steady else {
            return Ok(());
        };
        let view = self.hear()?;
        let changed = view.changes.iter().any(|line| told_by(line, steady));
        let failed = view.failed.keys().any(|how| how.starts_with(steady));
        ensure!(!changed && !failed, "{name}: {}", view.noticed());
        Ok(())
    }

    /// What the consumer noticed since the mark, in a line.
    pub(super) fn noticed(&mut self) -> Result<String> {
        Ok(format!(
            "{}: {}",
            self.framework.name,
            self.hear()?.noticed()
        ))
    }

    /// The file that an application logs into.
    pub(super) fn log(&self, name: &'static str) -> std::path::PathBuf {
        self.work.path(&format!("client-{}.log", self.label(name)))
    }

    fn label(&self, name: &str) -> String {
        format!("{}-{name}", self.framework.name)
    }
}

/// The consumer among the names.
pub(super) const CONSUMER: &str = "consumer";

/// What a consumer has said.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The ports that each list has now.
    lists: BTreeMap<String, BTreeSet<u16>>,
    /// Since the mark: lists that became others, in their order.
    changes: Vec<String>,
    /// Since the mark: events beside the lists.
    events: usize,
    /// Since the mark: how often each way of calling reached each provider.
    calls: BTreeMap<(String, String), usize>,
    /// Since the mark: calls that failed, and why.
    failed: BTreeMap<String, usize>,
    /// From the start: what it wrote into the registry.
    writes: BTreeMap<String, usize>,
}

impl View {
    fn take(&mut self, line: &str) -> Result<()> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (how, what) = rest.split_once(' ').unwrap_or((rest, ""));
        match word {
            "ready" => {}
            "list" => {
                let ports = what
                    .split(',')
                    .filter(|port| !port.is_empty())
                    .map(|port| port.parse().with_context(|| format!("a port in {line:?}")))
                    .collect::<Result<BTreeSet<u16>>>()?;
                let before = self.lists.insert(how.to_string(), ports.clone());
                if before.as_ref() != Some(&ports) {
                    self.changes.push(line.to_string());
                }
            }
            "event" => self.events += 1,
            "call" => {
                *self
                    .calls
                    .entry((how.to_string(), what.to_string()))
                    .or_default() += 1;
            }
            "wrote" => *self.writes.entry(rest.to_string()).or_default() += 1,
            "failed" => *self.failed.entry(rest.to_string()).or_default() += 1,
            _ => bail!("a consumer said what is no report: {line:?}"),
        }
        Ok(())
    }

    fn noticed(&self) -> String {
        let failed: usize = self.failed.values().sum();
        let why: Vec<&str> = self.failed.keys().map(String::as_str).take(3).collect();
        format!(
            "{} changes of lists {:?}, {} events, {failed} failed calls {why:?}",
            self.changes.len(),
            self.changes,
            self.events
        )
    }

    fn mark(&mut self) {
        self.changes.clear();
        self.events = 0;
        self.calls.clear();
        self.failed.clear();
    }
}

/// Takes a provider's line `wrote CALL`.
fn count(writes: &mut BTreeMap<String, usize>, name: &str, line: &str) {
    if let Some(call) = line.strip_prefix("wrote ") {
        *writes.entry(format!("{name} {call}")).or_default() += 1;
    }
}

/// Whether a line `list HOW …` is of a way that starts so.
fn told_by(line: &str, start: &str) -> bool {
    line.strip_prefix("list ")
        .is_some_and(|rest| rest.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_is_told_again_is_no_change() {
        let mut view = View::default();
        let check = |view: &mut View, line: &str, changes: usize| {
            view.take(line).expect(line);
            assert_eq!(view.changes.len(), changes, "after {line:?}");
        };
        check(&mut view, "list x 1,2", 1);
        check(&mut view, "list x 2,1", 1);
        check(&mut view, "list y 1,2", 2);
        check(&mut view, "list x ", 3);
        check(&mut view, "list x 1", 4);
        view.mark();
        check(&mut view, "list x 1", 0);
        assert_eq!(view.lists["x"], BTreeSet::from([1]));
    }

    #[test]
    fn what_is_no_report_fails() {
        for line in ["list x one", "hello", "call"] {
            let taken = View::default().take(line);
            assert_eq!(taken.is_ok(), line == "call", "{line:?}: {taken:?}");
        }
    }
}
