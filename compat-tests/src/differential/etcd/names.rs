//! Replies as text that two servers must agree on: numbers that a server is free to choose are replaced by
//! what relates them to each other.
//!
//! | what | shown as |
//! | --- | --- |
//! | revisions | `r+N`, the distance from the revision before the script ([`Revisions::Relative`]), or their rank |
//! | lease ids | `L1` for the script's own, `C1`, `C2`… for the server's, by first appearance; also in keys |
//! | cluster and member ids | `cluster1`, `member1`…, by first appearance |
//! | the run's root in keys and values | `$` |
//! | raft terms and indexes, sizes, hashes, versions of the server, names and addresses of members, tokens | `some`: only their presence |
//! | the keys of a lease, the list of leases | sorted: etcd has no order for the one, expiry for the other |
//! | keys beside one another that differ in a lease id of the server's alone | in the order in which they were made: which id sorts first is chance |
//! | the time that a lease has left | `left` when it fits what has passed |
//!
//! Everything else is compared as it is, and an absent field is not an empty one where protobuf can tell.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, ReflectMessage as _, Value as Wire};

use super::value::{lease_hex, quote};
use crate::differential::compare::Seen;
use crate::differential::script::{digest, fnv};

/// How revisions are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Revisions {
    /// The distance from the first: two servers of which each change raises the revision by exactly one.
    #[default]
    Relative,
    /// The rank among all revisions that were shown so far: for servers whose revisions rise with gaps.
    Rank,
    /// The same without those of headers: for servers that number leases and keys of several kinds each on
    /// their own.
    Keys,
}

/// Ids of a script's own lie in this distance around the run's base.
const OWN_LEASES: i64 = 1000;

/// Revisions are written between these until the run is over and their ranks are known.
const OPEN: char = '\u{1}';
const CLOSE: char = '\u{2}';

/// Longer byte strings are shown by length and digest.
const SHOWN_BYTES: usize = 96;

/// The names of one run.
#[derive(Debug)]
pub struct Names {
    root: Vec<u8>,
    /// The script's lease 0; unique to the run, since ids are shared by all who use the server.
    lease_base: i64,
    /// The revision before the first operation.
    pub base: i64,
    /// Revisions of marked operations.
    marks: Vec<(u32, i64)>,
    chosen: Vec<i64>,
    clusters: Vec<u64>,
    members: Vec<u64>,
}

impl Names {
    /// Names for a run below `root`.
    pub fn new(root: &str) -> Names {
        Names::below(root, root)
    }

    /// Names below a root that other runs had too; `run` is fresh.
    pub fn below(root: &str, run: &str) -> Names {
        let digest = fnv(run.as_bytes());
        Names {
            root: root.as_bytes().to_vec(),
            lease_base: i64::try_from(digest >> 24).unwrap_or_default() * 0x10_0000 + 0x8_0000,
            base: 0,
            marks: Vec::new(),
            chosen: Vec::new(),
            clusters: Vec::new(),
            members: Vec::new(),
        }
    }

    /// Notes the revision of a marked operation.
    pub fn note(&mut self, mark: u32, revision: i64) {
        if mark != 0 && revision > 0 {
            self.marks.push((mark, revision));
        }
    }

    /// The revision of the operation with this mark; the first revision when it has none.
    pub(super) fn revision_of(&self, mark: u32) -> i64 {
        self.marks
            .iter()
            .rev()
            .find_map(|(other, revision)| (*other == mark).then_some(*revision))
            .unwrap_or(self.base)
    }

    /// A lease id of the script's own.
    pub(super) fn lease(&self, number: i64) -> i64 {
        if number < 0 {
            number.saturating_sub(self.lease_base)
        } else {
            self.lease_base.saturating_add(number)
        }
    }

    /// A lease id that the server chose, or one that does not exist.
    pub(super) fn chosen(&self, number: u32) -> i64 {
        let index = usize::try_from(number).unwrap_or_default();
        // One that was not given out yet is some id that does not exist.
        self.chosen
            .get(index.saturating_sub(1))
            .copied()
            .unwrap_or_else(|| self.lease(OWN_LEASES - 1 - i64::from(number)))
    }

