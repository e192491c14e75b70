//! The client's end of one connection of a replay.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream, ToSocketAddrs as _};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::super::frame::{
    ACK, DATA, END_HEADERS, END_STREAM, Frame, HEADERS, INITIAL_WINDOW_SIZE, MAX_LENGTH, PING,
    PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame,
};
use super::super::http;
use super::super::message;
use super::super::proxy::{Decode, Element};
use super::super::transcript::Side;
use super::super::value::Value;
use super::super::zookeeper;
use super::Arrival;
use crate::protocol::Protocol;
use crate::workers::lock;

/// A connection that is open.
pub(super) struct Peer {
    stream: TcpStream,
    decoder: Arc<Mutex<Box<dyn Decode>>>,
    speech: Speech,
}

enum Speech {
    ZooKeeper,
    One { address: String },
    Two(Two),
}

const CONNECT: Duration = Duration::from_secs(5);

impl Peer {
    /// Connects; what comes goes to `sender`.
    pub(super) fn connect(
        subject: Protocol,
        is_json: bool,
        address: &str,
        connection: u32,
        sender: Sender<Arrival>,
    ) -> Result<Peer> {
        let target = address.to_socket_addrs()?.next().context("no address")?;
        let stream = TcpStream::connect_timeout(&target, CONNECT)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(CONNECT))?;
        let decoder: Box<dyn Decode> = match subject {
            Protocol::ZooKeeper => Box::new(zookeeper::Decoder::default()),
            Protocol::Etcd => Box::new(http::Decoder::default()),
        };
        let decoder = Arc::new(Mutex::new(decoder));
        let writer = Arc::new(Mutex::new(stream.try_clone()?));
        let windows = Arc::new(Windows::default());
        let speech = match (subject, is_json) {
            (Protocol::ZooKeeper, _) => Speech::ZooKeeper,
            (Protocol::Etcd, true) => Speech::One {
                address: address.to_string(),
            },
            (Protocol::Etcd, false) => Speech::Two(Two {
                address: address.to_string(),
                writer: Arc::clone(&writer),
                windows: Arc::clone(&windows),
                hpack: loona_hpack::Encoder::new(),
                last_beats: BTreeMap::new(),
            }),
        };
        let mut peer = Peer {
            stream,
            decoder,
            speech,
        };
        if let Speech::Two(_) = peer.speech {
            let mut hello = PREFACE.to_vec();
            // No push, and windows so large that nothing has to be given back.
            hello.extend(frame(
                SETTINGS,
                0,
                0,
                &[0, 2, 0, 0, 0, 0, 0, 4, 0x7f, 0xff, 0xff, 0xff],
            ));
            hello.extend(frame(
                WINDOW_UPDATE,
                0,
                0,
                &(0x7fff_ffff_u32 - 65_535).to_be_bytes(),
            ));
            peer.write(&hello)?;
        }
        let reader = Reader {
            stream: peer.stream.try_clone()?,
            decoder: Arc::clone(&peer.decoder),
            two: matches!(peer.speech, Speech::Two(_)).then_some((writer, windows)),
            connection,
            sender,
        };
        std::thread::spawn(move || reader.run());
        Ok(peer)
    }

    /// Says a line of the transcript.
    pub(super) fn say(
        &mut self,
        stream: u32,
        kind: &str,
        value: &Value,
        method: &str,
    ) -> Result<()> {
        if stream == 0 {
            match kind {
                "close" => return Ok(self.stream.shutdown(Shutdown::Write)?),
                "reset" => {
                    socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))?;
                    return Ok(self.stream.shutdown(Shutdown::Both)?);
                }
                _ => {}
            }
        }
        match &mut self.speech {
            Speech::ZooKeeper => {
                let bytes = zookeeper::encode(kind, value)?;
                self.write(&bytes)
            }
            Speech::One { address } => {
                let text = request(address, value)?;
                self.write(&text)
            }
            Speech::Two(two) => two.say(&self.decoder, stream, kind, value, method),
        }
    }

    /// Says that session or leases are alive.
    pub(super) fn keep_alive(&mut self, stream: u32) -> Result<()> {
        match &mut self.speech {
            Speech::ZooKeeper => {
                let ping = Value::record([("xid", Value::Int(-2))]);
                let bytes = zookeeper::encode("ping", &ping)?;
                self.write(&bytes)
            }
            Speech::One { .. } => Ok(()),
            Speech::Two(two) => {
                for message in two.last_beats.get(&stream).cloned().unwrap_or_default() {
                    two.data(&self.decoder, stream, &message, 0)?;
                }
                Ok(())
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        // The decoder has to know what was asked before the answer comes.
        lock(&self.decoder).bytes(Side::Client, bytes, &mut Vec::new());
        Ok(self.stream.write_all(bytes)?)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

fn request(address: &str, value: &Value) -> Result<Vec<u8>> {
    let method = value
        .get("method")
        .and_then(Value::as_word)
        .context("no method")?;
    let path = value
        .get("path")
        .and_then(Value::plain)
        .context("no path")?;
    let body = match (value.get("json"), value.get("body")) {
        (Some(json), _) => serde_json::to_vec(&message::to_json(json)?)?,
        (None, Some(body)) => body.plain().context("a body with a name in it")?,
        (None, None) => Vec::new(),
    };
    let mut text = format!(
        "{method} {} HTTP/1.1\r\nHost: {address}\r\n",
        String::from_utf8(path)?
    );
    if let Some(token) = value.get("authorization").and_then(Value::plain) {
        text += &format!("Authorization: {}\r\n", String::from_utf8(token)?);
    }
    if !body.is_empty() || method == "POST" {
        text += &format!(
            "Content-Type: application/json\r\nContent-Length: {}\r\n",
            body.len()
        );
    }
    text += "\r\n";
    Ok([text.into_bytes(), body].concat())
}

/// How much the server lets us send.
#[derive(Default)]
struct Windows {
    state: Mutex<WindowState>,
    changed: Condvar,
}

struct WindowState {
    connection: i64,
    initial: i64,
    /// By HTTP/2's stream number: what was given and used beyond the initial size.
    streams: BTreeMap<u32, i64>,
    ended: bool,
}

impl Default for WindowState {
    fn default() -> WindowState {
        WindowState {
            connection: 65_535,
            initial: 65_535,
            streams: BTreeMap::new(),
            ended: false,
        }
    }
}

impl Windows {
    /// Takes up to `wanted` bytes out of both windows.
    fn take(&self, stream: u32, wanted: usize) -> Result<usize> {
        let deadline = Instant::now() + CONNECT;
        let mut state = lock(&self.state);
        loop {
            let own = state.initial + state.streams.get(&stream).copied().unwrap_or(0);
            let free = usize::try_from(own.min(state.connection)).unwrap_or(0);
            let left = deadline.saturating_duration_since(Instant::now());
            if free > 0 {
                let taken = free.min(wanted);
                let count = i64::try_from(taken).unwrap_or(0);
                state.connection -= count;
                *state.streams.entry(stream).or_default() -= count;
                return Ok(taken);
            }
            if left.is_zero() || state.ended {
                return Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
            }
            state = self
                .changed
                .wait_timeout(state, left)
                .map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
        }
    }
}

struct Two {
    address: String,
    writer: Arc<Mutex<TcpStream>>,
    windows: Arc<Windows>,
    hpack: loona_hpack::Encoder<'static>,
    /// The keep-alive messages of each stream, one for each lease.
    last_beats: BTreeMap<u32, Vec<Vec<u8>>>,
}

type Decoder = Arc<Mutex<Box<dyn Decode>>>;

impl Two {
    fn say(
        &mut self,
        decoder: &Decoder,
        stream: u32,
        kind: &str,
        value: &Value,
        method: &str,
    ) -> Result<()> {
        let id = stream.saturating_mul(2).saturating_sub(1);
        match kind {
            "call" => {
                let mut headers: Vec<(Vec<u8>, Vec<u8>)> = [
                    (":method", "POST"),
                    (":scheme", "http"),
                    (":path", method),
                    (":authority", &self.address),
                    ("content-type", "application/grpc"),
                    ("te", "trailers"),
                ]
                .into_iter()
                .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
                .collect();
                if value.get("deadline").is_some() {
                    headers.push((b"grpc-timeout".to_vec(), b"60S".to_vec()));
                }
                for (name, value) in value.get("metadata").map(Value::fields).unwrap_or_default() {
                    let value = value.plain().context("metadata with a name in it")?;
                    headers.push((name.clone().into_bytes(), value));
                }
                let block = self
                    .hpack
                    .encode(headers.iter().map(|(name, value)| (&name[..], &value[..])));
                self.write(decoder, &frame(HEADERS, END_HEADERS, id, &block))
            }
            "end" => self.write(decoder, &frame(DATA, END_STREAM, id, &[])),
            "reset" => {
                let code = value.get("code").and_then(Value::int).unwrap_or(8);
                let code = u32::try_from(code).unwrap_or(8).to_be_bytes();
                self.write(decoder, &frame(RST_STREAM, 0, id, &code))
            }
            _ => {
                let (compressed, payload) = match value.get("compressed").and_then(Value::plain) {
                    Some(payload) => (1, payload),
                    None => (0, message::encode(method, value)?),
                };
                if kind == "LeaseKeepAlive" {
                    let beats = self.last_beats.entry(stream).or_default();
                    if !beats.contains(&payload) {
                        beats.push(payload.clone());
                    }
                }
                self.data(decoder, stream, &payload, compressed)
            }
        }
    }

    fn data(
        &mut self,
        decoder: &Decoder,
        stream: u32,
        payload: &[u8],
        compressed: u8,
    ) -> Result<()> {
        let id = stream.saturating_mul(2).saturating_sub(1);
        let mut message = vec![compressed];
        message.extend(u32::try_from(payload.len())?.to_be_bytes());
        message.extend(payload);
        let mut rest = message.as_slice();
        while !rest.is_empty() {
            let count = self.windows.take(id, rest.len().min(MAX_LENGTH))?;
            let (part, more) = rest.split_at(count);
            self.write(decoder, &frame(DATA, 0, id, part))?;
            rest = more;
        }
        Ok(())
    }

    fn write(&self, decoder: &Decoder, bytes: &[u8]) -> Result<()> {
        lock(decoder).bytes(Side::Client, bytes, &mut Vec::new());
        Ok(lock(&self.writer).write_all(bytes)?)
    }
}

struct Reader {
    stream: TcpStream,
    decoder: Decoder,
    two: Option<(Arc<Mutex<TcpStream>>, Arc<Windows>)>,
    connection: u32,
    sender: Sender<Arrival>,
}

impl Reader {
    fn run(mut self) {
        let mut chunk = vec![0; 64 << 10];
        let mut buffer = Vec::new();
        loop {
            let mut found = Vec::new();
            let read = self.stream.read(&mut chunk);
            match read {
                Ok(count @ 1..) => {
                    lock(&self.decoder).bytes(Side::Server, &chunk[..count], &mut found);
                    buffer.extend_from_slice(&chunk[..count]);
                    self.answer(&mut buffer);
                }
                _ => {
                    lock(&self.decoder).end(Side::Server, &mut found);
                    let kind = if read.is_ok() { "close" } else { "reset" };
                    found.push(Element::new(0, Side::Server, kind, Value::Null));
                }
            }
            for element in found {
                let arrival = Arrival {
                    connection: self.connection,
                    element,
                };
                if self.sender.send(arrival).is_err() {
                    return;
                }
            }
            if !matches!(read, Ok(1..)) {
                if let Some((_, windows)) = &self.two {
                    lock(&windows.state).ended = true;
                    windows.changed.notify_all();
                }
                return;
            }
        }
    }

    /// What HTTP/2 wants answered, and what it lets us send.
    fn answer(&self, buffer: &mut Vec<u8>) {
        let Some((writer, windows)) = &self.two else {
            buffer.clear();
            return;
        };
        while let Some(read) = Frame::take(buffer) {
            let Frame {
                kind,
                flags,
                stream,
                payload,
            } = &read;
            match *kind {
                SETTINGS if flags & ACK == 0 => {
                    for (name, size) in read.settings() {
                        if name == INITIAL_WINDOW_SIZE {
                            lock(&windows.state).initial = size.into();
                        }
                    }
                    windows.changed.notify_all();
                    let _ = lock(writer).write_all(&frame(SETTINGS, ACK, 0, &[]));
                }
                PING if flags & ACK == 0 => {
                    let _ = lock(writer).write_all(&frame(PING, ACK, 0, payload));
                }
                WINDOW_UPDATE => {
                    if let Some(size) = payload.first_chunk::<4>() {
                        let size = i64::from(u32::from_be_bytes(*size) & 0x7fff_ffff);
                        let mut state = lock(&windows.state);
                        if *stream == 0 {
                            state.connection += size;
                        } else {
                            *state.streams.entry(*stream).or_default() += size;
                        }
                    }
                    windows.changed.notify_all();
                }
                _ => {}
            }
        }
    }
}
