//! The small conditions of a layout's claim and the sources of its map.
//!
//! A condition is `left op right` with `==`, `!=`, `>`, `>=`, `<`, `<=`; a list of them is joined
//! by *and*. A source is a capture's name, `$name` (last segment), `$key`, `$.json['path'][0]`,
//! `url.scheme|user|host|port|path`, `param:x`, `params`, `value.host|port|weight|text|flag`,
//! `kv.lease`, a number or a quoted text, or `digits(x)`, `hex(x)`, `lower(x)`, `javahash(x)`; `x?y`
//! gives a default. Against what is absent every comparison is false, `!=` too.

use super::codec::{self, UrlParts};
use super::description::ValueKind;
use crate::path::Protocol;

/// What a source yields.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Val {
    Missing,
    Text(String),
    Int(i128),
    Json(serde_json::Value),
}

impl Val {
    pub(crate) fn text(&self) -> Option<String> {
        match self {
            Val::Missing
            | Val::Json(serde_json::Value::Object(_) | serde_json::Value::Array(_)) => None,
            Val::Text(text) => Some(text.clone()),
            Val::Int(number) => Some(number.to_string()),
            Val::Json(value) => Some(value.to_string()),
        }
    }

    pub(crate) fn int(&self) -> Option<i128> {
        match self {
            Val::Int(number) => Some(*number),
            Val::Text(text) => text.parse().ok(),
            // 5.0 in JSON is the integer 5 to the programs that wrote it.
            Val::Json(value) => {
                let number = value
                    .as_f64()
                    .filter(|n| n.fract() == 0.0 && n.abs() < 9e15)?;
                format!("{number:.0}").parse().ok()
            }
            Val::Missing => None,
        }
    }

    fn of_json(value: &serde_json::Value) -> Val {
        match value {
            serde_json::Value::Null => Val::Missing,
            serde_json::Value::String(text) => Val::Text(text.clone()),
            serde_json::Value::Bool(flag) => Val::Text(flag.to_string()),
            serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(n), _) => Val::Int(n.into()),
                (None, Some(n)) => Val::Int(n.into()),
                _ => Val::Json(value.clone()),
            },
            other => Val::Json(other.clone()),
        }
    }
}

/// The decoded parts of one record that sources read.
#[derive(Debug, Default)]
pub(crate) struct Facts<'a> {
    pub(crate) key: &'a str,
    pub(crate) name: &'a str,
    pub(crate) captures: &'a [(String, String)],
    pub(crate) json: Option<serde_json::Value>,
    pub(crate) url: Option<UrlParts>,
    pub(crate) query: Option<Vec<(String, String)>>,
    pub(crate) host: Option<String>,
    pub(crate) port: Option<u16>,
    pub(crate) weight: Option<u32>,
    pub(crate) text: Option<String>,
    pub(crate) flag: Option<bool>,
    pub(crate) lease: Option<i64>,
}

impl Facts<'_> {
    /// The ordered parameters of the record's URL or query.
    pub(crate) fn params(&self) -> &[(String, String)] {
        match (&self.url, &self.query) {
            (Some(url), _) => &url.params,
            (None, Some(query)) => query,
            (None, None) => &[],
        }
    }
}

