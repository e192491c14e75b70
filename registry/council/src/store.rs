//! The council's file: log, vote, snapshot, and whose they are.
//!
//! One redb file. A transaction is on disk before its caller goes on: a vote before it is answered, entries
//! before they are acknowledged. Entries that arrive together are one transaction.

use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use openraft::Entry;
use redb::{
    Database, Durability, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::types::{ClusterId, LogId, MemberId, Membership, Types};

const LOG: TableDefinition<'static, u64, &'static [u8]> = TableDefinition::new("log");
const META: TableDefinition<'static, &'static str, &'static [u8]> = TableDefinition::new("meta");
/// (snapshot, piece) to bytes.
const PIECES: TableDefinition<'static, (u64, u32), &'static [u8]> = TableDefinition::new("pieces");

const IDENTITY: &str = "identity";
const VOTE: &str = "vote";
const COMMITTED: &str = "committed";
const PURGED: &str = "purged";
const SNAPSHOT: &str = "snapshot";

/// The council's file within a data folder.
pub const FILE: &str = "council.redb";

/// Bytes of a snapshot in one row, and in one transaction: log entries wait for no longer than one.
pub(crate) const PIECE: usize = 1 << 20;

/// Bytes of entries that are read at a time for another member, unless one entry alone has more.
const READ_AT_ONCE: usize = 1 << 20;

/// Why the council's file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be opened.
    #[error("cannot open {}: {cause} (is another process using this data folder, or is it not writable?)", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the store said.
        cause: String,
    },
    /// The file is another member's.
    #[error(
        "{} belongs to member {found} of the council, not to member {expected} (a data folder is one member's and cannot be copied; give this member its own folder)",
        path.display()
    )]
    OtherMember {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        found: MemberId,
        /// Who asked.
        expected: MemberId,
    },
    /// The file is of another cluster.
    #[error(
        "{} belongs to cluster {found:016x}, not to cluster {expected:016x} (to move this member, stop it, forget it there and give it an empty data folder)",
        path.display()
    )]
    OtherCluster {
        /// The file.
        path: PathBuf,
        /// Where it belongs.
        found: ClusterId,
        /// Where it should be used.
        expected: ClusterId,
    },
    /// Reading or writing failed. The council of this member stops and acknowledges nothing more.
    #[error(
        "cannot use the council's log {}: {cause} (free space or repair the disk, then restart this member; what was acknowledged is kept)",
        path.display()
    )]
    Disk {
        /// The file.
        path: PathBuf,
        /// What the store said.
        cause: String,
    },
}

/// Whose file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The member.
    pub member: MemberId,
    /// Drawn when the file was made.
    pub birth: u64,
    /// How often the file has been opened, this time included.
    pub incarnation: u64,
    /// The cluster; `None`: not part of one yet.
    pub cluster: Option<ClusterId>,
    /// Whether this member began the cluster, with nobody else.
    pub founder: bool,
}

/// What is known of the snapshot in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotHead {
    /// Key of its pieces.
    pub(crate) number: u64,
    pub(crate) pieces: u32,
    pub(crate) last: Option<LogId>,
    pub(crate) membership: Membership,
    pub(crate) id: String,
}

/// A handle to the council's file. Copies are cheap and mean the same file.
#[derive(Debug, Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    db: Database,
    path: PathBuf,
    identity: parking_lot::Mutex<Identity>,
    snapshots: parking_lot::Mutex<()>,
    /// Up to where a snapshot on disk covers the log; an error when one could not be written.
    covered: watch::Sender<Result<Option<LogId>, StoreError>>,
}

impl Store {
    /// Opens the file of a member in its data folder, or makes it. `birth` is drawn at random by the
    /// caller and used only for a new file. Blocks for disk accesses.
    ///
    /// # Errors
    /// The file cannot be opened, or is another member's.
    pub fn open(folder: &Path, member: MemberId, birth: u64) -> Result<Self, StoreError> {
        let path = folder.join(FILE);
        let failed = |cause: String| StoreError::Open {
            path: path.clone(),
            cause,
        };
        std::fs::create_dir_all(folder).map_err(|e| failed(e.to_string()))?;
        let db = Database::create(&path).map_err(|e| failed(e.to_string()))?;
        Self::begin(db, path.clone(), member, birth)
    }

