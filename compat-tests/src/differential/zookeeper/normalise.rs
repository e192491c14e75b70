//! What was seen, with everything that a server may choose replaced by what it means.
//!
//! * A zxid is named after the write that it numbers, as the reply's header told (`w7`: step 7's; `w7.2`: its
//!   second operation's). A change that no reply numbers (an expiry, a session of somebody else) is `>w7`, with
//!   a number when there are several: between step 7's write and the next. So gaps do not show, but order does,
//!   and a difference does not shift everything behind it.
//! * The header of a read shows the last write at or before it, without saying whether something unnamed came
//!   between: what else counts up (a session, a refused request) is the server's business.
//! * A write that cannot be read (MarshallingError) names nothing: some of them are counted.
//! * The writes of a round have one name: nobody can say which of them came first.
//! * With `set zxids stats` headers and Stats are told apart, since they may come from two stores: one of a Stat is
//!   named after the step in which it was first seen (`z7`, `z7.2`) with the largest one seen before that is below
//!   it, and of headers only that they do not fall.
//! * Events of a session's end come in no order that anybody promised: they are sorted. One without a zxid is taken
//!   for such an event in a step in which a session may end.
//! * Sessions are `a1`, `a2`, … after the client that got them. Times say how they relate. The root is cut off.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use super::op::acl_entries;
use super::run::QUOTA;
use crate::differential::Seen;
use crate::differential::script::{client_name, digest, quote};
use crate::raw::zookeeper::{
    Body, ConnectRequest, ConnectResponse, Event, Reply, Stat, error_name, event_name, op,
};

/// What a run noted.
pub(super) struct Record {
    pub(super) root: String,
    /// The root's own creation.
    pub(super) first_zxid: i64,
    /// Whether the zxids of headers tell nothing of those in Stats.
    pub(super) stats_alone: bool,
    /// Session to its client and that client's count.
    pub(super) sessions: BTreeMap<i64, (usize, usize)>,
    /// Which steps are rounds.
    pub(super) rounds: Vec<bool>,
    pub(super) sights: Vec<Sight>,
}

/// One thing seen, as it was.
pub(super) struct Sight {
    pub(super) step: usize,
    pub(super) client: usize,
    pub(super) request: String,
    pub(super) what: What,
}

pub(super) enum What {
    Reply {
        reply: Reply,
        /// It answers nothing that was asked, or came too late or too early.
        stray: bool,
        write: bool,
    },
    Event(Event),
    Greeting(ConnectRequest, ConnectResponse),
    Closed,
    NoReply,
    Garbage(String),
    NotConnected,
    Done,
}

/// The lines of a run.
pub(super) fn normalise(record: Record) -> Vec<Seen> {
    let names = Names::of(&record);
    let mut lines: Vec<Seen> = Vec::new();
    for (at, sight) in record.sights.iter().enumerate() {
        lines.push(Seen {
            step: sight.step,
            client: sight.client,
            request: sight.request.clone(),
            text: names.describe(at, sight),
        });
    }
    settle_ends(&record, &mut lines);
    for (step, _) in record
        .rounds
        .iter()
        .enumerate()
        .filter(|(_, round)| **round)
    {
        settle_round(&mut lines, step);
    }
    lines
}

/// The end of a session deletes its nodes in no order that anybody promised: events of one end are sorted.
fn settle_ends(record: &Record, lines: &mut [Seen]) {
    let told = |zxid: i64| {
        record.sights.iter().find_map(|sight| match &sight.what {
            What::Reply {
                reply, write: true, ..
            } if reply.zxid == zxid => Some(reply.op),
            _ => None,
        })
    };
    let end_of = |sight: &Sight| match &sight.what {
        What::Event(event) if event.zxid <= 0 => {
            let ends = record
                .sights
                .iter()
                .any(|other| other.step == sight.step && may_end_a_session(&other.request));
            ends.then_some((sight.step, sight.client, event.zxid))
        }
        What::Event(event) => match told(event.zxid) {
            None | Some(Some(op::CLOSE_SESSION)) => Some((sight.step, sight.client, event.zxid)),
            Some(_) => None,
        },
        _ => None,
    };
    let mut start = 0;
    while start < lines.len() {
        let end = end_of(&record.sights[start]);
        let alike = record.sights[start..]
            .iter()
            .take_while(|sight| end_of(sight) == end);
        let count = if end.is_some() { alike.count() } else { 1 };
        lines[start..start + count].sort_by(|one, other| one.text.cmp(&other.text));
        start += count;
    }
}

