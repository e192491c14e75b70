//! The bytes of one connection: frames in, chunks out, each no earlier than it may leave.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use causeway_wire::zk::record::Record;
use causeway_wire::zk::{ConnectRequest, FourLetterWord, FrameDecoder, Opening};

use crate::gateway::Gateway;
use crate::journal::Position;
use crate::tls::{Reader, Writer, is_busy};

/// Chunks given to a socket at a time.
const WRITE: usize = 16;

/// How long the last bytes may take on a socket that is not counted any more.
const GOODBYE: Duration = Duration::from_secs(1);

/// The connection ends now; the session does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended;

/// Why there is no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    /// A length that cannot be, or above the limit.
    TooLarge,
    /// The bytes are no record, or there are no more.
    Nothing,
}

/// How a connection begins.
pub(super) enum First {
    Word(FourLetterWord),
    Connect(ConnectRequest),
}

/// The direction from the client.
pub(super) struct Incoming {
    stream: Reader,
    buffer: BytesMut,
    decoder: FrameDecoder,
}

impl Incoming {
    pub(super) fn new(stream: Reader, max_frame: usize) -> Self {
        Incoming {
            stream,
            buffer: BytesMut::new(),
            decoder: FrameDecoder::new(max_frame),
        }
    }

    /// The first thing the client says.
    pub(super) async fn first(&mut self) -> Result<First, Broken> {
        loop {
            match Opening::detect(&self.buffer) {
                Opening::NeedMore => {}
                Opening::FourLetterWord(word) => return Ok(First::Word(word)),
                Opening::Frames => {
                    if let Some(frame) = self.frame().map_err(|_| Broken::TooLarge)? {
                        return ConnectRequest::decode(frame)
                            .map(First::Connect)
                            .map_err(|_| Broken::Nothing);
                    }
                }
            }
            self.read().await.map_err(|_| Broken::Nothing)?;
        }
    }

    /// The eight bytes behind a four-letter word that takes a number.
    pub(super) async fn number(&mut self) -> Option<i64> {
        loop {
            if let Some(bytes) = self.buffer.get(4..12) {
                return bytes.try_into().ok().map(i64::from_be_bytes);
            }
            self.read().await.ok()?;
        }
    }

    /// The next whole frame, if it has been read. ZooKeeper: a length that cannot be ends the connection
    /// without a reply (NIOServerCnxn.readLength).
    pub(super) fn frame(&mut self) -> Result<Option<Bytes>, Ended> {
        self.decoder.next(&mut self.buffer).map_err(|error| {
            tracing::debug!(%error, "a ZooKeeper connection is closed");
            Ended
        })
    }

    /// Reads some more. Nothing is lost when the future is dropped.
    pub(super) async fn read(&mut self) -> Result<(), Ended> {
        match self.stream.read_into(&mut self.buffer).await {
            Ok(0) | Err(_) => Err(Ended),
            Ok(_) => Ok(()),
        }
    }
}

/// The direction to the client.
pub(super) struct Outgoing {
    stream: Writer,
    chunks: VecDeque<(Bytes, Position)>,
    queued: usize,
}

/// What became of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flush {
    /// Everything was written.
    Empty,
    /// The socket takes no more for now.
    Blocked,
    /// The next chunk may leave once this position is on disk.
    NotKept(Position),
}

impl Flush {
    /// What is waited for.
    pub(super) fn position(self) -> Position {
        match self {
            Flush::NotKept(position) => position,
            Flush::Empty | Flush::Blocked => 0,
        }
    }
}

impl Outgoing {
    pub(super) fn new(stream: Writer) -> Self {
        Outgoing {
            stream,
            chunks: VecDeque::new(),
            queued: 0,
        }
    }

    pub(super) fn push(&mut self, chunk: Bytes, after: Position) {
        if !chunk.is_empty() {
            self.queued += chunk.len();
            self.chunks.push_back((chunk, after));
        }
    }

    /// Bytes that wait.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// Writes as much as may leave and as the socket takes.
    pub(super) fn flush(&mut self, gateway: &Gateway) -> Result<Flush, Ended> {
        while let Some((_, first)) = self.chunks.front() {
            let first = *first;
            let mut slices = [IoSlice::new(&[]); WRITE];
            let mut ready = 0;
            for (slice, (chunk, after)) in slices.iter_mut().zip(&self.chunks) {
                match gateway.is_durable(*after) {
                    Ok(true) => *slice = IoSlice::new(chunk),
                    Ok(false) => break,
                    // Nothing is acknowledged that the disk did not take.
                    Err(_) => return Err(Ended),
                }
                ready += 1;
            }
            let written = match slices.get(..ready) {
                None | Some([]) => return Ok(Flush::NotKept(first)),
                Some([one]) => self.stream.try_write(one),
                Some(several) => self.stream.try_write_vectored(several),
            };
            match written {
                Ok(0) => return Err(Ended),
                Ok(written) => self.advance(written),
                Err(error) if is_busy(&error) => return Ok(Flush::Blocked),
                Err(_) => return Err(Ended),
            }
        }
        match self.stream.try_flush() {
            Ok(()) => Ok(Flush::Empty),
            Err(error) if is_busy(&error) => Ok(Flush::Blocked),
            Err(_) => Err(Ended),
        }
    }

    fn advance(&mut self, mut written: usize) {
        self.queued = self.queued.saturating_sub(written);
        while let Some((chunk, _)) = self.chunks.front_mut() {
            if chunk.len() > written {
                chunk.advance(written);
                return;
            }
            written -= chunk.len();
            self.chunks.pop_front();
        }
    }

    pub(super) async fn writable(&mut self) -> Result<(), Ended> {
        self.stream.writable().await.map_err(|_| Ended)
    }

    pub(super) async fn write_whole(&mut self, bytes: Bytes) -> Result<(), Ended> {
        self.stream.write_whole(bytes).await.map_err(|_| Ended)
    }

    /// Lets the last bytes arrive before the socket goes.
    pub(super) async fn shut_down(&mut self) {
        // TLS says goodbye, and somebody who does not read never takes it.
        let _ = tokio::time::timeout(GOODBYE, self.stream.shutdown()).await;
    }
}
