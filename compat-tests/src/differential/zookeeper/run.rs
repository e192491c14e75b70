//! Plays a script on one server and notes everything that each client saw.
//!
//! Behind each step stands a barrier: every connected client sends sync and a read of the root and waits for
//! both. An event for a change comes before any reply that reveals the change, and a read behind a sync
//! reveals all that was done before it was sent; the writer has its reply by then. So when the barrier is
//! over, every event of the step has arrived, and one that comes later belongs to another step or is late.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::normalise::{self, Record, Sight, What};
use super::op::{Op, SeenZxid};
use crate::differential::{Run, Script, Seen};
use crate::raw::zookeeper::{
    Body, Client, ConnectRequest, ConnectResponse, Greeting, Received, Reply, Request, create, op,
};

/// A reply that takes longer is taken for none.
const PATIENCE: Duration = Duration::from_secs(8);
/// Replies behind which real servers close.
const UNIMPLEMENTED: i32 = -6;
const AUTH_FAILED: i32 = -115;
/// How long the end of a connection is waited for behind a reply that announces it.
const FAREWELL: Duration = Duration::from_secs(2);
/// Where ZooKeeper keeps quotas: below it each node with one has its path.
pub(super) const QUOTA: &str = "/zookeeper/quota";
/// While a session expires, the others ping this often.
const PING: Duration = Duration::from_millis(700);

/// Runs `script` on the server at `address`.
pub(super) fn run(script: &Script<Op>, address: &str, run: &Run) -> Result<Vec<Seen>> {
    let place = script
        .settings
        .get("place")
        .map_or("general", String::as_str);
    let root = match place {
        "general" => format!("/{}", run.root),
        "registrations" => format!("/discovery/{}", run.root),
        other => bail!("set place general or registrations, not {other}"),
    };
    let stats_alone = match script.settings.get("zxids").map(String::as_str) {
        None | Some("all") => false,
        Some("stats") => true,
        Some(other) => bail!("set zxids all or stats, not {other}"),
    };
    let mut stage = Stage::new(address, root, script.clients)?;
    stage.record.stats_alone = stats_alone;
    for client in 0..script.clients {
        stage
            .connect(client, 30_000, Some(false))
            .context("the first connect")?;
    }
    // What the first connects showed is the same for every script, and their order is no client's business.
    stage.record.sights.clear();
    for (index, step) in script.steps.iter().enumerate() {
        ensure!(
            Instant::now() < run.deadline,
            "out of time in step {}",
            index + 1
        );
        stage.step = index;
        stage.record.rounds.push(step.is_round());
        stage.play(&step.ops)?;
        stage.barrier()?;
    }
    stage.leave();
    Ok(normalise::normalise(stage.record))
}

struct Stage<'a> {
    address: &'a str,
    step: usize,
    players: Vec<Player>,
    record: Record,
}

#[derive(Default)]
struct Player {
    connection: Option<Client>,
    session: Option<Session>,
    seen_zxid: i64,
    /// Whether the last reply is one behind which real servers close, though not at once: a request sent in
    /// between may still be answered, which is chance (ZooKeeper: UnimplementedRequestProcessor).
    closing: bool,
    /// A connect request that was refused while this connection was there, and may have ended it.
    disputed: Option<String>,
}

#[derive(Clone)]
struct Session {
    id: i64,
    password: Option<Vec<u8>>,
    timeout: i32,
}

