//! Links over plain TCP, for tests with real processes: whoever connects is believed.
//!
//! A connection carries frames one way. It begins with the sender's number and address, so that the other
//! side knows the way back; every frame has its length before it.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::network::Links;
use crate::types::MemberId;

/// Bytes of a frame at most.
const FRAME: usize = 64 << 20;

/// Bytes of an address at most.
const ADDRESS: usize = 1024;

/// Frames that wait for a connection.
const QUEUE: usize = 256;

const CONNECT: Duration = Duration::from_secs(1);

/// Links of one member over TCP.
pub struct Tcp {
    me: MemberId,
    address: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    out: HashMap<MemberId, Out>,
    /// Where members that connected said they are reached.
    heard: HashMap<MemberId, String>,
}

struct Out {
    address: String,
    queue: mpsc::Sender<Bytes>,
    down: Arc<AtomicBool>,
}

impl Tcp {
    /// Links of a member that is reached at `address`.
    pub fn new(me: MemberId, address: String) -> Arc<Self> {
        Arc::new(Tcp {
            me,
            address,
            state: Mutex::default(),
        })
    }

    /// Takes connections until the task is ended, and hands their frames on.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        receiver: Arc<dyn Fn(MemberId, Bytes) + Send + Sync>,
    ) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (tcp, receiver) = (self.clone(), receiver.clone());
                    tokio::spawn(async move {
                        if let Err(error) = tcp.read(stream, receiver).await {
                            tracing::debug!(%error, "a link ended");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "no link can be taken now");
                    tokio::time::sleep(CONNECT).await;
                }
            }
        }
    }

    async fn read(
        &self,
        mut stream: TcpStream,
        receiver: Arc<dyn Fn(MemberId, Bytes) + Send + Sync>,
    ) -> io::Result<()> {
        let from = stream.read_u64().await?;
        let address = read_frame(&mut stream, ADDRESS).await?;
        let address = String::from_utf8_lossy(&address).into_owned();
        self.state.lock().heard.insert(from, address);
        loop {
            let frame = read_frame(&mut stream, FRAME).await?;
            receiver(from, frame);
        }
    }
}

impl std::fmt::Debug for Tcp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tcp")
            .field("me", &self.me)
            .finish_non_exhaustive()
    }
}

impl Links for Tcp {
    fn send(&self, to: MemberId, address: &str, frame: Bytes) -> bool {
        let mut state = self.state.lock();
        let address = state
            .heard
            .get(&to)
            .map_or(address, String::as_str)
            .to_string();
        if address.is_empty() || frame.len() > FRAME {
            return false;
        }
        let out = state.out.entry(to).or_insert_with(|| self.open(&address));
        if out.address != address {
            *out = self.open(&address);
        }
        // The frame goes even to one that did not answer the last time: it is what tries again.
        out.queue.try_send(frame).is_ok() && !out.down.load(Ordering::Relaxed)
    }
}

impl Tcp {
    fn open(&self, address: &str) -> Out {
        let (queue, frames) = mpsc::channel(QUEUE);
        let down = Arc::new(AtomicBool::new(false));
        tokio::spawn(write(
            self.me,
            self.address.clone(),
            address.to_string(),
            frames,
            down.clone(),
        ));
        Out {
            address: address.to_string(),
            queue,
            down,
        }
    }
}

/// Sends what waits, and drops it while there is no connection.
async fn write(
    me: MemberId,
    own: String,
    to: String,
    mut frames: mpsc::Receiver<Bytes>,
    down: Arc<AtomicBool>,
) {
    let mut open: Option<TcpStream> = None;
    while let Some(frame) = frames.recv().await {
        let connected = match open.take() {
            Some(stream) => Ok(stream),
            None => connect(me, &own, &to).await,
        };
        let sent = match connected {
            Ok(mut stream) => write_frame(&mut stream, &frame).await.map(|()| stream),
            Err(e) => Err(e),
        };
        down.store(sent.is_err(), Ordering::Relaxed);
        match sent {
            Ok(stream) => open = Some(stream),
            Err(_) => while frames.try_recv().is_ok() {},
        }
    }
}

async fn connect(me: MemberId, own: &str, to: &str) -> io::Result<TcpStream> {
    let connecting = tokio::time::timeout(CONNECT, TcpStream::connect(to));
    let mut stream = connecting.await.map_err(io::Error::from)??;
    stream.set_nodelay(true)?;
    stream.write_u64(me).await?;
    write_frame(&mut stream, own.as_bytes()).await?;
    Ok(stream)
}

async fn write_frame(stream: &mut TcpStream, frame: &[u8]) -> io::Result<()> {
    let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
    let mut bytes = Vec::with_capacity(frame.len() + 4);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(frame);
    stream.write_all(&bytes).await
}

async fn read_frame(stream: &mut TcpStream, most: usize) -> io::Result<Bytes> {
    let length = stream.read_u32().await? as usize;
    if length > most {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a frame is too long",
        ));
    }
    // Grown by what arrives: a length alone allocates nothing.
    let mut frame = Vec::new();
    (&mut *stream)
        .take(length as u64)
        .read_to_end(&mut frame)
        .await?;
    if frame.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(frame.into())
}
