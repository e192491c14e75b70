//! The ledger: a line per suite, `suite, ran, failed, skipped`, in `target/ledger/*.tsv`.
//!
//! A run that tested nothing looks like a run that passed. So each suite writes how many tests it ran, and
//! the sum fails when one that is owed (`scripts/suites`) is missing or ran none.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// What one suite ran. `ran` counts the failed ones too, but not the skipped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) ran: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

/// The ledger added up.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) counts: Counts,
    /// What is wrong beside failed tests, a sentence each.
    pub(crate) faults: Vec<String>,
}

impl Sum {
    /// The one line that a run ends with. A missing suite counts as a failure.
    pub(crate) fn line(&self) -> String {
        format!(
            "{} passed, {} failed, {} skipped",
            self.counts.ran.saturating_sub(self.counts.failed),
            self.counts.failed + self.faults.len() as u64,
            self.counts.skipped
        )
    }

    pub(crate) fn good(&self) -> bool {
        self.counts.failed == 0 && self.faults.is_empty()
    }
}

/// Writes a suite's counts; the same suite again replaces them.
pub(crate) fn note(root: &Path, suite: &str, counts: Counts) -> Result<()> {
    let folder = folder(root);
    fs::create_dir_all(&folder)?;
    let file = folder.join(format!("{}.tsv", suite.replace('/', "--")));
    let Counts {
        ran,
        failed,
        skipped,
    } = counts;
    fs::write(file, format!("{suite}\t{ran}\t{failed}\t{skipped}\n"))?;
    Ok(())
}

/// Every line of the ledger's text files.
pub(crate) fn read(root: &Path) -> Result<String> {
    let mut text = String::new();
    let Ok(entries) = fs::read_dir(folder(root)) else {
        return Ok(text);
    };
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "tsv") {
            text.push_str(&fs::read_to_string(&path)?);
        }
    }
    Ok(text)
}

/// The suites that every run owes: a name a line, `#` starts a comment.
pub(crate) fn owed(root: &Path) -> Result<Vec<String>> {
    let path = root.join("scripts/suites");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(text
        .lines()
        .map(|line| {
            line.split('#')
                .next()
                .unwrap_or_default()
                .trim()
                .to_string()
        })
        .filter(|line| !line.is_empty())
        .collect())
}

/// Adds the lines of `text` up and holds them against the owed suites.
pub(crate) fn sum(text: &str, owed: &[String]) -> Sum {
    let mut sum = Sum::default();
    let mut ran = BTreeMap::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [suite, counts @ ..] = fields.as_slice() else {
            continue;
        };
        let numbers: Vec<u64> = counts
            .iter()
            .filter_map(|field| field.parse().ok())
            .collect();
        let [all, failed, skipped] = numbers.as_slice() else {
            sum.faults
                .push(format!("the ledger has a line that is none: {line:?}"));
            continue;
        };
        sum.counts.ran += all;
        sum.counts.failed += failed;
        sum.counts.skipped += skipped;
        ran.insert(*suite, *all);
    }
    for suite in owed {
        match ran.get(suite.as_str()) {
            None => sum
                .faults
                .push(format!("suite {suite} is owed and did not run")),
            Some(0) => sum
                .faults
                .push(format!("suite {suite} is owed and ran no test")),
            Some(_) => {}
        }
    }
    sum
}

fn folder(root: &Path) -> PathBuf {
    root.join("target/ledger")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, owed: &[&str], line: &str, good: bool) {
        let owed: Vec<String> = owed.iter().map(ToString::to_string).collect();
        let sum = sum(text, &owed);
        assert_eq!(sum.line(), line, "{text:?} {owed:?}");
        assert_eq!(sum.good(), good, "{text:?} {owed:?}");
    }

    #[test]
    fn a_run_is_good_only_when_all_that_is_owed_ran_and_passed() {
        check(
            "a\t3\t0\t1\nb\t2\t0\t0\n",
            &["a", "b"],
            "5 passed, 0 failed, 1 skipped",
            true,
        );
        check(
            "a\t3\t1\t0\n",
            &["a"],
            "2 passed, 1 failed, 0 skipped",
            false,
        );
        check(
            "a\t3\t0\t0\n",
            &["a", "b"],
            "3 passed, 1 failed, 0 skipped",
            false,
        );
        check(
            "a\t0\t0\t2\n",
            &["a"],
            "0 passed, 1 failed, 2 skipped",
            false,
        );
        check(
            "a\tmany\t0\t0\n",
            &[],
            "0 passed, 1 failed, 0 skipped",
            false,
        );
        check("", &["a"], "0 passed, 1 failed, 0 skipped", false);
    }
}