impl<'a> Stage<'a> {
    /// Makes the root with a session of its own.
    fn new(address: &'a str, root: String, clients: usize) -> Result<Stage<'a>> {
        let request = ConnectRequest::new(Duration::from_secs(30));
        let Greeting::Answered(mut maker, _) = Client::connect(address, &request, PATIENCE)? else {
            bail!("{address} refused a session");
        };
        let mut first_zxid = 0;
        let mut path = String::new();
        for segment in root.split('/').skip(1) {
            path = format!("{path}/{segment}");
            let request = create(op::CREATE, &path, b"", 0);
            let (_, reply) = maker.call(&request, PATIENCE)?;
            // -110: the parent is there from an earlier run.
            ensure!(
                reply.error == 0 || (reply.error == -110 && path != root),
                "create {path}: {reply:?}"
            );
            first_zxid = reply.zxid;
        }
        let _ = maker.call(
            &Request::Empty {
                op: op::CLOSE_SESSION,
            },
            PATIENCE,
        );
        Ok(Stage {
            address,
            step: 0,
            players: (0..clients).map(|_| Player::default()).collect(),
            record: Record {
                root,
                first_zxid,
                stats_alone: false,
                sessions: BTreeMap::new(),
                rounds: Vec::new(),
                sights: Vec::new(),
            },
        })
    }

    fn note(&mut self, client: usize, request: &str, what: What) {
        self.record.sights.push(Sight {
            step: self.step,
            client,
            request: request.to_string(),
            what,
        });
    }

    fn play(&mut self, ops: &[(usize, Op)]) -> Result<()> {
        let mut asks: Vec<(usize, Vec<(String, Request)>)> = Vec::new();
        for (client, op) in ops {
            let text = op.to_string();
            match op {
                Op::Ask(request) => {
                    let request = self.addressed(request, self.players[*client].seen_zxid);
                    match asks.iter_mut().find(|(who, _)| who == client) {
                        Some((_, list)) => list.push((text, request)),
                        None => asks.push((*client, vec![(text, request)])),
                    }
                }
                // In the place where it stands: what was asked before is sent before.
                _ => {
                    self.ask(std::mem::take(&mut asks))?;
                    self.link(*client, op, &text)?;
                }
            }
        }
        self.ask(asks)
    }

    /// Sends everything, then waits for every reply.
    fn ask(&mut self, asks: Vec<(usize, Vec<(String, Request)>)>) -> Result<()> {
        let mut waiting = Vec::new();
        for (client, requests) in asks {
            let Some(connection) = &mut self.players[client].connection else {
                for (text, _) in requests {
                    self.note(client, &text, What::NotConnected);
                }
                continue;
            };
            let (texts, requests): (Vec<String>, Vec<Request>) = requests.into_iter().unzip();
            // A connection that the server has closed shows when it is read.
            let xids = connection.send_all(&requests).unwrap_or_default();
            let sent: Vec<(i32, String, i32)> = texts
                .into_iter()
                .zip(&requests)
                .enumerate()
                .map(|(at, (text, request))| {
                    (xids.get(at).copied().unwrap_or(0), text, request.op())
                })
                .collect();
            waiting.push((client, sent));
        }
        for (client, sent) in waiting {
            self.collect(client, sent)?;
        }
        Ok(())
    }

    /// Receives until each of `sent` (xid, text, request number) is answered.
    fn collect(&mut self, client: usize, mut sent: Vec<(i32, String, i32)>) -> Result<()> {
        while !sent.is_empty() {
            let text = sent[0].1.clone();
            match self.receive(client, &text)? {
                Some(reply) => {
                    let at = sent.iter().position(|(xid, ..)| *xid == reply.xid);
                    let (text, op) = match at {
                        Some(at) => {
                            let (_, text, op) = sent.remove(at);
                            (text, op)
                        }
                        None => (text, 0),
                    };
                    // Some that cannot be read take a number and some do not.
                    let cannot_be_read = reply.error == -5;
                    self.note(
                        client,
                        &text,
                        What::Reply {
                            reply,
                            // Nothing with this number was asked.
                            stray: at.is_none(),
                            write: is_write(op) && !cannot_be_read,
                        },
                    );
                    if at.is_none() {
                        self.players[client].connection = None;
                        return Ok(());
                    }
                }
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// The next reply; events on the way are noted. [`None`] when the connection is over, which is noted too.
    fn receive(&mut self, client: usize, text: &str) -> Result<Option<Reply>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let player = &mut self.players[client];
            let Some(connection) = &mut player.connection else {
                return Ok(None);
            };
            let left = deadline.saturating_duration_since(Instant::now());
            match connection.receive(left) {
                Ok(Received::Reply(reply)) => {
                    player.seen_zxid = player.seen_zxid.max(reply.zxid);
                    player.closing = matches!(reply.error, UNIMPLEMENTED | AUTH_FAILED);
                    return Ok(Some(reply));
                }
                Ok(Received::Event(event)) => self.note(client, "event", What::Event(event)),
                Ok(Received::Closed) => {
                    player.connection = None;
                    self.note(client, text, What::Closed);
                    return Ok(None);
                }
                Ok(Received::Nothing) => {
                    player.connection = None;
                    self.note(client, text, What::NoReply);
                    return Ok(None);
                }
                Err(error) => {
                    player.connection = None;
                    self.note(client, text, What::Garbage(format!("{error:#}")));
                    return Ok(None);
                }
            }
        }
    }

    fn link(&mut self, client: usize, op: &Op, text: &str) -> Result<()> {
        match op {
            Op::Ask(_) => {}
            Op::Connect { timeout, read_only } => {
                // One session at a time: an earlier one is closed, not left to expire in the middle of things.
                if self.players[client].session.is_some() {
                    self.close(client, text)?;
                }
                self.connect_as(client, text, *timeout, *read_only)?;
            }
            Op::Reattach { right, zxid } => self.reattach(client, text, *right, *zxid, 30_000)?,
            Op::Drop => {
                let was = self.players[client].connection.take().is_some();
                self.note(
                    client,
                    text,
                    if was { What::Done } else { What::NotConnected },
                );
            }
            Op::Close => self.close(client, text)?,
            Op::Expire => self.expire(client, text)?,
            Op::Hang => self.hang(client, text)?,
            // Not noted: what happens meanwhile may as well happen a moment before.
            Op::Wait(ms) => self.pass(Duration::from_millis(u64::from(*ms)), None)?,
        }
        Ok(())
    }

    fn connect(&mut self, client: usize, timeout: i32, read_only: Option<bool>) -> Result<()> {
        self.connect_as(client, "connect", timeout, read_only)?;
        ensure!(self.players[client].connection.is_some(), "no session");
        Ok(())
    }

    fn connect_as(
        &mut self,
        client: usize,
        text: &str,
        timeout: i32,
        read_only: Option<bool>,
    ) -> Result<()> {
        let request = ConnectRequest {
            timeout,
            read_only,
            ..ConnectRequest::new(Duration::ZERO)
        };
        self.greet(client, text, &request)
    }

    fn reattach(
        &mut self,
        client: usize,
        text: &str,
        right: bool,
        zxid: SeenZxid,
        timeout: i32,
    ) -> Result<()> {
        let player = &self.players[client];
        let Some(session) = player.session.clone() else {
            self.note(client, text, What::NotConnected);
            return Ok(());
        };
        let request = ConnectRequest {
            timeout,
            session_id: session.id,
            password: if right {
                session.password.clone()
            } else {
                Some(vec![1; 16])
            },
            last_zxid_seen: match zxid {
                SeenZxid::True => player.seen_zxid,
                SeenZxid::Zero => 0,
                SeenZxid::Future => i64::MAX / 2,
            },
            ..ConnectRequest::new(Duration::ZERO)
        };
        self.greet(client, text, &request)
    }

    /// Opens a connection. One that is still open is watched until the server closes it; when the new one is
    /// refused, it goes on.
    fn greet(&mut self, client: usize, text: &str, request: &ConnectRequest) -> Result<()> {
        match Client::connect(self.address, request, PATIENCE) {
            Ok(Greeting::Closed) => self.note(client, text, What::Closed),
            Err(error) => self.note(client, text, What::Garbage(format!("{error:#}"))),
            Ok(Greeting::Answered(mut connection, response)) => {
                self.note(
                    client,
                    text,
                    What::Greeting(request.clone(), response.clone()),
                );
                if response.is_expired() {
                    // The server closes behind such an answer.
                    let what = match connection.receive(PATIENCE) {
                        Ok(Received::Closed) => What::Closed,
                        _ => What::NoReply,
                    };
                    self.note(client, text, what);
                    self.players[client].disputed = Some(text.to_string());
                } else {
                    self.attached(client, text, request, response, connection)?;
                }
            }
        }
        Ok(())
    }

    fn attached(
        &mut self,
        client: usize,
        text: &str,
        request: &ConnectRequest,
        response: ConnectResponse,
        connection: Client,
    ) -> Result<()> {
        let number = self
            .record
            .sessions
            .values()
            .filter(|(owner, _)| *owner == client)
            .count();
        self.record
            .sessions
            .entry(response.session_id)
            .or_insert((client, number + 1));
        let player = &mut self.players[client];
        if request.session_id == 0 {
            player.seen_zxid = 0;
        }
        player.session = Some(Session {
            id: response.session_id,
            password: response.password,
            timeout: response.timeout,
        });
        if player.connection.is_some() {
            // The older connection of a session is closed by the server.
            while let Some(reply) = self.receive(client, text)? {
                self.note(
                    client,
                    text,
                    What::Reply {
                        reply,
                        stray: true,
                        write: false,
                    },
                );
            }
        }
        self.players[client].connection = Some(connection);
        Ok(())
    }

    /// Closes the session, over a new connection when there is none.
    fn close(&mut self, client: usize, text: &str) -> Result<()> {
        if self.players[client].connection.is_none() {
            self.reattach(client, text, true, SeenZxid::Zero, 30_000)?;
        }
        let player = &mut self.players[client];
        player.session = None;
        let Some(connection) = &mut player.connection else {
            return Ok(());
        };
        let request = Request::Empty {
            op: op::CLOSE_SESSION,
        };
        let xid = connection.send(&request).unwrap_or(0);
        self.collect(client, vec![(xid, text.to_string(), op::CLOSE_SESSION)])?;
        while let Some(reply) = self.receive(client, text)? {
            self.note(
                client,
                text,
                What::Reply {
                    reply,
                    stray: true,
                    write: false,
                },
            );
        }
        Ok(())
    }

    /// Waits until the session must be over: servers look once a tick, and the shortest timeout is two ticks.
    fn expire(&mut self, client: usize, text: &str) -> Result<()> {
        self.players[client].connection = None;
        self.reattach(client, text, true, SeenZxid::True, 1)?;
        self.players[client].connection = None;
        self.outlive(client)
    }

    /// As [`Stage::expire`], with a connection that is open and silent until the server closes it. What it is told
    /// meanwhile may be lost with it and is not noted.
    fn hang(&mut self, client: usize, text: &str) -> Result<()> {
        self.players[client].connection = None;
        self.reattach(client, text, true, SeenZxid::True, 1)?;
        self.outlive(client)?;
        if let Some(mut connection) = self.players[client].connection.take() {
            let what = loop {
                match connection.receive(PATIENCE) {
                    Ok(Received::Event(_)) => {}
                    Ok(Received::Closed) | Err(_) => break What::Closed,
                    Ok(Received::Reply(_) | Received::Nothing) => break What::NoReply,
                }
            };
            self.note(client, text, what);
        }
        Ok(())
    }

    /// Waits as long as the session of `client`, which says nothing, can last.
    fn outlive(&mut self, client: usize) -> Result<()> {
        let Some(session) = &self.players[client].session else {
            return Ok(());
        };
        let timeout = Duration::from_millis(u64::try_from(session.timeout).unwrap_or(0));
        self.pass(
            timeout + timeout.mul_f64(0.75) + Duration::from_millis(500),
            Some(client),
        )
    }

    /// Lets time pass while everybody but `silent` keeps the session alive.
    fn pass(&mut self, time: Duration, silent: Option<usize>) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            std::thread::sleep(PING.min(end.saturating_duration_since(Instant::now())));
            for other in (0..self.players.len()).filter(|other| Some(*other) != silent) {
                if let Some(connection) = &mut self.players[other].connection {
                    let _ = connection.send(&Request::Empty { op: op::PING });
                    if let Some(reply) = self.receive(other, "ping")? {
                        ensure!(
                            reply.xid == -2,
                            "a reply to {} instead of a ping",
                            reply.xid
                        );
                    }
                }
            }
        }
        Ok(())
    }

