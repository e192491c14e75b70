//! Names for what a server chose, when recording; what they stand for, when the same is sent to another server.

use std::collections::BTreeMap;

use super::transcript::Side;
use super::value::{Class, Form, Piece, Raw, Symbol, Value};

/// What a message is about, beside its own fields.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// ZooKeeper: the highest change that a reply told of, whether or not it is shown.
    pub zxid: Option<i64>,
    /// ZooKeeper: the path of the request that is answered.
    pub path: Option<Vec<u8>>,
}

/// The names given so far in one recording.
#[derive(Debug, Default)]
pub struct Names {
    prefix: Vec<u8>,
    counted: BTreeMap<Class, Vec<Raw>>,
    /// The first number of an ordered class, and the highest so far.
    ordered: BTreeMap<Class, (i64, i64)>,
    /// Paths of sequential nodes, as the server made them.
    sequences: Vec<Vec<u8>>,
    seen: Seen,
}

impl Names {
    /// For a run below `prefix`.
    pub fn new(prefix: &str) -> Names {
        Names {
            prefix: prefix.as_bytes().to_vec(),
            ..Names::default()
        }
    }

    /// Replaces in a message what was chosen by its name.
    pub fn name(
        &mut self,
        connection: u32,
        side: Side,
        kind: &str,
        value: Value,
        context: &Context,
    ) -> Value {
        self.seen.observe(connection, side, kind, &value, context);
        let value = match &context.path {
            Some(path) if !self.is_ours(path) => outside(value),
            _ => value,
        };
        self.walk(connection, side, value)
    }

    /// Whether a node lies in this run's part of the tree, so that nobody else changes it.
    fn is_ours(&self, path: &[u8]) -> bool {
        path.starts_with(&self.prefix)
    }

    fn walk(&mut self, connection: u32, side: Side, value: Value) -> Value {
        match value {
            Value::Chosen(class, raw) => self.chosen(connection, side, class, raw),
            Value::Text(pieces) => Value::Text(
                pieces
                    .into_iter()
                    .flat_map(|piece| match piece {
                        Piece::Bytes(bytes) => self.text(side, bytes),
                        other => vec![other],
                    })
                    .collect(),
            ),
            Value::List(list) => Value::List(
                list.into_iter()
                    .map(|value| self.walk(connection, side, value))
                    .collect(),
            ),
            Value::Record(fields) => Value::Record(
                fields
                    .into_iter()
                    .map(|(name, value)| (name, self.walk(connection, side, value)))
                    .collect(),
            ),
            other => other,
        }
    }

    fn chosen(&mut self, connection: u32, side: Side, class: Class, raw: Raw) -> Value {
        match (class, raw) {
            // Zero, and −1 in events of old servers, mean "none" in every field.
            (_, Raw::Int(number @ (0 | -1))) => Value::Int(number.into()),
            (_, Raw::Bytes(bytes)) if bytes.iter().all(|byte| *byte == 0) => Value::bytes(bytes),
            (Class::Seen, Raw::Int(zxid)) => {
                if self.seen.of(connection) == Some(zxid) {
                    Value::Symbol(Symbol {
                        class: Class::Seen,
                        number: 0,
                    })
                } else {
                    self.chosen(connection, side, Class::Zxid, Raw::Int(zxid))
                }
            }
            (class, Raw::Int(number)) if class.is_ordered() => {
                let known = self.ordered.get(&class).copied();
                let (first, highest) = match (known, side) {
                    (Some(known), _) => known,
                    (None, Side::Server) => (number, number),
                    (None, Side::Client) => return Value::Int(number.into()),
                };
                // A client's number is one that it was told or one beside it, as comparisons need; any other, and the
                // first of all revisions, is its own idea.
                let told = side == Side::Server
                    || class == Class::Zxid
                    || number > 1
                        && (first.saturating_sub(1)..=highest.saturating_add(2)).contains(&number);
                if !told {
                    return Value::Int(number.into());
                }
                if side == Side::Server {
                    self.ordered.insert(class, (first, highest.max(number)));
                }
                Value::Symbol(Symbol {
                    class,
                    number: number.wrapping_sub(first),
                })
            }
            (Class::Sequence, Raw::Bytes(path)) => {
                if !self.sequences.contains(&path) {
                    self.sequences.push(path.clone());
                }
                Value::Text(self.text(side, path))
            }
            (class, raw) => match self.count(class, &raw, side == Side::Server) {
                Some(symbol) => Value::Symbol(symbol),
                None => match raw {
                    Raw::Int(number) => Value::Int(number.into()),
                    Raw::Bytes(bytes) => Value::Text(self.text(side, bytes)),
                },
            },
        }
    }

