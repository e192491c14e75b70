//! Holds back a view that loses instances implausibly: no mass removal.
//!
//! A fold over all services: [`Protection::handle_all`] takes what happened at one moment and
//! says what to remove and what to hold. It waits for nothing and reads no clock; `now_ms` is wall
//! time in milliseconds, and a time that goes backwards counts as standing still. After each call
//! the caller arranges a [`Input::Tick`] for [`Protection::next_timeout`]; a late tick changes no
//! decision, since timers that are due run first, each at its own time.
//!
//! - **Inputs** come from the merge ([`Input::Present`], [`Input::Missing`]), the holders of leases
//!   ([`Input::Silent`], [`Input::Expired`]), owners ([`Input::Registered`], [`Input::Removed`]),
//!   sources, and operators. Instances are counted, not registrations: `Removed`, `Expired` and
//!   `Missing` say that the last registration of an instance went.
//! - **Outputs** are carried out by the Core; an instance stays in the view until `Remove` names it.
//! - **State** is all of [`Protection`]: serialised and read back at any moment, it goes on as if
//!   nothing had been.

mod service;
#[cfg(test)]
mod tests;
mod types;
mod world;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use self::service::{Context, Instance, Life, Loss, Service, Verdict};
pub use self::types::{
    Alarm, AlarmKind, Cause, HeldReport, HoldReason, Input, InstanceId, Order, Output,
    OverrideKind, RefuseReason, Rule, ServiceKey, ServiceReport, Settings, SourceId,
};
use self::world::{Override, World, check_order, check_words, implicit};

/// The protection of all services.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protection {
    settings: Settings,
    services: BTreeMap<ServiceKey, Service>,
    world: World,
    now_ms: i64,
}

/// What one batch touched.
#[derive(Default)]
struct Touched {
    services: BTreeSet<ServiceKey>,
    /// Services whose E was brought up to date before |V| changed.
    raised: BTreeSet<ServiceKey>,
    /// Sources that lost something.
    sources: BTreeSet<SourceId>,
    /// Something changed that every service with losses depends on.
    everywhere: bool,
    explicit: bool,
}

impl Protection {
    /// Without any service yet. Until [`Input::Started`] says otherwise all sources are whole.
    pub fn new(settings: Settings) -> Self {
        Protection {
            world: World::new(settings.report_only),
            settings,
            services: BTreeMap::new(),
            now_ms: 0,
        }
    }

    /// Puts new settings in force, such as those of a new configuration over restored state. They
    /// count from the next input on.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// One input; see [`Self::handle_all`].
    pub fn handle(&mut self, input: Input, now_ms: i64) -> Vec<Output> {
        self.handle_all(vec![input], now_ms)
    }

    /// All that happened at one moment, judged once. The order of `inputs` changes nothing.
    pub fn handle_all(&mut self, mut inputs: Vec<Input>, now_ms: i64) -> Vec<Output> {
        let mut out = Vec::new();
        let horizon = now_ms.max(self.now_ms);
        while let Some(at) = self.next_timeout().filter(|at| *at <= horizon) {
            self.step(Vec::new(), at.max(self.now_ms), horizon, &mut out);
        }
        let late = std::mem::take(&mut out);
        inputs.sort();
        self.step(inputs, horizon, horizon, &mut out);
        let mut all = self.without_the_living(late);
        all.append(&mut out);
        all
    }

    /// When to send the next [`Input::Tick`] at the latest, in milliseconds.
    pub fn next_timeout(&self) -> Option<i64> {
        let services = self.world.due.first().map(|(at, _)| *at);
        let thaws = self.world.sources.keys();
        let thaws = thaws.filter_map(|source| self.world.thaw_at(source, &self.settings));
        let overrides = self.world.overrides.iter();
        let overrides = overrides.map(|(_, found)| found.order.expires_ms);
        let holds = self.world.explicit_holds.iter();
        let holds = holds.map(|(_, order)| order.expires_ms);
        let waits_for_calm = !self.world.last_held.is_empty();
        let calm = self.world.losing_ends(&self.settings);
        let times = services.into_iter().chain(thaws).chain(overrides);
        let times = times.chain(holds).chain(calm.filter(|_| waits_for_calm));
        let mass = self.world.explicit_ends(&self.settings);
        let times = times.chain(mass.filter(|_| self.world.mass_explicit));
        times.min()
    }