    fn barrier(&mut self) -> Result<()> {
        let root = self.record.root.clone();
        let requests = [
            Request::Path {
                op: op::SYNC,
                path: root.clone(),
            },
            Request::Read {
                op: op::EXISTS,
                path: root,
                watch: false,
            },
        ];
        for client in 0..self.players.len() {
            if std::mem::take(&mut self.players[client].closing) {
                self.farewell(client);
            }
        }
        let mut waiting = Vec::new();
        for client in 0..self.players.len() {
            if let Some(connection) = &mut self.players[client].connection {
                waiting.push((client, connection.send_all(&requests).unwrap_or_default()));
            }
        }
        for (client, xids) in waiting {
            let disputed = self.players[client].disputed.take();
            let text = disputed.as_deref().unwrap_or("barrier");
            for (xid, want) in xids.into_iter().zip(["sync", "exists"]) {
                let Some(reply) = self.receive(client, text)? else {
                    break;
                };
                // The root may be gone, deleted by the script.
                let good = reply.xid == xid
                    && match want {
                        "sync" => reply.error == 0 && matches!(reply.body, Body::Path(_)),
                        _ => matches!(
                            (reply.error, &reply.body),
                            (0, Body::Stat(_)) | (-101, Body::Empty)
                        ),
                    };
                if !good {
                    self.note(
                        client,
                        "barrier",
                        What::Reply {
                            reply,
                            stray: true,
                            write: false,
                        },
                    );
                }
            }
        }
        Ok(())
    }

