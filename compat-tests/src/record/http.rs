//! The messages of an HTTP connection: gRPC over HTTP/2, JSON over HTTP/1.

use std::collections::BTreeMap;

use loona_hpack::Decoder as Hpack;

use super::frame::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADER_TABLE_SIZE, HEADERS,
    PADDED, PREFACE, PRIORITY, RST_STREAM, SETTINGS,
};
use super::message;
use super::proxy::{Decode, Element};
use super::transcript::Side;
use super::value::{Class, Raw, Value};

/// Finds out which HTTP a connection speaks, and reads it.
pub enum Decoder {
    /// Nothing has come yet.
    Unknown(Vec<u8>),
    /// gRPC.
    Two(Box<Two>),
    /// JSON.
    One(Box<One>),
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::Unknown(Vec::new())
    }
}

impl Decode for Decoder {
    fn bytes(&mut self, side: Side, bytes: &[u8], found: &mut Vec<Element>) {
        match self {
            // A server may send its settings before the client has said anything.
            Decoder::Unknown(_) if side == Side::Server => {
                let mut two = Two::default();
                two.bytes(side, bytes, found);
                *self = Decoder::Two(Box::new(two));
            }
            Decoder::Unknown(start) => {
                start.extend_from_slice(bytes);
                if start.len() < PREFACE.len() && PREFACE.starts_with(start) {
                    return;
                }
                let start = std::mem::take(start);
                *self = if start.starts_with(PREFACE) {
                    Decoder::Two(Box::default())
                } else {
                    Decoder::One(Box::default())
                };
                self.bytes(side, &start, found);
            }
            Decoder::Two(two) => two.bytes(side, bytes, found),
            Decoder::One(one) => one.bytes(side, bytes, found),
        }
    }

    fn end(&mut self, side: Side, found: &mut Vec<Element>) {
        match self {
            Decoder::Unknown(_) => {}
            Decoder::Two(two) => two.end(side, found),
            Decoder::One(one) => one.end(side, found),
        }
    }
}

/// HTTP/2 with gRPC in it.
#[derive(Default)]
pub struct Two {
    client: TwoHalf,
    server: TwoHalf,
    /// By HTTP/2's number.
    streams: BTreeMap<u32, Stream>,
    count: u32,
}

#[derive(Default)]
struct TwoHalf {
    buffer: Vec<u8>,
    hpack: Hpack<'static>,
    /// A header block that is not whole yet: stream, flags of its first frame, bytes.
    block: Option<(u32, u8, Vec<u8>)>,
    preface_seen: bool,
    broken: bool,
}

#[derive(Default)]
struct Stream {
    number: u32,
    path: String,
    /// Bytes of gRPC messages that are not whole yet.
    client: Vec<u8>,
    server: Vec<u8>,
    status_seen: bool,
    lease_said: BTreeMap<(Side, i64), Value>,
}

/// Larger than any frame or message of a test; beyond it the reading stops, not the passing on.
const LIMIT: usize = 64 << 20;

