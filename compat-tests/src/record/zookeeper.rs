//! ZooKeeper's frames as values, and back.

use std::collections::VecDeque;

use anyhow::{Context as _, Result, bail};

use super::names::Context;
use super::proxy::{Decode, Element};
use super::transcript::Side;
use super::value::{Class, Raw, Value};
use crate::raw::zookeeper::{
    Acl, Body, ConnectRequest, ConnectResponse, Event, Frames, Reply, Request, RequestFrame,
    ServerFrame, Stat, error_name, event_name, op, xid,
};

/// Finds frames, or one of the four-letter words.
#[derive(Debug, Default)]
pub struct Decoder {
    client: Half,
    server: Half,
    pending: VecDeque<Pending>,
}

#[derive(Debug, Default)]
struct Half {
    frames: Frames,
    state: State,
    text: Vec<u8>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The first frame, or a word of four letters.
    #[default]
    Start,
    Frames,
    /// Something else: shown at the end, as it was.
    Text,
}

#[derive(Debug)]
struct Pending {
    xid: i32,
    op: i32,
    path: Option<Vec<u8>>,
    sequential: bool,
}

impl Decode for Decoder {
    fn bytes(&mut self, side: Side, bytes: &[u8], found: &mut Vec<Element>) {
        let talks_words = self.client.state == State::Text;
        let half = self.half(side);
        if half.state == State::Start {
            let start = [half.frames.rest(), bytes].concat();
            if talks_words || side == Side::Client && is_word(&start) {
                half.state = State::Text;
            }
        }
        if half.state == State::Text {
            half.text.extend_from_slice(bytes);
            if side == Side::Client {
                found.push(Element::new(
                    0,
                    side,
                    "word",
                    Value::record([("text", Value::bytes(bytes))]),
                ));
            }
            return;
        }
        half.frames.push(bytes);
        loop {
            match self.half(side).frames.next() {
                Ok(Some(payload)) => found.push(self.frame(side, &payload)),
                Ok(None) => return,
                Err(_) => {
                    let half = self.half(side);
                    half.state = State::Text;
                    let rest = half.frames.rest().to_vec();
                    found.push(garbage(side, rest));
                    return;
                }
            }
        }
    }

    fn end(&mut self, side: Side, found: &mut Vec<Element>) {
        let half = self.half(side);
        match half.state {
            // What a word's answer says differs in every run; that there is one does not.
            State::Text if side == Side::Server && !half.text.is_empty() => {
                found.push(Element::new(
                    0,
                    side,
                    "word",
                    Value::record([("text", Value::Any)]),
                ));
            }
            State::Text => {}
            State::Start | State::Frames => {
                let rest = half.frames.rest().to_vec();
                if !rest.is_empty() {
                    found.push(garbage(side, rest));
                }
            }
        }
    }
}

