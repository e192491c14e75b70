//! The past as etcd's store holds it: every kept revision of every key, one after another. A database image and the
//! hash of the history are made of it.
//!
//! Of each key there is what is left of the compacted past, its last change up to the lowest revision that can be
//! read, and every change since (etcd: mvcc, after a compaction). What was compacted has lost its place within its revision; places are given out anew there, by key.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use super::KeySpace;
use super::types::*;

/// One revision of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Revision.
    pub main: i64,
    /// Place within the revision.
    pub sub: i64,
    /// Whether the key was deleted by it.
    pub tombstone: bool,
    /// The pair; of a deletion only the key counts.
    pub kv: Arc<KeyValue>,
}

/// The history was compacted while it was being read: what comes now does not fit what was read. Begin anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the history was compacted meanwhile")]
pub struct HistoryMoved;

/// Reads all records of one moment bit by bit, so that nobody waits long for the space in between.
#[derive(Debug, Clone)]
pub struct Reading {
    floor: i64,
    upto: i64,
    next: Next,
    found: Vec<Record>,
}

#[derive(Debug, Clone)]
enum Next {
    /// What was there when the history begins, of the keys above this one.
    Before(Option<Bytes>),
    /// Changes from this revision on.
    Since(i64),
    Nothing,
}

impl Reading {
    /// The revision whose state this is.
    pub fn revision(&self) -> i64 {
        self.upto
    }

    /// Lowest revision that can be read of it; 0 when nothing was compacted.
    pub fn floor(&self) -> i64 {
        self.floor
    }

    /// Everything that was read, rising.
    pub fn into_records(self) -> Vec<Record> {
        self.found
    }
}

impl KeySpace {
    /// Begins to read the records of the present moment.
    pub fn reading(&self) -> Reading {
        Reading {
            floor: self.history.floor(),
            upto: self.revision,
            next: Next::Before(None),
            found: Vec::new(),
        }
    }

    /// Reads on, looking at about `most` keys or changes; gives whether there is more.
    pub fn read_on(&self, reading: &mut Reading, most: usize) -> Result<bool, HistoryMoved> {
        if self.history.floor() != reading.floor {
            return Err(HistoryMoved);
        }
        reading.next = match std::mem::replace(&mut reading.next, Next::Nothing) {
            Next::Before(after) => {
                let last = self.read_before(after, most, &mut reading.found);
                match last {
                    Some(last) => Next::Before(Some(last)),
                    None => {
                        place(&mut reading.found);
                        Next::Since(i64::MIN)
                    }
                }
            }
            Next::Since(from) => self.read_since(from, most, reading),
            Next::Nothing => Next::Nothing,
        };
        Ok(!matches!(reading.next, Next::Nothing))
    }

    /// Gives the last key that was looked at; `None` when there was none left.
    fn read_before(
        &self,
        after: Option<Bytes>,
        most: usize,
        found: &mut Vec<Record>,
    ) -> Option<Bytes> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = (from, Bound::Unbounded);
        let mut here = self.current.range::<Bytes, _>(range.clone()).peekable();
        let mut past = self.history.past_in(range).peekable();
        let mut last = None;
        for _ in 0..most.max(1) {
            // Two sorted lists of keys as one.
            let order = match (here.peek(), past.peek()) {
                (Some((key, _)), Some((other, ..))) => key.cmp(other),
                (Some(_), None) => Ordering::Less,
                (None, _) => Ordering::Greater,
            };
            // A key that has changed was what its first change says, and no longer what is here.
            let unchanged = if order.is_le() { here.next() } else { None };
            let (key, before) = match unchanged.filter(|_| order.is_lt()) {
                Some((key, kv)) => (key, Some(kv)),
                None => {
                    let Some((key, first, before)) = past.next() else {
                        break;
                    };
                    // What was overwritten at the lowest revision itself is gone.
                    (
                        key,
                        before.as_ref().filter(|_| first > self.history.floor()),
                    )
                }
            };
            found.extend(before.map(|kv| Record {
                main: kv.mod_revision,
                sub: 0,
                tombstone: false,
                kv: kv.clone(),
            }));
            last = Some(key.clone());
        }
        last
    }

    fn read_since(&self, from: i64, most: usize, reading: &mut Reading) -> Next {
        let mut looked = 0;
        for change in self.history.since(from) {
            if change.revision > reading.upto {
                return Next::Nothing;
            }
            if looked >= most {
                return Next::Since(change.revision);
            }
            looked += change.events.len().max(1);
            // Of the lowest revision itself the last change of each key is left.
            let left: Option<BTreeMap<&Bytes, usize>> =
                (change.revision <= reading.floor).then(|| {
                    let keys = change.events.iter().map(|event| &event.kv.key);
                    keys.zip(0..).collect()
                });
            for (at, event) in change.events.iter().enumerate() {
                let last = left.as_ref().and_then(|left| left.get(&event.kv.key));
                if last.is_some_and(|last| *last != at) {
                    continue;
                }
                reading.found.push(Record {
                    main: change.revision,
                    sub: i64::try_from(at).unwrap_or(i64::MAX),
                    tombstone: event.kind == EventKind::Delete,
                    kv: event.kv.clone(),
                });
            }
        }
        Next::Nothing
    }
}

