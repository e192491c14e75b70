//! What etcd promises its readers, as checks over recorded traffic (etcd: tests/robustness/validate, and the guarantees
//! that its API documentation lists). Each is a function of the record alone.
//!
//! Since every answer carries the revision at which it holds, linearizability needs no search: an operation has
//! taken effect at its revision, which has to lie above every revision shown before it was called; and what it read
//! or compared has to be what the history up to that revision leaves.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail, ensure};

/// A change as a watcher was told of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Event {
    pub(crate) revision: i64,
    pub(crate) key: String,
    /// None: deleted.
    pub(crate) value: Option<String>,
    pub(crate) create: i64,
    pub(crate) version: i64,
}

/// One message of a watch stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct Message {
    /// The header's revision.
    pub(crate) revision: i64,
    pub(crate) created: bool,
    pub(crate) canceled: bool,
    /// More of the same revision follows.
    pub(crate) fragment: bool,
    pub(crate) events: Vec<Event>,
    /// The pairs before, by place; empty when they were not asked for.
    pub(crate) before: Vec<Option<(String, i64)>>,
}

impl Message {
    fn is_bookmark(&self) -> bool {
        self.events.is_empty() && !self.created && !self.canceled
    }
}

/// One watch from its creation to its end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watch {
    pub(crate) name: String,
    /// The revision asked for; 0 for now.
    pub(crate) start: i64,
    pub(crate) messages: Vec<Message>,
}

impl Watch {
    fn events(&self) -> impl Iterator<Item = &Event> {
        self.messages.iter().flat_map(|message| &message.events)
    }

    /// The first revision that it has to tell of.
    fn from(&self) -> Option<i64> {
        if self.start > 0 {
            return Some(self.start);
        }
        let created = self.messages.iter().find(|message| message.created)?;
        Some(created.revision + 1)
    }

    /// Everything up to here has been told.
    pub(crate) fn up_to(&self) -> Option<i64> {
        let bookmarks = self.messages.iter().filter(|message| message.is_bookmark());
        let bookmark = bookmarks.map(|message| message.revision).max();
        bookmark.max(self.events().map(|event| event.revision).max())
    }
}

/// What an operation was meant to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    /// These keys become that; None deletes.
    Write(BTreeMap<String, Option<String>>),
    /// The key becomes the value if its mod revision is that; else nothing happens.
    Swap {
        key: String,
        expected: i64,
        value: String,
        /// Which it was; None when nobody knows.
        done: Option<bool>,
    },
    /// Value and mod revision of each key.
    Read(BTreeMap<String, (String, i64)>),
}

/// One call.
#[derive(Debug, Clone)]
pub(crate) struct Operation {
    /// When it was called and when it was answered, on one clock; None: no answer, it may have taken effect at any
    /// time since, or never.
    pub(crate) called: u64,
    pub(crate) answered: Option<u64>,
    /// The revision of the answer.
    pub(crate) revision: Option<i64>,
    pub(crate) what: What,
}

/// All that was seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record {
    pub(crate) operations: Vec<Operation>,
    pub(crate) watches: Vec<Watch>,
}

/// A promise by its name.
pub(crate) type Check = (&'static str, fn(&Record) -> Result<()>);

/// All of them.
pub(crate) const ALL: &[Check] = &[
    ("ordered", ordered),
    ("unique", unique),
    ("atomic", atomic),
    ("reliable", reliable),
    ("resumable", resumable),
    ("bookmarkable", bookmarkable),
    ("pairs before", pairs_before),
    ("versions", versions),
    ("durable", durable),
    ("at most once", at_most_once),
    ("real time", real_time),
    ("reads", reads),
    ("swaps", swaps),
];

/// Every check; the error names the promise that was broken.
pub(crate) fn check(record: &Record) -> Result<()> {
    for (name, check) in ALL {
        check(record).with_context(|| format!("{name}: the promise is broken"))?;
    }
    Ok(())
}

/// What all watchers together saw.
#[derive(Default)]
struct History<'a> {
    by_revision: BTreeMap<i64, BTreeSet<&'a Event>>,
    by_key: BTreeMap<&'a str, BTreeMap<i64, &'a Event>>,
}

