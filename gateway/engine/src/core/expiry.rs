//! Owners that fall silent, expire or return, and what protection makes of it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use causeway_registry::{Health, LeaseId, LeaseKind, LeaseState, RecordKey, StoreKind};

use super::registrations::{is_late, lease_of, path_of};
use super::{Core, Effects, REGISTRY, Reply, ms};
use crate::converge::Absence;
use crate::key_space::KeyCommand;
use crate::protection::{AlarmKind, Cause, Input, Output};
use crate::route::Mode;
use crate::znode_tree::TreeCommand;

/// Orders to protection that the audit remembers.
const ORDERS: usize = 1_000;

impl Core {
    pub(super) fn silent(&mut self, leases: &[LeaseId], now_ms: i64, fx: &mut Effects) {
        let mut inputs = Vec::new();
        for lease in leases {
            self.st.node.mark_lease(*lease, LeaseState::Silent);
            for instance in self.instances_of(*lease) {
                if self
                    .instance_health(&instance)
                    .is_some_and(|h| h >= Health::Silent)
                {
                    inputs.push(Input::Silent {
                        service: instance.0,
                        instance: instance.1,
                    });
                }
            }
        }
        let outputs = self.st.protection.handle_all(inputs, now_ms);
        self.carry_out(outputs, now_ms, fx);
    }

    pub(super) fn returned(&mut self, lease: LeaseId, now_ms: i64, fx: &mut Effects) {
        if !self.st.node.renew(lease, ms(now_ms)).known {
            // Over meanwhile: what is held of it stays held.
            return;
        }
        // What was held while its lease went on.
        let keys: Vec<RecordKey> = self
            .st
            .node
            .by_lease(lease)
            .map(|r| r.key.clone())
            .collect();
        for key in keys {
            self.st.node.set_health(&key, Health::Live);
            // While it was late, L was left alone.
            self.touch(&key);
        }
        let ttl_ms = self
            .st
            .node
            .lease(lease)
            .map_or(0, |l| i64::try_from(l.ttl_ms).unwrap_or(0));
        let inputs = self
            .instances_of(lease)
            .into_iter()
            .map(|(service, instance)| Input::Present {
                service,
                instance,
                source: REGISTRY.into(),
                ttl_ms,
            })
            .collect();
        let outputs = self.st.protection.handle_all(inputs, now_ms);
        self.carry_out(outputs, now_ms, fx);
    }

    fn instances_of(&self, lease: LeaseId) -> BTreeSet<(String, String)> {
        self.st
            .node
            .by_lease(lease)
            .filter_map(|r| self.st.registrations.get(&r.key))
            .filter(|r| !r.removed)
            .filter_map(|r| r.instance.clone())
            .collect()
    }

    /// Owners whose whole timeout has passed. What no rule protects goes at once; instances are judged.
    pub(super) fn expired(&mut self, leases: &[LeaseId], now_ms: i64, fx: &mut Effects) {
        let leases: BTreeSet<LeaseId> = leases
            .iter()
            .copied()
            .filter(|l| self.judged_here(*l))
            .collect();
        let mut at_once: Vec<RecordKey> = Vec::new();
        let mut instances: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for lease in &leases {
            self.st.node.mark_lease(*lease, LeaseState::Expired);
        }
        for lease in &leases {
            for key in self.owned_by(*lease) {
                let instance = self
                    .st
                    .registrations
                    .get(&key)
                    .filter(|r| !r.removed)
                    .and_then(|r| r.instance.clone());
                let Some(instance) = instance else {
                    at_once.push(key);
                    continue;
                };
                if self
                    .instance_health(&instance)
                    .is_some_and(|h| h < Health::Expired)
                {
                    // Another registration of the instance lives: it stays in the service without this one.
                    at_once.push(key);
                } else {
                    instances.entry(instance.0).or_default().insert(instance.1);
                }
            }
        }
        let mut lost: BTreeSet<LeaseId> = BTreeSet::new();
        for key in &at_once {
            let owner = self.seen(key).map_or(0, |s| s.owner);
            lost.extend(lease_of(key.store, owner).filter(|l| leases.contains(l)));
            lost.extend(self.st.node.get(key).and_then(|r| r.lease));
        }
        self.remove_judged(&at_once, now_ms, fx);
        let inputs = instances
            .into_iter()
            .map(|(service, instances)| Input::Expired {
                service,
                instances,
                source: REGISTRY.into(),
            })
            .collect();
        let outputs = self.st.protection.handle_all(inputs, now_ms);
        self.carry_out(outputs, now_ms, fx);
        for lease in leases {
            // An owner with nothing left, and one that lost something, is over; one whose records are all
            // held may still come back whole.
            let info = self.st.node.lease(lease);
            if lost.contains(&lease)
                || info.is_none_or(|i| i.records == 0 || i.state == LeaseState::Over)
            {
                self.finish(lease, now_ms, fx);
            }
        }
    }