    /// Whether a delete by somebody who is not the owner is to be refused, because protection
    /// would not let it through at once (ZooKeeper NoAuth, etcd PermissionDenied). If not, the
    /// same [`Input::Missing`] with [`Cause::Foreign`] right after this removes all `instances`.
    pub fn would_refuse_foreign(
        &self,
        service: &str,
        instances: &BTreeSet<InstanceId>,
        source: &str,
        now_ms: i64,
    ) -> bool {
        let now = now_ms.max(self.now_ms);
        if self.next_timeout().is_some_and(|at| at <= now) {
            let mut current = self.clone();
            current.handle(Input::Tick, now);
            return current.would_refuse_foreign(service, instances, source, now);
        }
        let Some(found) = self.services.get(service) else {
            return false;
        };
        let known = instances.iter().any(|id| found.instances.contains_key(id));
        if !known || self.world.reports_only(service) {
            return false;
        }
        let toll = self.world.toll(source, Some((service, instances)));
        if self.world.is_frozen(source) || self.world.brakes(toll, &self.settings) {
            return true;
        }
        let cx = self.context(service, now);
        let mut after = found.clone();
        after.raise_expected(cx.rule, now);
        for id in instances {
            after.mark_lost(id, Loss::new(Cause::Foreign, source, now), &self.world);
        }
        let going = match after.judge(&self.world, &cx) {
            Verdict::Keep | Verdict::Wait => Vec::new(),
            Verdict::Remove(ids) | Verdict::Protect(ids) | Verdict::HoldLast(ids, _) => ids,
        };
        let stays = |id: &&InstanceId| {
            let known = found.instances.contains_key(*id);
            known && !going.contains(*id) && !self.world.force_removes(service, id)
        };
        instances.iter().any(|id| stays(&id))
    }

    /// One service, for `explain`, `services` and the console.
    pub fn service(&self, service: &str) -> Option<ServiceReport> {
        let found = self.services.get(service).filter(|s| !s.is_empty())?;
        Some(found.report_to(&self.world, &self.context(service, self.now_ms)))
    }

    /// All services, by key.
    pub fn services(&self) -> Vec<ServiceReport> {
        let keys = self.services.keys();
        keys.filter_map(|service| self.service(service)).collect()
    }

    /// Number of instances that are lost and still in the view.
    pub fn held_count(&self) -> usize {
        self.services
            .values()
            .map(|service| service.lost().count())
            .sum()
    }

    /// Instances that are lost and still in the view, with their services.
    pub fn held_instances(&self) -> Vec<(ServiceKey, InstanceId)> {
        let services = self.services.iter();
        let lost = services.flat_map(|(key, service)| {
            service
                .lost()
                .map(move |(id, ..)| (key.clone(), id.clone()))
        });
        lost.collect()
    }

    /// The alarms that are not over: protected services, held last instances, frozen sources, and
    /// a mass of explicit removals.
    pub fn alarms(&self) -> Vec<Alarm> {
        let mut alarms = Vec::new();
        for (key, service) in &self.services {
            let kind = if service.protected.is_some() {
                AlarmKind::ProtectionStill
            } else if self.world.last_held.contains(key) {
                AlarmKind::LastInstanceHeld
            } else {
                continue;
            };
            let cx = self.context(key, self.now_ms);
            alarms.push(service.describe(kind, &self.world, &cx, ""));
        }
        for (name, source) in &self.world.sources {
            if let Some(frozen) = &source.frozen {
                let mut alarm = self.plain_alarm(AlarmKind::SourceFrozen, &frozen.reason);
                alarm.sources = BTreeSet::from([name.clone()]);
                alarm.oldest_loss_ms = Some(frozen.since_ms);
                alarms.push(alarm);
            }
        }
        if self.world.mass_explicit {
            alarms.push(self.plain_alarm(AlarmKind::MassExplicit, ""));
        }
        alarms
    }

