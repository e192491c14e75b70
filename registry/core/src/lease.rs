//! Leases and their timers.
//!
//! A renewal writes one number and touches no timer: each lease has one timer entry, which on firing
//! looks at the time of the last renewal and, if the lease is not due, is put back at its true time.
//! So a renewal is constant in the number of leases, and a lease costs one timer step per half timeout.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use crate::record::{LeaseId, RecordKey};

/// Width of a timer bucket in milliseconds: how much later than due a lease may be reported.
pub const BUCKET_MS: u64 = 10;

/// The longest timeout a lease may have (about 317 years), so that sums of times do not overflow.
pub const MAX_TTL_MS: u64 = 10_000_000_000_000;

/// Where a lease stands; later states are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LeaseState {
    /// Heard from within half the timeout.
    Live,
    /// Nothing heard for half the timeout.
    Silent,
    /// Nothing heard for the timeout. A renewal still brings it back whole.
    Expired,
    /// One of its records was removed after it expired. No renewal brings it back; what it still
    /// holds waits for a verdict or for a client that makes it anew.
    Over,
}

/// What a renewal met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// False: there is no such lease, or it is over. Its client must be told so.
    pub known: bool,
    /// The state before; [`LeaseState::Over`] for an unknown lease.
    pub was: LeaseState,
}

/// A lease, seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    /// The timeout in milliseconds.
    pub ttl_ms: u64,
    /// Where it stands.
    pub state: LeaseState,
    /// How many records it owns.
    pub records: usize,
}

/// What survives a restart: deadlines do not, each lease starts anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedLease {
    pub(crate) id: LeaseId,
    pub(crate) ttl_ms: u64,
    /// A log that is replayed on the state needs it; a new life begins with all of them live.
    pub(crate) state: LeaseState,
}

#[derive(Clone, Debug)]
struct Lease {
    ttl_ms: u64,
    renewed_at: u64,
    state: LeaseState,
    keys: BTreeSet<RecordKey>,
    /// How many of the keys are held here, by this member.
    own: usize,
    /// The owner is connected to this member. Otherwise another one holds its records: no timer runs here, and
    /// whoever asks for the lease does not find it.
    here: bool,
    /// Timer entries with another ticket are void.
    ticket: u64,
}

impl Lease {
    /// When the next change of state is due, if any is.
    fn due(&self) -> Option<u64> {
        if !self.here {
            return None;
        }
        match self.state {
            LeaseState::Live => Some(self.renewed_at + self.ttl_ms.div_ceil(2)),
            LeaseState::Silent => Some(self.renewed_at + self.ttl_ms),
            LeaseState::Expired | LeaseState::Over => None,
        }
    }
}

/// All leases of a member.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leases {
    /// Looked up only; every listing sorts.
    by_id: HashMap<LeaseId, Lease>,
    /// How many of them have their owner connected to another member.
    elsewhere: usize,
    /// Timer entries by the bucket in which they fire.
    wheel: BTreeMap<u64, Vec<(LeaseId, u64)>>,
    next_ticket: u64,
}

/// A change of state that came due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) id: LeaseId,
    pub(crate) state: LeaseState,
}

impl Leases {
    /// Makes a lease, or gives an existing one a new timeout and a new start. A lease that is over is
    /// made anew; the keys it still held are returned, since the new one does not own them.
    pub(crate) fn open(&mut self, id: LeaseId, ttl_ms: u64, now: u64) -> BTreeSet<RecordKey> {
        let ttl_ms = ttl_ms.clamp(1, MAX_TTL_MS);
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        let lease = self.by_id.entry(id).or_insert(Lease {
            ttl_ms,
            renewed_at: now,
            state: LeaseState::Live,
            keys: BTreeSet::new(),
            own: 0,
            here: true,
            ticket,
        });
        let left = match lease.state {
            LeaseState::Over => {
                lease.own = 0;
                std::mem::take(&mut lease.keys)
            }
            _ => BTreeSet::new(),
        };
        if !lease.here {
            lease.here = true;
            self.elsewhere -= 1;
        }
        lease.ttl_ms = ttl_ms;
        lease.renewed_at = now;
        lease.state = LeaseState::Live;
        lease.ticket = ticket;
        self.arm(id);
        left
    }

    /// Starts the timeout again. The caller brings the records back when the state was not Live.
    pub(crate) fn renew(&mut self, id: LeaseId, now: u64) -> Renewed {
        let Some(lease) = self.by_id.get_mut(&id).filter(|lease| lease.here) else {
            return Renewed {
                known: false,
                was: LeaseState::Over,
            };
        };
        let was = lease.state;
        match was {
            LeaseState::Over => return Renewed { known: false, was },
            LeaseState::Live => lease.renewed_at = now,
            LeaseState::Silent | LeaseState::Expired => {
                lease.renewed_at = now;
                lease.state = LeaseState::Live;
                // An expired lease has no timer entry; a silent one has an entry that is too late
                // for the next half.
                self.next_ticket += 1;
                lease.ticket = self.next_ticket;
                self.arm(id);
            }
        }
        Renewed { known: true, was }
    }

