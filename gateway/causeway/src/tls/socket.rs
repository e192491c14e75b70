//! A connection's bytes, encrypted or not: one type for both, so that what is above is written once and plain
//! text pays for a branch and nothing else.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_rustls::server::TlsStream;

/// A client's connection.
pub enum Socket {
    /// As it comes.
    Plain(TcpStream),
    /// After its TLS handshake.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Socket {
    /// The certificate that the client has proved to own, in DER.
    pub fn client_certificate(&self) -> Option<&[u8]> {
        match self {
            Socket::Plain(_) => None,
            Socket::Tls(stream) => {
                let chain = stream.get_ref().1.peer_certificates()?;
                chain.first().map(AsRef::as_ref)
            }
        }
    }

    /// Two directions that are moved apart from each other.
    pub fn into_split(self) -> (Reader, Writer) {
        match self {
            Socket::Plain(stream) => {
                let (read, write) = stream.into_split();
                (Reader::Plain(read), Writer::Plain(write))
            }
            Socket::Tls(stream) => {
                let (read, write) = tokio::io::split(*stream);
                (Reader::Tls(read), Writer::Tls(write))
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Socket::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Socket::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Socket::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Socket::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Socket::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// Bytes taken from a plain socket at a time.
const READ: usize = 64 * 1024;

/// Room for what a TLS connection reads at a time.
const TLS_READ: usize = 4096;

thread_local! {
    /// Where a read ends before its bytes go to the connection's own buffer. So an idle connection has no buffer, and
    /// a value that is kept holds on to the bytes that came with it and not to a whole buffer.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ]);
}

/// The direction from the client.
pub enum Reader {
    /// As it comes.
    Plain(OwnedReadHalf),
    /// Decrypted.
    Tls(ReadHalf<TlsStream<TcpStream>>),
}

impl Reader {
    /// Reads some more; 0 at the end. Nothing is lost when the future is dropped.
    pub async fn read_into(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Reader::Plain(half) => poll_fn(|cx| poll_into(half, buffer, cx)).await,
            Reader::Tls(half) => {
                buffer.reserve(TLS_READ);
                half.read_buf(buffer).await
            }
        }
    }
}

/// The direction to the client.
pub enum Writer {
    /// As it is.
    Plain(OwnedWriteHalf),
    /// Encrypted.
    Tls(WriteHalf<TlsStream<TcpStream>>),
}

impl Writer {
    /// Takes as much as it can now; `WouldBlock` when that is nothing. What was taken may still wait here,
    /// encrypted: [`Writer::try_flush`].
    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Writer::Plain(half) => half.try_write(bytes),
            Writer::Tls(half) => now(|cx| Pin::new(half).poll_write(cx, bytes)),
        }
    }

    /// Likewise, from several pieces.
    pub fn try_write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Writer::Plain(half) => half.try_write_vectored(pieces),
            Writer::Tls(half) => now(|cx| Pin::new(half).poll_write_vectored(cx, pieces)),
        }
    }

    /// Hands to the socket what was taken; `WouldBlock` when it does not take all of it now.
    pub fn try_flush(&mut self) -> io::Result<()> {
        match self {
            Writer::Plain(_) => Ok(()),
            Writer::Tls(half) => now(|cx| Pin::new(half).poll_flush(cx)),
        }
    }

    /// Waits until more can be written.
    pub async fn writable(&mut self) -> io::Result<()> {
        match self {
            Writer::Plain(half) => half.writable().await,
            // Nothing that is encrypted waits any more: then there is room.
            Writer::Tls(half) => half.flush().await,
        }
    }

    /// Writes everything.
    pub async fn write_whole(&mut self, mut bytes: Bytes) -> io::Result<()> {
        match self {
            Writer::Plain(half) => half.write_all_buf(&mut bytes).await,
            Writer::Tls(half) => {
                half.write_all_buf(&mut bytes).await?;
                half.flush().await
            }
        }
    }

    /// Says that nothing more will come.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        match self {
            Writer::Plain(half) => half.shutdown().await,
            Writer::Tls(half) => half.shutdown().await,
        }
    }
}

/// Moves what is there into `buffer`. By polling: a read that does not fill the scratch tells tokio that nothing is left,
/// which spares the system call that would find that out.
fn poll_into(
    half: &mut OwnedReadHalf,
    buffer: &mut BytesMut,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    SCRATCH.with_borrow_mut(|scratch| {
        let mut scratch = ReadBuf::new(scratch);
        ready!(Pin::new(half).poll_read(cx, &mut scratch))?;
        let bytes = scratch.filled();
        if buffer.is_empty() {
            // What the frames taken before still hold is theirs alone from now on.
            *buffer = BytesMut::from(bytes);
        } else {
            buffer.extend_from_slice(bytes);
        }
        Poll::Ready(Ok(bytes.len()))
    })
}

/// Whether to try again later.
pub fn is_busy(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Asks without waiting. Nobody is woken for what was not ready; who wants to be waits afterwards.
fn now<T>(poll: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<T>>) -> io::Result<T> {
    match poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}