fn may_end_a_session(request: &str) -> bool {
    let word = request.split(' ').next().unwrap_or("");
    matches!(word, "close" | "connect" | "expire" | "hang" | "wait")
}

/// In a round nobody can say whose operation came first: events are put behind the replies and sorted, and
/// clients that asked the same share their results.
fn settle_round(lines: &mut [Seen], step: usize) {
    let Some(start) = lines.iter().position(|seen| seen.step == step) else {
        return;
    };
    let count = lines[start..]
        .iter()
        .take_while(|seen| seen.step == step)
        .count();
    let lines = &mut lines[start..start + count];
    lines.sort_by_key(|seen| {
        let is_event = seen.request == "event";
        (
            seen.client,
            is_event,
            if is_event {
                seen.text.clone()
            } else {
                String::new()
            },
        )
    });
    let mut shared: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for seen in lines.iter().filter(|seen| seen.request != "event") {
        shared
            .entry(seen.request.clone())
            .or_default()
            .push(seen.text.clone());
    }
    for results in shared.values_mut() {
        results.sort();
        results.reverse();
    }
    for seen in lines.iter_mut().filter(|seen| seen.request != "event") {
        if let Some(text) = shared.get_mut(&seen.request).and_then(Vec::pop) {
            seen.text = text;
        }
    }
}

struct Names<'a> {
    record: &'a Record,
    /// Zxid of a write to the index of the sight that told it.
    writes: BTreeMap<i64, (usize, String)>,
    /// Zxids of other changes, to their count within the gap.
    others: BTreeMap<i64, usize>,
    /// Zxids of Stats, when they are told apart from those of headers.
    stats: BTreeMap<i64, String>,
    /// When each zxid was, by the Stats; more than one time is one too many.
    times: BTreeMap<i64, i64>,
    now: i64,
}

impl<'a> Names<'a> {
    fn of(record: &'a Record) -> Names<'a> {
        let mut ops_of_step: BTreeMap<usize, usize> = BTreeMap::new();
        for sight in &record.sights {
            if matches!(sight.what, What::Reply { .. }) {
                *ops_of_step.entry(sight.step).or_default() += 1;
            }
        }
        let mut writes = BTreeMap::new();
        writes.insert(record.first_zxid, (usize::MAX, "w0".to_string()));
        let mut index_in_step: BTreeMap<usize, usize> = BTreeMap::new();
        for (at, sight) in record.sights.iter().enumerate() {
            let What::Reply { reply, write, .. } = &sight.what else {
                continue;
            };
            let index = index_in_step.entry(sight.step).or_default();
            *index += 1;
            let step = sight.step + 1;
            let round = record.rounds.get(sight.step).copied().unwrap_or(false);
            let name = if round || ops_of_step.get(&sight.step) == Some(&1) {
                format!("w{step}")
            } else {
                format!("w{step}.{index}")
            };
            if *write && reply.zxid > 0 {
                writes.entry(reply.zxid).or_insert((at, name));
            }
        }
        let mut names = Names {
            record,
            writes,
            others: BTreeMap::new(),
            stats: names_of_stats(record),
            times: BTreeMap::new(),
            now: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| {
                    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
                }),
        };
        let mut others = Vec::new();
        for sight in &record.sights {
            match &sight.what {
                What::Reply { reply, .. } => for_stats(&reply.body, &mut |stat| {
                    others.extend([stat.czxid, stat.mzxid, stat.pzxid]);
                    names.times.entry(stat.czxid).or_insert(stat.ctime);
                }),
                What::Event(event) => others.push(event.zxid),
                _ => {}
            }
        }
        others.sort_unstable();
        others.dedup();
        let mut gap = (0, 0);
        for zxid in others.into_iter().filter(|zxid| *zxid > 0) {
            if names.writes.contains_key(&zxid) {
                continue;
            }
            let floor = names.floor(zxid).map_or(0, |(floor, _)| floor);
            gap = if gap.0 == floor {
                (floor, gap.1 + 1)
            } else {
                (floor, 1)
            };
            names.others.insert(zxid, gap.1);
        }
        names
    }