impl<'a> History<'a> {
    fn of(record: &'a Record) -> History<'a> {
        let mut history = History::default();
        for event in record.watches.iter().flat_map(Watch::events) {
            let at = history.by_revision.entry(event.revision).or_default();
            at.insert(event);
            let of_key = history.by_key.entry(&event.key).or_default();
            of_key.insert(event.revision, event);
        }
        history
    }

    fn events(&self) -> impl Iterator<Item = &'a Event> {
        self.by_revision.values().flatten().copied()
    }

    /// What a key is after `revision`: the event that made it so.
    fn at(&self, key: &str, revision: i64) -> Option<&'a Event> {
        let (_, event) = self.by_key.get(key)?.range(..=revision).next_back()?;
        event.value.is_some().then_some(*event)
    }
}

/// Value and mod revision.
fn pair(event: &Event) -> (String, i64) {
    (event.value.clone().unwrap_or_default(), event.revision)
}

/// Events come by rising revision.
fn ordered(record: &Record) -> Result<()> {
    for watch in &record.watches {
        let mut last = 0;
        for event in watch.events() {
            ensure!(
                event.revision >= last,
                "{}: {event:?} after {last}",
                watch.name
            );
            last = event.revision;
        }
    }
    Ok(())
}

/// An event comes once, and one key changes once in a revision.
fn unique(record: &Record) -> Result<()> {
    for watch in &record.watches {
        let mut seen = BTreeSet::new();
        for event in watch.events() {
            ensure!(
                seen.insert((event.revision, &event.key)),
                "{}: {event:?} twice",
                watch.name
            );
        }
    }
    for (revision, events) in History::of(record).by_revision {
        let keys: BTreeSet<_> = events.iter().map(|event| &event.key).collect();
        ensure!(
            keys.len() == events.len(),
            "{revision} was told in two ways: {events:?}"
        );
    }
    Ok(())
}

/// A revision is told in one message, or in one chain of fragments.
fn atomic(record: &Record) -> Result<()> {
    for watch in &record.watches {
        let mut last = None;
        let mut goes_on = false;
        for message in &watch.messages {
            let first = message.events.first().map(|event| event.revision);
            ensure!(
                goes_on || first.is_none() || first != last,
                "{}: {first:?} is cut",
                watch.name
            );
            if !message.events.is_empty() {
                last = message.events.last().map(|event| event.revision);
                goes_on = message.fragment;
            }
        }
    }
    Ok(())
}

/// Nothing between the first and the last that a watch has told of is left out.
fn reliable(record: &Record) -> Result<()> {
    let history = History::of(record);
    for watch in &record.watches {
        let (Some(from), Some(up_to)) = (watch.from(), watch.up_to()) else {
            continue;
        };
        if from > up_to {
            continue;
        }
        let told: BTreeSet<&Event> = watch.events().collect();
        let missing = history
            .by_revision
            .range(from..=up_to)
            .flat_map(|(_, events)| events)
            .find(|event| !told.contains(*event));
        ensure!(
            missing.is_none(),
            "{} from {from} up to {up_to} was not told of {missing:?}",
            watch.name
        );
    }
    Ok(())
}

/// A watch begins with the first change at or after its start.
fn resumable(record: &Record) -> Result<()> {
    let history = History::of(record).by_revision;
    for watch in &record.watches {
        let (Some(from), Some(first)) = (watch.from(), watch.events().next()) else {
            continue;
        };
        let due = history.range(from..).next().map(|(revision, _)| *revision);
        ensure!(
            due == Some(first.revision),
            "{} from {from} begins at {} and not at {due:?}",
            watch.name,
            first.revision
        );
    }
    Ok(())
}