impl Decoder {
    fn half(&mut self, side: Side) -> &mut Half {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    fn frame(&mut self, side: Side, payload: &[u8]) -> Element {
        let half = self.half(side);
        let first = half.state == State::Start;
        half.state = State::Frames;
        match (side, first) {
            (Side::Client, true) => match ConnectRequest::decode(payload) {
                Ok(request) => Element::new(0, side, "connect", connect_request(&request)),
                Err(_) => frame_of(side, payload),
            },
            (Side::Server, true) => match ConnectResponse::decode(payload) {
                Ok(response) => Element::new(0, side, "connect", connect_response(&response)),
                Err(_) => frame_of(side, payload),
            },
            (Side::Client, false) => match RequestFrame::decode(payload) {
                Ok(frame) => self.request(&frame),
                Err(_) => frame_of(side, payload),
            },
            (Side::Server, false) => self.reply(payload),
        }
    }

    fn request(&mut self, frame: &RequestFrame) -> Element {
        self.pending.push_back(Pending {
            xid: frame.xid,
            op: frame.request.op(),
            path: path(&frame.request),
            sequential: is_sequential(&frame.request),
        });
        Element {
            repeated: frame.xid == xid::PING,
            ..Element::new(0, Side::Client, name(frame.request.op()), request(frame))
        }
    }

    fn reply(&mut self, payload: &[u8]) -> Element {
        let mut asked = None;
        let pending = &mut self.pending;
        let frame = ServerFrame::decode(payload, |xid| {
            let at = pending.iter().position(|request| request.xid == xid)?;
            asked = pending.remove(at);
            asked.as_ref().map(|request| request.op)
        });
        match frame {
            Ok(ServerFrame::Event(event)) => {
                Element::new(0, Side::Server, "event", event_value(&event))
            }
            Ok(ServerFrame::Reply(answer)) => {
                let kind = answer.op.map_or_else(|| "unasked".to_string(), name);
                let sequential = asked.as_ref().is_some_and(|request| request.sequential);
                Element {
                    context: Context {
                        zxid: (answer.zxid > 0).then_some(answer.zxid),
                        path: asked.and_then(|request| request.path),
                    },
                    repeated: answer.xid == xid::PING,
                    ..Element::new(0, Side::Server, kind, reply(&answer, sequential))
                }
            }
            Err(_) => frame_of(Side::Server, payload),
        }
    }
}

/// A client's message as bytes to send.
///
/// # Errors
/// The line is no message of a client.
pub fn encode(kind: &str, value: &Value) -> Result<Vec<u8>> {
    let framed = |payload: &[u8]| crate::raw::zookeeper::frame(payload);
    match kind {
        "word" => Ok(bytes(value, "text")?.context("a word")?),
        "garbage" => Ok(bytes(value, "bytes")?.context("bytes")?),
        "frame" => Ok(framed(&bytes(value, "bytes")?.context("bytes")?)),
        "connect" => {
            let request = ConnectRequest {
                protocol_version: number(value, "protocol")?,
                last_zxid_seen: int(value, "lastZxid")?,
                timeout: number(value, "timeout")?,
                session_id: int(value, "session")?,
                password: bytes(value, "password")?,
                read_only: value.get("readOnly").map(|flag| *flag == Value::Bool(true)),
            };
            Ok(framed(&request.encode()))
        }
        _ => {
            let frame = RequestFrame {
                xid: number(value, "xid")?,
                request: parse_request(kind, value, 0)?,
            };
            Ok(framed(&frame.encode()))
        }
    }
}

/// Whether a first packet is a word that an administrator types.
fn is_word(start: &[u8]) -> bool {
    start
        .first_chunk::<4>()
        .is_some_and(|word| word.iter().all(u8::is_ascii_lowercase))
}

fn garbage(side: Side, bytes: Vec<u8>) -> Element {
    Element::new(
        0,
        side,
        "garbage",
        Value::record([("bytes", Value::bytes(bytes))]),
    )
}

/// A whole frame that is none of the known records.
fn frame_of(side: Side, payload: &[u8]) -> Element {
    Element::new(
        0,
        side,
        "frame",
        Value::record([("bytes", Value::bytes(payload))]),
    )
}

fn name(op: i32) -> String {
    op::name(op).map_or_else(|| format!("op{op}"), str::to_string)
}

fn number_of(name: &str) -> Result<i32> {
    if let Some(number) = name.strip_prefix("op")
        && let Ok(number) = number.parse()
    {
        return Ok(number);
    }
    (-11..=107)
        .find(|number| op::name(*number) == Some(name))
        .with_context(|| format!("no request is named {name}"))
}

fn text(text: &str) -> Value {
    Value::bytes(text.as_bytes())
}

fn optional(text: Option<&str>) -> Value {
    text.map_or(Value::Null, |text| Value::bytes(text.as_bytes()))
}

fn buffer(bytes: Option<&[u8]>) -> Value {
    bytes.map_or(Value::Null, Value::bytes)
}

fn texts(list: &[String]) -> Value {
    Value::List(list.iter().map(|name| text(name)).collect())
}

fn num(number: impl Into<i128>) -> Value {
    Value::Int(number.into())
}

fn chosen(class: Class, number: i64) -> Value {
    Value::Chosen(class, Raw::Int(number))
}

fn password(bytes: Option<&[u8]>) -> Value {
    bytes.map_or(Value::Null, |bytes| {
        Value::Chosen(Class::Password, Raw::Bytes(bytes.to_vec()))
    })
}

fn connect_request(request: &ConnectRequest) -> Value {
    let mut fields = vec![
        ("protocol".to_string(), num(request.protocol_version)),
        (
            "lastZxid".to_string(),
            chosen(Class::Seen, request.last_zxid_seen),
        ),
        ("timeout".to_string(), num(request.timeout)),
        (
            "session".to_string(),
            chosen(Class::Session, request.session_id),
        ),
        (
            "password".to_string(),
            password(request.password.as_deref()),
        ),
    ];
    if let Some(read_only) = request.read_only {
        fields.push(("readOnly".to_string(), Value::Bool(read_only)));
    }
    Value::Record(fields)
}

fn connect_response(response: &ConnectResponse) -> Value {
    let mut fields = vec![
        ("protocol".to_string(), num(response.protocol_version)),
        ("timeout".to_string(), num(response.timeout)),
        (
            "session".to_string(),
            chosen(Class::Session, response.session_id),
        ),
        (
            "password".to_string(),
            password(response.password.as_deref()),
        ),
    ];
    if let Some(read_only) = response.read_only {
        fields.push(("readOnly".to_string(), Value::Bool(read_only)));
    }
    Value::Record(fields)
}

fn request(frame: &RequestFrame) -> Value {
    let mut fields = vec![("xid".to_string(), num(frame.xid))];
    fields.extend(request_fields(&frame.request));
    Value::Record(fields)
}

fn acl(acl: Option<&[Acl]>) -> Value {
    let Some(acl) = acl else { return Value::Null };
    Value::List(
        acl.iter()
            .map(|entry| {
                Value::record([
                    ("perms", num(entry.perms)),
                    ("scheme", text(&entry.scheme)),
                    ("id", text(&entry.id)),
                ])
            })
            .collect(),
    )
}

fn request_fields(request: &Request) -> Vec<(String, Value)> {
    let fields = match request {
        Request::Create {
            path,
            data,
            acl: list,
            flags,
            ttl,
            ..
        } => {
            let mut fields = vec![
                ("path", text(path)),
                ("data", buffer(data.as_deref())),
                ("acl", acl(list.as_deref())),
                ("flags", num(*flags)),
            ];
            if let Some(ttl) = ttl {
                fields.push(("ttl", num(*ttl)));
            }
            fields
        }
        Request::Delete { path, version } | Request::Check { path, version } => {
            vec![("path", text(path)), ("version", num(*version))]
        }
        Request::Read { path, watch, .. } => {
            vec![("path", text(path)), ("watch", Value::Bool(*watch))]
        }
        Request::SetData {
            path,
            data,
            version,
        } => vec![
            ("path", text(path)),
            ("data", buffer(data.as_deref())),
            ("version", num(*version)),
        ],
        Request::SetAcl {
            path,
            acl: list,
            version,
        } => vec![
            ("path", text(path)),
            ("acl", acl(list.as_deref())),
            ("version", num(*version)),
        ],
        Request::Path { path, .. } => vec![("path", text(path))],
        Request::Multi { parts, .. } => {
            let parts = parts.iter().map(|part| {
                let mut fields = vec![("op".to_string(), Value::word(name(part.op())))];
                fields.extend(request_fields(part));
                Value::Record(fields)
            });
            vec![("parts", Value::List(parts.collect()))]
        }
        Request::Reconfig {
            joining,
            leaving,
            members,
            from_config,
        } => vec![
            ("joining", optional(joining.as_deref())),
            ("leaving", optional(leaving.as_deref())),
            ("members", optional(members.as_deref())),
            ("fromConfig", num(*from_config)),
        ],
        Request::Watches { path, kind, .. } => {
            vec![("path", text(path)), ("kind", num(*kind))]
        }
        Request::AddWatch { path, mode } => vec![("path", text(path)), ("mode", num(*mode))],
        Request::Auth { kind, scheme, auth } => vec![
            ("kind", num(*kind)),
            ("scheme", text(scheme)),
            ("auth", buffer(auth.as_deref())),
        ],
        Request::SetWatches {
            zxid,
            data,
            exist,
            child,
            persistent,
        } => {
            let mut fields = vec![
                ("zxid", chosen(Class::Seen, *zxid)),
                ("data", texts(data)),
                ("exist", texts(exist)),
                ("child", texts(child)),
            ];
            if let Some((persistent, recursive)) = persistent {
                fields.push(("persistent", texts(persistent)));
                fields.push(("recursive", texts(recursive)));
            }
            fields
        }
        Request::Sasl { token } => vec![("token", buffer(token.as_deref()))],
        Request::Empty { .. } => Vec::new(),
        Request::Raw { body, .. } => vec![("body", Value::bytes(body.clone()))],
    };
    fields
        .into_iter()
        .map(|(name, value)| (name.to_string(), value))
        .collect()
}

fn path(request: &Request) -> Option<Vec<u8>> {
    match request {
        Request::Create { path, .. }
        | Request::Delete { path, .. }
        | Request::Read { path, .. }
        | Request::SetData { path, .. }
        | Request::SetAcl { path, .. }
        | Request::Path { path, .. }
        | Request::Check { path, .. } => Some(path.clone().into_bytes()),
        _ => None,
    }
}

/// ZooKeeper: `CreateMode`, the flags of sequential kinds.
fn is_sequential(request: &Request) -> bool {
    match request {
        Request::Create { flags, .. } => matches!(flags, 2 | 3 | 6),
        Request::Multi { parts, .. } => parts.iter().any(is_sequential),
        _ => false,
    }
}

fn stat(stat: &Stat) -> Value {
    // ZooKeeper: EphemeralType. The highest byte tells containers and TTLs from sessions.
    let owner = match stat.ephemeral_owner {
        owner if owner == i64::MIN || owner.to_be_bytes().first() == Some(&0xff) => num(owner),
        owner => chosen(Class::Session, owner),
    };
    Value::record([
        ("czxid", chosen(Class::Zxid, stat.czxid)),
        ("mzxid", chosen(Class::Zxid, stat.mzxid)),
        ("ctime", Value::Any),
        ("mtime", Value::Any),
        ("version", num(stat.version)),
        ("cversion", num(stat.cversion)),
        ("aversion", num(stat.aversion)),
        ("owner", owner),
        ("length", num(stat.data_length)),
        ("children", num(stat.num_children)),
        ("pzxid", chosen(Class::Zxid, stat.pzxid)),
    ])
}

fn error(code: i32) -> Value {
    error_name(code).map_or_else(|| num(code), Value::word)
}

fn reply(reply: &Reply, sequential: bool) -> Value {
    let mut fields = vec![("xid".to_string(), num(reply.xid))];
    if reply.error != 0 {
        fields.push(("error".to_string(), error(reply.error)));
    } else if reply.op.is_some_and(is_write) {
        // Of a read it only tells how far the server is, which depends on what others do.
        fields.push(("zxid".to_string(), chosen(Class::Zxid, reply.zxid)));
    }
    fields.extend(body(&reply.body, sequential));
    Value::Record(fields)
}

fn is_write(op: i32) -> bool {
    matches!(
        op,
        op::CREATE
            | op::DELETE
            | op::SET_DATA
            | op::SET_ACL
            | op::MULTI
            | op::CREATE2
            | op::CREATE_CONTAINER
            | op::DELETE_CONTAINER
            | op::CREATE_TTL
    )
}

fn body(body: &Body, sequential: bool) -> Vec<(String, Value)> {
    let made = |path: &str| {
        if sequential {
            Value::Chosen(Class::Sequence, Raw::Bytes(path.as_bytes().to_vec()))
        } else {
            text(path)
        }
    };
    let fields = match body {
        Body::Empty => Vec::new(),
        Body::Path(path) => vec![("path", made(path))],
        Body::PathStat(path, s) => vec![("path", made(path)), ("stat", stat(s))],
        Body::Stat(s) => vec![("stat", stat(s))],
        Body::Data(data, s) => vec![("data", buffer(data.as_deref())), ("stat", stat(s))],
        Body::Acl(list, s) => vec![("acl", acl(list.as_deref())), ("stat", stat(s))],
        Body::Names(names) => vec![("children", sorted(names))],
        Body::NamesStat(names, s) => vec![("children", sorted(names)), ("stat", stat(s))],
        Body::Number(number) => vec![("count", num(*number))],
        Body::Who(identities) => {
            let identities = identities
                .iter()
                .map(|(scheme, user)| Value::List(vec![text(scheme), text(user)]));
            vec![("identities", Value::List(identities.collect()))]
        }
        Body::Token(token) => vec![("token", buffer(token.as_deref()))],
        Body::Multi(results) => {
            let results = results.iter().map(|result| {
                let mut fields = Vec::new();
                if result.kind == -1 {
                    fields.push(("error".to_string(), error(result.error)));
                } else {
                    fields.push(("op".to_string(), Value::word(name(result.kind))));
                    // Only a created path can be sequential; which part was, the path itself shows.
                    fields.extend(self::body(
                        &result.body,
                        sequential && ends_in_digits(&result.body),
                    ));
                }
                Value::Record(fields)
            });
            vec![("results", Value::List(results.collect()))]
        }
        Body::Raw(bytes) => vec![("body", Value::bytes(bytes.clone()))],
    };
    fields
        .into_iter()
        .map(|(name, value)| (name.to_string(), value))
        .collect()
}

fn ends_in_digits(body: &Body) -> bool {
    match body {
        Body::Path(path) | Body::PathStat(path, _) => path
            .len()
            .checked_sub(10)
            .and_then(|start| path.get(start..))
            .is_some_and(|end| end.bytes().all(|byte| byte.is_ascii_digit())),
        _ => false,
    }
}

/// ZooKeeper keeps children in a hash set: their order means nothing.
fn sorted(names: &[String]) -> Value {
    let mut names = names.to_vec();
    names.sort();
    texts(&names)
}

fn event_value(event: &Event) -> Value {
    Value::record([
        (
            "type",
            event_name(event.kind).map_or_else(|| num(event.kind), Value::word),
        ),
        ("state", num(event.state)),
        ("path", text(&event.path)),
    ])
}

fn field<'a>(value: &'a Value, name: &str) -> Result<&'a Value> {
    value.get(name).with_context(|| format!("no field {name}"))
}

