//! Says the client's part of a transcript again to a server, and holds the answers against the text.
//!
//! The order is the recorded one over all connections: what the client said after it had heard something is said
//! after that is heard again. Names stand for what this server chooses. Keep-alives are sent as needed and not
//! compared; nor are times, and what depends on the moment: the batches that a watch comes in, and the revision
//! in the header of its messages.

mod peer;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use std::{fmt, iter};

use anyhow::Result;

use super::names::Bindings;
use super::proxy::Element;
use super::transcript::{Entry, HEAD, Line, Side, Transcript};
use super::value::Value;
use crate::protocol::Protocol;
use peer::Peer;

/// Something that this server does otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The line of the transcript.
    pub line: usize,
    /// What differs.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

/// The outcome of a replay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Messages of the client that were sent.
    pub sent: usize,
    /// Messages of the server that were compared.
    pub compared: usize,
    /// In the order of the transcript.
    pub differences: Vec<Difference>,
    /// Why it stopped before the end: a fault that nobody could make.
    pub stopped: Option<String>,
}

/// Makes a fault that a transcript notes, such as `do restart`.
pub type Fault<'a> = &'a mut dyn FnMut(&str) -> Result<()>;

/// How to replay.
#[derive(Default)]
pub struct Options<'a> {
    /// Where the nodes or keys lie this time; as recorded, with a fresh end, when not given.
    pub prefix: Option<String>,
    /// Makes faults; without it a replay stops at the first one.
    pub fault: Option<Fault<'a>>,
}

/// Replays a file against `address` (`host:port`).
///
/// # Errors
/// The file is no transcript, or nobody listens.
pub fn replay(file: &Path, address: &str) -> Result<Report> {
    replay_with(&Transcript::read(file)?, address, Options::default())
}

/// Replays a transcript.
///
/// # Errors
/// Nobody listens, or a line of the client is none.
pub fn replay_with(transcript: &Transcript, address: &str, options: Options<'_>) -> Result<Report> {
    let prefix = options
        .prefix
        .unwrap_or_else(|| fresh(&transcript.run.prefix));
    let (sender, arrivals) = channel();
    let mut player = Player {
        subject: transcript.subject,
        address,
        bindings: Bindings::new(&prefix),
        peers: BTreeMap::new(),
        methods: BTreeMap::new(),
        sender,
        arrivals,
        lanes: BTreeMap::new(),
        ended: BTreeSet::new(),
        hung_up: BTreeSet::new(),
        half_closed: BTreeSet::new(),
        last: None,
        report: Report::default(),
    };
    player.play(transcript, options.fault)?;
    player
        .report
        .differences
        .sort_by_key(|difference| difference.line);
    Ok(player.report)
}

/// The prefix with another end, of the same length: the bytes of a message that a transcript keeps as they were have
/// lengths in them. Each call gives another one.
fn fresh(recorded: &str) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut rest = std::process::id().wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
    let mut fresh: Vec<char> = recorded.chars().collect();
    for end in fresh.iter_mut().rev().take(4) {
        if !end.is_ascii_alphanumeric() {
            break;
        }
        *end = char::from(DIGITS[rest as usize % DIGITS.len()]);
        rest /= DIGITS.len() as u32;
    }
    fresh.into_iter().collect()
}

/// What a peer heard.
struct Arrival {
    connection: u32,
    element: Element,
}

/// Messages that keep their order among themselves.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Lane {
    connection: u32,
    stream: u32,
    kind: LaneKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LaneKind {
    /// Replies, or all messages of a stream.
    Main,
    /// ZooKeeper's watch events.
    Events,
    /// What an etcd watch says.
    Watch(i64),
    /// The end of the connection.
    End,
}

#[derive(Default)]
struct Heard {
    waiting: VecDeque<Element>,
    total: usize,
    taken: usize,
    /// How many of the last ones came after the client had ended the connection.
    late: usize,
    /// Something did not come: what is behind it is not waited for long.
    overdue: bool,
}

struct Player<'a> {
    subject: Protocol,
    address: &'a str,
    bindings: Bindings,
    peers: BTreeMap<u32, Peer>,
    /// The path of the method that a stream calls.
    methods: BTreeMap<(u32, u32), String>,
    sender: Sender<Arrival>,
    arrivals: Receiver<Arrival>,
    lanes: BTreeMap<Lane, Heard>,
    ended: BTreeSet<u32>,
    /// Connections that the client has ended.
    hung_up: BTreeSet<u32>,
    /// Streams that the client has half-closed before the transcript says so.
    half_closed: BTreeSet<(u32, u32)>,
    /// The last message of a client, with its connection and stream.
    last: Option<(usize, (u32, u32))>,
    report: Report,
}

