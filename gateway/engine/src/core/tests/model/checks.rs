//! What has to hold after every step, and at rest.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use causeway_registry::{Health, RecordKey, StoreKind};

use super::world::World;
use crate::core::{Command, Core, Effects};
use crate::key_space::EventKind as KeyEventKind;
use crate::key_watch::{StreamId, WatchSpec, WatchStart};
use crate::phase::{Census, LegacyCopy, Phase};
use crate::route::Mode;
use crate::watch::{Fired, WatcherId};

const ROOT: &str = "/services";

/// What a client with a persistent watch believes, built from events alone.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    znodes: BTreeMap<String, (Option<Bytes>, i64)>,
    pairs: BTreeMap<Bytes, (Bytes, i64)>,
}

fn znodes(core: &Core) -> BTreeMap<String, (Option<Bytes>, i64)> {
    let tree = core.tree();
    let below = tree.descendants(ROOT).into_iter().map(|p| p.to_string());
    let all = below.chain(tree.contains(ROOT).then(|| ROOT.to_owned()));
    all.filter_map(|path| {
        let node = tree.node(&path)?;
        Some((path, (node.data().cloned(), node.stat().mzxid)))
    })
    .collect()
}

fn pairs(core: &Core) -> BTreeMap<Bytes, (Bytes, i64)> {
    let (key, end) = (
        Bytes::from_static(b"orders/"),
        Bytes::from_static(b"orders0"),
    );
    core.keys()
        .pairs(&key, &end)
        .map(|kv| (kv.key.clone(), (kv.value.clone(), kv.lease)))
        .collect()
}

impl Mirror {
    pub(super) fn watch(&mut self, core: &mut Core) {
        self.znodes = znodes(core);
        self.pairs = pairs(core);
        core.tree_watches().add_recursive(WatcherId(1), ROOT);
        let spec = WatchSpec {
            watch_id: 1,
            key: Bytes::from_static(b"orders/"),
            range_end: Bytes::from_static(b"orders0"),
            start: WatchStart::Now,
            no_put: false,
            no_delete: false,
            prev_kv: false,
        };
        let (table, space) = core.key_watches();
        table.create(StreamId(1), spec, space);
    }

    /// No event without a visible change, no visible change without an event.
    pub(super) fn follow(&mut self, core: &Core, fx: &Effects) -> Result<(), String> {
        let now = znodes(core);
        for Fired { event, .. } in &fx.tree_events {
            let path = event.path.to_string();
            let (before, after) = (self.znodes.get(&path), now.get(&path));
            if before == after && before.is_some() {
                return Err(format!("an event without a change: {event:?}"));
            }
            match after {
                Some(after) => self.znodes.insert(path, after.clone()),
                None => self.znodes.remove(&path),
            };
        }
        let data =
            |map: &BTreeMap<String, (Option<Bytes>, i64)>| -> BTreeMap<String, Option<Bytes>> {
                map.iter()
                    .map(|(k, (v, _))| (k.clone(), v.clone()))
                    .collect()
            };
        if data(&self.znodes) != data(&now) {
            return Err("znodes changed without an event".to_owned());
        }
        // Numbers of L alone may move without an event.
        self.znodes = now;
        let mut last = 0;
        for dispatch in &fx.key_events {
            if dispatch.revision < last {
                return Err("revisions of events fall".to_owned());
            }
            last = dispatch.revision;
            for event in dispatch.delivery.events.iter() {
                match event.kind {
                    KeyEventKind::Put => {
                        self.pairs.insert(
                            event.kv.key.clone(),
                            (event.kv.value.clone(), event.kv.lease),
                        );
                    }
                    KeyEventKind::Delete => {
                        if self.pairs.remove(&event.kv.key).is_none() {
                            return Err(format!("a phantom delete of {:?}", event.kv.key));
                        }
                    }
                }
            }
        }
        if self.pairs != pairs(core) {
            return Err("pairs changed without an event".to_owned());
        }
        Ok(())
    }
}

