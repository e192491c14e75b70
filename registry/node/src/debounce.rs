//! When the subscribers of a service are told of its changes. Pure: times are milliseconds of any clock.

/// How long a change waits for more before subscribers are told, in milliseconds.
pub(crate) const MIN_MS: u64 = 10;
/// The same while changes do not stop.
pub(crate) const MAX_MS: u64 = 500;

/// Doubles the wait while changes keep coming, up to [`MAX_MS`]; after a pause it is [`MIN_MS`] again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Debounce {
    wait: u64,
    told_at: Option<u64>,
    due: bool,
}

impl Debounce {
    /// Something changed. When to call [`Debounce::told`], if that is not set already.
    pub(crate) fn changed(&mut self, now: u64) -> Option<u64> {
        if self.due {
            return None;
        }
        let busy = self
            .told_at
            .is_some_and(|told| now.saturating_sub(told) < 2 * self.wait);
        self.wait = if busy {
            (2 * self.wait).min(MAX_MS)
        } else {
            MIN_MS
        };
        self.due = true;
        Some(now + self.wait)
    }

    /// The subscribers are told now.
    pub(crate) fn told(&mut self, now: u64) {
        self.due = false;
        self.told_at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_change_is_told_soon_and_many_in_growing_steps() {
        let mut debounce = Debounce::default();
        let mut told = Vec::new();
        let (mut due, mut last) = (None, 0);
        // A change every millisecond for three seconds.
        for now in 0..3_000 {
            due = debounce.changed(now).or(due);
            if due == Some(now) {
                debounce.told(now);
                told.push(now - last);
                (due, last) = (None, now);
            }
        }
        assert_eq!(told[..7], [10, 21, 41, 81, 161, 321, 501], "{told:?}");
        assert!(told[7..].iter().all(|step| *step == 501), "{told:?}");
        // After a pause the next is quick again.
        debounce.told(3_100);
        assert_eq!(debounce.changed(10_000), Some(10_010));
        assert_eq!(debounce.changed(10_001), None, "one is on its way");
    }
}
