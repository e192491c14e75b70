//! A TCP proxy that passes bytes on as they come and looks at them while it does.
//!
//! Nothing is cut, joined, answered or held back: what a client sees is what the server sent, to the byte, and an end
//! or a reset of one side is one of the other. A message is written down before its last byte is passed on, so that
//! the order of the log never contradicts what client and server knew.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::names::Context;
use super::transcript::Side;
use super::value::Value;
use crate::workers::lock;

/// Something that a decoder found.
#[derive(Debug, Clone)]
pub struct Element {
    /// The stream in the connection, counted from 1; 0 is the connection itself.
    pub stream: u32,
    /// Who sent it.
    pub side: Side,
    /// As in a transcript.
    pub kind: String,
    /// As in a transcript, but with what was chosen not yet named.
    pub value: Value,
    /// What it is about.
    pub context: Context,
    /// It only repeats that session or lease is alive.
    pub repeated: bool,
}

impl Element {
    /// An ordinary one.
    pub fn new(stream: u32, side: Side, kind: impl Into<String>, value: Value) -> Element {
        Element {
            stream,
            side,
            kind: kind.into(),
            value,
            context: Context::default(),
            repeated: false,
        }
    }
}

/// Finds the messages in the bytes of one connection. It never fails: what it does not understand it gives back as
/// bytes.
pub trait Decode: Send {
    /// More bytes of one side.
    fn bytes(&mut self, side: Side, bytes: &[u8], found: &mut Vec<Element>);

    /// One side has ended; what is left of it is no whole message.
    fn end(&mut self, side: Side, found: &mut Vec<Element>);
}

/// An element with its time and its connection.
#[derive(Debug, Clone)]
pub struct Logged {
    /// When it was seen.
    pub at: Instant,
    /// The connection, counted from 1; 0 is a note of the bench.
    pub connection: u32,
    /// What was seen.
    pub element: Element,
}

/// The log of all connections of a recorder.
pub type Log = Arc<Mutex<Vec<Logged>>>;

/// A running proxy.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    upstream: String,
    log: Log,
    stopping: AtomicBool,
    sockets: Mutex<Vec<TcpStream>>,
    pumps: Mutex<Vec<JoinHandle<()>>>,
}

const CONNECT: Duration = Duration::from_secs(10);

impl Proxy {
    /// Listens on a free port of loopback for connections to `upstream`.
    pub fn start(upstream: &str, log: Log, decoder: fn() -> Box<dyn Decode>) -> Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            upstream: upstream.to_string(),
            log,
            stopping: AtomicBool::new(false),
            sockets: Mutex::default(),
            pumps: Mutex::default(),
        });
        let acceptor = {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || accept(&listener, &shared, decoder))
        };
        Ok(Proxy {
            address,
            shared,
            acceptor: Some(acceptor),
        })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends every connection and waits until nothing more is written to the log.
    pub fn stop(&mut self) {
        let Some(acceptor) = self.acceptor.take() else {
            return;
        };
        self.shared.stopping.store(true, Ordering::SeqCst);
        // Wakes the acceptor, which then sees that it is to stop.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        let _ = acceptor.join();
        for socket in lock(&self.shared.sockets).drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        let pumps: Vec<_> = lock(&self.shared.pumps).drain(..).collect();
        for pump in pumps {
            let _ = pump.join();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop();
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>, decoder: fn() -> Box<dyn Decode>) {
    let mut connection = 0;
    for client in listener.incoming() {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let Ok(client) = client else { continue };
        connection += 1;
        let decoder: Connection = Arc::new(Mutex::new(decoder()));
        let shared = Arc::clone(shared);
        std::thread::spawn(move || serve(client, connection, &shared, decoder));
    }
}

type Connection = Arc<Mutex<Box<dyn Decode>>>;

fn serve(client: TcpStream, connection: u32, shared: &Arc<Shared>, decoder: Connection) {
    let put = |kind: &str, side| {
        lock(&shared.log).push(Logged {
            at: Instant::now(),
            connection,
            element: Element::new(0, side, kind, Value::Null),
        });
    };
    put("open", Side::Client);
    let Ok(server) = connect(&shared.upstream) else {
        put("refused", Side::Server);
        reset(&client);
        return;
    };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (Ok(client_too), Ok(server_too)) = (client.try_clone(), server.try_clone()) else {
        return;
    };
    {
        let mut sockets = lock(&shared.sockets);
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        sockets.extend(client.try_clone().into_iter().chain(server.try_clone()));
    }
    let back = {
        let (shared, decoder) = (Arc::clone(shared), Arc::clone(&decoder));
        std::thread::spawn(move || {
            pump(
                &server_too,
                &client_too,
                Side::Server,
                connection,
                &shared,
                &decoder,
            );
        })
    };
    let forth = {
        let shared = Arc::clone(shared);
        std::thread::spawn(move || {
            pump(
                &client,
                &server,
                Side::Client,
                connection,
                &shared,
                &decoder,
            );
        })
    };
    lock(&shared.pumps).extend([back, forth]);
}

fn connect(upstream: &str) -> Result<TcpStream> {
    let address = upstream
        .to_socket_addrs()?
        .next()
        .context("no such address")?;
    Ok(TcpStream::connect_timeout(&address, CONNECT)?)
}

fn pump(
    mut from: &TcpStream,
    mut to: &TcpStream,
    side: Side,
    connection: u32,
    shared: &Shared,
    decoder: &Connection,
) {
    let write = |found: Vec<Element>| {
        let at = Instant::now();
        // What the recorder ends itself when it stops is no part of the exchange.
        if !shared.stopping.load(Ordering::SeqCst) {
            lock(&shared.log).extend(found.into_iter().map(|element| Logged {
                at,
                connection,
                element,
            }));
        }
    };
    let mut chunk = vec![0; 64 << 10];
    loop {
        match from.read(&mut chunk) {
            Ok(count @ 1..) => {
                {
                    let mut found = Vec::new();
                    let mut decoder = lock(decoder);
                    decoder.bytes(side, &chunk[..count], &mut found);
                    write(found);
                }
                if to.write_all(&chunk[..count]).is_err() {
                    // The other direction learns of it as well, and says how the connection ended.
                    let _ = from.shutdown(Shutdown::Both);
                    return;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            ended => {
                let mut found = Vec::new();
                lock(decoder).end(side, &mut found);
                let kind = if ended.is_ok() { "close" } else { "reset" };
                found.push(Element::new(0, side, kind, Value::Null));
                write(found);
                if ended.is_ok() {
                    let _ = to.shutdown(Shutdown::Write);
                } else {
                    reset(to);
                    let _ = to.shutdown(Shutdown::Both);
                }
                return;
            }
        }
    }
}

/// Makes the end of a connection a reset.
fn reset(stream: &TcpStream) {
    let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
