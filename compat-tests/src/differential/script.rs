//! A sequence of operations as text: one operation a line, to be read, edited and run again.
//!
//! ```text
//! # What it shows, for people.
//! subject zookeeper
//! clients 2
//! set place general
//! expect differs create: result
//!
//! a create /n1 data=x
//! a get /n1 watch          ; a step of its own: begins when the step before is over on every client
//! + a get /n2              ; sent together with the line before, without waiting for a reply
//! + b set /n1 data=y       ; and so is another client's: a round
//! ```
//!
//! What the operations are is the subject's; here a line is a client and a text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail, ensure};

/// A script: what it is about, how it is run, and its steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script<O> {
    /// The comment at its top, a line each, without `#`.
    pub about: Vec<String>,
    /// `zookeeper` or `etcd`.
    pub subject: String,
    /// How many clients there are: `a`, `b`, …
    pub clients: usize,
    /// The subject's own settings.
    pub settings: BTreeMap<String, String>,
    /// What a replay should find; [`None`] in a script that was only just generated.
    pub expect: Option<Expect>,
    /// One after another.
    pub steps: Vec<Step<O>>,
}

/// What two targets should show for a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    /// Nothing, or only allowed differences.
    Same,
    /// A difference of this class (see [`super::Difference::class`]).
    Differs(String),
}

/// Operations that are sent before the reply to any of them is awaited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step<O> {
    /// Which client does what, in the order of sending.
    pub ops: Vec<(usize, O)>,
}

impl<O> Step<O> {
    /// One operation of one client.
    pub fn one(client: usize, op: O) -> Step<O> {
        Step {
            ops: vec![(client, op)],
        }
    }

    /// Whether several clients act at once, so that nobody can say whose operation came first.
    pub fn is_round(&self) -> bool {
        self.ops.windows(2).any(|pair| pair[0].0 != pair[1].0)
    }
}

impl<O> Script<O> {
    /// A script without steps.
    pub fn new(subject: &str, clients: usize) -> Script<O> {
        Script {
            about: Vec::new(),
            subject: subject.to_string(),
            clients,
            settings: BTreeMap::new(),
            expect: None,
            steps: Vec::new(),
        }
    }

    /// How many operations it has.
    pub fn operations(&self) -> usize {
        self.steps.iter().map(|step| step.ops.len()).sum()
    }

    /// The same with other steps.
    pub fn with_steps(&self, steps: Vec<Step<O>>) -> Script<O> {
        Script {
            about: self.about.clone(),
            subject: self.subject.clone(),
            clients: self.clients,
            settings: self.settings.clone(),
            expect: self.expect.clone(),
            steps,
        }
    }

    /// The text; `print` gives an operation's.
    pub fn print(&self, print: impl Fn(&O) -> String) -> String {
        let mut out = String::new();
        for line in &self.about {
            let _ = writeln!(out, "{}", format!("# {line}").trim_end());
        }
        let _ = writeln!(out, "subject {}\nclients {}", self.subject, self.clients);
        for (key, value) in &self.settings {
            let _ = writeln!(out, "set {key} {value}");
        }
        match &self.expect {
            None => {}
            Some(Expect::Same) => out.push_str("expect same\n"),
            Some(Expect::Differs(class)) => {
                let _ = writeln!(out, "expect differs {class}");
            }
        }
        out.push('\n');
        for step in &self.steps {
            for (at, (client, op)) in step.ops.iter().enumerate() {
                let plus = if at == 0 { "" } else { "+ " };
                let _ = writeln!(out, "{plus}{} {}", client_name(*client), print(op));
            }
        }
        out
    }

