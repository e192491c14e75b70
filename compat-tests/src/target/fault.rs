//! What the bench can do to a target, and how it is written in a scenario.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, Error, Result, bail, ensure};

/// One act against a target. Its text form is what a scenario and a client program write:
/// `kill`, `start`, `stop`, `continue`, `restart`, `restart empty`, `fill-disk`, `free-disk`, `clock +30`; each
/// with a member after the verb (`kill 2`, `restart 2 empty`); each with `legacy` before it for the stores
/// behind a gateway (`legacy kill`, or of one of them `legacy etcd kill`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// `kill -9`; the data stays.
    Kill,
    /// Starts what was killed, with the data it had, and waits until it serves.
    Start,
    /// SIGSTOP: it hangs, its connections stay open.
    Stop,
    /// SIGCONT.
    Continue,
    /// Kill and start in one.
    Restart {
        /// False: the data folder is emptied in between, as after a botched restore.
        keep_data: bool,
    },
    /// Fills the disk of the data folder to the last byte (only with [`super::Options::small_disk`]).
    FillDisk,
    /// Makes room on it again.
    FreeDisk,
    /// Moves the wall clock by seconds, forward or back (only with [`super::Options::clock`]).
    StepClock(i64),
    /// The act on one member alone, counted from 1.
    Member(usize, Box<Fault>),
    /// The act on what is behind the gateway or the proxy, not on itself.
    Legacy(Stores, Box<Fault>),
}

/// Which of the stores behind a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stores {
    /// Every one that there is.
    All,
    /// The real ZooKeeper.
    ZooKeeper,
    /// The real etcd.
    Etcd,
}

impl FromStr for Fault {
    type Err = Error;

    fn from_str(text: &str) -> Result<Fault> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words.as_slice() {
            ["legacy", "zookeeper", rest @ ..] => behind(Stores::ZooKeeper, rest),
            ["legacy", "etcd", rest @ ..] => behind(Stores::Etcd, rest),
            ["legacy", rest @ ..] => behind(Stores::All, rest),
            rest => act(rest),
        }
        .with_context(|| format!("{text:?} is no fault"))
    }
}

fn behind(stores: Stores, words: &[&str]) -> Result<Fault> {
    Ok(Fault::Legacy(stores, Box::new(act(words)?)))
}

fn act(words: &[&str]) -> Result<Fault> {
    let Some((verb, mut rest)) = words.split_first() else {
        bail!("a verb is missing")
    };
    let mut member = None;
    let mut take_member = |rest: &mut &[&str]| -> Result<()> {
        if let Some((first, left)) = rest.split_first()
            && let Ok(number) = first.parse::<usize>()
        {
            ensure!(number > 0, "members are counted from 1");
            member = Some(number);
            *rest = left;
        }
        Ok(())
    };
    let fault = match *verb {
        "clock" => {
            let (seconds, left) = rest.split_first().context("clock SECONDS")?;
            rest = left;
            take_member(&mut rest)?;
            Fault::StepClock(seconds.parse().context("clock SECONDS")?)
        }
        "restart" => {
            take_member(&mut rest)?;
            let keep_data = rest.first() != Some(&"empty");
            if !keep_data {
                rest = &rest[1..];
            }
            Fault::Restart { keep_data }
        }
        verb => {
            take_member(&mut rest)?;
            match verb {
                "kill" => Fault::Kill,
                "start" => Fault::Start,
                "stop" => Fault::Stop,
                "continue" => Fault::Continue,
                "fill-disk" => Fault::FillDisk,
                "free-disk" => Fault::FreeDisk,
                _ => bail!(
                    "the verbs are kill, start, stop, continue, restart, fill-disk, free-disk, clock"
                ),
            }
        }
    };
    ensure!(rest.is_empty(), "{:?} is too much", rest.join(" "));
    Ok(match member {
        Some(number) => Fault::Member(number, Box::new(fault)),
        None => fault,
    })
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Kill => f.write_str("kill"),
            Fault::Start => f.write_str("start"),
            Fault::Stop => f.write_str("stop"),
            Fault::Continue => f.write_str("continue"),
            Fault::Restart { keep_data: true } => f.write_str("restart"),
            Fault::Restart { keep_data: false } => f.write_str("restart empty"),
            Fault::FillDisk => f.write_str("fill-disk"),
            Fault::FreeDisk => f.write_str("free-disk"),
            Fault::StepClock(seconds) => write!(f, "clock {seconds:+}"),
            Fault::Member(number, fault) => match &**fault {
                Fault::Restart { keep_data: false } => write!(f, "restart {number} empty"),
                other => write!(f, "{other} {number}"),
            },
            Fault::Legacy(stores, fault) => match stores {
                Stores::All => write!(f, "legacy {fault}"),
                Stores::ZooKeeper => write!(f, "legacy zookeeper {fault}"),
                Stores::Etcd => write!(f, "legacy etcd {fault}"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_fault_are_the_same_thing() {
        let member = |number, fault| Fault::Member(number, Box::new(fault));
        let cases = [
            ("kill", Fault::Kill),
            ("start", Fault::Start),
            ("stop", Fault::Stop),
            ("continue", Fault::Continue),
            ("restart", Fault::Restart { keep_data: true }),
            ("restart empty", Fault::Restart { keep_data: false }),
            ("fill-disk", Fault::FillDisk),
            ("free-disk", Fault::FreeDisk),
            ("clock +30", Fault::StepClock(30)),
            ("clock -3600", Fault::StepClock(-3600)),
            ("clock +5 3", member(3, Fault::StepClock(5))),
            ("kill 2", member(2, Fault::Kill)),
            ("restart 1", member(1, Fault::Restart { keep_data: true })),
            (
                "restart 3 empty",
                member(3, Fault::Restart { keep_data: false }),
            ),
            (
                "legacy kill",
                Fault::Legacy(Stores::All, Box::new(Fault::Kill)),
            ),
            (
                "legacy etcd stop 2",
                Fault::Legacy(Stores::Etcd, Box::new(member(2, Fault::Stop))),
            ),
            (
                "legacy zookeeper restart empty",
                Fault::Legacy(
                    Stores::ZooKeeper,
                    Box::new(Fault::Restart { keep_data: false }),
                ),
            ),
        ];
        for (text, fault) in cases {
            assert_eq!(text.parse::<Fault>().unwrap(), fault, "{text}");
            assert_eq!(fault.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_fault_is_refused() {
        for text in [
            "",
            "legacy",
            "murder",
            "kill two",
            "kill 0",
            "kill 1 2",
            "kill empty",
            "start empty",
            "restart full",
            "clock",
            "clock soon",
            "legacy legacy kill",
        ] {
            assert!(text.parse::<Fault>().is_err(), "{text:?}");
        }
    }
}
