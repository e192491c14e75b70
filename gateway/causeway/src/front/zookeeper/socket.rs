//! The bytes of one connection: frames in, chunks out, each no earlier than it may leave.

use std::collections::VecDeque;
use std::io;

use bytes::{Buf, Bytes, BytesMut};
use causeway_wire::zk::record::Record;
use causeway_wire::zk::{ConnectRequest, FourLetterWord, FrameDecoder, Opening};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::gateway::Gateway;
use crate::journal::Position;

/// The connection ends now; the session does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended;

/// How a connection begins.
pub(super) enum First {
    Word(FourLetterWord),
    Connect(ConnectRequest),
}

/// The direction from the client.
pub(super) struct Incoming {
    stream: OwnedReadHalf,
    buffer: BytesMut,
    decoder: FrameDecoder,
}

impl Incoming {
    pub(super) fn new(stream: OwnedReadHalf, max_frame: usize) -> Self {
        Incoming {
            stream,
            buffer: BytesMut::with_capacity(4096),
            decoder: FrameDecoder::new(max_frame),
        }
    }

    /// The first thing the client says; `None` when it is nothing that this port understands.
    pub(super) async fn first(&mut self) -> Option<First> {
        loop {
            match Opening::detect(&self.buffer) {
                Opening::NeedMore => {}
                Opening::FourLetterWord(word) => return Some(First::Word(word)),
                Opening::Frames => {
                    if let Some(frame) = self.frame().ok()? {
                        return ConnectRequest::decode(frame).ok().map(First::Connect);
                    }
                }
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
        match self.stream.read_buf(&mut self.buffer).await {
            Ok(0) | Err(_) => Err(Ended),
            Ok(_) => Ok(()),
        }
    }
}

/// The direction to the client.
pub(super) struct Outgoing {
    stream: OwnedWriteHalf,
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
    pub(super) fn new(stream: OwnedWriteHalf) -> Self {
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
        while let Some((chunk, after)) = self.chunks.front_mut() {
            match gateway.is_durable(*after) {
                Ok(true) => {}
                Ok(false) => return Ok(Flush::NotKept(*after)),
                // Nothing is acknowledged that the disk did not take.
                Err(_) => return Err(Ended),
            }
            match self.stream.try_write(chunk) {
                Ok(0) => return Err(Ended),
                Ok(written) => {
                    self.queued = self.queued.saturating_sub(written);
                    chunk.advance(written);
                    if chunk.is_empty() {
                        self.chunks.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Flush::Blocked);
                }
                Err(_) => return Err(Ended),
            }
        }
        Ok(Flush::Empty)
    }

    pub(super) async fn writable(&self) -> Result<(), Ended> {
        self.stream.writable().await.map_err(|_| Ended)
    }

    pub(super) async fn write_whole(&mut self, mut bytes: Bytes) -> Result<(), Ended> {
        self.stream
            .write_all_buf(&mut bytes)
            .await
            .map_err(|_| Ended)?;
        self.shut_down().await;
        Ok(())
    }

    /// Lets the last bytes arrive before the socket goes.
    pub(super) async fn shut_down(&mut self) {
        let _ = self.stream.shutdown().await;
    }
}
