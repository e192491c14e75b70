//! Which zxid of the ensemble a client had seen when it was shown one of ours.
//!
//! A client that comes back shows our number; for watches in the ensemble its number there is wanted. On one
//! session replies are in order, and each that shows more of the ensemble than those before has a number of its
//! own: a client that saw that number, or a larger one, has got that reply, and before it every event up to the
//! ensemble's zxid in it.
//!
//! What is noted is appended to a file before the reply leaves, without waiting for the disk: it outlives the process,
//! and where it does not outlive the machine clients are told of changes that were none.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use dashmap::DashMap;
use parking_lot::Mutex;

use crate::config::Config;

/// Pairs kept for each session.
const PAIRS: usize = 64;

/// Pairs of each session that outlive the process: more than a client may have missed when the gateway ended.
const SAVED: usize = 8;

/// Where they are kept.
const FILE: &str = "zookeeper-numbers.log";

/// A session, ours and theirs; a session that is over has zeros.
const ENTRY: usize = 24;

/// The file is written anew when it has so many entries more than it needs.
const SPARE: usize = 100_000;

/// Pairs of numbers by session. Without one the answer is 0: every watch that may have missed something fires.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    by_session: DashMap<i64, VecDeque<(i64, i64)>>,
    log: Option<Mutex<Log>>,
}

#[derive(Debug)]
struct Log {
    path: PathBuf,
    file: File,
    entries: usize,
    waiting: Vec<u8>,
}

impl Numbers {
    /// As the process before this one left them.
    pub(super) fn load(config: &Config) -> Self {
        match (&config.legacy_zookeeper, &config.data_dir) {
            (Some(_), Some(dir)) => Numbers::load_from(dir.join(FILE)),
            _ => Numbers::default(),
        }
    }

    fn load_from(path: PathBuf) -> Self {
        let mut numbers = Numbers::default();
        for entry in std::fs::read(&path).unwrap_or_default().chunks_exact(ENTRY) {
            let mut words = entry.chunks_exact(8).map(|word| {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(word);
                i64::from_be_bytes(bytes)
            });
            let mut next = || words.next().unwrap_or(0);
            match (next(), next(), next()) {
                (session, 0, 0) => numbers.forget(session),
                (session, ours, theirs) => numbers.note(session, ours, theirs),
            }
        }
        match numbers.write_anew(&path) {
            Ok((file, entries)) => {
                numbers.log = Some(Mutex::new(Log {
                    path,
                    file,
                    entries,
                    waiting: Vec::new(),
                }));
            }
            Err(error) => cannot_write(&path, &error),
        }
        numbers
    }

    /// A file with what is worth keeping, open for more.
    fn write_anew(&self, path: &Path) -> io::Result<(File, usize)> {
        let mut all = Vec::new();
        for pairs in &self.by_session {
            let skip = pairs.len().saturating_sub(SAVED);
            for (ours, theirs) in pairs.iter().skip(skip) {
                put(&mut all, *pairs.key(), *ours, *theirs);
            }
        }
        let fresh = path.with_extension("new");
        std::fs::write(&fresh, &all)?;
        std::fs::rename(&fresh, path)?;
        let file = OpenOptions::new().append(true).open(path)?;
        Ok((file, all.len() / ENTRY))
    }

    /// Hands what was noted to the system: called before the replies leave that it was noted for.
    pub(super) fn keep(&self) {
        let Some(log) = &self.log else {
            return;
        };
        let log = &mut *log.lock();
        let waiting = std::mem::take(&mut log.waiting);
        log.entries += waiting.len() / ENTRY;
        let mut written = log.file.write_all(&waiting);
        if written.is_ok() && log.entries > self.by_session.len() * SAVED + SPARE {
            written = self.write_anew(&log.path).map(|(file, entries)| {
                log.file = file;
                log.entries = entries;
            });
        }
        if let Err(error) = written {
            cannot_write(&log.path, &error);
        }
    }

    fn enter(&self, session: i64, ours: i64, theirs: i64) {
        if let Some(log) = &self.log {
            put(&mut log.lock().waiting, session, ours, theirs);
        }
    }