    fn floor(&self, zxid: i64) -> Option<(i64, &str)> {
        let (floor, (_, name)) = self.writes.range(..=zxid).next_back()?;
        Some((*floor, name))
    }

    /// A zxid of a change.
    fn change(&self, zxid: i64) -> String {
        if zxid <= 0 {
            return zxid.to_string();
        }
        if self.record.stats_alone {
            return self.stats.get(&zxid).cloned().unwrap_or_default();
        }
        if let Some((_, name)) = self.writes.get(&zxid) {
            return name.clone();
        }
        let floor = self.floor(zxid).map_or("w", |(_, name)| name);
        match self.others.get(&zxid) {
            None | Some(1) => format!(">{floor}"),
            Some(count) => format!(">{floor}~{count}"),
        }
    }

    /// A zxid of a reply's header.
    fn header(&self, at: usize, sight: &Sight, zxid: i64, write: bool) -> String {
        if zxid <= 0 {
            return zxid.to_string();
        }
        if self.record.stats_alone {
            let fell = self.record.sights[..at]
                .iter()
                .rev()
                .filter(|other| other.client == sight.client)
                .take_while(|other| !matches!(other.what, What::Greeting(..)))
                .any(|other| matches!(&other.what, What::Reply { reply, .. } if reply.zxid > zxid));
            return if fell { "fell" } else { "some" }.to_string();
        }
        let own = self
            .writes
            .get(&zxid)
            .is_some_and(|(teller, _)| *teller == at);
        if write && own {
            return "new".to_string();
        }
        let floor = self.floor(zxid).map_or("w", |(_, name)| name);
        if self.record.rounds.get(sight.step).copied().unwrap_or(false) {
            // Which of the others' writes it has seen is chance; that it is not older is not.
            let before = self.writes.values().filter(|(teller, _)| {
                self.record
                    .sights
                    .get(*teller)
                    .is_none_or(|told| told.step < sight.step)
            });
            let newest = before
                .map(|(teller, _)| *teller)
                .filter(|teller| *teller != usize::MAX)
                .max();
            let newest = newest.and_then(|teller| match &self.record.sights[teller].what {
                What::Reply { reply, .. } => Some(reply.zxid),
                _ => None,
            });
            if newest.is_none_or(|newest| zxid >= newest) {
                return "now".to_string();
            }
        }
        format!("@{floor}")
    }

    fn describe(&self, at: usize, sight: &Sight) -> String {
        match &sight.what {
            What::Reply {
                reply,
                stray,
                write,
            } => self.reply(at, sight, reply, *stray, *write),
            What::Event(event) => self.event(event),
            What::Greeting(request, response) => self.greeting(sight.client, request, response),
            What::Closed => "closed".to_string(),
            What::NoReply => "silent".to_string(),
            What::Garbage(reason) => format!("garbage {}", quote(reason.as_bytes())),
            What::NotConnected => "not-connected".to_string(),
            What::Done => "done".to_string(),
        }
    }

    fn event(&self, event: &Event) -> String {
        let name = event_name(event.kind).map_or_else(|| event.kind.to_string(), str::to_string);
        let zxid = match event.zxid {
            // Of which store it is does not show.
            1.. if self.record.stats_alone => "some".to_string(),
            zxid => self.change(zxid),
        };
        let mut out = format!("{name} {} zxid={zxid}", self.path(&event.path));
        if event.state != 3 {
            let _ = write!(out, " state={}", event.state);
        }
        if event.error != 0 {
            let _ = write!(out, " error={}", event.error);
        }
        out
    }

    fn greeting(
        &self,
        client: usize,
        request: &ConnectRequest,
        response: &ConnectResponse,
    ) -> String {
        let mut out = if response.is_expired() {
            "expired"
        } else {
            "session"
        }
        .to_string();
        let password = match &response.password {
            None => "null".to_string(),
            Some(bytes) if bytes.iter().all(|byte| *byte == 0) => format!("{}zeros", bytes.len()),
            Some(bytes) => format!("{}bytes", bytes.len()),
        };
        let id = match response.session_id {
            0 => "0".to_string(),
            id if id == request.session_id => "same".to_string(),
            id if request.session_id == 0 && self.session(id).starts_with(&client_name(client)) => {
                "new".to_string()
            }
            id => self.session(id),
        };
        let read_only = match response.read_only {
            None => "absent".to_string(),
            Some(read_only) => read_only.to_string(),
        };
        let _ = write!(
            out,
            " protocol={} timeout={} id={id} password={password} readonly={read_only}",
            response.protocol_version, response.timeout
        );
        out
    }

