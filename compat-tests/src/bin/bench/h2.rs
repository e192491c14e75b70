//! HTTP/2 and gRPC as cheap as they can be: what is measured is the server, and a client library's own work is not.
//! A connection sends what was encoded before and cuts messages out of what it reads; all of them share one thread.
//!
//! Headers that were sent once go as one byte each, as in any client (RFC 7541, section 6.1). Of the server's headers
//! only their end is looked at: a call that failed shows in its missing message.

use std::collections::HashMap;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::socket::send_all;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A frame's header.
const HEAD: usize = 9;
/// What stands before a gRPC message.
const PREFIX: usize = 5;
/// What the server may send ahead on a stream and on the connection; given back when half of it is used.
const WINDOW: u32 = 1 << 24;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

/// Index of the first header in a peer's dynamic table.
const FIRST_DYNAMIC: usize = 62;

/// One connection, with any number of calls.
pub struct Connection {
    stream: TcpStream,
    input: BytesMut,
    output: Vec<u8>,
    next_stream: u32,
    authority: String,
    /// Headers in the server's table, in the order in which they were put there.
    table: Vec<Header>,
    /// Read on the connection and not given back.
    taken: u32,
    calls: HashMap<u32, Call>,
}

type Header = (u8, &'static str, String);

#[derive(Default)]
struct Call {
    buffer: BytesMut,
    taken: u32,
}

/// What the server said on a call.
pub struct Said {
    /// The call.
    pub call: u32,
    /// A message, or its end.
    pub message: Option<Bytes>,
}

impl Connection {
    /// Connects without TLS.
    pub async fn open(address: &str) -> Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut connection = Connection {
            stream,
            input: BytesMut::new(),
            output: PREFACE.to_vec(),
            next_stream: 1,
            authority: address.to_string(),
            table: Vec::new(),
            taken: 0,
            calls: HashMap::new(),
        };
        // No push, and the window of each stream.
        let mut settings = vec![0, 2, 0, 0, 0, 0, 0, 4];
        settings.extend_from_slice(&WINDOW.to_be_bytes());
        connection.frame(SETTINGS, 0, 0, &settings);
        connection.frame(WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes());
        connection.send().await?;
        Ok(connection)
    }

    /// One request, one message.
    pub async fn call(&mut self, path: &'static str, message: &[u8]) -> Result<Bytes> {
        let call = self.begin(path);
        self.put(call, message, true);
        self.send().await?;
        let said = self.next().await?;
        ensure!(said.call == call, "an answer to another call");
        let message = said.message.with_context(|| format!("{path} failed"))?;
        let end = self.next().await?;
        ensure!(end.call == call && end.message.is_none(), "two answers");
        Ok(message)
    }

    /// Begins a call that streams.
    pub fn begin(&mut self, path: &'static str) -> u32 {
        let call = self.next_stream;
        self.next_stream += 2;
        self.calls.insert(call, Call::default());
        // :method POST and :scheme http stand in the static table.
        let mut block = vec![0x83, 0x86];
        let authority = self.authority.clone();
        for header in [
            (4, ":path", path.to_string()),
            (1, ":authority", authority),
            (31, "content-type", "application/grpc".to_string()),
            (58, "user-agent", "grpc-go/1.75.0".to_string()),
            (0, "te", "trailers".to_string()),
        ] {
            self.header(&mut block, header);
        }
        self.frame(HEADERS, END_HEADERS, call, &block);
        call
    }

    /// Adds a message to what is sent next; `last` ends this side of the call.
    pub fn put(&mut self, call: u32, message: &[u8], last: bool) {
        let mut framed = Vec::with_capacity(PREFIX + message.len());
        framed.push(0);
        framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
        framed.extend_from_slice(message);
        self.frame(DATA, if last { END_STREAM } else { 0 }, call, &framed);
    }

    /// Sends what was put.
    pub async fn send(&mut self) -> Result<()> {
        send_all(&self.stream, &mut self.output).await
    }

    /// The next message, or end, of any call.
    pub async fn next(&mut self) -> Result<Said> {
        loop {
            if let Some(said) = self.waiting() {
                return Ok(said);
            }
            if self.whole_frame_waits() {
                match self.take_frame()? {
                    Some(end) => return Ok(end),
                    None => continue,
                }
            }
            if !self.output.is_empty() {
                self.send().await?;
            }
            self.input.reserve(1 << 16);
            let read = self.stream.read_buf(&mut self.input).await?;
            ensure!(read > 0, "the server closed the connection");
        }
    }

    /// A message that has arrived whole.
    fn waiting(&mut self) -> Option<Said> {
        for (number, call) in &mut self.calls {
            if let Some(message) = unframed(&mut call.buffer) {
                return Some(Said {
                    call: *number,
                    message: Some(message),
                });
            }
        }
        None
    }

    fn whole_frame_waits(&self) -> bool {
        frame_length(&self.input).is_some_and(|length| self.input.len() >= HEAD + length)
    }

    fn take_frame(&mut self) -> Result<Option<Said>> {
        let length = frame_length(&self.input).context("a frame")?;
        let mut frame = self.input.split_to(HEAD + length);
        let (kind, flags) = (frame[3], frame[4]);
        frame.advance(5);
        let call = frame.get_u32();
        match kind {
            DATA => {
                ensure!(flags & PADDED == 0, "a padded frame");
                self.give_back(call, length as u32);
                if let Some(call) = self.calls.get_mut(&call) {
                    // A message in one frame is not copied.
                    if call.buffer.is_empty() {
                        call.buffer = frame;
                    } else {
                        call.buffer.extend_from_slice(&frame);
                    }
                }
            }
            HEADERS => {}
            RST_STREAM => bail!("a call was reset: {frame:?}"),
            SETTINGS if flags & ACK == 0 => self.frame(SETTINGS, ACK, 0, &[]),
            PING if flags & ACK == 0 => self.frame(PING, ACK, 0, &frame),
            GOAWAY => bail!("the server sent the connection away: {frame:?}"),
            _ => {}
        }
        if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            let left = self.calls.remove(&call).context("the end of no call")?;
            ensure!(left.buffer.is_empty(), "a call ended within a message");
            let message = None;
            return Ok(Some(Said { call, message }));
        }
        Ok(None)
    }

    fn give_back(&mut self, call: u32, length: u32) {
        self.taken += length;
        if self.taken > WINDOW / 2 {
            let taken = std::mem::take(&mut self.taken);
            self.frame(WINDOW_UPDATE, 0, 0, &taken.to_be_bytes());
        }
        if let Some(of_call) = self.calls.get_mut(&call) {
            of_call.taken += length;
            if of_call.taken > WINDOW / 2 {
                let taken = std::mem::take(&mut of_call.taken);
                self.frame(WINDOW_UPDATE, 0, call, &taken.to_be_bytes());
            }
        }
    }

    /// By its place in the server's table, or as it is and into that table. `name` is the index of its name in the
    /// static table.
    fn header(&mut self, block: &mut Vec<u8>, header: Header) {
        if let Some(at) = self.table.iter().position(|known| *known == header) {
            block.push(0x80 | (FIRST_DYNAMIC + self.table.len() - 1 - at) as u8);
            return;
        }
        let (index, name, value) = &header;
        block.push(0x40 | index);
        if *index == 0 {
            text(block, name);
        }
        text(block, value);
        self.table.push(header);
    }

    fn frame(&mut self, kind: u8, flags: u8, call: u32, payload: &[u8]) {
        let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
        self.output.extend_from_slice(&length);
        self.output.extend_from_slice(&[kind, flags]);
        self.output.extend_from_slice(&call.to_be_bytes());
        self.output.extend_from_slice(payload);
    }
}

fn frame_length(input: &[u8]) -> Option<usize> {
    let [a, b, c] = *input.first_chunk::<3>()?;
    (input.len() >= HEAD).then_some(u32::from_be_bytes([0, a, b, c]) as usize)
}

/// Without Huffman's code; all are shorter than 127 bytes.
fn text(block: &mut Vec<u8>, text: &str) {
    block.push(text.len() as u8);
    block.extend_from_slice(text.as_bytes());
}

fn unframed(buffer: &mut BytesMut) -> Option<Bytes> {
    let length: [u8; 4] = buffer.get(1..PREFIX)?.try_into().ok()?;
    let whole = PREFIX + u32::from_be_bytes(length) as usize;
    if buffer.len() < whole {
        return None;
    }
    let mut message = buffer.split_to(whole);
    message.advance(PREFIX);
    Some(message.freeze())
}