/// After a bookmark nothing at or below its revision comes, and before it nothing above.
fn bookmarkable(record: &Record) -> Result<()> {
    for watch in &record.watches {
        let (mut marked, mut last) = (0, 0);
        for message in &watch.messages {
            if let Some(event) = message.events.iter().find(|e| e.revision <= marked) {
                bail!("{}: {event:?} after the bookmark {marked}", watch.name);
            }
            if message.is_bookmark() {
                ensure!(
                    message.revision >= last && message.revision >= marked,
                    "{}: bookmark {} after {last} and {marked}",
                    watch.name,
                    message.revision
                );
                marked = message.revision;
            }
            last = message
                .events
                .iter()
                .map(|e| e.revision)
                .fold(last, i64::max);
        }
    }
    Ok(())
}

/// The pair before is what the history leaves in front of the event, unless it was not asked for.
fn pairs_before(record: &Record) -> Result<()> {
    let history = History::of(record);
    let whole = history.by_revision.keys().next().copied().unwrap_or(0);
    for watch in &record.watches {
        for message in watch.messages.iter().filter(|m| !m.before.is_empty()) {
            for (event, before) in message.events.iter().zip(&message.before) {
                let known = history.at(&event.key, event.revision - 1).map(pair);
                // What was there before anybody looked is not known.
                if known.is_some() || before.as_ref().is_some_and(|(_, at)| *at >= whole) {
                    ensure!(
                        &known == before,
                        "{}: {event:?} over {before:?}, and there was {known:?}",
                        watch.name
                    );
                }
            }
        }
    }
    Ok(())
}

/// Versions count the puts since the create.
fn versions(record: &Record) -> Result<()> {
    let history = History::of(record);
    for event in history.events().filter(|event| event.value.is_some()) {
        let before = history.at(&event.key, event.revision - 1);
        let expected = match before {
            Some(before) => (before.create, before.version + 1),
            None => (event.revision, 1),
        };
        ensure!(
            (event.create, event.version) == expected,
            "{event:?} after {before:?}"
        );
    }
    Ok(())
}

/// What was acknowledged is in the history, at the revision that the answer told and as a whole.
fn durable(record: &Record) -> Result<()> {
    let history = History::of(record);
    for operation in &record.operations {
        let (Some(revision), true) = (operation.revision, operation.answered.is_some()) else {
            continue;
        };
        let wanted = match &operation.what {
            What::Write(changes) => changes.clone(),
            What::Swap {
                key,
                value,
                done: Some(true),
                ..
            } => BTreeMap::from([(key.clone(), Some(value.clone()))]),
            _ => continue,
        };
        let there: BTreeMap<_, _> = history
            .by_revision
            .get(&revision)
            .into_iter()
            .flatten()
            .map(|event| (event.key.clone(), event.value.clone()))
            .collect();
        // A delete of what is not there is no change.
        let wanted: BTreeMap<_, _> = wanted
            .into_iter()
            .filter(|(key, value)| value.is_some() || history.at(key, revision - 1).is_some())
            .collect();
        ensure!(
            there == wanted || wanted.is_empty(),
            "{operation:?} was acknowledged, and there is {there:?}"
        );
    }
    Ok(())
}

/// A value that one call wrote appears at one revision.
fn at_most_once(record: &Record) -> Result<()> {
    let mut at = BTreeMap::new();
    for event in History::of(record).events() {
        if let Some(value) = &event.value {
            let before = at.insert((&event.key, value), event.revision);
            ensure!(
                before.is_none_or(|before| before == event.revision),
                "{value} was written at {before:?} and at {}",
                event.revision
            );
        }
    }
    Ok(())
}

