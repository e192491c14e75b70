//! A request as a tree of named fields that prints on one line and parses back, and its way onto the wire.
//!
//! What a script cannot know before it runs stands in it by name:
//! - `@3`, `@3+1`, `@3-2`: the revision that the operation marked `#3` was answered with (`@0`: the revision
//!   before the first operation), and its neighbours;
//! - `L2`, `L-2`: a lease id of the script's own choice, `C1`: the first id that the server chose;
//! - in bytes: a leading `$` is the run's root, `{L2}` the lease's id in hexadecimal as etcd writes it into
//!   keys, `{x*1000}` a thousand times `x`.

use std::fmt::{self, Write as _};

use anyhow::{Context as _, Result, anyhow, bail};
use prost_reflect::prost::Message as _;
use prost_reflect::{DynamicMessage, Kind, MessageDescriptor};

use super::names::Names;

/// Deeper values are refused when parsed; etcd's messages nest by transactions alone.
const DEPTH: usize = 64;

/// As many equal values of a list in a row print as one with their count: `[{}*129]`.
const WORTH_COUNTING: usize = 4;

/// Longer runs are refused when parsed.
const MOST_TIMES: usize = 10_000;

/// The value of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A number; also an enum value that has no name.
    Int(i64),
    /// `true` or `false`.
    Bool(bool),
    /// An enum value by its name.
    Word(String),
    /// Bytes or a string, with what is to be filled in.
    Bytes(Vec<u8>),
    /// The revision of a marked operation, and a distance from it.
    Revision(u32, i64),
    /// A lease id of the script's choice.
    Lease(i64),
    /// The n-th lease id that the server chose, from 1.
    Chosen(u32),
    /// A message: its fields in the order written.
    Message(Vec<(String, Value)>),
    /// A repeated field.
    List(Vec<Value>),
}

impl Value {
    /// Bytes out of text.
    pub fn text(text: impl AsRef<[u8]>) -> Value {
        Value::Bytes(text.as_ref().to_vec())
    }

    /// A message; fields whose value is what an absent field means are left out.
    pub fn message<const N: usize>(fields: [(&str, Value); N]) -> Value {
        let fields = fields
            .into_iter()
            .filter(|(_, value)| !value.is_absent())
            .map(|(name, value)| (name.to_string(), value));
        Value::Message(fields.collect())
    }

    /// A field of a message.
    pub fn field(&self, name: &str) -> Option<&Value> {
        let Value::Message(fields) = self else {
            return None;
        };
        fields
            .iter()
            .find_map(|(field, value)| (field == name).then_some(value))
    }

    fn is_absent(&self) -> bool {
        match self {
            Value::Int(0) | Value::Bool(false) => true,
            Value::Bytes(bytes) => bytes.is_empty(),
            Value::List(values) => values.is_empty(),
            _ => false,
        }
    }

    /// Simpler variants, the simplest first: without a field or an element, with shorter lists, with the usual
    /// key, lease or value instead of a special one.
    pub fn simpler(&self) -> Vec<Value> {
        match self {
            Value::Message(fields) => {
                let mut variants = Vec::new();
                for index in 0..fields.len() {
                    let mut fewer = fields.clone();
                    fewer.remove(index);
                    variants.push(Value::Message(fewer));
                }
                for (index, (_, value)) in fields.iter().enumerate() {
                    for simpler in value.simpler() {
                        let mut changed = fields.clone();
                        changed[index].1 = simpler;
                        variants.push(Value::Message(changed));
                    }
                }
                variants
            }
            Value::List(values) => {
                let mut variants = Vec::new();
                if values.len() > 3 {
                    let (first, second) = values.split_at(values.len() / 2);
                    variants.extend([first, second].map(|half| Value::List(half.to_vec())));
                }
                for index in 0..values.len().min(8) {
                    let mut fewer = values.clone();
                    fewer.remove(index);
                    variants.push(Value::List(fewer));
                }
                for (index, value) in values.iter().enumerate().take(8) {
                    for simpler in value.simpler() {
                        let mut changed = values.clone();
                        changed[index] = simpler;
                        variants.push(Value::List(changed));
                    }
                }
                variants
            }
            Value::Bytes(bytes) => match bytes.as_slice() {
                b"$/a" | b"1" | b"" => vec![],
                rooted if rooted.starts_with(b"$/") => vec![Value::text("$/a")],
                rooted if rooted.starts_with(b"$") => vec![],
                _ => vec![Value::text("1")],
            },
            Value::Revision(mark, distance) if *distance != 0 => vec![Value::Revision(*mark, 0)],
            Value::Lease(number) if *number != 1 => vec![Value::Lease(1)],
            _ => vec![],
        }
    }

