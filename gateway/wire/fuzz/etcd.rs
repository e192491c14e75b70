//! What holds for any bytes on the etcd port: JSON cut anywhere, messages of any type, any order of calls on the
//! two kinds of streams.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};
use causeway_wire::etcd::frame::take_message;
use causeway_wire::etcd::json::{JsonMethod, JsonValues};
use causeway_wire::etcd::messages::etcdserverpb as pb;
use causeway_wire::etcd::messages::etcdserverpb::watch_request::RequestUnion;
use causeway_wire::etcd::messages::mvccpb::{Event, KeyValue, event::EventType};
use causeway_wire::etcd::{
    EtcdError, LeaseOutput, LeaseStream, ServerIds, WatchAction, WatchStream, WatchStreamLimits,
    WatcherKey,
};
use prost::Message;

/// Paths whose messages have every kind of field: bytes, numbers, enums, choices, lists, and messages in messages.
const PATHS: [&str; 8] = [
    "/v3/kv/txn",
    "/v3/kv/range",
    "/v3/kv/put",
    "/v3/watch",
    "/v3beta/lease/grant",
    "/v3/auth/role/grant",
    "/v3/maintenance/alarm",
    "/v3/election/proclaim",
];

/// Reads the descriptors once, so that what that allocates is nobody's input's.
pub(crate) fn warm_up() {
    assert!(PATHS.iter().all(|path| JsonMethod::at(path).is_some()));
}

/// The JSON gateway: a body is the same values however it was cut, what is taken is a message that etcd's own types
/// read, and nothing nests without end.
pub(crate) fn json(data: &[u8]) {
    let [which, chunk, body @ ..] = data else {
        return;
    };
    let path = PATHS[usize::from(*which) % PATHS.len()];
    let method = JsonMethod::at(path).expect("the path is etcd's");
    let whole = values(&[body]);
    let parts: Vec<&[u8]> = body.chunks(usize::from(*chunk % 16) + 1).collect();
    assert_eq!(values(&parts), whole, "in parts");
    for value in &whole.0 {
        let Ok(message) = method.request(value) else {
            continue;
        };
        let read = match path {
            "/v3/kv/txn" => pb::TxnRequest::decode(message).is_ok(),
            "/v3/kv/range" => pb::RangeRequest::decode(message).is_ok(),
            "/v3/kv/put" => pb::PutRequest::decode(message).is_ok(),
            "/v3/watch" => pb::WatchRequest::decode(message).is_ok(),
            _ => true,
        };
        assert!(read, "{path}: {}", value.escape_ascii());
    }
}

/// The values, and whether all of the body was.
fn values(parts: &[&[u8]]) -> (Vec<Bytes>, bool) {
    let mut reader = JsonValues::default();
    let mut out = Vec::new();
    for part in parts {
        reader.push(part);
        loop {
            match reader.take() {
                Ok(Some(value)) => out.push(value),
                Ok(None) => break,
                Err(_) => return (out, false),
            }
        }
    }
    let whole = reader.finish().is_ok();
    (out, whole)
}

/// Messages: what is read is written and read again as the same; an answer that can be read is JSON.
pub(crate) fn message(data: &[u8]) {
    let Some((which, body)) = data.split_first() else {
        return;
    };
    same::<pb::TxnRequest>(body);
    same::<pb::RangeRequest>(body);
    same::<pb::PutRequest>(body);
    same::<pb::DeleteRangeRequest>(body);
    same::<pb::WatchRequest>(body);
    same::<pb::LeaseGrantRequest>(body);
    same::<pb::WatchResponse>(body);
    same::<pb::TxnResponse>(body);
    let path = PATHS[usize::from(*which) % PATHS.len()];
    let method = JsonMethod::at(path).expect("the path is etcd's");
    let Ok(line) = method.line(Bytes::copy_from_slice(body)) else {
        return;
    };
    assert!(line.ends_with(b"}\n"), "{}", line.escape_ascii());
    let parsed: serde_json::Value = serde_json::from_slice(&line).expect("a line is JSON");
    assert!(parsed["result"].is_object(), "{parsed}");
}

fn same<M: Message + Default + PartialEq + std::fmt::Debug>(body: &[u8]) {
    if let Ok(message) = M::decode(Bytes::copy_from_slice(body)) {
        let again = M::decode(Bytes::from(message.encode_to_vec())).expect("written by us");
        assert_eq!(again, message);
    }
}

