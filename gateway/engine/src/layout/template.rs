//! Key templates: which keys a layout describes and what their parts mean.
//!
//! `/{root=dubbo}/{service:urlenc-java}/{category=providers|consumers}/{url:urlenc-java}`: literals,
//! `{name}` for one segment, `{*name}` for one or more, `{name:codec}`, `{name~regex}`,
//! `{name=a|b}` for a closed set. A segment may mix literals and captures. A first segment
//! `{root}` stands for the configured roots (`{root=x}` gives the default).

use std::collections::BTreeMap;

use regex::Regex;

use super::codec::{Codec, DecodeError};
use crate::path::Protocol;

/// Longest template text; a layout's template is written by hand.
const MAX_TEMPLATE: usize = 1024;

#[derive(Debug, Clone)]
pub(crate) struct Template {
    pub(crate) base: Base,
    pub(crate) tail: Vec<Segment>,
}

/// What stands before the part that differs from service to service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Base {
    /// Literal segments, joined; `None`: the template begins with a capture right away.
    Literal(Option<String>),
    /// `{root}`, with the default if there is one.
    Root(Option<String>),
}

#[derive(Debug, Clone)]
pub(crate) enum Segment {
    Literal(String),
    /// One capture is the whole segment.
    Capture(Capture),
    /// Literals and captures together; a group of the expression per capture.
    Mixed {
        parts: Vec<Part>,
        regex: Regex,
    },
    /// `{*name}`: one segment or more.
    Multi(Capture),
    /// `{name:rest}`: all that follows.
    Rest(Capture),
}

#[derive(Debug, Clone)]
pub(crate) enum Part {
    Literal(String),
    Capture(Capture),
}

#[derive(Debug, Clone)]
pub(crate) struct Capture {
    pub(crate) name: String,
    pub(crate) codec: Codec,
    pub(crate) regex: Option<Regex>,
    pub(crate) closed: Vec<String>,
    pattern: String,
}

/// How far a key agrees with the template's tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The key is an instance's place.
    Full,
    /// The key ends before the template does.
    Above,
    /// The key goes on after the template.
    Below,
    /// The key differs in its last segment only, beside the instances.
    Beside,
    /// The key differs elsewhere.
    Elsewhere,
    /// The key has a part outside a closed set: what stands above it is not what it seems.
    Foreign,
}

#[derive(Debug, Clone)]
pub(crate) struct Match {
    pub(crate) reach: Reach,
    pub(crate) captures: Vec<(String, String)>,
    /// A part that matched but does not decode.
    pub(crate) error: Option<DecodeError>,
}

