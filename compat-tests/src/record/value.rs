//! The tree that every message is turned into, and its one-line text.
//!
//! `{key: "${prefix}/a", lease: $lease1, kvs: [..], sort: ASCEND, cluster_id: ~}`: a text is bytes, escaped as in Rust
//! where they are no printable ASCII; `$name` stands for a number or bytes that the server chose; `~` for something
//! that differs in every run and that no client sends back. `${1000*ab}` inside a text is `ab` a thousand times.

use std::fmt::{self, Write as _};

use anyhow::{Context as _, Result, bail, ensure};

/// What a server (or a library's random numbers) chose, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Where the run's nodes or keys lie.
    Prefix,
    /// An etcd lease.
    Lease,
    /// An etcd revision; its number is the distance from the first revision of the run.
    Revision,
    /// A ZooKeeper session id.
    Session,
    /// The password of a session.
    Password,
    /// A zxid; its number is the distance from the first zxid of the run.
    Zxid,
    /// The highest zxid that the session's connections had received by then.
    Seen,
    /// The ten digits at the end of a sequential node's name.
    Sequence,
    /// A token of etcd's authentication.
    Token,
    /// A UUID of the client's, as libraries put them into the names of lock nodes.
    Uuid,
}

impl Class {
    const ALL: [(Class, &'static str); 10] = [
        (Class::Prefix, "prefix"),
        (Class::Lease, "lease"),
        (Class::Revision, "rev"),
        (Class::Session, "session"),
        (Class::Password, "password"),
        (Class::Zxid, "zxid"),
        (Class::Seen, "seen"),
        (Class::Sequence, "seq"),
        (Class::Token, "token"),
        (Class::Uuid, "uuid"),
    ];

    /// Whether its number is a distance and not a count.
    pub fn is_ordered(self) -> bool {
        matches!(self, Class::Revision | Class::Zxid)
    }

    fn word(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(class, _)| *class == self)
            .map_or("", |(_, word)| word)
    }
}

/// A name for something chosen, such as `$lease1` or `$rev+3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Symbol {
    /// Its kind.
    pub class: Class,
    /// Which one, by first appearance; a distance for the ordered classes; 0 where there is only one.
    pub number: i64,
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.class.word())?;
        match self.class {
            Class::Prefix | Class::Seen => Ok(()),
            class if class.is_ordered() => write!(f, "{:+}", self.number),
            _ => write!(f, "{}", self.number),
        }
    }
}

impl Symbol {
    fn parse(text: &str) -> Result<Symbol> {
        let split = text
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(text.len());
        let (word, number) = text.split_at(split);
        let (class, _) = Class::ALL
            .into_iter()
            .find(|(_, name)| *name == word)
            .with_context(|| format!("no such name: ${text}"))?;
        let number = match number.strip_prefix('+').unwrap_or(number) {
            "" => 0,
            digits => digits.parse().with_context(|| format!("${text}"))?,
        };
        Ok(Symbol { class, number })
    }
}

/// How a symbol is written inside a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// Bytes as they are, numbers in decimal.
    Plain,
    /// Hexadecimal without leading zeroes; a UUID without dashes.
    Hex,
    /// The last byte raised by one: the end of the range of a prefix.
    Next,
}

impl Form {
    const ALL: [(Form, &'static str); 3] =
        [(Form::Plain, ""), (Form::Hex, ":x"), (Form::Next, ":next")];
}

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Piece {
    /// Bytes that are the same in every run.
    Bytes(Vec<u8>),
    /// Something chosen.
    Symbol(Symbol, Form),
}

/// Something chosen, before it has a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Raw {
    /// A number.
    Int(i64),
    /// Bytes.
    Bytes(Vec<u8>),
}

/// One message or a part of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// A missing string or list.
    Null,
    /// As it says.
    Bool(bool),
    /// Any integer of either protocol.
    Int(i128),
    /// A name out of a protocol's enumeration, or a number that is no integer.
    Word(String),
    /// Bytes.
    Text(Vec<Piece>),
    /// Something chosen, under its name.
    Symbol(Symbol),
    /// Something chosen, not yet named. Never in a transcript.
    Chosen(Class, Raw),
    /// Different in every run.
    Any,
    /// In order.
    List(Vec<Value>),
    /// In order of the protocol's definition.
    Record(Vec<(String, Value)>),
}