    /// Takes the lease away; its keys are the caller's to remove.
    pub(crate) fn close(&mut self, id: LeaseId) -> Option<BTreeSet<RecordKey>> {
        self.here(id)?;
        self.by_id.remove(&id).map(|lease| lease.keys)
    }

    /// The first removal from an expired lease ends it for good.
    pub(crate) fn end(&mut self, id: LeaseId) {
        if let Some(lease) = self.by_id.get_mut(&id) {
            if lease.keys.is_empty() {
                self.by_id.remove(&id);
            } else {
                lease.state = LeaseState::Over;
            }
        }
    }

    /// Moves a lease to a later state; false when it is there already, or unknown.
    pub(crate) fn worsen(&mut self, id: LeaseId, state: LeaseState) -> bool {
        let Some(lease) = self
            .by_id
            .get_mut(&id)
            .filter(|lease| lease.here && lease.state < state)
        else {
            return false;
        };
        lease.state = state;
        if state == LeaseState::Over {
            self.end(id);
        } else {
            self.arm(id);
        }
        true
    }

    /// True while the lease can own a record.
    pub(crate) fn is_open(&self, id: LeaseId) -> bool {
        self.here(id)
            .is_some_and(|lease| lease.state != LeaseState::Over)
    }

    /// The record is held here.
    pub(crate) fn attach(&mut self, id: LeaseId, key: RecordKey) {
        if let Some(lease) = self.by_id.get_mut(&id)
            && lease.keys.insert(key)
        {
            lease.own += 1;
        }
    }

    /// The record is held by another member, which counts the lease with this timeout.
    pub(crate) fn attach_elsewhere(&mut self, id: LeaseId, ttl_ms: u64, key: RecordKey) {
        self.restore_elsewhere(id, ttl_ms);
        let Some(lease) = self.by_id.get_mut(&id) else {
            return;
        };
        if !lease.here && ttl_ms > 0 {
            lease.ttl_ms = ttl_ms.min(MAX_TTL_MS);
        }
        lease.keys.insert(key);
    }

    /// The last record that was held here has gone to another member: so has the owner. What is left of the lease here
    /// must not end it there.
    pub(crate) fn moved(&mut self, id: LeaseId) {
        if let Some(lease) = self.by_id.get_mut(&id)
            && lease.here
            && lease.own == 0
        {
            lease.here = false;
            lease.state = LeaseState::Live;
            self.elsewhere += 1;
        }
    }

    /// The lease, if its owner is connected to this member.
    fn here(&self, id: LeaseId) -> Option<&Lease> {
        self.by_id.get(&id).filter(|lease| lease.here)
    }

    /// The timeout of a lease, wherever its owner is; 0 when it was never told.
    pub(crate) fn ttl(&self, id: LeaseId) -> Option<u64> {
        self.by_id.get(&id).map(|lease| lease.ttl_ms)
    }

    /// Leases whose owner is connected to another member, with their timeouts.
    pub(crate) fn elsewhere(&self) -> Vec<(LeaseId, u64)> {
        let mut leases: Vec<(LeaseId, u64)> = self
            .by_id
            .iter()
            .filter(|(_, lease)| !lease.here)
            .map(|(id, lease)| (*id, lease.ttl_ms))
            .collect();
        leases.sort_unstable();
        leases
    }

    /// The record is not the lease's any more. A lease that expired or is over goes with its last
    /// record: nobody asks for it again.
    pub(crate) fn detach(&mut self, id: LeaseId, key: &RecordKey, own: bool) {
        if let Some(lease) = self.by_id.get_mut(&id) {
            if lease.keys.remove(key) && own {
                lease.own = lease.own.saturating_sub(1);
            }
            let ended =
                !lease.here || matches!(lease.state, LeaseState::Expired | LeaseState::Over);
            if ended && lease.keys.is_empty() {
                if !lease.here {
                    self.elsewhere -= 1;
                }
                self.by_id.remove(&id);
            }
        }
    }

    pub(crate) fn info(&self, id: LeaseId) -> Option<LeaseInfo> {
        self.here(id).map(|lease| LeaseInfo {
            ttl_ms: lease.ttl_ms,
            state: lease.state,
            records: lease.keys.len(),
        })
    }

    pub(crate) fn ttl_left(&self, id: LeaseId, now: u64) -> Option<u64> {
        let lease = self.here(id)?;
        (lease.state != LeaseState::Over)
            .then(|| (lease.renewed_at + lease.ttl_ms).saturating_sub(now))
    }

