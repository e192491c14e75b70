//! What holds for any bytes at all, one function for each fuzz target. The targets feed it what the fuzzer
//! draws; the test `corpus` feeds it the inputs that are kept.

use std::alloc::System;
use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use cap::Cap;
use causeway_wire::zk::{
    ConnectRequest, ConnectResponse, Connection, ConnectionError, ConnectionLimits, FrameDecoder,
    FrameError, MultiRequest, MultiResponse, OpCode, Opening, Record, Reply, ReplyHeader, Request,
    RequestHeader, SlotId, WatcherEvent, Watches, encode_request, xid,
};

#[path = "etcd.rs"]
mod etcd;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// What may be allocated for any input, for the machinery around it.
const ALLOCATED_FLAT: usize = 256 << 10;

/// What may be allocated, all in all, for each byte of an input: a list of empty strings is four bytes each on
/// the wire and 24 in memory, is made twice where it grows, and is decoded, written and decoded again.
const ALLOCATED_EACH: usize = 512;

/// A target by its name, and what it does with an input.
type Property = (&'static str, fn(&[u8]));

/// All of them.
pub(crate) const ALL: &[Property] = &[
    ("frame", frame),
    ("connect", connect),
    ("request", request),
    ("multi", multi),
    ("reply", reply),
    ("connection", connection),
    ("etcd_json", etcd::json),
    ("etcd_message", etcd::message),
    ("etcd_watch_stream", etcd::watch_stream),
    ("etcd_lease_stream", etcd::lease_stream),
];

/// Checks one input, and that what it made us allocate is in proportion to its length.
pub(crate) fn bounded(target: &str, data: &[u8]) {
    etcd::warm_up();
    let before = ALLOCATOR.total_allocated();
    for (_, property) in ALL.iter().filter(|(name, _)| *name == target) {
        property(data);
    }
    let allocated = ALLOCATOR.total_allocated() - before;
    let limit = ALLOCATED_FLAT + ALLOCATED_EACH * data.len();
    assert!(
        allocated <= limit,
        "{target}: {allocated} bytes allocated for {} bytes of input",
        data.len()
    );
}

/// Frames come out the same however the bytes were cut on their way, none is above the limit, and a stream that
/// is broken stays broken.
fn frame(data: &[u8]) {
    let Some((&limit, data)) = data.split_first() else {
        return;
    };
    let decoder = FrameDecoder::new(usize::from(limit));
    let whole = frames(&decoder, &[data]);
    let bytes: Vec<&[u8]> = data.chunks(1).collect();
    assert_eq!(frames(&decoder, &bytes), whole, "byte by byte");
    let halves = data.split_at(data.len() / 2);
    assert_eq!(frames(&decoder, &[halves.0, halves.1]), whole, "in halves");
    let mut again = Vec::new();
    for frame in &whole.0 {
        assert!(frame.len() <= usize::from(limit));
        again.extend_from_slice(&u32::try_from(frame.len()).expect("small").to_be_bytes());
        again.extend_from_slice(frame);
    }
    assert!(
        data.starts_with(&again),
        "nothing is added and nothing lost"
    );
    if let Opening::FourLetterWord(word) = Opening::detect(data) {
        assert!(data.starts_with(word.as_str().as_bytes()));
        assert!(whole.0.is_empty(), "a word is no length");
    }
}

fn frames(decoder: &FrameDecoder, chunks: &[&[u8]]) -> (Vec<Bytes>, Option<FrameError>) {
    let mut buffer = BytesMut::new();
    let mut out = Vec::new();
    for chunk in chunks {
        buffer.extend_from_slice(chunk);
        loop {
            match decoder.next(&mut buffer) {
                Ok(Some(frame)) => out.push(frame),
                Ok(None) => break,
                Err(error) => return (out, Some(error)),
            }
        }
    }
    (out, None)
}

/// The two records of the handshake.
fn connect(data: &[u8]) {
    round_trip::<ConnectRequest>(data);
    round_trip::<ConnectResponse>(data);
    if let Ok(request) = ConnectRequest::decode(Bytes::copy_from_slice(data)) {
        let expired = ConnectResponse::expired(&request);
        assert!(expired.is_expired());
        let length = 36 + usize::from(request.read_only.is_some());
        assert_eq!(
            expired.encode().len(),
            length,
            "the byte comes when it was sent"
        );
    }
}

/// Any operation, any body.
fn request(data: &[u8]) {
    let Ok((header, body)) = RequestHeader::split(Bytes::copy_from_slice(data)) else {
        return;
    };
    // Most numbers are no operation: the rest of the input is tried with each that is, as the number says.
    let known = usize::from(header.op.to_be_bytes()[3]) % OpCode::ALL.len();
    for op in [header.op, OpCode::ALL[known] as i32] {
        let Ok(request) = Request::decode(op, body.clone()) else {
            continue;
        };
        assert_eq!(request.op(), op);
        let mut frame = BytesMut::from(&encode_request(header.xid, &request)[..]);
        let frame = FrameDecoder::new(usize::MAX)
            .next(&mut frame)
            .expect("what is written is a frame")
            .expect("and it is whole");
        let (again, body) = RequestHeader::split(frame).expect("with a header");
        assert_eq!((again.xid, again.op), (header.xid, op));
        assert_eq!(Request::decode(op, body).as_ref(), Ok(&request));
        let _ = Watches::of(&request);
    }
}

/// The two lists that are no plain records.
fn multi(data: &[u8]) {
    round_trip::<MultiRequest>(data);
    round_trip::<MultiResponse>(data);
    if let Ok(multi) = MultiRequest::decode(Bytes::copy_from_slice(data)) {
        let _ = multi.kind();
        let refused = MultiResponse::failure(
            multi.ops.len(),
            multi.ops.len() / 2,
            causeway_wire::zk::ErrorCode::NoNode,
        );
        assert_eq!(refused.results.len(), multi.ops.len());
    }
}

/// What an upstream server may say.
fn reply(data: &[u8]) {
    let Some((&op, data)) = data.split_first() else {
        return;
    };
    let Ok((header, body)) = ReplyHeader::split(Bytes::copy_from_slice(data)) else {
        return;
    };
    let mut written = BytesMut::new();
    header.write(&mut written);
    assert_eq!(ReplyHeader::decode(written.freeze()), Ok(header));
    let op = OpCode::ALL[usize::from(op) % OpCode::ALL.len()];
    if let Ok(reply) = Reply::decode(op, body.clone()) {
        assert_eq!(Reply::decode(op, reply.encode()).as_ref(), Ok(&reply));
    }
    round_trip::<WatcherEvent>(&body);
}

/// What was read can be written and is read again as the same.
fn round_trip<R: Record + PartialEq + std::fmt::Debug>(data: &[u8]) {
    if let Ok(record) = R::decode(Bytes::copy_from_slice(data)) {
        assert_eq!(R::decode(record.encode()).as_ref(), Ok(&record));
    }
}

/// A request that the model knows of.
struct Asked {
    slot: SlotId,
    shown_xid: i32,
    /// Filled with: zxid, error, length of the body.
    filled: Option<(i64, i32, usize)>,
    /// Number of events that had come when it was filled: all of them go out before it.
    events_before: usize,
}

/// Any order of calls on a connection, beside a model of what has to come out.
fn connection(data: &[u8]) {
    let mut calls = data.iter().copied();
    let limit = usize::from(calls.next().unwrap_or(0) % 16) + 1;
    let mut wire = Connection::new(ConnectionLimits { max_slots: limit });
    let mut model = Model::default();
    while let Some(call) = calls.next() {
        let mut next = || calls.next().unwrap_or(0);
        match call % 8 {
            0 | 1 => model.ask(&mut wire, next(), next(), limit),
            2 | 3 => model.fill(&mut wire, next(), next(), next()),
            4 => model.event(&mut wire, next(), next()),
            5 => model.read(&mut wire),
            6 => match next() % 8 {
                0 => model.close_after(&mut wire, next()),
                1 if !model.greeted => {
                    wire.refuse(&ConnectResponse::expired(&ConnectRequest::default()));
                    model.greeted = true;
                    model.refused = true;
                }
                _ => model.open(&mut wire),
            },
            _ => assert_eq!(wire.in_flight() < limit, wire.has_room()),
        }
    }
    model.open(&mut wire);
    // Whatever was not answered is answered now, so that everything can leave.
    for at in 0..model.asked.len() {
        model.fill(&mut wire, u8::try_from(at % 256).unwrap_or(0), 0, 0);
    }
    model.read(&mut wire);
    if model.asked.is_empty() && !model.refused {
        assert_eq!(wire.queued_bytes(), 0, "nothing is left behind");
    }
}

#[derive(Default)]
struct Model {
    greeted: bool,
    refused: bool,
    greeting_seen: bool,
    /// No reply after this one.
    last: Option<SlotId>,
    /// Without a reply so far, in the order of the requests.
    asked: VecDeque<Asked>,
    /// Watches may put an event behind a reply; then only order within each kind is judged.
    watches: bool,
    events_in: usize,
    events_out: usize,
    shown: i64,
    ended: bool,
    bytes: BytesMut,
}

impl Model {
    fn ask(&mut self, wire: &mut Connection, op: u8, watch: u8, limit: usize) {
        let op = OpCode::ALL[usize::from(op) % OpCode::ALL.len()];
        let watches = match watch % 8 {
            0 => Watches::Path("/a".into()),
            1 => Watches::Subtree("/".into()),
            2 => Watches::Many,
            _ => Watches::None,
        };
        self.watches |= watches != Watches::None;
        let asked_xid = i32::from(watch) + 1;
        match wire.request(asked_xid, op as i32, watches) {
            Ok(slot) => self.asked.push_back(Asked {
                slot,
                shown_xid: if op == OpCode::Ping {
                    xid::PING
                } else {
                    asked_xid
                },
                filled: None,
                events_before: 0,
            }),
            Err(ConnectionError::TooManySlots) => assert!(self.asked.len() >= limit),
            Err(ConnectionError::Closing) => assert!(wire.is_closing()),
            Err(ConnectionError::NotWaiting) => panic!("a request waits for nothing"),
        }
    }

    fn fill(&mut self, wire: &mut Connection, at: u8, zxid: u8, length: u8) {
        if self.asked.is_empty() {
            return;
        }
        let at = usize::from(at) % self.asked.len();
        let asked = &mut self.asked[at];
        let answer = (
            i64::from(zxid) - 2,
            if length % 4 == 3 { -101 } else { 0 },
            // Some are long enough to leave as chunks of their own.
            usize::from(length) * 16,
        );
        let body = Bytes::from(vec![7; answer.2]);
        match wire.fill(asked.slot, answer.0, answer.1, body) {
            Ok(()) => {
                assert!(asked.filled.is_none(), "a slot is filled once");
                asked.filled = Some(answer);
                asked.events_before = self.events_in;
            }
            Err(_) => assert!(
                asked.filled.is_some() || self.refused || self.last.is_some(),
                "a slot that waits takes its answer"
            ),
        }
    }

    fn event(&mut self, wire: &mut Connection, zxid: u8, path: u8) {
        let path = if path.is_multiple_of(2) { "/a" } else { "/b/c" };
        wire.event(i64::from(zxid), path, Bytes::from_static(b"event"));
        self.events_in += 1;
    }

    fn close_after(&mut self, wire: &mut Connection, at: u8) {
        if self.asked.is_empty() {
            return;
        }
        let slot = self.asked[usize::from(at) % self.asked.len()].slot;
        wire.close_after(slot);
        self.last = Some(self.last.map_or(slot, |last| last.min(slot)));
    }

    fn open(&mut self, wire: &mut Connection) {
        if !self.greeted {
            let request = ConnectRequest::default();
            wire.open(&ConnectResponse::established(&request, 1, 4000, [0; 16]), 0);
            self.greeted = true;
        }
    }

    fn read(&mut self, wire: &mut Connection) {
        while let Some(chunk) = wire.poll_output() {
            assert!(!self.ended, "nothing comes after the last frame");
            self.bytes.extend_from_slice(&chunk);
        }
        let decoder = FrameDecoder::new(usize::MAX);
        while let Some(frame) = decoder.next(&mut self.bytes).expect("well-formed frames") {
            if !self.greeting_seen {
                assert!(self.greeted && ConnectResponse::decode(frame).is_ok());
                self.greeting_seen = true;
                self.ended = self.refused;
                continue;
            }
            self.judge(frame);
        }
        assert!(self.bytes.is_empty(), "chunks end with a frame");
        assert_eq!(wire.is_finished(), self.ended);
    }

    fn judge(&mut self, frame: Bytes) {
        assert!(!self.ended, "nothing comes after the last reply");
        let (header, body) = ReplyHeader::split(frame).expect("a header");
        if header.zxid > 0 {
            assert!(header.zxid >= self.shown, "numbers never fall");
            self.shown = header.zxid;
        }
        if header.xid == xid::NOTIFICATION {
            self.events_out += 1;
            assert!(self.events_out <= self.events_in);
            assert_eq!(body.as_ref(), b"event");
            return;
        }
        let asked = self.asked.pop_front().expect("a reply to a request");
        let (zxid, err, length) = asked.filled.expect("that has been answered");
        assert_eq!((header.xid, header.err), (asked.shown_xid, err), "in order");
        assert_eq!(body.len(), length);
        assert!(zxid <= 0 && header.zxid == zxid || header.zxid >= zxid);
        if !self.watches {
            assert!(
                self.events_out >= asked.events_before,
                "an event comes before what was answered after it"
            );
        }
        self.ended = self.last == Some(asked.slot);
    }
}
