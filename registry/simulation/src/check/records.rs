//! Checks of records, at every change and over all members.

use std::collections::BTreeMap;

use causeway_registry::{ChangeKind, Delta, Node, RecordKey, Version};

use super::Invariant;
use crate::client::Intent;
use crate::process::Process;
use crate::world::World;

impl World {
    /// What a member says that changed.
    pub(crate) fn look_at_delta(&mut self, place: usize, delta: &Delta) {
        for change in &delta.changes {
            let key = &change.record.key;
            match change.kind {
                ChangeKind::Added | ChangeKind::Updated => {
                    self.see(place, key, change.record.version());
                }
                ChangeKind::Removed => {
                    self.count("removed by owners");
                    let moved = delta
                        .changes
                        .iter()
                        .any(|other| other.record.key == *key && !other.is_removal());
                    if !moved {
                        self.look_at_loss(place, key, "removed");
                    }
                }
                ChangeKind::Expired => {
                    self.count("removed by expiry");
                    self.look_at_verdict(place, key, change.record.version());
                    self.look_at_loss(place, key, "expired");
                }
            }
        }
    }

    /// Versions of a key never fall on one member, dead ones included.
    fn see(&mut self, place: usize, key: &RecordKey, version: Version) {
        let Some(process) = self.places[place].process.as_mut() else {
            return;
        };
        let seen = process.seen.entry(key.clone()).or_insert(version);
        let fell = version < *seen;
        let was = *seen;
        *seen = (*seen).max(version);
        let written = self.oracle.written.entry(key.clone()).or_insert(version);
        *written = (*written).max(version);
        if fell {
            let what = format!("{place}: {key} is {version:?} after {was:?}");
            self.wrong(Invariant::NoResurrection, what);
        }
    }

    /// An expiry removes what was judged, as it was judged.
    fn look_at_verdict(&mut self, place: usize, key: &RecordKey, version: Version) {
        let judged = self
            .oracle
            .judged
            .get(key)
            .is_some_and(|stamps| stamps.contains(&version.stamp));
        let Some(process) = &self.places[place].process else {
            return;
        };
        // A life that is over takes what is left of it along, without a tombstone.
        let Some(tombstone) = process.node.tombstone(key) else {
            return;
        };
        let later = tombstone.stamp > version.stamp;
        if !judged || later {
            let what = format!(
                "{place}: {key} was removed at {version:?}, by {:?}, judged: {judged}",
                tombstone.version()
            );
            self.wrong(Invariant::ConditionalExpiry, what);
        }
    }

    /// A record went although its client is there, and holder and member are joined.
    fn look_at_loss(&mut self, place: usize, key: &RecordKey, how: &str) {
        let Some(client) = self.owner_of(key) else {
            return;
        };
        let known = &self.clients[client];
        let (Some(connection), Some(since)) = (known.connection, known.held_since) else {
            return;
        };
        let hops = self.hops(place);
        let Some(hops) = hops.get(&connection.place) else {
            return;
        };
        let bound = self.setup.detection_ms(*hops + 1);
        let settled = self.now.saturating_sub(since) > bound;
        if settled && self.is_answered(client) && self.serves(place) {
            let holder = connection.place;
            let what = format!("{place}: {key} {how}, but client {client} keeps it at {holder}");
            self.wrong(Invariant::LivingVisible, what);
        }
    }

    /// The client that wants the key to be there.
    fn owner_of(&self, key: &RecordKey) -> Option<usize> {
        self.clients.iter().position(|client| {
            client.intent == Intent::Stay && client.registrations.iter().any(|one| one.key == *key)
        })
    }

    /// The client got an answer lately, from a process that still runs and serves.
    fn is_answered(&self, client: usize) -> bool {
        let Some(connection) = self.clients[client].connection else {
            return false;
        };
        let answered = connection
            .answered_at
            .is_some_and(|at| self.now.saturating_sub(at) < 2 * self.setup.ping_ms);
        let same = self.places[connection.place]
            .process
            .as_ref()
            .is_some_and(|process| process.life == connection.life);
        answered && same && self.serves(connection.place)
    }

    /// Members that are joined to a place by links which have been good for as long as a change may take over them, with
    /// the number of links.
    pub(crate) fn hops(&self, from: usize) -> BTreeMap<usize, u64> {
        let mut hops = BTreeMap::from([(from, 0)]);
        let mut edge = vec![from];
        while let Some(here) = edge.pop() {
            let Some(far) = hops.get(&here).copied() else {
                continue;
            };
            for there in 0..self.places.len() {
                if !hops.contains_key(&there) && self.is_joined(here, there) {
                    hops.insert(there, far + 1);
                    edge.insert(0, there);
                }
            }
        }
        hops
    }