    /// Sources that may add, not remove, with the reason.
    pub fn frozen_sources(&self) -> Vec<(SourceId, String)> {
        let sources = self.world.sources.iter();
        let frozen = sources.filter_map(|(name, source)| {
            let frozen = source.frozen.as_ref()?;
            Some((name.clone(), frozen.reason.clone()))
        });
        frozen.collect()
    }

    // --- one moment ---

    /// A timer that ran late may have removed what an input of the same call brought back: to the
    /// caller, which did not see it go, it was only held until now.
    fn without_the_living(&self, late: Vec<Output>) -> Vec<Output> {
        let mut out = Vec::with_capacity(late.len());
        for output in late {
            let Output::Remove {
                service,
                instances,
                cause,
            } = output
            else {
                out.push(output);
                continue;
            };
            let found = self.services.get(&service);
            let lives = |id: &InstanceId| found.is_some_and(|s| s.instances.contains_key(id));
            let (living, gone): (Vec<_>, Vec<_>) = instances.into_iter().partition(lives);
            out.extend(living.into_iter().map(|instance| Output::Release {
                service: service.clone(),
                instance,
            }));
            if !gone.is_empty() {
                out.push(Output::Remove {
                    service,
                    instances: gone,
                    cause,
                });
            }
        }
        out
    }

    fn step(&mut self, inputs: Vec<Input>, now: i64, horizon: i64, out: &mut Vec<Output>) {
        self.now_ms = now;
        let mood = self.world.mood(&self.settings);
        let mut touched = Touched::default();
        let quiet = self.world.prune(&self.settings, now);
        let last_held = quiet.into_iter();
        let last_held = last_held.filter(|service| self.world.last_held.contains(service));
        touched.services.extend(last_held);
        self.end_expired_orders(&mut touched, out);
        self.thaw_stable_sources(&mut touched, out);
        while let Some((at, service)) = self.world.due.first().cloned()
            && at <= now
        {
            self.world.due.pop_first();
            touched.services.insert(service);
            // Somebody who did not come back may count by now.
            touched.explicit = true;
        }
        for input in inputs {
            self.apply(input, &mut touched, out);
        }
        self.brake_sources(&mut touched, out);
        self.watch_explicit(&touched, out);
        if touched.everywhere {
            let troubled = self.services.iter().filter(|(_, s)| s.has_trouble());
            touched
                .services
                .extend(troubled.map(|(key, _)| key.clone()));
        }
        if touched.everywhere || mood != self.world.mood(&self.settings) {
            touched
                .services
                .extend(self.world.last_held.iter().cloned());
        }
        for service in &touched.services {
            self.settle(service, horizon, out);
        }
    }

    fn apply(&mut self, input: Input, touched: &mut Touched, out: &mut Vec<Output>) {
        let now = self.now_ms;
        match input {
            Input::Tick => {}
            Input::Started { sources } => self.start(sources, touched),
            Input::Gateways { count } => {
                self.world.gateways = count;
                touched.everywhere = true;
            }
            Input::ExpiryStopped { stopped } => self.stop_expiry(stopped, touched),
            Input::ReportOnly { prefix, on } => {
                self.world.report_only.insert(prefix, on);
                touched.everywhere = true;
            }
            Input::Override {
                service,
                kind,
                order,
            } => match check_order(&order, self.settings.override_max_ms, now) {
                Ok(()) => self.set_override(service, kind, order, touched, out),
                Err(why) => out.push(Output::Refuse { service, why }),
            },
            Input::OverrideEnd { service } => {
                let ended = self.world.overrides.take(service.as_deref());
                self.end_order(
                    service,
                    ended.map(|found| found.order),
                    "ended",
                    touched,
                    out,
                );
            }
            Input::HoldExplicit { service, order } => {
                match check_order(&order, self.settings.override_max_ms, now) {
                    Ok(()) => {
                        let note = order_note("hold --explicit", &order);
                        self.world.explicit_holds.set(service.as_deref(), order);
                        self.note_order(AlarmKind::OrderSet, service, &note, out);
                    }
                    Err(why) => out.push(Output::Refuse { service, why }),
                }
            }
            Input::HoldExplicitEnd { service } => {
                let ended = self.world.explicit_holds.take(service.as_deref());
                self.end_order(service, ended, "ended", touched, out);
            }
            Input::SourceFrozen { source, reason } => {
                self.freeze(&source, reason, touched, out);
            }
            Input::SourceWhole { source } => self.source_whole(&source, touched),
            Input::Silent { service, instance } => {
                self.silent(&service, &instance, touched);
            }
            Input::Expired {
                service,
                instances,
                source,
            } => self.lose(service, &instances, &source, Cause::Expired, touched),
            Input::Missing {
                service,
                instances,
                source,
                cause,
            } => self.lose(service, &instances, &source, implicit(cause), touched),
            Input::Refused {
                service,
                instance,
                gateway,
            } => self.refused(&service, &instance, gateway, touched),
            Input::Present {
                service,
                instance,
                source,
                ttl_ms,
            } => {
                let from_before = self.world.owes_snapshot(&source);
                self.present(
                    service,
                    instance,
                    &source,
                    ttl_ms,
                    from_before,
                    touched,
                    out,
                );
            }
            Input::Registered {
                service,
                instance,
                source,
                ttl_ms,
            } => self.present(service, instance, &source, ttl_ms, false, touched, out),
            Input::Removed { service, instance } => {
                self.remove_explicit(service, instance, touched, out);
            }
            Input::Ack {
                service,
                by,
                reason,
            } => self.ack(service, &by, &reason, touched, out),
        }
    }

