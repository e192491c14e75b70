//! What passed between one client and its server, as a text to review, to compare and to send again.
//!
//! ```text
//! # subject: zookeeper
//! # client: kazoo 2.10.0
//! # scenario: data
//! # server: zookeeper-3.8
//! # prefix: /run1
//! # replay: yes
//! 1 > open
//! 1 > connect {lastZxid: 0, timeout: 10000, session: 0, ..}
//! 1 < connect {timeout: 10000, session: $session1, ..}
//! = pause 3.0 s, alive 1
//! 1.2 > Range {key: "${prefix}/a"}
//! = do restart
//! ```
//!
//! `1.2` is the second stream of the first connection, `>` the client, `<` the server. The order is that in which the
//! recorder saw the messages: a client's before it passed it on, a server's likewise, so what answers something
//! stands behind it. Keep-alives that repeat one another leave no line; a pause names who sent some in it.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

use super::value::Value;
use crate::protocol::Protocol;

/// Which run a transcript shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The client's name and version.
    pub client: String,
    /// The scenario's name.
    pub scenario: String,
    /// The server's name and version.
    pub server: String,
    /// Where the run's nodes or keys lay; written as `${prefix}` in the lines.
    pub prefix: String,
}

impl Run {
    /// The client's name without its version.
    pub fn name(&self) -> &str {
        self.client.split(' ').next().unwrap_or_default()
    }
}

/// Who sent a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// `>`
    Client,
    /// `<`
    Server,
}

/// One element of the exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The connection, counted from 1.
    pub connection: u32,
    /// The stream in it, counted from 1; 0 is the connection itself.
    pub stream: u32,
    /// Who sent it.
    pub side: Side,
    /// The operation, the message's method, or what happened to connection or stream.
    pub kind: String,
    /// Its fields; [`Value::Null`] when it has none.
    pub value: Value,
}

/// One line of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A message.
    Line(Line),
    /// A while in which nothing new was said.
    Pause {
        /// Its length, in tenths of a second.
        tenths: u64,
        /// Connections and streams on which the client kept session or leases alive.
        alive: BTreeSet<(u32, u32)>,
    },
    /// What the bench did meanwhile, such as a restart of the server.
    Note(String),
}

/// A recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transcript {
    /// Its protocol.
    pub subject: Protocol,
    /// What was recorded.
    pub run: Run,
    /// Why it cannot be replayed: it depends on what no replay can bring about. It is kept for its call patterns.
    pub fixed: Option<String>,
    /// In order.
    pub entries: Vec<Entry>,
}

/// Lines before the first entry, so that an entry's place in the file can be told.
pub const HEAD: usize = 6;

impl Transcript {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read or is no transcript; the error names the line.
    pub fn read(path: &Path) -> Result<Transcript> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Transcript::parse(&text).with_context(|| path.display().to_string())
    }

    /// Writes the file, and folders on the way.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, path: &Path) -> Result<()> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, self.to_string()).with_context(|| path.display().to_string())
    }

    /// Its name below the folder of transcripts.
    pub fn file_name(&self) -> String {
        let client = self.run.client.split(' ').next().unwrap_or_default();
        format!(
            "{}/{client}--{}.txt",
            self.subject.name(),
            self.run.scenario
        )
    }

    /// Reads a transcript's text.
    ///
    /// # Errors
    /// A line that is none, by number.
    pub fn parse(text: &str) -> Result<Transcript> {
        let mut lines = text.lines().enumerate();
        let mut head = |name: &str| -> Result<String> {
            let (_, line) = lines.next().context("the head is cut short")?;
            let value = line
                .strip_prefix("# ")
                .and_then(|rest| rest.strip_prefix(name))
                .and_then(|rest| rest.strip_prefix(": "))
                .with_context(|| format!("`# {name}: …` is missing"))?;
            Ok(value.to_string())
        };
        let subject = head("subject")?.parse()?;
        let run = Run {
            client: head("client")?,
            scenario: head("scenario")?,
            server: head("server")?,
            prefix: head("prefix")?,
        };
        let fixed = match head("replay")?.as_str() {
            "yes" => None,
            no => Some(
                no.strip_prefix("no, ")
                    .context("`replay` is `yes` or `no, REASON`")?
                    .to_string(),
            ),
        };
        let entries = lines
            .map(|(index, line)| {
                Entry::parse(line).with_context(|| format!("line {}: {line}", index + 1))
            })
            .collect::<Result<_>>()?;
        Ok(Transcript {
            subject,
            run,
            fixed,
            entries,
        })
    }

    /// The messages with their numbers in the file.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &Line)> {
        self.entries
            .iter()
            .enumerate()
            .filter_map(|(index, entry)| match entry {
                Entry::Line(line) => Some((index + HEAD + 1, line)),
                _ => None,
            })
    }
}

