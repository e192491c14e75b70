//! Failures that are known: `compat-tests/known.toml`. A run that fails as listed does not fail the bench; one
//! that is listed and passes does, so that the list shrinks with the work.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::result::Outcome;
use crate::differential::compare::matches;

/// A failure that is known. In `clients` and `targets` a `*` stands for anything.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// `protocol/name`.
    pub scenario: String,
    /// The step that fails.
    pub step: String,
    /// The clients that it fails for.
    pub clients: Vec<String>,
    /// The targets that it fails on.
    pub targets: Vec<String>,
    /// What Causeway does otherwise.
    pub why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    known: Vec<Known>,
}

impl Known {
    /// Whether it speaks of this run, whatever came out.
    pub fn covers(&self, outcome: &Outcome) -> bool {
        let among =
            |patterns: &[String], name: &str| patterns.iter().any(|pattern| matches(pattern, name));
        self.scenario == outcome.key.scenario
            && among(&self.clients, &outcome.key.client)
            && among(&self.targets, &outcome.key.target)
    }

    /// Whether it says that this run fails as it did.
    pub fn foretells(&self, outcome: &Outcome) -> bool {
        self.covers(outcome)
            && outcome
                .failure
                .as_ref()
                .is_some_and(|(step, _)| *step == self.step)
    }
}

/// The list.
///
/// # Errors
/// The file cannot be read or says what it may not.
pub fn list() -> Result<Vec<Known>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("known.toml");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let file: File = toml::from_str(&text).with_context(|| path.display().to_string())?;
    Ok(file.known)
}

/// How outcomes stand against the list.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Came through.
    pub passed: usize,
    /// Failed as listed.
    pub known: usize,
    /// What fails the bench, a sentence each.
    pub faults: Vec<String>,
}

/// Holds outcomes against the list.
pub fn judge(outcomes: &[Outcome], list: &[Known]) -> Verdict {
    let mut verdict = Verdict::default();
    for outcome in outcomes {
        let key = &outcome.key;
        let run = format!("{} by {} on {}", key.scenario, key.client, key.target);
        match &outcome.failure {
            Some(_) if list.iter().any(|known| known.foretells(outcome)) => verdict.known += 1,
            Some((step, why)) => verdict.faults.push(format!("{run}: {step}: {why}")),
            None => match list.iter().find(|known| known.covers(outcome)) {
                Some(known) => verdict.faults.push(format!(
                    "{run} passes, but known.toml says that it fails at {}: take it off the list",
                    known.step
                )),
                None => verdict.passed += 1,
            },
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::super::result::Key;
    use super::*;

    fn outcome(client: &str, target: &str, failure: Option<&str>) -> Outcome {
        Outcome {
            key: Key {
                scenario: "etcd/auth".into(),
                client: client.into(),
                target: target.into(),
            },
            client_version: String::new(),
            target_version: String::new(),
            passed: Vec::new(),
            lacks: Vec::new(),
            notes: Vec::new(),
            failure: failure.map(|step| (step.to_string(), "so".to_string())),
            took_ms: 0,
        }
    }

    #[test]
    fn known_failures_and_what_is_otherwise() {
        let list = [Known {
            scenario: "etcd/auth".into(),
            step: "setup".into(),
            clients: vec!["clientv3".into(), "etcd*".into()],
            targets: vec!["causeway-*".into()],
            why: "no users".into(),
        }];
        let check = |client: &str, target: &str, failure: Option<&str>, counts: [usize; 3]| {
            let verdict = judge(&[outcome(client, target, failure)], &list);
            assert_eq!(
                [verdict.passed, verdict.known, verdict.faults.len()],
                counts,
                "{client} {target} {failure:?}"
            );
        };
        check("clientv3", "causeway-embedded", Some("setup"), [0, 1, 0]);
        check("etcd3gw", "causeway-relay", Some("setup"), [0, 1, 0]);
        check("clientv3", "causeway-embedded", Some("root"), [0, 0, 1]);
        check("clientv3", "causeway-embedded", None, [0, 0, 1]);
        check("clientv3", "etcd-3.7", None, [1, 0, 0]);
        check("clientv3", "etcd-3.7", Some("setup"), [0, 0, 1]);
        check("jetcd", "causeway-embedded", Some("setup"), [0, 0, 1]);
    }

    #[test]
    fn every_line_speaks_of_something_that_there_is() {
        let scenarios = super::super::scenario::all().expect("scenarios");
        let players = super::super::client::players();
        for known in list().expect("known.toml") {
            let scenario = scenarios.iter().find(|s| s.to_string() == known.scenario);
            let scenario = scenario.unwrap_or_else(|| panic!("no scenario {}", known.scenario));
            assert!(
                scenario.steps.iter().any(|(step, _)| *step == known.step),
                "{known:?}: no such step"
            );
            for client in &known.clients {
                let plays = players.iter().any(|player| {
                    matches(client, player.client.name)
                        && player.plays(&scenarios).expect("plays").contains(scenario)
                });
                assert!(plays, "{known:?}: {client} does not play it");
            }
            for target in &known.targets {
                let there = crate::target::catalogue()
                    .iter()
                    .any(|kind| matches(target, kind.name));
                assert!(there, "{known:?}: no target {target}");
            }
        }
    }
}