    /// The same on storage of the caller's, which has to behave like a file that survives: tests, and
    /// a member that keeps nothing.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn with_backend(
        backend: impl StorageBackend,
        member: MemberId,
        birth: u64,
    ) -> Result<Self, StoreError> {
        let path = PathBuf::from(FILE);
        let db = Database::builder()
            .create_with_backend(backend)
            .map_err(|e| StoreError::Open {
                path: path.clone(),
                cause: e.to_string(),
            })?;
        Self::begin(db, path, member, birth)
    }

    fn begin(
        db: Database,
        path: PathBuf,
        member: MemberId,
        birth: u64,
    ) -> Result<Self, StoreError> {
        let fresh = Identity {
            member,
            birth,
            incarnation: 0,
            cluster: None,
            founder: false,
        };
        let open = || -> Result<(Identity, Option<LogId>), redb::Error> {
            let write = db.begin_write()?;
            let mut covered = None;
            let identity = {
                write.open_table(LOG)?;
                let mut meta = write.open_table(META)?;
                let mut identity = get(&meta, IDENTITY)?.unwrap_or(fresh);
                if identity.member == member {
                    identity.incarnation += 1;
                    meta.insert(IDENTITY, encode(&identity)?.as_slice())?;
                    // What an unfinished snapshot left.
                    let kept = get::<SnapshotHead>(&meta, SNAPSHOT)?;
                    covered = kept.as_ref().and_then(|head| head.last);
                    let kept = kept.map(|head| head.number);
                    let mut pieces = write.open_table(PIECES)?;
                    pieces.retain(|(number, _), _| Some(number) == kept)?;
                }
                identity
            };
            write.commit()?;
            Ok((identity, covered))
        };
        let (identity, covered) = open().map_err(|e| StoreError::Open {
            path: path.clone(),
            cause: e.to_string(),
        })?;
        if identity.member != member {
            return Err(StoreError::OtherMember {
                path,
                found: identity.member,
                expected: member,
            });
        }
        let shared = Shared {
            db,
            path,
            identity: parking_lot::Mutex::new(identity),
            snapshots: parking_lot::Mutex::new(()),
            covered: watch::Sender::new(Ok(covered)),
        };
        Ok(Store {
            shared: Arc::new(shared),
        })
    }

    /// Whose file it is.
    pub fn identity(&self) -> Identity {
        *self.shared.identity.lock()
    }

    /// Makes the file one of a cluster, for ever. `founder`: begun here.
    ///
    /// # Errors
    /// The file is of another cluster already, or cannot be written.
    pub async fn bind(&self, cluster: ClusterId, founder: bool) -> Result<(), StoreError> {
        let mut identity = self.identity();
        if let Some(found) = identity.cluster {
            if found == cluster {
                return Ok(());
            }
            return Err(StoreError::OtherCluster {
                path: self.shared.path.clone(),
                found,
                expected: cluster,
            });
        }
        identity.cluster = Some(cluster);
        identity.founder = founder;
        self.put(IDENTITY, identity, Durability::Immediate).await?;
        *self.shared.identity.lock() = identity;
        Ok(())
    }

    /// A folder for what is received before it is whole: beside the file, so that it fits if that fits.
    pub(crate) fn scratch(&self) -> Option<&Path> {
        self.shared.path.parent().filter(|p| p.is_dir())
    }

    pub(crate) async fn read_meta<T: DeserializeOwned + Send + 'static>(
        &self,
        key: &'static str,
    ) -> Result<Option<T>, StoreError> {
        self.blocking(move |db| get(&db.begin_read()?.open_table(META)?, key))
            .await
    }

    async fn put<T: Serialize + Send + 'static>(
        &self,
        key: &'static str,
        value: T,
        durability: Durability,
    ) -> Result<(), StoreError> {
        self.blocking(move |db| {
            let mut write = db.begin_write()?;
            write
                .set_durability(durability)
                .map_err(redb::Error::from)?;
            write
                .open_table(META)?
                .insert(key, encode(&value)?.as_slice())?;
            write.commit()?;
            Ok(())
        })
        .await
    }

    pub(crate) async fn save_vote(&self, vote: openraft::Vote<MemberId>) -> Result<(), StoreError> {
        self.put(VOTE, vote, Durability::Immediate).await
    }

    /// A member that led when it stopped leads no more. openraft 0.9 would let it go on in the same term;
    /// but what it knows to be committed may be older than what it had acknowledged, and its reads would
    /// miss that. As the candidate that it once was it makes a new term or follows one.
    pub(crate) async fn resign(&self) -> Result<(), StoreError> {
        match self.read_vote().await? {
            Some(vote) if vote.committed && vote.leader_id.node_id == self.identity().member => {
                let candidate = openraft::Vote {
                    committed: false,
                    ..vote
                };
                self.save_vote(candidate).await
            }
            _ => Ok(()),
        }
    }

    pub(crate) async fn read_vote(&self) -> Result<Option<openraft::Vote<MemberId>>, StoreError> {
        self.read_meta(VOTE).await
    }

    /// Reaches the disk with the next entry: after a crash a smaller one is found, which only makes the
    /// member apply a few entries again.
    pub(crate) async fn save_committed(&self, committed: Option<LogId>) -> Result<(), StoreError> {
        self.put(COMMITTED, committed, Durability::None).await
    }

    pub(crate) async fn read_committed(&self) -> Result<Option<LogId>, StoreError> {
        Ok(self.read_meta::<Option<LogId>>(COMMITTED).await?.flatten())
    }

    /// (last purged, last present) positions.
    pub(crate) async fn log_state(&self) -> Result<(Option<LogId>, Option<LogId>), StoreError> {
        self.blocking(|db| {
            let read = db.begin_read()?;
            let purged: Option<LogId> = get(&read.open_table(META)?, PURGED)?;
            let last = match read.open_table(LOG)?.last()? {
                Some((_, bytes)) => Some(decode::<Entry<Types>>(bytes.value())?.log_id),
                None => purged,
            };
            Ok((purged, last))
        })
        .await
    }

    pub(crate) async fn append(&self, entries: Vec<Entry<Types>>) -> Result<(), StoreError> {
        self.blocking(move |db| {
            let write = db.begin_write()?;
            {
                let mut log = write.open_table(LOG)?;
                for entry in &entries {
                    log.insert(entry.log_id.index, encode(entry)?.as_slice())?;
                }
            }
            write.commit()?;
            Ok(())
        })
        .await
    }

    /// Entries of a range, as far as they are there; with `bounded`, only as many as are read at a time.
    pub(crate) async fn entries(
        &self,
        range: impl RangeBounds<u64>,
        bounded: bool,
    ) -> Result<Vec<Entry<Types>>, StoreError> {
        let range: (Bound<u64>, Bound<u64>) =
            (range.start_bound().cloned(), range.end_bound().cloned());
        self.blocking(move |db| {
            let read = db.begin_read()?;
            let mut entries = Vec::new();
            let mut bytes = 0;
            for item in read.open_table(LOG)?.range(range)? {
                let (_, entry) = item?;
                bytes += entry.value().len();
                if bounded && bytes > READ_AT_ONCE && !entries.is_empty() {
                    break;
                }
                entries.push(decode(entry.value())?);
            }
            Ok(entries)
        })
        .await
    }

    /// Drops entries from a position on.
    pub(crate) async fn truncate(&self, since: u64) -> Result<(), StoreError> {
        self.blocking(move |db| {
            let write = db.begin_write()?;
            write
                .open_table(LOG)?
                .retain_in(since.., |_, _| false)
                .map_err(redb::Error::from)?;
            write.commit()?;
            Ok(())
        })
        .await
    }

    /// Drops entries up to a position, which a snapshot covers.
    pub(crate) async fn purge(&self, upto: LogId) -> Result<(), StoreError> {
        self.blocking(move |db| {
            let write = db.begin_write()?;
            write
                .open_table(META)?
                .insert(PURGED, encode(&upto)?.as_slice())?;
            write
                .open_table(LOG)?
                .retain_in(..=upto.index, |_, _| false)?;
            write.commit()?;
            Ok(())
        })
        .await
    }

    /// Writes a snapshot piece by piece, then lets it take the place of the one before. `next` gives
    /// pieces until it gives an empty one. A newer snapshot that came meanwhile stays: the log was
    /// already shortened to it.
    pub(crate) async fn save_snapshot(
        &self,
        mut head: SnapshotHead,
        mut next: impl FnMut() -> std::io::Result<Vec<u8>> + Send + 'static,
    ) -> Result<(), StoreError> {
        let shared = self.shared.clone();
        let last = head.last;
        let saved = self.blocking(move |db| {
            // One built here and one received may come at the same time.
            let _one = shared.snapshots.lock();
            let newest = {
                let read = db.begin_read()?;
                let pieces = read.open_table(PIECES)?;
                pieces.last()?.map_or(0, |(key, _)| key.value().0)
            };
            head.number = newest + 1;
            head.pieces = 0;
            loop {
                let piece = next()?;
                if piece.is_empty() {
                    break;
                }
                let write = db.begin_write()?;
                write
                    .open_table(PIECES)?
                    .insert((head.number, head.pieces), piece.as_slice())?;
                write.commit()?;
                head.pieces += 1;
            }
            let write = db.begin_write()?;
            {
                let mut meta = write.open_table(META)?;
                let before: Option<SnapshotHead> = get(&meta, SNAPSHOT)?;
                let kept = match before {
                    Some(before) if before.last > head.last => before.number,
                    _ => {
                        meta.insert(SNAPSHOT, encode(&head)?.as_slice())?;
                        head.number
                    }
                };
                write
                    .open_table(PIECES)?
                    .retain(|(number, _), _| number == kept)?;
            }
            write.commit()?;
            Ok(())
        });
        let saved = saved.await;
        self.shared
            .covered
            .send_modify(|covered| match (covered, &saved) {
                (Ok(before), Ok(())) => *before = (*before).max(last),
                (covered, Err(e)) => *covered = Err(e.clone()),
                (Err(_), Ok(())) => {}
            });
        saved
    }

    /// Waits until a snapshot on disk covers the log up to a position. openraft 0.9 has the log shortened
    /// beside the installation of a snapshot, not after it: a crash in between would leave neither.
    pub(crate) async fn covered(&self, upto: LogId) -> Result<(), StoreError> {
        let mut covered = self.shared.covered.subscribe();
        let reached = covered
            .wait_for(|covered| match covered {
                Ok(last) => last.is_some_and(|last| last.index >= upto.index),
                Err(_) => true,
            })
            .await;
        match reached.as_deref() {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(e)) => Err(e.clone()),
            Err(_) => Err(self.disk("the store is closed".into())),
        }
    }

    /// Hands the pieces of the snapshot to `each`, in order; `None`: there is no snapshot.
    pub(crate) async fn read_snapshot<T: Send + 'static>(
        &self,
        mut state: T,
        mut each: impl FnMut(&mut T, &[u8]) -> std::io::Result<()> + Send + 'static,
    ) -> Result<Option<(SnapshotHead, T)>, StoreError> {
        self.blocking(move |db| {
            // One transaction: a newer snapshot cannot take the pieces away.
            let read = db.begin_read()?;
            let Some(head) = get::<SnapshotHead>(&read.open_table(META)?, SNAPSHOT)? else {
                return Ok(None);
            };
            let pieces = read.open_table(PIECES)?;
            for piece in 0..head.pieces {
                let bytes = pieces
                    .get((head.number, piece))?
                    .ok_or_else(|| redb::Error::Corrupted(format!("piece {piece} is missing")))?;
                each(&mut state, bytes.value())?;
            }
            Ok(Some((head, state)))
        })
        .await
    }

    /// Runs accesses to the disk where they hold up no other task.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, redb::Error> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = self.shared.clone();
        let done = tokio::task::spawn_blocking(move || work(&shared.db)).await;
        let cause = match done {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(e)) => e.to_string(),
            Err(e) => e.to_string(),
        };
        Err(self.disk(cause))
    }

    pub(crate) fn disk(&self, cause: String) -> StoreError {
        StoreError::Disk {
            path: self.shared.path.clone(),
            cause,
        }
    }
}

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, redb::Error> {
    postcard::to_stdvec(value).map_err(|e| redb::Error::Corrupted(e.to_string()))
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, redb::Error> {
    postcard::from_bytes(bytes).map_err(|e| redb::Error::Corrupted(e.to_string()))
}

fn get<T: DeserializeOwned>(
    table: &impl ReadableTable<&'static str, &'static [u8]>,
    key: &str,
) -> Result<Option<T>, redb::Error> {
    match table.get(key)? {
        Some(bytes) => Ok(Some(decode(bytes.value())?)),
        None => Ok(None),
    }
}
