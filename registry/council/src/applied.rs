//! openraft's state machine: the ledger, where it stands in the log, and its snapshots.

use std::io::{self, Read as _, Seek as _, Write};
use std::sync::Arc;

use causeway_registry::StateMachine;
use openraft::storage::{RaftStateMachine, Snapshot, SnapshotMeta};
use openraft::{
    AnyError, Entry, EntryPayload, ErrorSubject, ErrorVerb, OptionalSend, RaftSnapshotBuilder,
    StorageIOError,
};
use parking_lot::RwLock;

use crate::ledger::Ledger;
use crate::store::{PIECE, SnapshotHead, Store, StoreError};
use crate::types::{LogId, MemberId, Membership, Peer, RaftStorageError, Replies, Reply, Types};

/// The ledger as the log has made it. Copies are cheap and mean the same state; reads are served beside
/// the log's own applying.
pub struct Applied<M> {
    store: Store,
    state: Arc<RwLock<State<M>>>,
}

/// What entries change, together.
struct State<M> {
    ledger: Ledger<M>,
    last: Option<LogId>,
    membership: Membership,
}

impl<M> Clone for Applied<M> {
    fn clone(&self) -> Self {
        Applied {
            store: self.store.clone(),
            state: self.state.clone(),
        }
    }
}

impl<M> std::fmt::Debug for Applied<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Applied").finish_non_exhaustive()
    }
}

impl<M: StateMachine> Applied<M> {
    /// A machine in its first state, brought to the file's snapshot if there is one.
    ///
    /// # Errors
    /// The file cannot be read, or the snapshot is none of this machine's.
    pub async fn recover(store: Store, machine: M) -> Result<Self, StoreError> {
        let applied = Applied {
            store: store.clone(),
            state: Arc::new(RwLock::new(State {
                ledger: Ledger::new(machine),
                last: None,
                membership: Membership::default(),
            })),
        };
        if let Some((head, file)) = applied.snapshot_file().await? {
            let state = applied.state.clone();
            let restored = tokio::task::spawn_blocking(move || restore(&state, &head, file)).await;
            restored
                .map_err(io::Error::other)
                .and_then(|done| done)
                .map_err(|e| store.disk(format!("the snapshot cannot be read: {e}")))?;
        }
        Ok(applied)
    }

    /// Looks at the ledger as it is here now. Applying waits meanwhile.
    pub fn read<T>(&self, read: impl FnOnce(&Ledger<M>) -> T) -> T {
        read(&self.state.read().ledger)
    }

    /// The stored snapshot as a file of its own, which a newer snapshot does not touch.
    async fn snapshot_file(&self) -> Result<Option<(SnapshotHead, std::fs::File)>, StoreError> {
        let file = self.scratch()?;
        let found = self
            .store
            .read_snapshot(file, |file, piece| file.write_all(piece))
            .await?;
        found
            .map(|(head, mut file)| {
                file.rewind().map_err(|e| self.store.disk(e.to_string()))?;
                Ok((head, file))
            })
            .transpose()
    }

    /// A file without a name: gone with its handle, also after a crash.
    fn scratch(&self) -> Result<std::fs::File, StoreError> {
        let made = match self.store.scratch() {
            Some(folder) => tempfile::tempfile_in(folder),
            None => tempfile::tempfile(),
        };
        made.map_err(|e| self.store.disk(e.to_string()))
    }
}

fn restore<M: StateMachine>(
    state: &RwLock<State<M>>,
    head: &SnapshotHead,
    mut file: std::fs::File,
) -> io::Result<()> {
    file.rewind()?;
    let mut state = state.write();
    state.ledger.restore(&mut io::BufReader::new(file))?;
    state.last = head.last;
    state.membership = head.membership.clone();
    Ok(())
}

