//! ZooKeeper sessions as cheap as they can be: what is measured is the server, and a client library's own work is
//! not. A session sends what it is told and gives back frames; all of them share one thread.

use anyhow::{Context as _, Result, bail, ensure};
use bytes::{Buf as _, Bytes, BytesMut};
use causeway_compat_tests::raw::zookeeper::op;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::socket::send_all;

/// xid of an event.
const NOTIFICATION: i32 = -1;
/// xid of a ping.
const PING: i32 = -2;
/// No frame that a measurement asks for is larger.
const MAX_FRAME: usize = 1 << 20;

/// One session on one connection.
pub struct Session {
    stream: TcpStream,
    input: BytesMut,
    output: Vec<u8>,
    xid: i32,
}

/// One frame of the server.
pub struct Frame {
    xid: i32,
    /// The error code of a reply.
    pub error: i32,
    /// What follows the header.
    pub body: Bytes,
}

impl Frame {
    /// Whether it is an event.
    pub fn is_event(&self) -> bool {
        self.xid == NOTIFICATION
    }
}

impl Session {
    /// Connects with a new session.
    pub async fn open(address: &str, timeout_ms: i32) -> Result<Session> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut session = Session {
            stream,
            input: BytesMut::new(),
            output: Vec::new(),
            xid: 0,
        };
        let mut hello = vec![0; 4 + 8];
        hello.extend_from_slice(&timeout_ms.to_be_bytes());
        hello.extend_from_slice(&[0; 8]);
        hello.extend_from_slice(&16_i32.to_be_bytes());
        hello.extend_from_slice(&[0; 17]);
        session.put(&hello);
        session.send().await?;
        let reply = session.payload().await?;
        let granted = reply.get(4..8).context("a short ConnectResponse")?;
        ensure!(granted != [0; 4], "the server took no session");
        Ok(session)
    }

    /// Sends a request and gives its reply, which has to be the next frame and no error.
    pub async fn call(&mut self, op: i32, body: &[u8]) -> Result<Bytes> {
        let frame = self.ask(op, body).await?;
        ensure!(frame.error == 0, "operation {op}: error {}", frame.error);
        Ok(frame.body)
    }

    /// Sends a request and gives its reply, which has to be the next frame.
    pub async fn ask(&mut self, op: i32, body: &[u8]) -> Result<Frame> {
        self.xid += 1;
        let xid = if op == op::PING { PING } else { self.xid };
        let mut payload = xid.to_be_bytes().to_vec();
        payload.extend_from_slice(&op.to_be_bytes());
        payload.extend_from_slice(body);
        self.put(&payload);
        self.send().await?;
        let frame = self.frame().await?;
        ensure!(frame.xid == xid, "xid {} instead of {xid}", frame.xid);
        Ok(frame)
    }

    /// The next frame.
    pub async fn frame(&mut self) -> Result<Frame> {
        let mut payload = self.payload().await?;
        ensure!(payload.len() >= 16, "a frame of {} bytes", payload.len());
        let xid = payload.get_i32();
        payload.advance(8);
        Ok(Frame {
            xid,
            error: payload.get_i32(),
            body: payload,
        })
    }

    /// Makes a node that everybody may use; one that is there already is as good.
    pub async fn create(&mut self, path: &str, data: &[u8], flags: i32) -> Result<()> {
        match self
            .ask(op::CREATE, &create_body(path, data, flags))
            .await?
            .error
        {
            0 | -110 => Ok(()),
            error => bail!("create {path}: error {error}"),
        }
    }

    fn put(&mut self, payload: &[u8]) {
        self.output
            .extend_from_slice(&(payload.len() as u32).to_be_bytes());
        self.output.extend_from_slice(payload);
    }

    async fn send(&mut self) -> Result<()> {
        send_all(&self.stream, &mut self.output).await
    }

    async fn payload(&mut self) -> Result<Bytes> {
        loop {
            if let Some(length) = self.input.first_chunk::<4>() {
                let length = u32::from_be_bytes(*length) as usize;
                ensure!(length < MAX_FRAME, "a frame of {length} bytes");
                if self.input.len() >= 4 + length {
                    self.input.advance(4);
                    return Ok(self.input.split_to(length).freeze());
                }
            }
            // Not `try_read`: a read that leaves room tells tokio that nothing is left, which spares a system call.
            self.input.reserve(4096);
            let read = self.stream.read_buf(&mut self.input).await?;
            ensure!(read > 0, "the server closed the connection");
        }
    }
}

/// The body of a read: a path and whether it leaves a watch.
pub fn read_body(path: &str, watch: bool) -> Vec<u8> {
    let mut body = Vec::new();
    text(&mut body, path.as_bytes());
    body.push(u8::from(watch));
    body
}

/// The body of a create with an ACL that lets everybody do everything.
pub fn create_body(path: &str, data: &[u8], flags: i32) -> Vec<u8> {
    let mut body = Vec::new();
    text(&mut body, path.as_bytes());
    text(&mut body, data);
    body.extend_from_slice(&1_i32.to_be_bytes());
    body.extend_from_slice(&31_i32.to_be_bytes());
    text(&mut body, b"world");
    text(&mut body, b"anyone");
    body.extend_from_slice(&flags.to_be_bytes());
    body
}

/// The body of a delete of any version.
pub fn delete_body(path: &str) -> Vec<u8> {
    let mut body = Vec::new();
    text(&mut body, path.as_bytes());
    body.extend_from_slice(&(-1_i32).to_be_bytes());
    body
}

/// The body of an addWatch for a node and everything below it.
pub fn recursive_body(path: &str) -> Vec<u8> {
    let mut body = Vec::new();
    text(&mut body, path.as_bytes());
    body.extend_from_slice(&1_i32.to_be_bytes());
    body
}

fn text(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    body.extend_from_slice(bytes);
}