    fn settle(&mut self, key: &str, horizon: i64, out: &mut Vec<Output>) {
        let Some(service) = self.services.get_mut(key) else {
            return;
        };
        if let Some(due) = service.due_ms.take() {
            self.world.due.remove(&(due, key.to_owned()));
        }
        let cx = Context {
            key,
            settings: &self.settings,
            rule: self.settings.rule(key),
            now: self.now_ms,
            horizon,
        };
        service.settle(&mut self.world, &cx, out);
        if let Some(due) = service.due_ms {
            self.world.due.insert((due, key.to_owned()));
        } else if service.is_over() {
            self.services.remove(key);
            self.world.services = self.services.len() as u64;
        }
    }

    // --- instances ---

    #[allow(clippy::too_many_arguments)] // the fields of two inputs and where effects go
    fn present(
        &mut self,
        key: ServiceKey,
        id: InstanceId,
        source: &str,
        ttl_ms: i64,
        from_before: bool,
        touched: &mut Touched,
        out: &mut Vec<Output>,
    ) {
        let now = self.now_ms;
        let ttl_ms = match ttl_ms {
            1.. => ttl_ms.min(MAX_TTL_MS),
            _ => self.settings.default_ttl_ms,
        };
        let seen = Instance::seen(source, ttl_ms, from_before);
        if self.is_known_alive(&key, &id, &seen) {
            return;
        }
        let born = || Service::born(now);
        let service = self.services.entry(key.clone()).or_insert_with(born);
        if touched.raised.insert(key.clone()) {
            service.raise_expected(self.settings.rule(&key), now);
        }
        let (loss, new) = service.mark_present(&key, &id, seen, out);
        if let Some(left_ms) = service.come_back(&id) {
            self.world.take_back_explicit(&key, left_ms);
            touched.explicit = true;
        }
        self.world.published += u64::from(new);
        self.world.services = self.services.len() as u64;
        if new || loss.is_some() {
            let lost_by = loss.as_ref().map(|loss| loss.source.as_str());
            self.world.returned(&key, &id, lost_by, now);
        }
        touched.services.insert(key);
    }

    /// Repeated proof of life, by far the most frequent input, changes nothing.
    fn is_known_alive(&self, key: &str, id: &str, seen: &Instance) -> bool {
        let instance = self.services.get(key).and_then(|s| s.instances.get(id));
        instance.is_some_and(|known| {
            known.life == Life::Live
                && known.ttl_ms == seen.ttl_ms
                && known.sources.is_superset(&seen.sources)
                && (!known.from_before || seen.from_before)
        })
    }

    /// "The holder marks a record *silent* at half its timeout"; it stays visible.
    fn silent(&mut self, key: &str, id: &str, touched: &mut Touched) {
        let instance = self.services.get_mut(key);
        let instance = instance.and_then(|service| service.instances.get_mut(id));
        if let Some(instance) = instance.filter(|instance| instance.life == Life::Live) {
            instance.life = Life::Silent;
            touched.services.insert(key.to_owned());
        }
    }