/// How long a message of the server may take beyond the recorded pause.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same behind something that did not come.
const IMPATIENCE: Duration = Duration::from_millis(300);
/// How long to hold back a request so that concurrent ones are served in the recorded order.
const HOLD: Duration = Duration::from_secs(2);
/// How long a request of another connection or stream gets to be served first, as it was sent first.
const WAY: Duration = Duration::from_millis(30);
/// How long to wait at the end for what should not come.
const GRACE: Duration = Duration::from_millis(300);
/// Beyond so many differences a transcript tells nothing more.
const ENOUGH: usize = 40;
/// How much earlier or later than recorded something that time brings about may come.
const TOLERANCE: Duration = Duration::from_secs(4);

impl Player<'_> {
    fn play(&mut self, transcript: &Transcript, mut fault: Option<Fault<'_>>) -> Result<()> {
        let order = Order::of(transcript);
        let mut pause: Option<(Duration, &BTreeSet<(u32, u32)>)> = None;
        let mut outstanding: Vec<usize> = Vec::new();
        for (index, entry) in transcript.entries.iter().enumerate() {
            let number = index + HEAD + 1;
            if self.report.differences.len() > ENOUGH {
                self.report.stopped = Some("too many differences".to_string());
                return Ok(());
            }
            match entry {
                Entry::Pause { tenths, alive } => {
                    pause = Some((Duration::from_millis(tenths * 100), alive));
                }
                Entry::Note(note) => {
                    if note.starts_with("do ") {
                        let made = match fault.as_mut() {
                            Some(fault) => fault(note),
                            None => Err(anyhow::anyhow!("nobody makes faults")),
                        };
                        if let Err(error) = made {
                            self.report.stopped = Some(format!("line {number}: {note}: {error}"));
                            return Ok(());
                        }
                    }
                }
                Entry::Line(line) if line.side == Side::Client => {
                    if let Some((length, alive)) = pause.take() {
                        self.rest(length, alive);
                    }
                    self.hold(&order, index, &outstanding);
                    self.give_way(&order, index, line);
                    outstanding.retain(|earlier| order.is_due(*earlier, index));
                    outstanding.push(index);
                    self.say(transcript, &order, index, number, line)?;
                }
                Entry::Line(line) => self.hear(number, line, pause.take()),
            }
        }
        self.collect(GRACE);
        self.report_leftovers(&order, transcript.entries.len() + HEAD);
        Ok(())
    }

    /// Lets time pass, as the client did.
    fn rest(&mut self, length: Duration, alive: &BTreeSet<(u32, u32)>) {
        let end = Instant::now() + length;
        while Instant::now() < end {
            self.keep_alive(alive);
            self.collect(
                end.saturating_duration_since(Instant::now())
                    .min(Duration::from_secs(1)),
            );
        }
    }

    fn keep_alive(&mut self, alive: &BTreeSet<(u32, u32)>) {
        for (connection, stream) in alive {
            if let Some(peer) = self.peers.get_mut(connection) {
                let _ = peer.keep_alive(*stream);
            }
        }
    }

    /// Waits until concurrent requests are answered that were answered before this one's answer when recorded.
    fn hold(&mut self, order: &Order, index: usize, outstanding: &[usize]) {
        let Some(own) = order.answers.get(&index) else {
            return;
        };
        let end = Instant::now() + HOLD;
        for earlier in outstanding {
            let Some(answer) = order.answers.get(earlier) else {
                continue;
            };
            // One connection of ZooKeeper is served in order anyway.
            let in_order = self.subject == Protocol::ZooKeeper
                && answer.lane.connection == own.lane.connection;
            if answer.at > own.at || in_order {
                continue;
            }
            while self.lanes.entry(answer.lane.clone()).or_default().total < answer.ordinal
                && !self.ended.contains(&answer.lane.connection)
            {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return;
                }
                self.receive(left);
            }
        }
    }

    /// Waits a moment when the last request was another connection's and is not answered: servers take requests of
    /// several connections in any order, and the recorded one is that in which they were sent.
    fn give_way(&mut self, order: &Order, index: usize, line: &Line) {
        if matches!(
            line.kind.as_str(),
            "open" | "close" | "reset" | "call" | "end"
        ) {
            return;
        }
        let place = (line.connection, line.stream);
        let Some((earlier, other)) = self.last.replace((index, place)) else {
            return;
        };
        if other == place {
            return;
        }
        let answered_after = match (order.answers.get(&earlier), order.answers.get(&index)) {
            (Some(answer), Some(own)) => answer.at > own.at,
            _ => false,
        };
        if !answered_after {
            self.collect(WAY);
        }
    }

    fn say(
        &mut self,
        transcript: &Transcript,
        order: &Order,
        index: usize,
        number: usize,
        line: &Line,
    ) -> Result<()> {
        let connection = line.connection;
        if line.kind == "open" && line.stream == 0 {
            if order.refused.contains(&connection) {
                return Ok(());
            }
            let words = transcript
                .entries
                .iter()
                .skip(index)
                .find_map(|entry| match entry {
                    Entry::Line(next)
                        if next.connection == connection
                            && next.side == Side::Client
                            && next.kind != "open" =>
                    {
                        Some(next.kind == "http")
                    }
                    _ => None,
                });
            match Peer::connect(
                self.subject,
                words == Some(true),
                self.address,
                connection,
                self.sender.clone(),
            ) {
                Ok(peer) => {
                    self.peers.insert(connection, peer);
                }
                Err(error) => {
                    self.ended.insert(connection);
                    self.differ(number, format!("cannot connect: {error:#}"));
                }
            }
            return Ok(());
        }
        let place = (connection, line.stream);
        if line.stream == 0 && matches!(line.kind.as_str(), "close" | "reset") {
            self.hung_up.insert(connection);
        }
        if line.kind == "end" && self.half_closed.contains(&place) {
            return Ok(());
        }
        let value = self.bindings.resolve(connection, &line.value);
        if line.kind == "call"
            && let Some(method) = value.get("method").and_then(Value::plain)
        {
            self.methods.insert(
                (connection, line.stream),
                String::from_utf8_lossy(&method).into_owned(),
            );
        }
        self.bindings.observe(
            connection,
            Side::Client,
            &line.kind,
            &value,
            &super::names::Context::default(),
        );
        if self.ended.contains(&connection) {
            return Ok(());
        }
        if let Some(peer) = self.peers.get_mut(&connection) {
            let method = self
                .methods
                .get(&(connection, line.stream))
                .map_or("", String::as_str);
            self.report.sent += 1;
            let mut said = peer.say(line.stream, &line.kind, &value, method);
            // A client says its one message and its end at once, but in two frames: the answer may be recorded between
            // them, and a server may wait for the end before it answers.
            if said.is_ok() && is_all(method, &line.kind) {
                self.half_closed.insert(place);
                said = peer.say(line.stream, "end", &Value::Null, method);
            }
            if let Err(error) = said {
                if error.downcast_ref::<std::io::Error>().is_none() {
                    return Err(error.context(format!("line {number}")));
                }
                // The end of the connection comes as such.
                self.receive(IMPATIENCE);
            }
        }
        Ok(())
    }

    fn hear(
        &mut self,
        number: usize,
        line: &Line,
        pause: Option<(Duration, &BTreeSet<(u32, u32)>)>,
    ) {
        if line.kind == "refused" {
            return;
        }
        let method = self
            .methods
            .get(&(line.connection, line.stream))
            .cloned()
            .unwrap_or_default();
        let start = Instant::now();
        let recorded = pause.map_or(Duration::ZERO, |(length, _)| length);
        let mut timed = pause.is_some();
        for expected in parts(self.subject, &method, element(line)) {
            let lane = lane(self.subject, &method, line.connection, &expected);
            let actual = self.next(&lane, recorded, pause.map(|(_, alive)| alive));
            let Some(actual) = actual else {
                let why = if self.ended.contains(&line.connection) {
                    "the connection has ended"
                } else {
                    "did not come"
                };
                self.differ(
                    number,
                    format!("{why}: {} {}", expected.kind, expected.value),
                );
                continue;
            };
            self.report.compared += 1;
            let took = start.elapsed();
            if std::mem::take(&mut timed)
                && (took > recorded + TOLERANCE || took + TOLERANCE < recorded)
            {
                self.differ(
                    number,
                    format!(
                        "came after {} s, recorded after {} s",
                        took.as_secs(),
                        recorded.as_secs()
                    ),
                );
            }
            // How the server's half ends after the client's has ended depends on what was still under way.
            if lane.kind == LaneKind::End && self.hung_up.contains(&line.connection) {
                continue;
            }
            if expected.kind == actual.kind {
                let mut found = Vec::new();
                self.bindings
                    .compare(&expected.kind, &expected.value, &actual.value, &mut found);
                for what in found {
                    self.differ(number, what);
                }
            } else {
                self.differ(
                    number,
                    format!(
                        "expected {} {}, got {} {}",
                        expected.kind, expected.value, actual.kind, actual.value
                    ),
                );
            }
        }
    }

    /// The next message of a lane, within the recorded pause and some patience.
    fn next(
        &mut self,
        lane: &Lane,
        recorded: Duration,
        alive: Option<&BTreeSet<(u32, u32)>>,
    ) -> Option<Element> {
        let overdue = self.lanes.entry(lane.clone()).or_default().overdue;
        let patience = if overdue { IMPATIENCE } else { PATIENCE };
        let end = Instant::now() + recorded + patience;
        let mut beat = Instant::now();
        loop {
            let heard = self.lanes.entry(lane.clone()).or_default();
            if let Some(element) = heard.waiting.pop_front() {
                heard.taken += 1;
                return Some(element);
            }
            let left = end.saturating_duration_since(Instant::now());
            let gone = self.ended.contains(&lane.connection) && lane.kind != LaneKind::End;
            if left.is_zero() || gone {
                heard.overdue = true;
                return None;
            }
            if let Some(alive) = alive
                && beat <= Instant::now()
            {
                self.keep_alive(alive);
                beat += Duration::from_secs(1);
            }
            self.receive(left.min(Duration::from_millis(500)));
        }
    }

    /// Takes in what comes within `span`.
    fn collect(&mut self, span: Duration) {
        let end = Instant::now() + span;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.receive(left);
        }
    }

    /// Takes in the next message, if one comes within `limit`.
    fn receive(&mut self, limit: Duration) {
        let Arrival {
            connection,
            element,
        } = match self.arrivals.recv_timeout(limit) {
            Ok(arrival) => arrival,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
        };
        self.bindings.observe(
            connection,
            Side::Server,
            &element.kind,
            &element.value,
            &element.context,
        );
        if element.repeated {
            return;
        }
        if element.stream == 0 && matches!(element.kind.as_str(), "close" | "reset") {
            self.ended.insert(connection);
        }
        let method = self
            .methods
            .get(&(connection, element.stream))
            .cloned()
            .unwrap_or_default();
        for part in parts(self.subject, &method, element) {
            let lane = lane(self.subject, &method, connection, &part);
            let heard = self.lanes.entry(lane).or_default();
            heard.total += 1;
            heard.late += usize::from(self.hung_up.contains(&connection));
            heard.waiting.push_back(part);
        }
    }

    fn report_leftovers(&mut self, order: &Order, last: usize) {
        let lanes = std::mem::take(&mut self.lanes);
        for (lane, heard) in lanes {
            if lane.kind == LaneKind::End || heard.overdue {
                continue;
            }
            // What comes after the client has hung up nobody hears.
            let heard_of = heard.waiting.len().saturating_sub(heard.late);
            for element in heard.waiting.into_iter().take(heard_of) {
                if order.is_unheard(&lane, &element) {
                    continue;
                }
                self.differ(
                    last,
                    format!(
                        "not recorded, but came on {}.{}: {} {}",
                        lane.connection, lane.stream, element.kind, element.value
                    ),
                );
            }
        }
    }

    fn differ(&mut self, line: usize, what: String) {
        self.report.differences.push(Difference { line, what });
    }
}