/// An operation takes effect between its call and its answer: its revision is not below any that was shown before
/// it was called, and a write's is above.
fn real_time(record: &Record) -> Result<()> {
    let mut moments: Vec<(u64, bool, &Operation)> = Vec::new();
    for operation in &record.operations {
        if let (Some(answered), Some(_)) = (operation.answered, operation.revision) {
            moments.push((operation.called, false, operation));
            moments.push((answered, true, operation));
        }
    }
    moments.sort_by_key(|(at, is_end, _)| (*at, *is_end));
    let mut shown = 0;
    for (_, is_end, operation) in moments {
        let revision = operation.revision.unwrap_or_default();
        if is_end {
            shown = shown.max(revision);
            continue;
        }
        let changes = match &operation.what {
            What::Write(changes) => changes.values().any(Option::is_some),
            What::Swap { done, .. } => *done == Some(true),
            What::Read(_) => false,
        };
        ensure!(
            revision > shown || !changes && revision == shown,
            "{operation:?} was called when {shown} had been shown"
        );
    }
    // One without an answer whose value is there has taken effect after its call.
    let history = History::of(record).by_revision;
    for operation in record.operations.iter().filter(|o| o.answered.is_none()) {
        let What::Write(changes) = &operation.what else {
            continue;
        };
        let shown = record
            .operations
            .iter()
            .filter(|other| other.answered.is_some_and(|at| at < operation.called))
            .filter_map(|other| other.revision)
            .max();
        let early = history
            .range(..=shown.unwrap_or(0))
            .flat_map(|(_, events)| events)
            .find(|e| e.value.is_some() && changes.get(&e.key) == Some(&e.value));
        ensure!(early.is_none(), "{operation:?} took effect at {early:?}");
    }
    Ok(())
}

/// A read shows what the history leaves at its revision.
fn reads(record: &Record) -> Result<()> {
    let history = History::of(record);
    for operation in &record.operations {
        let (What::Read(pairs), Some(revision)) = (&operation.what, operation.revision) else {
            continue;
        };
        let keys = history.by_key.keys();
        let expected: BTreeMap<String, (String, i64)> = keys
            .filter_map(|key| Some(((*key).to_string(), pair(history.at(key, revision)?))))
            .collect();
        ensure!(
            &expected == pairs,
            "at {revision} was read {pairs:?}, and there is {expected:?}"
        );
    }
    Ok(())
}

