//! Processes: start, stop, pause, what goes in and what comes out.

use causeway_registry::replication::ReplicationOutput;
use causeway_registry::{Node, NodeConfig, Output, Readiness, Replicator};

use super::{EPOCH, Event, World};
use crate::process::{Disk, Process};

impl World {
    /// The wall clock of a place, in milliseconds.
    pub fn wall(&self, place: usize) -> u64 {
        let wall = i64::try_from(EPOCH + self.now).unwrap_or(i64::MAX);
        u64::try_from(wall + self.places[place].wall_offset).unwrap_or(1)
    }

    /// A process starts on what its folder holds.
    pub fn start(&mut self, place: usize, lost: bool) {
        if self.places[place].process.is_some() || self.places[place].gone {
            return;
        }
        let now = self.now;
        let wall = self.wall(place);
        self.lives += 1;
        let life = self.lives;
        let zero = i64::try_from(now).unwrap_or(0)
            - i64::try_from(self.random.below(1_000_000)).unwrap_or(0);
        let here = &mut self.places[place];
        if lost {
            // The owned records are lost; what the council keeps is on every member's list.
            here.disk = Disk {
                members: std::mem::take(&mut here.disk.members),
                ..Disk::default()
            };
        }
        let local = u64::try_from(i64::try_from(now).unwrap_or(0) - zero).unwrap_or(0);
        let saved = here
            .disk
            .node
            .as_ref()
            .and_then(|bytes| postcard::from_bytes::<Node>(bytes).ok());
        let mut node = saved.unwrap_or_else(|| {
            let mut config = NodeConfig::new(here.member, wall.saturating_sub(1));
            config.digest_key = (7, 11);
            config.tombstone_age_ms = self.setup.tombstone_age_ms;
            config.tombstone_bytes = self.setup.tombstone_bytes;
            config.history = 8;
            config.empty_services = 2;
            config.cluster = true;
            Node::new(config)
        });
        node.restart(wall, local);
        if node.origin().incarnation <= here.disk.incarnation {
            // The records are older than the last life that was begun on this disk.
            node.renew_incarnation(here.disk.incarnation.saturating_add(1), local);
        }
        node.weaken_expiry(self.setup.unconditional_expiry);
        here.disk.incarnation = node.origin().incarnation;
        // A life that was begun and ended at once is one, too.
        for (origin, at) in node.logs().vector().iter() {
            if origin.member == here.member {
                let head = self.oracle.heads.entry(origin).or_insert(0);
                *head = at.max(*head);
            }
        }
        let mut replicator = Replicator::new(self.setup.replication.clone(), node.origin());
        let members = here.disk.members.clone();
        replicator.set_members(&mut node, &members, local);
        let process = Process {
            life,
            replicator,
            zero,
            started: now,
            resumed: now,
            stood: 0,
            renewed: std::collections::BTreeMap::new(),
            timer: None,
            applied: here.disk.applied,
            members,
            watchers: std::collections::BTreeMap::new(),
            owed: Vec::new(),
            retired: false,
            quarantined: Vec::new(),
            seen: here.disk.seen.clone(),
            vector: std::collections::BTreeMap::new(),
            node,
        };
        let origin = process.node.origin();
        here.process = Some(process);
        self.forget_opinions(place);
        let text = || {
            format!(
                "{place}: member {} starts with incarnation {}",
                origin.member, origin.incarnation
            )
        };
        self.trace
            .note(now, &[5, place as u64, origin.incarnation], &[], text);
        let late = self.random.below(self.setup.save_ms + 1);
        self.at(late, Event::Save { place, life });
        self.settle(place);
    }

    /// The process is gone at once. Peers learn it soon (the machine lives and resets their streams) or late.
    pub fn kill(&mut self, place: usize, machine_lives: bool) {
        let Some(process) = self.places[place].process.take() else {
            return;
        };
        self.places[place].paused = false;
        self.places[place].backlog.clear();
        let origin = process.node.origin();
        let now = self.now;
        let text = || format!("{place}: member {} is killed", origin.member);
        self.trace
            .note(now, &[6, place as u64, u64::from(machine_lives)], &[], text);
        let slowest = if machine_lives { 50 } else { 7_000 };
        for other in 0..self.places.len() {
            if other != place {
                self.break_link(place, other, slowest);
                self.network.way_mut(place, other).open = 0;
            }
        }
        self.cut_off_clients(place, slowest);
    }

