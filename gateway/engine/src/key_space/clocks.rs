//! Change counters by directory, so that a cached reply is known to be current in constant time.

use bytes::Bytes;

/// A power of two. Two directories in one slot only make a cached reply be built again.
const SLOTS: usize = 1 << 15;
/// Directories deeper than this share the counter of their ancestor.
const MAX_DEPTH: usize = 12;

#[derive(Debug, Clone)]
pub(crate) struct Clocks {
    /// Counts changes of any key.
    ticks: u64,
    /// Tick of the last change of a key or below a directory, by hash.
    slots: Vec<u64>,
}

impl Default for Clocks {
    fn default() -> Self {
        Clocks {
            ticks: 0,
            slots: vec![0; SLOTS],
        }
    }
}

impl Clocks {
    /// Notes a change of a key: in its own slot and in those of its directories.
    pub(crate) fn touch(&mut self, key: &Bytes) {
        self.ticks += 1;
        let ticks = self.ticks;
        let mut hash = START;
        self.set(hash, ticks);
        let mut depth = 0;
        for byte in key.iter() {
            hash = step(hash, *byte);
            if *byte == b'/' && depth < MAX_DEPTH {
                depth += 1;
                self.set(hash, ticks);
            }
        }
        self.set(whole(hash), ticks);
    }

    /// The counter of the narrowest directory around a range, or of the single key.
    pub(crate) fn of_range(&self, key: &Bytes, range_end: &Bytes) -> u64 {
        if range_end.is_empty() {
            return self.get(whole(
                key.iter().fold(START, |hash, byte| step(hash, *byte)),
            ));
        }
        let shared = if is_prefix_end(key, range_end) {
            key.len()
        } else {
            key.iter()
                .zip(range_end.iter())
                .take_while(|(a, b)| a == b)
                .count()
        };
        let (mut hash, mut directory, mut depth) = (START, START, 0);
        for byte in key.iter().take(shared) {
            hash = step(hash, *byte);
            if *byte == b'/' && depth < MAX_DEPTH {
                depth += 1;
                directory = hash;
            }
        }
        self.get(directory)
    }

    fn set(&mut self, hash: u64, ticks: u64) {
        if let Some(slot) = self.slots.get_mut(slot(hash)) {
            *slot = ticks;
        }
    }

    fn get(&self, hash: u64) -> u64 {
        self.slots.get(slot(hash)).copied().unwrap_or(self.ticks)
    }
}

/// Whether the range is exactly the keys that begin with `key` (clientv3.GetPrefixRangeEnd).
fn is_prefix_end(key: &Bytes, range_end: &Bytes) -> bool {
    match (key.split_last(), range_end.split_last()) {
        (Some((last, head)), Some((end, end_head))) => {
            head == end_head && last.checked_add(1) == Some(*end)
        }
        _ => false,
    }
}

/// FNV-1a: one byte at a time, so that all directories of a key cost one walk.
const START: u64 = 0xcbf2_9ce4_8422_2325;

fn step(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
}

/// Keeps the slot of a key `a/` apart from that of its directory.
fn whole(hash: u64) -> u64 {
    step(step(hash, 0), 1)
}

fn slot(hash: u64) -> usize {
    ((hash ^ (hash >> 32)) as usize) & (SLOTS - 1)
}