    /// The symbol of a counted class; a new one when `new` is allowed.
    fn count(&mut self, class: Class, raw: &Raw, new: bool) -> Option<Symbol> {
        let known = self.counted.entry(class).or_default();
        let index = match known.iter().position(|known| known == raw) {
            Some(index) => index,
            None if new => {
                known.push(raw.clone());
                known.len() - 1
            }
            None => return None,
        };
        Some(Symbol {
            class,
            number: i64::try_from(index).unwrap_or(i64::MAX) + 1,
        })
    }

    fn text(&mut self, side: Side, bytes: Vec<u8>) -> Vec<Piece> {
        let mut found: Vec<(usize, usize, Piece)> = Vec::new();
        let mut mark = |start: usize, end: usize, symbol: Symbol, form: Form| {
            if !found.iter().any(|(from, to, _)| start < *to && *from < end) {
                found.push((start, end, Piece::Symbol(symbol, form)));
            }
        };
        for (index, path) in self.sequences.iter().enumerate() {
            let symbol = Symbol {
                class: Class::Sequence,
                number: i64::try_from(index).unwrap_or(i64::MAX) + 1,
            };
            let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            // The whole path, followed by nothing that would make it another; or the name alone.
            for start in find(&bytes, path) {
                let end = start + path.len();
                if !bytes.get(end).is_some_and(u8::is_ascii_digit) {
                    mark(end - DIGITS.min(end), end, symbol, Form::Plain);
                }
            }
            if bytes == name && name.len() >= DIGITS {
                mark(name.len() - DIGITS, name.len(), symbol, Form::Plain);
            }
        }
        let prefix = Symbol {
            class: Class::Prefix,
            number: 0,
        };
        for (text, form) in [
            (self.prefix.clone(), Form::Plain),
            (next(&self.prefix), Form::Next),
        ] {
            if !text.is_empty() {
                for start in find(&bytes, &text) {
                    mark(start, start + text.len(), prefix, form);
                }
            }
        }
        for (index, lease) in self
            .counted
            .get(&Class::Lease)
            .into_iter()
            .flatten()
            .enumerate()
        {
            let Raw::Int(lease) = lease else { continue };
            let symbol = Symbol {
                class: Class::Lease,
                number: i64::try_from(index).unwrap_or(i64::MAX) + 1,
            };
            for (text, form) in [
                (format!("{lease:x}"), Form::Hex),
                (lease.to_string(), Form::Plain),
            ] {
                // A short number could be anything.
                if text.len() >= 8 {
                    for start in find(&bytes, text.as_bytes()) {
                        mark(start, start + text.len(), symbol, form);
                    }
                }
            }
        }
        for (start, end, form) in uuids(&bytes) {
            let text: Vec<u8> = bytes[start..end]
                .iter()
                .copied()
                .filter(|byte| *byte != b'-')
                .collect();
            let known = self.counted.entry(Class::Uuid).or_default();
            let raw = Raw::Bytes(text);
            let index = match known.iter().position(|known| *known == raw) {
                Some(index) => index,
                // A server makes no UUIDs that a client has to send back.
                None if side == Side::Server => continue,
                None => {
                    known.push(raw);
                    known.len() - 1
                }
            };
            let symbol = Symbol {
                class: Class::Uuid,
                number: i64::try_from(index).unwrap_or(i64::MAX) + 1,
            };
            mark(start, end, symbol, form);
        }
        found.sort_by_key(|(start, _, _)| *start);
        let mut pieces = Vec::new();
        let mut at = 0;
        for (start, end, piece) in found {
            if at < start {
                pieces.push(Piece::Bytes(bytes[at..start].to_vec()));
            }
            pieces.push(piece);
            at = end;
        }
        if at < bytes.len() {
            pieces.push(Piece::Bytes(bytes[at..].to_vec()));
        }
        pieces
    }
}

/// The digits of a sequential node's name, ZooKeeper: `PrepRequestProcessor`, `%010d`.
const DIGITS: usize = 10;

/// The highest zxid that each session was told of: what a client sends when it comes back.
#[derive(Debug, Default)]
struct Seen {
    /// Session of a connection.
    sessions: BTreeMap<u32, i64>,
    highest: BTreeMap<i64, i64>,
}

