//! What a watch delivers.

use bytes::Bytes;
use futures::stream::BoxStream;

use crate::{Entry, Revision};

/// Endless stream of a watch; dropping it ends the watch.
pub type EventStream = BoxStream<'static, Event>;

/// One step of a watch.
///
/// The stream starts with a snapshot: `SnapshotStart`, a `Put` for each entry in the order of
/// keys, `SnapshotDone`. After that come changes. Of one key, revisions only grow and none comes
/// twice; values that followed each other quickly may be seen as the last of them. After `Lost`
/// nothing is known until the next snapshot has come whole: it then holds everything there is,
/// and a key that it lacks is gone. A store that cannot be reached gives `Lost`, once, and never
/// an empty snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A whole new snapshot begins.
    SnapshotStart,
    /// An entry of the snapshot, or one that was written.
    Put(Entry),
    /// An entry is gone.
    Delete {
        /// Its raw key.
        key: Bytes,
        /// A mark at or after its removal, and not after any later write of the key.
        revision: Revision,
    },
    /// The snapshot is whole.
    SnapshotDone {
        /// The snapshot's mark, as in [`crate::Snapshot::revision`].
        revision: Revision,
    },
    /// Changes may have been missed; a new snapshot follows as soon as the store answers.
    Lost {
        /// Why, naming the server.
        reason: String,
    },
}
