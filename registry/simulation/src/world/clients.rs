//! What clients do, and what members answer them.

use causeway_registry::{LeaseId, RecordKey};

use super::{Event, World};
use crate::client::{Client, Connection, Intent, Registration, Reply, Request, content, key};
use crate::process::Owed;

/// How many messages may go unanswered.
const PATIENCE: u64 = 3;

/// How long a removal waits for a second member before the disk is good enough, in milliseconds.
const STORE_MS: u64 = 50;

impl World {
    /// A client with one to three instances, which connects soon.
    pub fn add_client(&mut self) -> usize {
        let service = format!("service{}", self.random.below(self.setup.services));
        let count = self.random.between(1, 3);
        let keys = (0..count)
            .map(|_| {
                self.next_instance += 1;
                key(&service, self.next_instance)
            })
            .collect();
        self.add_client_with(&service, keys)
    }

    /// A client that registers these keys.
    pub fn add_client_with(&mut self, service: &str, keys: Vec<RecordKey>) -> usize {
        let client = self.clients.len();
        self.next_content += 1;
        let content = self.next_content;
        let registration = |key| Registration {
            key,
            content,
            acked: None,
            acked_at: 0,
        };
        self.clients.push(Client {
            lease: LeaseId::native(i64::try_from(client).unwrap_or(0) + 1),
            service: service.to_owned(),
            registrations: keys.into_iter().map(registration).collect(),
            intent: Intent::Stay,
            connection: None,
            claim: 0,
            held_since: None,
            ended_at: 0,
            payload: self.setup.payload,
            wake: 0,
            bound_to: None,
        });
        let late = self.random.below(1_000);
        self.wake_in(client, late);
        client
    }

    fn wake_in(&mut self, client: usize, late: u64) {
        self.clients[client].wake += 1;
        let wake = self.clients[client].wake;
        self.at(late, Event::Wake { client, wake });
    }

    pub(super) fn wake(&mut self, client: usize, wake: u64) {
        let known = &self.clients[client];
        let over = matches!(known.intent, Intent::Dead | Intent::Done);
        if known.wake != wake || over {
            return;
        }
        let connected = known.connection.is_some();
        if let Some(connection) = &mut self.clients[client].connection {
            connection.missed += 1;
            if connection.missed > PATIENCE {
                self.let_go(client);
            }
        }
        if self.clients[client].connection.is_none() {
            self.choose(client);
        }
        let moved = !connected
            || self.clients[client]
                .connection
                .is_some_and(|c| c.missed == 1 && c.answered_at.is_none());
        self.speak(client, moved);
        let ping = self.setup.ping_ms;
        self.wake_in(client, ping);
    }

    fn let_go(&mut self, client: usize) {
        let known = &mut self.clients[client];
        known.connection = None;
        known.held_since = None;
    }

    fn choose(&mut self, client: usize) {
        let candidates: Vec<usize> = (0..self.places.len())
            .filter(|place| self.council.members.contains(&self.places[*place].member))
            .filter(|place| !self.places[*place].gone)
            .filter(|place| self.clients[client].bound_to.is_none_or(|to| to == *place))
            .collect();
        let Some(place) = self.random.pick(&candidates) else {
            return;
        };
        self.connections += 1;
        let life = self.places[place].process.as_ref().map_or(0, |p| p.life);
        self.clients[client].connection = Some(Connection {
            number: self.connections,
            place,
            life,
            missed: 1,
            answered_at: None,
        });
    }

    /// The client says to its member what it wants.
    fn speak(&mut self, client: usize, moved: bool) {
        let ttl_ms = self.setup.ttl_ms();
        let known = &self.clients[client];
        let request = match known.intent {
            Intent::Leave => Request::Leave {
                lease: known.lease,
                ttl_ms,
                claim: known.claim,
            },
            _ => Request::Keep {
                moved,
                lease: known.lease,
                ttl_ms,
                claim: known.claim,
                records: known.records(),
            },
        };
        self.ask(client, request);
    }

    fn ask(&mut self, client: usize, request: Request) {
        let Some(connection) = self.clients[client].connection else {
            return;
        };
        let Connection {
            number,
            place,
            life,
            ..
        } = connection;
        let up = self.places[place]
            .process
            .as_ref()
            .is_some_and(|process| process.life == life);
        let late = self.random.between(1, 5);
        if up {
            let event = Event::Request {
                client,
                connection: number,
                place,
                life,
                request,
            };
            self.at(late, event);
        } else {
            self.answer(client, number, Reply::Refused);
        }
    }

