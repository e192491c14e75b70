//! The kinds of calls that clients make, so that one which nobody has made before is noticed.
//!
//! A pattern keeps what a server must understand (operation, options, which fields are there) and drops what is the
//! application's (keys, values, numbers). The known ones are in `transcripts/patterns.txt`, each with its clients.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::names::Bindings;
use super::transcript::{Entry, HEAD, Line, Side, Transcript};
use super::value::Value;
use crate::protocol::Protocol;

/// The patterns of a transcript.
pub fn patterns(transcript: &Transcript) -> BTreeSet<String> {
    calls(transcript)
        .into_iter()
        .map(|(_, pattern)| pattern)
        .collect()
}

/// A pattern that its client is not known for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    /// The client with its version.
    pub client: String,
    /// The scenario.
    pub scenario: String,
    /// The first line of the transcript that shows it.
    pub line: usize,
    /// What it is.
    pub pattern: String,
    /// Whether other clients are known for it.
    pub others: bool,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} in {}, line {}: {} ({})",
            self.client,
            self.scenario,
            self.line,
            self.pattern,
            if self.others {
                "known of other clients only"
            } else {
                "not seen before"
            }
        )
    }
}

/// Known patterns with the clients that use them.
pub type Known = BTreeMap<String, BTreeSet<String>>;

/// What in these transcripts is not known.
pub fn unknown<'a>(
    known: &Known,
    transcripts: impl IntoIterator<Item = &'a Transcript>,
) -> Vec<Unknown> {
    let mut found: Vec<Unknown> = Vec::new();
    for transcript in transcripts {
        let mut said = BTreeSet::new();
        for (line, pattern) in calls(transcript) {
            let clients = known.get(&pattern);
            let is_known = clients.is_some_and(|clients| clients.contains(transcript.run.name()));
            if !is_known && said.insert(pattern.clone()) {
                found.push(Unknown {
                    client: transcript.run.client.clone(),
                    scenario: transcript.run.scenario.clone(),
                    line,
                    others: clients.is_some(),
                    pattern,
                });
            }
        }
    }
    found
}

/// All patterns of these transcripts, as the list of known ones.
pub fn collect<'a>(transcripts: impl IntoIterator<Item = &'a Transcript>) -> Known {
    let mut known = Known::new();
    for transcript in transcripts {
        for pattern in patterns(transcript) {
            known
                .entry(pattern)
                .or_default()
                .insert(transcript.run.name().to_string());
        }
    }
    known
}

/// Reads a list of known patterns.
///
/// # Errors
/// It cannot be read, or a line names no client.
pub fn read(path: &Path) -> Result<Known> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    text.lines()
        .filter(|line| !line.is_empty())
        .map(|line| {
            let (pattern, clients) = line
                .split_once("  # ")
                .with_context(|| format!("no client is named: {line}"))?;
            let clients = clients.split(", ").map(ToString::to_string).collect();
            Ok((pattern.to_string(), clients))
        })
        .collect()
}

/// The text that [`read`] reads.
pub fn print(known: &Known) -> String {
    known
        .iter()
        .map(|(pattern, clients)| {
            let clients: Vec<&str> = clients.iter().map(String::as_str).collect();
            format!("{pattern}  # {}\n", clients.join(", "))
        })
        .collect()
}

