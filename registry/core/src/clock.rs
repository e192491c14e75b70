//! The hybrid logical clock: 48 bits of milliseconds, 16 bits of counter, one `u64`.
//!
//! The wall clock only seeds it. After the start it follows the monotonic `now` that is passed in, so
//! a wall clock that jumps changes nothing; a full counter carries into the milliseconds.

use serde::{Deserialize, Serialize};

/// How far ahead a clock value from outside may be and still be taken over, in milliseconds. Beyond
/// it the value is treated as garbage: adopting it could push this member's clock to its end.
pub const MAX_AHEAD_MS: u64 = 3_600_000;

/// How far ahead a value may be and still order one record, in milliseconds (ten years): a member's clock can be wrong by
/// years, and what it gave out stands; what is beyond that was not given out by anybody.
pub const MAX_CLAIM_AHEAD_MS: u64 = 10 * 366 * 24 * 3_600_000;

/// The largest millisecond that 48 bits hold.
const MAX_MS: u64 = (1 << 48) - 1;

/// A member's clock for stamps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hlc {
    last: u64,
    /// Wall milliseconds at `anchor_now`.
    wall: u64,
    /// The monotonic time at which `wall` was right.
    anchor_now: u64,
}

impl Hlc {
    /// A clock that starts at `wall` milliseconds since the Unix epoch.
    pub fn new(wall: u64) -> Self {
        Hlc {
            last: 0,
            wall,
            anchor_now: 0,
        }
    }

    /// Ties `wall` to the monotonic time `now`. Values given out stay below the next ones.
    pub fn anchor(&mut self, wall: u64, now: u64) {
        self.wall = wall;
        self.anchor_now = now;
    }

    /// The next value: above all given out and all heard.
    pub fn tick(&mut self, now: u64) -> u64 {
        self.last = self.last.saturating_add(1).max(self.physical(now) << 16);
        self.last
    }

    /// The last value given out or heard.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Takes over a value from outside, so that the next one is above it. Returns false, and leaves
    /// the clock alone, when the value is more than [`MAX_AHEAD_MS`] ahead.
    pub fn observe(&mut self, heard: u64, now: u64) -> bool {
        let here = (self.last >> 16).max(self.physical(now));
        if heard >> 16 > here.saturating_add(MAX_AHEAD_MS) {
            return false;
        }
        self.last = self.last.max(heard);
        true
    }

    /// True when some member can have given out the value, be its clock right or not.
    pub fn is_credible(&self, value: u64, now: u64) -> bool {
        let here = (self.last >> 16).max(self.physical(now));
        value >> 16 <= here.saturating_add(MAX_CLAIM_AHEAD_MS)
    }

    /// The wall clock as it goes on since its anchor, in milliseconds: without what was heard from others.
    pub fn physical(&self, now: u64) -> u64 {
        self.wall
            .saturating_add(now.saturating_sub(self.anchor_now))
            .min(MAX_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_rise_whatever_the_clock_does() {
        let mut clock = Hlc::new(1_000);
        let mut last = 0;
        // Same millisecond, back in time, a wall clock set back, far more than one counter's worth.
        let nows = [0, 0, 5, 3, 0, 0]
            .into_iter()
            .chain(std::iter::repeat_n(0, 70_000));
        for (i, now) in nows.enumerate() {
            if i == 4 {
                clock.anchor(10, now);
            }
            let next = clock.tick(now);
            assert!(next > last, "step {i}: {next} after {last}");
            last = next;
        }
        assert_eq!(
            last >> 16,
            1_006,
            "70,000 values in one millisecond carry into the next ones"
        );
    }

    #[test]
    fn a_value_heard_is_passed_unless_it_is_absurd() {
        for (heard_ms, adopted) in [
            (0, true),
            (999, true),
            (1_000 + MAX_AHEAD_MS, true),
            (1_001 + MAX_AHEAD_MS, false),
            (MAX_MS, false),
        ] {
            let mut clock = Hlc::new(1_000);
            let heard = heard_ms << 16 | 7;
            assert_eq!(clock.observe(heard, 0), adopted, "{heard_ms}");
            assert_eq!(
                clock.tick(0) > heard,
                adopted || heard_ms < 1_000,
                "{heard_ms}"
            );
        }
    }

    #[test]
    fn the_clock_follows_the_time_passed_in() {
        let mut clock = Hlc::new(1_000);
        clock.anchor(5_000, 100);
        assert_eq!(clock.tick(350) >> 16, 5_250);
    }
}