impl Template {
    /// Reads a template; every fault is named.
    pub(crate) fn parse(text: &str, protocol: Protocol) -> Result<Template, Vec<String>> {
        if text.len() > MAX_TEMPLATE {
            return Err(vec![format!(
                "the template is longer than {MAX_TEMPLATE} bytes"
            )]);
        }
        let raw = split_segments(text).map_err(|e| vec![e])?;
        let leading_slash = raw.first().is_some_and(String::is_empty);
        let begins_with_root = raw
            .first()
            .is_some_and(|first| first == "{root}" || first.starts_with("{root="));
        if protocol == Protocol::Zookeeper && !leading_slash && !begins_with_root {
            return Err(vec![
                "a ZooKeeper template starts with \"/\" or {root}".to_owned(),
            ]);
        }
        let mut errors = Vec::new();
        let mut segments = Vec::new();
        let mut base_words: Vec<String> = Vec::new();
        let mut root = None;
        let mut in_base = true;
        for (at, segment) in raw.iter().enumerate() {
            if segment.is_empty() && at > 0 {
                errors.push("the template has an empty segment".to_owned());
                continue;
            }
            let parts = match parse_parts(segment) {
                Ok(parts) => parts,
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            };
            if in_base {
                match parts.as_slice() {
                    [] => {
                        base_words.push(String::new());
                        continue;
                    }
                    [Part::Literal(word)] => {
                        base_words.push(word.clone());
                        continue;
                    }
                    [Part::Capture(c)] if c.name == "root" && root.is_none() => {
                        if base_words.iter().any(|word| !word.is_empty()) || c.codec != Codec::Plain
                        {
                            errors.push("{root} comes first and has no codec".to_owned());
                        }
                        let default = match c.closed.as_slice() {
                            [] => None,
                            [only] => Some(if leading_slash {
                                format!("/{only}")
                            } else {
                                only.clone()
                            }),
                            _ => {
                                errors.push(
                                    "{root=...} has one default; list several under roots"
                                        .to_owned(),
                                );
                                None
                            }
                        };
                        root = Some(default);
                        in_base = false;
                        continue;
                    }
                    _ => in_base = false,
                }
            }
            match Segment::of(parts) {
                Ok(segment) => segments.push(segment),
                Err(error) => errors.push(error),
            }
        }
        // What follows would only repeat, in other words, what is wrong already.
        if !errors.is_empty() {
            return Err(errors);
        }
        let base = match root {
            Some(default) => Base::Root(default),
            None if base_words.is_empty() => Base::Literal(None),
            None => Base::Literal(Some(base_words.join("/"))),
        };
        let names: Vec<&str> = captures_of(&segments).map(|c| c.name.as_str()).collect();
        for (at, name) in names.iter().enumerate() {
            if names.iter().skip(at + 1).any(|other| other == name) {
                errors.push(format!("the capture {{{name}}} appears twice"));
            }
        }
        if !names.contains(&"service") {
            errors.push("the template has no {service}".to_owned());
        }
        let multi = segments
            .iter()
            .filter(|s| matches!(s, Segment::Multi(_)))
            .count();
        let rest_at = segments.iter().position(|s| matches!(s, Segment::Rest(_)));
        if multi > 1 || (multi == 1 && rest_at.is_some()) {
            errors.push("one {*name} or one rest at most".to_owned());
        }
        if rest_at.is_some_and(|at| at + 1 != segments.len()) {
            errors.push("rest comes last".to_owned());
        }
        if matches!(segments.as_slice(), [] | [_]) {
            errors.push("after its root a template has a service and an instance".to_owned());
        }
        if errors.is_empty() {
            Ok(Template {
                base,
                tail: segments,
            })
        } else {
            Err(errors)
        }
    }

    /// All captures, in order.
    pub(crate) fn captures(&self) -> impl Iterator<Item = &Capture> {
        captures_of(&self.tail)
    }
}

fn captures_of(segments: &[Segment]) -> impl Iterator<Item = &Capture> {
    segments.iter().flat_map(|segment| -> Vec<&Capture> {
        match segment {
            Segment::Literal(_) => Vec::new(),
            Segment::Capture(c) | Segment::Multi(c) | Segment::Rest(c) => vec![c],
            Segment::Mixed { parts, .. } => parts
                .iter()
                .filter_map(|part| match part {
                    Part::Capture(c) => Some(c),
                    Part::Literal(_) => None,
                })
                .collect(),
        }
    })
}

/// Matches the part of a key that follows its base (no slash in front) with the tail of a template.
pub(crate) fn match_tail(tail: &[Segment], rest: &str) -> Match {
    let mut found = Match {
        reach: Reach::Above,
        captures: Vec::new(),
        error: None,
    };
    if rest.is_empty() {
        return found;
    }
    let words: Vec<&str> = rest.split('/').collect();
    let mut at = 0usize;
    for (index, segment) in tail.iter().enumerate() {
        let Some(word) = words.get(at).copied() else {
            return found;
        };
        let ok = match segment {
            Segment::Literal(literal) => literal == word,
            Segment::Capture(capture) => capture.take(word, &mut found),
            Segment::Mixed { parts, regex } => take_mixed(parts, regex, word, &mut found),
            Segment::Rest(capture) => {
                let all = words.get(at..).unwrap_or_default().join("/");
                at = words.len().saturating_sub(1);
                capture.take(&all, &mut found)
            }
            Segment::Multi(capture) => {
                let after = tail.len().saturating_sub(index + 1);
                let end = words.len().saturating_sub(after).max(at + 1);
                let all = words.get(at..end).unwrap_or_default().join("/");
                at = end.saturating_sub(1);
                capture.take(&all, &mut found)
            }
        };
        if !ok {
            let last = index + 1 == tail.len() && at + 1 == words.len();
            let closed = matches!(segment, Segment::Capture(c) if !c.closed.is_empty());
            found.reach = match (closed, last) {
                (true, _) => Reach::Foreign,
                (false, true) => Reach::Beside,
                (false, false) => Reach::Elsewhere,
            };
            return found;
        }
        at += 1;
    }
    found.reach = if at < words.len() {
        Reach::Below
    } else {
        Reach::Full
    };
    found
}