/// A Watch stream beside a model: creates are answered in their order, and no event comes for a watcher that was not
/// announced or is over.
pub(crate) fn watch_stream(data: &[u8]) {
    let limits = WatchStreamLimits {
        max_watchers: 8,
        ..WatchStreamLimits::default()
    };
    let mut stream = WatchStream::new(ServerIds::default(), limits);
    let mut model = Model::default();
    let mut bytes = data.iter().copied();
    let mut revision = 1;
    while let Some(op) = bytes.next() {
        let mut next = || bytes.next().unwrap_or_default();
        match op % 10 {
            0 | 1 if stream.has_room() => {
                let create = pb::WatchCreateRequest {
                    key: Bytes::from(vec![b'k'; usize::from(next() % 3)]),
                    range_end: Bytes::from(vec![next(); usize::from(next() % 2)]),
                    start_revision: i64::from(next()) - 3,
                    progress_notify: next() % 2 == 0,
                    watch_id: i64::from(next() % 5) - 1,
                    fragment: next() % 2 == 0,
                    filters: vec![i32::from(next() % 4); usize::from(next() % 3)],
                    prev_kv: next() % 2 == 0,
                };
                model.asked += 1;
                stream.handle_request(request(RequestUnion::CreateRequest(create)), revision);
            }
            2 if stream.has_room() => {
                let watch_id = i64::from(next() % 7) - 1;
                let cancel = pb::WatchCancelRequest { watch_id };
                stream.handle_request(request(RequestUnion::CancelRequest(cancel)), revision);
            }
            3 if stream.has_room() => {
                let ask = RequestUnion::ProgressRequest(pb::WatchProgressRequest {});
                stream.handle_request(request(ask), revision);
                stream.handle_request(pb::WatchRequest::default(), revision);
            }
            4 => {
                if let Some(key) = model.creating.pop_front() {
                    if next() % 4 == 0 {
                        stream.denied(key, EtcdError::PermissionDenied, revision);
                    } else {
                        stream.created(key, revision);
                        model.live.push(key);
                    }
                }
            }
            5 | 6 => {
                revision += 1;
                if let Some(key) = model.any(next()) {
                    let is_delete = next() % 2 == 0;
                    let event = Event {
                        r#type: if is_delete {
                            EventType::Delete
                        } else {
                            EventType::Put
                        }
                        .into(),
                        kv: Some(KeyValue {
                            key: Bytes::from_static(b"k"),
                            mod_revision: revision,
                            ..KeyValue::default()
                        }),
                        prev_kv: None,
                    };
                    stream.events(key, revision, vec![event; usize::from(next() % 3) + 1]);
                }
            }
            7 => {
                if let Some(key) = model.any(next()) {
                    if next() % 2 == 0 {
                        stream.compacted(key, revision);
                    } else {
                        stream.ended(key, "reason");
                    }
                    model.live.retain(|other| *other != key);
                }
            }
            8 => {
                for key in stream.idle_watchers() {
                    stream.progress_of(key, revision);
                }
                stream.progress(revision);
            }
            _ => {}
        }
        model.drain(&mut stream);
    }
}

fn request(union: RequestUnion) -> pb::WatchRequest {
    pb::WatchRequest {
        request_union: Some(union),
    }
}

#[derive(Default)]
struct Model {
    asked: usize,
    answered: usize,
    creating: VecDeque<WatcherKey>,
    live: Vec<WatcherKey>,
    /// By id: whether events may come.
    ids: BTreeMap<i64, bool>,
}

impl Model {
    fn any(&self, which: u8) -> Option<WatcherKey> {
        self.live
            .get(usize::from(which) % self.live.len().max(1))
            .copied()
    }

    fn drain(&mut self, stream: &mut WatchStream) {
        while let Some(action) = stream.poll_action() {
            match action {
                WatchAction::Create(create) => self.creating.push_back(create.key),
                WatchAction::Cancel(key) => self.live.retain(|other| *other != key),
                WatchAction::Progress => {}
            }
        }
        let mut frames = BytesMut::new();
        while let Some(more) = stream.poll_output(1) {
            frames.extend_from_slice(&more);
        }
        while let Some(message) = take_message(&mut frames) {
            let answer = pb::WatchResponse::decode(message).expect("what the stream encodes");
            if answer.created {
                self.answered += 1;
                assert!(self.answered <= self.asked, "an answer to nothing");
                if answer.canceled {
                    // It never was, and has no id of its own.
                    assert_eq!(answer.watch_id, -1);
                    continue;
                }
                let before = self.ids.insert(answer.watch_id, true);
                assert!(before != Some(true), "the id {} twice", answer.watch_id);
            } else if answer.canceled {
                let before = self.ids.insert(answer.watch_id, false);
                assert!(before.is_some(), "{} was never there", answer.watch_id);
            } else if !answer.events.is_empty() {
                let is_live = self.ids.get(&answer.watch_id) == Some(&true);
                assert!(is_live, "events of {}", answer.watch_id);
            }
        }
    }
}

/// A LeaseKeepAlive stream: answers come in the order of the requests, however the stores answer, and the end last.
pub(crate) fn lease_stream(data: &[u8]) {
    let mut stream = LeaseStream::new(ServerIds::default(), 8);
    let mut bytes = data.iter().copied();
    let mut asked: VecDeque<i64> = VecDeque::new();
    let mut open = Vec::new();
    let mut number = 0;
    let mut closed = false;
    while let Some(op) = bytes.next() {
        let which = usize::from(bytes.next().unwrap_or_default());
        match op % 6 {
            0 | 1 if !closed && stream.has_room() => {
                number += 1;
                let request = pb::LeaseKeepAliveRequest { id: number };
                open.push((stream.handle_request(&request, number), number));
                asked.push_back(number);
            }
            2 if !open.is_empty() => {
                let (id, _) = open.remove(which % open.len());
                stream.renewed(id, 5);
            }
            3 if !open.is_empty() => {
                let (id, _) = open.remove(which % open.len());
                stream.missing(id);
            }
            4 if !open.is_empty() && op > 200 => {
                let (id, _) = open.remove(which % open.len());
                stream.failed(id, EtcdError::NoLeader);
            }
            5 if op > 200 => {
                closed = true;
                stream.half_close();
            }
            _ => {}
        }
        while let Some(output) = stream.poll_output() {
            match output {
                LeaseOutput::Response(answer) => {
                    assert_eq!(asked.pop_front(), Some(answer.id), "in order");
                }
                _ => return,
            }
        }
    }
}
