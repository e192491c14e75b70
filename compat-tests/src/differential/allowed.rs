//! What may differ, and what differs but should not: two lists, each entry with its reason.

use std::fmt::Write as _;
use std::sync::OnceLock;

use super::compare::Rule;
use super::{etcd, zookeeper};

/// A difference that is meant to stay: a line of `docs/divergences.md`.
#[derive(Debug, Clone, Copy)]
pub struct Allowed {
    /// Its name in reports.
    pub id: &'static str,
    /// `zookeeper` or `etcd`.
    pub subject: &'static str,
    /// Where it shows.
    pub place: &'static str,
    /// What the real server does.
    pub real: &'static str,
    /// What Causeway does.
    pub causeway: &'static str,
    /// Why.
    pub reason: &'static str,
    /// The scenario or test that shows it.
    pub shown_by: &'static str,
    /// What it forgives.
    pub rules: &'static [Rule],
}

/// A difference that was found and is to go: the search passes over it until it is mended.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// Its name in reports.
    pub id: &'static str,
    /// `zookeeper` or `etcd`.
    pub subject: &'static str,
    /// The script below `compat-tests/differential/<subject>/` that shows it.
    pub script: &'static str,
    /// What is wrong, in a line.
    pub reason: &'static str,
    /// What it forgives.
    pub rules: &'static [Rule],
}

/// Every difference that is meant.
pub fn allowed() -> &'static [Allowed] {
    static ALL: OnceLock<Vec<Allowed>> = OnceLock::new();
    ALL.get_or_init(|| [zookeeper::ALLOWED, etcd::ALLOWED].concat())
}

/// Every difference that is to go.
pub fn known() -> &'static [Known] {
    static ALL: OnceLock<Vec<Known>> = OnceLock::new();
    ALL.get_or_init(|| [zookeeper::KNOWN, etcd::KNOWN].concat())
}

/// The allowed differences of a subject as rows of the table in `docs/divergences.md`.
pub fn render(subject: &str) -> String {
    let mut out = String::from(
        "| where | a real server | Causeway | why | shown by |\n| --- | --- | --- | --- | --- |\n",
    );
    for entry in allowed().iter().filter(|entry| entry.subject == subject) {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | `{}` |",
            entry.place, entry.real, entry.causeway, entry.reason, entry.shown_by
        );
    }
    out
}
