//! Phase steps: what each changes here, and the evidence for the next.

use std::collections::BTreeMap;

use causeway_registry::{LeaseId, RecordKey, StoreKind};

use super::{Core, Effects, Store, ticks};
use crate::phase::{Census, Forced, Gates, Move, Phase, Refusal, Step};
use crate::protection::Input;
use crate::route::Mode;

/// Differences between L and N, each since when; volatile.
pub(super) type Differing = BTreeMap<RecordKey, i64>;

impl Core {
    /// While L judges, protection only reports.
    pub(super) fn report_only(&mut self, now_ms: i64) {
        let on = self.settings.has_legacy() && !self.st.phase.taken_over();
        let input = Input::ReportOnly {
            prefix: String::new(),
            on,
        };
        self.st.protection.handle(input, now_ms);
    }

    pub(super) fn take_step(&mut self, step: &Step, now_ms: i64, fx: &mut Effects) {
        self.st.phase.take(step);
        if step.kind == Move::TakeOver {
            self.take_over(now_ms, fx);
        }
        if self.st.phase.phase().legacy_copy() == crate::phase::LegacyCopy::Withdrawn {
            for reg in self.st.registrations.values_mut().filter(|r| !r.imported) {
                // From now on it is ours to take out of L, also if a step back comes first.
                reg.letting_go = true;
            }
        }
        self.revise_view(now_ms, fx);
        let all: Vec<RecordKey> = self.st.registrations.keys().cloned().collect();
        for key in all {
            self.touch(&key);
        }
        self.unclean_at_ms = now_ms;
    }

    /// Numbers, sessions and leases become Causeway's own.
    fn take_over(&mut self, now_ms: i64, fx: &mut Effects) {
        let slot = ticks(self.st.node.config().member);
        if self.settings.zookeeper == Store::Legacy {
            let seen = self.st.tree.last_zxid();
            self.st.zxid.own(slot, seen, now_ms);
        }
        if self.settings.etcd == Store::Legacy {
            let seen = self.st.keys.revision();
            self.st.revision.own(slot, seen, now_ms);
            self.st.keys.raise_revision(self.st.revision.last());
        }
        let sessions: Vec<(i64, u32)> = self
            .st
            .sessions
            .iter()
            .map(|s| (s.id, s.timeout_ms))
            .collect();
        for (id, timeout_ms) in sessions {
            let doubtful = self.st.sessions.get(id).is_some_and(|s| s.lost && !s.bound);
            if doubtful && self.st.tree.ephemerals(id).next().is_none() {
                // Either its client removed what it had registered, or L did because the session ended there. L
                // is asked when the client comes back: the session is adopted from it, or expired.
                if let Some(session) = self.st.sessions.close(id) {
                    fx.close.extend(session.connection);
                }
                continue;
            }
            self.own(LeaseId::session(id), u64::from(timeout_ms), now_ms, fx);
        }
        let lost_leases = std::mem::take(&mut self.st.lost_leases);
        let leases: Vec<(i64, i64)> = self.st.keys.leases().map(|(id, l)| (id, l.ttl_s)).collect();
        for (id, ttl_s) in leases {
            if lost_leases.contains(&id) && self.st.keys.lease_keys(id).next().is_none() {
                self.apply_keys(
                    &crate::key_space::KeyCommand::ForgetLease { id },
                    now_ms,
                    fx,
                );
                self.st.bound_leases.remove(&id);
                // As with sessions: the next keep-alive asks L.
                continue;
            }
            let ttl_ms = u64::try_from(ttl_s.max(1))
                .unwrap_or(1)
                .saturating_mul(1000);
            self.own(LeaseId::lease(id), ttl_ms, now_ms, fx);
        }
        // What nobody here speaks for was written to L directly.
        let unowned: Vec<RecordKey> = self
            .st
            .registrations
            .iter()
            .filter(|(k, r)| {
                r.legacy.is_some()
                    && r.bridge_of.is_none()
                    && self.st.node.get(k).is_none_or(|n| n.lease.is_none())
            })
            .map(|(k, _)| k.clone())
            .collect();
        for key in unowned {
            if let Some(reg) = self.st.registrations.get_mut(&key) {
                reg.imported = reg.node.is_owned();
            }
        }
        self.report_only(now_ms);
    }