    pub(crate) fn keys(&self, id: LeaseId) -> impl Iterator<Item = &RecordKey> {
        self.by_id
            .get(&id)
            .into_iter()
            .flat_map(|lease| lease.keys.iter())
    }

    pub(crate) fn ids(&self) -> Vec<LeaseId> {
        let mut ids: Vec<LeaseId> = self
            .by_id
            .iter()
            .filter(|(_, lease)| lease.here)
            .map(|(id, _)| *id)
            .collect();
        ids.sort_unstable();
        ids
    }

    /// Leases whose owners are connected to this member.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len() - self.elsewhere
    }

    /// When the first timer entry fires.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.wheel
            .first_key_value()
            .map(|(bucket, _)| bucket * BUCKET_MS)
    }

    /// Adds `gap` to every lease: time in which nobody could have been heard. No lease is put into
    /// the future. Timer entries find out when they fire.
    pub(crate) fn shift(&mut self, gap: u64, now: u64) {
        for id in self.ids() {
            if let Some(lease) = self.by_id.get_mut(&id) {
                lease.renewed_at = lease.renewed_at.saturating_add(gap).min(now);
            }
        }
    }

    /// Every lease that is not over gets its whole timeout from `now` on. Returns those whose records
    /// were not live.
    pub(crate) fn rebase(&mut self, now: u64) -> Vec<LeaseId> {
        self.wheel.clear();
        let mut back = Vec::new();
        for id in self.ids() {
            let Some(lease) = self.by_id.get_mut(&id) else {
                continue;
            };
            if lease.state == LeaseState::Over {
                continue;
            }
            if lease.state != LeaseState::Live {
                back.push(id);
            }
            self.next_ticket += 1;
            lease.ticket = self.next_ticket;
            lease.renewed_at = now;
            lease.state = LeaseState::Live;
            self.arm(id);
        }
        back
    }

    /// The next lease whose state changes at or before `now`. Entries that fire too early go back
    /// into the wheel. A lease that slept through both of its times is silent first, then expired.
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<Due> {
        loop {
            let mut entry = self.wheel.first_entry()?;
            if entry.key().saturating_mul(BUCKET_MS) > now {
                return None;
            }
            let Some((id, ticket)) = entry.get_mut().pop() else {
                entry.remove();
                continue;
            };
            let Some(lease) = self
                .by_id
                .get_mut(&id)
                .filter(|lease| lease.ticket == ticket)
            else {
                continue;
            };
            let Some(due) = lease.due() else { continue };
            if due > now {
                self.arm(id);
                continue;
            }
            lease.state = match lease.state {
                LeaseState::Live => LeaseState::Silent,
                _ => LeaseState::Expired,
            };
            let state = lease.state;
            self.arm(id);
            return Some(Due { id, state });
        }
    }

    pub(crate) fn save(&self) -> Vec<SavedLease> {
        let ids = self.ids().into_iter();
        ids.filter_map(|id| {
            let lease = self.by_id.get(&id)?;
            Some(SavedLease {
                id,
                ttl_ms: lease.ttl_ms,
                state: lease.state,
            })
        })
        .collect()
    }

    /// Puts back a saved lease, without its keys and without a timer: `rebase` gives it one.
    pub(crate) fn restore(&mut self, saved: &SavedLease) {
        self.next_ticket += 1;
        let lease = Lease {
            ttl_ms: saved.ttl_ms.clamp(1, MAX_TTL_MS),
            renewed_at: 0,
            state: saved.state,
            keys: BTreeSet::new(),
            own: 0,
            here: true,
            ticket: self.next_ticket,
        };
        self.by_id.insert(saved.id, lease);
    }

    /// Puts back a lease whose owner is connected to another member.
    pub(crate) fn restore_elsewhere(&mut self, id: LeaseId, ttl_ms: u64) {
        if let Entry::Vacant(place) = self.by_id.entry(id) {
            self.elsewhere += 1;
            place.insert(Lease {
                ttl_ms: ttl_ms.min(MAX_TTL_MS),
                renewed_at: 0,
                state: LeaseState::Live,
                keys: BTreeSet::new(),
                own: 0,
                here: false,
                ticket: 0,
            });
        }
    }

    /// Leases that are over and own nothing came from a damaged state; they would never end.
    pub(crate) fn drop_empty_over(&mut self) {
        self.by_id.retain(|_, lease| {
            (lease.here && lease.state != LeaseState::Over) || !lease.keys.is_empty()
        });
        self.elsewhere = self.by_id.values().filter(|lease| !lease.here).count();
    }

    fn arm(&mut self, id: LeaseId) {
        if let Some(lease) = self.by_id.get(&id)
            && let Some(due) = lease.due()
        {
            // Rounded up: what fires has come due, unless it was renewed since.
            self.wheel
                .entry(due.div_ceil(BUCKET_MS))
                .or_default()
                .push((id, lease.ticket));
        }
    }
}
