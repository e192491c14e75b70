//! What may differ, and what differs but should not: two lists, each entry with its reason.

use std::fmt::Write as _;
use std::sync::OnceLock;

use anyhow::{Context as _, Result};

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
    /// The scripts below `compat-tests/differential/<subject>/` that show it.
    pub scripts: &'static [&'static str],
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
    /// The scripts below `compat-tests/differential/<subject>/` that show it.
    pub scripts: &'static [&'static str],
    /// What is wrong, in a line.
    pub reason: &'static str,
    /// What it forgives.
    pub rules: &'static [Rule],
}

/// In the id of a difference that only a gateway before a legacy store shows once it has taken over: it counts
/// for scripts that set how zxids or revisions are compared, as they have to for such a gateway.
pub(super) const MERGES: &str = "-merge-";

/// In the id of a difference from an older ZooKeeper alone, which Causeway shares with the newest: it counts for
/// scripts with `set release 3.8`.
pub(super) const OLD_ZOOKEEPER: &str = "zk-38-";

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

/// Where [`render`]'s text begins in `docs/divergences.md`, and where it ends.
const MARKS: [&str; 2] = ["<!-- differential:begin -->", "<!-- differential:end -->"];

/// `page` with the section between the marks written anew.
pub fn write_into(page: &str) -> Result<String> {
    let [begin, end] = MARKS;
    let (before, rest) = page.split_once(begin).context(begin)?;
    let (_, after) = rest.split_once(end).context(end)?;
    Ok(format!("{before}{begin}\n\n{}\n{end}{after}", render()))
}

/// The allowed differences as a section of `docs/divergences.md`.
fn render() -> String {
    let mut out = String::from(
        "Written by `causeway-compat divergences` from what the search for differences passes over; \
         `causeway-compat replay` runs the scripts, which are below `compat-tests/differential/`.\n\n\
         | where | a real server | Causeway | why | shown by |\n| --- | --- | --- | --- | --- |\n",
    );
    for entry in allowed() {
        let scripts: Vec<String> = entry
            .scripts
            .iter()
            .map(|script| format!("`{}/{script}`", entry.subject))
            .collect();
        let name = match entry.subject {
            "zookeeper" => "ZooKeeper",
            other => other,
        };
        let _ = writeln!(
            out,
            "| {name} {} | {} | {} | {} | {} |",
            entry.place,
            entry.real,
            entry.causeway,
            entry.reason,
            scripts.join(", ")
        );
    }
    out
}
