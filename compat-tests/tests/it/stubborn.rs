//! A raw client that comes back after each loss, as every client library does.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use causeway_compat_tests::raw::zookeeper::{
    Client, ConnectRequest, ConnectResponse, Event, Greeting, Received, Reply, Request, op,
    open_acl,
};

const TIMEOUT: Duration = Duration::from_secs(20);
/// An election takes some seconds here, and the client's session has to outlive it.
pub(crate) const LIMIT: Duration = Duration::from_secs(18);

pub(crate) fn create(path: &str, data: &[u8], flags: i32) -> Request {
    Request::Create {
        op: op::CREATE2,
        path: path.to_string(),
        data: Some(data.to_vec()),
        acl: Some(open_acl()),
        flags,
        ttl: None,
    }
}

pub(crate) fn exists(path: &str) -> Request {
    Request::Read {
        op: op::EXISTS,
        path: path.to_string(),
        watch: false,
    }
}

/// Comes back with its session, its last zxid and its watch, and asks again, until it is told that the session is
/// gone or the time is over.
pub(crate) struct Stubborn {
    address: String,
    pub(crate) session: ConnectResponse,
    client: Client,
    pub(crate) last_zxid: i64,
    watched: Option<String>,
    events: Vec<Event>,
}

impl Stubborn {
    pub(crate) fn new(address: &str) -> Result<Stubborn> {
        match Client::connect(address, &ConnectRequest::new(TIMEOUT), LIMIT)? {
            Greeting::Answered(client, session) => Ok(Stubborn {
                address: address.to_string(),
                session,
                client,
                last_zxid: 0,
                watched: None,
                events: Vec::new(),
            }),
            Greeting::Closed => bail!("closed in the first handshake"),
        }
    }

    pub(crate) fn watch(&mut self, path: &str) -> Result<()> {
        self.watched = Some(path.to_string());
        let read = Request::Read {
            op: op::GET_DATA,
            path: path.to_string(),
            watch: true,
        };
        let reply = self.call(&read)?;
        ensure!(reply.error == 0, "{reply:?}");
        Ok(())
    }

    pub(crate) fn call(&mut self, request: &Request) -> Result<Reply> {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(reply) = self.attempt(request)? {
                return Ok(reply);
            }
            ensure!(Instant::now() < end, "no answer within {LIMIT:?}");
            self.come_back(end)?;
        }
    }

    /// `None` when the connection is lost.
    pub(crate) fn attempt(&mut self, request: &Request) -> Result<Option<Reply>> {
        let Ok(xid) = self.client.send(request) else {
            return Ok(None);
        };
        loop {
            match self.client.receive(LIMIT) {
                Ok(Received::Event(event)) => self.take(event),
                Ok(Received::Reply(reply)) => {
                    ensure!(reply.xid == xid, "a reply to another request: {reply:?}");
                    self.last_zxid = self.last_zxid.max(reply.zxid);
                    return Ok(Some(reply));
                }
                Ok(Received::Closed) | Err(_) => return Ok(None),
                Ok(Received::Nothing) => bail!("neither an answer nor an end within {LIMIT:?}"),
            }
        }
    }

    pub(crate) fn come_back(&mut self, end: Instant) -> Result<()> {
        let request = ConnectRequest {
            session_id: self.session.session_id,
            password: self.session.password.clone(),
            last_zxid_seen: self.last_zxid,
            ..ConnectRequest::new(TIMEOUT)
        };
        while Instant::now() < end {
            if let Ok(Greeting::Answered(client, response)) =
                Client::connect(&self.address, &request, LIMIT)
            {
                ensure!(!response.is_expired(), "the session is said to be over");
                ensure!(response.session_id == self.session.session_id);
                self.client = client;
                let Some(path) = &self.watched else {
                    return Ok(());
                };
                let again = Request::SetWatches {
                    zxid: self.last_zxid,
                    data: vec![path.clone()],
                    exist: Vec::new(),
                    child: Vec::new(),
                    persistent: None,
                };
                if self.attempt(&again)?.is_some() {
                    return Ok(());
                }
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        bail!("cannot come back within {LIMIT:?}")
    }

    fn take(&mut self, event: Event) {
        if self.watched.as_deref() == Some(event.path.as_str()) {
            self.watched = None;
        }
        self.events.push(event);
    }

    /// Waits for the event of a watch: one, and only one.
    pub(crate) fn event(&mut self, path: &str) -> Result<()> {
        let end = Instant::now() + LIMIT;
        while self.events.is_empty() {
            match self.client.receive(Duration::from_millis(500)) {
                Ok(Received::Event(event)) => self.take(event),
                Ok(Received::Nothing) => {}
                Ok(Received::Closed) | Err(_) => self.come_back(end)?,
                Ok(other) => bail!("{other:?} while waiting for an event"),
            }
            ensure!(Instant::now() < end, "no event within {LIMIT:?}");
        }
        let events = std::mem::take(&mut self.events);
        ensure!(events.len() == 1 && events[0].path == path, "{events:?}");
        Ok(())
    }
}