    fn answer(&mut self, client: usize, connection: u64, reply: Reply) {
        let late = self.random.between(1, 5);
        let event = Event::Reply {
            client,
            connection,
            reply,
        };
        self.at(late, event);
    }

    /// Streams of clients end with the process.
    pub(super) fn cut_off_clients(&mut self, place: usize, slowest: u64) {
        for client in 0..self.clients.len() {
            if let Some(connection) = self.clients[client].connection
                && connection.place == place
            {
                self.clients[client].held_since = None;
                let late = self.random.below(slowest + 1);
                let connection = connection.number;
                self.at(late, Event::Broken { client, connection });
            }
        }
    }

    pub(super) fn broken(&mut self, client: usize, connection: u64) {
        let same = |known: Connection| known.number == connection;
        if self.clients[client].connection.is_some_and(same) {
            self.let_go(client);
            let late = self.random.below(2_000);
            self.wake_in(client, late);
        }
    }

    /// A member handles a client's message.
    pub(super) fn request(
        &mut self,
        client: usize,
        connection: u64,
        place: usize,
        life: u64,
        request: Request,
    ) {
        let serves = self.serves(place);
        let now = self.now;
        let Some(process) = self.places[place]
            .process
            .as_mut()
            .filter(|process| process.life == life)
        else {
            return;
        };
        if !serves {
            self.answer(client, connection, Reply::Refused);
            return;
        }
        // A removal of a connection that its client gave up is not carried out any more: the member reads the end
        // of the connection first.
        let stands = self.clients[client]
            .connection
            .is_some_and(|known| known.number == connection);
        let local = process.local(now);
        let reply = match request {
            Request::Keep {
                moved,
                lease,
                ttl_ms,
                claim,
                records,
            } => {
                let known = process.node.renew(lease, local).known;
                if moved || !known {
                    process.node.adopt_lease(lease, ttl_ms, claim, local);
                }
                let running = process.running(now);
                process.renewed.insert(lease, running);
                // What else is under the lease here, its client took away where this member could not hear of it.
                let surplus: Vec<RecordKey> = process
                    .node
                    .by_lease(lease)
                    .map(|record| record.key.clone())
                    .filter(|key| !records.iter().any(|(wanted, _, _)| wanted == key))
                    .collect();
                for key in surplus {
                    process.node.deregister(&key, local);
                }
                let mut kept = Vec::new();
                for (key, content, body) in records {
                    let held = process.node.get(&key);
                    // An older message that was overtaken by a newer one of the same client elsewhere: the client's
                    // next message puts it right, and this one must not undo it meanwhile.
                    let overtaken = held.is_some_and(|record| {
                        record.lease == Some(lease)
                            && crate::client::content(&record.body)
                                .is_some_and(|have| have > content)
                    });
                    if overtaken {
                        continue;
                    }
                    let written =
                        process
                            .node
                            .register_claimed(key.clone(), body, Some(lease), claim, local);
                    if let Ok(stamp) = written {
                        kept.push((key, content, stamp));
                    }
                }
                Some(Reply::Kept(kept))
            }
            Request::Leave {
                lease,
                ttl_ms,
                claim,
            } if stands => {
                process.node.adopt_lease(lease, ttl_ms, claim, local);
                process.node.close_lease(lease, local);
                process.renewed.remove(&lease);
                self.owe(place, client, connection);
                None
            }
            Request::Drop { key, claim } if stands => {
                process.node.observe_clock(claim, local);
                process.node.deregister(&key, local);
                Some(Reply::Dropped)
            }
            Request::Leave { .. } | Request::Drop { .. } => None,
        };
        if let Some(reply) = reply {
            self.answer(client, connection, reply);
        }
        self.settle(place);
    }

    fn owe(&mut self, place: usize, client: usize, connection: u64) {
        let until = self.now + STORE_MS;
        let Some(process) = self.places[place].process.as_mut() else {
            return;
        };
        let life = process.life;
        let sequence = process.node.logs().vector().get(process.node.origin());
        process.owed.push(Owed {
            client,
            connection,
            sequence,
            until,
        });
        self.at(STORE_MS, Event::Confirm { place, life });
    }

    /// Removals are confirmed when a second member has them.
    pub(super) fn confirm(&mut self, place: usize) {
        let Some(process) = self.places[place].process.as_mut() else {
            return;
        };
        if process.owed.is_empty() {
            return;
        }
        let stored = |owed: &Owed| process.replicator.stored_by(owed.sequence) > 0;
        let (done, rest) = process.owed.iter().copied().partition(stored);
        process.owed = rest;
        let done: Vec<Owed> = done;
        for owed in done {
            self.answer(owed.client, owed.connection, Reply::Left);
        }
    }