    /// Before the take-over L judges its own sessions and leases.
    fn judged_here(&self, lease: LeaseId) -> bool {
        match lease.kind {
            LeaseKind::Session => self.mode(StoreKind::Zookeeper) != Mode::Relay,
            LeaseKind::Lease => self.mode(StoreKind::Etcd) != Mode::Relay,
            LeaseKind::Native | LeaseKind::Bridge => true,
        }
    }

    /// Everything in the view that an owner owns, registrations and general keys alike.
    fn owned_by(&self, lease: LeaseId) -> Vec<RecordKey> {
        let mut keys: BTreeSet<RecordKey> = self
            .st
            .node
            .by_lease(lease)
            .map(|r| r.key.clone())
            .collect();
        match lease.kind {
            LeaseKind::Session => {
                let paths = self.st.tree.ephemerals(lease.id);
                keys.extend(
                    paths.map(|p| RecordKey::new(StoreKind::Zookeeper, p.as_bytes().to_vec())),
                );
            }
            LeaseKind::Lease => {
                let own = self.st.keys.lease_keys(lease.id);
                keys.extend(own.map(|k| RecordKey::new(StoreKind::Etcd, k.clone())));
            }
            LeaseKind::Native | LeaseKind::Bridge => {}
        }
        keys.into_iter().collect()
    }

    /// Carries out what protection decided.
    pub(super) fn carry_out(&mut self, outputs: Vec<Output>, now_ms: i64, fx: &mut Effects) {
        let mut gone: Vec<RecordKey> = Vec::new();
        let mut living: Vec<(String, String)> = Vec::new();
        for output in outputs {
            match output {
                Output::Remove {
                    service,
                    instances,
                    cause,
                } => {
                    for id in instances {
                        let instance = (service.clone(), id);
                        let Some(keys) = self.instances.get(&instance) else {
                            continue;
                        };
                        let (go, stay): (Vec<_>, Vec<_>) =
                            keys.iter().cloned().partition(|k| self.may_go(k, cause));
                        gone.extend(go);
                        if !stay.is_empty() {
                            // A registration of it lives, whatever protection knew: it shall know.
                            living.push(instance);
                        }
                    }
                }
                Output::Hold {
                    service, instance, ..
                } => {
                    let keys: Vec<RecordKey> = self
                        .instances
                        .get(&(service, instance))
                        .into_iter()
                        .flatten()
                        .cloned()
                        .collect();
                    for key in keys {
                        if self.may_go(&key, Cause::Expired) {
                            self.st.node.set_health(&key, Health::Held);
                        }
                    }
                }
                Output::Release { service, instance } => {
                    gone.extend(self.stale_of(&(service, instance)))
                }
                Output::Refuse { why, .. } => fx.reply = Some(Reply::OrderRefused(why.to_string())),
                Output::Alarm(alarm) => {
                    if matches!(alarm.kind, AlarmKind::OrderSet | AlarmKind::OrderEnded) {
                        if self.st.orders.len() >= ORDERS {
                            self.st.orders.pop_front();
                        }
                        self.st.orders.push_back(alarm.clone());
                    }
                    fx.alarms.push(alarm);
                }
                Output::FreezeSource { source, .. } => self.freeze(&source, true, now_ms, fx),
                Output::ThawSource { source } => self.freeze(&source, false, now_ms, fx),
            }
        }
        if !gone.is_empty() {
            let leases: BTreeSet<LeaseId> = gone
                .iter()
                .filter_map(|k| self.st.node.get(k))
                .filter_map(|r| r.lease)
                .collect();
            self.remove_judged(&gone, now_ms, fx);
            for lease in leases {
                self.finish(lease, now_ms, fx);
            }
        }
        if !living.is_empty() {
            let ttl_ms = |key: &RecordKey| {
                let lease = self.st.node.get(key)?.lease?;
                i64::try_from(self.st.node.lease(lease)?.ttl_ms).ok()
            };
            let inputs = living
                .into_iter()
                .map(|instance| {
                    let ttl_ms = self
                        .instances
                        .get(&instance)
                        .into_iter()
                        .flatten()
                        .filter_map(ttl_ms)
                        .max()
                        .unwrap_or(0);
                    Input::Present {
                        service: instance.0,
                        instance: instance.1,
                        source: REGISTRY.into(),
                        ttl_ms,
                    }
                })
                .collect();
            let outputs = self.st.protection.handle_all(inputs, now_ms);
            self.carry_out(outputs, now_ms, fx);
        }
    }