    /// Compares the view before and after, and changes only what differs.
    fn revise_view(&mut self, now_ms: i64, fx: &mut Effects) {
        let mut hide = Vec::new();
        let mut show = Vec::new();
        for (key, reg) in &self.st.registrations {
            if self.settings.store(key.store) != Store::Legacy
                || self.mode(key.store) == Mode::Relay
            {
                continue;
            }
            match (self.in_view(key), self.shall_be_visible(key, reg)) {
                (true, false) => hide.push(key.clone()),
                (false, true) => show.push(key.clone()),
                _ => {}
            }
        }
        self.remove_from_view(&hide, now_ms, fx);
        for key in show {
            self.show_legacy(&key, now_ms, fx);
        }
        // In `mirror` reached from `proxy`, N is filled from what L has shown so far.
        if self.st.phase.phase().writes_new() || self.st.phase.taken_over() {
            let lacking: Vec<RecordKey> = self
                .st
                .registrations
                .iter()
                .filter(|(k, r)| {
                    !r.removed && k.store != StoreKind::Native && self.st.node.get(k).is_none()
                })
                .map(|(k, _)| k.clone())
                .collect();
            for key in lacking {
                self.sync_present(&key, super::registrations::From::Same, now_ms, fx);
            }
        }
        // A step back to `proxy` before the take-over empties N again: an attempt that was rolled back
        // must not be believed later.
        if self.st.phase.phase() == Phase::Proxy && !self.st.phase.taken_over() {
            let filled: Vec<RecordKey> = self
                .st
                .node
                .records()
                .filter(|r| self.mode(r.key.store) == Mode::Relay)
                .map(|r| r.key.clone())
                .collect();
            for key in filled {
                self.st.node.deregister(&key, super::ms(now_ms));
            }
        }
    }

    /// Judges a move with the gates as they are.
    pub fn judge(
        &self,
        kind: Move,
        gates: &Gates,
        force: Option<&Forced>,
        actor: &str,
        reason: &str,
        now_ms: i64,
    ) -> Result<Step, Refusal> {
        self.st
            .phase
            .judge(kind, gates, force, actor, reason, now_ms)
    }

    /// The gates' values. What only the shell can see is passed in.
    pub fn gates(&self, census: Census, still_on_legacy: Vec<String>, now_ms: i64) -> Gates {
        let tolerated = self.settings.tolerated_difference_ms;
        Gates {
            differences: self
                .differing
                .iter()
                .filter(|(_, since)| now_ms - **since >= tolerated)
                .map(|(k, _)| crate::layout::redact(&k.key))
                .collect(),
            backlog: self.unsettled(),
            unhealthy: self.unhealthy(),
            held: self.held(),
            clean_for_ms: now_ms - self.unclean_at_ms,
            gate_time_ms: self.settings.gate_time_ms,
            census,
            still_on_legacy,
            unsafe_directories: self.unsafe_directories(),
        }
    }

    /// Registrations whose wanted state L has not reached.
    fn unsettled(&self) -> usize {
        let relay_only = !self.st.phase.taken_over();
        if relay_only {
            return 0;
        }
        self.dirty
            .iter()
            .filter(|k| self.st.feeds.get(&k.store).is_some_and(|f| !f.frozen))
            .count()
    }

    fn unhealthy(&self) -> Vec<String> {
        self.st
            .feeds
            .iter()
            .filter(|(_, f)| !f.whole || f.frozen)
            .map(|(s, f)| {
                let why = match (&f.trouble, f.frozen) {
                    (Some(trouble), _) => trouble.clone(),
                    (None, true) => "frozen by the source brake".into(),
                    (None, false) => "no whole snapshot yet".into(),
                };
                format!("{}: {why}", s.name())
            })
            .collect()
    }

