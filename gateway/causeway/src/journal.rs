//! The local log: commands that the state machines applied, in order, on disk before their replies.
//!
//! One writer thread drains what is waiting, commits it as one transaction and then lets the replies
//! go (group commit). Without a data folder everything counts as durable at once.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use redb::{Database, ReadableDatabase, TableDefinition};
use tokio::sync::watch;

const LOG: TableDefinition<'static, u64, &'static [u8]> = TableDefinition::new("log");
const SNAPSHOT: TableDefinition<'static, &'static str, &'static [u8]> =
    TableDefinition::new("snapshot");
const STATE: &str = "state";
const COVERS: &str = "covers";
const FILE: &str = "causeway.redb";

/// Entries committed in one transaction at most; bounds the memory of a commit, not its rate.
const BATCH: usize = 1024;

/// Position in the log. A reply that depends on an entry is sent once the entry is durable.
pub type Position = u64;

/// Why the log cannot be used. Nothing that was not acknowledged is claimed to be kept.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JournalError {
    /// The file cannot be opened: in use by another gateway, damaged, or no access.
    #[error("cannot open {}: {cause} (is another gateway using this --data-dir, or is it not writable?)", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the store said.
        cause: String,
    },
    /// A write failed; the gateway stops acknowledging.
    #[error(
        "cannot write the log in --data-dir: {0} (free space or repair the disk, then restart)"
    )]
    Write(String),
}

/// What a data folder held.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The last snapshot.
    pub snapshot: Option<Vec<u8>>,
    /// Entries after it, in order.
    pub entries: Vec<Vec<u8>>,
}

enum Work {
    Append(Position, Vec<u8>),
    Snapshot { covers: Position, state: Vec<u8> },
}

#[derive(Debug, Clone)]
enum Durable {
    UpTo(Position),
    Failed(Arc<str>),
}

/// The log's handle. Appends happen under the lock of the state machines, so positions follow the
/// order in which commands were applied.
#[derive(Debug)]
pub struct Journal {
    writer: Option<mpsc::Sender<Work>>,
    last: AtomicU64,
    since_snapshot: AtomicU64,
    durable: watch::Receiver<Durable>,
}

impl Journal {
    /// A log that keeps nothing: a lone member without a data folder.
    pub fn in_memory() -> Self {
        let (_, durable) = watch::channel(Durable::UpTo(Position::MAX));
        Journal {
            writer: None,
            last: AtomicU64::new(0),
            since_snapshot: AtomicU64::new(0),
            durable,
        }
    }

    /// Opens (or begins) the log in a folder and gives back what it held.
    pub fn open(dir: &Path) -> Result<(Self, Recovered), JournalError> {
        let path = dir.join(FILE);
        let failed = |cause: String| JournalError::Open {
            path: path.clone(),
            cause,
        };
        std::fs::create_dir_all(dir).map_err(|e| failed(e.to_string()))?;
        let db = Database::create(&path).map_err(|e| failed(e.to_string()))?;
        let (recovered, last) = recover(&db).map_err(|e| failed(e.to_string()))?;
        let (done, durable) = watch::channel(Durable::UpTo(last));
        let (writer, work) = mpsc::channel();
        std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || write_loop(&db, &work, &done))
            .map_err(|e| failed(e.to_string()))?;
        let since = u64::try_from(recovered.entries.len()).unwrap_or(0);
        let journal = Journal {
            writer: Some(writer),
            last: AtomicU64::new(last),
            since_snapshot: AtomicU64::new(since),
            durable,
        };
        Ok((journal, recovered))
    }

    /// Whether anything is kept.
    pub fn is_durable(&self) -> bool {
        self.writer.is_some()
    }

    /// Appends an entry and gives its position.
    pub fn append(&self, entry: Vec<u8>) -> Position {
        let position = self.last.fetch_add(1, Ordering::AcqRel) + 1;
        self.since_snapshot.fetch_add(1, Ordering::Relaxed);
        if let Some(writer) = &self.writer {
            // A writer that is gone has published its failure; waiting for the position reports it.
            let _ = writer.send(Work::Append(position, entry));
        }
        position
    }

    /// The last position given out: what a read that saw the present depends on.
    pub fn last(&self) -> Position {
        if self.writer.is_some() {
            self.last.load(Ordering::Acquire)
        } else {
            0
        }
    }

    /// Entries since the last snapshot.
    pub fn since_snapshot(&self) -> u64 {
        if self.writer.is_some() {
            self.since_snapshot.load(Ordering::Relaxed)
        } else {
            0
        }
    }

    /// Replaces everything up to the last position by a snapshot of the state there.
    pub fn snapshot(&self, state: Vec<u8>) {
        if let Some(writer) = &self.writer {
            self.since_snapshot.store(0, Ordering::Relaxed);
            let _ = writer.send(Work::Snapshot {
                covers: self.last(),
                state,
            });
        }
    }

    /// Whether a position is durable already; errors once the log has failed.
    pub fn check(&self, position: Position) -> Result<bool, JournalError> {
        if self.writer.is_none() {
            return Ok(true);
        }
        match &*self.durable.borrow() {
            Durable::UpTo(done) => Ok(*done >= position),
            Durable::Failed(cause) => Err(JournalError::Write(cause.to_string())),
        }
    }

    /// Waits until a position is durable.
    pub async fn wait(&self, position: Position) -> Result<(), JournalError> {
        if self.check(position)? {
            return Ok(());
        }
        let mut durable = self.durable.clone();
        let reached = durable
            .wait_for(|d| match d {
                Durable::UpTo(done) => *done >= position,
                Durable::Failed(_) => true,
            })
            .await;
        match reached.as_deref() {
            Ok(Durable::UpTo(_)) => Ok(()),
            Ok(Durable::Failed(cause)) => Err(JournalError::Write(cause.to_string())),
            Err(_) => Err(JournalError::Write("the writer has stopped".into())),
        }
    }
}