    fn lose(
        &mut self,
        key: ServiceKey,
        ids: &BTreeSet<InstanceId>,
        source: &str,
        cause: Cause,
        touched: &mut Touched,
    ) {
        let now = self.now_ms;
        let Some(service) = self.services.get_mut(&key) else {
            return;
        };
        if touched.raised.insert(key.clone()) {
            service.raise_expected(self.settings.rule(&key), now);
        }
        for id in ids {
            let loss = Loss::new(cause, source, now);
            if let Some(ttl_ms) = service.mark_lost(id, loss, &self.world) {
                self.world.lost(&key, id, source, ttl_ms, now);
                touched.sources.insert(source.to_owned());
                touched.services.insert(key.clone());
            }
        }
    }

    /// "Explicit removals pass at once ... `causeway hold --explicit` stops even those."
    fn remove_explicit(
        &mut self,
        key: ServiceKey,
        id: InstanceId,
        touched: &mut Touched,
        out: &mut Vec<Output>,
    ) {
        let now = self.now_ms;
        let Some(service) = self.services.get_mut(&key) else {
            return;
        };
        if touched.raised.insert(key.clone()) {
            service.raise_expected(self.settings.rule(&key), now);
        }
        if !service.instances.contains_key(&id) {
            return;
        }
        touched.services.insert(key.clone());
        if self.world.holds_explicit(&key) && !self.world.reports_only(&key) {
            if let Some(instance) = service.instances.get_mut(&id) {
                instance.life = Life::Lost(Loss::new(Cause::Explicit, OWNER, now));
            }
            return;
        }
        let removed = service.remove_by_owner(&id, now);
        let lost_by = removed.as_ref().and_then(Instance::loss);
        let lost_by = lost_by.map(|loss| loss.source.as_str());
        self.world.returned(&key, &id, lost_by, now);
        self.world.published = self.world.published.saturating_sub(1);
        let times = self.world.explicit.entry(key.clone()).or_default();
        times.push_back(now);
        touched.explicit = true;
        out.push(Output::Remove {
            service: key,
            instances: vec![id],
            cause: Cause::Explicit,
        });
    }

    fn refused(&mut self, key: &str, id: &str, gateway: String, touched: &mut Touched) {
        let instance = self.services.get_mut(key);
        let instance = instance.and_then(|service| service.instances.get_mut(id));
        if let Some(instance) = instance.filter(|instance| instance.loss().is_some())
            && instance.refused_by.len() < MAX_PROBERS
        {
            instance.refused_by.insert(gateway);
            touched.services.insert(key.to_owned());
        }
    }

    // --- the process and its members ---

    /// "Start-up: a record from before the start ...; records made since are not delayed."
    fn start(&mut self, sources: BTreeSet<SourceId>, touched: &mut Touched) {
        self.world.started_ms = self.now_ms;
        for source in self.world.sources.values_mut() {
            source.owes_snapshot = false;
        }
        for source in sources {
            self.world.sources.entry(source).or_default().owes_snapshot = true;
        }
        for service in self.services.values_mut() {
            for instance in service.instances.values_mut() {
                instance.from_before = true;
            }
        }
        touched.everywhere = true;
    }

    /// "Nothing is removed by expiry ... Leaving this state, every lease starts anew."
    fn stop_expiry(&mut self, stopped: bool, touched: &mut Touched) {
        let resumes = self.world.expiry_stopped && !stopped;
        self.world.expiry_stopped = stopped;
        if resumes {
            for service in self.services.values_mut() {
                service.delay_lost(self.now_ms, |loss| loss.cause == Cause::Expired);
            }
        }
        touched.everywhere = true;
    }

    // --- sources ---

    fn freeze(
        &mut self,
        source: &str,
        reason: String,
        touched: &mut Touched,
        out: &mut Vec<Output>,
    ) {
        let news = !self.world.is_frozen(source);
        let mut alarm = self.plain_alarm(AlarmKind::SourceFrozen, &reason);
        self.world.freeze(source, reason, self.now_ms);
        if news {
            alarm.sources = BTreeSet::from([source.to_owned()]);
            out.push(Output::Alarm(alarm));
            touched.everywhere = true;
        }
    }

