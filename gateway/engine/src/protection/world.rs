//! What protection knows beyond one service: sources and their brake, operators' orders, and how
//! many services lose anything.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::types::{
    Cause, InstanceId, Order, OverrideKind, RefuseReason, ServiceKey, Settings, SourceId,
};

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct World {
    pub(super) sources: BTreeMap<SourceId, Source>,
    pub(super) gateways: u32,
    pub(super) expiry_stopped: bool,
    pub(super) started_ms: i64,
    pub(super) report_only: BTreeMap<String, bool>,
    pub(super) overrides: Scoped<Override>,
    pub(super) explicit_holds: Scoped<Order>,
    /// Services that lost anything implicitly within the window, by time of their newest loss.
    losing: BTreeMap<ServiceKey, i64>,
    losing_by_time: BTreeSet<(i64, ServiceKey)>,
    /// Owners' removals within the window, by service.
    pub(super) explicit: BTreeMap<ServiceKey, VecDeque<i64>>,
    pub(super) mass_explicit: bool,
    /// Services whose last instance is held.
    pub(super) last_held: BTreeSet<ServiceKey>,
    /// Number of services, and of instances in their views.
    pub(super) services: u64,
    pub(super) published: u64,
    /// When each service wants to be looked at again.
    pub(super) due: BTreeSet<(i64, ServiceKey)>,
}