    fn is_joined(&self, one: usize, two: usize) -> bool {
        let bound = self.setup.detection_ms(1) + 1_000;
        let long = |since: u64| self.now.saturating_sub(since) > bound;
        let good = self.network.link(one, two).good_since.is_some_and(long);
        let works = |place: usize, other: usize| {
            let other = self.places[other].member;
            self.serves(place)
                && self.places[place].process.as_ref().is_some_and(|process| {
                    long(process.resumed) && !process.quarantined.contains(&other)
                })
        };
        one != two && good && works(one, two) && works(two, one)
    }

    /// Looks at everything, and at pairs of members.
    pub(crate) fn sweep(&mut self) {
        for place in 0..self.places.len() {
            self.look_at_place(place);
            let Some(process) = &self.places[place].process else {
                continue;
            };
            for (key, version) in versions(process) {
                self.see(place, &key, version);
            }
        }
        self.look_at_pairs();
        self.look_at_living();
        self.look_at_merging();
    }

    /// The cheap part of the above, after every input of a member.
    pub(crate) fn look_at_changed(&mut self, place: usize) {
        let Some(process) = &self.places[place].process else {
            return;
        };
        let me = process.node.origin();
        let own = process.node.logs().vector().get(me);
        let head = self.oracle.heads.entry(me).or_insert(0);
        *head = own.max(*head);
        if let Some(what) = super::places::floors(&process.node) {
            self.wrong(Invariant::FloorsBelow, format!("{place}: {what}"));
        }
    }

    /// What one member's positions cover and it does not have, somebody has superseded; equal versions are equal values.
    fn look_at_pairs(&mut self) {
        let mut faults = Vec::new();
        for one in &self.places {
            let Some(here) = &one.process else { continue };
            for two in &self.places {
                let Some(there) = &two.process else { continue };
                if here.life == there.life {
                    continue;
                }
                let found = pair(here, there, &self.oracle.written);
                let members = (one.member, two.member);
                faults.extend(
                    found.map(|(invariant, what)| {
                        (invariant, format!("members {members:?}: {what}"))
                    }),
                );
            }
        }
        for (invariant, what) in faults {
            self.wrong(invariant, what);
        }
    }

    /// Every registration that has been confirmed for long enough is on every member that is joined to its holder.
    fn look_at_living(&mut self) {
        let mut faults = Vec::new();
        let mut hops: BTreeMap<usize, BTreeMap<usize, u64>> = BTreeMap::new();
        for (number, client) in self.clients.iter().enumerate() {
            let (Some(connection), Some(since)) = (client.connection, client.held_since) else {
                continue;
            };
            if client.intent != Intent::Stay || !self.is_answered(number) {
                continue;
            }
            let reach = hops
                .entry(connection.place)
                .or_insert_with(|| self.hops(connection.place));
            for (place, far) in reach.iter() {
                let Some(process) = &self.places[*place].process else {
                    continue;
                };
                let bound = self.setup.detection_ms(*far + 1);
                let long = |at: u64| self.now.saturating_sub(at) > bound;
                if !long(since) {
                    continue;
                }
                for one in &client.registrations {
                    let Some((content, stamp)) = one.acked.filter(|_| long(one.acked_at)) else {
                        continue;
                    };
                    let record = process.node.get(&one.key);
                    if record.is_none_or(|record| record.stamp < stamp) {
                        faults.push(format!(
                            "{place}: {} with content {content} of client {number} at {} is missing, there is {:?}",
                            one.key,
                            connection.place,
                            record.map(|record| record.version())
                        ));
                    }
                }
            }
        }
        for what in faults {
            self.wrong(Invariant::LivingVisible, what);
        }
    }

    /// A member begins to serve: what every member that it is connected to has had since before it started, it shows.
    pub(crate) fn look_at_ready(&mut self, place: usize) {
        let Some(process) = &self.places[place].process else {
            return;
        };
        let waited = self.now.saturating_sub(process.started);
        if waited >= self.setup.replication.warming_ms {
            return;
        }
        let peers: Vec<usize> = (0..self.places.len())
            .filter(|other| *other != place && self.serves(*other))
            .filter(|other| self.network.link(place, *other).is_open())
            .filter(|other| {
                self.places[*other]
                    .process
                    .as_ref()
                    .is_some_and(|peer| peer.resumed < process.started)
            })
            .collect();
        let members = self.council.members.len();
        if (peers.len() + 1) * 2 <= members || peers.is_empty() {
            return;
        }
        let mut faults = Vec::new();
        for (number, client) in self.clients.iter().enumerate() {
            if client.intent != Intent::Stay || !self.is_answered(number) {
                continue;
            }
            for one in &client.registrations {
                let Some((_, stamp)) = one.acked.filter(|_| one.acked_at < process.started) else {
                    continue;
                };
                let known = |other: &usize| {
                    self.places[*other].process.as_ref().is_some_and(|peer| {
                        peer.node
                            .get(&one.key)
                            .is_some_and(|record| record.stamp >= stamp)
                    })
                };
                if peers.iter().all(known) && process.node.get(&one.key).is_none() {
                    faults.push(format!("{place}: serves, but does not show {}", one.key));
                }
            }
        }
        for what in faults {
            self.wrong(Invariant::Subscribers, what);
        }
    }

