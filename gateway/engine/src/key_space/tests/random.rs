//! Random keys, ranges and commands, small enough that they meet.

use super::*;

/// A small generator of the same numbers on every machine (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn chance(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    pub(crate) fn key(&mut self) -> Bytes {
        const KEYS: [&str; 14] = [
            "\0", "a", "a/", "a/1", "a/1\0", "a/2", "a/2/x", "a/3", "a0", "b", "b/1", "b/2", "c",
            "\u{7f}",
        ];
        b(KEYS[self.below(KEYS.len() as u64) as usize])
    }

    pub(crate) fn range_end(&mut self) -> Bytes {
        match self.below(5) {
            0 | 1 => Bytes::new(),
            2 => b("\0"),
            3 => b("a0"),
            _ => self.key(),
        }
    }

    pub(super) fn op(&mut self, head: i64, depth: u64) -> Op {
        match self.below(if depth < 3 { 10 } else { 8 }) {
            0..=3 => Op::Put {
                key: self.key(),
                value: if self.chance(4) {
                    Bytes::new()
                } else {
                    b(["u", "v", "w"][self.below(3) as usize])
                },
                lease: if self.chance(3) {
                    1 + self.below(4) as i64
                } else {
                    0
                },
                prev_kv: self.chance(2),
                ignore_value: self.chance(8),
                ignore_lease: self.chance(8),
            },
            4 | 5 => Op::DeleteRange {
                key: self.key(),
                range_end: self.range_end(),
                prev_kv: true,
            },
            6 | 7 => Op::Range(self.range(head)),
            _ => Op::Txn(self.txn(head, depth + 1)),
        }
    }

    pub(super) fn txn(&mut self, head: i64, depth: u64) -> Txn {
        let compare = (0..self.below(3))
            .map(|_| Compare {
                key: self.key(),
                range_end: self.range_end(),
                target: match self.below(6) {
                    0 => CompareTarget::Version(self.below(3) as i64),
                    1 => CompareTarget::Create(self.below(head as u64 + 1) as i64),
                    2 => CompareTarget::Mod(self.below(head as u64 + 1) as i64),
                    3 => CompareTarget::Lease(self.below(3) as i64),
                    4 => CompareTarget::Unknown,
                    _ => CompareTarget::Value(b(["", "u", "v"][self.below(3) as usize])),
                },
                result: [
                    CompareResult::Equal,
                    CompareResult::NotEqual,
                    CompareResult::Greater,
                    CompareResult::Less,
                    CompareResult::Unknown,
                ][self.below(5) as usize],
            })
            .collect();
        let success = (0..self.below(4)).map(|_| self.op(head, depth)).collect();
        let failure = (0..self.below(4)).map(|_| self.op(head, depth)).collect();
        Txn {
            compare,
            success,
            failure,
        }
    }

    pub(super) fn range(&mut self, head: i64) -> RangeRequest {
        let bound = |random: &mut Self| {
            if random.chance(6) {
                random.below(head as u64 + 2) as i64
            } else {
                0
            }
        };
        RangeRequest {
            key: self.key(),
            range_end: self.range_end(),
            limit: if self.chance(3) {
                self.below(5) as i64 - 1
            } else {
                0
            },
            revision: if self.chance(4) {
                head + 2 - self.below(40.min(head as u64 + 2)) as i64
            } else {
                0
            },
            sort_order: [SortOrder::None, SortOrder::Ascend, SortOrder::Descend]
                [self.below(3) as usize],
            sort_target: [
                SortTarget::Key,
                SortTarget::Version,
                SortTarget::Create,
                SortTarget::Mod,
                SortTarget::Value,
            ][self.below(5) as usize],
            serializable: false,
            keys_only: self.chance(5),
            count_only: self.chance(8),
            min_mod_revision: bound(self),
            max_mod_revision: bound(self),
            min_create_revision: bound(self),
            max_create_revision: bound(self),
        }
    }

    pub(crate) fn command(&mut self, head: i64) -> KeyCommand {
        match self.below(40) {
            0 => KeyCommand::Compact {
                revision: head - 10 + self.below(12) as i64,
            },
            1 | 2 => KeyCommand::LeaseGrant {
                id: 1 + self.below(4) as i64,
                ttl_s: 10,
            },
            3 => KeyCommand::LeaseRevoke {
                id: 1 + self.below(4) as i64,
                keep: if self.chance(3) {
                    vec![self.key()]
                } else {
                    vec![]
                },
            },
            4 => KeyCommand::RemoveAll {
                keys: (0..self.below(4)).map(|_| self.key()).collect(),
            },
            5..=20 => KeyCommand::Txn(self.txn(head, 0)),
            _ => match self.op(head, 9) {
                Op::Put {
                    key,
                    value,
                    lease,
                    prev_kv,
                    ignore_value,
                    ignore_lease,
                } => KeyCommand::Put {
                    key,
                    value,
                    lease,
                    prev_kv,
                    ignore_value,
                    ignore_lease,
                },
                Op::DeleteRange {
                    key,
                    range_end,
                    prev_kv,
                } => KeyCommand::DeleteRange {
                    key,
                    range_end,
                    prev_kv,
                },
                _ => KeyCommand::Put {
                    key: self.key(),
                    value: b("x"),
                    lease: 0,
                    prev_kv: true,
                    ignore_value: false,
                    ignore_lease: false,
                },
            },
        }
    }
}