/// Every call with its line.
fn calls(transcript: &Transcript) -> Vec<(usize, String)> {
    let mut bindings = Bindings::new("prefix");
    let mut methods: BTreeMap<(u32, u32), String> = BTreeMap::new();
    let mut greeting: BTreeSet<u32> = BTreeSet::new();
    let mut found = Vec::new();
    for (index, entry) in transcript.entries.iter().enumerate() {
        let number = index + HEAD + 1;
        let line = match entry {
            Entry::Line(line) => line,
            Entry::Pause { alive, .. } if !alive.is_empty() => {
                found.push((
                    number,
                    match transcript.subject {
                        Protocol::ZooKeeper => "zookeeper ping".to_string(),
                        Protocol::Etcd => "etcd LeaseKeepAlive again".to_string(),
                    },
                ));
                continue;
            }
            _ => continue,
        };
        let value = bindings.resolve(line.connection, &line.value);
        let pattern = match (transcript.subject, line.side) {
            (Protocol::ZooKeeper, Side::Client) => {
                let pattern = zookeeper(&line.kind, &value, line);
                // Behind the connect and before its answer.
                if greeting.contains(&line.connection)
                    && line.stream == 0
                    && !matches!(line.kind.as_str(), "close" | "reset")
                {
                    found.push((
                        number,
                        format!("zookeeper {} before the answer to connect", line.kind),
                    ));
                }
                if line.kind == "connect" {
                    greeting.insert(line.connection);
                }
                pattern
            }
            (Protocol::ZooKeeper, Side::Server) => {
                greeting.remove(&line.connection);
                None
            }
            (Protocol::Etcd, Side::Client) => {
                if line.kind == "call" {
                    let method = value.get("method").and_then(Value::plain);
                    let method = String::from_utf8_lossy(&method.unwrap_or_default()).into_owned();
                    methods.insert((line.connection, line.stream), method);
                }
                let method = methods
                    .get(&(line.connection, line.stream))
                    .map_or("", String::as_str);
                etcd(method, &line.kind, &value)
            }
            (Protocol::Etcd, Side::Server) => None,
        };
        if let Some(pattern) = pattern {
            found.push((number, format!("{} {pattern}", transcript.subject.name())));
        }
    }
    found
}

fn zookeeper(kind: &str, value: &Value, line: &Line) -> Option<String> {
    let mut words = vec![kind.to_string()];
    match kind {
        "open" | "close" | "reset" => return None,
        "connect" => {
            let session = line.value.get("session");
            words.push(
                if session == Some(&Value::Int(0)) {
                    "new"
                } else {
                    "again"
                }
                .to_string(),
            );
            if int(value, "protocol") != Some(0) {
                words.push("protocol>0".to_string());
            }
            words.push(match value.get("readOnly") {
                None => "44-bytes".to_string(),
                Some(Value::Bool(true)) => "read-only".to_string(),
                Some(_) => "45-bytes".to_string(),
            });
            if line.value.get("lastZxid") != Some(&Value::Int(0)) {
                words.push("lastZxid>0".to_string());
            }
        }
        "word" => {
            let text = value.get("text").and_then(Value::plain).unwrap_or_default();
            words.push(String::from_utf8_lossy(&text).trim().to_string());
        }
        "multi" | "multiRead" => {
            let parts = value.get("parts").map(Value::list).unwrap_or_default();
            let mut kinds: Vec<String> = parts
                .iter()
                .map(|part| {
                    let kind = part.get("op").and_then(Value::as_word).unwrap_or("?");
                    let mut words = vec![kind.to_string()];
                    words.extend(zookeeper_options(kind, part));
                    words.join(" ")
                })
                .collect();
            kinds.sort();
            kinds.dedup();
            words.push(format!("[{}]", kinds.join(", ")));
        }
        _ => words.extend(zookeeper_options(kind, value)),
    }
    // Numbers of their own that most libraries use and go-zookeeper does not.
    if let ("auth" | "setWatches" | "setWatches2", Some(xid)) = (kind, int(value, "xid")) {
        words.push(if xid < 0 {
            format!("xid={xid}")
        } else {
            "xid>0".to_string()
        });
    }
    Some(words.join(" "))
}

fn zookeeper_options(kind: &str, value: &Value) -> Vec<String> {
    let mut words = Vec::new();
    if value.get("body").is_some() {
        words.push("not-well-formed".to_string());
        return words;
    }
    if kind.starts_with("create") {
        words.push(format!(
            "mode={}",
            match int(value, "flags") {
                Some(0) => "persistent",
                Some(1) => "ephemeral",
                Some(2) => "persistent_sequential",
                Some(3) => "ephemeral_sequential",
                Some(4) => "container",
                Some(5) => "ttl",
                Some(6) => "ttl_sequential",
                _ => "other",
            }
        ));
    }
    if let Some(list) = value.get("acl") {
        words.push(format!("acl={}", acl(list)));
    }
    match value.get("data") {
        Some(Value::Null) => words.push("data=null".to_string()),
        Some(data) if data.plain().is_some_and(|data| data.is_empty()) => {
            words.push("data=empty".to_string());
        }
        _ => {}
    }
    if let Some(version) = int(value, "version") {
        words.push(
            if version == -1 {
                "version=any"
            } else {
                "version=given"
            }
            .to_string(),
        );
    }
    if value.get("watch") == Some(&Value::Bool(true)) {
        words.push("watch".to_string());
    }
    if kind.starts_with("setWatches") {
        let lists: Vec<&str> = ["data", "exist", "child", "persistent", "recursive"]
            .into_iter()
            .filter(|name| value.get(name).is_some_and(|list| !list.list().is_empty()))
            .collect();
        words.push(lists.join("+"));
    }
    if let Some(mode) = int(value, "mode") {
        words.push(format!("mode={mode}"));
    }
    if kind.ends_with("Watches")
        && let Some(watch) = int(value, "kind")
    {
        words.push(format!("kind={watch}"));
    }
    if let Some(scheme) = value.get("scheme").and_then(Value::plain) {
        words.push(format!("scheme={}", String::from_utf8_lossy(&scheme)));
    }
    words
}

