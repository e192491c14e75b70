//! Spellings inside keys and values: form encoding, sequence numbers, lease ids, host and port,
//! URLs as Dubbo and others write them, Java's serialised strings.
//!
//! Everything here reads what other programs wrote, so every function is total. Decoding serves
//! the view of a record only; the record's own bytes are never rebuilt from it.

use base64::Engine as _;
use serde::{Deserialize, Serialize};

/// Why a record at an instance's place is not an instance. The texts hold no data of the record,
/// since names and values can hold secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum DecodeError {
    /// Key or value is not UTF-8 where the layout needs text.
    #[error("the {0} is not UTF-8")]
    NotUtf8(String),
    /// A `%` without two hex digits.
    #[error("a percent sign without two hex digits")]
    Percent,
    /// A name that was encoded again by a tool which read it encoded.
    #[error("the name is encoded more than once")]
    EncodedTwice,
    /// Base64, or its length, is wrong.
    #[error("not url-safe base64 of the length it states")]
    Base64,
    /// The value is empty. rpcx and libkv create first and write then: not yet written.
    #[error("the value is empty (not yet written)")]
    Empty,
    /// The value is not JSON; the text says where.
    #[error("not JSON: {0}")]
    Json(String),
    /// Not a URL of the form `scheme://host:port/path?params`.
    #[error("not a URL: {0}")]
    Url(String),
    /// Not `host:port`.
    #[error("not host:port: {0}")]
    HostPort(String),
    /// Not a string in Java's serialisation.
    #[error("not a serialised Java string: {0}")]
    JavaString(String),
    /// Not one byte 0 or 1.
    #[error("not one byte 0 or 1")]
    Flag,
    /// A field that an instance cannot be without.
    #[error("no usable {0}")]
    Missing(String),
    /// A condition of the layout's claim does not hold.
    #[error("the claim {0} does not hold")]
    Claim(String),
    /// The znode is not of the kind that the layout writes.
    #[error("the node is not {0}")]
    Node(String),
    /// The key has no lease, or has one where the layout forbids it.
    #[error("the key is not {0}")]
    Lease(String),
}

/// How the text of a captured part of a key is spelt in the raw key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codec {
    /// As it is.
    Plain,
    /// Java's `URLEncoder`: `*` stays, `~` is escaped, a space is `+`.
    UrlencJava,
    /// Go's `url.QueryEscape`: `~` stays, `*` is escaped, a space is `+`.
    UrlencGo,
    /// Url-safe base64.
    B64Url,
    /// `{n}_{base64}`, where n is the length of the base64 text (nerve).
    B64Len,
    /// ZooKeeper's sequence suffix, `%010d` of a signed 32-bit counter.
    Seq10,
    /// A lease id in decimal (go-zero).
    LeaseDec,
    /// A lease id in lower-case hex (etcd's `concurrency`).
    LeaseHex,
    /// `host:port`.
    HostPort,
    /// All that follows, slashes included.
    Rest,
    /// DNS labels in reverse order, a segment each (SkyDNS); for `{*name}` only.
    LabelsReversed,
}

impl Codec {
    pub(crate) const NAMES: &[(&str, Codec)] = &[
        ("urlenc-java", Codec::UrlencJava),
        ("urlenc-go", Codec::UrlencGo),
        ("b64url", Codec::B64Url),
        ("b64len", Codec::B64Len),
        ("seq10", Codec::Seq10),
        ("lease-dec", Codec::LeaseDec),
        ("lease-hex", Codec::LeaseHex),
        ("hostport", Codec::HostPort),
        ("rest", Codec::Rest),
        ("labels-reversed", Codec::LabelsReversed),
    ];

