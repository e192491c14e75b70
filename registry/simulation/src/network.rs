//! Streams between members: ordered while they live, cut in either direction, broken and made again.

use std::collections::{BTreeMap, VecDeque};

/// A direction of a link that is cut.
#[derive(Clone, Debug, Default)]
pub struct Direction {
    /// Nothing gets through.
    pub cut: bool,
    /// Since when, in milliseconds.
    pub cut_since: u64,
    /// What waits for the cut to end, in order.
    pub held: VecDeque<Vec<u8>>,
    /// When the last message arrives: the next one does not overtake it.
    pub last_arrival: u64,
    /// How many messages are on their way.
    pub flying: usize,
    /// Which stream the sending end believes in; 0: none.
    pub open: u64,
}

/// Both directions between two places; the first is from the lower place to the higher.
#[derive(Clone, Debug, Default)]
pub struct Link {
    /// Counts streams: what belongs to an earlier one is not delivered.
    pub epoch: u64,
    /// Low to high, high to low.
    pub ways: [Direction; 2],
    /// Since when both ends are open and nothing is cut; None while that is not so.
    pub good_since: Option<u64>,
    /// An attempt to connect is under way.
    pub trying: bool,
}

impl Link {
    /// True when both ends believe in the present stream.
    pub fn is_open(&self) -> bool {
        self.epoch > 0 && self.ways.iter().all(|way| way.open == self.epoch)
    }

    /// True when something can pass in both directions.
    pub fn is_whole(&self) -> bool {
        !self.ways.iter().any(|way| way.cut)
    }
}

/// All links, by pair of places.
#[derive(Clone, Debug, Default)]
pub struct Network {
    links: BTreeMap<(usize, usize), Link>,
    empty: Link,
}

/// Which way of a link leads from `from` to `to`.
pub fn way(from: usize, to: usize) -> usize {
    usize::from(from > to)
}

fn pair(one: usize, two: usize) -> (usize, usize) {
    (one.min(two), one.max(two))
}

impl Network {
    /// The link between two places.
    pub fn link(&self, one: usize, two: usize) -> &Link {
        self.links.get(&pair(one, two)).unwrap_or(&self.empty)
    }

    /// The link between two places, to be changed.
    pub fn link_mut(&mut self, one: usize, two: usize) -> &mut Link {
        self.links.entry(pair(one, two)).or_default()
    }

    /// One direction.
    pub fn way(&self, from: usize, to: usize) -> &Direction {
        let [up, down] = &self.link(from, to).ways;
        if way(from, to) == 0 { up } else { down }
    }

    /// One direction, to be changed.
    pub fn way_mut(&mut self, from: usize, to: usize) -> &mut Direction {
        let at = way(from, to);
        let [up, down] = &mut self.link_mut(from, to).ways;
        if at == 0 { up } else { down }
    }

    /// True when messages pass from one place to the other.
    pub fn passes(&self, from: usize, to: usize) -> bool {
        !self.way(from, to).cut
    }

    /// True when messages pass in both directions.
    pub fn joins(&self, one: usize, two: usize) -> bool {
        self.passes(one, two) && self.passes(two, one)
    }

    /// All pairs that have a link.
    pub fn pairs(&self) -> Vec<(usize, usize)> {
        self.links.keys().copied().collect()
    }
}