/// Something for single services and, apart from them, for all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Scoped<T> {
    all: Option<T>,
    by_service: BTreeMap<ServiceKey, T>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Override {
    pub(super) kind: OverrideKind,
    pub(super) order: Order,
    /// What `force-remove` covers: the instances held when it was given.
    pub(super) covered: BTreeMap<ServiceKey, BTreeSet<InstanceId>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Source {
    pub(super) frozen: Option<Frozen>,
    /// Owes a whole snapshot since the start.
    pub(super) owes_snapshot: bool,
    /// Has delivered one at any time before.
    pub(super) was_whole: bool,
    /// Its losses within the brake's window, returns taken out.
    losses: BTreeMap<ServiceKey, BTreeMap<InstanceId, RecentLoss>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Frozen {
    pub(super) since_ms: i64,
    pub(super) reason: String,
    /// Since when its whole snapshot has been stable.
    pub(super) whole_ms: Option<i64>,
    /// Longest TTL among what it lost.
    ttl_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RecentLoss {
    at_ms: i64,
    ttl_ms: i64,
    removed: bool,
}

/// What a source would take away within the brake's window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Toll {
    pub(super) instances: u64,
    pub(super) services: u64,
    removed: u64,
}

impl World {
    pub(super) fn new(report_only: bool) -> Self {
        World {
            gateways: 1,
            report_only: BTreeMap::from([(String::new(), report_only)]),
            ..World::default()
        }
    }

    /// The longest prefix decides.
    pub(super) fn reports_only(&self, service: &str) -> bool {
        let matching = self
            .report_only
            .iter()
            .filter(|(prefix, _)| service.starts_with(prefix.as_str()));
        matching
            .max_by_key(|(prefix, _)| prefix.len())
            .is_some_and(|(_, on)| *on)
    }

    pub(super) fn is_frozen(&self, source: &str) -> bool {
        self.sources
            .get(source)
            .is_some_and(|source| source.frozen.is_some())
    }

    pub(super) fn any_frozen(&self) -> bool {
        self.sources.values().any(|source| source.frozen.is_some())
    }

    /// "All sources are whole".
    pub(super) fn all_whole(&self) -> bool {
        let whole = |source: &Source| source.frozen.is_none() && !source.owes_snapshot;
        self.sources.values().all(whole)
    }

    pub(super) fn owes_snapshot(&self, source: &str) -> bool {
        self.sources
            .get(source)
            .is_some_and(|source| source.owes_snapshot)
    }

    pub(super) fn override_kind(&self, service: &str) -> Option<OverrideKind> {
        self.overrides.get(service).map(|found| found.kind)
    }

    pub(super) fn force_removes(&self, service: &str, instance: &str) -> bool {
        self.overrides.get(service).is_some_and(|found| {
            found.kind == OverrideKind::ForceRemove
                && found
                    .covered
                    .get(service)
                    .is_some_and(|covered| covered.contains(instance))
        })
    }

    pub(super) fn holds_explicit(&self, service: &str) -> bool {
        self.explicit_holds.get(service).is_some()
    }

    // --- sources ---

    pub(super) fn freeze(&mut self, source: &str, reason: String, now: i64) {
        let source = self.sources.entry(source.to_owned()).or_default();
        let ttl_ms = source.recent().map(|loss| loss.ttl_ms).max().unwrap_or(0);
        match &mut source.frozen {
            // Frozen again before it was believed: its snapshot no longer counts.
            Some(frozen) => frozen.whole_ms = None,
            None => {
                source.frozen = Some(Frozen {
                    since_ms: now,
                    reason,
                    whole_ms: None,
                    ttl_ms,
                });
            }
        }
    }

    /// Returns whether this is the first whole snapshot that the source ever owed.
    pub(super) fn whole(&mut self, source: &str, now: i64) -> bool {
        let source = self.sources.entry(source.to_owned()).or_default();
        let first = source.owes_snapshot && !source.was_whole;
        source.owes_snapshot = false;
        source.was_whole = true;
        if let Some(frozen) = &mut source.frozen {
            frozen.whole_ms = Some(now);
        }
        first
    }

    /// When a frozen source will have been stable for a TTL.
    pub(super) fn thaw_at(&self, source: &str, settings: &Settings) -> Option<i64> {
        let frozen = self.sources.get(source)?.frozen.as_ref()?;
        let ttl_ms = match frozen.ttl_ms {
            0 => settings.default_ttl_ms,
            ttl_ms => ttl_ms,
        };
        Some(frozen.whole_ms? + ttl_ms.min(settings.stable_max_ms))
    }

    pub(super) fn thaw(&mut self, source: &str) {
        if let Some(source) = self.sources.get_mut(source) {
            source.frozen = None;
            // What it lost is believed now; it must not count for the next brake.
            source.losses.clear();
        }
    }

    pub(super) fn lost(&mut self, service: &str, instance: &str, source: &str, ttl: i64, now: i64) {
        let source = self.sources.entry(source.to_owned()).or_default();
        if let Some(frozen) = &mut source.frozen {
            frozen.ttl_ms = frozen.ttl_ms.max(ttl);
        }
        source.losses.entry(service.to_owned()).or_default().insert(
            instance.to_owned(),
            RecentLoss {
                at_ms: now,
                ttl_ms: ttl,
                removed: false,
            },
        );
        if let Some(before) = self.losing.insert(service.to_owned(), now) {
            self.losing_by_time.remove(&(before, service.to_owned()));
        }
        self.losing_by_time.insert((now, service.to_owned()));
    }

    pub(super) fn removed(&mut self, service: &str, instance: &str) {
        for source in self.sources.values_mut() {
            let losses = source.losses.get_mut(service);
            if let Some(loss) = losses.and_then(|losses| losses.get_mut(instance)) {
                loss.removed = true;
            }
        }
    }

    /// An instance lives (again): nobody's loss. A frozen source whose losses come back is not
    /// stable yet.
    pub(super) fn returned(
        &mut self,
        service: &str,
        instance: &str,
        lost_by: Option<&str>,
        now: i64,
    ) {
        for (name, source) in &mut self.sources {
            if let Some(losses) = source.losses.get_mut(service) {
                losses.remove(instance);
                if losses.is_empty() {
                    source.losses.remove(service);
                }
            }
            let whole = source.frozen.as_mut().and_then(|f| f.whole_ms.as_mut());
            if let (Some(whole), true) = (whole, lost_by == Some(name.as_str())) {
                *whole = now;
            }
        }
    }

    /// "A source that would implicitly remove more than 20% of all instances (from 20 instances
    /// up) or touch more than 10% of services (from 10 up) within 60 s."
    pub(super) fn brakes(&self, toll: Toll, settings: &Settings) -> bool {
        let instances = self.published + toll.removed;
        let services = self.services.max(toll.services);
        let of_instances = instances >= settings.brake_instances_from
            && 100 * toll.instances > settings.brake_instances_percent * instances;
        let of_services = services >= settings.brake_services_from
            && 100 * toll.services > settings.brake_services_percent * services;
        of_instances || of_services
    }

    /// What a source takes within the window; of one that gave a whole snapshot, what it took
    /// since. `more` are instances of `service` that it is about to lose.
    pub(super) fn toll(&self, source: &str, more: Option<(&str, &BTreeSet<InstanceId>)>) -> Toll {
        let mut toll = Toll::default();
        let known = self.sources.get(source);
        let whole_ms = known
            .and_then(|s| s.frozen.as_ref())
            .and_then(|f| f.whole_ms);
        let counts = |loss: &RecentLoss| whole_ms.is_none_or(|whole| loss.at_ms > whole);
        for losses in known.into_iter().flat_map(|source| source.losses.values()) {
            let counted = losses.values().filter(|loss| counts(loss));
            let (mut instances, mut removed) = (0, 0);
            counted.for_each(|loss| {
                instances += 1;
                removed += u64::from(loss.removed);
            });
            toll.instances += instances;
            toll.removed += removed;
            toll.services += u64::from(instances > 0);
        }
        if let Some((service, ids)) = more {
            let losses = known.and_then(|source| source.losses.get(service));
            let new = |id: &&InstanceId| losses.is_none_or(|losses| !losses.contains_key(*id));
            toll.instances += ids.iter().filter(new).count() as u64;
            toll.services += u64::from(losses.is_none() && !ids.is_empty());
        }
        toll
    }

    // --- windows ---

    /// Forgets what left the windows. Returns the services that no longer lose anything.
    pub(super) fn prune(&mut self, settings: &Settings, now: i64) -> Vec<ServiceKey> {
        let oldest = now - settings.brake_window_ms;
        for source in self.sources.values_mut() {
            source.losses.retain(|_, losses| {
                losses.retain(|_, loss| loss.at_ms > oldest);
                !losses.is_empty()
            });
        }
        let oldest_explicit = now - settings.explicit_window_ms;
        self.explicit.retain(|_, times| {
            while times.front().is_some_and(|at| *at <= oldest_explicit) {
                times.pop_front();
            }
            !times.is_empty()
        });
        let mut quiet = Vec::new();
        while let Some((at, service)) = self.losing_by_time.first().cloned()
            && at <= oldest
        {
            self.losing_by_time.pop_first();
            self.losing.remove(&service);
            quiet.push(service);
        }
        quiet
    }

    /// When the next service stops to count as one that loses.
    pub(super) fn losing_ends(&self, settings: &Settings) -> Option<i64> {
        let (at, _) = self.losing_by_time.first()?;
        Some(at + settings.brake_window_ms)
    }

    /// One of a service's explicit removals, of this time, was none.
    pub(super) fn take_back_explicit(&mut self, service: &str, at_ms: i64) {
        let Some(times) = self.explicit.get_mut(service) else {
            return;
        };
        if let Ok(found) = times.binary_search(&at_ms) {
            times.remove(found);
        }
        if times.is_empty() {
            self.explicit.remove(service);
        }
    }

    /// When the next explicit removal leaves its window.
    pub(super) fn explicit_ends(&self, settings: &Settings) -> Option<i64> {
        let oldest = self.explicit.values().filter_map(VecDeque::front).min()?;
        Some(oldest + settings.explicit_window_ms)
    }

    /// "While no source is frozen and under 10% of services lose anything." The service itself
    /// is not counted: a lone service would never see the end of its hold.
    pub(super) fn is_calm_for(&self, service: &str, settings: &Settings) -> bool {
        self.is_calm(self.losing.contains_key(service), settings)
    }

    /// Calm as seen by a service that loses, and by one that does not.
    pub(super) fn mood(&self, settings: &Settings) -> (bool, bool) {
        (self.is_calm(true, settings), self.is_calm(false, settings))
    }

    fn is_calm(&self, loses_itself: bool, settings: &Settings) -> bool {
        let losing = (self.losing.len() as u64).saturating_sub(u64::from(loses_itself));
        let few = 100 * losing < settings.last_instance_services_percent * self.services;
        !self.any_frozen() && (losing == 0 || few)
    }
}

impl Source {
    fn recent(&self) -> impl Iterator<Item = &RecentLoss> {
        self.losses.values().flat_map(BTreeMap::values)
    }
}

impl<T> Default for Scoped<T> {
    fn default() -> Self {
        Scoped {
            all: None,
            by_service: BTreeMap::new(),
        }
    }
}

impl<T> Scoped<T> {
    /// The service's own, else the one for all.
    pub(super) fn get(&self, service: &str) -> Option<&T> {
        self.by_service.get(service).or(self.all.as_ref())
    }

    pub(super) fn set(&mut self, service: Option<&str>, value: T) {
        match service {
            Some(service) => {
                self.by_service.insert(service.to_owned(), value);
            }
            None => self.all = Some(value),
        }
    }

    pub(super) fn take(&mut self, service: Option<&str>) -> Option<T> {
        match service {
            Some(service) => self.by_service.remove(service),
            None => self.all.take(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Option<&ServiceKey>, &T)> {
        let all = self.all.iter().map(|value| (None, value));
        all.chain(
            self.by_service
                .iter()
                .map(|(key, value)| (Some(key), value)),
        )
    }
}

/// "With reason and expiry", the expiry within a day.
pub(super) fn check_order(order: &Order, max_ms: i64, now: i64) -> Result<(), RefuseReason> {
    check_words(&order.by, &order.reason)?;
    if order.expires_ms <= now {
        return Err(RefuseReason::ExpiryPassed);
    }
    if order.expires_ms.saturating_sub(now) > max_ms {
        return Err(RefuseReason::ExpiryTooFar);
    }
    Ok(())
}

pub(super) fn check_words(by: &str, reason: &str) -> Result<(), RefuseReason> {
    if by.trim().is_empty() {
        return Err(RefuseReason::NoActor);
    }
    if reason.trim().is_empty() {
        return Err(RefuseReason::NoReason);
    }
    Ok(())
}

/// Only the owner's word is explicit; a missing instance never is, whatever the caller says.
pub(super) fn implicit(cause: Cause) -> Cause {
    match cause {
        Cause::Foreign => Cause::Foreign,
        Cause::Expired | Cause::Explicit | Cause::Unknown => Cause::Unknown,
    }
}