    /// The root of the run.
    pub(super) fn root(&self) -> &[u8] {
        &self.root
    }

    /// A message as words `field=value`, each field that is there. Those of a message inside another carry the
    /// outer field's name, `kvs.lease=L1`, however deep they lie, so that what differs has a name of its own;
    /// an empty message is `{}`. `elapsed` is how long the script has been running.
    pub fn show(&mut self, message: &DynamicMessage, elapsed: Duration) -> String {
        let mut words = Vec::new();
        self.words("", message, elapsed, &mut words);
        words.join(" ")
    }

    fn words(
        &mut self,
        prefix: &str,
        message: &DynamicMessage,
        elapsed: Duration,
        out: &mut Vec<String>,
    ) {
        let name = message.descriptor().name().to_string();
        let granted = int(message, "grantedTTL");
        for field in message.descriptor().fields() {
            if !message.has_field(&field) {
                continue;
            }
            let path = format!("{prefix}{}", field.name());
            let value = message.get_field(&field);
            if name == "LeaseTimeToLiveResponse"
                && field.name() == "TTL"
                && let Some(left) = time_left(int(message, "TTL"), granted, elapsed)
            {
                out.push(format!("{path}={left}"));
                continue;
            }
            match value.as_ref() {
                Wire::List(values) if hides_values(&name, &field) => {
                    out.push(format!("{path}={}*some", values.len()));
                }
                Wire::List(values) if matches!(field.kind(), Kind::Message(_)) => {
                    let first = out.len();
                    for value in &self.settled(values) {
                        self.inner_words(&path, &field, value, elapsed, out);
                    }
                    if name == "LeaseLeasesResponse" {
                        // By expiry: an order that only a clock knows, since locks keep theirs alive.
                        out[first..].sort();
                    }
                }
                Wire::List(values) => {
                    let mut shown: Vec<String> = values
                        .iter()
                        .map(|value| self.show_value(&name, &field, value))
                        .collect();
                    if name == "LeaseTimeToLiveResponse" {
                        // The keys of a lease come in the order of a Go map: none.
                        shown.sort();
                    }
                    out.push(format!("{path}=[{}]", shown.join(",")));
                }
                Wire::Message(_) => {
                    self.inner_words(&path, &field, &value, elapsed, out);
                }
                value => out.push(format!("{path}={}", self.show_value(&name, &field, value))),
            }
        }
        for unknown in message.unknown_fields() {
            out.push(format!("{prefix}unknown={}", unknown.number()));
        }
    }

    fn inner_words(
        &mut self,
        path: &str,
        field: &FieldDescriptor,
        value: &Wire,
        elapsed: Duration,
        out: &mut Vec<String>,
    ) {
        let Wire::Message(inner) = value else {
            return;
        };
        if let Some(header) = self.whole_header(inner) {
            out.push(format!("{path}={header}"));
            return;
        }
        let before = out.len();
        self.words(&format!("{}.", field.name()), inner, elapsed, out);
        if out.len() == before {
            out.push(format!("{path}={{}}"));
        }
    }

    /// Bytes with root and lease ids by name.
    pub fn bytes(&mut self, bytes: &[u8]) -> String {
        if bytes.len() > 4096 {
            return digest(bytes);
        }
        let mut named = replace(bytes, &self.root, b"$");
        // A lock's key ends with the lease's id: one that was not seen before gets its name here.
        if let Some(slash) = named.iter().rposition(|byte| *byte == b'/')
            && let Some(id) = named.get(slash + 1..).and_then(lease_of_hex)
            && id.unsigned_abs() > 0xff_ffff
        {
            let name = self.lease_name(id);
            named.truncate(slash + 1);
            named.extend_from_slice(format!("{{{name}}}").as_bytes());
        }
        if named.len() > SHOWN_BYTES {
            return digest(&named);
        }
        quote(&named)
    }

    /// A message text of an error: whatever of this run stands in it is named.
    pub fn text(&mut self, text: &str) -> String {
        let root = String::from_utf8_lossy(&self.root).into_owned();
        // Go's protobuf library puts a space of one of two kinds into its errors, so that nobody compares them.
        text.replace(&root, "$").replace('\u{a0}', " ")
    }

