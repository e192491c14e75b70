//! Key ranges: etcd's (key, range_end) pairs as intervals of bytes.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

/// Upper end of an interval, excluded. The derived order puts "no end" last.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    At(Bytes),
    Open,
}

impl End {
    pub(crate) fn is_above(&self, key: &[u8]) -> bool {
        match self {
            End::At(end) => key < end.as_ref(),
            End::Open => true,
        }
    }
}

/// What a (key, range_end) pair matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Span {
    /// One key.
    Key(Bytes),
    /// All keys from the first on, below the end.
    Keys(Bytes, End),
    /// Nothing: the end is not above the start.
    Nothing,
}

impl Span {
    pub(crate) fn new(key: &Bytes, range_end: &Bytes) -> Span {
        if range_end.is_empty() {
            Span::Key(key.clone())
        } else if range_end.as_ref() == [0] {
            Span::Keys(key.clone(), End::Open)
        } else if range_end <= key {
            Span::Nothing
        } else {
            Span::Keys(key.clone(), End::At(range_end.clone()))
        }
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        match self {
            Span::Key(own) => own.as_ref() == key,
            Span::Keys(start, end) => start.as_ref() <= key && end.is_above(key),
            Span::Nothing => false,
        }
    }

    /// The map's entries in the span, in key order.
    pub(crate) fn of<'a, V>(
        &self,
        map: &'a BTreeMap<Bytes, V>,
    ) -> impl Iterator<Item = (&'a Bytes, &'a V)> + use<'a, V> {
        // Equal excluded bounds would panic in BTreeMap; "nothing" is therefore an empty
        // half-open interval.
        let empty: &[u8] = &[];
        let (low, high) = match self {
            Span::Key(key) => (Bound::Included(key.as_ref()), Bound::Included(key.as_ref())),
            Span::Keys(start, End::At(end)) => (
                Bound::Included(start.as_ref()),
                Bound::Excluded(end.as_ref()),
            ),
            Span::Keys(start, End::Open) => (Bound::Included(start.as_ref()), Bound::Unbounded),
            Span::Nothing => (Bound::Included(empty), Bound::Excluded(empty)),
        };
        map.range::<[u8], _>((low, high))
    }
}

/// A union of ranges that answers "is this key inside" in logarithmic time.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    /// Disjoint intervals by their start.
    merged: BTreeMap<Bytes, End>,
}

impl Spans {
    /// Adds a range. One that runs to the end of all keys is left out, and so is an empty one:
    /// etcd's own check (v3rpc checkIntervals) takes both for empty.
    pub(crate) fn add(&mut self, key: &Bytes, range_end: &Bytes) {
        match Span::new(key, range_end) {
            Span::Key(key) => {
                let mut after = Vec::with_capacity(key.len() + 1);
                after.extend_from_slice(&key);
                after.push(0);
                self.merge(key, End::At(after.into()));
            }
            Span::Keys(start, end @ End::At(_)) => self.merge(start, end),
            Span::Keys(_, End::Open) | Span::Nothing => {}
        }
    }

    pub(crate) fn add_all(&mut self, other: Spans) {
        for (start, end) in other.merged {
            self.merge(start, end);
        }
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.merged
            .range::<[u8], _>((Bound::Unbounded, Bound::Included(key)))
            .next_back()
            .is_some_and(|(_, end)| end.is_above(key))
    }

    fn merge(&mut self, start: Bytes, end: End) {
        let (mut start, mut end) = (start, end);
        let reaches = |own: &End, start: &Bytes| {
            own.is_above(start) || matches!(own, End::At(e) if e == start)
        };
        if let Some((before, own)) = self.merged.range(..=start.clone()).next_back()
            && reaches(own, &start)
        {
            end = end.max(own.clone());
            start = before.clone();
        }
        while let Some((next, own)) = self.merged.range(start.clone()..).next()
            && reaches(&end, next)
        {
            let next = next.clone();
            end = end.max(own.clone());
            self.merged.remove(&next);
        }
        self.merged.insert(start, end);
    }
}