fn int(value: &Value, name: &str) -> Result<i64> {
    field(value, name)?
        .int()
        .with_context(|| format!("{name} is no number"))
}

fn number(value: &Value, name: &str) -> Result<i32> {
    Ok(int(value, name)?.try_into()?)
}

fn bytes(value: &Value, name: &str) -> Result<Option<Vec<u8>>> {
    match field(value, name)? {
        Value::Null => Ok(None),
        value => value
            .plain()
            .map(Some)
            .with_context(|| format!("{name} is no text")),
    }
}

fn optional_string(value: &Value, name: &str) -> Result<Option<String>> {
    Ok(bytes(value, name)?.map(String::from_utf8).transpose()?)
}

fn string(value: &Value, name: &str) -> Result<String> {
    optional_string(value, name)?.with_context(|| format!("{name} is null"))
}

fn strings(value: &Value, name: &str) -> Result<Vec<String>> {
    field(value, name)?
        .list()
        .iter()
        .map(|value| Ok(String::from_utf8(value.plain().context("a text")?)?))
        .collect()
}

fn parse_acl(value: &Value) -> Result<Option<Vec<Acl>>> {
    match field(value, "acl")? {
        Value::Null => Ok(None),
        list => list
            .list()
            .iter()
            .map(|entry| {
                Ok(Acl {
                    perms: number(entry, "perms")?,
                    scheme: string(entry, "scheme")?,
                    id: string(entry, "id")?,
                })
            })
            .collect::<Result<_>>()
            .map(Some),
    }
}