    /// Replaces the revisions in finished lines.
    pub fn finish(&self, seen: &mut [Seen], revisions: Revisions) {
        let mut shown = BTreeSet::new();
        for line in seen.iter_mut().map(|seen| &mut seen.text) {
            if revisions == Revisions::Keys {
                *line = without_headers(line);
            }
            if !line.contains(OPEN) {
                continue;
            }
            if revisions != Revisions::Relative {
                for_each_revision(line, |revision| {
                    shown.insert(revision);
                });
            }
            let mut out = String::with_capacity(line.len());
            for part in line.split(OPEN) {
                let Some((number, rest)) = part.split_once(CLOSE) else {
                    out.push_str(part);
                    continue;
                };
                let revision: i64 = number.parse().unwrap_or_default();
                let _ = if shown.contains(&revision) {
                    write!(out, "rank{}", shown.range(..revision).count())
                } else {
                    write!(out, "r{:+}", revision.saturating_sub(self.base))
                };
                out.push_str(rest);
            }
            *line = out;
        }
    }

    fn show_value(&mut self, message: &str, field: &FieldDescriptor, value: &Wire) -> String {
        let name = field.name();
        match value {
            Wire::Bytes(bytes) => self.bytes(bytes),
            _ if hides_values(message, field) => "some".to_string(),
            Wire::String(text) => quote(self.text(text).as_bytes()),
            Wire::I64(number) if is_revision(name) => self.revision(*number),
            Wire::I64(number) if is_lease(message, name) => self.lease_name(*number),
            Wire::U64(number) if name == "cluster_id" => {
                named("cluster", &mut self.clusters, *number)
            }
            Wire::U64(number) if matches!(name, "member_id" | "leader" | "memberID" | "ID") => {
                named("member", &mut self.members, *number)
            }
            Wire::I64(number) => number.to_string(),
            Wire::U64(number) => number.to_string(),
            Wire::U32(number) => number.to_string(),
            Wire::I32(number) => number.to_string(),
            Wire::Bool(value) => value.to_string(),
            Wire::EnumNumber(number) => match field.kind() {
                Kind::Enum(descriptor) => descriptor
                    .get_value(*number)
                    .map_or_else(|| number.to_string(), |value| value.name().to_string()),
                _ => number.to_string(),
            },
            other => format!("{other:?}"),
        }
    }

    /// A header as nearly all replies have it: this cluster, this member, a revision and a term.
    fn whole_header(&mut self, header: &DynamicMessage) -> Option<String> {
        if header.descriptor().name() != "ResponseHeader" {
            return None;
        }
        let number = |name: &str| match header.get_field_by_name(name)?.as_ref() {
            Wire::U64(number) => Some(*number),
            _ => None,
        };
        let (cluster, member, term) = (
            number("cluster_id")?,
            number("member_id")?,
            number("raft_term")?,
        );
        let revision = int(header, "revision");
        if cluster == 0 || member == 0 || term == 0 || revision == 0 {
            return None;
        }
        let whole = named("cluster", &mut self.clusters, cluster) == "cluster1"
            && named("member", &mut self.members, member) == "member1"
            && header.unknown_fields().next().is_none();
        whole.then(|| self.revision(revision))
    }

    fn revision(&self, revision: i64) -> String {
        if revision <= 0 {
            return revision.to_string();
        }
        format!("{OPEN}{revision}{CLOSE}")
    }

    fn lease_name(&mut self, id: i64) -> String {
        if id == 0 {
            return "0".to_string();
        }
        for sign in [1, -1] {
            let number = id.saturating_mul(sign).saturating_sub(self.lease_base);
            if number.unsigned_abs() < OWN_LEASES.unsigned_abs() {
                return format!("L{}", number.saturating_mul(sign));
            }
        }
        let index = index_of(&mut self.chosen, id);
        format!("C{}", index + 1)
    }

