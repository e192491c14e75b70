//! Events of one revision that many watchers are told: encoded once for all of them.

use std::sync::OnceLock;

use bytes::{Bytes, BytesMut};
use prost::encoding::message;

use crate::etcd::messages::mvccpb::Event;
use crate::etcd::messages::mvccpb::event::EventType;

/// Field of a WatchResponse.
const EVENTS: u32 = 11;

/// Events of one revision, with what a WatchResponse holds of them.
#[derive(Debug)]
pub struct SharedEvents {
    /// With their previous pairs.
    events: Vec<Event>,
    has_puts: bool,
    has_deletes: bool,
    with_prev: OnceLock<Bytes>,
    without_prev: OnceLock<Bytes>,
}

impl SharedEvents {
    /// All of one revision, with their previous pairs.
    pub fn new(events: Vec<Event>) -> Self {
        let has = |kind| events.iter().any(|event| event.r#type() == kind);
        Self {
            has_puts: has(EventType::Put),
            has_deletes: has(EventType::Delete),
            events,
            with_prev: OnceLock::new(),
            without_prev: OnceLock::new(),
        }
    }

    /// The events.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Whether one is a put.
    pub fn has_puts(&self) -> bool {
        self.has_puts
    }

    /// Whether one is a deletion.
    pub fn has_deletes(&self) -> bool {
        self.has_deletes
    }

    /// The field `events` of a WatchResponse. A message is the concatenation of its fields in any order (Protocol
    /// Buffers, encoding), so that it can stand behind any header.
    pub fn encoded(&self, prev_kv: bool) -> &Bytes {
        if prev_kv {
            self.with_prev.get_or_init(|| encode(&self.events))
        } else {
            self.without_prev.get_or_init(|| {
                let bare = |event: &Event| Event {
                    prev_kv: None,
                    ..event.clone()
                };
                encode(&self.events.iter().map(bare).collect::<Vec<_>>())
            })
        }
    }
}

fn encode(events: &[Event]) -> Bytes {
    let mut body = BytesMut::with_capacity(message::encoded_len_repeated(EVENTS, events));
    message::encode_repeated(EVENTS, events, &mut body);
    body.freeze()
}
