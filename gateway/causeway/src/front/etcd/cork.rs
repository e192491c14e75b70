//! A connection's writes, put together. h2 writes and flushes after each frame of some length: an answer of two frames and
//! a status would be three system calls, each of which wakes the client. Here all that one turn of the connection writes
//! leaves behind that turn, at once.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that wait before a turn's end is not waited for.
const MOST: usize = 64 << 10;

/// What an idle connection keeps of its buffer.
const KEPT: usize = 4 << 10;

/// A socket as a connection has it.
pub(super) struct Cork<S>(Arc<Mutex<Corked<S>>>);

/// The other end, from which what was written leaves.
pub(super) struct Outlet<S>(Arc<Mutex<Corked<S>>>);

struct Corked<S> {
    socket: S,
    waiting: Vec<u8>,
    sent: usize,
}

/// Both ends of a socket.
pub(super) fn cork<S>(socket: S) -> (Cork<S>, Outlet<S>) {
    let corked = Arc::new(Mutex::new(Corked {
        socket,
        waiting: Vec::new(),
        sent: 0,
    }));
    (Cork(corked.clone()), Outlet(corked))
}

impl<S: AsyncWrite + Unpin> Outlet<S> {
    /// Drives what reads and writes through the cork.
    pub(super) async fn drive<C, E>(&self, mut connection: Pin<&mut C>) -> Result<(), String>
    where
        C: Future<Output = Result<(), E>>,
        E: std::fmt::Display,
    {
        poll_fn(|cx| {
            let done = connection.as_mut().poll(cx);
            if let Poll::Ready(Err(error)) = self.0.lock().write_out(cx) {
                return Poll::Ready(Err(error.to_string()));
            }
            done.map_err(|error| error.to_string())
        })
        .await
    }
}

impl<S: AsyncWrite + Unpin> Corked<S> {
    /// Pending: the caller is woken when more can be written.
    fn write_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self
            .waiting
            .get(self.sent..)
            .filter(|rest| !rest.is_empty())
        {
            match ready!(Pin::new(&mut self.socket).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.sent += written,
            }
        }
        self.waiting.clear();
        self.waiting.shrink_to(KEPT);
        self.sent = 0;
        // What the socket itself keeps: that of TLS.
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    /// Room for more.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.waiting.len() < MOST {
            return Poll::Ready(Ok(()));
        }
        self.write_out(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Cork<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().socket).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Cork<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut corked = self.0.lock();
        ready!(corked.poll_room(cx))?;
        let before = corked.waiting.len();
        for piece in pieces {
            corked.waiting.extend_from_slice(piece);
        }
        Poll::Ready(Ok(corked.waiting.len() - before))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// At the end of the turn.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut corked = self.0.lock();
        ready!(corked.write_out(cx))?;
        Pin::new(&mut corked.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn what_a_turn_writes_leaves_behind_it_whole_and_in_order() {
        let (ours, mut theirs) = tokio::io::duplex(10_000);
        let (mut cork, outlet) = cork(ours);
        let piece = |n: u8| vec![n; 3000];
        let turns = async {
            for n in 0..200 {
                cork.write_all(&piece(n)).await?;
                cork.flush().await?;
                if n % 7 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            cork.write_all(b"end").await?;
            cork.shutdown().await
        };
        let mut turns = std::pin::pin!(turns);
        let mut read = Vec::new();
        let (driven, got) =
            tokio::join!(outlet.drive(turns.as_mut()), theirs.read_to_end(&mut read));
        assert_eq!((driven, got.ok()), (Ok(()), Some(600_003)));
        let want: Vec<u8> = (0..200).flat_map(piece).chain(*b"end").collect();
        assert!(read == want);
    }

    #[tokio::test]
    async fn a_socket_that_breaks_ends_the_connection() {
        let (ours, theirs) = tokio::io::duplex(10);
        drop(theirs);
        let (mut cork, outlet) = cork(ours);
        let turns = async {
            cork.write_all(b"lost").await?;
            std::future::pending::<io::Result<()>>().await
        };
        let driven = outlet.drive(std::pin::pin!(turns)).await;
        assert!(driven.is_err());
    }
}