impl Two {
    fn half(&mut self, side: Side) -> &mut TwoHalf {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    fn bytes(&mut self, side: Side, bytes: &[u8], found: &mut Vec<Element>) {
        let half = self.half(side);
        if half.broken {
            return;
        }
        half.buffer.extend_from_slice(bytes);
        if side == Side::Client && !half.preface_seen {
            if half.buffer.len() < PREFACE.len() {
                return;
            }
            half.buffer.drain(..PREFACE.len());
            half.preface_seen = true;
        }
        loop {
            let Some(frame) = Frame::take(&mut self.half(side).buffer) else {
                return;
            };
            if self.frame(side, &frame, found).is_none() {
                self.half(side).broken = true;
                found.push(Element::new(0, side, "garbage", Value::Null));
                return;
            }
        }
    }

    fn end(&mut self, side: Side, found: &mut Vec<Element>) {
        let half = self.half(side);
        if !half.broken && !half.buffer.is_empty() {
            found.push(Element::new(0, side, "garbage", Value::Null));
        }
    }

    /// `None` when it is not HTTP/2.
    fn frame(&mut self, side: Side, frame: &Frame, found: &mut Vec<Element>) -> Option<()> {
        let (flags, stream, payload) = (frame.flags, frame.stream, &frame.payload[..]);
        match frame.kind {
            HEADERS => {
                let mut block = unpadded(flags, payload)?;
                if flags & PRIORITY != 0 {
                    block = block.get(5..)?;
                }
                self.half(side).block = Some((stream, flags, block.to_vec()));
                if flags & END_HEADERS != 0 {
                    self.block(side, found)?;
                }
            }
            CONTINUATION => {
                let (_, _, block) = self.half(side).block.as_mut()?;
                block.extend_from_slice(payload);
                if block.len() > LIMIT {
                    return None;
                }
                if flags & END_HEADERS != 0 {
                    self.block(side, found)?;
                }
            }
            DATA => {
                let data = unpadded(flags, payload)?;
                self.data(side, stream, data, found)?;
                if flags & END_STREAM != 0 {
                    self.half_closed(side, stream, found);
                }
            }
            RST_STREAM => {
                let code = u32::from_be_bytes(*payload.first_chunk()?);
                if let Some(stream) = self.streams.get(&stream) {
                    // A server that has answered tells the client so to stop sending.
                    if !(side == Side::Server && stream.status_seen) {
                        found.push(Element::new(
                            stream.number,
                            side,
                            "reset",
                            Value::record([("code", Value::Int(code.into()))]),
                        ));
                    }
                }
            }
            SETTINGS if flags & ACK == 0 => {
                for (name, size) in frame.settings() {
                    if name == HEADER_TABLE_SIZE {
                        // It bounds what the other side may use.
                        let other = match side {
                            Side::Client => Side::Server,
                            Side::Server => Side::Client,
                        };
                        self.half(other)
                            .hpack
                            .set_max_allowed_table_size((size as usize).max(4096));
                    }
                }
            }
            // A client says good-bye or does not, as it likes; from a server it is a refusal.
            GOAWAY if side == Side::Server => {
                let code = u32::from_be_bytes(*payload.get(4..)?.first_chunk()?);
                found.push(Element::new(
                    0,
                    side,
                    "goaway",
                    Value::record([
                        ("code", Value::Int(code.into())),
                        ("debug", Value::bytes(payload.get(8..)?)),
                    ]),
                ));
            }
            _ => {}
        }
        Some(())
    }

    fn block(&mut self, side: Side, found: &mut Vec<Element>) -> Option<()> {
        let half = self.half(side);
        let (id, flags, block) = half.block.take()?;
        let headers: Vec<(String, Vec<u8>)> = half
            .hpack
            .decode(&block)
            .ok()?
            .into_iter()
            .map(|(name, value)| (String::from_utf8_lossy(&name).into_owned(), value.to_vec()))
            .collect();
        match side {
            Side::Client => {
                self.count += 1;
                let stream = Stream {
                    number: self.count,
                    path: header(&headers, ":path"),
                    ..Stream::default()
                };
                found.push(Element::new(stream.number, side, "call", call(&headers)));
                self.streams.insert(id, stream);
            }
            Side::Server => {
                let stream = self.streams.get_mut(&id)?;
                if headers.iter().any(|(name, _)| name == "grpc-status") {
                    stream.status_seen = true;
                    found.push(Element::new(
                        stream.number,
                        side,
                        "status",
                        status(&headers),
                    ));
                } else if header(&headers, ":status") != "200" {
                    found.push(Element::new(
                        stream.number,
                        side,
                        "response",
                        Value::record([(":status", Value::bytes(header(&headers, ":status")))]),
                    ));
                }
            }
        }
        if flags & END_STREAM != 0 {
            self.half_closed(side, id, found);
        }
        Some(())
    }

    fn half_closed(&mut self, side: Side, id: u32, found: &mut Vec<Element>) {
        if let Some(stream) = self.streams.get(&id) {
            // A server's last word is the status.
            if side == Side::Client {
                found.push(Element::new(stream.number, side, "end", Value::Null));
            }
        }
    }

    fn data(&mut self, side: Side, id: u32, data: &[u8], found: &mut Vec<Element>) -> Option<()> {
        // A stream that was reset may still have data under way.
        let Some(stream) = self.streams.get_mut(&id) else {
            return Some(());
        };
        let buffer = match side {
            Side::Client => &mut stream.client,
            Side::Server => &mut stream.server,
        };
        buffer.extend_from_slice(data);
        let mut payloads = Vec::new();
        while let Some([compressed, a, b, c, d]) = buffer.first_chunk::<5>().copied() {
            let length = u32::from_be_bytes([a, b, c, d]) as usize;
            if length > LIMIT {
                return None;
            }
            if buffer.len() < 5 + length {
                break;
            }
            payloads.push((compressed, buffer[5..5 + length].to_vec()));
            buffer.drain(..5 + length);
        }
        for (compressed, payload) in payloads {
            let kind = stream
                .path
                .rsplit('/')
                .next()
                .unwrap_or_default()
                .to_string();
            let value = if compressed == 0 {
                message::decode(&stream.path, side, &payload)
            } else {
                Value::record([("compressed", Value::bytes(payload))])
            };
            let repeated = kind == "LeaseKeepAlive" && stream.repeats(side, &value);
            found.push(Element {
                repeated,
                ..Element::new(stream.number, side, kind, value)
            });
        }
        Some(())
    }
}

impl Stream {
    /// Whether a keep-alive of this lease said the same the last time.
    fn repeats(&mut self, side: Side, value: &Value) -> bool {
        let Some(lease) = value.get("ID").and_then(Value::int) else {
            return false;
        };
        let said = value.get("TTL").cloned().unwrap_or(Value::Null);
        let before = self.lease_said.insert((side, lease), said.clone());
        before == Some(said)
    }
}

fn unpadded(flags: u8, payload: &[u8]) -> Option<&[u8]> {
    if flags & PADDED == 0 {
        return Some(payload);
    }
    let (padding, rest) = payload.split_first()?;
    rest.get(..rest.len().checked_sub(usize::from(*padding))?)
}

fn header(headers: &[(String, Vec<u8>)], name: &str) -> String {
    headers
        .iter()
        .find(|(known, _)| known == name)
        .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
        .unwrap_or_default()
}

/// Headers that say how a library speaks HTTP/2 and nothing to etcd.
const IGNORED: [&str; 9] = [
    "content-type",
    "te",
    "user-agent",
    "grpc-accept-encoding",
    "accept-encoding",
    "grpc-timeout",
    "content-length",
    "grpc-encoding",
    "tracestate",
];

fn call(headers: &[(String, Vec<u8>)]) -> Value {
    let mut fields = vec![("method".to_string(), Value::bytes(header(headers, ":path")))];
    // How long exactly differs from run to run.
    if headers.iter().any(|(name, _)| name == "grpc-timeout") {
        fields.push(("deadline".to_string(), Value::Bool(true)));
    }
    let mut metadata: Vec<(String, Value)> = headers
        .iter()
        .filter(|(name, _)| !name.starts_with(':') && !IGNORED.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), metadata(name, value)))
        .collect();
    metadata.sort();
    if !metadata.is_empty() {
        fields.push(("metadata".to_string(), Value::Record(metadata)));
    }
    Value::Record(fields)
}

