//! What came out of each run, kept in `target/compat/results.jsonl`: the newest of each client, scenario and
//! target stands.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// Which run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// `protocol/name`.
    pub scenario: String,
    /// The client library.
    pub client: String,
    /// The target.
    pub target: String,
}

/// What one client made of one scenario on one target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Which run.
    #[serde(flatten)]
    pub key: Key,
    /// The library's version.
    pub client_version: String,
    /// The target's version, as it says itself.
    pub target_version: String,
    /// Steps that were checked and hold.
    pub passed: Vec<String>,
    /// Steps that the library has no call for, with the reason.
    pub lacks: Vec<(String, String)>,
    /// What the client has to say of how it checked: where the library shows less than the rule asks, and what was taken
    /// in its place.
    #[serde(default)]
    pub notes: Vec<String>,
    /// The step that failed and why; a step is empty when the program itself failed.
    pub failure: Option<(String, String)>,
    /// Milliseconds it took.
    pub took_ms: u64,
}

fn file() -> PathBuf {
    crate::artefacts().join("results.jsonl")
}

/// Adds outcomes to the file.
///
/// # Errors
/// The file cannot be written.
pub fn keep(outcomes: &[Outcome]) -> Result<()> {
    let path = file();
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut file = fs::File::options()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| path.display().to_string())?;
    for outcome in outcomes {
        writeln!(file, "{}", serde_json::to_string(outcome)?)?;
    }
    Ok(())
}

/// The newest outcome of each run.
///
/// # Errors
/// A line that is no outcome: remove the file and run again.
pub fn kept() -> Result<Vec<Outcome>> {
    let path = file();
    let Ok(text) = fs::read_to_string(&path) else {
        return Ok(Vec::new());
    };
    let mut newest = BTreeMap::new();
    for line in text.lines() {
        let outcome: Outcome = serde_json::from_str(line)
            .with_context(|| format!("{}: {line:?}; remove it and run again", path.display()))?;
        newest.insert(outcome.key.clone(), outcome);
    }
    Ok(newest.into_values().collect())
}
