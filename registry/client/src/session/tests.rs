use client_message::What as Say;
use server_message::What as Told;

use super::*;

/// A session, with a member that says what it is told to.
struct Talk {
    session: Session,
    now: u64,
}

fn key(instance: &str) -> Key {
    Key {
        service: "cart".into(),
        instance: instance.into(),
    }
}

fn stamp(hlc: u64) -> Option<v1::Stamp> {
    Some(v1::Stamp { hlc, member: 1 })
}

fn part(instance: &str, hlc: u64) -> u64 {
    let stamp = Stamp { hlc, member: 1 };
    digest(&native_key("default", "cart", instance), stamp)
}

impl Talk {
    fn new() -> Self {
        Talk {
            session: Session::new("default".into(), 0),
            now: 0,
        }
    }

    fn told(&mut self, id: u64, what: Told) {
        let message = v1::ServerMessage {
            id,
            what: Some(what),
        };
        self.session.handle(message, self.now);
    }

    fn said(&mut self) -> Vec<(u64, Say)> {
        std::iter::from_fn(|| self.session.poll_send())
            .map(|message| (message.id, message.what.unwrap()))
            .collect()
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.session.poll_event()).collect()
    }

    fn connect(&mut self, token: u64) -> Vec<(u64, Say)> {
        self.session.connected(self.now);
        let said = self.said();
        assert!(matches!(&said[..], [(_, Say::Hello(_))]), "{said:?}");
        self.told(
            0,
            Told::Welcome(v1::Welcome {
                token,
                settings: Some(v1::Settings {
                    heartbeat_interval_ms: 1_000,
                    cache_services: 3,
                    refresh_interval_ms: 9_000,
                }),
                ..v1::Welcome::default()
            }),
        );
        self.said()
    }

    fn register(&mut self, instance: &str, hlc: u64) {
        self.session
            .register(key(instance), v1::Registration::default());
        let said = self.said();
        let [(id, Say::Register(_))] = &said[..] else {
            panic!("{said:?}");
        };
        self.registered(*id, hlc);
    }

    fn registered(&mut self, id: u64, hlc: u64) {
        self.told(
            id,
            Told::Registered(v1::Registered {
                stamp: stamp(hlc),
                ..v1::Registered::default()
            }),
        );
    }

    /// Lets time pass to the next heartbeat. Returns its ping and what else is said.
    fn beat(&mut self) -> (v1::Ping, Vec<(u64, Say)>) {
        self.now = self.session.next_timeout().unwrap();
        self.session.handle_timeout(self.now);
        let mut said = self.said();
        let (_, Say::Ping(ping)) = said.remove(0) else {
            panic!("no ping");
        };
        (ping, said)
    }

    fn pong(&mut self, token: u64, resend: bool) {
        self.told(
            0,
            Told::Pong(v1::Pong {
                token,
                resend,
                warming: false,
            }),
        );
    }
}

#[test]
fn what_was_wanted_before_is_said_at_the_welcome_and_confirmed_by_digest() {
    let mut talk = Talk::new();
    talk.session.register(key("a"), v1::Registration::default());
    talk.session.watch("till");
    assert_eq!(talk.said(), [], "there is no stream");
    let said = talk.connect(7);
    assert!(matches!(
        &said[..],
        [(_, Say::Register(_)), (_, Say::Watch(_))]
    ));
    talk.registered(said[0].0, 5);
    talk.register("b", 6);
    assert!(talk.events().contains(&Event::Registered(key("b"))));
    let (ping, rest) = talk.beat();
    assert_eq!(ping.digest, part("a", 5).wrapping_add(part("b", 6)));
    assert_eq!((ping.token, rest.len()), (7, 0));

    // The same member again: the digest says all. Another one: everything is sent, with its stamps.
    talk.session.disconnected();
    assert_eq!(talk.connect(7).len(), 1, "the watch alone");
    assert_eq!(talk.beat().0.digest, ping.digest);
    talk.session.disconnected();
    let said = talk.connect(8);
    let claims: Vec<_> = said
        .iter()
        .filter_map(|(_, say)| match say {
            Say::Register(registration) => Some(registration.claim),
            _ => None,
        })
        .collect();
    assert_eq!(claims, [stamp(5), stamp(6)]);
    assert_eq!(talk.beat().0.digest, 0, "nothing is confirmed there yet");
}