fn metadata(name: &str, value: &[u8]) -> Value {
    if name == "token" || name == "authorization" {
        Value::Chosen(Class::Token, Raw::Bytes(value.to_vec()))
    } else {
        Value::bytes(value)
    }
}

/// gRPC's codes, from its documentation.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

fn status(headers: &[(String, Vec<u8>)]) -> Value {
    let code = header(headers, "grpc-status");
    let name = code
        .parse::<usize>()
        .ok()
        .and_then(|code| CODES.get(code))
        .map_or(code, ToString::to_string);
    let mut fields = vec![("code".to_string(), Value::word(name))];
    let message = percent_decoded(&header(headers, "grpc-message"));
    if !message.is_empty() {
        fields.push(("message".to_string(), Value::bytes(message)));
    }
    Value::Record(fields)
}

/// gRPC lets a server encode any byte of a message so; which ones it does, clients never see.
fn percent_decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let encoded = (first == b'%')
            .then(|| after.get(..2))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match encoded {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    bytes
}

/// HTTP/1 with JSON in it. A request and its answer have one stream number.
#[derive(Default)]
pub struct One {
    client: OneHalf,
    server: OneHalf,
    requests: u32,
    answers: u32,
}

#[derive(Default)]
struct OneHalf {
    buffer: Vec<u8>,
    state: OneState,
    /// Of a chunked body: what is not a whole line yet.
    line: Vec<u8>,
    head: Vec<(String, Value)>,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum OneState {
    #[default]
    Head,
    Length(usize),
    Chunks,
    /// Until the connection ends.
    Rest,
}

impl One {
    fn half(&mut self, side: Side) -> &mut OneHalf {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    fn number(&self, side: Side) -> u32 {
        match side {
            Side::Client => self.requests,
            Side::Server => self.answers,
        }
    }

    fn bytes(&mut self, side: Side, bytes: &[u8], found: &mut Vec<Element>) {
        self.half(side).buffer.extend_from_slice(bytes);
        while self.step(side, found) {}
    }

    fn end(&mut self, side: Side, found: &mut Vec<Element>) {
        if self.half(side).state == OneState::Rest {
            let body = std::mem::take(&mut self.half(side).buffer);
            self.whole(side, &body, found);
        } else if !self.half(side).buffer.is_empty() {
            found.push(Element::new(
                self.number(side),
                side,
                "garbage",
                Value::Null,
            ));
        }
    }

    /// Whether it got on.
    fn step(&mut self, side: Side, found: &mut Vec<Element>) -> bool {
        let half = self.half(side);
        match half.state {
            OneState::Head => self.head(side),
            OneState::Length(length) => {
                if half.buffer.len() < length {
                    return false;
                }
                let body: Vec<u8> = half.buffer.drain(..length).collect();
                self.whole(side, &body, found);
                true
            }
            OneState::Chunks => {
                let Ok(httparse::Status::Complete((start, length))) =
                    httparse::parse_chunk_size(&half.buffer)
                else {
                    return false;
                };
                let length = usize::try_from(length).unwrap_or(usize::MAX).min(LIMIT);
                let end = start + length;
                if half.buffer.len() < end + 2 {
                    return false;
                }
                half.line.extend_from_slice(&half.buffer[start..end]);
                half.buffer.drain(..end + 2);
                if side == Side::Client {
                    if length == 0 {
                        let body = std::mem::take(&mut half.line);
                        self.whole(side, &body, found);
                    }
                    return true;
                }
                self.chunk(length == 0, found);
                true
            }
            OneState::Rest => false,
        }
    }

    fn head(&mut self, side: Side) -> bool {
        let half = self.half(side);
        let mut space = [httparse::EMPTY_HEADER; 100];
        let (length, mut fields, headers) = match side {
            Side::Client => {
                let mut request = httparse::Request::new(&mut space);
                let Ok(httparse::Status::Complete(length)) = request.parse(&half.buffer) else {
                    return false;
                };
                let fields = vec![
                    (
                        "method".to_string(),
                        Value::word(request.method.unwrap_or_default()),
                    ),
                    (
                        "path".to_string(),
                        Value::bytes(request.path.unwrap_or_default()),
                    ),
                ];
                (length, fields, owned(request.headers))
            }
            Side::Server => {
                let mut response = httparse::Response::new(&mut space);
                let Ok(httparse::Status::Complete(length)) = response.parse(&half.buffer) else {
                    return false;
                };
                let code = response.code.unwrap_or_default();
                if (100..200).contains(&code) {
                    // It only asks for the body; the answer follows.
                    half.buffer.drain(..length);
                    return true;
                }
                let fields = vec![("status".to_string(), Value::Int(code.into()))];
                (length, fields, owned(response.headers))
            }
        };
        half.buffer.drain(..length);
        let get = |name: &str| headers.iter().find(|(known, _)| known == name);
        if let Some((_, token)) = get("authorization") {
            fields.push((
                "authorization".to_string(),
                metadata("authorization", token),
            ));
        }
        half.head = fields;
        half.line.clear();
        let chunked = get("transfer-encoding").is_some_and(|(_, value)| value == b"chunked");
        half.state = if chunked {
            OneState::Chunks
        } else if let Some((_, value)) = get("content-length") {
            let length = String::from_utf8_lossy(value).trim().parse().unwrap_or(0);
            OneState::Length(std::cmp::min(length, LIMIT))
        } else if side == Side::Client {
            OneState::Length(0)
        } else {
            OneState::Rest
        };
        match side {
            Side::Client => self.requests += 1,
            Side::Server => self.answers += 1,
        }
        true
    }

    /// A body that has come whole.
    fn whole(&mut self, side: Side, body: &[u8], found: &mut Vec<Element>) {
        let number = self.number(side);
        let half = self.half(side);
        half.state = OneState::Head;
        let mut fields = std::mem::take(&mut half.head);
        if !body.is_empty() {
            let field = match serde_json::from_slice(body) {
                Ok(json) => ("json".to_string(), message::from_json(&json, "", side)),
                Err(_) if side == Side::Server && body.len() > 200 => {
                    ("body".to_string(), Value::Any)
                }
                Err(_) => ("body".to_string(), Value::bytes(body)),
            };
            fields.push(field);
        }
        found.push(Element::new(number, side, "http", Value::Record(fields)));
    }

    /// A part of a body that may go on for long, as a watch does: a line each.
    fn chunk(&mut self, last: bool, found: &mut Vec<Element>) {
        let number = self.answers;
        let half = &mut self.server;
        if !half.head.is_empty() {
            let fields = std::mem::take(&mut half.head);
            found.push(Element::new(
                number,
                Side::Server,
                "http",
                Value::Record(fields),
            ));
        }
        loop {
            let end = half.line.iter().position(|byte| *byte == b'\n');
            let line: Vec<u8> = match end {
                Some(end) => half.line.drain(..=end).collect(),
                None if last && !half.line.is_empty() => std::mem::take(&mut half.line),
                None => break,
            };
            let value = match serde_json::from_slice(&line) {
                Ok(json) => ("json", message::from_json(&json, "", Side::Server)),
                Err(_) => ("body", Value::bytes(line)),
            };
            found.push(Element::new(
                number,
                Side::Server,
                "part",
                Value::record([value]),
            ));
        }
        if last {
            half.state = OneState::Head;
            found.push(Element::new(number, Side::Server, "end", Value::Null));
        }
    }
}

fn owned(headers: &[httparse::Header<'_>]) -> Vec<(String, Vec<u8>)> {
    headers
        .iter()
        .map(|header| (header.name.to_ascii_lowercase(), header.value.to_vec()))
        .collect()
}