    /// Nobody answered in time: the disk has to do.
    pub(super) fn confirm_on_time(&mut self, place: usize, life: u64) {
        let now = self.now;
        let Some(process) = self.places[place]
            .process
            .as_mut()
            .filter(|process| process.life == life)
        else {
            return;
        };
        let late = |owed: &Owed| owed.until <= now;
        let (done, rest): (Vec<Owed>, Vec<Owed>) = process.owed.iter().copied().partition(late);
        process.owed = rest;
        if !done.is_empty() {
            self.save(place);
        }
        for owed in done {
            self.answer(owed.client, owed.connection, Reply::Left);
        }
    }

    pub(super) fn reply(&mut self, client: usize, connection: u64, reply: Reply) {
        let now = self.now;
        let known = &mut self.clients[client];
        let over = matches!(known.intent, Intent::Dead | Intent::Done);
        let Some(open) = known
            .connection
            .as_mut()
            .filter(|open| open.number == connection && !over)
        else {
            return;
        };
        match reply {
            Reply::Kept(kept) => {
                let place = open.place;
                let text = || {
                    let one =
                        |(key, content, stamp): &(RecordKey, u64, causeway_registry::Stamp)| {
                            format!("{key}={content} {}", super::streams::at(*stamp, 0))
                        };
                    let kept: Vec<String> = kept.iter().map(one).collect();
                    format!("client {client}: {place} keeps {}", kept.join(", "))
                };
                self.trace
                    .note(now, &[14, client as u64, place as u64], &[], text);
                open.missed = 0;
                open.answered_at = Some(now);
                known.held_since.get_or_insert(now);
                for (key, content, stamp) in kept {
                    known.claim = known.claim.max(stamp.hlc);
                    let one = known.registrations.iter_mut().find(|one| one.key == key);
                    if let Some(one) = one
                        && one.acked != Some((content, stamp))
                        && one.acked.is_none_or(|(_, old)| old <= stamp)
                    {
                        one.acked = Some((content, stamp));
                        one.acked_at = now;
                    }
                }
            }
            Reply::Left => {
                if known.intent == Intent::Leave {
                    known.intent = Intent::Done;
                    known.ended_at = now;
                    known.connection = None;
                }
            }
            Reply::Dropped => open.answered_at = Some(now),
            Reply::Refused => {
                self.let_go(client);
                let late = self.random.between(200, 1_000);
                self.wake_in(client, late);
            }
        }
    }

    /// The client writes something new into one of its registrations.
    pub fn rewrite(&mut self, client: usize) {
        self.next_content += 1;
        let content = self.next_content;
        let at = self.random.index(self.clients[client].registrations.len());
        if let Some(one) = self.clients[client].registrations.get_mut(at) {
            one.content = content;
        }
        self.speak_now(client);
    }

    /// The client takes one of its registrations away, and keeps the others.
    pub fn drop_one(&mut self, client: usize) {
        let known = &mut self.clients[client];
        if known.registrations.len() < 2 || known.connection.is_none() {
            return;
        }
        let Some(one) = known.registrations.pop() else {
            return;
        };
        let claim = known.claim;
        self.oracle.dropped.insert(one.key.clone(), self.now);
        self.ask(
            client,
            Request::Drop {
                key: one.key,
                claim,
            },
        );
    }

    /// The client goes to another member by itself.
    pub fn move_on(&mut self, client: usize) {
        self.let_go(client);
        self.wake_in(client, 0);
    }

    /// The client dies without a word.
    pub fn die(&mut self, client: usize) {
        let now = self.now;
        let known = &mut self.clients[client];
        known.intent = Intent::Dead;
        known.ended_at = now;
        known.connection = None;
        known.held_since = None;
    }

    /// The client takes everything away and ends.
    pub fn leave(&mut self, client: usize) {
        self.clients[client].intent = Intent::Leave;
        self.clients[client].ended_at = self.now;
        self.clients[client].held_since = None;
        self.speak_now(client);
    }

    fn speak_now(&mut self, client: usize) {
        if self.clients[client].connection.is_some() {
            self.speak(client, false);
        }
    }

    /// The content that a member shows for a key.
    pub fn shown(&self, place: usize, key: &RecordKey) -> Option<u64> {
        let process = self.places[place].process.as_ref()?;
        content(&process.node.get(key)?.body)
    }
}