fn recover(db: &Database) -> Result<(Recovered, Position), redb::Error> {
    let begin = db.begin_write()?;
    begin.open_table(LOG)?;
    begin.open_table(SNAPSHOT)?;
    begin.commit()?;
    let read = db.begin_read()?;
    let snapshots = read.open_table(SNAPSHOT)?;
    let snapshot = snapshots.get(STATE)?.map(|v| v.value().to_vec());
    let covers = snapshots
        .get(COVERS)?
        .and_then(|v| v.value().try_into().ok().map(u64::from_be_bytes))
        .unwrap_or(0);
    let mut last = covers;
    let mut entries = Vec::new();
    for item in read.open_table(LOG)?.range(covers + 1..)? {
        let (position, entry) = item?;
        last = position.value();
        entries.push(entry.value().to_vec());
    }
    Ok((Recovered { snapshot, entries }, last))
}

fn write_loop(db: &Database, work: &mpsc::Receiver<Work>, done: &watch::Sender<Durable>) {
    while let Ok(first) = work.recv() {
        let mut batch = vec![first];
        while batch.len() < BATCH {
            match work.try_recv() {
                Ok(next) => batch.push(next),
                Err(_) => break,
            }
        }
        match commit(db, &batch) {
            Ok(Some(position)) => {
                done.send_replace(Durable::UpTo(position));
            }
            Ok(None) => {}
            Err(e) => {
                tracing::error!(error = %e, "the log cannot be written; no change is acknowledged any more");
                done.send_replace(Durable::Failed(e.to_string().into()));
                return;
            }
        }
    }
}

fn commit(db: &Database, batch: &[Work]) -> Result<Option<Position>, redb::Error> {
    let mut last = None;
    let write = db.begin_write()?;
    {
        let mut log = write.open_table(LOG)?;
        let mut snapshots = write.open_table(SNAPSHOT)?;
        for item in batch {
            match item {
                Work::Append(position, entry) => {
                    log.insert(position, entry.as_slice())?;
                    last = Some(*position);
                }
                Work::Snapshot { covers, state } => {
                    snapshots.insert(STATE, state.as_slice())?;
                    snapshots.insert(COVERS, covers.to_be_bytes().as_slice())?;
                    log.retain(|position, _| position > *covers)?;
                }
            }
        }
    }
    write.commit()?;
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn entries_and_snapshots_survive() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        {
            let (journal, recovered) = Journal::open(dir.path()).expect("opens");
            assert!(recovered.snapshot.is_none() && recovered.entries.is_empty());
            for i in 0..10_u8 {
                let position = journal.append(vec![i]);
                journal.wait(position).await.expect("durable");
            }
            journal.snapshot(b"ten".to_vec());
            let position = journal.append(vec![10]);
            journal.wait(position).await.expect("durable");
        }
        // The writer thread ends after the handle; the file is free soon after.
        let mut tries = 0;
        let (journal, recovered) = loop {
            match Journal::open(dir.path()) {
                Ok(open) => break open,
                Err(e) if tries > 100 => panic!("{e}"),
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            }
            tries += 1;
        };
        assert_eq!(recovered.snapshot.as_deref(), Some(b"ten".as_slice()));
        assert_eq!(recovered.entries, vec![vec![10]]);
        assert_eq!(journal.last(), 11);
    }

    #[tokio::test]
    async fn a_folder_has_one_gateway() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let _first = Journal::open(dir.path()).expect("opens");
        let error = Journal::open(dir.path()).expect_err("in use");
        assert!(error.to_string().contains("another gateway"), "{error}");
    }

    #[tokio::test]
    async fn memory_is_durable_at_once() {
        let journal = Journal::in_memory();
        let position = journal.append(vec![1]);
        journal.wait(position).await.expect("at once");
        assert_eq!(journal.last(), 0);
    }
}