/// Which requests are answered when.
struct Order {
    /// By the place of the request.
    answers: BTreeMap<usize, Answer>,
    /// Connections that nobody took.
    refused: BTreeSet<u32>,
    /// Answers that the client did not wait for, as it ended the connection: by connection and stream, and by the
    /// request's number where ZooKeeper has one.
    unheard: BTreeSet<(u32, u32, Option<Value>)>,
}

struct Answer {
    /// The place of the answer in the transcript.
    at: usize,
    lane: Lane,
    /// How many messages of the lane have come with it.
    ordinal: usize,
}

impl Order {
    fn of(transcript: &Transcript) -> Order {
        let subject = transcript.subject;
        let mut order = Order {
            answers: BTreeMap::new(),
            refused: BTreeSet::new(),
            unheard: BTreeSet::new(),
        };
        let mut hung_up = BTreeSet::new();
        let mut unended = BTreeSet::new();
        let mut methods: BTreeMap<(u32, u32), String> = BTreeMap::new();
        let mut open: Vec<(usize, u32, u32, Option<Value>)> = Vec::new();
        let mut counts: BTreeMap<Lane, usize> = BTreeMap::new();
        for (index, entry) in transcript.entries.iter().enumerate() {
            let Entry::Line(line) = entry else { continue };
            let place = (line.connection, line.stream);
            if line.kind == "refused" {
                order.refused.insert(line.connection);
                continue;
            }
            if line.kind == "call"
                && let Some(method) = line.value.get("method").and_then(Value::plain)
            {
                methods.insert(place, String::from_utf8_lossy(&method).into_owned());
            }
            let method = methods.get(&place).cloned().unwrap_or_default();
            match (line.side, line.kind.as_str()) {
                (Side::Client, "close" | "reset") if line.stream == 0 => {
                    hung_up.insert(line.connection);
                }
                (Side::Client, "call") => {
                    unended.insert(place);
                }
                (Side::Server, "status") => {
                    unended.remove(&place);
                }
                _ => {}
            }
            match line.side {
                Side::Client => {
                    let quick = match subject {
                        Protocol::ZooKeeper => line.value.get("xid").is_some(),
                        Protocol::Etcd => line.kind == "http" || is_quick(&method, &line.kind),
                    };
                    if quick {
                        let xid = line.value.get("xid").cloned();
                        open.push((index, line.connection, line.stream, xid));
                    }
                }
                Side::Server => {
                    for part in parts(subject, &method, element(line)) {
                        let lane = lane(subject, &method, line.connection, &part);
                        let count = counts.entry(lane.clone()).or_default();
                        *count += 1;
                        let xid = line.value.get("xid").cloned();
                        if lane.kind == LaneKind::Main
                            && let Some(at) =
                                open.iter().position(|(_, connection, stream, asked)| {
                                    (*connection, *stream) == place && *asked == xid
                                })
                        {
                            let (request, ..) = open.remove(at);
                            order.answers.insert(
                                request,
                                Answer {
                                    at: index,
                                    lane,
                                    ordinal: *count,
                                },
                            );
                        }
                    }
                }
            }
        }
        let unanswered = open
            .into_iter()
            .filter(|(.., xid)| xid.is_some())
            .map(|(_, connection, stream, xid)| (connection, stream, xid));
        let unended = unended
            .into_iter()
            .map(|(connection, stream)| (connection, stream, None));
        order.unheard = unanswered
            .chain(unended)
            .filter(|(connection, ..)| hung_up.contains(connection))
            .collect();
        order
    }