    fn reply(&self, at: usize, sight: &Sight, reply: &Reply, stray: bool, write: bool) -> String {
        let mut out = if stray { "stray " } else { "" }.to_string();
        out.push_str(&error_text(reply.error));
        let _ = write!(out, " zxid={}", self.header(at, sight, reply.zxid, write));
        if reply.error != 0 && reply.body != Body::Empty {
            let _ = write!(out, " body={}", hex(&reply.body.encode()));
        } else {
            self.body(&mut out, "", reply.op.unwrap_or(0), &reply.body);
        }
        out
    }

    fn body(&self, out: &mut String, prefix: &str, number: i32, body: &Body) {
        let mut field = |name: &str, value: &str| {
            let _ = write!(out, " {prefix}{name}={value}");
        };
        match body {
            Body::Empty => {}
            Body::Path(path) => field("path", &self.path(path)),
            Body::PathStat(path, stat) => {
                field("path", &self.path(path));
                self.stat(out, prefix, stat);
            }
            Body::Stat(stat) => self.stat(out, prefix, stat),
            Body::Data(data, stat) => {
                field("data", &data_text(data.as_deref()));
                self.stat(out, prefix, stat);
            }
            Body::Acl(acl, stat) => {
                field(
                    "acl",
                    &acl.as_ref()
                        .map_or("null".to_string(), |acl| format!("[{}]", acl_entries(acl))),
                );
                self.stat(out, prefix, stat);
            }
            Body::Names(names) => field("names", &self.names(number, names)),
            Body::NamesStat(names, stat) => {
                field("names", &self.names(number, names));
                self.stat(out, prefix, stat);
            }
            Body::Number(value) => field("number", &value.to_string()),
            Body::Who(identities) => {
                let mut words: Vec<String> = identities
                    .iter()
                    .map(|(scheme, user)| {
                        format!("{}:{}", quote(scheme.as_bytes()), quote(user.as_bytes()))
                    })
                    .collect();
                words.sort();
                field("who", &words.join(","));
            }
            Body::Token(token) => field("token", &data_text(token.as_deref())),
            Body::Multi(results) => {
                for (index, result) in results.iter().enumerate() {
                    let name = op::name(result.kind).unwrap_or("error");
                    let prefix = format!("{}.", index + 1);
                    let _ = write!(out, " {}{name}:{}", prefix, error_text(result.error));
                    match &result.body {
                        // An error's record repeats the header; another number is worth a word.
                        Body::Number(code) if result.kind == -1 => {
                            if *code != result.error {
                                let _ = write!(out, ":{}", error_text(*code));
                            }
                        }
                        body => self.body(out, &prefix, result.kind, body),
                    }
                }
            }
            Body::Raw(bytes) => field("bytes", &hex(bytes)),
        }
    }

    fn stat(&self, out: &mut String, prefix: &str, stat: &Stat) {
        let owner = match stat.ephemeral_owner {
            0 => "0".to_string(),
            i64::MIN => "container".to_string(),
            owner if owner >> 56 == -1 => format!("ttl{}", owner & 0x00ff_ffff_ffff_ffff),
            owner => self.session(owner),
        };
        let ctime = match stat.ctime {
            ctime if (ctime - self.now).abs() > 3_600_000 => "odd",
            ctime if self.times.get(&stat.czxid) != Some(&ctime) => "moved",
            _ => "t",
        };
        let mtime = match stat.mtime.cmp(&stat.ctime) {
            std::cmp::Ordering::Less => "earlier",
            std::cmp::Ordering::Equal if stat.version == 0 => "same",
            std::cmp::Ordering::Greater if stat.version == 0 => "later",
            _ => "t",
        };
        let _ = write!(
            out,
            " {prefix}czxid={} {prefix}mzxid={} {prefix}pzxid={} {prefix}ctime={ctime} {prefix}mtime={mtime} \
             {prefix}version={} {prefix}cversion={} {prefix}aversion={} {prefix}owner={owner} \
             {prefix}length={} {prefix}children={}",
            self.change(stat.czxid),
            self.change(stat.mzxid),
            self.change(stat.pzxid),
            stat.version,
            stat.cversion,
            stat.aversion,
            stat.data_length,
            stat.num_children,
        );
    }

