//! Recorded traffic: what real clients say to real servers, word for word.
//!
//! [`Recorder`] is a proxy that writes down what passes; a [`Transcript`] is its text; [`replay()`] says the client's
//! part again to any server and holds the answers against the text; [`patterns()`] are the kinds of calls in it, so
//! that a new release of a client that speaks otherwise is noticed.

mod frame;
pub mod http;
pub mod known;
pub mod message;
pub mod names;
pub mod patterns;
pub mod proxy;
pub mod replay;
pub mod transcript;
pub mod value;
pub mod zookeeper;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;

pub use patterns::{Unknown, patterns, unknown};
pub use replay::{Difference, Report, replay};
pub use transcript::{Run, Transcript};

use crate::files::files;
use crate::protocol::Protocol;
use crate::workers::lock;
use names::Names;
use proxy::{Decode, Element, Log, Logged, Proxy};
use transcript::{Entry, Line, Side};
use value::Value;

/// A proxy in front of one server that writes down what passes.
#[derive(Debug)]
pub struct Recorder {
    subject: Protocol,
    proxy: Proxy,
    log: Log,
}

impl Recorder {
    /// Starts one in front of `upstream` (`host:port`), on a free port of loopback.
    ///
    /// # Errors
    /// No port is free.
    pub fn start(subject: Protocol, upstream: &str) -> Result<Recorder> {
        let log = Log::default();
        let decoder: fn() -> Box<dyn Decode> = match subject {
            Protocol::ZooKeeper => || Box::new(zookeeper::Decoder::default()),
            Protocol::Etcd => || Box::new(http::Decoder::default()),
        };
        let proxy = Proxy::start(upstream, Log::clone(&log), decoder)?;
        Ok(Recorder {
            subject,
            proxy,
            log,
        })
    }

    /// Where clients connect: `host:port`.
    pub fn address(&self) -> String {
        self.proxy.address().to_string()
    }

    /// Writes down what the bench does at this moment, such as `do restart`.
    pub fn note(&self, text: &str) {
        let element = Element::new(0, Side::Client, text, Value::Null);
        lock(&self.log).push(Logged {
            at: Instant::now(),
            connection: 0,
            element,
        });
    }

    /// Ends every connection, and gives what was said.
    pub fn finish(mut self, run: Run) -> Transcript {
        self.proxy.stop();
        let log = std::mem::take(&mut *lock(&self.log));
        Transcript {
            entries: entries(&run.prefix, log),
            subject: self.subject,
            run,
            fixed: None,
        }
    }
}

/// Shorter silences leave no line. Clients that poll do so in steps of about this length.
const PAUSE: Duration = Duration::from_millis(80);

fn entries(prefix: &str, log: Vec<Logged>) -> Vec<Entry> {
    let mut names = Names::new(prefix);
    let mut entries = Vec::new();
    let mut last: Option<Instant> = None;
    let mut alive = BTreeSet::new();
    for Logged {
        at,
        connection,
        element,
    } in log
    {
        let value = names.name(
            connection,
            element.side,
            &element.kind,
            element.value,
            &element.context,
        );
        if element.repeated {
            if element.side == Side::Client {
                alive.insert((connection, element.stream));
            }
            continue;
        }
        let silence = last.map_or(Duration::ZERO, |last| at.saturating_duration_since(last));
        if silence >= PAUSE {
            entries.push(Entry::Pause {
                tenths: u64::try_from((silence.as_millis() + 50) / 100).unwrap_or(u64::MAX),
                alive: std::mem::take(&mut alive),
            });
        }
        last = Some(at);
        entries.push(if connection == 0 {
            Entry::Note(element.kind)
        } else {
            Entry::Line(Line {
                connection,
                stream: element.stream,
                side: element.side,
                kind: element.kind,
                value,
            })
        });
    }
    entries
}

/// The folder of the transcripts.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("transcripts")
}

/// All transcripts of a folder, by name.
///
/// # Errors
/// One cannot be read.
pub fn transcripts(folder: &Path) -> Result<Vec<(PathBuf, Transcript)>> {
    let mut found = Vec::new();
    for subject in [Protocol::Etcd, Protocol::ZooKeeper] {
        let folder = folder.join(subject.name());
        if !folder.is_dir() {
            continue;
        }
        for path in files(&folder, "txt")? {
            let transcript = Transcript::read(&path)?;
            found.push((path, transcript));
        }
    }
    Ok(found)
}
