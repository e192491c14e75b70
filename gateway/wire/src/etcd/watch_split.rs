//! Cuts the events of a watcher into messages.

use prost::Message;

use crate::etcd::messages::etcdserverpb::WatchResponse;
use crate::etcd::messages::mvccpb::Event;

/// Messages like `frame` (which has no events) that hold `events`, each at most `max` bytes encoded where that is
/// possible. Cut between revisions: one revision is never spread over messages, unless `fragment` allows it; then all
/// its messages but the last are marked (etcd: `v3rpc/watch.go`, sendFragments).
pub(crate) fn split(
    frame: &WatchResponse,
    events: Vec<Event>,
    fragment: bool,
    max: usize,
) -> Vec<WatchResponse> {
    // The mark is counted everywhere: two bytes too many are better than a message above the limit.
    let base = WatchResponse {
        fragment: true,
        ..frame.clone()
    }
    .encoded_len();
    let mut messages = Vec::new();
    let mut batch = Batch {
        base,
        len: base,
        events: Vec::new(),
    };
    for group in by_revision(events) {
        let group_len: usize = group.iter().map(encoded_event_len).sum();
        if !batch.fits(group_len, max) {
            messages.push(batch.take(frame, false));
        }
        if !fragment || base + group_len <= max {
            group.into_iter().for_each(|event| batch.push(event));
            continue;
        }
        for event in group {
            if !batch.fits(encoded_event_len(&event), max) {
                messages.push(batch.take(frame, true));
            }
            batch.push(event);
        }
        // The next revision starts a new message: it must not end this one's chain.
        messages.push(batch.take(frame, false));
    }
    if !batch.events.is_empty() {
        messages.push(batch.take(frame, false));
    }
    messages
}

/// Bytes that an event adds to a message: its own, the tag and its length.
pub(crate) fn encoded_event_len(event: &Event) -> usize {
    let length = event.encoded_len();
    length + 1 + prost::length_delimiter_len(length)
}

struct Batch {
    base: usize,
    len: usize,
    events: Vec<Event>,
}

impl Batch {
    /// An empty batch takes anything: an event or a revision has to go somewhere.
    fn fits(&self, more: usize, max: usize) -> bool {
        self.events.is_empty() || self.len + more <= max
    }

    fn push(&mut self, event: Event) {
        self.len += encoded_event_len(&event);
        self.events.push(event);
    }

    fn take(&mut self, frame: &WatchResponse, fragment: bool) -> WatchResponse {
        self.len = self.base;
        WatchResponse {
            events: std::mem::take(&mut self.events),
            fragment,
            ..frame.clone()
        }
    }
}

fn by_revision(events: Vec<Event>) -> Vec<Vec<Event>> {
    let revision_of = |event: &Event| event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
    let mut groups: Vec<Vec<Event>> = Vec::new();
    for event in events {
        match groups.last_mut() {
            Some(group) if group.last().map(revision_of) == Some(revision_of(&event)) => {
                group.push(event)
            }
            _ => groups.push(vec![event]),
        }
    }
    groups
}