    fn session(&self, id: i64) -> String {
        match self.record.sessions.get(&id) {
            Some((client, count)) => format!("{}{count}", client_name(*client)),
            None => "stranger".to_string(),
        }
    }

    /// The path below the root; others get the sign of a literal.
    fn path(&self, path: &str) -> String {
        let quota = path.strip_prefix(QUOTA);
        if let Some(rest) = quota.and_then(|rest| rest.strip_prefix(&self.record.root)) {
            return format!("~{}", quote(rest.as_bytes()));
        }
        match path.strip_prefix(&self.record.root) {
            Some("") => "/".to_string(),
            Some(rest) if rest.starts_with('/') => quote(rest.as_bytes()),
            _ => format!("^{}", quote(path.as_bytes())),
        }
    }

    fn names(&self, number: i32, names: &[String]) -> String {
        let mut words: Vec<String> = names
            .iter()
            .map(|name| match number {
                op::GET_EPHEMERALS => self.path(name),
                _ => quote(name.as_bytes()),
            })
            .collect();
        // Servers list children in no order.
        words.sort();
        format!("[{}]", words.join(","))
    }
}

/// Names for the zxids of Stats: where each was first seen, and the next smaller one of those seen by then.
fn names_of_stats(record: &Record) -> BTreeMap<i64, String> {
    let mut names: BTreeMap<i64, String> = BTreeMap::new();
    if !record.stats_alone {
        return names;
    }
    let mut steps: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
    for sight in &record.sights {
        if let What::Reply { reply, .. } = &sight.what {
            let seen = steps.entry(sight.step).or_default();
            for_stats(&reply.body, &mut |stat| {
                seen.extend([stat.czxid, stat.mzxid, stat.pzxid]);
            });
        }
    }
    for (step, mut seen) in steps {
        seen.retain(|zxid| *zxid > 0 && !names.contains_key(zxid));
        seen.sort_unstable();
        seen.dedup();
        let round = record.rounds.get(step).copied().unwrap_or(false);
        let before = names.clone();
        for (at, zxid) in seen.into_iter().enumerate() {
            let below = before.range(..zxid).next_back();
            let below = below.map_or("", |(_, name)| name.split('>').next().unwrap_or(""));
            let name = match at {
                // Whose write came first is chance, and so is which was seen.
                _ if round => format!("z{}", step + 1),
                0 => format!("z{}>{below}", step + 1),
                _ => format!("z{}.{}>{below}", step + 1, at + 1),
            };
            names.insert(zxid, name);
        }
    }
    names
}

fn for_stats(body: &Body, see: &mut impl FnMut(&Stat)) {
    match body {
        Body::PathStat(_, stat)
        | Body::Stat(stat)
        | Body::Data(_, stat)
        | Body::Acl(_, stat)
        | Body::NamesStat(_, stat) => see(stat),
        Body::Multi(results) => results
            .iter()
            .for_each(|result| for_stats(&result.body, see)),
        _ => {}
    }
}

fn error_text(code: i32) -> String {
    match code {
        0 => "ok".to_string(),
        _ => error_name(code).map_or_else(|| format!("error{code}"), str::to_string),
    }
}

/// Longer data is shown by length and digest.
const SHOWN_BYTES: usize = 64;

fn data_text(data: Option<&[u8]>) -> String {
    match data {
        None => "null".to_string(),
        Some(data) if data.len() > SHOWN_BYTES => digest(data),
        Some(data) => quote(data),
    }
}

fn hex(bytes: &[u8]) -> String {
    if bytes.len() > SHOWN_BYTES {
        return digest(bytes);
    }
    let mut out = String::new();
    for byte in bytes {
        let _ = write!(out, "{byte:02x}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_data_is_another_text_however_long() {
        for length in [0, 1, SHOWN_BYTES, SHOWN_BYTES + 1, 1000] {
            let mut data = vec![b'x'; length];
            data.push(b'1');
            let mut other = data.clone();
            other[length] = b'2';
            assert_eq!(data_text(Some(&data)), data_text(Some(&data.clone())));
            assert_ne!(data_text(Some(&data)), data_text(Some(&other)), "{length}");
            assert_ne!(hex(&data), hex(&other), "{length}");
            assert!(data_text(Some(&data)).len() <= SHOWN_BYTES);
        }
    }
}