    pub(crate) fn by_name(name: &str) -> Option<Codec> {
        Codec::NAMES
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, codec)| *codec)
    }

    /// The regular expression of its raw spelling, for segments with several parts.
    pub(crate) fn pattern(self) -> &'static str {
        match self {
            Codec::Seq10 => "[0-9]{10}|-[0-9]{9}|-[1-9][0-9]{9}",
            Codec::LeaseDec => "-?[0-9]{1,19}",
            Codec::LeaseHex => "[0-9a-f]{1,16}",
            Codec::HostPort => ".+:[0-9]{1,5}",
            Codec::B64Url => "[A-Za-z0-9_=-]+",
            Codec::B64Len => "[0-9]+_[A-Za-z0-9_=-]+",
            Codec::Plain
            | Codec::UrlencJava
            | Codec::UrlencGo
            | Codec::Rest
            | Codec::LabelsReversed => ".+",
        }
    }

    /// Whether the raw text has the codec's shape at all. If not, the template does not match.
    pub(crate) fn accepts(self, raw: &str) -> bool {
        match self {
            Codec::Seq10 => is_seq10(raw),
            Codec::LeaseDec => raw.parse::<i64>().is_ok_and(|id| id.to_string() == raw),
            Codec::LeaseHex => {
                !raw.is_empty()
                    && raw.len() <= 16
                    && raw
                        .bytes()
                        .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
            }
            _ => !raw.is_empty(),
        }
    }

    /// The text that the raw spelling stands for.
    pub(crate) fn decode(self, raw: &str) -> Result<String, DecodeError> {
        match self {
            Codec::UrlencJava | Codec::UrlencGo => form_decode_name(raw),
            Codec::B64Url => b64url_decode(raw),
            Codec::B64Len => {
                let (length, text) = raw.split_once('_').ok_or(DecodeError::Base64)?;
                if length.parse() != Ok(text.len()) {
                    return Err(DecodeError::Base64);
                }
                b64url_decode(text)
            }
            Codec::HostPort => host_port(raw).map(|_| raw.to_owned()),
            Codec::LabelsReversed => {
                let labels: Vec<&str> = raw.rsplit('/').collect();
                Ok(labels.join("."))
            }
            Codec::Plain | Codec::Seq10 | Codec::LeaseDec | Codec::LeaseHex | Codec::Rest => {
                Ok(raw.to_owned())
            }
        }
    }

    /// The raw spelling of a text: for projections into a layout, never within one. `None`: the
    /// text cannot be spelt.
    pub(crate) fn encode(self, text: &str) -> Option<String> {
        let raw = match self {
            Codec::UrlencJava => form_encode_java(text),
            Codec::UrlencGo => form_encode_go(text),
            Codec::B64Url => base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text),
            Codec::B64Len => {
                let body = base64::engine::general_purpose::URL_SAFE.encode(text);
                format!("{}_{body}", body.len())
            }
            Codec::LabelsReversed => {
                let labels: Vec<&str> = text.rsplit('.').collect();
                labels.join("/")
            }
            Codec::Plain
            | Codec::Seq10
            | Codec::LeaseDec
            | Codec::LeaseHex
            | Codec::HostPort
            | Codec::Rest => text.to_owned(),
        };
        (self.accepts(&raw) && self.decode(&raw).as_deref() == Ok(text)).then_some(raw)
    }
}

/// ZooKeeper appends `%010d` of a signed counter: ten digits, or a minus and nine or ten.
pub(crate) fn is_seq10(raw: &str) -> bool {
    let (digits, fits) = match raw.strip_prefix('-') {
        // The sign counts as one of the ten places; a tenth digit has no zeros to fill.
        Some(digits) => (
            digits,
            digits.len() == 9 || (digits.len() == 10 && !digits.starts_with('0')),
        ),
        None => (raw, raw.len() == 10),
    };
    fits && digits.bytes().all(|b| b.is_ascii_digit())
}

/// Java's form encoding of a whole text.
pub(crate) fn form_encode_java(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// Go's form encoding of a whole text.
pub(crate) fn form_encode_go(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte))
            }
            b' ' => out.push('+'),
            _ => {
                const HEX: [char; 16] = [
                    '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F',
                ];
                out.push('%');
                out.push(HEX.get(usize::from(byte >> 4)).copied().unwrap_or('0'));
                out.push(HEX.get(usize::from(byte & 15)).copied().unwrap_or('0'));
            }
        }
    }
    out
}