fn acl(list: &Value) -> String {
    if *list == Value::Null {
        return "null".to_string();
    }
    let open = Value::record([
        ("perms", Value::Int(31)),
        ("scheme", Value::bytes("world")),
        ("id", Value::bytes("anyone")),
    ]);
    let mut kinds: Vec<String> = list
        .list()
        .iter()
        .map(|entry| {
            if *entry == open {
                return "open".to_string();
            }
            let scheme = entry
                .get("scheme")
                .and_then(Value::plain)
                .unwrap_or_default();
            String::from_utf8_lossy(&scheme).into_owned()
        })
        .collect();
    kinds.sort();
    kinds.dedup();
    if kinds.is_empty() {
        "empty".to_string()
    } else {
        kinds.join("+")
    }
}

fn etcd(method: &str, kind: &str, value: &Value) -> Option<String> {
    let short = method.rsplit('/').next().unwrap_or_default();
    match kind {
        "open" | "close" => None,
        // The ordinary end of the request of a call; of a stream, a way to say that one is done.
        "end" => matches!(short, "Watch" | "LeaseKeepAlive").then(|| format!("{short} half-close")),
        "reset" if method.is_empty() => None,
        "reset" => Some(format!(
            "{short} reset={}",
            int(value, "code").unwrap_or_default()
        )),
        "call" => {
            let mut words: Vec<String> = value
                .get("metadata")
                .map(Value::fields)
                .unwrap_or_default()
                .iter()
                .map(|(name, _)| name.clone())
                .collect();
            if value.get("deadline").is_some() {
                words.push("deadline".to_string());
            }
            let known = crate::raw::etcd::method(method).is_some();
            Some(if known {
                format!("{short} with {}", words.join("+"))
            } else {
                format!("{method} with {}", words.join("+"))
            })
            .filter(|_| !words.is_empty() || !known)
        }
        "http" => Some(http(value)),
        _ if value.get("raw").is_some() || value.get("compressed").is_some() => {
            Some(format!("{short} not-well-formed"))
        }
        _ => {
            let mut words = vec![short.to_string()];
            words.extend(options(short, value));
            Some(words.join(" "))
        }
    }
}

/// The options of a message, by the names of its fields.
fn options(name: &str, value: &Value) -> Vec<String> {
    match name {
        "Txn" => vec![
            format!("compare={}", each(value.get("compare"), compare)),
            format!("then={}", each(value.get("success"), operation)),
            format!("else={}", each(value.get("failure"), operation)),
        ],
        "Watch" => value
            .fields()
            .iter()
            .flat_map(|(name, request)| {
                let mut words = vec![name.trim_end_matches("_request").to_string()];
                if name == "create_request" {
                    words.extend(fields(request));
                }
                words
            })
            .collect(),
        _ => fields(value),
    }
}