/// By revision and, where several pairs have the same one, by key.
fn place(found: &mut [Record]) {
    found.sort_by(|a, b| (a.main, &a.kv.key).cmp(&(b.main, &b.kv.key)));
    let mut last = (i64::MIN, 0);
    for record in found {
        last = if record.main == last.0 {
            (last.0, last.1 + 1)
        } else {
            (record.main, 0)
        };
        record.sub = last.1;
    }
}

/// The records that the hash of the history up to a revision is made of (etcd: mvcc/hash.go, kvHasher): of what was
/// compacted only what is still there at `revision`.
pub fn hashed(records: &[Record], compacted: i64, revision: i64) -> impl Iterator<Item = &Record> {
    let upto = records.partition_point(|record| record.main <= revision);
    let records = records.get(..upto).unwrap_or_default();
    let mut last: BTreeMap<&Bytes, &Record> = BTreeMap::new();
    for record in records {
        last.insert(&record.kv.key, record);
    }
    last.retain(|_, record| !record.tombstone);
    records.iter().filter(move |record| {
        let kept = || {
            last.get(&record.kv.key)
                .is_some_and(|kept| (kept.main, kept.sub) == (record.main, record.sub))
        };
        if record.main == compacted && record.tombstone {
            return false;
        }
        record.main > compacted || last.is_empty() || kept()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &'static str, value: &'static str) -> KeyCommand {
        KeyCommand::Put {
            key: key.into(),
            value: value.into(),
            lease: 0,
            prev_kv: false,
            ignore_value: false,
            ignore_lease: false,
        }
    }

    fn del(key: &'static str) -> KeyCommand {
        KeyCommand::DeleteRange {
            key: key.into(),
            range_end: Bytes::new(),
            prev_kv: false,
        }
    }

    fn space_of(commands: &[KeyCommand]) -> KeySpace {
        let mut space = KeySpace::new(1);
        for command in commands {
            space.apply(command, 0, 0);
        }
        space
    }

    fn read(space: &KeySpace, most: usize) -> Vec<(i64, i64, bool, String, String)> {
        let mut reading = space.reading();
        while space.read_on(&mut reading, most).expect("nothing moves") {}
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        reading
            .into_records()
            .iter()
            .map(|r| {
                let (key, value) = (text(&r.kv.key), text(&r.kv.value));
                (r.main, r.sub, r.tombstone, key, value)
            })
            .collect()
    }

    #[test]
    fn every_revision_of_every_key_whatever_is_read_at_a_time() {
        let mut space = space_of(&[put("a", "1"), put("b", "2"), put("a", "3"), del("b")]);
        let row = |main, tombstone, key: &str, value: &str| {
            (main, 0, tombstone, key.to_owned(), value.to_owned())
        };
        let all = [
            row(2, false, "a", "1"),
            row(3, false, "b", "2"),
            row(4, false, "a", "3"),
            row(5, true, "b", ""),
        ];
        for most in 1..9 {
            assert_eq!(read(&space, most), all, "{most}");
        }
        space.apply(&KeyCommand::Compact { revision: 4 }, 6, 0);
        space.apply(&put("c", "4"), 6, 0);
        let kept = [
            // Of `a` only what the compaction left; `b` was there.
            row(3, false, "b", "2"),
            row(4, false, "a", "3"),
            row(5, true, "b", ""),
            row(6, false, "c", "4"),
        ];
        for most in 1..9 {
            assert_eq!(read(&space, most), kept, "{most}");
        }
    }

    #[test]
    fn what_comes_after_the_begin_is_not_in_it_and_a_compaction_ends_it() {
        let mut space = space_of(&[put("a", "1"), put("b", "2"), put("c", "3")]);
        let mut reading = space.reading();
        assert_eq!(space.read_on(&mut reading, 1), Ok(true));
        space.apply(&put("a", "9"), 5, 0);
        space.apply(&put("d", "9"), 6, 0);
        space.apply(&del("c"), 7, 0);
        while space.read_on(&mut reading, 1).expect("nothing moves") {}
        let mains: Vec<i64> = reading
            .clone()
            .into_records()
            .iter()
            .map(|r| r.main)
            .collect();
        assert_eq!((mains, reading.revision()), (vec![2, 3, 4], 4));
        let mut reading = space.reading();
        space.apply(&KeyCommand::Compact { revision: 5 }, 8, 0);
        assert_eq!(space.read_on(&mut reading, 1), Err(HistoryMoved));
    }

    #[test]
    fn the_hash_leaves_out_what_a_compaction_will_take() {
        let space = space_of(&[put("a", "1"), put("b", "2"), put("a", "3"), del("b")]);
        let mut reading = space.reading();
        while space.read_on(&mut reading, 9).expect("nothing moves") {}
        let records = reading.into_records();
        for (compacted, revision, mains) in [
            (-1, 5, vec![2, 3, 4, 5]),
            (-1, 3, vec![2, 3]),
            (3, 5, vec![4, 5]),
            (3, 4, vec![3, 4]),
            (5, 5, vec![4]),
        ] {
            let got: Vec<i64> = hashed(&records, compacted, revision)
                .map(|r| r.main)
                .collect();
            assert_eq!(got, mains, "{compacted} {revision}");
        }
    }
}