/// Decodes form encoding once. Both encoders' output decodes the same way.
pub(crate) fn form_decode(raw: &str) -> Result<String, DecodeError> {
    let mut out = Vec::with_capacity(raw.len());
    let mut bytes = raw.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'+' => out.push(b' '),
            b'%' => {
                let mut digit = || bytes.next().and_then(|b| char::from(b).to_digit(16));
                let (Some(high), Some(low)) = (digit(), digit()) else {
                    return Err(DecodeError::Percent);
                };
                out.push(u8::try_from(high * 16 + low).unwrap_or_default());
            }
            _ => out.push(byte),
        }
    }
    String::from_utf8(out).map_err(|_| DecodeError::NotUtf8("decoded name".into()))
}

/// Decodes a name, and refuses one that decodes to a name which is itself an encoded URL: tools
/// that read a name encoded and write it back encode it again, without end.
fn form_decode_name(raw: &str) -> Result<String, DecodeError> {
    let text = form_decode(raw)?;
    if !text.contains("://") && text.to_ascii_lowercase().contains("%3a%2f%2f") {
        return Err(DecodeError::EncodedTwice);
    }
    if !text.contains("://") && text.to_ascii_lowercase().contains("%253a%252f%252f") {
        return Err(DecodeError::EncodedTwice);
    }
    Ok(text)
}

fn b64url_decode(raw: &str) -> Result<String, DecodeError> {
    let body = raw.trim_end_matches('=');
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD
        .decode(body)
        .map_err(|_| DecodeError::Base64)?;
    String::from_utf8(bytes).map_err(|_| DecodeError::NotUtf8("decoded name".into()))
}

/// Splits `host:port`. An IPv6 host needs brackets, else where the port begins is a guess; it
/// comes back without them.
pub(crate) fn host_port(text: &str) -> Result<(String, u16), DecodeError> {
    let fail = |why: &str| DecodeError::HostPort(why.to_owned());
    let (host, port) = text.rsplit_once(':').ok_or_else(|| fail("no colon"))?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner
            .strip_suffix(']')
            .ok_or_else(|| fail("a bracket is not closed"))?,
        None if host.contains(':') => return Err(fail("an IPv6 address without brackets")),
        None => host,
    };
    if host.is_empty() {
        return Err(fail("no host"));
    }
    if host
        .chars()
        .any(|c| c.is_control() || c.is_whitespace() || matches!(c, '/' | '@' | '?' | '#'))
    {
        return Err(fail("the host has a character that no host has"));
    }
    Ok((
        host.to_owned(),
        port_number(port).ok_or_else(|| fail("no port number"))?,
    ))
}

/// `host[:port[:weight]]` with port 0 for none (Armeria's legacy values).
pub(crate) fn host_port_weight(
    text: &str,
) -> Result<(String, Option<u16>, Option<u32>), DecodeError> {
    let fail = |why: &str| DecodeError::HostPort(why.to_owned());
    let (host, rest) = match text
        .strip_prefix('[')
        .and_then(|inner| inner.split_once(']'))
    {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (
            host,
            Some(
                rest.strip_prefix(':')
                    .ok_or_else(|| fail("text after the bracket"))?,
            ),
        ),
        None => match text.split_once(':') {
            Some((host, rest)) => (host, Some(rest)),
            None => (text, None),
        },
    };
    if host.is_empty() || host.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(fail("no host"));
    }
    let (port, weight) = match rest.map(|rest| {
        rest.split_once(':')
            .map_or((rest, None), |(p, w)| (p, Some(w)))
    }) {
        None => (None, None),
        Some((port, weight)) => (Some(port), weight),
    };
    let port = match port {
        None | Some("0") => None,
        Some(port) => Some(port_number(port).ok_or_else(|| fail("no port number"))?),
    };
    let weight = weight
        .map(|w| w.parse().map_err(|_| fail("no weight")))
        .transpose()?;
    Ok((host.to_owned(), port, weight))
}