    /// Whether it is an answer that the client did not wait for.
    fn is_unheard(&self, lane: &Lane, element: &Element) -> bool {
        let xid = element.value.get("xid").cloned();
        (xid.is_some() || element.kind == "status")
            && self.unheard.contains(&(lane.connection, lane.stream, xid))
    }

    /// Whether the answer to an earlier request is still to come at `index`.
    fn is_due(&self, earlier: usize, index: usize) -> bool {
        self.answers
            .get(&earlier)
            .is_some_and(|answer| answer.at > index)
    }
}

/// Whether it is the one message that the client says in the method.
fn is_all(method: &str, kind: &str) -> bool {
    method.rsplit('/').next() == Some(kind)
        && crate::raw::etcd::method(method).is_some_and(|method| !method.is_client_streaming())
}

/// A message that is answered at once and once.
fn is_quick(method: &str, kind: &str) -> bool {
    method.ends_with(kind)
        && [
            "/etcdserverpb.KV/",
            "/etcdserverpb.Auth/",
            "/etcdserverpb.Cluster/",
            "/etcdserverpb.Lease/LeaseGrant",
            "/etcdserverpb.Lease/LeaseRevoke",
            "/etcdserverpb.Lease/LeaseTimeToLive",
            "/etcdserverpb.Lease/LeaseLeases",
        ]
        .iter()
        .any(|quick| method.starts_with(quick))
}

