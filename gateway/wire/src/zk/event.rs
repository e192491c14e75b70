//! Watch events.

use bytes::{Bytes, BytesMut};

use crate::zk::frame::put_frame;
use crate::zk::op_code::xid;
use crate::zk::record::{Record, records};
use crate::zk::reply::ReplyHeader;

/// What happened to a node (`Watcher.Event.EventType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i32)]
pub enum EventType {
    /// Only the state of the connection changed; made by clients, never sent by a server.
    None = -1,
    /// The node came into being.
    NodeCreated = 1,
    /// The node was deleted.
    NodeDeleted = 2,
    /// The data was set, even to the same bytes.
    NodeDataChanged = 3,
    /// A child was created or deleted.
    NodeChildrenChanged = 4,
    /// A data watch was removed; made by clients.
    DataWatchRemoved = 5,
    /// A child watch was removed; made by clients.
    ChildWatchRemoved = 6,
    /// A persistent watch was removed; made by clients.
    PersistentWatchRemoved = 7,
}

impl EventType {
    /// The type with this number.
    pub fn from_number(number: i32) -> Option<Self> {
        Some(match number {
            -1 => EventType::None,
            1 => EventType::NodeCreated,
            2 => EventType::NodeDeleted,
            3 => EventType::NodeDataChanged,
            4 => EventType::NodeChildrenChanged,
            5 => EventType::DataWatchRemoved,
            6 => EventType::ChildWatchRemoved,
            7 => EventType::PersistentWatchRemoved,
            _ => return None,
        })
    }
}

/// State of the client's connection (`Watcher.Event.KeeperState`); a server only sends [`KeeperState::SyncConnected`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i32)]
pub enum KeeperState {
    /// Not connected.
    Disconnected = 0,
    /// Connected.
    SyncConnected = 3,
    /// Credentials were refused.
    AuthFailed = 4,
    /// Connected to a read-only server.
    ConnectedReadOnly = 5,
    /// SASL succeeded.
    SaslAuthenticated = 6,
    /// The session has expired.
    Expired = -112,
    /// The client was closed.
    Closed = 7,
}

records! {
    /// Body of a notification. Numbers are kept plain, so that a relay passes what it does not know.
    pub struct WatcherEvent {
        /// An [`EventType`].
        pub kind: i32,
        /// A [`KeeperState`].
        pub state: i32,
        /// The watched path; for a recursive watch the path that changed.
        pub path: String,
    }
}

impl WatcherEvent {
    /// An event as a server sends it.
    pub fn new(kind: EventType, path: impl Into<String>) -> Self {
        Self {
            kind: kind as i32,
            state: KeeperState::SyncConnected as i32,
            path: path.into(),
        }
    }
}

/// A whole notification frame with its length prefix. `zxid` is the change's (from 3.9 on; -1 before).
pub fn encode_notification(zxid: i64, event: &WatcherEvent) -> Bytes {
    let mut out = BytesMut::new();
    put_frame(&mut out, |out| {
        ReplyHeader {
            xid: xid::NOTIFICATION,
            zxid,
            err: 0,
        }
        .write(out);
        event.write(out);
    });
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_notification() {
        let event = WatcherEvent::new(EventType::NodeDeleted, "/a");
        let want = [
            &[0, 0, 0, 30][..],
            &[0xff, 0xff, 0xff, 0xff],
            &[0, 0, 0, 0, 0, 0, 1, 2],
            &[0, 0, 0, 0],
            &[0, 0, 0, 2],
            &[0, 0, 0, 3],
            &[0, 0, 0, 2, b'/', b'a'],
        ]
        .concat();
        let frame = encode_notification(258, &event);
        assert_eq!(frame, want);
        let (header, body) = ReplyHeader::split(frame.slice(4..)).unwrap();
        assert_eq!(
            header,
            ReplyHeader {
                xid: -1,
                zxid: 258,
                err: 0
            }
        );
        assert_eq!(WatcherEvent::decode(body), Ok(event));
    }

    #[test]
    fn event_types_map_both_ways() {
        for number in -10..20 {
            if let Some(kind) = EventType::from_number(number) {
                assert_eq!(kind as i32, number);
            }
        }
        assert_eq!((-10..20).filter_map(EventType::from_number).count(), 8);
    }
}
