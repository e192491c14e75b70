//! An operation of a script, such as
//!
//! ```text
//! KV/Put {key="$/a" value="1" lease=L1} #1
//! KV/Range+hasleader {key="$/a" revision=@1}
//! w0 [{create_request={key="$/" range_end="$0"}} {progress_request={}}]
//! w0 close
//! k0 [{ID=L1} {ID=L9}]
//! o0 [{name="$vote"}]
//! w1 open+hasleader
//! raw KV/Nope ""
//! http POST /v3/kv/range {"key":"<$/a>","revision":"<@1>"}
//! sleep 3500
//! ```
//!
//! `#1` marks an operation whose revision others refer to. `w0` is a watch stream, `k0` a keep-alive stream,
//! `o0` an Observe stream of the client: the first use opens it, all requests of a line go out in one go,
//! `close` ends the client's side, `drop` cancels the stream. `open` opens it with metadata. What stands between `<` and `>` in
//! the body of an HTTP request is filled in: a revision or lease as a number, anything else in base64.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};

use super::value::{Value, parse, quote};

/// What one client does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// The mark by which others name its revision; 0 for none.
    pub mark: u32,
    /// What it does.
    pub call: Call,
}

/// Its kinds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// A request with one reply. A lock or a campaign that has to wait is answered at a later step.
    Unary {
        /// `Service/Method`.
        method: String,
        /// Metadata sent with it.
        extra: Option<Extra>,
        /// The request.
        request: Value,
    },
    /// Bytes as they are to a path that need not exist.
    Raw {
        /// `Service/Method`.
        method: String,
        /// The message.
        bytes: Vec<u8>,
    },
    /// An HTTP request of one's own, which may be wrong in any way.
    Http {
        /// `GET`, `POST`, …
        verb: String,
        /// Path and query.
        path: String,
        /// The body, with what is to be filled in.
        body: String,
    },
    /// Opens a stream with metadata; nothing when it is open.
    Open(StreamName, Extra),
    /// Requests on a stream.
    Send {
        /// The stream.
        stream: StreamName,
        /// The requests, sent in one go.
        requests: Vec<Value>,
    },
    /// Ends the client's side of a stream.
    Close(StreamName),
    /// Cancels a stream.
    Drop(StreamName),
    /// Lets time pass, in milliseconds.
    Sleep(u64),
}

/// Metadata that clients send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extra {
    /// `hasleader: true`.
    HasLeader,
    /// A token that was never given out.
    Token,
}

/// A stream of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamName {
    /// Its kind.
    pub kind: StreamKind,
    /// Which one of that kind.
    pub number: u8,
}

/// The kinds of streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamKind {
    /// Watch/Watch.
    Watch,
    /// Lease/LeaseKeepAlive.
    KeepAlive,
    /// Election/Observe: one request, many replies.
    Observe,
}

impl Operation {
    /// Whether the store may have changed or a stream may have something to say after it. This is decided by
    /// the script alone, so that two runs of it never differ in what the runner itself writes.
    pub fn may_have_effects(&self) -> bool {
        match &self.call {
            Call::Unary { method, .. } => !matches!(
                method.as_str(),
                "KV/Range"
                    | "Lease/LeaseTimeToLive"
                    | "Lease/LeaseLeases"
                    | "Cluster/MemberList"
                    | "Maintenance/Status"
                    | "Maintenance/Alarm"
                    | "Election/Leader"
                    | "Auth/AuthStatus"
                    | "Auth/Authenticate"
            ),
            Call::Raw { .. } | Call::Open(..) => false,
            Call::Http { .. }
            | Call::Send { .. }
            | Call::Close(_)
            | Call::Drop(_)
            | Call::Sleep(_) => true,
        }
    }
}

impl Operation {
    /// Whether it may leave a user or a role behind.
    pub fn is_about_users(&self) -> bool {
        matches!(&self.call, Call::Unary { method, .. }
            if method == "Auth/UserAdd" || method == "Auth/RoleAdd")
    }
}

impl Operation {
    /// Simpler variants, the simplest first.
    pub fn simpler(&self) -> Vec<Operation> {
        let with = |call| Operation {
            mark: self.mark,
            call,
        };
        let mut variants = Vec::new();
        match &self.call {
            Call::Unary {
                method,
                extra,
                request,
            } => {
                let call = |extra: &Option<Extra>, request| Call::Unary {
                    method: method.clone(),
                    extra: *extra,
                    request,
                };
                if extra.is_some() {
                    variants.push(with(call(&None, request.clone())));
                }
                let simpler = request.simpler().into_iter();
                variants.extend(simpler.map(|request| with(call(extra, request))));
            }
            Call::Send { stream, requests } => {
                for simpler in Value::List(requests.clone()).simpler() {
                    if let Value::List(requests) = simpler
                        && !requests.is_empty()
                    {
                        let stream = *stream;
                        variants.push(with(Call::Send { stream, requests }));
                    }
                }
            }
            Call::Raw { .. }
            | Call::Http { .. }
            | Call::Open(..)
            | Call::Close(_)
            | Call::Drop(_)
            | Call::Sleep(_) => {}
        }
        if self.mark != 0 {
            variants.push(Operation {
                mark: 0,
                call: self.call.clone(),
            });
        }
        variants
    }
}