fn element(line: &Line) -> Element {
    Element::new(
        line.stream,
        line.side,
        line.kind.clone(),
        line.value.clone(),
    )
}

/// A message as the things in it that are compared: a watch's events one by one, since a server may send any
/// number of them at once.
fn parts(subject: Protocol, method: &str, element: Element) -> Vec<Element> {
    let json = element.value.at(&["json", "result"]);
    let is_watch = subject == Protocol::Etcd
        && (method == "/etcdserverpb.Watch/Watch" && element.kind == "Watch"
            || json.is_some_and(|result| {
                result.get("events").is_some() || result.get("created").is_some()
            }));
    if !is_watch {
        let mut element = element;
        if let (true, Value::Record(fields)) =
            (element.kind == "LeaseKeepAlive", &mut element.value)
        {
            // How far the store was then: keep-alives come whenever they come.
            fields.retain(|(name, _)| name != "header");
        }
        return vec![element];
    }
    let fields = json.unwrap_or(&element.value).fields();
    let mut plain: Vec<(String, Value)> = Vec::new();
    let mut events: &[Value] = &[];
    for (name, value) in fields {
        match name.as_str() {
            // How far the store was when it sent this.
            "header" => plain.push((name.clone(), Value::Any)),
            "events" => events = value.list(),
            "fragment" => {}
            _ => plain.push((name.clone(), value.clone())),
        }
    }
    let part = |fields: Vec<(String, Value)>| Element {
        value: Value::Record(fields),
        ..element.clone()
    };
    let is_more = plain
        .iter()
        .any(|(name, _)| !matches!(name.as_str(), "header" | "watch_id"));
    let own = (events.is_empty() || is_more).then(|| part(plain.clone()));
    let id = plain.iter().find(|(name, _)| name == "watch_id").cloned();
    let events = events.iter().map(|event| {
        part(
            id.clone()
                .into_iter()
                .chain(iter::once(("event".to_string(), event.clone())))
                .collect(),
        )
    });
    own.into_iter().chain(events).collect()
}