impl Seen {
    fn observe(
        &mut self,
        connection: u32,
        side: Side,
        kind: &str,
        value: &Value,
        context: &Context,
    ) {
        if kind == "connect"
            && let Some(session) = value.get("session").and_then(Value::int)
            && session != 0
        {
            self.sessions.insert(connection, session);
        }
        if let (Side::Server, Some(zxid), Some(session)) =
            (side, context.zxid, self.sessions.get(&connection))
        {
            let highest = self.highest.entry(*session).or_insert(zxid);
            *highest = zxid.max(*highest);
        }
    }

    fn of(&self, connection: u32) -> Option<i64> {
        self.highest.get(self.sessions.get(&connection)?).copied()
    }
}

/// What a reply says of nodes that other runs change too: only that it says something.
fn outside(value: Value) -> Value {
    match value {
        Value::Record(fields) => Value::Record(
            fields
                .into_iter()
                .map(|(name, value)| match name.as_str() {
                    "stat" | "children" | "count" => (name, Value::Any),
                    _ => (name, value),
                })
                .collect(),
        ),
        other => other,
    }
}

/// What the names of a transcript stand for on the server that it is sent to.
#[derive(Debug)]
pub struct Bindings {
    prefix: Vec<u8>,
    known: BTreeMap<Symbol, Raw>,
    ordered: BTreeMap<Class, BTreeMap<i64, i64>>,
    seen: Seen,
}

impl Bindings {
    /// For a run below `prefix`.
    pub fn new(prefix: &str) -> Bindings {
        Bindings {
            prefix: prefix.as_bytes().to_vec(),
            known: BTreeMap::new(),
            ordered: BTreeMap::new(),
            seen: Seen::default(),
        }
    }

    /// Takes notice of a message that was sent or came.
    pub fn observe(
        &mut self,
        connection: u32,
        side: Side,
        kind: &str,
        value: &Value,
        context: &Context,
    ) {
        self.seen.observe(connection, side, kind, value, context);
    }

    /// A client's message with every name replaced by what it stands for.
    pub fn resolve(&mut self, connection: u32, value: &Value) -> Value {
        // A connect names its session before anything else of it can be resolved.
        if let Some(Value::Symbol(session)) = value.get("session")
            && let Some(Raw::Int(session)) = self.known.get(session)
        {
            self.seen.sessions.insert(connection, *session);
        }
        self.resolve_part(connection, value)
    }

    fn resolve_part(&self, connection: u32, value: &Value) -> Value {
        match value {
            Value::Symbol(symbol) => match self.meaning(connection, *symbol) {
                Raw::Int(number) => Value::Int(number.into()),
                Raw::Bytes(bytes) => Value::bytes(bytes),
            },
            Value::Text(pieces) => Value::bytes(
                pieces
                    .iter()
                    .flat_map(|piece| self.spell(piece))
                    .collect::<Vec<u8>>(),
            ),
            Value::List(list) => Value::List(
                list.iter()
                    .map(|value| self.resolve_part(connection, value))
                    .collect(),
            ),
            Value::Record(fields) => Value::Record(
                fields
                    .iter()
                    .map(|(name, value)| (name.clone(), self.resolve_part(connection, value)))
                    .collect(),
            ),
            other => other.clone(),
        }
    }

    fn meaning(&self, connection: u32, symbol: Symbol) -> Raw {
        if let Some(raw) = self.known.get(&symbol) {
            return raw.clone();
        }
        match symbol.class {
            Class::Prefix => Raw::Bytes(self.prefix.clone()),
            Class::Seen => Raw::Int(self.seen.of(connection).unwrap_or(0)),
            Class::Uuid => Raw::Bytes(
                format!(
                    "{:08x}c0de4000800000000000{:04x}",
                    symbol.number, symbol.number
                )
                .into_bytes(),
            ),
            Class::Revision | Class::Zxid => {
                let below = self
                    .ordered
                    .get(&symbol.class)
                    .and_then(|known| known.range(..=symbol.number).next_back());
                Raw::Int(match below {
                    // The revision after the last one is how a watch goes on. A zxid from the future would be refused.
                    Some((number, actual)) if symbol.class == Class::Revision => {
                        actual.saturating_add(symbol.number.saturating_sub(*number))
                    }
                    Some((_, actual)) => *actual,
                    None => self
                        .ordered
                        .get(&symbol.class)
                        .and_then(|known| known.first_key_value())
                        .filter(|_| symbol.class == Class::Revision)
                        .map_or(0, |(number, actual)| {
                            actual.saturating_sub(number.saturating_sub(symbol.number))
                        }),
                })
            }
            Class::Password | Class::Token => Raw::Bytes(vec![0; 16]),
            // A number that nobody has: the server's answer will differ, and that is then reported.
            Class::Lease | Class::Session => Raw::Int(0x7fff_0000_0000_0000 + symbol.number),
            Class::Sequence => Raw::Bytes(b"9999999999".to_vec()),
        }
    }