/// `host:port` again, with brackets around an IPv6 host.
pub(crate) fn join_host_port(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

fn port_number(text: &str) -> Option<u16> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if plain {
        text.parse().ok().filter(|port| *port > 0)
    } else {
        None
    }
}

/// The parts of a URL as Dubbo, Motan, SOFA and Kratos write it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct UrlParts {
    pub(crate) scheme: String,
    pub(crate) user: Option<String>,
    pub(crate) host: String,
    pub(crate) port: Option<u16>,
    pub(crate) path: String,
    /// In the order written, values as they stand: these writers do not escape them one by one.
    pub(crate) params: Vec<(String, String)>,
}

/// Reads `scheme://[user@]host[:port][/path][?a=b&c=d]`.
///
/// Not a general URL parser: parameters are not escaped one by one, so that a strict parser would
/// change or refuse what these registries hold.
pub(crate) fn url(text: &str) -> Result<UrlParts, DecodeError> {
    let fail = |why: &str| DecodeError::Url(why.to_owned());
    let (scheme, rest) = text.split_once("://").ok_or_else(|| fail("no scheme"))?;
    let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_');
    if scheme.is_empty() || !scheme.chars().all(named) {
        return Err(fail("no scheme"));
    }
    let (rest, query) = match rest.split_once('?') {
        Some((rest, query)) => (rest, query),
        None => (rest, ""),
    };
    let (authority, path) = match rest.split_once('/') {
        Some((authority, path)) => (authority, path),
        None => (rest, ""),
    };
    let (user, address) = match authority.rsplit_once('@') {
        Some((user, address)) => (Some(user.to_owned()), address),
        None => (None, authority),
    };
    let (host, port) = match address
        .strip_prefix('[')
        .and_then(|inner| inner.split_once(']'))
    {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (
            host,
            Some(
                rest.strip_prefix(':')
                    .ok_or_else(|| fail("text after the bracket"))?,
            ),
        ),
        // Dubbo writes an IPv6 address without brackets, always with a port behind it.
        None => match address.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (address, None),
        },
    };
    if host.is_empty() || host.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(fail("no host"));
    }
    let port = match port {
        None | Some("0") => None,
        Some(port) => Some(port_number(port).ok_or_else(|| fail("no port number"))?),
    };
    let params = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (name.to_owned(), value.to_owned())
        })
        .collect();
    Ok(UrlParts {
        scheme: scheme.to_owned(),
        user,
        host: host.to_owned(),
        port,
        path: path.to_owned(),
        params,
    })
}

/// A form-encoded query (rpcx), in the order written.
pub(crate) fn query(text: &str) -> Result<Vec<(String, String)>, DecodeError> {
    text.split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((form_decode(name)?, form_decode(value)?))
        })
        .collect()
}

/// A string in Java's serialisation, or bare UTF-8: Motan's readers and writers use either, and
/// which one it was stays visible in the record's bytes.
pub(crate) fn java_string(bytes: &[u8]) -> Result<String, DecodeError> {
    let fail = |why: &str| DecodeError::JavaString(why.to_owned());
    let Some(body) = bytes.strip_prefix(&[0xac, 0xed]) else {
        return String::from_utf8(bytes.to_vec()).map_err(|_| DecodeError::NotUtf8("value".into()));
    };
    let body = body
        .strip_prefix(&[0x00, 0x05])
        .ok_or_else(|| fail("an unknown stream version"))?;
    let (length, text) = match body.split_first() {
        Some((0x74, rest)) => rest
            .split_first_chunk::<2>()
            .map(|(n, text)| (u64::from(u16::from_be_bytes(*n)), text)),
        Some((0x7c, rest)) => rest
            .split_first_chunk::<8>()
            .map(|(n, text)| (u64::from_be_bytes(*n), text)),
        _ => return Err(fail("not a string")),
    }
    .ok_or_else(|| fail("cut short"))?;
    if u64::try_from(text.len()).ok() != Some(length) {
        return Err(fail("its length does not agree"));
    }
    modified_utf8(text).ok_or_else(|| fail("not modified UTF-8"))
}

