//! Faults: which there are, and which comes next.

use super::{Event, World};
use crate::client::Intent;
use crate::council::Decision;
use crate::process::{Disk, Place};

/// One fault, or one thing that a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A process is killed and started again.
    Crash,
    /// A process stands still.
    Pause,
    /// Something is cut.
    Cut,
    /// Something, or everything, is mended.
    Mend,
    /// A stream breaks.
    Break,
    /// A clock jumps.
    Clock,
    /// A member goes for good or joins.
    Membership,
    /// All members stop at once.
    Outage,
    /// The detector is wrong for a while.
    Rumour,
    /// A process is killed and its folder is lost.
    LostFolder,
    /// A client does something.
    Client,
}

const HOUR_MS: i64 = 3_600_000;
const YEAR_MS: i64 = 365 * 24 * HOUR_MS;

impl World {
    /// The next fault.
    pub(super) fn chaos(&mut self) {
        let weather = self.setup.weather;
        let kinds = [
            (Fault::Crash, weather.crash),
            (Fault::Pause, weather.pause),
            (Fault::Cut, weather.partition),
            (Fault::Mend, weather.partition / 2 + 1),
            (Fault::Break, weather.breaks),
            (Fault::Clock, weather.clock),
            (Fault::Membership, weather.membership),
            (Fault::Outage, weather.outage),
            (Fault::Rumour, weather.rumour),
            (Fault::LostFolder, weather.lost_folder),
            (Fault::Client, weather.clients),
        ];
        let weights: Vec<u64> = kinds.iter().map(|(_, weight)| *weight).collect();
        let at = self.random.weighted(&weights);
        if let Some((fault, _)) = kinds.get(at) {
            self.strike(*fault);
        }
    }

    /// One fault of a kind, wherever it hits.
    pub fn strike(&mut self, fault: Fault) {
        self.trace
            .note(self.now, &[13], &[], || format!("--- {fault:?}"));
        match fault {
            Fault::Crash => self.crash(false),
            Fault::LostFolder => self.crash(true),
            Fault::Pause => {
                if let Some(place) = self.any_running() {
                    self.count("pauses");
                    self.pause(place);
                    let longest = self.random.pick(&[500, 5_000, 60_000]).unwrap_or(500);
                    let late = self.random.between(100, longest);
                    self.at(late, Event::Resume { place });
                }
            }
            Fault::Cut => self.cut_something(),
            Fault::Mend => self.mend_something(),
            Fault::Break => {
                let pairs = self.network.pairs();
                if let Some((one, two)) = self.random.pick(&pairs) {
                    self.count("breaks");
                    self.break_link(one, two, 3_000);
                }
            }
            Fault::Clock => {
                if let Some(place) = self.any_place() {
                    self.count("clock jumps");
                    let by = self
                        .random
                        .pick(&[0, -200, 2_000, HOUR_MS, -HOUR_MS, YEAR_MS, -YEAR_MS])
                        .unwrap_or(0);
                    self.places[place].wall_offset = by;
                }
            }
            Fault::Membership => self.change_membership(),
            Fault::Outage => {
                self.count("outages");
                for place in 0..self.places.len() {
                    if self.places[place].process.is_some() {
                        self.kill(place, true);
                        let late = self.random.between(100, 10_000);
                        self.at(late, Event::Start { place, lost: false });
                    }
                }
            }
            Fault::Rumour => {
                if let (Some(here), Some(there)) = (self.any_running(), self.any_place()) {
                    let ms = self.random.between(1_000, 15_000);
                    self.spread_rumour(here, there, ms);
                }
            }
            Fault::Client => self.client_acts(),
        }
    }

    fn any_place(&mut self) -> Option<usize> {
        let places: Vec<usize> = (0..self.places.len())
            .filter(|place| !self.places[*place].gone)
            .collect();
        self.random.pick(&places)
    }

    fn any_running(&mut self) -> Option<usize> {
        let places: Vec<usize> = (0..self.places.len())
            .filter(|place| self.places[*place].runs())
            .collect();
        self.random.pick(&places)
    }

    fn crash(&mut self, lost: bool) {
        let Some(place) = self.any_running() else {
            return;
        };
        self.count(if lost { "lost folders" } else { "crashes" });
        match self.random.below(3) {
            0 => self.stop(place),
            1 => self.kill(place, true),
            _ => self.kill(place, false),
        }
        let longest = self.random.pick(&[1_000, 20_000, 90_000]).unwrap_or(1_000);
        let late = self.random.between(100, longest);
        self.at(late, Event::Start { place, lost });
    }

