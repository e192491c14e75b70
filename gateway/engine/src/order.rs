//! The numbers that clients see: zxid and etcd revision. The one place that makes them.
//!
//! A lone member without a legacy store counts by one, like the real thing. Anything else counts in
//! ticks, so that several gateways draw from disjoint numbers: `(tick * 16 + slot) * 4 + 1`. Both begin
//! at a value taken from the clock, so that numbers do not fall over a restart that lost its memory.
//! No clock is read here; milliseconds since the Unix epoch are passed in.

use serde::{Deserialize, Serialize};

/// Numbers stay below this: some clients parse them as IEEE doubles.
pub const LIMIT: i64 = 1 << 53;

/// 2020-01-01T00:00:00Z in milliseconds, the fixed epoch of [`Order`].
const EPOCH_MS: i64 = 1_577_836_800_000;

/// Ticks that pass in a millisecond when nothing happens.
const TICKS_PER_MS: i64 = 32;

/// Numbers of a lone member that pass in a millisecond of downtime; a restart without memory begins there.
const LONE_PER_MS: i64 = 1024;

/// How numbers are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scheme {
    /// By one.
    Lone,
    /// In ticks; `slot` is the member's, 0 to 15.
    Ticks {
        /// The member's slot.
        slot: u8,
    },
}

/// A source of rising numbers with the mark above which they are its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    scheme: Scheme,
    last: i64,
    mark: i64,
}

impl Order {
    /// Numbers that begin at the clock.
    pub fn new(scheme: Scheme, now_ms: i64) -> Self {
        let since = (now_ms - EPOCH_MS).max(1);
        let start = match scheme {
            Scheme::Lone => since.saturating_mul(LONE_PER_MS),
            Scheme::Ticks { slot } => number(since.saturating_mul(TICKS_PER_MS), slot),
        };
        let start = start.min(LIMIT / 2);
        Order {
            scheme,
            last: start,
            mark: start,
        }
    }

    /// Numbers of another store, kept as they come until [`Order::own`].
    pub fn borrowed() -> Self {
        // By one: what changes here beside the store's own changes stays close to its numbers.
        Order {
            scheme: Scheme::Lone,
            last: 0,
            mark: 0,
        }
    }

    /// The last number given out or seen.
    pub fn last(&self) -> i64 {
        self.last
    }

    /// The mark: numbers above it were given out here and can be answered exactly.
    pub fn mark(&self) -> i64 {
        self.mark
    }

    /// Whether `number` was given out here. Any other is foreign.
    pub fn is_own(&self, number: i64) -> bool {
        number > self.mark && number <= self.last
    }

    /// The number that [`Order::next`] would give.
    pub fn peek(&self, now_ms: i64) -> i64 {
        match self.scheme {
            Scheme::Lone => self.last + 1,
            Scheme::Ticks { slot } => {
                let after_last = (self.last - 1).div_euclid(64) + 1;
                let clock = (now_ms - EPOCH_MS).max(1).saturating_mul(TICKS_PER_MS);
                number(after_last.max(clock), slot)
            }
        }
    }

    /// Gives out the next number.
    pub fn next(&mut self, now_ms: i64) -> i64 {
        let next = self.peek(now_ms);
        debug_assert!(next > self.last, "numbers only rise");
        self.last = next;
        next
    }

    /// Follows a number of the store that still gives them out (before the take-over).
    pub fn follow(&mut self, seen: i64) {
        self.last = self.last.max(seen);
        self.mark = self.last;
    }

    /// Begins to give out own numbers, above everything seen so far and above `seen`.
    pub fn own(&mut self, scheme: Scheme, seen: i64, now_ms: i64) {
        let fresh = Order::new(scheme, now_ms);
        self.scheme = scheme;
        self.last = self.last.max(seen).max(fresh.last);
        self.mark = self.last;
    }
}

fn number(tick: i64, slot: u8) -> i64 {
    (tick * 16 + i64::from(slot & 15)) * 4 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_796_000_000_000;

    #[test]
    fn a_lone_member_counts_by_one() {
        let mut order = Order::new(Scheme::Lone, NOW);
        let first = order.next(NOW);
        assert_eq!(order.next(NOW + 5000), first + 1);
        assert!(order.is_own(first) && !order.is_own(first - 1) && !order.is_own(first + 2));
    }

    #[test]
    fn numbers_do_not_fall_over_a_restart_without_memory() {
        for scheme in [Scheme::Lone, Scheme::Ticks { slot: 3 }] {
            let mut order = Order::new(scheme, NOW);
            let mut last = 0;
            for _ in 0..1000 {
                last = order.next(NOW);
            }
            assert!(Order::new(scheme, NOW + 1000).last() > last);
        }
    }

    #[test]
    fn slots_never_collide_and_numbers_rise() {
        let mut a = Order::new(Scheme::Ticks { slot: 1 }, NOW);
        let mut b = Order::new(Scheme::Ticks { slot: 2 }, NOW);
        let mut seen = std::collections::BTreeSet::new();
        for i in 0..500 {
            let before = a.last();
            assert!(a.next(NOW + i / 100) > before);
            assert!(seen.insert(a.last()));
            assert!(seen.insert(b.next(NOW)));
        }
    }

    #[test]
    fn own_numbers_begin_above_the_legacy_stores() {
        let mut order = Order::borrowed();
        order.follow(77);
        assert_eq!(order.last(), 77);
        // An ensemble in a late epoch: epoch 400000 in the high half.
        let late = 400_000_i64 << 32;
        order.own(Scheme::Ticks { slot: 0 }, late, NOW);
        assert!(order.next(NOW) > late);
        assert!(!order.is_own(late));
        assert!(order.is_own(order.last()));
    }

    #[test]
    fn numbers_stay_below_the_double_limit_for_a_century() {
        let in_a_century = NOW + 100 * 365 * 86_400_000;
        for scheme in [Scheme::Lone, Scheme::Ticks { slot: 15 }] {
            let mut order = Order::new(scheme, in_a_century);
            assert!(order.next(in_a_century) < LIMIT);
        }
    }
}