/// Spells the tail for these captures. `None`: one is missing or cannot be spelt.
pub(crate) fn render_tail(tail: &[Segment], captures: &BTreeMap<&str, &str>) -> Option<String> {
    let spell = |c: &Capture| {
        let text = captures.get(c.name.as_str())?;
        let raw = c.codec.encode(text)?;
        c.allows(&raw).then_some(raw)
    };
    let mut words = Vec::with_capacity(tail.len());
    for segment in tail {
        words.push(match segment {
            Segment::Literal(literal) => literal.clone(),
            Segment::Capture(c) => spell(c).filter(|raw| !raw.contains('/'))?,
            Segment::Multi(c) | Segment::Rest(c) => spell(c)?,
            Segment::Mixed { parts, .. } => {
                let mut word = String::new();
                for part in parts {
                    match part {
                        Part::Literal(literal) => word.push_str(literal),
                        Part::Capture(c) => word.push_str(&spell(c)?),
                    }
                }
                if word.contains('/') {
                    return None;
                }
                word
            }
        });
    }
    Some(words.join("/"))
}

impl Capture {
    /// Whether the raw text has this capture's shape.
    pub(crate) fn allows(&self, raw: &str) -> bool {
        (self.closed.is_empty() || self.closed.iter().any(|word| word == raw))
            && self.regex.as_ref().is_none_or(|regex| regex.is_match(raw))
            && self.codec.accepts(raw)
    }

    fn take(&self, raw: &str, into: &mut Match) -> bool {
        if !self.allows(raw) {
            return false;
        }
        match self.codec.decode(raw) {
            Ok(text) => into.captures.push((self.name.clone(), text)),
            Err(error) => {
                into.captures.push((self.name.clone(), raw.to_owned()));
                into.error.get_or_insert(error);
            }
        }
        true
    }
}

fn take_mixed(parts: &[Part], regex: &Regex, word: &str, into: &mut Match) -> bool {
    let Some(groups) = regex.captures(word) else {
        return false;
    };
    let captures = parts.iter().filter_map(|part| match part {
        Part::Capture(c) => Some(c),
        Part::Literal(_) => None,
    });
    let mut taken = Match {
        reach: Reach::Above,
        captures: Vec::new(),
        error: None,
    };
    for (index, capture) in captures.enumerate() {
        let Some(raw) = groups.name(&format!("p{index}")) else {
            return false;
        };
        if !capture.take(raw.as_str(), &mut taken) {
            return false;
        }
    }
    into.captures.extend(taken.captures);
    if let Some(error) = taken.error {
        into.error.get_or_insert(error);
    }
    true
}

