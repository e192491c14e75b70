//! The operations of a script and their text.
//!
//! A path that begins with `/` lies below the run's root (`/` is the root itself), one that begins with `~` below
//! the node of `/zookeeper/quota` that stands for the root; one that begins with `=` is sent as it stands behind
//! that sign. Data is one word (see [`quote`]), `null`, or `*N` for N bytes `x`.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, Error, Result, bail, ensure};

use crate::differential::script::{quote, unquote};
use crate::raw::zookeeper::{Acl, Request, op, open_acl};

/// What a client does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Sends a request, with the paths of the script. The zxid of setWatches: −1 stands for the last one seen.
    Ask(Request),
    /// Opens a connection with a new session.
    Connect {
        /// Asked for, in milliseconds.
        timeout: i32,
        /// The byte at the end of the connect request.
        read_only: Option<bool>,
    },
    /// Opens a connection for the session that the client has; one that it still holds goes on beside it until
    /// the server closes it.
    Reattach {
        /// Whether the password is the right one.
        right: bool,
        /// What the client says it has seen.
        zxid: SeenZxid,
    },
    /// Closes the socket; the session lives.
    Drop,
    /// Closes the session.
    Close,
    /// Lets the session expire: asks for the shortest timeout, closes the socket and waits.
    Expire,
    /// The same with an open socket on which nothing is said, as a client that hangs: the server closes it.
    Hang,
    /// Lets time pass, in milliseconds: for what a server does by itself.
    Wait(u32),
}

/// The `lastZxidSeen` of a connect request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeenZxid {
    /// The true one.
    True,
    /// 0.
    Zero,
    /// More than any server has.
    Future,
}

impl Op {
    /// The session's end or begin, or a request with which a server ends the connection: nothing may be sent
    /// along with it.
    pub(super) fn stands_alone(&self) -> bool {
        match self {
            Op::Ask(request) => matches!(
                request,
                Request::Auth { .. } | Request::Raw { .. } | Request::Check { .. }
            ),
            _ => true,
        }
    }

    /// Simpler variants.
    pub(super) fn simpler(&self) -> Vec<Op> {
        match self {
            Op::Ask(request) => simpler(request).into_iter().map(Op::Ask).collect(),
            Op::Connect { timeout, read_only } => {
                let plain = Op::Connect {
                    timeout: 30_000,
                    read_only: Some(false),
                };
                if (*timeout, *read_only) == (30_000, Some(false)) {
                    vec![]
                } else {
                    vec![plain]
                }
            }
            Op::Reattach { right, zxid } => {
                let plain = Op::Reattach {
                    right: true,
                    zxid: SeenZxid::True,
                };
                if (*right, *zxid) == (true, SeenZxid::True) {
                    vec![]
                } else {
                    vec![plain]
                }
            }
            Op::Hang => vec![Op::Expire],
            Op::Expire => vec![Op::Close],
            Op::Drop | Op::Close | Op::Wait(_) => vec![],
        }
    }
}