    /// Registrations of an instance whose owners are gone while another of its registrations lives: the
    /// instance stays in the service without them.
    fn stale_of(&self, instance: &(String, String)) -> Vec<RecordKey> {
        if self
            .instance_health(instance)
            .is_none_or(|h| h >= Health::Expired)
        {
            return Vec::new();
        }
        let keys = self.instances.get(instance).into_iter().flatten();
        keys.filter(|k| self.st.node.get(k).is_some_and(|r| is_late(r.health)))
            .cloned()
            .collect()
    }

    fn may_go(&self, key: &RecordKey, cause: Cause) -> bool {
        cause == Cause::Explicit || self.st.node.get(key).is_none_or(|r| is_late(r.health))
    }

    fn freeze(&mut self, source: &str, frozen: bool, now_ms: i64, fx: &mut Effects) {
        let relayed = [StoreKind::Zookeeper, StoreKind::Etcd]
            .into_iter()
            .any(|s| s.name() == source && self.mode(s) == Mode::Relay);
        if frozen && (source == REGISTRY || relayed) {
            // The registry's own memory is whole by nature, and of a relayed store the verdict stands (what
            // its clients remove themselves is not told apart there): the alarm is all there is to it.
            let source = source.to_owned();
            let outputs = self
                .st
                .protection
                .handle(Input::SourceWhole { source }, now_ms);
            self.carry_out(outputs, now_ms, fx);
            return;
        }
        for (store, feed) in &mut self.st.feeds {
            if store.name() == source {
                feed.frozen = frozen;
                if frozen {
                    fx.resync.push(*store);
                }
            }
        }
        if !frozen {
            // What L was not brought to while it was not believed.
            let of_it = self
                .st
                .registrations
                .keys()
                .filter(|k| k.store.name() == source && self.st.feeds.contains_key(&k.store));
            self.dirty.extend(of_it.cloned());
        }
    }

    /// Removes what was judged: from the view under one number for each store, from N, from the books.
    pub(super) fn remove_judged(&mut self, keys: &[RecordKey], now_ms: i64, fx: &mut Effects) {
        if keys.is_empty() {
            return;
        }
        let mut judged = Vec::new();
        for key in keys {
            if let Some(record) = self.st.node.get(key) {
                judged.push((key.clone(), record.stamp));
            }
        }
        self.remove_from_view(keys, now_ms, fx);
        self.st.node.remove_all_expired(&judged, ms(now_ms));
        for key in keys {
            // What was not late (an entry of a store that lost it) goes all the same.
            self.st.node.deregister(key, ms(now_ms));
            if let Some(instance) = self.forget(key, now_ms, fx) {
                self.unindex(key, &instance);
            }
        }
    }

