//! Messages between members.

use causeway_registry::replication::message::Piece;
use causeway_registry::{Entry, MemberId, Message, Origin, Stamp, Value};

use super::{Event, World};
use crate::check::Invariant;

impl World {
    /// Puts a message on its way.
    pub(super) fn send(&mut self, from: usize, to: usize, message: &Message) {
        let Ok(bytes) = postcard::to_allocvec(message) else {
            self.wrong(Invariant::Protocol, format!("cannot encode {message:?}"));
            return;
        };
        self.sent[from] += bytes.len() as u64;
        let text = || format!("{from} -> {to}: {}", short(message));
        self.trace
            .note(self.now, &[1, from as u64, to as u64], &bytes, text);
        let weather = self.setup.weather;
        if !self.healed && self.random.chance(weather.repeat, 1_000) {
            self.count("messages repeated");
            let late = self.random.below(20_000);
            let event = Event::Arrive {
                from,
                to,
                epoch: 0,
                peer: self.places[from].member,
                bytes: bytes.clone(),
                stray: true,
            };
            self.at(late, event);
        }
        if !self.healed && self.random.chance(weather.loss, 1_000) {
            self.count("messages lost");
            return;
        }
        let epoch = self.network.link(from, to).epoch;
        let way = self.network.way_mut(from, to);
        if way.open != epoch {
            // The other end is gone already.
            return;
        }
        way.flying += 1;
        if way.cut {
            way.held.push_back(bytes);
            return;
        }
        self.fly(from, to, bytes);
    }

    fn fly(&mut self, from: usize, to: usize, bytes: Vec<u8>) {
        let delay = self.random.below(self.setup.delay_ms + 1);
        let epoch = self.network.link(from, to).epoch;
        let now = self.now;
        let way = self.network.way_mut(from, to);
        way.last_arrival = way.last_arrival.max(now + delay);
        let late = way.last_arrival - now;
        let event = Event::Arrive {
            from,
            to,
            epoch,
            peer: self.places[from].member,
            bytes,
            stray: false,
        };
        self.at(late, event);
    }

    /// A message arrives over a stream, or, without one, once more and late.
    pub(super) fn arrive(
        &mut self,
        from: usize,
        to: usize,
        stream: Option<u64>,
        peer: MemberId,
        bytes: &[u8],
    ) {
        if let Some(epoch) = stream {
            if self.network.link(from, to).epoch != epoch {
                return;
            }
            let way = self.network.way_mut(from, to);
            way.flying = way.flying.saturating_sub(1);
        } else if !self.network.passes(from, to) {
            return;
        }
        self.hand_over(from, to, peer, bytes);
        if self.places[from].runs() {
            // There is room on the stream again.
            self.settle(from);
        }
    }

    fn hand_over(&mut self, from: usize, to: usize, peer: MemberId, bytes: &[u8]) {
        let message = match postcard::from_bytes::<Message>(bytes) {
            Ok(message) => message,
            Err(error) => {
                self.wrong(Invariant::Protocol, format!("cannot decode: {error}"));
                return;
            }
        };
        let now = self.now;
        let Some(process) = self.places[to].process.as_mut() else {
            return;
        };
        let local = process.local(now);
        let result = process
            .replicator
            .handle_message(&mut process.node, peer, message, local);
        self.settle(to);
        if let Err(violation) = result {
            self.count("violations");
            self.violated(from, to, violation);
        }
    }

    /// A place that is used from now on tries to connect to all others that are.
    pub(super) fn connect_new(&mut self, place: usize) {
        for other in 0..self.places.len() {
            if other != place && self.places[other].member > 0 {
                let late = self.random.below(1_000);
                let (one, two) = (place, other);
                self.at(late, Event::Connect { one, two });
            }
        }
    }

    /// Both ends run and nothing is cut: a stream opens, at both ends within some time.
    pub(super) fn connect(&mut self, one: usize, two: usize) {
        let again = self.random.between(300, 1_500);
        self.at(again, Event::Connect { one, two });
        let knows = |here: usize, there: usize| {
            let there = self.places[there].member;
            self.places[here]
                .process
                .as_ref()
                .is_some_and(|process| process.members.contains(&there))
        };
        let both = self.places[one].runs() && self.places[two].runs();
        let other = self.places[one].member != self.places[two].member;
        if !both
            || !other
            || !self.network.joins(one, two)
            || self.network.link(one, two).trying
            || self.network.link(one, two).is_open()
            || !(knows(one, two) || knows(two, one))
        {
            return;
        }
        let link = self.network.link_mut(one, two);
        link.epoch += 1;
        link.trying = true;
        let epoch = link.epoch;
        for (here, there) in [(one, two), (two, one)] {
            let late = self.random.between(1, 100);
            let now = self.now;
            let back = self.network.way_mut(there, here);
            back.held.clear();
            back.flying = 0;
            // Nothing arrives at an end before it knows of the stream.
            back.last_arrival = now + late + 1;
            self.at(late, Event::Opened { here, there, epoch });
        }
    }