    /// The protobuf encoding of this message.
    pub fn encode(&self, descriptor: &MessageDescriptor, names: &Names) -> Result<Vec<u8>> {
        Ok(self.build(descriptor, names)?.encode_to_vec())
    }

    fn build(&self, descriptor: &MessageDescriptor, names: &Names) -> Result<DynamicMessage> {
        let Value::Message(fields) = self else {
            bail!("{} takes a message, not {self}", descriptor.name());
        };
        let mut message = DynamicMessage::new(descriptor.clone());
        for (name, value) in fields {
            let field = descriptor
                .get_field_by_name(name)
                .with_context(|| format!("{} has no field {name}", descriptor.name()))?;
            let built = match (field.is_list(), value) {
                (true, Value::List(values)) => prost_reflect::Value::List(
                    values
                        .iter()
                        .map(|value| value.scalar(&field.kind(), names))
                        .collect::<Result<_>>()?,
                ),
                (true, _) => bail!("{name} is a list"),
                (false, value) => value.scalar(&field.kind(), names)?,
            };
            message
                .try_set_field(&field, built)
                .map_err(|error| anyhow!("{name}={value}: {error}"))?;
        }
        Ok(message)
    }

    fn scalar(&self, kind: &Kind, names: &Names) -> Result<prost_reflect::Value> {
        use prost_reflect::Value as Wire;
        Ok(match (kind, self) {
            (Kind::Message(descriptor), value) => Wire::Message(value.build(descriptor, names)?),
            (Kind::Bytes, Value::Bytes(bytes)) => Wire::Bytes(fill_in(bytes, names)?.into()),
            (Kind::String, Value::Bytes(bytes)) => {
                Wire::String(String::from_utf8(fill_in(bytes, names)?)?)
            }
            (Kind::Bool, Value::Bool(value)) => Wire::Bool(*value),
            (Kind::Enum(_), Value::Int(number)) => Wire::EnumNumber(i32::try_from(*number)?),
            (Kind::Enum(descriptor), Value::Word(name)) => Wire::EnumNumber(
                descriptor
                    .get_value_by_name(name)
                    .with_context(|| format!("{} has no value {name}", descriptor.name()))?
                    .number(),
            ),
            (Kind::Int64, value) => Wire::I64(value.number(names)?),
            (Kind::Uint64, value) => Wire::U64(value.number(names)?.cast_unsigned()),
            (kind, value) => bail!("{value} is not a {kind:?}"),
        })
    }

    pub(super) fn number(&self, names: &Names) -> Result<i64> {
        Ok(match self {
            Value::Int(number) => *number,
            Value::Revision(mark, distance) => names.revision_of(*mark).saturating_add(*distance),
            Value::Lease(number) => names.lease(*number),
            Value::Chosen(number) => names.chosen(*number),
            other => bail!("{other} is not a number"),
        })
    }
}

/// `%x` of Go: a negative number keeps its sign.
pub(super) fn lease_hex(id: i64) -> String {
    if id < 0 {
        format!("-{:x}", id.unsigned_abs())
    } else {
        format!("{id:x}")
    }
}

/// Bytes of a script as they go onto the wire.
pub(super) fn fill_in(bytes: &[u8], names: &Names) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    if let Some(below) = rest.strip_prefix(b"$") {
        out.extend_from_slice(names.root());
        rest = below;
    }
    while let Some((first, tail)) = rest.split_first() {
        let close = tail.iter().position(|byte| *byte == b'}');
        match (first, close) {
            (b'{', Some(close)) => {
                let (inside, after) = tail.split_at(close);
                let inside = std::str::from_utf8(inside)?;
                if let Some((what, count)) = inside.split_once('*') {
                    let count: usize = count.parse()?;
                    if count > 8 << 20 {
                        bail!("{{{inside}}} is too long");
                    }
                    out.extend_from_slice(what.repeat(count).as_bytes());
                } else {
                    let number = parse(inside)?.number(names)?;
                    out.extend_from_slice(lease_hex(number).as_bytes());
                }
                rest = after.strip_prefix(b"}").unwrap_or(after);
            }
            (byte, _) => {
                out.push(*byte);
                rest = tail;
            }
        }
    }
    Ok(out)
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Int(number) => write!(f, "{number}"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Word(word) => f.write_str(word),
            Value::Bytes(bytes) => f.write_str(&quote(bytes)),
            Value::Revision(mark, 0) => write!(f, "@{mark}"),
            Value::Revision(mark, distance) => write!(f, "@{mark}{distance:+}"),
            Value::Lease(number) => write!(f, "L{number}"),
            Value::Chosen(number) => write!(f, "C{number}"),
            Value::Message(fields) => {
                f.write_char('{')?;
                for (index, (name, value)) in fields.iter().enumerate() {
                    let space = if index == 0 { "" } else { " " };
                    write!(f, "{space}{name}={value}")?;
                }
                f.write_char('}')
            }
            Value::List(values) => {
                f.write_char('[')?;
                let mut space = "";
                for run in values.chunk_by(|one, next| one == next) {
                    let (times, shown) = if run.len() >= WORTH_COUNTING {
                        (format!("*{}", run.len()), &run[..1])
                    } else {
                        (String::new(), run)
                    };
                    for value in shown {
                        write!(f, "{space}{value}{times}")?;
                        space = " ";
                    }
                }
                f.write_char(']')
            }
        }
    }
}