    /// Waits for the end of a connection that was announced; without one the connection goes on.
    fn farewell(&mut self, client: usize) {
        let deadline = Instant::now() + FAREWELL;
        while let Some(connection) = &mut self.players[client].connection {
            match connection.receive(deadline.saturating_duration_since(Instant::now())) {
                Ok(Received::Event(event)) => self.note(client, "event", What::Event(event)),
                Ok(Received::Nothing) => return,
                Ok(Received::Closed) | Err(_) => {
                    self.players[client].connection = None;
                    self.note(client, "barrier", What::Closed);
                }
                Ok(Received::Reply(reply)) => self.note(
                    client,
                    "barrier",
                    What::Reply {
                        reply,
                        stray: true,
                        write: false,
                    },
                ),
            }
        }
    }

    /// Ends every session, so that nothing of this run expires in the middle of the next.
    fn leave(&mut self) {
        let noted = self.record.sights.len();
        for client in 0..self.players.len() {
            if self.players[client].session.is_some() {
                let _ = self.close(client, "close");
            }
        }
        self.record.sights.truncate(noted);
    }

    /// The request with real paths and a real zxid.
    fn addressed(&self, request: &Request, seen: i64) -> Request {
        let mut request = request.clone();
        for_paths(&mut request, &mut |path| {
            *path = match path.strip_prefix('=') {
                Some(literal) => literal.to_string(),
                None if path == "/" => self.record.root.clone(),
                None => match path.strip_prefix('~') {
                    Some(rest) => format!("{QUOTA}{}{rest}", self.record.root),
                    None => format!("{}{path}", self.record.root),
                },
            }
        });
        if let Request::SetWatches { zxid, .. } = &mut request
            && *zxid == -1
        {
            *zxid = seen;
        }
        request
    }
}