fn lane(subject: Protocol, method: &str, connection: u32, element: &Element) -> Lane {
    let kind = match (subject, element.kind.as_str()) {
        (_, "close" | "reset" | "goaway") if element.stream == 0 => LaneKind::End,
        (Protocol::ZooKeeper, "event") => LaneKind::Events,
        (Protocol::Etcd, "Watch") if method == "/etcdserverpb.Watch/Watch" => LaneKind::Watch(
            element
                .value
                .get("watch_id")
                .and_then(Value::int)
                .unwrap_or(0),
        ),
        _ => LaneKind::Main,
    };
    Lane {
        connection,
        stream: element.stream,
        kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_prefix_is_as_long_and_another_one_each_time() {
        for recorded in ["compat-kv-jetcd-r003", "/discovery/kazoo-r1", "/x"] {
            let (one, two) = (fresh(recorded), fresh(recorded));
            assert_eq!((one.len(), two.len()), (recorded.len(), recorded.len()));
            assert_ne!(one, two, "{recorded}");
            let end = recorded.rfind(['-', '/']).expect("it has parts") + 1;
            assert_eq!(one[..end], recorded[..end]);
        }
    }

    /// A client that hangs up over a request and an event; what comes on each stream, and whether it is a difference.
    #[test]
    fn an_answer_that_the_client_did_not_wait_for_is_none() {
        let head = "# subject: zookeeper\n# client: c 1\n# scenario: s\n# server: s\n# prefix: /p\n# replay: yes\n";
        let order = |lines: &str| Order::of(&Transcript::parse(&format!("{head}{lines}")).unwrap());
        let check = |lines: &str, kind: &str, xid: i128, unheard: bool| {
            let value = Value::record([("xid", Value::Int(xid))]);
            let element = Element::new(0, Side::Server, kind, value);
            let lane = lane(Protocol::ZooKeeper, "", 1, &element);
            assert_eq!(
                order(lines).is_unheard(&lane, &element),
                unheard,
                "{lines} {xid}"
            );
        };
        let asked = "1 > open\n1 > sync {xid: 1}\n1 > sync {xid: 2}\n1 < sync {xid: 1}\n";
        check(&format!("{asked}1 > close\n"), "sync", 2, true);
        check(&format!("{asked}1 > close\n"), "sync", 1, false);
        check(&format!("{asked}1 < close\n"), "sync", 2, false);
        check(asked, "sync", 2, false);
    }
}
