//! The client's side of a stream, without a socket or a clock: what shall be registered and watched, and what has
//! to be said so that a member does it.
//!
//! Calls that wish ([`Session::register`], [`Session::deregister`], [`Session::watch`], [`Session::unwatch`],
//! [`Session::refresh`]) may come at any time. With a stream: [`Session::connected`], then [`Session::handle`] for
//! each message and [`Session::handle_timeout`] when [`Session::next_timeout`] says, then
//! [`Session::disconnected`]. After each call the messages of [`Session::poll_send`] are sent, and the events of
//! [`Session::poll_event`] passed on. Times are milliseconds of a clock that never goes back.

use std::collections::{BTreeMap, VecDeque};

use causeway_registry::api::{ClientSettings, native_key};
use causeway_registry::{Revision, Stamp};
use causeway_registry_proto::digest::digest;
use causeway_registry_proto::v1::{self, client_message, server_message};

/// Heartbeats that may stay without an answer before the member is given up.
pub(crate) const MISSED: u32 = 3;
/// How long a member may take to say Welcome.
const WELCOME_MS: u64 = 5_000;

/// An instance of a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) service: String,
    pub(crate) instance: String,
}

/// What became of something.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// The instance is registered.
    Registered(Key),
    /// A member refused the instance, for now or for good.
    Refused(Key, v1::Failure),
    /// The instance is not registered any more.
    Deregistered(Key),
    /// A member refused to take the instance away.
    Kept(Key, v1::Failure),
    /// The service has changed.
    Update(v1::ServiceUpdate),
    /// The member follows the service for this client from now on.
    Watching(String),
    /// A member does not follow the service for this client.
    NotWatched(String, v1::Failure),
    /// The whole list that was asked for.
    Refreshed(v1::ServiceUpdate),
    /// What members ask of their clients.
    Settings(ClientSettings),
    /// The stream is of no use any more; the text says why. Another member is to be taken.
    GiveUp(String),
}

#[derive(Clone, Debug)]
struct Wanted {
    registration: v1::Registration,
    /// As the member it was last registered with said.
    stamp: Option<Stamp>,
    /// It is registered with the lease that the token stands for.
    held: bool,
    refused: bool,
}

#[derive(Clone, Debug)]
enum Asked {
    Register(Key),
    Deregister(Key),
    Watch(String),
    Refresh,
}