    /// Whether a reply of the ensemble with `theirs` shows more than those noted for the session.
    pub(super) fn is_news(&self, session: i64, theirs: i64) -> bool {
        let noted = self.by_session.get(&session);
        let last = noted.and_then(|pairs| pairs.back().map(|pair| pair.1));
        theirs > last.unwrap_or(0)
    }

    /// A reply of the ensemble, with its `theirs`, is shown with `ours`, which nothing before it was shown with.
    pub(super) fn note(&self, session: i64, ours: i64, theirs: i64) {
        if !self.is_news(session, theirs) {
            return;
        }
        let mut pairs = self.by_session.entry(session).or_default();
        if pairs.len() == PAIRS {
            // Every second one: far history stays known, only coarser.
            let mut at = 0;
            pairs.retain(|_| {
                at += 1;
                at % 2 == 1
            });
        }
        pairs.push_back((ours, theirs));
        drop(pairs);
        self.enter(session, ours, theirs);
    }

    /// What the client of a session had seen of the ensemble for sure, when it had seen `ours`.
    pub(super) fn theirs(&self, session: i64, ours: i64) -> i64 {
        let Some(pairs) = self.by_session.get(&session) else {
            return 0;
        };
        pairs
            .iter()
            .rev()
            .find(|(shown, _)| *shown <= ours)
            .map_or(0, |(_, theirs)| *theirs)
    }

    /// The session is over.
    pub(super) fn forget(&self, session: i64) {
        if self.by_session.remove(&session).is_some() {
            self.enter(session, 0, 0);
        }
    }
}

fn put(to: &mut Vec<u8>, session: i64, ours: i64, theirs: i64) {
    for word in [session, ours, theirs] {
        to.extend_from_slice(&word.to_be_bytes());
    }
}

fn cannot_write(path: &Path, error: &io::Error) {
    tracing::warn!(file = %path.display(), %error, "numbers of the ensemble that clients saw cannot be written");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_surely_seen_counts() {
        let numbers = Numbers::default();
        for (ours, theirs) in [(10, 1), (15, 1), (20, 4), (30, 9), (40, 0)] {
            numbers.note(7, ours, theirs);
        }
        let check = |session, ours, want| {
            assert_eq!(numbers.theirs(session, ours), want, "{session} {ours}")
        };
        check(7, 9, 0);
        check(7, 10, 1);
        check(7, 19, 1);
        check(7, 20, 4);
        check(7, 29, 4);
        check(7, 30, 9);
        check(7, 99, 9);
        check(8, 31, 0);
        assert!(numbers.is_news(7, 10) && !numbers.is_news(7, 9) && numbers.is_news(8, 1));
        numbers.forget(7);
        check(7, 31, 0);
    }

    #[test]
    fn history_stays_bounded_and_true() {
        let numbers = Numbers::default();
        for at in 1..10_000 {
            numbers.note(1, at * 10, at);
        }
        assert!(numbers.by_session.get(&1).is_some_and(|p| p.len() <= PAIRS));
        for ours in [15, 500, 5_000, 99_999] {
            assert!(numbers.theirs(1, ours) <= ours / 10, "{ours}");
        }
        assert_eq!(numbers.theirs(1, 99_990), 9_999);
    }

    #[test]
    fn what_was_last_seen_outlives_the_process() {
        let dir = std::env::temp_dir().join(format!("causeway-numbers-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join(FILE);
        let numbers = Numbers::load_from(file.clone());
        for at in 1..100 {
            numbers.note(1, at * 10, at);
        }
        numbers.note(2, 5, 3);
        numbers.note(3, 7, 4);
        numbers.forget(3);
        numbers.keep();
        // What was not handed over is lost, and an entry cut short is none.
        numbers.note(2, 9, 8);
        let seen =
            |numbers: &Numbers| [(1, 985), (2, 9), (3, 9)].map(|(s, ours)| numbers.theirs(s, ours));
        let again = Numbers::load_from(file.clone());
        assert_eq!(seen(&again), [98, 3, 0]);
        again.note(2, 20, 9);
        again.keep();
        let mut bytes = std::fs::read(&file).unwrap();
        assert!(bytes.len() <= ENTRY * (SAVED + 3));
        bytes.extend([1; ENTRY - 1]);
        std::fs::write(&file, bytes).unwrap();
        let third = Numbers::load_from(file);
        assert_eq!((seen(&third), third.theirs(2, 20)), ([98, 3, 0], 9));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