/// Bytes between quotes, whatever is not plain ASCII as `\xNN`; a space too, so that it is one word.
pub(super) fn quote(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() + 2);
    out.push('"');
    for byte in bytes {
        match byte {
            b'"' | b'\\' => {
                out.push('\\');
                out.push(char::from(*byte));
            }
            b'!'..=b'~' => out.push(char::from(*byte)),
            _ => {
                let _ = write!(out, "\\x{byte:02x}");
            }
        }
    }
    out.push('"');
    out
}

/// Reads a value back from what it prints as.
pub(super) fn parse(text: &str) -> Result<Value> {
    let mut parser = Parser { rest: text.trim() };
    let value = parser.value(0)?;
    if !parser.rest.is_empty() {
        bail!("left over: {}", parser.rest);
    }
    Ok(value)
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn value(&mut self, depth: usize) -> Result<Value> {
        if depth > DEPTH {
            bail!("nested too deeply");
        }
        if self.take("{") {
            let mut fields = Vec::new();
            while !self.take("}") {
                let name = self.word()?.to_string();
                if !self.take("=") {
                    bail!("expected = after {name}");
                }
                fields.push((name, self.value(depth + 1)?));
            }
            return Ok(Value::Message(fields));
        }
        if self.take("[") {
            let mut values = Vec::new();
            while !self.take("]") {
                let value = self.value(depth + 1)?;
                let mut times = 1;
                if self.take("*") {
                    times = self.word()?.parse()?;
                }
                if times > MOST_TIMES {
                    bail!("a list of {times}");
                }
                values.extend(std::iter::repeat_n(value, times));
            }
            return Ok(Value::List(values));
        }
        if self.take("\"") {
            return self.quoted();
        }
        let word = self.word()?;
        if let Some(revision) = word.strip_prefix('@') {
            let sign = revision.find(['+', '-']).unwrap_or(revision.len());
            let (mark, distance) = revision.split_at(sign);
            let distance = match distance {
                "" => 0,
                distance => distance.parse()?,
            };
            return Ok(Value::Revision(mark.parse()?, distance));
        }
        if let Some(number) = word
            .strip_prefix('L')
            .and_then(|number| number.parse().ok())
        {
            return Ok(Value::Lease(number));
        }
        if let Some(number) = word
            .strip_prefix('C')
            .and_then(|number| number.parse().ok())
        {
            return Ok(Value::Chosen(number));
        }
        if let Ok(number) = word.parse() {
            return Ok(Value::Int(number));
        }
        Ok(match word {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            word => Value::Word(word.to_string()),
        })
    }

    fn quoted(&mut self) -> Result<Value> {
        let mut bytes = Vec::new();
        loop {
            let mut chars = self.rest.chars();
            let first = chars.next().context("a quote is not closed")?;
            self.rest = chars.as_str();
            match first {
                '"' => {
                    self.rest = self.rest.trim_start();
                    return Ok(Value::Bytes(bytes));
                }
                '\\' if self.rest.starts_with('x') => {
                    let hex = self.rest.get(1..3).context("\\x takes two digits")?;
                    bytes.push(u8::from_str_radix(hex, 16)?);
                    self.rest = &self.rest[3..];
                }
                '\\' => {
                    let mut chars = self.rest.chars();
                    let escaped = chars.next().context("nothing after \\")?;
                    bytes.extend_from_slice(escaped.to_string().as_bytes());
                    self.rest = chars.as_str();
                }
                other => bytes.extend_from_slice(other.to_string().as_bytes()),
            }
        }
    }

    fn word(&mut self) -> Result<&'a str> {
        let end = self
            .rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || "_@+-".contains(c)))
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        if word.is_empty() {
            bail!("expected a word at: {rest}");
        }
        self.rest = rest.trim_start();
        Ok(word)
    }

    fn take(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) if token == "\"" => {
                self.rest = rest;
                true
            }
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }
}