#[derive(Debug, Default)]
struct Link {
    welcomed: bool,
    began: u64,
    next_ping: u64,
    unanswered: u32,
    /// Nothing that was asked before the last ping was still unanswered by then: its digest is exact.
    exact: bool,
    asked: BTreeMap<u64, Asked>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Session {
    namespace: String,
    ttl_ms: u64,
    settings: ClientSettings,
    token: u64,
    next_id: u64,
    wanted: BTreeMap<Key, Wanted>,
    /// To be taken away, with the stamp it had.
    leaving: BTreeMap<Key, Option<Stamp>>,
    /// Watched services, with the mark of what was seen last.
    watched: BTreeMap<String, Option<Revision>>,
    link: Option<Link>,
    out: VecDeque<v1::ClientMessage>,
    events: VecDeque<Event>,
}

impl Session {
    /// Of a client that wants nothing yet. `ttl_ms` 0: the member's default.
    pub(crate) fn new(namespace: String, ttl_ms: u64) -> Self {
        Session {
            namespace,
            ttl_ms,
            settings: ClientSettings::default(),
            token: 0,
            next_id: 1,
            wanted: BTreeMap::new(),
            leaving: BTreeMap::new(),
            watched: BTreeMap::new(),
            link: None,
            out: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    pub(crate) fn register(&mut self, key: Key, registration: v1::Registration) {
        self.leaving.remove(&key);
        let wanted = Wanted {
            registration,
            stamp: None,
            held: false,
            refused: false,
        };
        self.wanted.insert(key.clone(), wanted);
        if self.welcomed() {
            self.send_registration(&key);
        }
    }

    /// The instance shall go. If it was never registered it just is not wanted any more.
    pub(crate) fn deregister(&mut self, key: &Key) {
        let stamp = self.wanted.remove(key).and_then(|wanted| wanted.stamp);
        self.leaving.insert(key.clone(), stamp);
        if self.welcomed() {
            self.send_removal(key);
        }
    }

    /// The instance is not wanted any more, and nobody waits for it to go: the next heartbeat's digest lacks it.
    pub(crate) fn forget(&mut self, key: &Key) {
        self.wanted.remove(key);
    }

    pub(crate) fn watch(&mut self, service: &str) {
        self.watched.insert(service.into(), None);
        if self.welcomed() {
            self.send_watch(service);
        }
    }

    pub(crate) fn unwatch(&mut self, service: &str) {
        if self.watched.remove(service).is_some() && self.welcomed() {
            let left = v1::Watching {
                namespace: self.namespace.clone(),
                service: service.into(),
            };
            self.send(client_message::What::Unwatch(left), None);
        }
    }

    /// Asks for a service in full, if a member is there to be asked.
    pub(crate) fn refresh(&mut self, service: &str) {
        if self.welcomed() {
            let wanted = v1::DiscoverRequest {
                namespace: self.namespace.clone(),
                service: service.into(),
            };
            self.send(client_message::What::Discover(wanted), Some(Asked::Refresh));
        }
    }

    /// What was seen of a service does not fit together: the member is to say everything again.
    pub(crate) fn start_over(&mut self, service: &str) {
        if self.watched.contains_key(service) {
            self.watch(service);
        }
    }

    /// There is a new stream.
    pub(crate) fn connected(&mut self, now: u64) {
        self.out.clear();
        self.link = Some(Link {
            began: now,
            ..Link::default()
        });
        let hello = v1::Hello {
            token: self.token,
            ttl_ms: self.ttl_ms,
        };
        self.send(client_message::What::Hello(hello), None);
    }

    /// The stream is gone.
    pub(crate) fn disconnected(&mut self) {
        self.link = None;
        self.out.clear();
    }

    /// True between a member's Welcome and the end of its stream.
    pub(crate) fn welcomed(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.welcomed)
    }

    pub(crate) fn handle(&mut self, message: v1::ServerMessage, now: u64) {
        use server_message::What;
        let v1::ServerMessage { id, what } = message;
        let Some(link) = &mut self.link else {
            return;
        };
        // Whatever it says, it lives.
        link.unanswered = 0;
        let asked = link.asked.remove(&id);
        match (what, asked) {
            (Some(What::Welcome(welcome)), _) => self.welcome(welcome, now),
            (Some(What::Settings(settings)), _) => self.take_settings(settings, now),
            (Some(What::Pong(pong)), _) => self.pong(&pong),
            (Some(What::Registered(reply)), Some(Asked::Register(key))) => {
                let stamp = reply.stamp.and_then(|stamp| stamp.try_into().ok());
                if let Some(wanted) = self.wanted.get_mut(&key) {
                    wanted.stamp = stamp;
                    wanted.held = true;
                    wanted.refused = false;
                    self.events.push_back(Event::Registered(key));
                }
            }
            (Some(What::Deregistered(_)), Some(Asked::Deregister(key))) => {
                self.leaving.remove(&key);
                self.events.push_back(Event::Deregistered(key));
            }
            (Some(What::Watching(_)), Some(Asked::Watch(service))) => {
                self.events.push_back(Event::Watching(service));
            }
            (Some(What::Update(update)), None) => {
                if let Some(seen) = self.watched.get_mut(&update.service) {
                    *seen = update.revision.map(Revision::from);
                    self.events.push_back(Event::Update(update));
                }
            }
            (Some(What::Update(update)), Some(_)) => {
                self.events.push_back(Event::Refreshed(update));
            }
            (Some(What::Failure(failure)), Some(asked)) => match asked {
                Asked::Register(key) => {
                    if let Some(wanted) = self.wanted.get_mut(&key) {
                        wanted.refused = true;
                        wanted.held = false;
                        // It may be what was refused: a clock can be far behind the last member's.
                        wanted.stamp = None;
                        self.events.push_back(Event::Refused(key, failure));
                    }
                }
                Asked::Deregister(key) => {
                    self.leaving.remove(&key);
                    self.events.push_back(Event::Kept(key, failure));
                }
                Asked::Watch(service) => {
                    self.events.push_back(Event::NotWatched(service, failure));
                }
                Asked::Refresh => {}
            },
            (Some(What::Move(_)), _) => {
                let why = "the member asks its clients to go to another one";
                self.events.push_back(Event::GiveUp(why.into()));
            }
            // Of a later version, or about what is not wanted any more.
            _ => {}
        }
    }

    /// Lets time pass: heartbeats, members that do not answer.
    pub(crate) fn handle_timeout(&mut self, now: u64) {
        let heartbeat = self.heartbeat_ms();
        let Some(link) = &mut self.link else {
            return;
        };
        if !link.welcomed {
            if now.saturating_sub(link.began) >= WELCOME_MS {
                let why = "the member does not say Welcome";
                self.events.push_back(Event::GiveUp(why.into()));
            }
            return;
        }
        if now < link.next_ping {
            return;
        }
        if link.unanswered >= MISSED {
            let why = format!("the member left {MISSED} heartbeats without an answer");
            self.events.push_back(Event::GiveUp(why));
            return;
        }
        link.unanswered += 1;
        link.next_ping = now + heartbeat;
        let refused: Vec<Key> = self
            .wanted
            .iter()
            .filter(|(_, wanted)| wanted.refused)
            .map(|(key, _)| key.clone())
            .collect();
        self.ping();
        for key in refused {
            self.send_registration(&key);
        }
    }

    /// When [`Session::handle_timeout`] has something to do.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        let link = self.link.as_ref()?;
        Some(if link.welcomed {
            link.next_ping
        } else {
            link.began + WELCOME_MS
        })
    }