impl Value {
    /// Bytes without anything chosen in them.
    pub fn bytes(bytes: impl Into<Vec<u8>>) -> Value {
        let bytes = bytes.into();
        Value::Text(if bytes.is_empty() {
            Vec::new()
        } else {
            vec![Piece::Bytes(bytes)]
        })
    }

    /// A word.
    pub fn word(word: impl Into<String>) -> Value {
        Value::Word(word.into())
    }

    /// A record of these fields.
    pub fn record<const N: usize>(fields: [(&str, Value); N]) -> Value {
        Value::Record(
            fields
                .into_iter()
                .map(|(name, value)| (name.to_string(), value))
                .collect(),
        )
    }

    /// A field of a record.
    pub fn get(&self, name: &str) -> Option<&Value> {
        match self {
            Value::Record(fields) => fields
                .iter()
                .find(|(field, _)| field == name)
                .map(|(_, value)| value),
            _ => None,
        }
    }

    /// A field of a record, as a path of names.
    pub fn at(&self, path: &[&str]) -> Option<&Value> {
        path.iter().try_fold(self, |value, name| value.get(name))
    }

    /// The number that it is; for something unnamed too.
    pub fn int(&self) -> Option<i64> {
        match self {
            Value::Int(number) => i64::try_from(*number).ok(),
            Value::Chosen(_, Raw::Int(number)) => Some(*number),
            _ => None,
        }
    }

    /// The bytes that it is, when nothing in them is a symbol.
    pub fn plain(&self) -> Option<Vec<u8>> {
        match self {
            Value::Text(pieces) => {
                let mut all = Vec::new();
                for piece in pieces {
                    match piece {
                        Piece::Bytes(bytes) => all.extend_from_slice(bytes),
                        Piece::Symbol(..) => return None,
                    }
                }
                Some(all)
            }
            Value::Chosen(_, Raw::Bytes(bytes)) => Some(bytes.clone()),
            _ => None,
        }
    }

    /// The word that it is.
    pub fn as_word(&self) -> Option<&str> {
        match self {
            Value::Word(word) => Some(word),
            _ => None,
        }
    }

    /// The elements of a list.
    pub fn list(&self) -> &[Value] {
        match self {
            Value::List(list) => list,
            _ => &[],
        }
    }

    /// The fields of a record.
    pub fn fields(&self) -> &[(String, Value)] {
        match self {
            Value::Record(fields) => fields,
            _ => &[],
        }
    }

    /// Reads what [`Value`]'s `Display` wrote.
    ///
    /// # Errors
    /// Anything else.
    pub fn parse(text: &str) -> Result<Value> {
        let mut parser = Parser {
            text: text.as_bytes(),
            at: 0,
        };
        let value = parser.value(0)?;
        parser.space();
        ensure!(
            parser.at == text.len(),
            "more after the value: {:?}",
            text.get(parser.at..)
        );
        Ok(value)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Int(value) => write!(f, "{value}"),
            Value::Word(word) => f.write_str(word),
            Value::Text(pieces) => print_text(f, pieces),
            Value::Symbol(symbol) => write!(f, "${symbol}"),
            Value::Chosen(class, raw) => write!(f, "${}?{raw:?}", class.word()),
            Value::Any => f.write_str("~"),
            Value::List(list) => {
                f.write_char('[')?;
                for (index, value) in list.iter().enumerate() {
                    write!(f, "{}{value}", if index == 0 { "" } else { ", " })?;
                }
                f.write_char(']')
            }
            Value::Record(fields) => {
                f.write_char('{')?;
                for (index, (name, value)) in fields.iter().enumerate() {
                    f.write_str(if index == 0 { "" } else { ", " })?;
                    if name.is_empty() || !name.bytes().all(is_token) {
                        print_text(f, &[Piece::Bytes(name.clone().into_bytes())])?;
                    } else {
                        f.write_str(name)?;
                    }
                    write!(f, ": {value}")?;
                }
                f.write_char('}')
            }
        }
    }
}

/// Repetitions below this length are written out: they are easier to read so.
const LONG: usize = 48;

fn print_text(f: &mut fmt::Formatter<'_>, pieces: &[Piece]) -> fmt::Result {
    f.write_char('"')?;
    for piece in pieces {
        match piece {
            Piece::Bytes(bytes) => print_bytes(f, bytes)?,
            Piece::Symbol(symbol, form) => {
                let suffix = Form::ALL
                    .iter()
                    .find(|(known, _)| known == form)
                    .map_or("", |(_, suffix)| suffix);
                write!(f, "${{{symbol}{suffix}}}")?;
            }
        }
    }
    f.write_char('"')
}