    pub(super) fn held(&self) -> usize {
        self.st.protection.held_count()
    }

    /// Owned directories that hold nodes with sequential names, each with the number of creations there: the
    /// next sequence number.
    pub fn sequence_directories(&self) -> Vec<(String, i32)> {
        let mut out = BTreeMap::new();
        for key in self
            .st
            .registrations
            .keys()
            .filter(|k| k.store == StoreKind::Zookeeper)
        {
            let path = super::registrations::path_of(key);
            let Some((directory, name)) = path.rsplit_once('/') else {
                continue;
            };
            let sequential = name.len() >= 10
                && name
                    .get(name.len() - 10..)
                    .is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()));
            if let Some(node) = self.st.tree.node(directory).filter(|_| sequential) {
                out.insert(directory.to_owned(), node.creations());
            }
        }
        out.into_iter().collect()
    }

    /// Directories of services that hold locks or elections.
    fn unsafe_directories(&self) -> Vec<String> {
        let mut out = std::collections::BTreeSet::new();
        for key in self
            .st
            .registrations
            .keys()
            .filter(|k| k.store == StoreKind::Zookeeper)
        {
            let path = super::registrations::path_of(key);
            if let Some((dir, name)) = path
                .rsplit_once('/')
                .filter(|(_, name)| crate::layout::looks_like_lock(name))
            {
                out.insert(format!("{dir} (holds {name}, a lock or election)"));
            }
        }
        out.into_iter().collect()
    }

    /// Looks at what differs between L and N, and at everything else that has to stay clean. Volatile, and
    /// called about once a second; costs a pass over the registrations.
    pub fn review(&mut self, now_ms: i64) {
        if !self.settings.has_legacy() {
            return;
        }
        let mut now_differing = Differing::new();
        let compares = self.st.phase.phase().writes_new() && self.st.phase.phase() < Phase::Drain;
        if compares {
            for (key, reg) in &self.st.registrations {
                if !self.st.feeds.get(&key.store).is_some_and(|f| f.whole) {
                    continue;
                }
                let new = self.st.node.get(key);
                let held = new.is_some_and(|r| super::registrations::is_late(r.health));
                let same = match (&reg.legacy, new) {
                    _ if held => true,
                    (Some(l), Some(n)) => {
                        l.value.clone().unwrap_or_default() == n.body.value && !reg.removed
                    }
                    (None, None) => true,
                    _ => false,
                };
                if !same {
                    now_differing.insert(
                        key.clone(),
                        self.differing.get(key).copied().unwrap_or(now_ms),
                    );
                }
            }
        }
        self.differing = now_differing;
        let tolerated = self.settings.tolerated_difference_ms;
        let differs = self
            .differing
            .values()
            .any(|since| now_ms - since >= tolerated);
        if differs || self.held() > 0 || !self.unhealthy().is_empty() {
            self.unclean_at_ms = now_ms;
        }
    }

    /// What a step would make clients see: registrations that appear or go.
    pub fn preview(&self, to: Phase) -> Vec<String> {
        let reads = to.reads();
        let mut out = Vec::new();
        for (key, reg) in &self.st.registrations {
            if self.settings.store(key.store) != Store::Legacy || reg.removed {
                continue;
            }
            let in_new = self.st.node.get(key).is_some();
            let in_legacy = reg.legacy.is_some();
            let after = match reads {
                crate::phase::Reads::Legacy => in_legacy,
                crate::phase::Reads::Union => in_legacy || in_new,
                crate::phase::Reads::New => in_new,
            };
            let name = crate::layout::redact(&key.key);
            match (self.in_view(key), after) {
                (true, false) => out.push(format!("{name} goes (only the legacy store has it)")),
                (false, true) => out.push(format!("{name} appears")),
                _ => {}
            }
        }
        out
    }
}