fn simpler(request: &Request) -> Vec<Request> {
    let mut out = Vec::new();
    let plain_data = |data: &Option<Vec<u8>>| -> Option<Option<Vec<u8>>> {
        let plain = Some(b"x".to_vec());
        (*data != plain).then_some(plain)
    };
    match request {
        Request::Create {
            op,
            path,
            data,
            acl,
            flags,
            ttl,
        } => {
            let with =
                |op: i32, data: &Option<Vec<u8>>, acl: &Option<Vec<Acl>>, flags: i32, ttl| {
                    Request::Create {
                        op,
                        path: path.clone(),
                        data: data.clone(),
                        acl: acl.clone(),
                        flags,
                        ttl,
                    }
                };
            if *op != op::CREATE {
                out.push(with(op::CREATE, data, acl, 0, None));
            }
            if let Some(data) = plain_data(data) {
                out.push(with(*op, &data, acl, *flags, *ttl));
            }
            if *acl != Some(open_acl()) {
                out.push(with(*op, data, &Some(open_acl()), *flags, *ttl));
            }
            if *flags != 0 && *op != op::CREATE_TTL && *op != op::CREATE_CONTAINER {
                out.push(with(*op, data, acl, 0, *ttl));
                if *flags == 3 {
                    out.push(with(*op, data, acl, 1, *ttl));
                    out.push(with(*op, data, acl, 2, *ttl));
                }
            }
        }
        Request::Delete { path, version } if *version != -1 => {
            out.push(Request::Delete {
                path: path.clone(),
                version: -1,
            });
        }
        Request::SetData {
            path,
            data,
            version,
        } => {
            if *version != -1 {
                out.push(Request::SetData {
                    path: path.clone(),
                    data: data.clone(),
                    version: -1,
                });
            }
            if let Some(data) = plain_data(data) {
                out.push(Request::SetData {
                    path: path.clone(),
                    data,
                    version: *version,
                });
            }
        }
        Request::SetAcl { path, acl, version } => {
            if *version != -1 {
                out.push(Request::SetAcl {
                    path: path.clone(),
                    acl: acl.clone(),
                    version: -1,
                });
            }
            if *acl != Some(open_acl()) {
                out.push(Request::SetAcl {
                    path: path.clone(),
                    acl: Some(open_acl()),
                    version: *version,
                });
            }
        }
        Request::Read { op, path, watch } => {
            if *watch {
                out.push(Request::Read {
                    op: *op,
                    path: path.clone(),
                    watch: false,
                });
            } else if *op != op::EXISTS {
                out.push(Request::Read {
                    op: op::EXISTS,
                    path: path.clone(),
                    watch: false,
                });
            }
        }
        Request::Multi { op, parts } => {
            for at in 0..parts.len() {
                let mut fewer = parts.clone();
                fewer.remove(at);
                out.push(Request::Multi {
                    op: *op,
                    parts: fewer,
                });
            }
            for (at, part) in parts.iter().enumerate() {
                for variant in simpler(part) {
                    let mut parts = parts.clone();
                    parts[at] = variant;
                    out.push(Request::Multi { op: *op, parts });
                }
            }
            // The one operation alone.
            if let [part] = &parts[..] {
                out.push(part.clone());
            }
        }
        Request::SetWatches {
            zxid,
            data,
            exist,
            child,
            persistent,
        } => {
            let all = [
                Some(data),
                Some(exist),
                Some(child),
                persistent.as_ref().map(|p| &p.0),
                persistent.as_ref().map(|p| &p.1),
            ];
            for (list, paths) in all.iter().enumerate() {
                for at in 0..paths.map_or(0, |paths| paths.len()) {
                    let mut lists: Vec<Vec<String>> = all
                        .iter()
                        .map(|list| list.cloned().unwrap_or_default())
                        .collect();
                    lists[list].remove(at);
                    let [data, exist, child, kept, recursive] = &lists[..] else {
                        continue;
                    };
                    out.push(Request::SetWatches {
                        zxid: *zxid,
                        data: data.clone(),
                        exist: exist.clone(),
                        child: child.clone(),
                        persistent: persistent
                            .is_some()
                            .then(|| (kept.clone(), recursive.clone())),
                    });
                }
            }
            if persistent
                .as_ref()
                .is_some_and(|(kept, recursive)| kept.is_empty() && recursive.is_empty())
            {
                out.push(Request::SetWatches {
                    zxid: *zxid,
                    data: data.clone(),
                    exist: exist.clone(),
                    child: child.clone(),
                    persistent: None,
                });
            }
        }
        Request::AddWatch { path, mode } if *mode == 1 => {
            out.push(Request::AddWatch {
                path: path.clone(),
                mode: 0,
            });
        }
        Request::Raw { op, body } if !body.is_empty() => {
            out.push(Request::Raw {
                op: *op,
                body: Vec::new(),
            });
            out.push(Request::Raw {
                op: *op,
                body: body[..body.len() / 2].to_vec(),
            });
        }
        _ => {}
    }
    out
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Ask(request) => print_request(f, request),
            Op::Connect { timeout, read_only } => {
                write!(f, "connect timeout={timeout}")?;
                match read_only {
                    None => f.write_str(" readonly=absent"),
                    Some(true) => f.write_str(" readonly=true"),
                    Some(false) => Ok(()),
                }
            }
            Op::Reattach { right, zxid } => {
                let zxid = match zxid {
                    SeenZxid::True => "seen",
                    SeenZxid::Zero => "0",
                    SeenZxid::Future => "future",
                };
                let password = if *right { "right" } else { "wrong" };
                write!(f, "reattach password={password} zxid={zxid}")
            }
            Op::Drop => f.write_str("drop"),
            Op::Close => f.write_str("close"),
            Op::Expire => f.write_str("expire"),
            Op::Hang => f.write_str("hang"),
            Op::Wait(ms) => write!(f, "wait ms={ms}"),
        }
    }
}