fn fields(value: &Value) -> Vec<String> {
    let mut words = Vec::new();
    if let Some(range) = range(value) {
        words.push(range.to_string());
    }
    let mut sort = Vec::new();
    for (name, field) in value.fields() {
        match (name.as_str(), field) {
            ("key" | "range_end", _) => {}
            ("sort_order" | "sort_target", Value::Word(word)) => sort.push(word.to_lowercase()),
            ("value", field) if field.plain().is_some_and(|text| text.is_empty()) => {
                words.push("value=empty".to_string());
            }
            ("value", _) => {}
            (name, Value::Word(word)) => words.push(format!("{name}={}", word.to_lowercase())),
            ("filters", Value::List(list)) => {
                let list: Vec<String> = list
                    .iter()
                    .map(|value| value.to_string().to_lowercase())
                    .collect();
                words.push(format!("filters={}", list.join("+")));
            }
            (name, Value::Int(number)) => {
                words.push(match number {
                    ..0 => format!("{name}<0"),
                    0 => format!("{name}=0"),
                    1 if name == "limit" => "limit=1".to_string(),
                    _ => format!("{name}>0"),
                });
            }
            (name, _) => words.push(name.to_string()),
        }
    }
    if !sort.is_empty() {
        words.push(format!("sort={}", sort.join("/")));
    }
    words
}

/// Which keys a range names.
fn range(value: &Value) -> Option<&'static str> {
    let key = value.get("key").and_then(Value::plain);
    let end = value
        .get("range_end")
        .and_then(Value::plain)
        .unwrap_or_default();
    let Some(key) = key else {
        return (!end.is_empty()).then_some("range-from-nothing");
    };
    Some(match (key.as_slice(), end.as_slice()) {
        (_, b"") => "key",
        (b"\0", b"\0") => "all",
        (_, b"\0") => "from-key",
        (key, end) => {
            let mut next = key.to_vec();
            if let Some(last) = next.last_mut() {
                *last = last.wrapping_add(1);
            }
            if next == end { "prefix" } else { "range" }
        }
    })
}

fn each(list: Option<&Value>, one: impl Fn(&Value) -> String) -> String {
    let mut words: Vec<String> = list
        .map(Value::list)
        .unwrap_or_default()
        .iter()
        .map(one)
        .collect();
    words.dedup();
    if words.is_empty() {
        "none".to_string()
    } else {
        words.join("; ")
    }
}

fn compare(value: &Value) -> String {
    let target = value
        .get("target")
        .and_then(Value::as_word)
        .unwrap_or("VERSION");
    let result = match value.get("result").and_then(Value::as_word) {
        None | Some("EQUAL") => "=",
        Some("GREATER") => ">",
        Some("LESS") => "<",
        Some("NOT_EQUAL") => "!=",
        Some(other) => other,
    };
    let range = match range(value) {
        Some("key") | None => "",
        Some(other) => other,
    };
    format!("{}({result}){range}", target.to_lowercase())
}

fn operation(value: &Value) -> String {
    let Some((name, request)) = value.fields().first() else {
        return "nothing".to_string();
    };
    let name = name.trim_start_matches("request_");
    let mut words = vec![name.to_string()];
    words.extend(options(if name == "txn" { "Txn" } else { name }, request));
    words.join(" ")
}

fn http(value: &Value) -> String {
    let method = value.get("method").and_then(Value::as_word).unwrap_or("?");
    let path = value.get("path").and_then(Value::plain).unwrap_or_default();
    let mut words = vec![
        "json".to_string(),
        method.to_string(),
        String::from_utf8_lossy(&path).into_owned(),
    ];
    match (value.get("json"), value.get("body")) {
        (Some(json), _) => words.push(shape(json)),
        (None, Some(_)) => words.push("not-json".to_string()),
        (None, None) => {}
    }
    if value.get("authorization").is_some() {
        words.push("authorization".to_string());
    }
    words.join(" ")
}

/// The names of JSON's fields, with how numbers are written.
fn shape(json: &Value) -> String {
    match json {
        Value::Record(fields) => match fields.as_slice() {
            [(name, _)] if name == "b64" => "b64".to_string(),
            [(name, _)] if name == "str" => "\"int\"".to_string(),
            _ => {
                let fields: Vec<String> = fields
                    .iter()
                    .map(|(name, value)| format!("{name}:{}", shape(value)))
                    .collect();
                format!("{{{}}}", fields.join(" "))
            }
        },
        Value::List(list) => {
            let mut shapes: Vec<String> = list.iter().map(shape).collect();
            shapes.dedup();
            format!("[{}]", shapes.join(" "))
        }
        Value::Int(_) => "int".to_string(),
        Value::Bool(_) => "bool".to_string(),
        Value::Null => "null".to_string(),
        _ => "text".to_string(),
    }
}

fn int(value: &Value, name: &str) -> Option<i64> {
    value.get(name).and_then(Value::int)
}