/// Collects what a machine writes as the pieces that the file keeps.
#[derive(Default)]
struct Pieces {
    full: Vec<Vec<u8>>,
    open: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let take = bytes.len().min(PIECE - self.open.len());
        self.open.extend_from_slice(&bytes[..take]);
        if self.open.len() == PIECE {
            self.full.push(std::mem::take(&mut self.open));
        }
        Ok(take)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn snapshot_error(verb: ErrorVerb, e: &StoreError) -> RaftStorageError {
    StorageIOError::new(ErrorSubject::Snapshot(None), verb, AnyError::new(e)).into()
}

fn meta(head: &SnapshotHead) -> SnapshotMeta<MemberId, Peer> {
    SnapshotMeta {
        last_log_id: head.last,
        last_membership: head.membership.clone(),
        snapshot_id: head.id.clone(),
    }
}

impl<M: StateMachine> RaftSnapshotBuilder<Types> for Applied<M> {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, RaftStorageError> {
        let failed = |e: StoreError| snapshot_error(ErrorVerb::Write, &e);
        let state = self.state.clone();
        // The state is written to memory under the lock, and to disk beside the log.
        let written = tokio::task::spawn_blocking(move || {
            let state = state.read();
            let mut pieces = Pieces::default();
            state.ledger.snapshot(&mut pieces)?;
            if !pieces.open.is_empty() {
                pieces.full.push(pieces.open);
            }
            Ok((pieces.full, state.last, state.membership.clone()))
        })
        .await
        .map_err(io::Error::other)
        .and_then(|written: io::Result<_>| written);
        let (pieces, last, membership) =
            written.map_err(|e| failed(self.store.disk(e.to_string())))?;
        let head = SnapshotHead {
            number: 0,
            pieces: 0,
            last,
            membership,
            id: last.map_or_else(|| "0".into(), |l| format!("{}-{}", l.leader_id, l.index)),
        };
        let mut pieces = pieces.into_iter();
        self.store
            .save_snapshot(head, move || Ok(pieces.next().unwrap_or_default()))
            .await
            .map_err(failed)?;
        let stored = self.get_current_snapshot().await?;
        stored.ok_or_else(|| failed(self.store.disk("the snapshot is gone".into())))
    }
}

impl<M: StateMachine> RaftStateMachine<Types> for Applied<M> {
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, Membership), RaftStorageError> {
        let state = self.state.read();
        Ok((state.last, state.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Replies>, RaftStorageError>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut all = Vec::new();
        for entry in entries {
            // A lock for each entry, so that readers need not wait for a long catching up.
            let mut state = self.state.write();
            let mut replies: Vec<Reply> = Vec::new();
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(batch) => {
                    for proposal in &batch.0 {
                        let reply = state
                            .ledger
                            .apply(proposal)
                            .map_err(|e| StorageIOError::apply(entry.log_id, AnyError::new(&e)))?;
                        replies.push(reply);
                    }
                }
                EntryPayload::Membership(membership) => {
                    state.membership = Membership::new(Some(entry.log_id), membership);
                }
            }
            state.last = Some(entry.log_id);
            all.push(Replies(replies));
        }
        Ok(all)
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<tokio::fs::File>, RaftStorageError> {
        let file = self
            .scratch()
            .map_err(|e| snapshot_error(ErrorVerb::Write, &e))?;
        Ok(Box::new(tokio::fs::File::from_std(file)))
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<MemberId, Peer>,
        snapshot: Box<tokio::fs::File>,
    ) -> Result<(), RaftStorageError> {
        let failed = |e: StoreError| snapshot_error(ErrorVerb::Write, &e);
        let io_failed = |e: io::Error| failed(self.store.disk(e.to_string()));
        let head = SnapshotHead {
            number: 0,
            pieces: 0,
            last: meta.last_log_id,
            membership: meta.last_membership.clone(),
            id: meta.snapshot_id.clone(),
        };
        let mut file = snapshot.into_std().await;
        let mut copy = file.try_clone().map_err(io_failed)?;
        copy.rewind().map_err(io_failed)?;
        // On disk first: a crash in between finds either the state before or the snapshot.
        self.store
            .save_snapshot(head.clone(), move || {
                let mut piece = Vec::new();
                io::Read::by_ref(&mut copy)
                    .take(PIECE as u64)
                    .read_to_end(&mut piece)?;
                Ok(piece)
            })
            .await
            .map_err(failed)?;
        file.rewind().map_err(io_failed)?;
        let state = self.state.clone();
        tokio::task::spawn_blocking(move || restore(&state, &head, file))
            .await
            .map_err(io::Error::other)
            .and_then(|done| done)
            .map_err(io_failed)
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, RaftStorageError> {
        let found = self
            .snapshot_file()
            .await
            .map_err(|e| snapshot_error(ErrorVerb::Read, &e))?;
        Ok(found.map(|(head, file)| Snapshot {
            meta: meta(&head),
            snapshot: Box::new(tokio::fs::File::from_std(file)),
        }))
    }
}