/// The part in which two machines differ that shall be equal.
pub(super) fn difference(a: &Core, b: &Core) -> Option<String> {
    fn encoded<T: serde::Serialize>(value: &T) -> Vec<u8> {
        postcard::to_stdvec(value).expect("encodes")
    }
    fn parts(core: &Core) -> Vec<(&'static str, Vec<u8>)> {
        let st = &core.st;
        let records: Vec<_> = st
            .node
            .records()
            .map(|r| (&r.key, &*r.body, r.lease, r.health, r.stamp))
            .collect();
        let leases: Vec<_> = st
            .node
            .leases()
            .into_iter()
            .map(|id| {
                (
                    id,
                    st.node.lease(id).map(|l| {
                        (
                            l.ttl_ms,
                            l.records,
                            l.state == causeway_registry::LeaseState::Over,
                        )
                    }),
                )
            })
            .collect();
        vec![
            ("phase", encoded(&st.phase)),
            ("zxid", encoded(&st.zxid)),
            ("revision", encoded(&st.revision)),
            ("registrations", encoded(&st.registrations)),
            ("records", encoded(&records)),
            ("leases", encoded(&leases)),
            ("tree", encoded(&st.tree)),
            ("keys", encoded(&st.keys)),
            ("sessions", encoded(&st.sessions)),
            ("protection", encoded(&st.protection)),
            ("ended", encoded(&st.ended)),
            ("feeds", encoded(&st.feeds)),
            ("instances", encoded(&core.instances)),
        ]
    }
    for ((name, left), (_, right)) in parts(a).into_iter().zip(parts(b)) {
        if left != right {
            let mut text = name.to_owned();
            for (key, reg) in &a.st.registrations {
                if b.st.registrations.get(key) != Some(reg) {
                    text += &format!("\n  {key}: {reg:?}\n  {:?}", b.st.registrations.get(key));
                }
            }
            for record in a.st.node.records() {
                let other = b.st.node.get(&record.key);
                if other.is_none_or(|o| {
                    (o.health, o.stamp, o.lease) != (record.health, record.stamp, record.lease)
                }) {
                    let brief = |r: &causeway_registry::Record| (r.health, r.stamp, r.lease);
                    text += &format!(
                        "\n  {}: {:?} {:?}",
                        record.key,
                        brief(record),
                        other.map(brief)
                    );
                }
            }
            for id in a.st.node.leases().into_iter().chain(b.st.node.leases()) {
                let (left, right) = (a.st.node.lease(id), b.st.node.lease(id));
                if left != right {
                    text += &format!("\n  {id}: {left:?} {right:?}");
                }
            }
            return Some(text);
        }
    }
    None
}

impl World {
    /// Per service, how many instances are in the view.
    pub(super) fn published(&self) -> BTreeMap<String, u64> {
        self.core
            .protection()
            .services()
            .into_iter()
            .map(|s| (s.service, s.published))
            .collect()
    }

    /// Keys of instances in the view.
    pub(super) fn seen_instances(&self) -> BTreeSet<RecordKey> {
        self.core.instances.values().flatten().cloned().collect()
    }

    pub(super) fn in_view(&self, key: &Bytes) -> Option<Bytes> {
        match self.kind {
            StoreKind::Zookeeper => {
                let path = String::from_utf8_lossy(key).into_owned();
                self.core
                    .tree()
                    .node(&path)
                    .map(|n| n.data().cloned().unwrap_or_default())
            }
            _ => self.core.keys().get(key).map(|kv| kv.value.clone()),
        }
    }

    /// Implicit removals stay within the bound.
    pub(super) fn check_protection(&self, command: &Command, before: &BTreeMap<String, u64>) {
        let implicit = matches!(
            command,
            Command::Expired(_)
                | Command::Tick
                | Command::Legacy { .. }
                | Command::Silent(_)
                | Command::Returned(_)
        );
        if !implicit || self.mode() == Mode::Relay {
            return;
        }
        for report in self.core.protection().services() {
            let was = before.get(&report.service).copied().unwrap_or(0);
            let (e, p) = (report.expected, report.published);
            if p < was && e > 2 && p > 0 && 100 * e.saturating_sub(p) > 40 * e {
                self.fail(&format!(
                    "{} fell from {was} to {p} of {e} by {command:?}",
                    report.service
                ));
            }
        }
    }

    /// After every step.
    pub(super) fn check(&self) {
        self.check_index();
        self.check_bridge();
        if self.mode() == Mode::Relay {
            return;
        }
        for (n, client) in self.clients.iter().enumerate() {
            let key = self.key(n);
            let Some(value) = client
                .wants
                .as_ref()
                .filter(|_| client.alive && !client.disputed)
            else {
                continue;
            };
            match self.in_view(&key) {
                None => self.fail(&format!(
                    "client {n} lives and is not seen: {:?}",
                    self.registration(&key)
                )),
                Some(seen) if seen != *value => self.fail(&format!(
                    "client {n} wrote {value:?}, seen is {seen:?}: {:?}",
                    self.registration(&key)
                )),
                Some(_) => {}
            }
        }
        for key in &self.gone {
            if self.in_view(key).is_some() {
                self.fail(&format!(
                    "{key:?} was removed and is seen: {:?}",
                    self.registration(key)
                ));
            }
        }
    }

