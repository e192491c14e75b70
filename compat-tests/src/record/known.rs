//! Differences between a target and the recorded server that are known: `transcripts/known.toml`.
//!
//! What follows from a difference differs too, so a transcript is listed with the line from which on it does. It is new
//! when it differs from another line on, and it has to leave the list when it does not differ at all.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::replay::Report;

/// The list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// The transcripts that every change has to pass: `subject/client--scenario`.
    #[serde(default)]
    pub ci: Vec<String>,
    /// The differences.
    #[serde(default)]
    pub cause: Vec<Cause>,
}

/// Differences that have one reason.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cause {
    /// The target that differs.
    pub target: String,
    /// What it does otherwise.
    pub why: String,
    /// The line of each transcript from which on it differs.
    pub from: BTreeMap<String, usize>,
}

/// How a replay stands against the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// All came as recorded.
    Clean,
    /// It differs as listed, for this reason.
    Known(String),
    /// It differs otherwise.
    New,
    /// It is listed and does not differ.
    Mended,
}

impl Known {
    /// Holds a replay of `transcript` on `target` against the list.
    pub fn judge(&self, target: &str, transcript: &str, report: &Report) -> Standing {
        let listed = self
            .cause
            .iter()
            .filter(|cause| cause.target == target)
            .find_map(|cause| Some((cause, *cause.from.get(transcript)?)));
        let first = report.differences.first().map(|difference| difference.line);
        match (listed, first) {
            (None, None) if report.stopped.is_none() => Standing::Clean,
            (None, _) => Standing::New,
            (Some((cause, from)), Some(first)) if first == from => {
                Standing::Known(cause.why.clone())
            }
            (Some(_), Some(_)) => Standing::New,
            (Some(_), None) if report.stopped.is_some() => Standing::New,
            (Some(_), None) => Standing::Mended,
        }
    }
}

/// Reads the list. One transcript stands once for each target.
///
/// # Errors
/// The file cannot be read or says what it may not.
pub fn read(path: &Path) -> Result<Known> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    parse(&text).with_context(|| path.display().to_string())
}

fn parse(text: &str) -> Result<Known> {
    let known: Known = toml::from_str(text)?;
    let mut seen = BTreeMap::new();
    for cause in &known.cause {
        for name in cause.from.keys() {
            let twice = seen.insert((&cause.target, name), &cause.why);
            ensure!(twice.is_none(), "{name} stands twice for {}", cause.target);
        }
    }
    Ok(known)
}

/// The name of a transcript's file in the list: `subject/client--scenario`.
pub fn name(path: &Path) -> String {
    let part = |part: Option<&std::ffi::OsStr>| {
        part.map(|part| part.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    let subject = path
        .parent()
        .map_or_else(String::new, |parent| part(parent.file_name()));
    format!("{subject}/{}", part(path.file_stem()))
}

#[cfg(test)]
mod tests {
    use super::super::Transcript;
    use super::super::replay::Difference;
    use super::*;

    #[test]
    fn only_what_is_listed_is_known() {
        let known = parse(
            "ci = [\"etcd/a--kv\"]\n[[cause]]\ntarget = \"t\"\nwhy = \"w\"\nfrom = { \"etcd/a--kv\" = 10 }\n",
        )
        .unwrap();
        let check = |target: &str, transcript: &str, lines: &[usize], stopped, wanted: Standing| {
            let report = Report {
                differences: lines
                    .iter()
                    .map(|&line| Difference {
                        line,
                        what: String::new(),
                    })
                    .collect(),
                stopped,
                ..Report::default()
            };
            let standing = known.judge(target, transcript, &report);
            assert_eq!(standing, wanted, "{target} {transcript} {lines:?}");
        };
        let stopped = || Some("nobody makes faults".to_string());
        check(
            "t",
            "etcd/a--kv",
            &[10, 12],
            None,
            Standing::Known("w".into()),
        );
        check(
            "t",
            "etcd/a--kv",
            &[10],
            stopped(),
            Standing::Known("w".into()),
        );
        check("t", "etcd/a--kv", &[11], None, Standing::New);
        check("t", "etcd/a--kv", &[9, 10], None, Standing::New);
        check("t", "etcd/a--kv", &[], None, Standing::Mended);
        check("t", "etcd/a--kv", &[], stopped(), Standing::New);
        check("u", "etcd/a--kv", &[10], None, Standing::New);
        check("t", "etcd/b--kv", &[], None, Standing::Clean);
        check("t", "etcd/b--kv", &[], stopped(), Standing::New);
    }

    #[test]
    fn a_transcript_is_listed_once() {
        let cause = "[[cause]]\ntarget = \"t\"\nwhy = \"w\"\nfrom = { \"etcd/a\" = 1 }\n";
        assert!(parse(cause).is_ok());
        assert!(parse(&cause.repeat(2)).is_err());
    }

    #[test]
    fn every_name_is_of_a_transcript_that_can_be_replayed() {
        let folder = super::super::folder();
        let transcripts: BTreeMap<String, Transcript> = super::super::transcripts(&folder)
            .unwrap()
            .into_iter()
            .map(|(path, transcript)| (name(&path), transcript))
            .collect();
        let known = read(&folder.join("known.toml")).unwrap();
        let check = |name: &str| {
            let transcript = transcripts.get(name);
            let transcript = transcript.unwrap_or_else(|| panic!("there is no {name}"));
            assert_eq!(transcript.fixed, None, "{name}");
            transcript
        };
        for name in &known.ci {
            check(name);
        }
        for cause in &known.cause {
            let kind = crate::target::kind(&cause.target).unwrap();
            for (name, line) in &cause.from {
                let transcript = check(name);
                assert!(
                    kind.speaks(transcript.subject),
                    "{name} on {}",
                    cause.target
                );
                let said = transcript.lines().any(|(number, _)| number == *line);
                assert!(said, "{name} has no line {line}");
            }
        }
    }

    #[test]
    fn a_file_is_named_by_subject_and_stem() {
        assert_eq!(name(Path::new("/x/etcd/a--kv.txt")), "etcd/a--kv");
    }
}