    fn cut_something(&mut self) {
        let Some(place) = self.any_place() else {
            return;
        };
        self.count("cuts");
        let all: Vec<usize> = (0..self.places.len()).collect();
        match self.random.below(6) {
            // One direction of one link.
            0 => {
                if let Some(other) = self.any_place() {
                    self.set_cut(place, other, true);
                }
            }
            // One link.
            1 => {
                if let Some(other) = self.any_place() {
                    self.set_both(place, other, true);
                }
            }
            // A member hears nobody, or nobody hears it.
            2 => {
                let outward = self.random.chance(1, 2);
                for other in all {
                    match outward {
                        true => self.set_cut(place, other, true),
                        false => self.set_cut(other, place, true),
                    }
                }
            }
            // A member is alone.
            3 => {
                for other in all {
                    self.set_both(place, other, true);
                }
            }
            // A member has lost about half of its links.
            4 => {
                for other in all {
                    if self.random.chance(1, 2) {
                        self.set_both(place, other, true);
                    }
                }
            }
            // Two halves, or one against the rest and anything in between.
            _ => {
                let side: Vec<bool> = all.iter().map(|_| self.random.chance(1, 2)).collect();
                for one in all.iter().copied() {
                    for two in one + 1..all.len() {
                        if side[one] != side[two] {
                            self.set_both(one, two, true);
                        }
                    }
                }
            }
        }
    }

    fn mend_something(&mut self) {
        if self.random.chance(1, 2) {
            self.mend_all();
        } else if let Some(place) = self.any_place() {
            for other in 0..self.places.len() {
                self.set_both(place, other, false);
            }
        }
    }

    /// Cuts or mends both directions.
    pub fn set_both(&mut self, one: usize, two: usize, cut: bool) {
        self.set_cut(one, two, cut);
        self.set_cut(two, one, cut);
    }

    /// Nothing is cut any more.
    pub fn mend_all(&mut self) {
        for (one, two) in self.network.pairs() {
            self.set_both(one, two, false);
        }
    }

    /// Cuts every link between two groups of places.
    pub fn split(&mut self, left: &[usize], right: &[usize]) {
        for one in left {
            for two in right {
                self.set_both(*one, *two, true);
            }
        }
    }

    fn change_membership(&mut self) {
        if self.council.leader.is_none() {
            return;
        }
        let size = self.council.members.len();
        if size > 3 && self.random.chance(1, 2) {
            if let Some(place) = self.any_place() {
                self.forget(place);
            }
        } else if size < 9 {
            self.join();
        }
    }

    /// A member goes for good: its process is killed, and the council takes it from the list.
    pub fn forget(&mut self, place: usize) {
        self.count("members forgotten");
        self.kill(place, true);
        let member = self.places[place].member;
        self.places[place].gone = true;
        let members = self.council.members.iter().copied();
        let left = members.filter(|known| *known != member).collect();
        self.decide(Decision::Members(left));
    }

    /// A new member in a free place.
    pub fn join(&mut self) -> Option<usize> {
        let place = self
            .places
            .iter()
            .position(|place| place.gone && place.member == 0)?;
        self.count("members joined");
        let member = self.next_member;
        self.next_member += 1;
        let mut members = self.council.members.clone();
        members.push(member);
        let disk = Disk {
            members: members.clone(),
            applied: self.council.log.len() + 1,
            ..Disk::default()
        };
        self.places[place] = Place {
            member,
            disk,
            ..Place::default()
        };
        self.connect_new(place);
        self.decide(Decision::Members(members));
        let late = self.random.between(100, 3_000);
        self.at(late, Event::Start { place, lost: false });
        Some(place)
    }

    fn client_acts(&mut self) {
        let staying: Vec<usize> = (0..self.clients.len())
            .filter(|client| self.clients[*client].intent == Intent::Stay)
            .collect();
        let client = self.random.pick(&staying);
        let act = self.random.below(12);
        match (act, client) {
            (0..=2, _) | (_, None) => {
                if staying.len() < 2 * self.setup.clients {
                    self.add_client();
                }
            }
            (3 | 4, Some(client)) => self.rewrite(client),
            (5, Some(client)) => self.die(client),
            (6 | 7, Some(client)) => self.leave(client),
            (8, Some(client)) => self.drop_one(client),
            (9, _) => self.reuse_a_key(),
            (_, Some(client)) => self.move_on(client),
        }
    }

    /// Another process begins under the keys of one that died.
    fn reuse_a_key(&mut self) {
        let dead: Vec<usize> = (0..self.clients.len())
            .filter(|client| {
                let known = &self.clients[*client];
                known.intent == Intent::Dead && !known.registrations.is_empty()
            })
            .collect();
        if let Some(client) = self.random.pick(&dead) {
            self.count("keys used again");
            let service = self.clients[client].service.clone();
            let taken = std::mem::take(&mut self.clients[client].registrations);
            let keys = taken.into_iter().map(|one| one.key).collect();
            self.add_client_with(&service, keys);
        }
    }

    /// All faults end: everything is mended, clocks are right, whoever belongs to the list runs, and an operator
    /// acknowledges what was lost.
    pub fn heal(&mut self) {
        self.healed = true;
        self.mend_all();
        self.council.operator = true;
        for place in 0..self.places.len() {
            self.resume(place);
            let wrong_clock = self.places[place].process.as_ref().is_some_and(|process| {
                let (_, wall) = process.node.clock(process.local(self.now));
                let right = super::EPOCH + self.now;
                wall.abs_diff(right) > self.setup.replication.skew_quarantine_ms
            });
            self.places[place].wall_offset = 0;
            if wrong_clock {
                // The operator puts the clock right and starts the member again.
                self.stop(place);
            }
            if !self.places[place].gone {
                let late = self.random.below(1_000);
                self.at(late, Event::Start { place, lost: false });
            }
        }
    }
}