fn parse_request(kind: &str, value: &Value, depth: u8) -> Result<Request> {
    let op = number_of(kind)?;
    if value.get("body").is_some() {
        return Ok(Request::Raw {
            op,
            body: bytes(value, "body")?.unwrap_or_default(),
        });
    }
    Ok(match op {
        op::CREATE | op::CREATE2 | op::CREATE_CONTAINER | op::CREATE_TTL => Request::Create {
            op,
            path: string(value, "path")?,
            data: bytes(value, "data")?,
            acl: parse_acl(value)?,
            flags: number(value, "flags")?,
            ttl: value.get("ttl").map(|_| int(value, "ttl")).transpose()?,
        },
        op::DELETE => Request::Delete {
            path: string(value, "path")?,
            version: number(value, "version")?,
        },
        op::CHECK => Request::Check {
            path: string(value, "path")?,
            version: number(value, "version")?,
        },
        op::EXISTS | op::GET_DATA | op::GET_CHILDREN | op::GET_CHILDREN2 => Request::Read {
            op,
            path: string(value, "path")?,
            watch: *field(value, "watch")? == Value::Bool(true),
        },
        op::SET_DATA => Request::SetData {
            path: string(value, "path")?,
            data: bytes(value, "data")?,
            version: number(value, "version")?,
        },
        op::SET_ACL => Request::SetAcl {
            path: string(value, "path")?,
            acl: parse_acl(value)?,
            version: number(value, "version")?,
        },
        op::GET_ACL
        | op::SYNC
        | op::DELETE_CONTAINER
        | op::GET_EPHEMERALS
        | op::GET_ALL_CHILDREN_NUMBER => Request::Path {
            op,
            path: string(value, "path")?,
        },
        op::MULTI | op::MULTI_READ if depth == 0 => Request::Multi {
            op,
            parts: field(value, "parts")?
                .list()
                .iter()
                .map(|part| {
                    let kind = field(part, "op")?.as_word().context("the part's op")?;
                    parse_request(kind, part, depth + 1)
                })
                .collect::<Result<_>>()?,
        },
        op::RECONFIG => Request::Reconfig {
            joining: optional_string(value, "joining")?,
            leaving: optional_string(value, "leaving")?,
            members: optional_string(value, "members")?,
            from_config: int(value, "fromConfig")?,
        },
        op::CHECK_WATCHES | op::REMOVE_WATCHES => Request::Watches {
            op,
            path: string(value, "path")?,
            kind: number(value, "kind")?,
        },
        op::ADD_WATCH => Request::AddWatch {
            path: string(value, "path")?,
            mode: number(value, "mode")?,
        },
        op::AUTH => Request::Auth {
            kind: number(value, "kind")?,
            scheme: string(value, "scheme")?,
            auth: bytes(value, "auth")?,
        },
        op::SET_WATCHES | op::SET_WATCHES2 => Request::SetWatches {
            zxid: int(value, "zxid")?,
            data: strings(value, "data")?,
            exist: strings(value, "exist")?,
            child: strings(value, "child")?,
            persistent: (op == op::SET_WATCHES2)
                .then(|| -> Result<_> {
                    Ok((strings(value, "persistent")?, strings(value, "recursive")?))
                })
                .transpose()?,
        },
        op::SASL => Request::Sasl {
            token: bytes(value, "token")?,
        },
        op::PING | op::CLOSE_SESSION | op::WHO_AM_I => Request::Empty { op },
        _ => bail!("{kind} is not known here"),
    })
}