    /// Two members' values merge to the same, whichever takes the other's, and once is as good as twice.
    fn look_at_merging(&mut self) {
        // On copies, so it costs: now and then.
        if !self.random.chance(1, 16) {
            return;
        }
        let running: Vec<usize> = (0..self.places.len())
            .filter(|place| self.places[*place].process.is_some())
            .collect();
        let (Some(one), Some(two)) = (self.random.pick(&running), self.random.pick(&running))
        else {
            return;
        };
        let fault = match (&self.places[one].process, &self.places[two].process) {
            (Some(here), Some(there)) if one != two => merging(&here.node, &there.node),
            _ => None,
        };
        if let Some(what) = fault {
            self.wrong(Invariant::MergeLaws, format!("{one} and {two}: {what}"));
        }
    }
}

/// Every version that a member holds, of records and tombstones.
fn versions(process: &Process) -> Vec<(RecordKey, Version)> {
    let records = process
        .node
        .records()
        .map(|record| (record.key.clone(), record.version()));
    let tombstones = process
        .node
        .tombstones()
        .map(|tombstone| (tombstone.key.clone(), tombstone.version()));
    records.chain(tombstones).collect()
}

fn version(node: &Node, key: &RecordKey) -> Option<Version> {
    let record = node.get(key).map(|record| record.version());
    record.or_else(|| node.tombstone(key).map(|tombstone| tombstone.version()))
}

/// The first thing that is wrong between what `there` holds and what `here` says it knows.
fn pair(
    here: &Process,
    there: &Process,
    written: &BTreeMap<RecordKey, Version>,
) -> Option<(Invariant, String)> {
    let logs = here.node.logs();
    for record in there.node.records() {
        let mine = here.node.get(&record.key);
        if let Some(mine) = mine
            && (mine.version(), mine.dot) == (record.version(), record.dot)
            && (mine.body != record.body || mine.health != record.health)
        {
            let what = format!("{} has two values at {:?}", record.key, record.version());
            return Some((Invariant::MergeLaws, what));
        }
        let covered = logs.vector().covers(record.dot) && !logs.is_past(record.dot.origin);
        if !covered {
            continue;
        }
        let newest = written.get(&record.key).copied().unwrap_or_default();
        let superseded = newest > record.version();
        if version(&here.node, &record.key).is_none_or(|mine| mine < record.version())
            && !superseded
        {
            let what = format!(
                "{} is covered at {:?}, but not here: {:?}",
                record.key,
                record.dot,
                record.version()
            );
            return Some((Invariant::NoGaps, what));
        }
    }
    None
}

fn merging(one: &Node, two: &Node) -> Option<String> {
    let (left, right) = (merged(one, two)?, merged(two, one)?);
    for (key, version) in &left.0 {
        if let Some(other) = right.0.get(key)
            && other != version
            // A holder answers a verdict on what it hears by writing it again.
            && [version, other].iter().all(|result| {
                [one, two].iter().any(|node| self::version(node, key).as_ref() == Some(*result))
            })
        {
            return Some(format!("{key} becomes {version:?} or {other:?}"));
        }
    }
    (left.1 + right.1 > 0).then(|| "the same values are taken twice".to_owned())
}

/// The keys that both have, after one took the other's values, and how many a second time would change.
fn merged(into: &Node, from: &Node) -> Option<(BTreeMap<RecordKey, Version>, usize)> {
    let mut into = into.clone();
    let member = into.origin().member;
    let keys: Vec<RecordKey> = from
        .records()
        .map(|record| record.key.clone())
        .chain(from.tombstones().map(|tombstone| tombstone.key.clone()))
        .filter(|key| version(&into, key).is_some())
        .collect();
    let entries: Vec<_> = keys
        .iter()
        .filter_map(|key| from.entry(key))
        // Its own earlier lives are written again, which is another matter.
        .filter(|entry| entry.dot.origin.member != member)
        .filter(|entry| !into.logs().is_past(entry.dot.origin))
        .collect();
    let keys: Vec<RecordKey> = entries.iter().map(|entry| entry.key.clone()).collect();
    into.merge(entries.clone(), 0).ok()?;
    let again = into.merge(entries, 0).ok()?.taken;
    let versions = keys
        .into_iter()
        .filter_map(|key| Some((key.clone(), version(&into, &key)?)))
        .collect();
    Some((versions, again))
}