fn print_request(f: &mut fmt::Formatter<'_>, request: &Request) -> fmt::Result {
    let name = op::name(request.op()).unwrap_or("raw");
    let path = print_path;
    match request {
        Request::Create {
            path: p,
            data,
            acl,
            flags,
            ttl,
            ..
        } => {
            write!(
                f,
                "{name} {} data={}{} flags={flags}",
                path(p),
                print_data(data),
                print_acl(acl)
            )?;
            match ttl {
                Some(ttl) => write!(f, " ttl={ttl}"),
                None => Ok(()),
            }
        }
        Request::Delete { path: p, version } | Request::Check { path: p, version } => {
            write!(f, "{name} {} version={version}", path(p))
        }
        Request::Read { path: p, watch, .. } => {
            write!(
                f,
                "{name} {}{}",
                path(p),
                if *watch { " watch" } else { "" }
            )
        }
        Request::SetData {
            path: p,
            data,
            version,
        } => {
            write!(
                f,
                "{name} {} data={} version={version}",
                path(p),
                print_data(data)
            )
        }
        Request::SetAcl {
            path: p,
            acl,
            version,
        } => {
            write!(f, "{name} {}{} version={version}", path(p), print_acl(acl))
        }
        Request::Path { path: p, .. } => write!(f, "{name} {}", path(p)),
        Request::Multi { parts, .. } => {
            f.write_str(name)?;
            for part in parts {
                f.write_str(" (")?;
                print_request(f, part)?;
                f.write_str(")")?;
            }
            Ok(())
        }
        Request::Watches { path: p, kind, .. } => write!(f, "{name} {} kind={kind}", path(p)),
        Request::AddWatch { path: p, mode } => write!(f, "{name} {} mode={mode}", path(p)),
        Request::Auth { scheme, auth, .. } => {
            write!(
                f,
                "{name} {} {}",
                quote(scheme.as_bytes()),
                print_data(auth)
            )
        }
        Request::SetWatches {
            zxid,
            data,
            exist,
            child,
            persistent,
        } => {
            let zxid = if *zxid == -1 {
                "seen".to_string()
            } else {
                zxid.to_string()
            };
            let list = |list: &[String]| -> String {
                let words: Vec<String> = list.iter().map(|p| path(p)).collect();
                words.join(",")
            };
            write!(
                f,
                "{name} zxid={zxid} data={} exist={} child={}",
                list(data),
                list(exist),
                list(child)
            )?;
            match persistent {
                Some((kept, recursive)) => {
                    write!(
                        f,
                        " persistent={} recursive={}",
                        list(kept),
                        list(recursive)
                    )
                }
                None => Ok(()),
            }
        }
        Request::Empty { .. } => f.write_str(name),
        Request::Reconfig { .. } | Request::Sasl { .. } | Request::Raw { .. } => {
            write!(f, "raw {} ", request.op())?;
            let bytes = request.encode();
            if bytes.is_empty() {
                return f.write_str("%");
            }
            bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
        }
    }
}

fn print_path(path: &str) -> String {
    match path.strip_prefix('=') {
        Some(literal) => format!("={}", quote(literal.as_bytes())),
        None => quote(path.as_bytes()),
    }
}

fn print_data(data: &Option<Vec<u8>>) -> String {
    match data {
        None => "null".to_string(),
        Some(data) if data.len() > 64 && data.iter().all(|byte| *byte == b'x') => {
            format!("*{}", data.len())
        }
        Some(data) => match quote(data) {
            // What would be read as something else.
            word if word == "null" => "%6eull".to_string(),
            word if word.starts_with('*') => format!("%2a{}", &word[1..]),
            word => word,
        },
    }
}