    /// A list of messages; in one of keys and values those of a lock or an election whose leases the server chose in the
    /// order in which they were made.
    fn settled(&self, values: &[Wire]) -> Vec<Wire> {
        let place = |value: &Wire| {
            let Wire::Message(pair) = value else {
                return None;
            };
            let key = pair.get_field_by_name("key")?;
            let Wire::Bytes(key) = key.as_ref() else {
                return None;
            };
            let slash = key.iter().rposition(|byte| *byte == b'/')?;
            let lease = key.get(slash + 1..).and_then(lease_of_hex)?;
            let from_base = lease.saturating_sub(self.lease_base).unsigned_abs();
            let is_own = from_base < OWN_LEASES.unsigned_abs();
            (lease > 0xff_ffff && !is_own)
                .then(|| (key.slice(..slash), int(pair, "create_revision")))
        };
        let mut settled = values.to_vec();
        let is_same = |one: &Wire, other: &Wire| {
            let (one, other) = (place(one), place(other));
            one.is_some_and(|(one, _)| other.is_some_and(|(other, _)| one == other))
        };
        for keys in settled.chunk_by_mut(is_same) {
            keys.sort_by_key(|value| place(value).map(|(_, made)| made));
        }
        settled
    }
}

/// An int64 field of a message, 0 when it has none.
pub(super) fn int(message: &DynamicMessage, field: &str) -> i64 {
    match message.get_field_by_name(field).as_deref() {
        Some(Wire::I64(number)) => *number,
        _ => 0,
    }
}

fn is_revision(field: &str) -> bool {
    matches!(
        field,
        "revision" | "create_revision" | "mod_revision" | "compact_revision" | "rev"
    )
}

fn is_lease(message: &str, field: &str) -> bool {
    field == "lease" || (field == "ID" && message.starts_with("Lease"))
}

/// Fields of which only the presence is compared.
fn hides_values(message: &str, field: &FieldDescriptor) -> bool {
    match message {
        "StatusResponse" => !matches!(field.name(), "header" | "leader" | "errors" | "isLearner"),
        "Member" => matches!(field.name(), "name" | "peerURLs" | "clientURLs"),
        "AuthenticateResponse" => field.name() == "token",
        // It counts what happened before the run too.
        "AuthStatusResponse" => field.name() == "authRevision",
        "HashResponse" | "HashKVResponse" => field.name() == "hash",
        _ => field.name() == "raft_term",
    }
}

fn time_left(left: i64, granted: i64, elapsed: Duration) -> Option<String> {
    let passed = i64::try_from(elapsed.as_secs()).unwrap_or(i64::MAX);
    let spent = granted - left;
    (granted > 0 && left >= 0 && (0..=passed.saturating_add(2)).contains(&spent))
        .then(|| "left".to_string())
}

fn named(kind: &str, known: &mut Vec<u64>, id: u64) -> String {
    if id == 0 {
        return "0".to_string();
    }
    format!("{kind}{}", index_of(known, id) + 1)
}

fn index_of<T: PartialEq>(known: &mut Vec<T>, id: T) -> usize {
    known
        .iter()
        .position(|other| *other == id)
        .unwrap_or_else(|| {
            known.push(id);
            known.len() - 1
        })
}

fn lease_of_hex(hex: &[u8]) -> Option<i64> {
    let hex = std::str::from_utf8(hex).ok()?;
    let id = i64::from_str_radix(hex, 16).ok()?;
    (lease_hex(id) == hex).then_some(id)
}

fn replace(bytes: &[u8], what: &[u8], by: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, tail)) = rest.split_first() {
        match rest.strip_prefix(what) {
            Some(after) if !what.is_empty() => {
                out.extend_from_slice(by);
                rest = after;
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// A line in which a header's revision only is or is not there.
fn without_headers(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    for part in line.split_inclusive(OPEN) {
        match part.split_once(CLOSE) {
            Some((_, rest))
                if out.ends_with("header=\u{1}") || out.ends_with("header.revision=\u{1}") =>
            {
                out.pop();
                out.push_str("some");
                out.push_str(rest);
            }
            _ => out.push_str(part),
        }
    }
    out
}

fn for_each_revision(line: &str, mut visit: impl FnMut(i64)) {
    for part in line.split(OPEN).skip(1) {
        if let Some(revision) = part
            .split_once(CLOSE)
            .and_then(|(number, _)| number.parse().ok())
        {
            visit(revision);
        }
    }
}
