//! What real servers made applications log, run after run: `compat-tests/applications/<framework>.txt`, a message a line.
//!
//! A fresh run against the real server is the model of each comparison. Which messages an outage causes depends on the moment
//! it hits, though, so what earlier runs showed counts too.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::Framework;

/// The messages of earlier runs.
///
/// # Errors
/// The file is there and cannot be read.
pub fn of(framework: &Framework) -> Result<BTreeSet<String>> {
    let path = path(framework);
    if !path.exists() {
        return Ok(BTreeSet::new());
    }
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(text.lines().map(str::to_string).collect())
}

/// Adds messages; says how many are new.
///
/// # Errors
/// The file cannot be written.
pub fn add(framework: &Framework, messages: &BTreeSet<String>) -> Result<usize> {
    let mut all = of(framework)?;
    let before = all.len();
    all.extend(messages.iter().cloned());
    let path = path(framework);
    let text: String = all.iter().map(|message| format!("{message}\n")).collect();
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    fs::write(&path, text).with_context(|| path.display().to_string())?;
    Ok(all.len() - before)
}

fn path(framework: &Framework) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("applications")
        .join(framework.name)
        .with_extension("txt")
}