    pub(super) fn opened(&mut self, here: usize, there: usize, epoch: u64) {
        let link = self.network.link_mut(here, there);
        link.trying = false;
        if link.epoch != epoch {
            return;
        }
        self.network.way_mut(here, there).open = epoch;
        let now = self.now;
        let link = self.network.link_mut(here, there);
        if link.is_open() && link.is_whole() {
            link.good_since = Some(now);
        }
        let peer = self.places[there].member;
        let text = || format!("{here}: stream {epoch} to {there} is open");
        self.trace
            .note(now, &[2, here as u64, there as u64, epoch], &[], text);
        let tell_end_first = self.random.chance(1, 2);
        let Some(process) = self.places[here].process.as_mut() else {
            return;
        };
        let local = process.local(now);
        let (node, replicator) = (&mut process.node, &mut process.replicator);
        if tell_end_first {
            replicator.handle_disconnected(node, peer, local);
        }
        replicator.handle_connected(node, peer, local);
        self.settle(here);
    }

    pub(super) fn closed(&mut self, here: usize, there: usize, epoch: u64) {
        let way = self.network.way_mut(here, there);
        if way.open != epoch {
            return;
        }
        way.open = 0;
        let peer = self.places[there].member;
        let now = self.now;
        let text = || format!("{here}: stream {epoch} to {there} is gone");
        self.trace
            .note(now, &[3, here as u64, there as u64, epoch], &[], text);
        let Some(process) = self.places[here].process.as_mut() else {
            return;
        };
        let local = process.local(now);
        process
            .replicator
            .handle_disconnected(&mut process.node, peer, local);
        self.settle(here);
    }

    /// The stream between two places is gone; each end learns it within its time.
    pub(super) fn break_link(&mut self, one: usize, two: usize, slowest: u64) {
        let link = self.network.link_mut(one, two);
        let epoch = link.epoch;
        link.epoch += 1;
        link.trying = false;
        link.good_since = None;
        for (here, there) in [(one, two), (two, one)] {
            let way = self.network.way_mut(here, there);
            way.held.clear();
            way.flying = 0;
            if way.open > 0 {
                let late = self.random.below(slowest + 1);
                self.at(late, Event::Closed { here, there, epoch });
            }
        }
    }

    /// Cuts or mends one direction.
    pub fn set_cut(&mut self, from: usize, to: usize, cut: bool) {
        let now = self.now;
        let way = self.network.way_mut(from, to);
        if way.cut == cut || from == to {
            return;
        }
        way.cut = cut;
        way.cut_since = now;
        let held = std::mem::take(&mut way.held);
        let epoch = self.network.link(from, to).epoch;
        if !self.places[from].gone && !self.places[to].gone {
            let word = if cut { "cut" } else { "mended" };
            let numbers = [4, from as u64, to as u64, u64::from(cut)];
            self.trace
                .note(now, &numbers, &[], || format!("{from} -> {to} is {word}"));
        }
        let link = self.network.link_mut(from, to);
        link.good_since = (link.is_open() && link.is_whole()).then_some(now);
        if cut {
            let late = self.random.between(1_000, 8_000);
            self.at(late, Event::Stalled { from, to, epoch });
        } else {
            for bytes in held {
                self.fly(from, to, bytes);
            }
        }
    }

    /// What was sent into a cut has not been acknowledged for too long.
    pub(super) fn stalled(&mut self, from: usize, to: usize, epoch: u64) {
        let same = self.network.link(from, to).epoch == epoch;
        if same && self.network.way(from, to).cut {
            self.break_link(from, to, 4_000);
        }
    }
}

/// A message in one line.
fn short(message: &Message) -> String {
    let origin = |origin: &Origin| format!("{}.{}", origin.member, origin.incarnation);
    let list = |entries: &[Entry]| entries.iter().map(entry).collect::<Vec<_>>().join(", ");
    match message {
        Message::Heartbeat(beat) => format!(
            "heartbeat {} of {}, {:?}, {:?}",
            beat.sequence,
            origin(&beat.origin),
            beat.readiness,
            beat.origins
                .iter()
                .map(|state| (origin(&state.origin), state.through, state.floor))
                .collect::<Vec<_>>()
        ),
        Message::Batch(batch) => {
            let piece = |piece: &Piece| {
                let entries = list(&piece.entries);
                let log = origin(&piece.origin);
                format!("{log} {}..{} [{entries}]", piece.after, piece.through)
            };
            let pieces: Vec<String> = batch.pieces.iter().map(piece).collect();
            format!("batch {} {}", batch.pull, pieces.join("; "))
        }
        Message::SegmentReply(reply) => format!(
            "segment {} of {}: [{}], {} absent, known {:?}",
            reply.segment,
            reply.exchange,
            list(&reply.entries),
            reply.absent.len(),
            reply.known
        ),
        Message::DigestReply(reply) => format!("digest {} {:?}", reply.exchange, reply.known),
        Message::PartsReply(reply) => format!("parts {}", reply.exchange),
        other => format!("{other:?}"),
    }
}

fn entry(entry: &Entry) -> String {
    let health = match &entry.value {
        Value::Living { health, .. } => format!("{health:?}"),
        Value::Dead { .. } => "Dead".to_owned(),
    };
    format!(
        "{} {health} {} {}",
        entry.key,
        at(entry.stamp, entry.sub),
        entry.dot.sequence
    )
}

/// A stamp as seconds and count, its member and the sub-version.
pub(super) fn at(stamp: Stamp, sub: u32) -> String {
    let ms = (stamp.hlc >> 16).saturating_sub(super::EPOCH);
    format!("{ms}ms+{}@{}/{sub}", stamp.hlc & 0xffff, stamp.member)
}