impl Extra {
    /// As it stands behind a `+`.
    fn word(self) -> &'static str {
        match self {
            Extra::HasLeader => "hasleader",
            Extra::Token => "token",
        }
    }

    fn named(word: &str) -> Result<Extra> {
        [Extra::HasLeader, Extra::Token]
            .into_iter()
            .find(|extra| extra.word() == word)
            .with_context(|| format!("unknown metadata {word}"))
    }

    /// The key and value sent.
    pub fn metadata(self) -> (&'static str, &'static str) {
        match self {
            Extra::HasLeader => ("hasleader", "true"),
            Extra::Token => ("token", "nobody.1"),
        }
    }
}

impl StreamKind {
    /// The gRPC path.
    pub fn path(self) -> &'static str {
        match self {
            StreamKind::Watch => "/etcdserverpb.Watch/Watch",
            StreamKind::KeepAlive => "/etcdserverpb.Lease/LeaseKeepAlive",
            StreamKind::Observe => "/v3electionpb.Election/Observe",
        }
    }
}

/// The gRPC path of `Service/Method`.
pub(super) fn path(method: &str) -> String {
    match method.split_once('/') {
        Some(("Lock", name)) => format!("/v3lockpb.Lock/{name}"),
        Some(("Election", name)) => format!("/v3electionpb.Election/{name}"),
        Some((service, _)) if service.contains('.') => format!("/{method}"),
        _ => format!("/etcdserverpb.{method}"),
    }
}

impl fmt::Display for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            StreamKind::Watch => 'w',
            StreamKind::KeepAlive => 'k',
            StreamKind::Observe => 'o',
        };
        write!(f, "{kind}{}", self.number)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.call {
            Call::Unary {
                method,
                extra,
                request,
            } => {
                let extra = extra.map_or(String::new(), |extra| format!("+{}", extra.word()));
                write!(f, "{method}{extra} {request}")
            }
            Call::Raw { method, bytes } => write!(f, "raw {method} {}", quote(bytes)),
            Call::Http { verb, path, body } => {
                let space = if body.is_empty() { "" } else { " " };
                write!(f, "http {verb} {path}{space}{body}")
            }
            Call::Open(stream, extra) => write!(f, "{stream} open+{}", extra.word()),
            Call::Send { stream, requests } => {
                write!(f, "{stream} {}", Value::List(requests.clone()))
            }
            Call::Close(stream) => write!(f, "{stream} close"),
            Call::Drop(stream) => write!(f, "{stream} drop"),
            Call::Sleep(millis) => write!(f, "sleep {millis}"),
        }?;
        if self.mark != 0 {
            write!(f, " #{}", self.mark)?;
        }
        Ok(())
    }
}

impl FromStr for Operation {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Operation> {
        let mut rest = line.trim();
        let mut mark = 0;
        // A `#` inside quotes is followed by more than digits, at least by the quote.
        if let Some((before, number)) = rest.rsplit_once(" #")
            && let Ok(number) = number.parse()
        {
            mark = number;
            rest = before.trim_end();
        }
        let (head, tail) = split(rest).context("an operation and what it takes")?;
        let call = if head == "sleep" {
            Call::Sleep(tail.parse().context("milliseconds")?)
        } else if head == "raw" {
            let (method, bytes) = split(tail).context("raw takes a path and bytes")?;
            let Value::Bytes(bytes) = parse(bytes)? else {
                bail!("raw takes bytes");
            };
            Call::Raw {
                method: method.to_string(),
                bytes,
            }
        } else if head == "http" {
            let (verb, rest) = split(tail).context("http takes a verb and a path")?;
            let (path, body) = split(rest).unwrap_or((rest, ""));
            Call::Http {
                verb: verb.to_string(),
                path: path.to_string(),
                body: body.to_string(),
            }
        } else if head.contains('/') {
            let (method, extra) = match head.split_once('+') {
                None => (head, None),
                Some((method, extra)) => (method, Some(Extra::named(extra)?)),
            };
            Call::Unary {
                method: method.to_string(),
                extra,
                request: parse(tail)?,
            }
        } else {
            let stream = stream(head)?;
            match tail {
                "close" => Call::Close(stream),
                "drop" => Call::Drop(stream),
                open if open.starts_with("open+") => {
                    Call::Open(stream, Extra::named(&open["open+".len()..])?)
                }
                requests => {
                    let Value::List(requests) = parse(requests)? else {
                        bail!("a stream takes a list of requests");
                    };
                    Call::Send { stream, requests }
                }
            }
        };
        Ok(Operation { mark, call })
    }
}

fn split(text: &str) -> Option<(&str, &str)> {
    let (head, tail) = text.split_once(' ')?;
    Some((head, tail.trim_start()))
}

fn stream(name: &str) -> Result<StreamName> {
    let mut chars = name.chars();
    let kind = match chars.next() {
        Some('w') => StreamKind::Watch,
        Some('k') => StreamKind::KeepAlive,
        Some('o') => StreamKind::Observe,
        _ => bail!("unknown operation {name}"),
    };
    let number = chars.as_str().parse().context("the stream's number")?;
    Ok(StreamName { kind, number })
}