    fn registration(&self, key: &Bytes) -> impl std::fmt::Debug + '_ {
        self.core.st.registrations.get(&self.record_key(key))
    }

    /// Every instance that a bridge covers is shown in the other layout, once, and nothing else is.
    fn check_bridge(&self) {
        let core = &self.core;
        let mut wanted = BTreeSet::new();
        for ((service, _), keys) in &core.instances {
            if service != "services/billing" {
                continue;
            }
            let shown = keys
                .iter()
                .any(|k| core.projections.get(k).is_some_and(|p| !p.is_empty()));
            if !shown {
                self.fail(&format!("{keys:?} is not bridged"));
            }
            wanted.extend(
                keys.iter()
                    .filter_map(|k| core.projections.get(k))
                    .flatten()
                    .cloned(),
            );
        }
        let there: BTreeSet<RecordKey> = core
            .st
            .registrations
            .iter()
            .filter(|(_, r)| {
                !r.removed
                    && r.instance
                        .as_ref()
                        .is_some_and(|i| i.0.ends_with("orders-of-billing"))
            })
            .map(|(k, _)| k.clone())
            .collect();
        if wanted != there {
            self.fail(&format!("bridged are {there:?}, wanted {wanted:?}"));
        }
    }

    /// The books agree with the view and with N.
    fn check_index(&self) {
        let mut rebuilt: BTreeMap<(String, String), BTreeSet<RecordKey>> = BTreeMap::new();
        for (key, reg) in self
            .core
            .st
            .registrations
            .iter()
            .filter(|(_, r)| !r.removed)
        {
            if let Some(instance) = &reg.instance {
                rebuilt
                    .entry(instance.clone())
                    .or_default()
                    .insert(key.clone());
            }
            if !self.core.in_view(key) {
                self.fail(&format!(
                    "{key} is in the books and not in the view: {reg:?}"
                ));
            }
        }
        if rebuilt != self.core.instances {
            self.fail(&format!(
                "the index of instances is {:?}, the books say {rebuilt:?}",
                self.core.instances
            ));
        }
        let records: BTreeSet<&RecordKey> = self.core.node().records().map(|r| &r.key).collect();
        let known: BTreeSet<&RecordKey> = self
            .core
            .st
            .registrations
            .iter()
            .filter(|(_, r)| !r.removed)
            .map(|(k, _)| k)
            .collect();
        if let Some(stray) = records.difference(&known).next() {
            self.fail(&format!("N holds {stray}, the books do not"));
        }
        if let Some(lacking) = known
            .difference(&records)
            .find(|k| self.core.mode(k.store) != Mode::Relay)
        {
            self.fail(&format!(
                "N lacks {lacking}: {:?}",
                self.core.st.registrations.get(*lacking)
            ));
        }
        let published: u64 = self
            .core
            .protection()
            .services()
            .iter()
            .map(|s| s.published)
            .sum();
        let indexed = u64::try_from(self.core.instances.len()).expect("small");
        if published != indexed {
            self.fail(&format!(
                "protection counts {published} instances, the index {indexed}"
            ));
        }
    }

    /// At rest.
    pub(super) fn check_rest(&mut self) {
        self.check();
        let phase = self.core.phase().phase();
        let relay = self.mode() == Mode::Relay;
        if self.legacy_lags() {
            self.fail("L lags at rest");
        }
        let held: BTreeSet<Bytes> = self
            .core
            .node()
            .records()
            .filter(|r| matches!(r.health, Health::Held | Health::Expired))
            .map(|r| r.key.key.clone())
            .collect();
        let mut trouble = Vec::new();
        if relay {
            for (key, entry) in self.legacy.entries() {
                if self.in_view(key).as_ref() != Some(&entry.value) {
                    trouble.push(format!("the relayed view lacks {key:?}"));
                }
            }
            // In `proxy` nothing is written to L but what its clients write.
            let bridged: BTreeSet<&RecordKey> = self.core.projections.values().flatten().collect();
            let own = self
                .seen_instances()
                .into_iter()
                .filter(|k| k.store == self.kind);
            for key in own.filter(|k| phase != Phase::Proxy || !bridged.contains(k)) {
                if self.legacy.get(&key.key).is_none() {
                    trouble.push(format!(
                        "the relayed view has {key}, L does not: {:?} {:?} {:?}",
                        self.core.st.registrations.get(&key),
                        self.core.dirty.contains(&key),
                        self.core.st.feeds
                    ));
                }
            }
        } else {
            let gates = self.core.gates(Census::None, Vec::new(), self.now);
            if gates.backlog > 0 || !gates.differences.is_empty() || !gates.unhealthy.is_empty() {
                trouble.push(format!(
                    "gates: {gates:?}; dirty {:?}",
                    self.core.all_dirty(10)
                ));
                for key in self.core.differing.keys() {
                    trouble.push(format!(
                        "  {key}: {:?} {:?}",
                        self.core.st.registrations.get(key),
                        self.core.node().get(key)
                    ));
                }
                for key in self.core.all_dirty(3) {
                    trouble.push(format!(
                        "  {key}: {:?}",
                        self.core.st.registrations.get(&key)
                    ));
                }
            }
            for (n, client) in self.clients.iter().enumerate() {
                let key = self.key(n);
                let living = client
                    .wants
                    .as_ref()
                    .filter(|_| client.alive && !client.disputed);
                let there = self.legacy.get(&key);
                match (living, phase.legacy_copy()) {
                    (Some(value), LegacyCopy::BeforeReply | LegacyCopy::Converges)
                        if there.map(|e| &e.value) != Some(value) =>
                    {
                        trouble.push(format!(
                            "L lacks client {n}'s: {there:?} {:?}",
                            self.registration(&key)
                        ));
                    }
                    (_, LegacyCopy::Withdrawn) if there.is_some() => {
                        trouble.push(format!(
                            "L still has client {n}'s: {there:?} {:?}",
                            self.registration(&key)
                        ));
                    }
                    _ => {}
                }
                if self.gone.contains(&key) && there.is_some() && phase != Phase::Done {
                    trouble.push(format!(
                        "L has what client {n} removed: {:?}",
                        self.registration(&key)
                    ));
                }
            }
        }
        if phase.legacy_copy() != LegacyCopy::Untouched && !(relay && phase == Phase::Proxy) {
            let core = &self.core;
            let mine = core
                .projections
                .values()
                .flatten()
                .filter(|k| k.store == self.kind);
            let mine: BTreeSet<Bytes> = mine.map(|k| k.key.clone()).collect();
            let there: BTreeSet<Bytes> = self
                .legacy
                .entries()
                .filter(|(_, e)| e.owner == super::world::OWN)
                .map(|(k, _)| k.clone())
                .collect();
            let want = if phase.legacy_copy() == LegacyCopy::Withdrawn {
                BTreeSet::new()
            } else {
                mine
            };
            let live: BTreeSet<&Bytes> = want.iter().filter(|k| !held.contains(*k)).collect();
            if !there.iter().collect::<BTreeSet<_>>().is_superset(&live) || !there.is_subset(&want)
            {
                trouble.push(format!("bridged in L are {there:?}, wanted {want:?}"));
            }
        }
        for (n, direct) in self.direct.iter().enumerate() {
            let key = self.direct_key(n);
            match &direct.wants {
                Some(value) if direct.alive => {
                    if self.in_view(&key).as_ref() != Some(value) {
                        trouble.push(format!(
                            "direct writer {n} is not seen as it wrote: {:?}",
                            self.registration(&key)
                        ));
                    }
                }
                _ => {
                    if self.in_view(&key).is_some() && !held.contains(&key) {
                        trouble.push(format!(
                            "direct writer {n} is dead and seen: {:?}",
                            self.registration(&key)
                        ));
                    }
                }
            }
        }
        for (n, client) in self.clients.iter().enumerate() {
            let key = self.key(n);
            if client.owner.is_none()
                && client.wants.is_none()
                && self.in_view(&key).is_some()
                && !held.contains(&key)
            {
                trouble.push(format!(
                    "client {n} is gone and seen: {:?}",
                    self.registration(&key)
                ));
            }
        }
        if !trouble.is_empty() {
            self.fail(&format!("at rest:\n{}", trouble.join("\n")));
        }
    }
}