    /// An owner is over. What protection holds of it stays in the view.
    pub(super) fn finish(&mut self, lease: LeaseId, now_ms: i64, fx: &mut Effects) {
        match lease.kind {
            LeaseKind::Session => {
                let keep: BTreeSet<String> = self
                    .st
                    .node
                    .by_lease(lease)
                    .map(|r| path_of(&r.key))
                    .collect();
                let nothing_kept = keep.is_empty();
                if !self
                    .st
                    .tree
                    .ephemerals(lease.id)
                    .all(|p| keep.contains(&**p))
                {
                    let number = self.st.zxid.next(now_ms);
                    let command = TreeCommand::CloseSession {
                        session: lease.id,
                        keep: keep.into_iter().collect(),
                    };
                    self.apply_tree(&command, number, now_ms, fx);
                }
                if let Some(session) = self.drop_session(lease.id, now_ms) {
                    fx.close.extend(session.connection);
                    fx.over.push(session);
                }
                self.over(lease, nothing_kept, now_ms);
            }
            LeaseKind::Lease => {
                let keep: Vec<Bytes> = self
                    .st
                    .node
                    .by_lease(lease)
                    .map(|r| r.key.key.clone())
                    .collect();
                let held = !keep.is_empty();
                if self.st.keys.lease(lease.id).is_some() {
                    self.apply_keys(&KeyCommand::LeaseRevoke { id: lease.id, keep }, now_ms, fx);
                    self.end_owner(StoreKind::Etcd, lease.id, now_ms);
                    fx.leases_over.push(lease.id);
                }
                self.over(lease, !held, now_ms);
            }
            LeaseKind::Native | LeaseKind::Bridge => {
                let empty = self.st.node.by_lease(lease).next().is_none();
                self.over(lease, empty, now_ms);
            }
        }
    }

    fn over(&mut self, lease: LeaseId, empty: bool, now_ms: i64) {
        if empty {
            self.st.node.close_lease(lease, ms(now_ms));
        } else {
            self.st.node.mark_lease(lease, LeaseState::Over);
        }
    }

    /// An operator's order to protection.
    pub(super) fn order(&mut self, input: Input, now_ms: i64, fx: &mut Effects) {
        let hold = match &input {
            Input::HoldExplicit { service, order } => {
                Some((service.clone(), Some(order.expires_ms)))
            }
            Input::HoldExplicitEnd { service } => Some((service.clone(), None)),
            _ => None,
        };
        self.st.explicit_holds.retain(|_, until| *until > now_ms);
        let outputs = self.st.protection.handle(input, now_ms);
        self.carry_out(outputs, now_ms, fx);
        if let (Some((service, until)), None) = (hold, &fx.reply) {
            let service = service.unwrap_or_default();
            match until {
                Some(until) => self.st.explicit_holds.insert(service, until),
                None => self.st.explicit_holds.remove(&service),
            };
        }
        if fx.reply.is_none() {
            fx.reply = Some(Reply::None);
        }
    }

    /// The process started on a recovered state: every owner gets its whole timeout anew, and sources owe
    /// a whole snapshot before anything of theirs is removed implicitly.
    pub(super) fn started(&mut self, incarnation: u64, now_ms: i64, fx: &mut Effects) {
        self.st.node.restart(incarnation, ms(now_ms));
        if self.mode(StoreKind::Zookeeper) == Mode::TakenOver {
            // Above what was given out without the log: what clients show of it is this gateway's own.
            self.st.zxid.next(now_ms);
        }
        // What was held still is: its owner may return, and has not.
        for instance in self.st.protection.held_instances() {
            let keys: Vec<RecordKey> = self
                .instances
                .get(&instance)
                .into_iter()
                .flatten()
                .cloned()
                .collect();
            for key in keys {
                match self.st.node.get(&key).and_then(|r| r.lease) {
                    Some(lease) => self.st.node.mark_lease(lease, LeaseState::Expired),
                    None => continue,
                }
                self.st.node.set_health(&key, Health::Held);
            }
        }
        self.st
            .protection
            .set_settings(self.settings.protection.clone());
        let sources = self.st.feeds.keys().map(|s| s.name().to_owned()).collect();
        let outputs = self
            .st
            .protection
            .handle(Input::Started { sources }, now_ms);
        self.carry_out(outputs, now_ms, fx);
        for feed in self.st.feeds.values_mut() {
            *feed = super::Feed {
                frozen: feed.frozen,
                highest: feed.highest,
                ..super::Feed::default()
            };
        }
        for reg in self
            .st
            .registrations
            .values_mut()
            .filter(|r| r.absence == Absence::WhileWatched)
        {
            // Nobody watched since.
            reg.absence = Absence::StoreLost;
        }
        self.bridge_anew(now_ms, fx);
        self.unclean_at_ms = now_ms;
        self.dirty = self
            .st
            .registrations
            .keys()
            .filter(|k| self.st.feeds.contains_key(&k.store))
            .cloned()
            .collect();
    }
}