    /// A stop that saves first.
    pub fn stop(&mut self, place: usize) {
        if self.places[place].paused {
            return;
        }
        self.save(place);
        self.kill(place, true);
    }

    /// The process stands still until [`World::resume`].
    pub fn pause(&mut self, place: usize) {
        if self.places[place].runs() {
            self.places[place].paused = true;
            self.places[place].paused_at = self.now;
            self.trace.note(self.now, &[7, place as u64], &[], || {
                format!("{place}: stands still")
            });
        }
    }

    /// The process goes on; everything that waited for it is handled at once.
    pub fn resume(&mut self, place: usize) {
        if !self.places[place].paused {
            return;
        }
        let now = self.now;
        let here = &mut self.places[place];
        here.paused = false;
        let stood = now.saturating_sub(here.paused_at);
        let backlog = std::mem::take(&mut here.backlog);
        if let Some(process) = &mut here.process {
            process.resumed = now;
            // A pause of less than two periods cannot be told from a late timer.
            if stood > 2_000 {
                process.stood += stood;
            }
        }
        self.trace
            .note(now, &[8, place as u64], &[], || format!("{place}: goes on"));
        // Sockets first or timers first: either can be.
        let timers_first = self.random.chance(1, 2);
        let timer = |event: &Event| matches!(event, Event::Timer { .. });
        let (first, second): (Vec<Event>, Vec<Event>) = backlog
            .into_iter()
            .partition(|event| timer(event) == timers_first);
        for event in first.into_iter().chain(second) {
            self.at(0, event);
        }
    }

    pub(super) fn timer(&mut self, place: usize, life: u64) {
        let now = self.now;
        let Some(process) = self.places[place]
            .process
            .as_mut()
            .filter(|process| process.life == life)
        else {
            return;
        };
        if process.timer.is_none_or(|due| due > now) {
            return;
        }
        process.timer = None;
        let local = process.local(now);
        process.node.handle_timeout(local);
        process.replicator.handle_timeout(&mut process.node, local);
        self.settle(place);
    }

    pub(super) fn save_on_time(&mut self, place: usize, life: u64) {
        let same = |process: &Process| process.life == life;
        if self.places[place].process.as_ref().is_some_and(same) {
            self.save(place);
            let late = self.random.between(100, self.setup.save_ms.max(101));
            self.at(late, Event::Save { place, life });
        }
    }

    /// Records, and how far the council's log is carried out in them, onto the disk.
    pub(super) fn save(&mut self, place: usize) {
        let here = &mut self.places[place];
        let Some(process) = &here.process else {
            return;
        };
        here.disk.node = postcard::to_allocvec(&process.node).ok();
        here.disk.incarnation = here.disk.incarnation.max(process.node.origin().incarnation);
        here.disk.applied = process.applied;
        here.disk.members = process.members.clone();
        here.disk.seen = process.seen.clone();
    }

    /// After every input: what the member says, what it sends, and when it wants to be called.
    pub(super) fn settle(&mut self, place: usize) {
        for _ in 0..10_000 {
            let Some(process) = self.places[place].process.as_mut() else {
                return;
            };
            if let Some(output) = process.node.poll_output() {
                self.output(place, output);
                continue;
            }
            if let Some(output) = process.replicator.poll_output() {
                self.said(place, output);
                continue;
            }
            if self.transmit(place) {
                continue;
            }
            break;
        }
        self.confirm(place);
        self.look_at_changed(place);
        self.arm(place);
    }

    /// One message to each peer whose stream has room. False when there was none.
    fn transmit(&mut self, place: usize) -> bool {
        let mut any = false;
        for there in 0..self.places.len() {
            let peer = self.places[there].member;
            let way = self.network.way(place, there);
            if there == place || way.open == 0 || way.flying >= self.setup.window {
                continue;
            }
            let Some(process) = self.places[place].process.as_mut() else {
                return false;
            };
            let message = process.replicator.poll_transmit_to(&mut process.node, peer);
            if let Some(message) = message {
                any = true;
                self.send(place, there, &message);
            }
        }
        any
    }