fn print_bytes(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    let mut rest = bytes;
    'next: while let Some((&first, after)) = rest.split_first() {
        // Values of a megabyte may well repeat all bytes that there are.
        let longest = if rest.len() > 4096 { 300 } else { 16 };
        for period in 1..=longest {
            let Some(unit) = rest.get(..period) else {
                break;
            };
            let count = rest
                .chunks_exact(period)
                .take_while(|chunk| *chunk == unit)
                .count();
            if count > 1 && count * period >= LONG {
                write!(f, "${{{count}*")?;
                for &byte in unit {
                    print_byte(f, byte)?;
                }
                f.write_char('}')?;
                rest = &rest[count * period..];
                continue 'next;
            }
        }
        print_byte(f, first)?;
        rest = after;
    }
    Ok(())
}

fn print_byte(f: &mut fmt::Formatter<'_>, byte: u8) -> fmt::Result {
    match byte {
        b'"' | b'\\' | b'$' | b'}' => write!(f, "\\{}", char::from(byte)),
        b'\n' => f.write_str("\\n"),
        b'\t' => f.write_str("\\t"),
        b' '..=b'~' => f.write_char(char::from(byte)),
        _ => write!(f, "\\x{byte:02x}"),
    }
}

/// Characters of numbers, words and plain field names.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_.+-/".contains(&byte)
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn space(&mut self) {
        while self.peek() == Some(b' ') {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        self.space();
        let found = self.peek() == Some(byte);
        if found {
            self.at += 1;
        }
        found
    }

    fn need(&mut self, byte: u8) -> Result<()> {
        ensure!(
            self.take(byte),
            "{:?} is missing at {}",
            char::from(byte),
            self.at
        );
        Ok(())
    }

    fn token(&mut self) -> String {
        let start = self.at;
        while self.peek().is_some_and(is_token) {
            self.at += 1;
        }
        String::from_utf8_lossy(&self.text[start..self.at]).into_owned()
    }

    fn value(&mut self, depth: usize) -> Result<Value> {
        ensure!(depth < 64, "nested too deep");
        self.space();
        match self.peek().context("a value is missing")? {
            b'{' => {
                self.at += 1;
                let mut fields = Vec::new();
                while !self.take(b'}') {
                    if !fields.is_empty() {
                        self.need(b',')?;
                    }
                    self.space();
                    let name = if self.peek() == Some(b'"') {
                        let text = Value::Text(self.text()?);
                        String::from_utf8(text.plain().context("a name with a symbol")?)?
                    } else {
                        self.token()
                    };
                    self.need(b':')?;
                    fields.push((name, self.value(depth + 1)?));
                }
                Ok(Value::Record(fields))
            }
            b'[' => {
                self.at += 1;
                let mut list = Vec::new();
                while !self.take(b']') {
                    if !list.is_empty() {
                        self.need(b',')?;
                    }
                    list.push(self.value(depth + 1)?);
                }
                Ok(Value::List(list))
            }
            b'"' => Ok(Value::Text(self.text()?)),
            b'~' => {
                self.at += 1;
                Ok(Value::Any)
            }
            b'$' => {
                self.at += 1;
                Ok(Value::Symbol(Symbol::parse(&self.token())?))
            }
            _ => {
                let token = self.token();
                Ok(match token.as_str() {
                    "" => bail!("no value at {}", self.at),
                    "null" => Value::Null,
                    "true" => Value::Bool(true),
                    "false" => Value::Bool(false),
                    _ => token.parse().map_or(Value::Word(token), Value::Int),
                })
            }
        }
    }

    fn text(&mut self) -> Result<Vec<Piece>> {
        self.need(b'"')?;
        let mut pieces = Vec::new();
        let mut bytes = Vec::new();
        loop {
            match self.peek().context("a text without end")? {
                b'"' => {
                    self.at += 1;
                    break;
                }
                b'$' => {
                    self.at += 1;
                    self.need(b'{')?;
                    let start = self.at;
                    while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
                        self.at += 1;
                    }
                    if self.at > start && self.peek() == Some(b'*') {
                        let count: usize =
                            std::str::from_utf8(&self.text[start..self.at])?.parse()?;
                        ensure!(count <= 1 << 24, "{count} repetitions");
                        self.at += 1;
                        let mut unit = Vec::new();
                        while !self.take_byte(b'}') {
                            unit.push(self.byte()?);
                        }
                        bytes.extend(unit.repeat(count));
                        continue;
                    }
                    let name = self.token();
                    let suffix = if self.take_byte(b':') {
                        format!(":{}", self.token())
                    } else {
                        String::new()
                    };
                    self.need(b'}')?;
                    let (form, _) = Form::ALL
                        .into_iter()
                        .find(|(_, known)| *known == suffix)
                        .with_context(|| format!("no such form: {suffix}"))?;
                    if !bytes.is_empty() {
                        pieces.push(Piece::Bytes(std::mem::take(&mut bytes)));
                    }
                    pieces.push(Piece::Symbol(Symbol::parse(&name)?, form));
                }
                _ => {
                    let byte = self.byte()?;
                    bytes.push(byte);
                }
            }
        }
        if !bytes.is_empty() {
            pieces.push(Piece::Bytes(bytes));
        }
        Ok(pieces)
    }

    fn take_byte(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        if found {
            self.at += 1;
        }
        found
    }

    fn byte(&mut self) -> Result<u8> {
        let byte = self.peek().context("a text without end")?;
        self.at += 1;
        if byte != b'\\' {
            return Ok(byte);
        }
        let escaped = self.peek().context("a text without end")?;
        self.at += 1;
        Ok(match escaped {
            b'n' => b'\n',
            b't' => b'\t',
            b'x' => {
                let digits = self
                    .text
                    .get(self.at..self.at + 2)
                    .context("two digits after \\x")?;
                self.at += 2;
                u8::from_str_radix(std::str::from_utf8(digits)?, 16)?
            }
            other => other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(value: Value, text: &str) {
        assert_eq!(value.to_string(), text);
        assert_eq!(Value::parse(text).unwrap(), value);
    }

    #[test]
    fn every_value_is_read_back_as_it_was_written() {
        let symbol = |class, number| Symbol { class, number };
        check(Value::Null, "null");
        check(Value::Bool(true), "true");
        check(Value::Int(-7), "-7");
        check(Value::Int(i128::from(u64::MAX)), "18446744073709551615");
        check(Value::word("CREATE_REVISION"), "CREATE_REVISION");
        check(Value::Any, "~");
        check(Value::bytes(""), "\"\"");
        check(
            Value::bytes("a\"b\\c$d}e\n\x00\u{e9}"),
            "\"a\\\"b\\\\c\\$d\\}e\\n\\x00\\xc3\\xa9\"",
        );
        check(Value::bytes("ab".repeat(50)), "\"${50*ab}\"");
        check(Value::bytes("}".repeat(50)), "\"${50*\\}}\"");
        check(
            Value::bytes(format!("x{}y", "a".repeat(1000))),
            "\"x${1000*a}y\"",
        );
        check(Value::Symbol(symbol(Class::Revision, 3)), "$rev+3");
        check(Value::Symbol(symbol(Class::Zxid, -2)), "$zxid-2");
        check(Value::Symbol(symbol(Class::Lease, 12)), "$lease12");
        check(Value::Symbol(symbol(Class::Seen, 0)), "$seen");
        check(
            Value::Text(vec![
                Piece::Symbol(symbol(Class::Prefix, 0), Form::Next),
                Piece::Bytes(b"/".to_vec()),
                Piece::Symbol(symbol(Class::Lease, 1), Form::Hex),
            ]),
            "\"${prefix:next}/${lease1:x}\"",
        );
        check(
            Value::Record(vec![
                ("key".into(), Value::List(vec![Value::Int(1), Value::Null])),
                ("odd name".into(), Value::Record(Vec::new())),
            ]),
            "{key: [1, null], \"odd name\": {}}",
        );
    }

    #[test]
    fn what_is_no_value_is_refused() {
        for text in [
            "",
            "{",
            "{a 1}",
            "[1",
            "\"a",
            "\"${",
            "\"\\x0",
            "$none1",
            "1 2",
            "\"${99999999*a}\"",
        ] {
            assert!(Value::parse(text).is_err(), "{text:?}");
        }
        assert!(Value::parse(&"[".repeat(1000)).is_err());
    }
}