/// A conditional write was done exactly when its condition held.
fn swaps(record: &Record) -> Result<()> {
    let history = History::of(record);
    for operation in &record.operations {
        let What::Swap {
            key,
            expected,
            done: Some(done),
            ..
        } = &operation.what
        else {
            continue;
        };
        let Some(revision) = operation.revision else {
            continue;
        };
        let at = if *done { revision - 1 } else { revision };
        let found = history.at(key, at).map_or(0, |event| event.revision);
        ensure!(
            (found == *expected) == *done,
            "{operation:?}, and the key's revision was {found}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(revision: i64, key: &str, value: &str, create: i64, version: i64) -> Event {
        Event {
            revision,
            key: key.to_string(),
            value: (!value.is_empty()).then(|| value.to_string()),
            create,
            version,
        }
    }

    fn message(revision: i64, events: &[Event]) -> Message {
        Message {
            revision,
            events: events.to_vec(),
            ..Message::default()
        }
    }

    fn write(called: u64, revision: i64, changes: &[(&str, Option<&str>)]) -> Operation {
        let changes = changes.iter();
        let changes = changes.map(|(key, value)| ((*key).to_string(), value.map(str::to_string)));
        Operation {
            called,
            answered: Some(called + 5),
            revision: Some(revision),
            what: What::Write(changes.collect()),
        }
    }

    /// a=1 at 2; a=2 and b=1 at 3; b deleted at 4; a=3 at 5 by a swap; a swap in vain; a read.
    fn good() -> Record {
        let events = [
            event(2, "a", "1", 2, 1),
            event(3, "a", "2", 2, 2),
            event(3, "b", "1", 3, 1),
            event(4, "b", "", 0, 0),
            event(5, "a", "3", 2, 3),
        ];
        let created = Message {
            revision: 1,
            created: true,
            ..Message::default()
        };
        let with_before = Message {
            before: vec![Some(("2".to_string(), 3))],
            ..message(5, &events[4..])
        };
        let swap = |called, expected, value: &str, done| Operation {
            called,
            answered: Some(called + 5),
            revision: Some(5),
            what: What::Swap {
                key: "a".to_string(),
                expected,
                value: value.to_string(),
                done: Some(done),
            },
        };
        Record {
            operations: vec![
                write(10, 2, &[("a", Some("1"))]),
                write(20, 3, &[("a", Some("2")), ("b", Some("1"))]),
                write(30, 4, &[("b", None)]),
                swap(40, 3, "3", true),
                swap(50, 3, "4", false),
                Operation {
                    called: 60,
                    answered: Some(61),
                    revision: Some(5),
                    what: What::Read(BTreeMap::from([("a".to_string(), ("3".to_string(), 5))])),
                },
            ],
            watches: vec![
                Watch {
                    name: "whole".to_string(),
                    start: 0,
                    messages: vec![
                        created,
                        message(2, &events[..1]),
                        message(3, &events[1..3]),
                        message(3, &[]),
                        message(4, &events[3..4]),
                        with_before,
                    ],
                },
                Watch {
                    name: "resumed".to_string(),
                    start: 4,
                    messages: vec![message(5, &events[3..])],
                },
            ],
        }
    }

    #[test]
    fn a_good_record_passes() {
        check(&good()).unwrap();
    }

    /// Changes one thing; the check of that name has to fail.
    fn breaks(name: &str, change: impl FnOnce(&mut Record)) {
        let mut record = good();
        change(&mut record);
        let (_, check) = ALL.iter().find(|(other, _)| *other == name).unwrap();
        assert!(check(&record).is_err(), "{name} sees nothing");
    }

    fn whole(record: &mut Record) -> &mut Vec<Message> {
        &mut record.watches[0].messages
    }

    #[test]
    fn each_check_sees_its_fault() {
        breaks("ordered", |r| whole(r).swap(1, 4));
        breaks("unique", |r| {
            let again = whole(r)[1].clone();
            whole(r).insert(2, again);
        });
        breaks("unique", |r| {
            r.watches[1].messages[0].events[0].value = Some("x".to_string());
        });
        breaks("atomic", |r| {
            let second = whole(r)[2].events.pop().unwrap();
            whole(r).insert(3, message(3, &[second]));
        });
        breaks("reliable", |r| drop(whole(r).remove(4)));
        breaks("reliable", |r| {
            r.watches[1].messages[0].events.remove(0);
        });
        breaks("resumable", |r| {
            r.watches[1].messages[0].events.remove(0);
        });
        breaks("resumable", |r| r.watches[1].start = 3);
        breaks("bookmarkable", |r| whole(r)[3].revision = 4);
        breaks("bookmarkable", |r| whole(r)[3].revision = 2);
        breaks("pairs before", |r| {
            whole(r)[5].before = vec![Some(("1".to_string(), 2))];
        });
        breaks("pairs before", |r| whole(r)[5].before = vec![None]);
        breaks("versions", |r| {
            for watch in &mut r.watches {
                for event in watch.messages.iter_mut().flat_map(|m| &mut m.events) {
                    event.version = 1;
                }
            }
        });
        breaks("durable", |r| {
            r.operations.push(write(70, 6, &[("c", Some("1"))]));
        });
        breaks("durable", |r| {
            r.operations[1].what = What::Write(BTreeMap::from([("a".to_string(), None)]));
        });
        breaks("at most once", |r| {
            let again = event(6, "a", "1", 2, 4);
            whole(r).push(message(6, &[again]));
        });
        breaks("real time", |r| r.operations[0].called = 26);
        breaks("real time", |r| r.operations[5].revision = Some(4));
        breaks("real time", |r| {
            r.operations[0].called = 27;
            r.operations[0].answered = None;
        });
        breaks("reads", |r| {
            r.operations[5].what = What::Read(BTreeMap::new());
        });
        breaks("swaps", |r| {
            if let What::Swap { expected, .. } = &mut r.operations[3].what {
                *expected = 2;
            }
        });
        breaks("swaps", |r| {
            if let What::Swap { expected, .. } = &mut r.operations[4].what {
                *expected = 5;
            }
        });
    }
}