    /// Reads a script back; `parse` reads an operation. Comments between steps are dropped.
    pub fn parse(text: &str, parse: impl Fn(&str) -> Result<O>) -> Result<Script<O>> {
        let mut script = Script::new("", 0);
        let mut head = true;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if let Some(comment) = line.strip_prefix('#') {
                if head {
                    script.about.push(comment.trim().to_string());
                }
                continue;
            }
            if line.is_empty() {
                continue;
            }
            head = false;
            script
                .line(line, &parse)
                .with_context(|| format!("line {}: {line}", number + 1))?;
        }
        ensure!(!script.subject.is_empty(), "no line `subject …`");
        Ok(script)
    }

    fn line(&mut self, line: &str, parse: &impl Fn(&str) -> Result<O>) -> Result<()> {
        let line = line.split(" ; ").next().unwrap_or(line).trim();
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "subject" => self.subject = rest.to_string(),
            "clients" => self.clients = rest.parse()?,
            "set" => {
                let (key, value) = rest.split_once(' ').context("set KEY VALUE")?;
                self.settings.insert(key.to_string(), value.to_string());
            }
            "expect" => {
                self.expect = Some(match rest.split_once(' ').unwrap_or((rest, "")) {
                    ("same", _) => Expect::Same,
                    ("differs", class) => Expect::Differs(class.trim().to_string()),
                    _ => bail!("expect same, or expect differs CLASS"),
                });
            }
            "+" => {
                let action = self.action(rest.trim(), parse)?;
                let step = self.steps.last_mut().context("nothing to join")?;
                step.ops.push(action);
            }
            _ => {
                let (client, op) = self.action(line, parse)?;
                self.steps.push(Step::one(client, op));
            }
        }
        Ok(())
    }

    fn action(&self, text: &str, parse: &impl Fn(&str) -> Result<O>) -> Result<(usize, O)> {
        let (name, op) = text.split_once(' ').context("CLIENT OPERATION")?;
        let client = client_number(name)?;
        ensure!(client < self.clients, "there is no client {name}");
        Ok((client, parse(op.trim())?))
    }
}

/// `a`, `b`, …
pub fn client_name(client: usize) -> String {
    let letter = u8::try_from(client.min(25)).unwrap_or(25);
    char::from(b'a' + letter).to_string()
}

fn client_number(name: &str) -> Result<usize> {
    match name.as_bytes() {
        [letter @ b'a'..=b'z'] => Ok(usize::from(letter - b'a')),
        _ => bail!("a client is one letter, not `{name}`"),
    }
}

/// Words of an operation's text: `key=value` pairs and plain words, separated by spaces. Values are written
/// with [`quote`], so that they hold none.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace()
}

/// Bytes as one word: printable ASCII as it is, the rest as `%xx`. Nothing at all is `%`.
pub fn quote(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "%".to_string();
    }
    let mut out = String::new();
    for byte in bytes {
        match byte {
            b'%' | b'=' | b',' | b';' | b'(' | b')' | b'\\' | b'"' | 0..=0x20 | 0x7f.. => {
                let _ = write!(out, "%{byte:02x}");
            }
            _ => out.push(char::from(*byte)),
        }
    }
    out
}

/// Reads [`quote`] back.
pub fn unquote(word: &str) -> Result<Vec<u8>> {
    if word == "%" {
        return Ok(Vec::new());
    }
    let mut out = Vec::new();
    let mut rest = word.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        if *byte == b'%' {
            let digits = tail.get(..2).context("% without two digits")?;
            out.push(u8::from_str_radix(std::str::from_utf8(digits)?, 16)?);
            rest = &tail[2..];
        } else {
            out.push(*byte);
            rest = tail;
        }
    }
    Ok(out)
}

/// Bytes that are too long to be shown, so that two of them are the same text only when they are the same bytes.
pub(super) fn digest(bytes: &[u8]) -> String {
    format!("<{}-bytes-{:016x}>", bytes.len(), fnv(bytes))
}

/// FNV-1a: the same on every build, which the standard library's hasher does not promise.
pub(super) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_comes_back() {
        let text = "# About it.\n#\nsubject toy\nclients 2\nset place general\nexpect differs put: result\n\na put 1\n+ b put 2\nb get\n";
        let script = Script::parse(text, |op| Ok(op.to_string())).unwrap();
        assert_eq!(script.steps.len(), 2);
        assert!(script.steps[0].is_round());
        assert_eq!(script.operations(), 3);
        assert_eq!(script.print(Clone::clone), text);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for text in [
            "subject toy\nclients 1\nb put",
            "subject toy\nclients 1\n+ a put",
            "clients 1\na put",
            "subject toy\nexpect nothing",
            "subject toy\nclients 1\nput",
        ] {
            assert!(
                Script::parse(text, |op| Ok(op.to_string())).is_err(),
                "{text}"
            );
        }
    }

    #[test]
    fn any_bytes_are_one_word() {
        let all: Vec<u8> = (0..=255).collect();
        for bytes in [&all[..], b"", b"%", b"plain/path"] {
            let word = quote(bytes);
            assert_eq!(words(&word).count(), 1);
            assert_eq!(unquote(&word).unwrap(), bytes);
        }
        assert!(unquote("%1").is_err());
    }
}
