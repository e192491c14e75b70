//! What a client believes about a service.
//!
//! Additions, changes and removals by their owners are believed at once. A registration that ran out
//! of time at a member, or is only missing in a newer list, is judged by the rule that members apply
//! themselves: with E the expected number of instances and a what would be left,
//! `100·(E − a) > threshold·E` means that none of the missing is taken away and the view is
//! *protected*. A member that restarted empty, or a whole network cut off from its members, thereby
//! leaves the client with the instances it knew.
//!
//! - E rises with the instances present, falls with removals by owners, and becomes what is present
//!   after 6 h without a change; it does not fall when the missing are taken away.
//! - Of two instances one may go.
//! - The last instance is kept 5 min.
//! - Protection ends when the loss is at most half the threshold for 60 s, or after 10 min: a client
//!   has no operator, and a list that stays as it is for that long is the truth. What is missing goes
//!   then, and E is what is left.

use std::collections::{BTreeMap, BTreeSet};

use causeway_registry::api::{Instance, ServiceDelta, ServiceList};
use serde::{Deserialize, Serialize};

/// How much may go at once, in percent, when nothing else is set.
pub const DEFAULT_THRESHOLD: u8 = 40;

const CALM_MS: u64 = 60_000;
const GIVE_UP_MS: u64 = 600_000;
const LAST_ONE_MS: u64 = 300_000;
const SETTLED_MS: u64 = 6 * 3_600_000;

/// A service as a client sees it at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// One registration per instance, by instance.
    pub instances: Vec<Instance>,
    /// Instances are kept that no member lists any more.
    pub protected: bool,
    /// Which of `instances` those are.
    pub held: BTreeSet<String>,
    /// The list is from disk, or no member has answered for a while.
    pub stale: bool,
}

#[derive(Clone, Debug)]
struct Known {
    instance: Instance,
    /// Since when no member lists it.
    missing_since: Option<u64>,
}

/// The state behind a [`Snapshot`]. Pure; `now` is milliseconds of a clock that never goes back.
#[derive(Clone, Debug)]
pub struct View {
    threshold: u8,
    known: BTreeMap<String, Known>,
    /// E.
    expected: usize,
    /// Since when the number of present instances is what it is.
    settled: (usize, u64),
    protected_since: Option<u64>,
    calm_since: Option<u64>,
}

impl View {
    /// A view that knows nothing. `threshold` is in percent.
    pub fn new(threshold: u8) -> Self {
        View {
            threshold,
            known: BTreeMap::new(),
            expected: 0,
            settled: (0, 0),
            protected_since: None,
            calm_since: None,
        }
    }

    /// Starts from a list saved earlier: what is in it is expected.
    pub fn restore(&mut self, instances: Vec<Instance>, now: u64) {
        for instance in instances {
            self.see(instance);
        }
        self.judge(now);
    }

    /// A whole list. Why something is not in it is unknown.
    pub fn apply_full(&mut self, list: ServiceList, now: u64) {
        let listed: BTreeSet<String> = list.instances.iter().map(|i| i.id.clone()).collect();
        for instance in list.instances {
            self.see(instance);
        }
        for (id, known) in &mut self.known {
            if !listed.contains(id) {
                known.missing_since.get_or_insert(now);
            }
        }
        self.judge(now);
    }

    /// What changed since the last list or delta.
    pub fn apply_delta(&mut self, delta: ServiceDelta, now: u64) {
        let before = self.instances(|_| true).len();
        for removed in delta.removed {
            if removed.explicit {
                self.known.remove(&removed.id);
            } else if let Some(known) = self.known.get_mut(&removed.id) {
                known.missing_since.get_or_insert(now);
            }
        }
        let gone = before - self.instances(|_| true).len();
        self.expected = self.expected.saturating_sub(gone);
        // After the removals: a registration that changed its identity is in both.
        for instance in delta.changed {
            self.see(instance);
        }
        self.judge(now);
    }

    /// Lets time pass. To be called about once a second while [`View::is_waiting`].
    pub fn handle_timeout(&mut self, now: u64) {
        self.judge(now);
    }

    /// True while time alone can change what is shown.
    pub fn is_waiting(&self) -> bool {
        self.known
            .values()
            .any(|known| known.missing_since.is_some())
    }

    /// What is shown. `stale` is the caller's to say.
    pub fn snapshot(&self, stale: bool) -> Snapshot {
        let present = self.instances(|known| known.missing_since.is_none());
        let mut shown: BTreeMap<&str, &Known> = BTreeMap::new();
        for known in self.known.values() {
            let place = shown.entry(&known.instance.instance).or_insert(known);
            // Of an instance's registrations one that is listed, then one that says where it is.
            let rank = |known: &Known| {
                (
                    known.missing_since.is_some(),
                    known.instance.endpoints.is_empty(),
                )
            };
            if rank(known) < rank(place) {
                *place = known;
            }
        }
        Snapshot {
            held: shown
                .keys()
                .filter(|i| !present.contains(*i))
                .map(|i| (*i).into())
                .collect(),
            instances: shown
                .into_values()
                .map(|known| known.instance.clone())
                .collect(),
            protected: self.protected_since.is_some(),
            stale,
        }
    }

    fn see(&mut self, instance: Instance) {
        let known = Known {
            missing_since: None,
            instance,
        };
        self.known.insert(known.instance.id.clone(), known);
    }

    /// Identities that have a registration of which `which` holds.
    fn instances(&self, which: impl Fn(&Known) -> bool) -> BTreeSet<&str> {
        let known = self.known.values().filter(|known| which(known));
        known
            .map(|known| known.instance.instance.as_str())
            .collect()
    }

    fn judge(&mut self, now: u64) {
        let present = self.instances(|known| known.missing_since.is_none()).len();
        let missing = self.instances(|_| true).len() - present;
        let settled = now.saturating_sub(self.settled.1) >= SETTLED_MS;
        if settled && self.protected_since.is_none() {
            self.expected = self.settled.0;
        }
        if self.settled.0 != present {
            self.settled = (present, now);
        }
        self.expected = self.expected.max(present);
        if missing == 0 {
            // Registrations that other registrations of the same instance stand in for.
            self.drop_missing();
            self.unprotect();
            return;
        }
        let loss = 100 * self.expected.saturating_sub(present);
        let limit = usize::from(self.threshold) * self.expected;
        let last_one = self.expected == 1 || present == 0;
        let plausible = match (self.expected, present) {
            (2, 1) => true,
            _ => loss <= limit && !last_one,
        };
        let Some(protected_since) = self.protected_since else {
            if plausible {
                self.drop_missing();
            } else {
                self.protected_since = Some(now);
            }
            return;
        };
        if 2 * loss <= limit {
            self.calm_since.get_or_insert(now);
        } else {
            self.calm_since = None;
        }
        let calm = self
            .calm_since
            .is_some_and(|since| now.saturating_sub(since) >= CALM_MS);
        let protected = now.saturating_sub(protected_since);
        let patience = if self.expected == 1 {
            LAST_ONE_MS
        } else {
            GIVE_UP_MS
        };
        if calm || protected >= patience {
            self.drop_missing();
            self.unprotect();
            self.expected = present;
        }
    }

    fn drop_missing(&mut self) {
        self.known.retain(|_, known| known.missing_since.is_none());
    }

    fn unprotect(&mut self) {
        self.protected_since = None;
        self.calm_since = None;
    }
}

#[cfg(test)]
mod tests;