impl fmt::Display for Transcript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# subject: {}", self.subject.name())?;
        writeln!(f, "# client: {}", self.run.client)?;
        writeln!(f, "# scenario: {}", self.run.scenario)?;
        writeln!(f, "# server: {}", self.run.server)?;
        writeln!(f, "# prefix: {}", self.run.prefix)?;
        match &self.fixed {
            None => writeln!(f, "# replay: yes")?,
            Some(reason) => writeln!(f, "# replay: no, {reason}")?,
        }
        self.entries
            .iter()
            .try_for_each(|entry| writeln!(f, "{entry}"))
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_place(f, (self.connection, self.stream))?;
        let side = match self.side {
            Side::Client => '>',
            Side::Server => '<',
        };
        write!(f, " {side} {}", self.kind)?;
        match &self.value {
            Value::Null => Ok(()),
            value => write!(f, " {value}"),
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Line(line) => line.fmt(f),
            Entry::Note(text) => write!(f, "= {text}"),
            Entry::Pause { tenths, alive } => {
                write!(f, "= pause {}.{} s", tenths / 10, tenths % 10)?;
                for (index, place) in alive.iter().enumerate() {
                    f.write_str(if index == 0 { ", alive " } else { " " })?;
                    write_place(f, *place)?;
                }
                Ok(())
            }
        }
    }
}

fn write_place(f: &mut fmt::Formatter<'_>, (connection, stream): (u32, u32)) -> fmt::Result {
    match stream {
        0 => write!(f, "{connection}"),
        _ => write!(f, "{connection}.{stream}"),
    }
}

fn parse_place(text: &str) -> Result<(u32, u32)> {
    Ok(match text.split_once('.') {
        Some((connection, stream)) => (connection.parse()?, stream.parse()?),
        None => (text.parse()?, 0),
    })
}

impl Entry {
    fn parse(line: &str) -> Result<Entry> {
        if let Some(note) = line.strip_prefix("= ") {
            let Some(pause) = note.strip_prefix("pause ") else {
                return Ok(Entry::Note(note.to_string()));
            };
            let (length, alive) = pause.split_once(", alive ").unwrap_or((pause, ""));
            let (seconds, tenths) = length
                .strip_suffix(" s")
                .and_then(|length| length.split_once('.'))
                .context("a pause is in tenths of a second")?;
            let (seconds, tenths): (u64, u64) = (seconds.parse()?, tenths.parse()?);
            ensure!(tenths < 10 && seconds < 3600, "a pause of {length}");
            return Ok(Entry::Pause {
                tenths: seconds * 10 + tenths,
                alive: alive
                    .split_whitespace()
                    .map(parse_place)
                    .collect::<Result<_>>()?,
            });
        }
        let mut parts = line.splitn(4, ' ');
        let (connection, stream) = parse_place(parts.next().unwrap_or_default())?;
        let side = match parts.next() {
            Some(">") => Side::Client,
            Some("<") => Side::Server,
            _ => bail!("neither > nor <"),
        };
        let kind = parts.next().context("no kind")?.to_string();
        ensure!(!kind.is_empty(), "no kind");
        let value = parts.next().map_or(Ok(Value::Null), Value::parse)?;
        Ok(Entry::Line(Line {
            connection,
            stream,
            side,
            kind,
            value,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# subject: etcd
# client: etcdctl 3.7.0
# scenario: kv
# server: etcd-3.7.0
# prefix: run1
# replay: yes
1 > open
1.1 > call {path: \"/etcdserverpb.KV/Range\"}
1.1 < Range {header: {revision: $rev+0}, kvs: [{key: \"${prefix}/a\", lease: $lease1}]}
= pause 3.0 s, alive 1 1.2
= pause 0.1 s
= do restart
1 < close
";

    #[test]
    fn a_transcript_is_read_back_as_it_was_written() {
        let transcript = Transcript::parse(TEXT).unwrap();
        assert_eq!(transcript.to_string(), TEXT);
        assert_eq!(transcript.file_name(), "etcd/etcdctl--kv.txt");
        let numbers: Vec<usize> = transcript.lines().map(|(number, _)| number).collect();
        assert_eq!(numbers, [7, 8, 9, 13]);
    }

    #[test]
    fn an_error_names_the_line() {
        for (from, to) in [
            ("1 > open", "1 ? open"),
            ("1 > open", "x > open"),
            ("3.0 s, alive", "3, alive"),
            ("0.1 s", "0.11 s"),
            ("{path", "{path {"),
        ] {
            let error = Transcript::parse(&TEXT.replace(from, to)).unwrap_err();
            assert!(format!("{error:#}").starts_with("line "), "{error:#}");
        }
        assert!(Transcript::parse("# subject: etcd\n").is_err());
    }
}