fn parse_data(word: &str) -> Result<Option<Vec<u8>>> {
    Ok(match word {
        "null" => None,
        _ => Some(match word.strip_prefix('*') {
            Some(count) => vec![b'x'; count.parse::<usize>()?.min(64 << 20)],
            None => unquote(word)?,
        }),
    })
}

/// Nothing for the open list, which is what most have.
/// `perms:scheme:id,…`
pub(super) fn acl_entries(acl: &[Acl]) -> String {
    let entries: Vec<String> = acl
        .iter()
        .map(|a| {
            format!(
                "{}:{}:{}",
                a.perms,
                quote(a.scheme.as_bytes()),
                quote(a.id.as_bytes())
            )
        })
        .collect();
    entries.join(",")
}

fn print_acl(acl: &Option<Vec<Acl>>) -> String {
    match acl {
        None => " acl=null".to_string(),
        Some(acl) if *acl == open_acl() => String::new(),
        Some(acl) if acl.is_empty() => " acl=empty".to_string(),
        Some(acl) => {
            format!(" acl={}", acl_entries(acl))
        }
    }
}

fn parse_acl(word: &str) -> Result<Option<Vec<Acl>>> {
    match word {
        "null" => return Ok(None),
        "empty" => return Ok(Some(Vec::new())),
        _ => {}
    }
    let entries = word.split(',').map(|entry| {
        let mut parts = entry.splitn(3, ':');
        let mut next = || parts.next().context("perms:scheme:id");
        Ok(Acl {
            perms: next()?.parse()?,
            scheme: String::from_utf8(unquote(next()?)?)?,
            id: String::from_utf8(unquote(next()?)?)?,
        })
    });
    entries.collect::<Result<_>>().map(Some)
}

/// The words of one operation.
struct Words<'a> {
    plain: Vec<&'a str>,
    fields: Vec<(&'a str, &'a str)>,
}

impl<'a> Words<'a> {
    fn of(text: &'a str) -> Words<'a> {
        let (fields, plain): (Vec<&str>, Vec<&str>) = text
            .split_whitespace()
            .partition(|word| word.contains('=') && !word.starts_with('='));
        Words {
            plain,
            fields: fields
                .iter()
                .filter_map(|word| word.split_once('='))
                .collect(),
        }
    }

    fn field(&self, name: &str) -> Option<&'a str> {
        self.fields
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| *value)
    }

    fn number<T: FromStr>(&self, name: &str, default: T) -> Result<T>
    where
        Error: From<T::Err>,
    {
        self.field(name)
            .map_or(Ok(default), |value| Ok(value.parse()?))
    }

    fn path(&self) -> Result<String> {
        parse_path(self.plain.get(1).context("a path")?)
    }

    fn data(&self) -> Result<Option<Vec<u8>>> {
        parse_data(self.field("data").unwrap_or("x"))
    }

    fn acl(&self) -> Result<Option<Vec<Acl>>> {
        self.field("acl")
            .map_or_else(|| Ok(Some(open_acl())), parse_acl)
    }

    fn paths(&self, name: &str) -> Result<Vec<String>> {
        let words = self.field(name).unwrap_or("");
        words
            .split(',')
            .filter(|word| !word.is_empty())
            .map(parse_path)
            .collect()
    }
}

fn parse_path(word: &str) -> Result<String> {
    // The sign in front is written as it is; behind it may be nothing at all.
    Ok(match word.strip_prefix('=') {
        Some(rest) => format!("={}", String::from_utf8(unquote(rest)?)?),
        None => {
            let path = String::from_utf8(unquote(word)?)?;
            ensure!(
                path.starts_with(['/', '~', '=']),
                "a path begins with / or ~ or ="
            );
            path
        }
    })
}

impl FromStr for Op {
    type Err = Error;