    fn spell(&self, piece: &Piece) -> Vec<u8> {
        let Piece::Symbol(symbol, form) = piece else {
            return match piece {
                Piece::Bytes(bytes) => bytes.clone(),
                Piece::Symbol(..) => Vec::new(),
            };
        };
        match (self.meaning(0, *symbol), form) {
            (Raw::Bytes(bytes), Form::Next) => next(&bytes),
            (Raw::Bytes(bytes), Form::Plain) if symbol.class == Class::Uuid => dashed(&bytes),
            (Raw::Bytes(bytes), _) => bytes,
            (Raw::Int(number), Form::Hex) => format!("{number:x}").into_bytes(),
            (Raw::Int(number), _) => number.to_string().into_bytes(),
        }
    }

    /// Holds what came against what the transcript says; learns what new names stand for. Differences are added
    /// to `found`, each with the path of its field.
    pub fn compare(&mut self, at: &str, expected: &Value, actual: &Value, found: &mut Vec<String>) {
        let differs = |found: &mut Vec<String>| {
            found.push(format!("{at}: expected {expected}, got {actual}"));
        };
        match (expected, actual) {
            (Value::Any, _) => {}
            (Value::Symbol(symbol), _) => {
                let raw = match actual {
                    Value::Chosen(_, raw) => raw.clone(),
                    Value::Int(number) => Raw::Int(i64::try_from(*number).unwrap_or(i64::MAX)),
                    Value::Text(_) => Raw::Bytes(actual.plain().unwrap_or_default()),
                    _ => return differs(found),
                };
                if let Some(reason) = self.bind(*symbol, raw) {
                    found.push(format!("{at}: {reason}"));
                }
            }
            (Value::Text(pieces), Value::Text(_) | Value::Chosen(_, Raw::Bytes(_))) => {
                let bytes = actual.plain().unwrap_or_default();
                if !self.match_text(pieces, &bytes) {
                    let expected: Vec<u8> =
                        pieces.iter().flat_map(|piece| self.spell(piece)).collect();
                    found.push(format!(
                        "{at}: expected {}, got {}",
                        Value::bytes(expected),
                        Value::bytes(bytes)
                    ));
                }
            }
            (Value::Int(number), Value::Chosen(_, Raw::Int(actual)))
                if *number == i128::from(*actual) => {}
            (Value::List(wanted), Value::List(got)) => {
                if wanted.len() != got.len() {
                    return differs(found);
                }
                let wanted = if at.ends_with(".children") || at == "LeaseTimeToLive.keys" {
                    self.in_order_of(wanted, got)
                } else {
                    wanted.clone()
                };
                for (index, (wanted, got)) in wanted.iter().zip(got).enumerate() {
                    self.compare(&format!("{at}[{index}]"), wanted, got, found);
                }
            }
            (Value::Record(wanted), Value::Record(got)) => {
                for (name, wanted) in wanted {
                    match got.iter().find(|(field, _)| field == name) {
                        Some((_, got)) => {
                            self.compare(&format!("{at}.{name}"), wanted, got, found);
                        }
                        None if *wanted == Value::Any => {}
                        None => found.push(format!("{at}.{name}: expected {wanted}, got none")),
                    }
                }
                for (name, got) in got {
                    if !wanted.iter().any(|(field, _)| field == name) {
                        found.push(format!("{at}.{name}: expected none, got {got}"));
                    }
                }
            }
            (expected, actual) if expected == actual => {}
            _ => differs(found),
        }
    }

    /// Names of children, or a lease's keys, in the order of `got`: it depends on what clients and server chose this time.
    fn in_order_of(&self, wanted: &[Value], got: &[Value]) -> Vec<Value> {
        let mut left: Vec<(Vec<u8>, &Value)> = wanted
            .iter()
            .map(|value| {
                let text = self.resolve_part(0, value).plain().unwrap_or_default();
                (text, value)
            })
            .collect();
        let mut ordered: Vec<Option<Value>> = got
            .iter()
            .map(|got| {
                let text = got.plain().unwrap_or_default();
                let at = left.iter().position(|(wanted, _)| *wanted == text)?;
                Some(left.remove(at).1.clone())
            })
            .collect();
        let mut rest = left.into_iter().map(|(_, value)| value.clone());
        for place in &mut ordered {
            if place.is_none() {
                *place = rest.next();
            }
        }
        ordered.into_iter().flatten().collect()
    }