    fn arm(&mut self, place: usize) {
        let now = self.now;
        let late = self.random.below(10);
        let Some(process) = self.places[place].process.as_mut() else {
            return;
        };
        let wanted = [
            process.node.next_timeout(),
            process.replicator.next_timeout(),
        ];
        let Some(local) = wanted.into_iter().flatten().min() else {
            return;
        };
        let due = process.global(local).max(now) + late;
        if process.timer.is_none_or(|timer| timer > due) {
            process.timer = Some(due);
            let life = process.life;
            self.at(due - now, Event::Timer { place, life });
        }
    }

    fn output(&mut self, place: usize, output: Output) {
        let now = self.now;
        self.trace.note(now, &[9, place as u64], &[], || {
            let member = self.places[place].member;
            format!("{place}: member {member} says {}", short(&output))
        });
        match output {
            Output::Delta(delta) => self.look_at_delta(place, &delta),
            Output::LeaseExpired(lease) => {
                self.look_at_expired(place, lease);
                let Some(process) = self.places[place].process.as_mut() else {
                    return;
                };
                let empty = |info: causeway_registry::LeaseInfo| info.records == 0;
                if process.node.lease(lease).is_some_and(empty) {
                    let local = process.local(now);
                    process.node.close_lease(lease, local);
                }
            }
            Output::LeaseSilent(_) | Output::LeaseReturned(_) => {}
        }
    }

    fn said(&mut self, place: usize, output: ReplicationOutput) {
        let now = self.now;
        self.trace.note(now, &[10, place as u64], &[], || {
            let member = self.places[place].member;
            format!("{place}: member {member} says {output:?}")
        });
        self.count(name(&output));
        let Some(process) = self.places[place].process.as_mut() else {
            return;
        };
        match output {
            ReplicationOutput::Renewed(origin) => {
                process.watchers.clear();
                self.places[place].disk.incarnation = origin.incarnation;
            }
            ReplicationOutput::Forgotten { .. } => process.retired = true,
            ReplicationOutput::DuplicateMember { member, refused } => {
                let me = process.node.origin();
                if me.member == member && me.incarnation == refused {
                    process.retired = true;
                }
            }
            ReplicationOutput::QuarantineEntered { peer, .. } => process.quarantined.push(peer),
            ReplicationOutput::QuarantineLeft(peer) => {
                process.quarantined.retain(|known| *known != peer);
            }
            ReplicationOutput::ProtectionLeft => {
                let running = process.running(now);
                for renewed in process.renewed.values_mut() {
                    *renewed = running;
                }
            }
            ReplicationOutput::Readiness(Readiness::Ready) => self.look_at_ready(place),
            _ => {}
        }
    }
}

/// What a node says, in one line.
fn short(output: &Output) -> String {
    let Output::Delta(delta) = output else {
        return format!("{output:?}");
    };
    let change = |change: &causeway_registry::Change| {
        let record = &change.record;
        format!(
            "{:?} {} {} {:?} of {:?}",
            change.kind,
            record.key,
            super::streams::at(record.stamp, record.sub),
            record.health,
            record.dot,
        )
    };
    let changes: Vec<String> = delta.changes.iter().map(change).collect();
    changes.join(", ")
}

fn name(output: &ReplicationOutput) -> &'static str {
    match output {
        ReplicationOutput::Readiness(_) => "readiness",
        ReplicationOutput::PeerDown(_) => "peer down",
        ReplicationOutput::PeerUp(_) => "peer up",
        ReplicationOutput::OriginSilent(_) => "origin silent",
        ReplicationOutput::OriginReturned(_) => "origin returned",
        ReplicationOutput::OriginPast(_) => "origin past",
        ReplicationOutput::ProtectionEntered { .. } => "protection entered",
        ReplicationOutput::ProtectionLeft => "protection left",
        ReplicationOutput::MajorityLost => "majority lost",
        ReplicationOutput::MajorityRegained => "majority regained",
        ReplicationOutput::ClockAhead { .. } => "clock ahead",
        ReplicationOutput::QuarantineEntered { .. } => "quarantine entered",
        ReplicationOutput::QuarantineLeft(_) => "quarantine left",
        ReplicationOutput::Renewed(_) => "renewed",
        ReplicationOutput::Forgotten { .. } => "forgotten",
        ReplicationOutput::DuplicateMember { .. } => "duplicate member",
        ReplicationOutput::DigestMismatch(_) => "digest mismatch",
        ReplicationOutput::ExchangeDone { .. } => "exchange done",
        ReplicationOutput::Marked(_) => "marked",
        #[allow(unreachable_patterns)]
        _ => "other",
    }
}