    fn from_str(text: &str) -> Result<Op> {
        let words = Words::of(text);
        Ok(match *words.plain.first().context("an operation")? {
            "connect" => Op::Connect {
                timeout: words.number("timeout", 30_000)?,
                read_only: match words.field("readonly") {
                    None | Some("false") => Some(false),
                    Some("true") => Some(true),
                    Some("absent") => None,
                    Some(other) => bail!("readonly={other}"),
                },
            },
            "reattach" => Op::Reattach {
                right: words.field("password") != Some("wrong"),
                zxid: match words.field("zxid") {
                    None | Some("seen") => SeenZxid::True,
                    Some("0") => SeenZxid::Zero,
                    Some("future") => SeenZxid::Future,
                    Some(other) => bail!("zxid={other}"),
                },
            },
            "drop" => Op::Drop,
            "close" => Op::Close,
            "expire" => Op::Expire,
            "hang" => Op::Hang,
            "wait" => Op::Wait(words.number("ms", 1000)?),
            _ => Op::Ask(parse_request(text)?),
        })
    }
}

fn parse_request(text: &str) -> Result<Request> {
    let words = Words::of(text);
    let name = *words.plain.first().context("an operation")?;
    if name == "raw" {
        let number = words.plain.get(1).context("raw NUMBER HEX")?.parse()?;
        let hex = *words.plain.get(2).unwrap_or(&"%");
        let hex = if hex == "%" { "" } else { hex };
        ensure!(hex.len() % 2 == 0 && hex.is_ascii(), "raw NUMBER HEX");
        let bytes = (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16));
        return Ok(Request::Raw {
            op: number,
            body: bytes.collect::<Result<_, _>>()?,
        });
    }
    let number = (-11..=107)
        .find(|number| op::name(*number) == Some(name))
        .with_context(|| format!("no operation `{name}`"))?;
    Ok(match number {
        op::CREATE | op::CREATE2 | op::CREATE_CONTAINER | op::CREATE_TTL => Request::Create {
            op: number,
            path: words.path()?,
            data: words.data()?,
            acl: words.acl()?,
            flags: words.number("flags", 0)?,
            ttl: (number == op::CREATE_TTL)
                .then(|| words.number("ttl", 0))
                .transpose()?,
        },
        op::DELETE => Request::Delete {
            path: words.path()?,
            version: words.number("version", -1)?,
        },
        op::CHECK => Request::Check {
            path: words.path()?,
            version: words.number("version", -1)?,
        },
        op::EXISTS | op::GET_DATA | op::GET_CHILDREN | op::GET_CHILDREN2 => Request::Read {
            op: number,
            path: words.path()?,
            watch: words.plain.contains(&"watch"),
        },
        op::SET_DATA => Request::SetData {
            path: words.path()?,
            data: words.data()?,
            version: words.number("version", -1)?,
        },
        op::SET_ACL => Request::SetAcl {
            path: words.path()?,
            acl: words.acl()?,
            version: words.number("version", -1)?,
        },
        op::GET_ACL
        | op::SYNC
        | op::DELETE_CONTAINER
        | op::GET_EPHEMERALS
        | op::GET_ALL_CHILDREN_NUMBER => Request::Path {
            op: number,
            path: words.path()?,
        },
        op::MULTI | op::MULTI_READ => Request::Multi {
            op: number,
            parts: text
                .split('(')
                .skip(1)
                .map(|part| parse_request(part.trim().strip_suffix(')').context("( without )")?))
                .collect::<Result<_>>()?,
        },
        op::CHECK_WATCHES | op::REMOVE_WATCHES => Request::Watches {
            op: number,
            path: words.path()?,
            kind: words.number("kind", 3)?,
        },
        op::ADD_WATCH => Request::AddWatch {
            path: words.path()?,
            mode: words.number("mode", 0)?,
        },
        op::AUTH => Request::Auth {
            kind: 0,
            scheme: String::from_utf8(unquote(words.plain.get(1).context("auth SCHEME DATA")?)?)?,
            auth: parse_data(words.plain.get(2).context("auth SCHEME DATA")?)?,
        },
        op::SET_WATCHES | op::SET_WATCHES2 => Request::SetWatches {
            zxid: match words.field("zxid") {
                None | Some("seen") => -1,
                Some(number) => number.parse()?,
            },
            data: words.paths("data")?,
            exist: words.paths("exist")?,
            child: words.paths("child")?,
            persistent: (number == op::SET_WATCHES2)
                .then(|| -> Result<_> {
                    Ok((words.paths("persistent")?, words.paths("recursive")?))
                })
                .transpose()?,
        },
        op::PING | op::WHO_AM_I => Request::Empty { op: number },
        _ => bail!("`{name}` has no text"),
    })
}