    fn source_whole(&mut self, source: &str, touched: &mut Touched) {
        let first = self.world.whole(source, self.now_ms);
        touched.everywhere = true;
        if !first {
            return;
        }
        for service in self.services.values_mut() {
            let from_it = |instance: &Instance| instance.sources.contains(source);
            if service.instances.values().any(from_it) {
                service.start_expected();
            }
        }
    }

    /// "... is frozen, until it gave a whole snapshot that stayed stable for a TTL."
    fn thaw_stable_sources(&mut self, touched: &mut Touched, out: &mut Vec<Output>) {
        let now = self.now_ms;
        let sources = self.world.sources.keys();
        let stable = |source: &&SourceId| {
            let at = self.world.thaw_at(source, &self.settings);
            at.is_some_and(|at| at <= now)
        };
        let stable: Vec<SourceId> = sources.filter(stable).cloned().collect();
        for source in stable {
            self.world.thaw(&source);
            let mut alarm = self.plain_alarm(AlarmKind::SourceThawed, "whole and stable");
            alarm.sources = BTreeSet::from([source.clone()]);
            out.push(Output::Alarm(alarm));
            out.push(Output::ThawSource { source });
            touched.everywhere = true;
        }
    }

    /// The source brake. Of a frozen source: a snapshot that loses as much again was not whole.
    fn brake_sources(&mut self, touched: &mut Touched, out: &mut Vec<Output>) {
        for source in std::mem::take(&mut touched.sources) {
            let toll = self.world.toll(&source, None);
            if !self.world.brakes(toll, &self.settings) {
                continue;
            }
            let news = !self.world.is_frozen(&source);
            let reason = format!(
                "would remove {} instances of {} services within {} s",
                toll.instances,
                toll.services,
                self.settings.brake_window_ms / 1000
            );
            self.freeze(&source, reason, touched, out);
            if news {
                out.push(Output::FreezeSource {
                    source,
                    instances: toll.instances,
                    services: toll.services,
                });
            }
        }
    }

    // --- explicit removals ---

    /// "More than 40% of more than 10% of the services within 60 s raises an alarm", once it is clear that
    /// they do not come back.
    fn watch_explicit(&mut self, touched: &Touched, out: &mut Vec<Output>) {
        if !touched.explicit && !self.world.mass_explicit {
            return;
        }
        let (mut hit, mut gone) = (0_u64, 0_u64);
        let clear = self.now_ms - self.settings.return_ms;
        for (key, times) in &self.world.explicit {
            let service = self.services.get(key);
            let left = service.map_or(0, Service::published);
            gone += u64::from(service.is_none());
            let removed = times.partition_point(|at| *at <= clear) as u64;
            let share = self.settings.explicit_percent * (left + removed);
            hit += u64::from(100 * removed > share);
        }
        let services = self.services.len() as u64 + gone;
        let mass = 100 * hit > self.settings.explicit_services_percent * services;
        if mass && !self.world.mass_explicit {
            let note = format!("owners empty {hit} of {services} services");
            out.push(Output::Alarm(
                self.plain_alarm(AlarmKind::MassExplicit, &note),
            ));
        }
        self.world.mass_explicit = mass;
    }

    // --- operators ---

    fn ack(
        &mut self,
        key: ServiceKey,
        by: &str,
        reason: &str,
        touched: &mut Touched,
        out: &mut Vec<Output>,
    ) {
        let checked = check_words(by, reason);
        let known = self.services.contains_key(&key);
        let checked = checked.and(known.then_some(()).ok_or(RefuseReason::UnknownService));
        if let Err(why) = checked {
            let service = Some(key);
            out.push(Output::Refuse { service, why });
            return;
        }
        if let Some(service) = self.services.get_mut(&key) {
            service.ack();
        }
        touched.services.insert(key.clone());
        let note = format!("ack by {by}: {reason}");
        self.note_order(AlarmKind::OrderSet, Some(key), &note, out);
    }

