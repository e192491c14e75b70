//! openraft's log storage over the council's file.

use std::fmt::Debug;
use std::ops::RangeBounds;

use openraft::storage::{LogFlushed, LogState, RaftLogStorage};
use openraft::{AnyError, Entry, OptionalSend, RaftLogReader, StorageIOError, Vote};

use crate::store::{Store, StoreError};
use crate::types::{LogId, MemberId, RaftStorageError, Types};

/// The log of one member.
#[derive(Debug, Clone)]
pub struct Log {
    store: Store,
    /// Entries are dropped only once a snapshot on disk covers them.
    guarded: bool,
}

impl Log {
    /// The log in a file, which drops what it is told to drop.
    pub fn new(store: Store) -> Self {
        Log {
            store,
            guarded: false,
        }
    }

    /// The log beside an [`Applied`](crate::Applied) on the same file: dropping entries waits until a snapshot on disk covers them.
    pub fn guarded(store: Store) -> Self {
        Log {
            store,
            guarded: true,
        }
    }
}

fn reading(e: StoreError) -> RaftStorageError {
    StorageIOError::read_logs(AnyError::new(&e)).into()
}

fn writing(e: StoreError) -> RaftStorageError {
    StorageIOError::write_logs(AnyError::new(&e)).into()
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry<Types>>, RaftStorageError> {
        self.store.entries(range, false).await.map_err(reading)
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<Entry<Types>>, RaftStorageError> {
        self.store.entries(start..end, true).await.map_err(reading)
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Log;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, RaftStorageError> {
        let (last_purged_log_id, last_log_id) = self.store.log_state().await.map_err(reading)?;
        Ok(LogState {
            last_purged_log_id,
            last_log_id,
        })
    }

    async fn get_log_reader(&mut self) -> Log {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<MemberId>) -> Result<(), RaftStorageError> {
        self.store
            .save_vote(*vote)
            .await
            .map_err(|e| StorageIOError::write_vote(AnyError::new(&e)).into())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<MemberId>>, RaftStorageError> {
        self.store
            .read_vote()
            .await
            .map_err(|e| StorageIOError::read_vote(AnyError::new(&e)).into())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), RaftStorageError> {
        self.store.save_committed(committed).await.map_err(writing)
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, RaftStorageError> {
        self.store.read_committed().await.map_err(reading)
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<Types>,
    ) -> Result<(), RaftStorageError>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry<Types>> = entries.into_iter().collect();
        self.store.append(entries).await.map_err(writing)?;
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), RaftStorageError> {
        self.store.truncate(log_id.index).await.map_err(writing)
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), RaftStorageError> {
        if self.guarded {
            self.store.covered(log_id).await.map_err(writing)?;
        }
        self.store.purge(log_id).await.map_err(writing)
    }
}