    /// Learns or checks; says what is wrong.
    fn bind(&mut self, symbol: Symbol, raw: Raw) -> Option<String> {
        if let (true, Raw::Int(actual)) = (symbol.class.is_ordered(), &raw) {
            let known = self.ordered.entry(symbol.class).or_default();
            if let Some(bound) = known.get(&symbol.number) {
                return (bound != actual)
                    .then(|| format!("${symbol} was {bound} before, got {actual}"));
            }
            let below = known.range(..symbol.number).next_back();
            let above = known.range(symbol.number..).next();
            if let Some((number, bound)) = below
                && bound >= actual
            {
                return Some(format!(
                    "${symbol} is {actual}, which is not above {bound} of {number:+}"
                ));
            }
            if let Some((number, bound)) = above
                && bound <= actual
            {
                return Some(format!(
                    "${symbol} is {actual}, which is not below {bound} of {number:+}"
                ));
            }
            known.insert(symbol.number, *actual);
            return None;
        }
        if let Some(bound) = self.known.get(&symbol) {
            return (*bound != raw).then(|| format!("${symbol} was {bound:?} before, got {raw:?}"));
        }
        if matches!(raw, Raw::Int(0)) {
            return Some(format!("expected ${symbol}, got 0"));
        }
        if let Some((other, _)) = self
            .known
            .iter()
            .find(|(other, bound)| other.class == symbol.class && **bound == raw)
            && symbol.class != Class::Sequence
        {
            return Some(format!(
                "${symbol} should be new, got that of ${other} again"
            ));
        }
        self.known.insert(symbol, raw);
        None
    }

    fn match_text(&mut self, pieces: &[Piece], bytes: &[u8]) -> bool {
        let mut rest = bytes;
        for piece in pieces {
            if let Piece::Symbol(symbol, Form::Plain) = piece
                && symbol.class == Class::Sequence
                && !self.known.contains_key(symbol)
            {
                let Some((digits, after)) = rest.split_at_checked(DIGITS) else {
                    return false;
                };
                if !digits.iter().all(u8::is_ascii_digit) {
                    return false;
                }
                self.known.insert(*symbol, Raw::Bytes(digits.to_vec()));
                rest = after;
                continue;
            }
            let Some(after) = rest.strip_prefix(self.spell(piece).as_slice()) else {
                return false;
            };
            rest = after;
        }
        rest.is_empty()
    }
}

/// Where `needle` stands in `bytes`.
fn find(bytes: &[u8], needle: &[u8]) -> Vec<usize> {
    if needle.is_empty() || needle.len() > bytes.len() {
        return Vec::new();
    }
    let mut starts = Vec::new();
    let mut at = 0;
    while let Some(window) = bytes.get(at..at + needle.len()) {
        if window == needle {
            starts.push(at);
            at += needle.len();
        } else {
            at += 1;
        }
    }
    starts
}

/// The end of the range of keys that begin with `prefix`, as etcd's clients compute it.
fn next(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            break;
        }
    }
    end
}

/// UUIDs in lower case, with dashes or without.
fn uuids(bytes: &[u8]) -> Vec<(usize, usize, Form)> {
    let is_hex = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    let mut found = Vec::new();
    let mut start = 0;
    while start < bytes.len() {
        let length = bytes[start..]
            .iter()
            .take_while(|byte| is_hex(byte) || **byte == b'-')
            .count();
        let word = &bytes[start..start + length];
        let head = word.get(..36).filter(|head| {
            head.iter().enumerate().all(|(index, byte)| {
                if [8, 13, 18, 23].contains(&index) {
                    *byte == b'-'
                } else {
                    is_hex(byte)
                }
            })
        });
        let plain = word.iter().take_while(|byte| is_hex(byte)).count();
        if head.is_some() && !word.get(36).is_some_and(is_hex) {
            found.push((start, start + 36, Form::Plain));
        } else if plain == 32 && is_varied(&word[..32]) {
            found.push((start, start + 32, Form::Hex));
        }
        start += length.max(1);
    }
    found
}

/// Whether it looks random and not like a counted or repeated text.
fn is_varied(text: &[u8]) -> bool {
    let mut letters = text.to_vec();
    letters.sort_unstable();
    letters.dedup();
    letters.len() >= 7
}

fn dashed(hex: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    for (index, byte) in hex.iter().enumerate() {
        if [8, 12, 16, 20].contains(&index) {
            text.push(b'-');
        }
        text.push(*byte);
    }
    text
}
