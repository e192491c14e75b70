//! House checks and bookkeeping of test runs.
//!
//! - `xtask tidy` checks what the compiler does not: pure crates, edges between crates, unfinished code,
//!   a reason for each dependency.
//! - `xtask test` runs every test binary of the workspace and writes what each ran into the ledger.
//! - `xtask note SUITE RAN FAILED SKIPPED` adds a line to the ledger.
//! - `xtask sum` adds the ledger up, and fails when a suite that is owed is missing or ran nothing.
#![allow(
    clippy::disallowed_methods,
    reason = "a developer's tool: it waits for processes and measures how long they took"
)]

mod ledger;
mod run;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match command(&words) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn command(words: &[&str]) -> Result<bool> {
    let root = root();
    match words {
        ["tidy"] => {
            let faults = tidy::check(&root)?;
            for fault in &faults {
                println!("{fault}");
            }
            println!("tidy: {} faults", faults.len());
            Ok(faults.is_empty())
        }
        ["test"] => run::all(&root),
        ["note", suite, ran, failed, skipped] => {
            let counts = ledger::Counts {
                ran: ran.parse()?,
                failed: failed.parse()?,
                skipped: skipped.parse()?,
            };
            ledger::note(&root, suite, counts)?;
            Ok(true)
        }
        ["sum"] => {
            let sum = ledger::sum(&ledger::read(&root)?, &ledger::owed(&root)?);
            for fault in &sum.faults {
                println!("{fault}");
            }
            println!("{}", sum.line());
            Ok(sum.good())
        }
        _ => bail!("usage: xtask tidy | test | note SUITE RAN FAILED SKIPPED | sum"),
    }
}

/// The workspace's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_path_buf)
        .unwrap_or_default()
}