/// What a layout has, against which sources are checked at load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub(crate) captures: &'a [&'a str],
    pub(crate) value: ValueKind,
    pub(crate) protocol: Protocol,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Condition {
    pub(crate) text: String,
    left: Source,
    op: Op,
    right: Source,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Eq,
    Ne,
    Gt,
    Ge,
    Lt,
    Le,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Source {
    Literal(Val),
    Capture(String),
    Name,
    Key,
    Json(Vec<Step>),
    Url(UrlPart),
    Param(String),
    Params,
    ValueHost,
    ValuePort,
    ValueWeight,
    ValueText,
    ValueFlag,
    Lease,
    Digits(Box<Source>),
    Hex(Box<Source>),
    Lower(Box<Source>),
    JavaHash(Box<Source>),
    Default(Box<Source>, String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Field(String),
    Item(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UrlPart {
    Scheme,
    User,
    Host,
    Port,
    Path,
}

impl Condition {
    pub(crate) fn parse(text: &str, scope: Scope<'_>) -> Result<Condition, String> {
        let (at, op, length) =
            find_op(text).ok_or_else(|| format!("{text:?} has no comparison"))?;
        let left = text.get(..at).unwrap_or_default();
        let right = text.get(at + length..).unwrap_or_default();
        Ok(Condition {
            text: text.to_owned(),
            left: Source::parse(left, scope)?,
            op,
            right: Source::parse_or_word(right, scope)?,
        })
    }

    pub(crate) fn holds(&self, facts: &Facts<'_>) -> bool {
        let (left, right) = (self.left.value(facts), self.right.value(facts));
        if left == Val::Missing || right == Val::Missing {
            return false;
        }
        // Two texts are compared as texts: "007" and "7" are two names.
        let numeric = matches!(left, Val::Int(_)) || matches!(right, Val::Int(_));
        let equal = || match (numeric, left.int(), right.int()) {
            (true, Some(a), Some(b)) => a == b,
            _ => match (left.text(), right.text()) {
                (Some(a), Some(b)) => a == b,
                _ => left == right,
            },
        };
        let ordered = |wanted: fn(i128, i128) -> bool| match (left.int(), right.int()) {
            (Some(a), Some(b)) => wanted(a, b),
            _ => false,
        };
        match self.op {
            Op::Eq => equal(),
            Op::Ne => !equal(),
            Op::Gt => ordered(|a, b| a > b),
            Op::Ge => ordered(|a, b| a >= b),
            Op::Lt => ordered(|a, b| a < b),
            Op::Le => ordered(|a, b| a <= b),
        }
    }
}

impl Source {
    /// Reads a source; a bare word must name something the layout has.
    pub(crate) fn parse(text: &str, scope: Scope<'_>) -> Result<Source, String> {
        Source::read(text.trim(), scope, false, 0)
    }

    /// As [`Source::parse`], but an unknown bare word is a text.
    fn parse_or_word(text: &str, scope: Scope<'_>) -> Result<Source, String> {
        Source::read(text.trim(), scope, true, 0)
    }

    fn read(text: &str, scope: Scope<'_>, words: bool, depth: usize) -> Result<Source, String> {
        if depth > 8 {
            return Err(format!("{text:?} is nested too deeply"));
        }
        if text.is_empty() {
            return Err("a side of the comparison, or a source, is empty".to_owned());
        }
        if let Some(at) = find_outside_quotes(text, "?") {
            let inner = Source::read(
                text.get(..at).unwrap_or_default().trim(),
                scope,
                words,
                depth + 1,
            )?;
            return Ok(Source::Default(
                Box::new(inner),
                unquote(text.get(at + 1..).unwrap_or_default().trim()),
            ));
        }
        if let Some(inner) = text.strip_prefix('\'') {
            let inner = inner
                .strip_suffix('\'')
                .ok_or_else(|| format!("{text:?} has a quote that does not close"))?;
            return Ok(Source::Literal(Val::Text(inner.to_owned())));
        }
        if let Ok(number) = text.parse::<i128>() {
            return Ok(Source::Literal(Val::Int(number)));
        }
        if let Some((function, argument)) = text.strip_suffix(')').and_then(|t| t.split_once('(')) {
            let argument = Box::new(Source::read(argument.trim(), scope, false, depth + 1)?);
            return match function {
                "digits" => Ok(Source::Digits(argument)),
                "hex" => Ok(Source::Hex(argument)),
                "lower" => Ok(Source::Lower(argument)),
                "javahash" => Ok(Source::JavaHash(argument)),
                _ => Err(format!(
                    "unknown function {function:?} (known: digits, hex, lower, javahash)"
                )),
            };
        }
        if scope.captures.contains(&text) {
            return Ok(Source::Capture(text.to_owned()));
        }
        let has_url = scope.captures.contains(&"url")
            || matches!(scope.value, ValueKind::Url | ValueKind::JavaString);
        let need = |ok: bool, what: &str| {
            if ok {
                Ok(())
            } else {
                Err(format!("{text:?} needs {what}"))
            }
        };
        match text {
            "$name" => return Ok(Source::Name),
            "$key" => return Ok(Source::Key),
            "params" => {
                need(
                    has_url || scope.value == ValueKind::Query,
                    "a {url} capture or a url or query value",
                )?;
                return Ok(Source::Params);
            }
            "kv.lease" => {
                need(scope.protocol == Protocol::Etcd, "an etcd layout")?;
                return Ok(Source::Lease);
            }
            _ => {}
        }
        if let Some(path) = text.strip_prefix('$') {
            need(
                scope.value == ValueKind::Json || scope.captures.contains(&"json"),
                "a json value",
            )?;
            return Ok(Source::Json(
                json_path(path).ok_or_else(|| format!("{text:?} is no JSON path"))?,
            ));
        }
        if let Some(name) = text.strip_prefix("param:") {
            need(
                has_url || scope.value == ValueKind::Query,
                "a {url} capture or a url or query value",
            )?;
            return Ok(Source::Param(name.to_owned()));
        }
        if let Some(part) = text.strip_prefix("url.") {
            need(has_url, "a {url} capture or a url value")?;
            return Ok(Source::Url(match part {
                "scheme" => UrlPart::Scheme,
                "user" => UrlPart::User,
                "host" => UrlPart::Host,
                "port" => UrlPart::Port,
                "path" => UrlPart::Path,
                _ => {
                    return Err(format!(
                        "{text:?}: a url has scheme, user, host, port, path"
                    ));
                }
            }));
        }
        if let Some(part) = text.strip_prefix("value.") {
            let pair = matches!(scope.value, ValueKind::Hostport | ValueKind::HostportWeight);
            return match part {
                "host" => need(pair, "a hostport value").map(|()| Source::ValueHost),
                "port" => need(pair, "a hostport value").map(|()| Source::ValuePort),
                "weight" => need(
                    scope.value == ValueKind::HostportWeight,
                    "a hostport-weight value",
                )
                .map(|()| Source::ValueWeight),
                "flag" => need(scope.value == ValueKind::ByteFlag, "a byte-flag value")
                    .map(|()| Source::ValueFlag),
                "text" => need(
                    !matches!(scope.value, ValueKind::None | ValueKind::ByteFlag),
                    "a value that is text",
                )
                .map(|()| Source::ValueText),
                _ => Err(format!(
                    "{text:?}: a value has host, port, weight, text, flag"
                )),
            };
        }
        let word = text
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'));
        if words && word {
            return Ok(Source::Literal(Val::Text(text.to_owned())));
        }
        Err(format!("{text:?} names nothing that the layout has"))
    }

    pub(crate) fn value(&self, facts: &Facts<'_>) -> Val {
        let text = |text: Option<&str>| text.map_or(Val::Missing, |t| Val::Text(t.to_owned()));
        let number = |n: Option<i128>| n.map_or(Val::Missing, Val::Int);
        match self {
            Source::Literal(value) => value.clone(),
            Source::Capture(name) => text(
                facts
                    .captures
                    .iter()
                    .find(|(n, _)| n == name)
                    .map(|(_, value)| value.as_str()),
            ),
            Source::Name => Val::Text(facts.name.to_owned()),
            Source::Key => Val::Text(facts.key.to_owned()),
            Source::Json(steps) => facts
                .json
                .as_ref()
                .and_then(|root| walk(root, steps))
                .map_or(Val::Missing, Val::of_json),
            Source::Url(part) => match &facts.url {
                None => Val::Missing,
                Some(url) => match part {
                    UrlPart::Scheme => Val::Text(url.scheme.clone()),
                    UrlPart::User => text(url.user.as_deref()),
                    UrlPart::Host => Val::Text(url.host.clone()),
                    UrlPart::Port => number(url.port.map(i128::from)),
                    UrlPart::Path => Val::Text(url.path.clone()),
                },
            },
            Source::Param(name) => text(
                facts
                    .params()
                    .iter()
                    .find(|(n, _)| n == name)
                    .map(|(_, v)| v.as_str()),
            ),
            Source::Params => Val::Missing,
            Source::ValueHost => text(facts.host.as_deref()),
            Source::ValuePort => number(facts.port.map(i128::from)),
            Source::ValueWeight => number(facts.weight.map(i128::from)),
            Source::ValueText => text(facts.text.as_deref()),
            Source::ValueFlag => number(facts.flag.map(i128::from)),
            Source::Lease => number(facts.lease.filter(|id| *id != 0).map(i128::from)),
            Source::Digits(of) => of.value(facts).text().map_or(Val::Missing, |t| {
                Val::Text(t.chars().filter(char::is_ascii_digit).collect())
            }),
            // A lease id is shown as the 64 bits it is.
            Source::Hex(of) => match of.value(facts).int().and_then(|n| i64::try_from(n).ok()) {
                Some(id) => Val::Text(format!("{id:x}")),
                None => Val::Missing,
            },
            Source::Lower(of) => of
                .value(facts)
                .text()
                .map_or(Val::Missing, |t| Val::Text(t.to_lowercase())),
            Source::JavaHash(of) => of
                .value(facts)
                .text()
                .map_or(Val::Missing, |t| Val::Int(codec::java_hash(&t).into())),
            Source::Default(of, default) => match of.value(facts) {
                Val::Missing => Val::Text(default.clone()),
                value => value,
            },
        }
    }

    /// The parameter that this source reads, if it does.
    pub(crate) fn param(&self) -> Option<&str> {
        match self {
            Source::Param(name) => Some(name),
            Source::Default(of, _) => of.param(),
            _ => None,
        }
    }
}

fn walk<'a>(root: &'a serde_json::Value, steps: &[Step]) -> Option<&'a serde_json::Value> {
    steps.iter().try_fold(root, |at, step| match step {
        Step::Field(name) => at.as_object()?.get(name),
        Step::Item(index) => at.as_array()?.get(*index),
    })
}

/// `.a.b['c d'][0]`, or nothing for the whole.
fn json_path(text: &str) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            let (name, next) = after.split_at(end);
            if name.is_empty() && !(steps.is_empty() && next.is_empty()) {
                return None;
            }
            if !name.is_empty() {
                steps.push(Step::Field(name.to_owned()));
            }
            rest = next;
        } else if let Some(after) = rest.strip_prefix("['") {
            let (name, next) = after.split_once("']")?;
            steps.push(Step::Field(name.to_owned()));
            rest = next;
        } else {
            let (index, next) = rest.strip_prefix('[')?.split_once(']')?;
            steps.push(Step::Item(index.parse().ok()?));
            rest = next;
        }
    }
    Some(steps)
}

fn find_op(text: &str) -> Option<(usize, Op, usize)> {
    const OPS: [(&str, Op); 6] = [
        ("==", Op::Eq),
        ("!=", Op::Ne),
        (">=", Op::Ge),
        ("<=", Op::Le),
        (">", Op::Gt),
        ("<", Op::Lt),
    ];
    let mut quoted = false;
    for (at, c) in text.char_indices() {
        if c == '\'' {
            quoted = !quoted;
        }
        if quoted {
            continue;
        }
        let here = text.get(at..).unwrap_or_default();
        if let Some((word, op)) = OPS.iter().find(|(word, _)| here.starts_with(word)) {
            return Some((at, *op, word.len()));
        }
    }
    None
}

fn find_outside_quotes(text: &str, what: &str) -> Option<usize> {
    let mut quoted = false;
    text.char_indices().find_map(|(at, c)| {
        if c == '\'' {
            quoted = !quoted;
        }
        (!quoted && text.get(at..).is_some_and(|rest| rest.starts_with(what))).then_some(at)
    })
}

fn unquote(text: &str) -> String {
    text.strip_prefix('\'')
        .and_then(|t| t.strip_suffix('\''))
        .unwrap_or(text)
        .to_owned()
}
