//! Writes `docs/compatibility.md` from the kept outcomes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::Result;

use super::client::players;
use super::known::Known;
use super::result::Outcome;
use super::{Protocol, Scenario};
use crate::target;

/// What of the kept outcomes speaks of something that there still is: a scenario, a client that plays it, a target. What was
/// renamed or given up would stand on the page for ever.
///
/// # Errors
/// A client's folder cannot be read.
pub fn current(outcomes: Vec<Outcome>, scenarios: &[Scenario]) -> Result<Vec<Outcome>> {
    let mut played = BTreeSet::new();
    for player in players() {
        for scenario in player.plays(scenarios)? {
            played.insert((player.client.name, scenario.to_string()));
        }
    }
    let is_current = |outcome: &Outcome| {
        let key = &outcome.key;
        played.contains(&(key.client.as_str(), key.scenario.clone()))
            && target::kind(&key.target).is_ok()
    };
    Ok(outcomes.into_iter().filter(is_current).collect())
}

/// The page. `targets` gives the order of the columns and says what each is.
pub fn page(
    outcomes: &[Outcome],
    scenarios: &[Scenario],
    targets: &[(&str, &str)],
    known: &[Known],
) -> String {
    let mut page = String::from(
        "# Compatibility\n\n\
         Written by `make compat` from its results: unmodified clients, each scenario played on the real stores and on\n\
         Causeway. A scenario that a real store does not pass says nothing, so they all have to pass it.\n\n\
         A cell holds what came out: `ok`, or the step at which the client found something else. An empty cell was not run.\n\
         What a step checks stands in `compat-tests/scenarios`.\n",
    );
    for protocol in Protocol::ALL {
        let of: Vec<&Outcome> = outcomes
            .iter()
            .filter(|o| o.key.scenario.starts_with(&format!("{protocol}/")))
            .collect();
        if !of.is_empty() {
            section(&mut page, protocol, &of, scenarios, targets);
        }
    }
    failures(&mut page, outcomes, known);
    lacking(&mut page, outcomes);
    noted(&mut page, outcomes);
    page
}

fn section(
    page: &mut String,
    protocol: Protocol,
    outcomes: &[&Outcome],
    scenarios: &[Scenario],
    targets: &[(&str, &str)],
) {
    let title = match protocol {
        Protocol::ZooKeeper => "ZooKeeper",
        Protocol::Etcd => "etcd",
    };
    let _ = write!(
        page,
        "\n## {title}\n\n| target | version | what it is |\n| --- | --- | --- |\n"
    );
    let columns: Vec<&(&str, &str)> = targets
        .iter()
        .filter(|(name, _)| outcomes.iter().any(|o| o.key.target == *name))
        .collect();
    for (name, about) in &columns {
        let version = outcomes
            .iter()
            .find(|o| o.key.target == *name)
            .map(|o| o.target_version.as_str());
        let _ = writeln!(
            page,
            "| {name} | {} | {about} |",
            version.unwrap_or_default()
        );
    }
    let clients: BTreeMap<&str, &str> = outcomes
        .iter()
        .map(|o| (o.key.client.as_str(), o.client_version.as_str()))
        .collect();
    for scenario in scenarios.iter().filter(|s| s.protocol == protocol) {
        let full = scenario.to_string();
        let rows: Vec<(&&str, &&str)> = clients
            .iter()
            .filter(|(client, _)| {
                outcomes
                    .iter()
                    .any(|o| o.key.scenario == full && o.key.client == **client)
            })
            .collect();
        if rows.is_empty() {
            continue;
        }
        let _ = write!(
            page,
            "\n### {}\n\n{}\n\n| client | version |",
            scenario.name, scenario.about
        );
        for (name, _) in &columns {
            let _ = write!(page, " {name} |");
        }
        page.push_str("\n| --- | --- |");
        page.push_str(&" --- |".repeat(columns.len()));
        page.push('\n');
        for (client, version) in rows {
            let _ = write!(page, "| {client} | {version} |");
            for (name, _) in &columns {
                let cell = outcomes
                    .iter()
                    .find(|o| {
                        o.key.scenario == full && o.key.client == *client && o.key.target == *name
                    })
                    .map(|o| match &o.failure {
                        None => "ok".to_string(),
                        Some((step, _)) if step.is_empty() => "**ended**".to_string(),
                        Some((step, _)) => format!("**{step}**"),
                    });
                let _ = write!(page, " {} |", cell.unwrap_or_default());
            }
            page.push('\n');
        }
    }
}

/// Every failure by name. Runs that fail at the same step for the same known reason share a line.
fn failures(page: &mut String, outcomes: &[Outcome], known: &[Known]) {
    page.push_str("\n## What is not passed yet\n\n");
    let mut lines: BTreeMap<(String, String, String), BTreeMap<&str, BTreeSet<&str>>> =
        BTreeMap::new();
    for outcome in outcomes {
        let Some((step, seen)) = &outcome.failure else {
            continue;
        };
        let why = known
            .iter()
            .find(|known| known.foretells(outcome))
            .map_or_else(
                || format!("not yet explained: {}", one_line(seen)),
                |k| k.why.clone(),
            );
        lines
            .entry((outcome.key.scenario.clone(), step.clone(), why))
            .or_default()
            .entry(outcome.key.client.as_str())
            .or_default()
            .insert(outcome.key.target.as_str());
    }
    if lines.is_empty() {
        page.push_str("Nothing: every run passes.\n");
        return;
    }
    page.push_str("| scenario | step | clients and targets | why |\n| --- | --- | --- | --- |\n");
    for ((scenario, step, why), runs) in lines {
        let mut by_targets: BTreeMap<Vec<&str>, Vec<&str>> = BTreeMap::new();
        for (client, targets) in runs {
            by_targets
                .entry(targets.into_iter().collect())
                .or_default()
                .push(client);
        }
        let runs: Vec<String> = by_targets
            .into_iter()
            .map(|(targets, clients)| format!("{} on {}", clients.join(", "), targets.join(", ")))
            .collect();
        let _ = writeln!(
            page,
            "| {scenario} | {step} | {} | {why} |",
            runs.join("; ")
        );
    }
}