impl Segment {
    fn of(parts: Vec<Part>) -> Result<Segment, String> {
        let mixed = parts.len() > 1;
        for part in &parts {
            let Part::Capture(c) = part else { continue };
            if mixed && (c.codec == Codec::Rest || c.name.starts_with('*')) {
                return Err(format!("{{{}}} must be a whole segment", c.name));
            }
            if c.codec == Codec::LabelsReversed && !c.name.starts_with('*') {
                return Err(format!("{{{}}}: labels-reversed is for {{*name}}", c.name));
            }
        }
        if !mixed {
            return Ok(match parts.into_iter().next() {
                Some(Part::Literal(word)) => Segment::Literal(word),
                Some(Part::Capture(mut c)) => match c.name.strip_prefix('*').map(str::to_owned) {
                    Some(name) => {
                        c.name = name;
                        Segment::Multi(c)
                    }
                    None if c.codec == Codec::Rest => Segment::Rest(c),
                    None => Segment::Capture(c),
                },
                None => return Err("the template has an empty segment".to_owned()),
            });
        }
        let mut pattern = String::from(r"\A");
        let mut index = 0;
        for part in &parts {
            match part {
                Part::Literal(word) => pattern.push_str(&regex::escape(word)),
                Part::Capture(c) => {
                    pattern.push_str(&format!("(?P<p{index}>{})", c.pattern));
                    index += 1;
                }
            }
        }
        pattern.push_str(r"\z");
        let regex =
            Regex::new(&pattern).map_err(|e| format!("a segment is no usable expression: {e}"))?;
        Ok(Segment::Mixed { parts, regex })
    }
}

/// Splits at slashes outside braces.
fn split_segments(text: &str) -> Result<Vec<String>, String> {
    let mut segments = vec![String::new()];
    let mut depth = 0usize;
    for c in text.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.checked_sub(1).ok_or("a } without its {")?,
            '/' if depth == 0 => {
                segments.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(last) = segments.last_mut() {
            last.push(c);
        }
    }
    if depth > 0 {
        return Err("a { without its }".to_owned());
    }
    Ok(segments)
}

fn parse_parts(segment: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut rest = segment;
    while !rest.is_empty() {
        match rest.find('{') {
            Some(0) => {
                let end = closing_brace(rest).ok_or("a { without its }")?;
                parts.push(Part::Capture(parse_capture(
                    rest.get(1..end).unwrap_or_default(),
                )?));
                rest = rest.get(end + 1..).unwrap_or_default();
            }
            at => {
                let (literal, after) = rest.split_at(at.unwrap_or(rest.len()));
                parts.push(Part::Literal(literal.to_owned()));
                rest = after;
            }
        }
    }
    Ok(parts)
}

/// Where the brace closes that opens the text; regular expressions have braces of their own.
fn closing_brace(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

fn parse_capture(text: &str) -> Result<Capture, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '*';
    let end = text.find(|c| !plain(c)).unwrap_or(text.len());
    let (name, how) = text.split_at(end);
    let bare = name.strip_prefix('*').unwrap_or(name);
    if bare.is_empty() || bare.contains('*') || bare.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(format!("{{{text}}} has no usable name"));
    }
    let mut capture = Capture {
        name: name.to_owned(),
        codec: Codec::Plain,
        regex: None,
        closed: Vec::new(),
        pattern: Codec::Plain.pattern().to_owned(),
    };
    match how.split_at_checked(1) {
        None => {}
        Some((":", codec)) => {
            capture.codec = Codec::by_name(codec).ok_or_else(|| {
                let known: Vec<&str> = Codec::NAMES.iter().map(|(name, _)| *name).collect();
                format!("unknown codec {codec:?} (known: {})", known.join(", "))
            })?;
            capture.pattern = capture.codec.pattern().to_owned();
        }
        Some(("~", pattern)) => {
            let whole = format!(r"\A(?:{pattern})\z");
            capture.regex = Some(Regex::new(&whole).map_err(|e| format!("{{{name}}}: {e}"))?);
            capture.pattern = pattern.to_owned();
        }
        Some(("=", words)) => {
            capture.closed = words.split('|').map(str::to_owned).collect();
            if capture.closed.iter().any(String::is_empty) {
                return Err(format!("{{{name}=...}} has an empty word"));
            }
            let escaped: Vec<String> = capture
                .closed
                .iter()
                .map(|word| regex::escape(word))
                .collect();
            capture.pattern = escaped.join("|");
        }
        Some(_) => {
            return Err(format!(
                "{{{text}}}: a name is followed by :codec, ~regex or =a|b"
            ));
        }
    }
    Ok(capture)
}