    fn set_override(
        &mut self,
        service: Option<ServiceKey>,
        kind: OverrideKind,
        order: Order,
        touched: &mut Touched,
        out: &mut Vec<Output>,
    ) {
        let word = match kind {
            OverrideKind::ForceRemove => "force-remove",
            OverrideKind::ForceHold => "force-hold",
            OverrideKind::Off => "off",
        };
        let note = order_note(word, &order);
        let mut covered = BTreeMap::new();
        if kind == OverrideKind::ForceRemove {
            let all = self.services.iter_mut();
            let named = |key: &ServiceKey| service.as_ref().is_none_or(|named| named == key);
            for (key, found) in all.filter(|(key, _)| named(key)) {
                let lost = found.lost().map(|(id, ..)| id.clone());
                covered.insert(key.clone(), lost.collect::<BTreeSet<_>>());
                let cx = Context {
                    key,
                    settings: &self.settings,
                    rule: self.settings.rule(key),
                    now: self.now_ms,
                    horizon: self.now_ms,
                };
                found.leave(&self.world, &cx, &note, out);
            }
        }
        let value = Override {
            kind,
            order,
            covered,
        };
        self.world.overrides.set(service.as_deref(), value);
        touched.everywhere = true;
        self.note_order(AlarmKind::OrderSet, service, &note, out);
    }

    fn end_expired_orders(&mut self, touched: &mut Touched, out: &mut Vec<Output>) {
        let now = self.now_ms;
        let overrides = self.world.overrides.iter();
        let overrides = overrides.filter(|(_, found)| found.order.expires_ms <= now);
        let overrides: Vec<_> = overrides.map(|(key, _)| key.cloned()).collect();
        for service in overrides {
            let ended = self.world.overrides.take(service.as_deref());
            self.end_order(
                service,
                ended.map(|found| found.order),
                "expired",
                touched,
                out,
            );
        }
        let holds = self.world.explicit_holds.iter();
        let holds = holds.filter(|(_, order)| order.expires_ms <= now);
        let holds: Vec<_> = holds.map(|(key, _)| key.cloned()).collect();
        for service in holds {
            let ended = self.world.explicit_holds.take(service.as_deref());
            self.end_order(service, ended, "expired", touched, out);
        }
    }

    fn end_order(
        &mut self,
        service: Option<ServiceKey>,
        ended: Option<Order>,
        how: &str,
        touched: &mut Touched,
        out: &mut Vec<Output>,
    ) {
        let Some(order) = ended else {
            let why = RefuseReason::NotInForce;
            out.push(Output::Refuse { service, why });
            return;
        };
        touched.everywhere = true;
        let note = order_note(how, &order);
        self.note_order(AlarmKind::OrderEnded, service, &note, out);
    }

    fn note_order(
        &self,
        kind: AlarmKind,
        service: Option<ServiceKey>,
        note: &str,
        out: &mut Vec<Output>,
    ) {
        let described = service.as_deref().and_then(|key| {
            let found = self.services.get(key)?;
            let cx = self.context(key, self.now_ms);
            Some(found.describe(kind, &self.world, &cx, note))
        });
        let plain = || Alarm {
            service: service.clone(),
            ..self.plain_alarm(kind, note)
        };
        out.push(Output::Alarm(described.unwrap_or_else(plain)));
    }

    // --- helpers ---

    fn context<'a>(&'a self, key: &'a str, now: i64) -> Context<'a> {
        Context {
            key,
            settings: &self.settings,
            rule: self.settings.rule(key),
            now,
            horizon: now,
        }
    }

    fn plain_alarm(&self, kind: AlarmKind, note: &str) -> Alarm {
        Alarm {
            kind,
            service: None,
            at_ms: self.now_ms,
            expected: 0,
            live: 0,
            published: 0,
            held: Vec::new(),
            causes: BTreeMap::new(),
            sources: BTreeSet::new(),
            oldest_loss_ms: None,
            report_only: self.world.reports_only(""),
            note: note.to_owned(),
        }
    }
}

/// Who removes explicitly: in place of a source.
const OWNER: &str = "owner";

/// More than enough to count two; the list comes from members, each at most once.
const MAX_PROBERS: usize = 16;

/// A year; sums of times stay far from overflow whatever a client asks for.
const MAX_TTL_MS: i64 = 366 * 24 * 3_600_000;

fn order_note(what: &str, order: &Order) -> String {
    format!("{what} by {}: {}", order.by, order.reason)
}