#[test]
fn a_member_that_misses_something_is_told_everything() {
    let mut talk = Talk::new();
    talk.connect(7);
    talk.register("a", 5);
    talk.beat();
    talk.pong(7, true);
    let said = talk.said();
    assert!(matches!(
        &said[..],
        [(_, Say::Register(_)), (_, Say::Complete(_))]
    ));
    // A digest that was sent while that was on its way says nothing.
    talk.beat();
    talk.pong(7, true);
    assert_eq!(talk.said(), []);
    talk.registered(said[0].0, 9);
    assert_eq!(talk.beat().0.digest, part("a", 9));
    // A lease that is over: the new one holds nothing.
    talk.pong(8, true);
    assert_eq!(talk.said().len(), 2);
}

#[test]
fn three_heartbeats_without_an_answer_end_it() {
    let mut talk = Talk::new();
    talk.connect(7);
    talk.events();
    for _ in 0..10 {
        talk.beat();
        talk.pong(7, false);
    }
    for _ in 0..MISSED {
        talk.beat();
        assert_eq!(talk.events(), []);
    }
    talk.now = talk.session.next_timeout().unwrap();
    talk.session.handle_timeout(talk.now);
    assert!(matches!(&talk.events()[..], [Event::GiveUp(_)]));

    // One that never says Welcome, too.
    talk.session.disconnected();
    talk.session.connected(talk.now);
    talk.now += WELCOME_MS;
    talk.session.handle_timeout(talk.now);
    assert!(matches!(&talk.events()[..], [Event::GiveUp(_)]));
}

#[test]
fn a_removal_waits_for_a_member_and_a_refusal_is_tried_again() {
    let mut talk = Talk::new();
    talk.connect(7);
    talk.register("a", 5);
    talk.session.disconnected();
    talk.session.deregister(&key("a"));
    talk.events();
    let said = talk.connect(8);
    let [(id, Say::Deregister(removal))] = &said[..] else {
        panic!("{said:?}");
    };
    assert_eq!(removal.claim, stamp(5), "whoever registered since keeps it");
    talk.told(*id, Told::Deregistered(v1::Deregistered::default()));
    assert!(talk.events().contains(&Event::Deregistered(key("a"))));
    assert_eq!(talk.session.keys(), []);

    talk.session.register(key("b"), v1::Registration::default());
    let id = talk.said()[0].0;
    let failure = v1::Failure {
        code: "unavailable".into(),
        message: "later".into(),
    };
    talk.told(id, Told::Failure(failure.clone()));
    assert_eq!(talk.events(), [Event::Refused(key("b"), failure)]);
    let (_, rest) = talk.beat();
    assert!(matches!(&rest[..], [(_, Say::Register(_))]));
}

#[test]
fn settings_are_obeyed_at_once_unless_they_make_no_sense() {
    let mut talk = Talk::new();
    talk.connect(7);
    talk.beat();
    let settings = |heartbeat_interval_ms| v1::Settings {
        heartbeat_interval_ms,
        cache_services: 3,
        refresh_interval_ms: 9_000,
    };
    talk.told(0, Told::Settings(settings(200)));
    assert_eq!(talk.session.next_timeout(), Some(talk.now + 200));
    talk.events();
    talk.told(0, Told::Settings(settings(0)));
    assert_eq!(talk.events(), []);
    talk.beat();
    assert_eq!(talk.session.next_timeout(), Some(talk.now + 200));
}

#[test]
fn a_stream_goes_on_where_the_last_one_was() {
    let mut talk = Talk::new();
    talk.connect(7);
    talk.session.watch("cart");
    talk.said();
    let revision = Some(v1::Revision {
        incarnation: 1,
        number: 2,
    });
    let update = v1::ServiceUpdate {
        service: "cart".into(),
        revision,
        ..v1::ServiceUpdate::default()
    };
    talk.told(0, Told::Update(update.clone()));
    assert!(talk.events().contains(&Event::Update(update.clone())));
    talk.session.disconnected();
    let said = talk.connect(7);
    assert!(matches!(&said[..], [(_, Say::Watch(watch))] if watch.revision == revision));
    talk.session.start_over("cart");
    let said = talk.said();
    assert!(matches!(&said[..], [(_, Say::Watch(watch))] if watch.revision.is_none()));
    talk.session.unwatch("cart");
    talk.events();
    talk.told(0, Told::Update(update));
    assert_eq!(talk.events(), [], "nobody wants it any more");
}
