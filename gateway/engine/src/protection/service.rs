//! One service: its expected size, its judgement, its protection. Each function is one sentence
//! of the rule (design: "Protection: no mass removal"), quoted above it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::types::{
    Alarm, AlarmKind, Cause, HeldReport, HoldReason, InstanceId, Output, OverrideKind, Rule,
    ServiceReport, Settings, SourceId,
};
use super::world::World;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Service {
    /// P.
    pub(super) instances: BTreeMap<InstanceId, Instance>,
    /// Removed by their owners a moment ago; who comes back soon was never gone.
    left: BTreeMap<InstanceId, Left>,
    /// E.
    pub(super) expected: u64,
    born_ms: i64,
    /// Steps of |V|: from each time on until now, |V| was never below its figure. Rising figures.
    lows: VecDeque<(i64, u64)>,
    live_changed_ms: i64,
    pub(super) protected: Option<Protected>,
    wait_until_ms: Option<i64>,
    last: Option<LastHold>,
    pub(super) due_ms: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Left {
    at_ms: i64,
    /// What its removal took from E: 1, or 0 where nothing was expected yet.
    expected: u64,
    /// Nobody stayed.
    last: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Instance {
    pub(super) sources: BTreeSet<SourceId>,
    pub(super) ttl_ms: i64,
    /// From before the start of the process.
    pub(super) from_before: bool,
    pub(super) life: Life,
    /// The Core was told that it is held.
    announced: bool,
    pub(super) refused_by: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Life {
    Live,
    Silent,
    Lost(Loss),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Loss {
    pub(super) cause: Cause,
    pub(super) source: SourceId,
    since_ms: i64,
    /// Not to be removed earlier, whatever the judgement.
    pub(super) not_before_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Protected {
    since_ms: i64,
    /// Since when the loss has been at most half the threshold.
    small_since_ms: Option<i64>,
    next_alarm_ms: i64,
    /// Where protection only reports: what it would hold.
    would_hold: BTreeMap<InstanceId, Loss>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LastHold {
    instance: InstanceId,
    counted_ms: i64,
    running_since_ms: Option<i64>,
}

/// What the rule says about the losses that may be judged now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing to judge, or all of it stays held.
    Keep,
    /// These go.
    Remove(Vec<InstanceId>),
    /// The rule trips; these (greedy mode) go first.
    Protect(Vec<InstanceId>),
    /// The silent decide.
    Wait,
    /// These go, and the last instance has its own time.
    HoldLast(Vec<InstanceId>, InstanceId),
}

/// What a service is judged with.
pub(super) struct Context<'a> {
    pub(super) key: &'a str,
    pub(super) settings: &'a Settings,
    pub(super) rule: &'a Rule,
    pub(super) now: i64,
    /// The time of the call, past all timers that are being caught up.
    pub(super) horizon: i64,
}

impl Service {
    /// "0 for a service born later."
    pub(super) fn born(now: i64) -> Self {
        Service {
            instances: BTreeMap::new(),
            left: BTreeMap::new(),
            expected: 0,
            born_ms: now,
            lows: VecDeque::new(),
            live_changed_ms: now,
            protected: None,
            wait_until_ms: None,
            last: None,
            due_ms: None,
        }
    }

    /// Nothing in the view and nothing expected: nothing worth remembering.
    pub(super) fn is_over(&self) -> bool {
        self.is_empty() && self.left.is_empty()
    }

    /// The same but for those that may come back.
    pub(super) fn is_empty(&self) -> bool {
        self.instances.is_empty() && self.expected == 0 && self.protected.is_none()
    }

    pub(super) fn has_trouble(&self) -> bool {
        self.protected.is_some() || self.lost().next().is_some()
    }

    /// "V: those of P with proof of life": living, and silent within their timeout.
    pub(super) fn live(&self) -> u64 {
        let live = self.instances.values().filter(|i| i.loss().is_none());
        live.count() as u64
    }

    pub(super) fn published(&self) -> u64 {
        self.instances.len() as u64
    }

    fn silent(&self) -> impl Iterator<Item = (&InstanceId, &Instance)> {
        self.instances
            .iter()
            .filter(|(_, instance)| instance.life == Life::Silent)
    }

    pub(super) fn lost(&self) -> impl Iterator<Item = (&InstanceId, &Instance, &Loss)> {
        self.instances
            .iter()
            .filter_map(|(id, instance)| Some((id, instance, instance.loss()?)))
    }

    // --- marks ---

    /// Proof of life. Returns what it was lost by, if it was, and whether it is new in the view.
    pub(super) fn mark_present(
        &mut self,
        key: &str,
        id: &InstanceId,
        seen: Instance,
        out: &mut Vec<Output>,
    ) -> (Option<Loss>, bool) {
        if let Some(protected) = &mut self.protected {
            protected.would_hold.remove(id);
        }
        let Some(instance) = self.instances.get_mut(id) else {
            self.instances.insert(id.clone(), seen);
            return (None, true);
        };
        instance.sources.extend(seen.sources);
        instance.ttl_ms = seen.ttl_ms;
        instance.from_before &= seen.from_before;
        instance.refused_by.clear();
        if std::mem::take(&mut instance.announced) {
            out.push(Output::Release {
                service: key.to_owned(),
                instance: id.clone(),
            });
        }
        match std::mem::replace(&mut instance.life, Life::Live) {
            Life::Lost(loss) => (Some(loss), false),
            Life::Live | Life::Silent => (None, false),
        }
    }

    /// A loss. Returns the instance's TTL if this is news: a second report of the same loss
    /// changes nothing, unless the first came from a source that is not believed.
    pub(super) fn mark_lost(&mut self, id: &str, loss: Loss, world: &World) -> Option<i64> {
        let instance = self.instances.get_mut(id)?;
        let first = instance.loss().cloned();
        if let Some(first) = first {
            if first.source != loss.source && world.is_frozen(&first.source) {
                let since_ms = first.since_ms;
                instance.life = Life::Lost(Loss { since_ms, ..loss });
                return Some(instance.ttl_ms);
            }
            return None;
        }
        instance.life = Life::Lost(loss);
        Some(instance.ttl_ms)
    }

    /// "Explicit removals pass at once", and "E falls by one for each removal by its owner".
    pub(super) fn remove_by_owner(&mut self, id: &str, now: i64) -> Option<Instance> {
        let removed = self.instances.remove(id)?;
        let taken = self.expected.min(1);
        self.expected -= taken;
        let left = Left {
            at_ms: now,
            expected: taken,
            last: self.instances.is_empty(),
        };
        self.left.insert(id.to_owned(), left);
        Some(removed)
    }

    /// An owner that registers again soon did not leave: what its removal took from E is given back.
    /// Says when it was removed.
    pub(super) fn come_back(&mut self, id: &str) -> Option<i64> {
        let left = self.left.remove(id)?;
        self.expected = self.expected.saturating_add(left.expected);
        Some(left.at_ms)
    }

    /// Who did not come back in time has left.
    fn let_go(&mut self, world: &World, cx: &Context, out: &mut Vec<Output>) {
        let due = cx.now - cx.settings.return_ms;
        let mut last = false;
        self.left.retain(|_, left| {
            let gone = left.at_ms <= due;
            last |= gone && left.last;
            !gone
        });
        if last && self.instances.is_empty() {
            out.push(self.alarm(AlarmKind::ServiceEmptied, world, cx, "by its owners"));
        }
    }

    // --- expected size ---

    /// "E starts at |V| of the first whole snapshot."
    pub(super) fn start_expected(&mut self) {
        self.expected = self.expected.max(self.live());
    }

    /// "E ... rises to the smallest |V| of the last 10 min, or of the service's life after its
    /// first minute while it is younger, when that is larger." Called before |V| changes: between
    /// two changes the smallest |V| can only grow, so that its last value is its largest.
    pub(super) fn raise_expected(&mut self, rule: &Rule, now: i64) {
        self.expected = self.expected_at(rule, now);
    }

    fn expected_at(&self, rule: &Rule, now: i64) -> u64 {
        let settled_ms = self.born_ms + rule.settle_ms;
        if now < settled_ms {
            return self.expected;
        }
        let from = settled_ms.max(now - rule.rise_ms);
        let steps = self.lows.partition_point(|(at, _)| *at <= from);
        let low = steps.checked_sub(1).and_then(|step| self.lows.get(step));
        low.map_or(self.expected, |(_, low)| self.expected.max(*low))
    }

    /// Keeps the steps of |V| that [`Self::expected_at`] reads.
    fn note_live(&mut self, rule: &Rule, now: i64) {
        let live = self.live();
        let (mut from, mut before) = (now, None);
        while let Some((at, low)) = self.lows.back().copied()
            && low >= live
        {
            before = before.or(Some(low));
            from = at;
            self.lows.pop_back();
        }
        let before = before.or(self.lows.back().map(|(_, low)| *low));
        if before != Some(live) {
            self.live_changed_ms = now;
        }
        self.lows.push_back((from, live));
        while self
            .lows
            .get(1)
            .is_some_and(|(at, _)| *at <= now - rule.rise_ms)
        {
            self.lows.pop_front();
        }
    }

    /// "... to |V| on an operator's `ack`."
    pub(super) fn ack(&mut self) {
        self.expected = self.live();
    }

    /// "... and to |V| after 6 h of an unchanged |V|: outside protection, or inside it if all
    /// sources are whole and every held instance refused a TCP connect from two gateways (from
    /// the one, if alone) that reach another instance of the service."
    fn forget(&mut self, world: &World, cx: &Context) {
        if self.forgets_at(world, cx).is_some_and(|at| at <= cx.now) {
            self.expected = self.live();
        }
    }

    fn forgets_at(&self, world: &World, cx: &Context) -> Option<i64> {
        let may = self.expected > self.live()
            && (self.protected.is_none() || (world.all_whole() && self.all_refused(world)));
        may.then_some(self.live_changed_ms + cx.rule.forget_ms)
    }

    fn all_refused(&self, world: &World) -> bool {
        let needed = world.gateways.clamp(1, 2) as usize;
        self.lost()
            .all(|(_, instance, _)| instance.refused_by.len() >= needed)
    }

    // --- judgement ---

    /// "R is all that is expired, a = |P without R|", taken over every implicit loss that may be
    /// believed now. Pure: what it says is carried out by [`Self::settle`].
    pub(super) fn judge(&self, world: &World, cx: &Context) -> Verdict {
        let judged: Vec<_> = self
            .lost()
            .filter(|(_, instance, loss)| believed(instance, loss, world, cx.now))
            .collect();
        let ripe: Vec<_> = judged
            .iter()
            .filter(|(_, _, loss)| loss.not_before_ms <= cx.now)
            .map(|(id, _, loss)| (loss.since_ms, (*id).clone()))
            .collect();
        match world.override_kind(cx.key) {
            Some(OverrideKind::Off) => return Verdict::Remove(all_ids(&judged)),
            Some(OverrideKind::ForceHold) => return Verdict::Keep,
            Some(OverrideKind::ForceRemove) | None => {}
        }
        // "Protected: ... other removals are held."
        if self.protected.is_some() || ripe.is_empty() {
            return Verdict::Keep;
        }
        let left = self.published() - judged.len() as u64;
        if let ([(_, only)], true) = (ripe.as_slice(), self.holds_last(cx.rule))
            && self.published() == 1
        {
            return Verdict::HoldLast(Vec::new(), only.clone());
        }
        if trips(cx.rule, self.expected, left) {
            return Verdict::Protect(self.greedy_part(cx.rule, ripe));
        }
        if self.waits(cx, left) {
            return Verdict::Wait;
        }
        if ripe.len() as u64 == self.published() && self.holds_last(cx.rule) {
            return split_last(ripe);
        }
        Verdict::Remove(ripe.into_iter().map(|(_, id)| id).collect())
    }

    /// "If the rule would trip only when the silent are counted as gone too, the judgement waits
    /// until they return or expire." One wait lasts at most the longest timeout among the silent
    /// it began with: by then each has returned or expired, unless its holder is gone, and others
    /// that fall silent meanwhile must not prolong it for ever.
    fn waits(&self, cx: &Context, left: u64) -> bool {
        let silent = self.silent().count() as u64;
        let in_time = self.wait_until_ms.is_none_or(|until| cx.now < until);
        in_time && trips(cx.rule, self.expected, left.saturating_sub(silent))
    }

    /// "Mode `greedy` removes the oldest of R up to the limit and holds the rest."
    fn greedy_part(&self, rule: &Rule, mut ripe: Vec<(i64, InstanceId)>) -> Vec<InstanceId> {
        if !rule.greedy {
            return Vec::new();
        }
        ripe.sort();
        let mut left = self.published();
        let within = |_: &(i64, InstanceId)| {
            left = left.saturating_sub(1);
            !trips(rule, self.expected, left)
        };
        let oldest = ripe.into_iter().take_while(within);
        oldest.map(|(_, id)| id).collect()
    }

    /// "The last instance of a service with E of at least 1 is held"; "`strict` applies the rule
    /// literally".
    fn holds_last(&self, rule: &Rule) -> bool {
        self.expected >= 1 && !rule.strict
    }

    // --- carrying it out ---

    /// Brings the service up to `now` after its marks changed or its time came.
    pub(super) fn settle(&mut self, world: &mut World, cx: &Context, out: &mut Vec<Output>) {
        self.note_live(cx.rule, cx.now);
        self.raise_expected(cx.rule, cx.now);
        self.forget(world, cx);
        self.let_go(world, cx, out);
        self.remove_released_explicit(world, cx, out);
        if world.reports_only(cx.key) {
            self.report(world, cx, out);
        } else {
            self.enforce(world, cx, out);
        }
        self.leave_when_small(world, cx, out);
        self.remind(world, cx, out);
        self.due_ms = self.next_due(world, cx);
    }

    fn enforce(&mut self, world: &mut World, cx: &Context, out: &mut Vec<Output>) {
        self.remove_forced(world, cx, out);
        if world.override_kind(cx.key) == Some(OverrideKind::Off) {
            self.leave(world, cx, "override: off", out);
        }
        let verdict = self.judge(world, cx);
        self.keep_wait(&verdict, cx.now);
        match verdict {
            Verdict::Keep => self.pause_last(world, cx),
            Verdict::Wait => self.drop_last(world, cx),
            Verdict::Remove(ids) => {
                self.drop_last(world, cx);
                self.remove(&ids, world, cx, out);
            }
            Verdict::Protect(oldest) => {
                self.drop_last(world, cx);
                self.remove(&oldest, world, cx, out);
                self.enter(BTreeMap::new(), world, cx, out);
            }
            Verdict::HoldLast(others, last) => {
                self.remove(&others, world, cx, out);
                self.hold_last(last, world, cx, out);
            }
        }
        self.announce_held(world, cx, out);
    }

    /// "Before it protection only reports": L's verdict stands, the alarm says what would be held.
    fn report(&mut self, world: &mut World, cx: &Context, out: &mut Vec<Output>) {
        let verdict = self.judge(world, cx);
        let lost = self.lost().map(|(id, _, loss)| (id.clone(), loss.clone()));
        let mut would_hold: BTreeMap<InstanceId, Loss> = lost.collect();
        let all: Vec<InstanceId> = would_hold.keys().cloned().collect();
        self.wait_until_ms = None;
        self.drop_last(world, cx);
        match verdict {
            Verdict::Keep => {
                if let Some(protected) = &mut self.protected {
                    protected.would_hold.append(&mut would_hold);
                }
            }
            Verdict::Protect(oldest) => {
                would_hold.retain(|id, _| !oldest.contains(id));
                self.enter(would_hold, world, cx, out);
            }
            Verdict::HoldLast(..) => {
                out.push(self.alarm(AlarmKind::LastInstanceHeld, world, cx, ""));
            }
            Verdict::Wait | Verdict::Remove(_) => {}
        }
        self.remove(&all, world, cx, out);
    }

    /// What an operator held with `hold --explicit` goes when that ends.
    fn remove_released_explicit(&mut self, world: &mut World, cx: &Context, out: &mut Vec<Output>) {
        if world.holds_explicit(cx.key) && !world.reports_only(cx.key) {
            return;
        }
        let lost = self.lost();
        let owners = lost.filter(|(_, _, loss)| loss.cause == Cause::Explicit);
        let ids: Vec<InstanceId> = owners.map(|(id, ..)| id.clone()).collect();
        self.remove(&ids, world, cx, out);
    }

    fn remove_forced(&mut self, world: &mut World, cx: &Context, out: &mut Vec<Output>) {
        let lost = self.lost().map(|(id, ..)| id);
        let forced = lost.filter(|id| world.force_removes(cx.key, id));
        let ids: Vec<InstanceId> = forced.cloned().collect();
        self.remove(&ids, world, cx, out);
    }

    /// Takes lost instances out of the view. "It never falls through expiry": E stays, but for
    /// those that their owners removed.
    fn remove(
        &mut self,
        ids: &[InstanceId],
        world: &mut World,
        cx: &Context,
        out: &mut Vec<Output>,
    ) {
        let mut by_cause: BTreeMap<Cause, Vec<InstanceId>> = BTreeMap::new();
        for id in ids {
            let cause = self.instances.get(id).and_then(Instance::loss);
            let Some(cause) = cause.map(|loss| loss.cause) else {
                continue;
            };
            self.instances.remove(id);
            if cause == Cause::Explicit {
                self.expected = self.expected.saturating_sub(1);
            }
            world.published = world.published.saturating_sub(1);
            world.removed(cx.key, id);
            by_cause.entry(cause).or_default().push(id.clone());
        }
        for (cause, mut instances) in by_cause {
            instances.sort();
            out.push(Output::Remove {
                service: cx.key.to_owned(),
                instances,
                cause,
            });
        }
    }

    fn announce_held(&mut self, world: &World, cx: &Context, out: &mut Vec<Output>) {
        let lost = self.lost().filter(|(_, instance, _)| !instance.announced);
        let new: Vec<_> = lost
            .map(|(id, instance, loss)| (id.clone(), self.held_by(id, instance, loss, world, cx)))
            .collect();
        for (instance, why) in new {
            if let Some(held) = self.instances.get_mut(&instance) {
                held.announced = true;
            }
            out.push(Output::Hold {
                service: cx.key.to_owned(),
                instance,
                why,
            });
        }
    }

    fn held_by(
        &self,
        id: &str,
        instance: &Instance,
        loss: &Loss,
        world: &World,
        cx: &Context,
    ) -> HoldReason {
        if loss.cause == Cause::Explicit {
            HoldReason::HoldExplicit
        } else if world.override_kind(cx.key) == Some(OverrideKind::ForceHold) {
            HoldReason::ForceHold
        } else if world.is_frozen(&loss.source) {
            HoldReason::SourceFrozen
        } else if start_up_delays(instance, world, cx.now) {
            HoldReason::StartUp
        } else if world.expiry_stopped && loss.cause == Cause::Expired {
            HoldReason::ExpiryStopped
        } else if self.protected.is_some() {
            HoldReason::Protected
        } else if self.last.as_ref().is_some_and(|last| last.instance == id) {
            HoldReason::LastInstance
        } else if loss.not_before_ms > cx.now {
            HoldReason::Leftover
        } else {
            HoldReason::WaitsForSilent
        }
    }

    fn keep_wait(&mut self, verdict: &Verdict, now: i64) {
        if *verdict != Verdict::Wait {
            self.wait_until_ms = None;
        } else if self.wait_until_ms.is_none() {
            let longest = self.silent().map(|(_, instance)| instance.ttl_ms).max();
            self.wait_until_ms = Some(now + longest.unwrap_or(0));
        }
    }

    // --- protected state ---

    /// "... none of R is removed and the service is protected." "Alarms at entry".
    fn enter(
        &mut self,
        would_hold: BTreeMap<InstanceId, Loss>,
        world: &World,
        cx: &Context,
        out: &mut Vec<Output>,
    ) {
        self.protected = Some(Protected {
            since_ms: cx.now,
            small_since_ms: None,
            next_alarm_ms: cx.now + cx.rule.alarm_every_ms,
            would_hold,
        });
        out.push(self.alarm(AlarmKind::ProtectionEntered, world, cx, ""));
    }

    /// "It ends when the loss is at most half the threshold for 60 s."
    fn leave_when_small(&mut self, world: &World, cx: &Context, out: &mut Vec<Output>) {
        let loss = self.expected.saturating_sub(self.live());
        let small = 200 * loss <= cx.rule.threshold_percent * self.expected;
        let Some(protected) = &mut self.protected else {
            return;
        };
        if !small {
            protected.small_since_ms = None;
            return;
        }
        let since_ms = *protected.small_since_ms.get_or_insert(cx.now);
        if cx.now >= since_ms + cx.rule.exit_ms {
            self.leave(world, cx, "", out);
        }
    }

    /// "What is then still missing must stay silent one more TTL." "Alarms at ... exit".
    pub(super) fn leave(&mut self, world: &World, cx: &Context, note: &str, out: &mut Vec<Output>) {
        if self.protected.is_none() {
            return;
        }
        out.push(self.alarm(AlarmKind::ProtectionEnded, world, cx, note));
        self.protected = None;
        self.delay_lost(cx.now, |_| true);
    }

    /// Lost instances that `which` picks must stay away for one more timeout of theirs.
    pub(super) fn delay_lost(&mut self, now: i64, which: impl Fn(&Loss) -> bool) {
        for instance in self.instances.values_mut() {
            let until = now + instance.ttl_ms;
            if let Life::Lost(loss) = &mut instance.life
                && which(loss)
            {
                loss.not_before_ms = loss.not_before_ms.max(until);
            }
        }
    }

    /// "Alarms ... every 5 min": at fixed times after the entry, those missed in between left out.
    fn remind(&mut self, world: &World, cx: &Context, out: &mut Vec<Output>) {
        let Some(protected) = &mut self.protected else {
            return;
        };
        if cx.now < protected.next_alarm_ms {
            return;
        }
        let every = cx.rule.alarm_every_ms.max(1);
        let missed = (cx.horizon - protected.next_alarm_ms).max(0) / every;
        protected.next_alarm_ms += (missed + 1) * every;
        out.push(self.alarm(AlarmKind::ProtectionStill, world, cx, ""));
    }

    // --- last instance ---

    /// "The last instance ... is held 5 min, counted only while no source is frozen and under 10%
    /// of services lose anything, then removed with an alarm."
    fn hold_last(
        &mut self,
        id: InstanceId,
        world: &mut World,
        cx: &Context,
        out: &mut Vec<Output>,
    ) {
        if self.last.as_ref().is_none_or(|last| last.instance != id) {
            self.last = Some(LastHold {
                instance: id.clone(),
                counted_ms: 0,
                running_since_ms: None,
            });
            world.last_held.insert(cx.key.to_owned());
            out.push(self.alarm(AlarmKind::LastInstanceHeld, world, cx, ""));
        }
        let calm = world.is_calm_for(cx.key, cx.settings);
        let Some(last) = &mut self.last else {
            return;
        };
        last.count(calm, cx.now);
        if last.left_ms(cx.rule, cx.now) == 0 {
            out.push(self.alarm(AlarmKind::LastInstanceRemoved, world, cx, ""));
            self.drop_last(world, cx);
            self.remove(&[id], world, cx, out);
        }
    }

    /// While the loss may not be judged its time does not count; if it is back, it starts anew.
    fn pause_last(&mut self, world: &mut World, cx: &Context) {
        let Some(last) = &mut self.last else {
            return;
        };
        let instance = self.instances.get(&last.instance);
        if instance.and_then(Instance::loss).is_some() {
            last.count(false, cx.now);
        } else {
            self.drop_last(world, cx);
        }
    }

    fn drop_last(&mut self, world: &mut World, cx: &Context) {
        if self.last.take().is_some() {
            world.last_held.remove(cx.key);
        }
    }

    // --- times and reports ---

    fn next_due(&self, world: &World, cx: &Context) -> Option<i64> {
        let protected = self.protected.as_ref();
        let exit = protected
            .and_then(|p| p.small_since_ms)
            .map(|since| since + cx.rule.exit_ms);
        let alarm = protected.map(|p| p.next_alarm_ms);
        let last = self.last.as_ref().and_then(|last| {
            last.running_since_ms?;
            Some(cx.now + last.left_ms(cx.rule, cx.now))
        });
        let forget = self.forgets_at(world, cx);
        let left = self.left.values().map(|left| left.at_ms).min();
        let left = left.map(|at| at + cx.settings.return_ms);
        let lost = self.lost().flat_map(|(_, instance, loss)| {
            let anew = world.started_ms + instance.ttl_ms;
            [
                Some(loss.not_before_ms),
                instance.from_before.then_some(anew),
            ]
        });
        let single = [self.wait_until_ms, exit, alarm, last, forget, left];
        let times = single.into_iter().chain(lost).flatten();
        times.filter(|at| *at > cx.now).min()
    }

    pub(super) fn alarm(&self, kind: AlarmKind, world: &World, cx: &Context, note: &str) -> Output {
        Output::Alarm(self.describe(kind, world, cx, note))
    }

    /// An alarm "with E, V, held, causes, source".
    pub(super) fn describe(
        &self,
        kind: AlarmKind,
        world: &World,
        cx: &Context,
        note: &str,
    ) -> Alarm {
        let report_only = world.reports_only(cx.key);
        let mut held: BTreeMap<&InstanceId, &Loss> =
            self.lost().map(|(id, _, loss)| (id, loss)).collect();
        if let Some(protected) = self.protected.as_ref().filter(|_| report_only) {
            held = protected.would_hold.iter().collect();
        }
        let mut causes = BTreeMap::new();
        for loss in held.values() {
            *causes.entry(loss.cause).or_default() += 1;
        }
        Alarm {
            kind,
            service: Some(cx.key.to_owned()),
            at_ms: cx.now,
            expected: self.expected_at(cx.rule, cx.now),
            live: self.live(),
            published: self.published(),
            sources: held.values().map(|loss| loss.source.clone()).collect(),
            oldest_loss_ms: held.values().map(|loss| loss.since_ms).min(),
            held: held.into_keys().cloned().collect(),
            causes,
            report_only,
            note: note.to_owned(),
        }
    }

    pub(super) fn report_to(&self, world: &World, cx: &Context) -> ServiceReport {
        let held = self.lost().map(|(id, instance, loss)| HeldReport {
            instance: id.clone(),
            cause: loss.cause,
            source: loss.source.clone(),
            since_ms: loss.since_ms,
            why: self.held_by(id, instance, loss, world, cx),
            refused_by: instance.refused_by.clone(),
        });
        let protected = self.protected.as_ref();
        let would_hold = protected.map(|p| p.would_hold.keys().cloned().collect());
        let last = self.last.as_ref();
        ServiceReport {
            service: cx.key.to_owned(),
            expected: self.expected_at(cx.rule, cx.now),
            published: self.published(),
            live: self.live(),
            silent: self.silent().map(|(id, _)| id.clone()).collect(),
            held: held.collect(),
            protected: protected.is_some(),
            protected_since_ms: protected.map(|p| p.since_ms),
            waits_until_ms: self.wait_until_ms,
            last_instance_left_ms: last.map(|last| last.left_ms(cx.rule, cx.now)),
            report_only: world.reports_only(cx.key),
            would_hold: would_hold.unwrap_or_default(),
            override_kind: world.override_kind(cx.key),
            threshold_percent: cx.rule.threshold_percent,
            greedy: cx.rule.greedy,
            strict: cx.rule.strict,
        }
    }
}

impl Instance {
    pub(super) fn seen(source: &str, ttl_ms: i64, from_before: bool) -> Self {
        Instance {
            sources: BTreeSet::from([source.to_owned()]),
            ttl_ms,
            from_before,
            life: Life::Live,
            announced: false,
            refused_by: BTreeSet::new(),
        }
    }

    pub(super) fn loss(&self) -> Option<&Loss> {
        match &self.life {
            Life::Lost(loss) => Some(loss),
            Life::Live | Life::Silent => None,
        }
    }
}

impl Loss {
    pub(super) fn new(cause: Cause, source: &str, now: i64) -> Self {
        Loss {
            cause,
            source: source.to_owned(),
            since_ms: now,
            not_before_ms: now,
        }
    }
}

impl LastHold {
    fn count(&mut self, runs: bool, now: i64) {
        if let Some(since) = self.running_since_ms.take() {
            self.counted_ms += now - since;
        }
        self.running_since_ms = runs.then_some(now);
    }

    fn left_ms(&self, rule: &Rule, now: i64) -> i64 {
        let running = self.running_since_ms.map_or(0, |since| now - since);
        (rule.last_instance_ms - self.counted_ms - running).max(0)
    }
}

/// "If 100·(E − a) > 40·E"; "E = 2, one loss goes", but for `strict`.
fn trips(rule: &Rule, expected: u64, left: u64) -> bool {
    let loss = expected.saturating_sub(left);
    if expected == 2 && loss == 1 && !rule.strict {
        return false;
    }
    100 * loss > rule.threshold_percent * expected
}

/// Whether a loss may count at all: an owner's removal is not judged here, a frozen source "may
/// add, not remove", the start-up rule and the stop of expiry are not over.
fn believed(instance: &Instance, loss: &Loss, world: &World, now: i64) -> bool {
    let stopped = world.expiry_stopped && loss.cause == Cause::Expired;
    loss.cause != Cause::Explicit
        && !stopped
        && !world.is_frozen(&loss.source)
        && !start_up_delays(instance, world, now)
}

/// "A record from before the start is not implicitly removed until its sources delivered a whole
/// snapshot and its own timeout passed anew."
fn start_up_delays(instance: &Instance, world: &World, now: i64) -> bool {
    let owed = || instance.sources.iter().any(|s| world.owes_snapshot(s));
    instance.from_before && (now < world.started_ms + instance.ttl_ms || owed())
}

fn all_ids(lost: &[(&InstanceId, &Instance, &Loss)]) -> Vec<InstanceId> {
    lost.iter().map(|(id, ..)| (*id).clone()).collect()
}

/// All of a service may go by its threshold: the newest loss is its last instance.
fn split_last(mut ripe: Vec<(i64, InstanceId)>) -> Verdict {
    ripe.sort();
    let last = ripe.pop();
    let others = ripe.into_iter().map(|(_, id)| id).collect();
    last.map_or(Verdict::Keep, |(_, last)| Verdict::HoldLast(others, last))
}