/// Whether it takes a number of its own, done or refused.
fn is_write(number: i32) -> bool {
    matches!(
        number,
        op::CREATE
            | op::CREATE2
            | op::CREATE_CONTAINER
            | op::CREATE_TTL
            | op::DELETE
            | op::DELETE_CONTAINER
            | op::SET_DATA
            | op::SET_ACL
            | op::MULTI
            | op::CLOSE_SESSION
    )
}

fn for_paths(request: &mut Request, change: &mut impl FnMut(&mut String)) {
    match request {
        Request::Create { path, .. }
        | Request::Delete { path, .. }
        | Request::Read { path, .. }
        | Request::SetData { path, .. }
        | Request::SetAcl { path, .. }
        | Request::Path { path, .. }
        | Request::Check { path, .. }
        | Request::Watches { path, .. }
        | Request::AddWatch { path, .. } => change(path),
        Request::Multi { parts, .. } => parts.iter_mut().for_each(|part| for_paths(part, change)),
        Request::SetWatches {
            data,
            exist,
            child,
            persistent,
            ..
        } => {
            for path in data.iter_mut().chain(exist).chain(child) {
                change(path);
            }
            if let Some((kept, recursive)) = persistent {
                kept.iter_mut().chain(recursive).for_each(change);
            }
        }
        Request::Reconfig { .. }
        | Request::Auth { .. }
        | Request::Sasl { .. }
        | Request::Empty { .. }
        | Request::Raw { .. } => {}
    }
}