/// Java's modified UTF-8: NUL as two bytes, supplementary characters as two surrogates of three.
fn modified_utf8(bytes: &[u8]) -> Option<String> {
    let mut units = Vec::with_capacity(bytes.len());
    let mut rest = bytes.iter().map(|b| u16::from(*b));
    while let Some(first) = rest.next() {
        let mut tail = || rest.next().filter(|b| b & 0xc0 == 0x80).map(|b| b & 0x3f);
        units.push(match first {
            0x00..=0x7f => first,
            0xc0..=0xdf => (first & 0x1f) << 6 | tail()?,
            0xe0..=0xef => (first & 0x0f) << 12 | tail()? << 6 | tail()?,
            _ => return None,
        });
    }
    String::from_utf16(&units).ok()
}

/// Java's `String.hashCode`, which Dubbo writes in decimal as the value of etcd directory keys.
pub(crate) fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0i32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(i32::from(unit))
    })
}

/// A key for a log or a screen. Names can be URLs that hold a user, a password or a token.
pub fn redact(key: &[u8]) -> String {
    let text = String::from_utf8_lossy(key);
    let segments: Vec<String> = if text.contains("://") {
        // Not encoded, so its slashes are not the key's: everything from the scheme on is one name.
        let from = text
            .find("://")
            .and_then(|at| text.get(..at))
            .and_then(|head| head.rfind('/'))
            .map_or(0, |at| at + 1);
        let (head, tail) = text.split_at(from);
        head.split('/')
            .take(head.matches('/').count())
            .map(redact_segment)
            .chain([redact_segment(tail)])
            .collect()
    } else {
        text.split('/').map(redact_segment).collect()
    };
    segments
        .join("/")
        .chars()
        .flat_map(|c| {
            if c.is_control() {
                c.escape_default().collect()
            } else {
                vec![c]
            }
        })
        .collect()
}

/// Whether a parameter or a metadata entry of this name holds something to keep out of sight.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [
        "token",
        "passw",
        "secret",
        "accesskey",
        "access-key",
        "access_key",
        "credential",
        "signature",
        "privatekey",
    ]
    .iter()
    .any(|word| name.contains(word))
}

fn redact_segment(segment: &str) -> String {
    let mut text = segment.to_owned();
    let looks_encoded = |text: &str| {
        text.to_ascii_lowercase().contains("%2f%2f") || text.to_ascii_lowercase().contains("%252f")
    };
    // Bounded: names that were encoded again and again exist.
    for _ in 0..8 {
        if text.contains("://") || !looks_encoded(&text) {
            break;
        }
        match form_decode(&text) {
            Ok(decoded) => text = decoded,
            Err(_) => return "<unreadable url>".to_owned(),
        }
    }
    if looks_encoded(&text) && !text.contains("://") {
        return "<unreadable url>".to_owned();
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return segment.to_owned();
    };
    let (address, query) = rest
        .split_once('?')
        .map_or((rest, None), |(a, q)| (a, Some(q)));
    let address = match address.split_once('/') {
        Some((authority, path)) => format!("{}/{path}", without_user(authority)),
        None => without_user(address),
    };
    let mut out = format!("{scheme}://{address}");
    if let Some(query) = query {
        out.push('?');
        let pairs: Vec<String> = query
            .split('&')
            .map(|pair| match pair.split_once('=') {
                Some((name, _)) if is_secret_name(name) => format!("{name}=***"),
                // A URL inside a parameter (a registry's address) can hold a user too.
                Some((name, value)) if value.contains('@') || value.contains("%40") => {
                    format!("{name}=***")
                }
                _ => pair.to_owned(),
            })
            .collect();
        out.push_str(&pairs.join("&"));
    }
    out
}

fn without_user(authority: &str) -> String {
    match authority.rsplit_once('@') {
        Some((_, address)) => format!("***@{address}"),
        None => authority.to_owned(),
    }
}