    pub(crate) fn poll_send(&mut self) -> Option<v1::ClientMessage> {
        self.out.pop_front()
    }

    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Instances that are wanted, or are to be taken away.
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.wanted
            .keys()
            .chain(self.leaving.keys())
            .cloned()
            .collect()
    }

    fn welcome(&mut self, welcome: v1::Welcome, now: u64) {
        let resumed = welcome.token == self.token;
        self.token = welcome.token;
        if let Some(link) = &mut self.link {
            link.welcomed = true;
            link.next_ping = now;
        }
        if let Some(settings) = welcome.settings {
            self.take_settings(settings, now);
        }
        let keys: Vec<Key> = self.wanted.keys().cloned().collect();
        for key in keys {
            if let Some(wanted) = self.wanted.get_mut(&key) {
                wanted.held &= resumed;
                // What the member still holds is confirmed by one digest.
                if !wanted.held {
                    self.send_registration(&key);
                }
            }
        }
        let leaving: Vec<Key> = self.leaving.keys().cloned().collect();
        for key in leaving {
            self.send_removal(&key);
        }
        let watched: Vec<String> = self.watched.keys().cloned().collect();
        for service in watched {
            self.send_watch(&service);
        }
    }

    fn take_settings(&mut self, settings: v1::Settings, now: u64) {
        let settings = ClientSettings::from(settings);
        // A member of another version may ask for what this one cannot do.
        if !settings.faults().is_empty() {
            return;
        }
        self.settings = settings;
        let heartbeat = self.heartbeat_ms();
        if let Some(link) = &mut self.link {
            link.next_ping = link.next_ping.min(now + heartbeat);
        }
        self.events.push_back(Event::Settings(settings));
    }

    /// The member keeps registrations for three of its heartbeats at least.
    fn heartbeat_ms(&self) -> u64 {
        u64::from(self.settings.heartbeat_interval_ms)
    }

    fn pong(&mut self, pong: &v1::Pong) {
        let exact = self.link.as_ref().is_some_and(|link| link.exact);
        let moved = pong.token != self.token;
        self.token = pong.token;
        if !moved && (!pong.resend || !exact) {
            return;
        }
        let keys: Vec<Key> = self.wanted.keys().cloned().collect();
        for key in keys {
            if let Some(wanted) = self.wanted.get_mut(&key) {
                wanted.held = false;
            }
            self.send_registration(&key);
        }
        self.send(client_message::What::Complete(v1::Complete {}), None);
    }

    fn ping(&mut self) {
        let mut sum = 0u64;
        for (key, wanted) in &self.wanted {
            if let (true, Some(stamp)) = (wanted.held, wanted.stamp) {
                let key = native_key(&self.namespace, &key.service, &key.instance);
                sum = sum.wrapping_add(digest(&key, stamp));
            }
        }
        if let Some(link) = &mut self.link {
            link.exact = !link
                .asked
                .values()
                .any(|asked| matches!(asked, Asked::Register(_) | Asked::Deregister(_)));
        }
        let ping = v1::Ping {
            token: self.token,
            digest: sum,
        };
        self.send(client_message::What::Ping(ping), None);
    }

    fn send_registration(&mut self, key: &Key) {
        let Some(wanted) = self.wanted.get(key) else {
            return;
        };
        let mut registration = wanted.registration.clone();
        registration.at = Some(self.at(key));
        registration.claim = wanted.stamp.map(Into::into);
        self.send(
            client_message::What::Register(registration),
            Some(Asked::Register(key.clone())),
        );
    }

    fn send_removal(&mut self, key: &Key) {
        let Some(stamp) = self.leaving.get(key) else {
            return;
        };
        let removal = v1::Deregistration {
            at: Some(self.at(key)),
            claim: stamp.map(Into::into),
        };
        self.send(
            client_message::What::Deregister(removal),
            Some(Asked::Deregister(key.clone())),
        );
    }

    fn send_watch(&mut self, service: &str) {
        let seen = self.watched.get(service).copied().flatten();
        let watch = v1::WatchRequest {
            namespace: self.namespace.clone(),
            service: service.into(),
            revision: seen.map(Into::into),
        };
        self.send(
            client_message::What::Watch(watch),
            Some(Asked::Watch(service.into())),
        );
    }

    fn at(&self, key: &Key) -> v1::InstanceRef {
        v1::InstanceRef {
            namespace: self.namespace.clone(),
            service: key.service.clone(),
            instance: key.instance.clone(),
        }
    }

    fn send(&mut self, what: client_message::What, asked: Option<Asked>) {
        let id = self.next_id;
        self.next_id += 1;
        if let (Some(link), Some(asked)) = (&mut self.link, asked) {
            link.asked.insert(id, asked);
        }
        self.out.push_back(v1::ClientMessage {
            id,
            what: Some(what),
        });
    }
}

#[cfg(test)]
mod tests;