/// Steps that a library has no call for, so that nobody reads `ok` as more than it says.
fn lacking(page: &mut String, outcomes: &[Outcome]) {
    let mut lines: BTreeMap<(&str, &str), BTreeSet<String>> = BTreeMap::new();
    for outcome in outcomes {
        for (step, why) in &outcome.lacks {
            lines
                .entry((&outcome.key.client, &outcome.key.scenario))
                .or_default()
                .insert(format!("{step} ({})", one_line(why)));
        }
    }
    if lines.is_empty() {
        return;
    }
    page.push_str(
        "\n## Steps that a library has no call for\n\n| client | scenario | steps |\n| --- | --- | --- |\n",
    );
    for ((client, scenario), steps) in lines {
        let steps: Vec<String> = steps.into_iter().collect();
        let _ = writeln!(page, "| {client} | {scenario} | {} |", steps.join("; "));
    }
}

/// What clients said of how they checked.
fn noted(page: &mut String, outcomes: &[Outcome]) {
    let mut lines: BTreeMap<(&str, &str), BTreeSet<String>> = BTreeMap::new();
    for outcome in outcomes {
        for note in &outcome.notes {
            lines
                .entry((&outcome.key.client, &outcome.key.scenario))
                .or_default()
                .insert(one_line(note));
        }
    }
    if lines.is_empty() {
        return;
    }
    page.push_str(
        "\n## How a client checks where its library shows less\n\n| client | scenario | what it notes |\n| --- | --- | --- |\n",
    );
    for ((client, scenario), notes) in lines {
        let notes: Vec<String> = notes.into_iter().collect();
        let _ = writeln!(page, "| {client} | {scenario} | {} |", notes.join("; "));
    }
}

/// A text that fits into a cell of a table.
fn one_line(text: &str) -> String {
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut short: String = line.replace('|', "\\|").chars().take(160).collect();
    if short.len() < line.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::super::result::Key;
    use super::*;

    #[test]
    fn the_page_names_what_failed_and_what_was_not_checked() {
        let outcome = |target: &str, failure: Option<(&str, &str)>| Outcome {
            key: Key {
                scenario: "etcd/lease".into(),
                client: "jetcd".into(),
                target: target.into(),
            },
            client_version: "0.8".into(),
            target_version: "3.7.1".into(),
            passed: vec!["grant".into()],
            lacks: vec![("leases".into(), "no call".into())],
            notes: vec!["no header".into()],
            failure: failure.map(|(step, why)| (step.to_string(), why.to_string())),
            took_ms: 5,
        };
        let outcomes = [
            outcome("etcd-3.7", None),
            outcome("causeway-embedded", Some(("own-id", "seen\n| otherwise"))),
        ];
        let scenarios = super::super::scenario::all().expect("scenarios");
        let targets = [("etcd-3.7", "real"), ("causeway-embedded", "ours")];
        let text = page(&outcomes, &scenarios, &targets, &[]);
        for part in [
            "| etcd-3.7 | 3.7.1 | real |",
            "| jetcd | 0.8 | ok | **own-id** |",
            "| etcd/lease | own-id | jetcd on causeway-embedded | not yet explained: seen \\| otherwise |",
            "| jetcd | etcd/lease | leases (no call) |",
            "| jetcd | etcd/lease | no header |",
        ] {
            assert!(text.contains(part), "{part}\nin\n{text}");
        }
        let good = page(&outcomes[..1], &scenarios, &targets, &[]);
        assert!(good.contains("Nothing: every run passes."), "{good}");
    }

    #[test]
    fn only_what_there_still_is_is_shown() {
        let scenarios = super::super::scenario::all().expect("scenarios");
        let check = |scenario: &str, client: &str, target: &str, stays: bool| {
            let outcome = Outcome {
                key: Key {
                    scenario: scenario.into(),
                    client: client.into(),
                    target: target.into(),
                },
                client_version: String::new(),
                target_version: String::new(),
                passed: Vec::new(),
                lacks: Vec::new(),
                notes: Vec::new(),
                failure: None,
                took_ms: 0,
            };
            let shown = current(vec![outcome], &scenarios).expect("clients");
            assert_eq!(
                shown.len(),
                usize::from(stays),
                "{scenario} {client} {target}"
            );
        };
        check("etcd/lease", "jetcd", "etcd-3.7", true);
        check("etcd/leases", "jetcd", "etcd-3.7", false);
        check("etcd/lease", "jetcd-0", "etcd-3.7", false);
        check("etcd/lease", "kazoo", "etcd-3.7", false);
        check("etcd/lease", "jetcd", "etcd-3.6", false);
    }
}
