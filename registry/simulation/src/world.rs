//! The world: places, links, clients and the council, and the queue of what happens next.

mod chaos;
mod clients;
mod council;
mod members;
mod streams;

use std::collections::BTreeMap;

use causeway_registry::MemberId;

pub use chaos::Fault;

use crate::check::{Failure, Invariant, Oracle};
use crate::client::{Client, Reply, Request};
use crate::council::Council;
use crate::network::Network;
use crate::process::Place;
use crate::random::Random;
use crate::setup::Setup;
use crate::trace::Trace;

/// Wall milliseconds at true time 0.
pub const EPOCH: u64 = 1_750_000_000_000;

/// Between two looks at everything, in milliseconds.
const SWEEP_MS: u64 = 1_000;

/// Between two looks of the council, in milliseconds.
const COUNCIL_MS: u64 = 500;

/// Between two opinions of the membership protocol, in milliseconds.
const DETECT_MS: u64 = 1_000;

/// How many places there are: the members that begin and room for those that join.
const PLACES: usize = 16;

/// What happens at one moment.
#[derive(Clone, Debug)]
pub enum Event {
    /// Bytes arrive.
    Arrive {
        /// Sender.
        from: usize,
        /// Receiver.
        to: usize,
        /// The stream that they belong to.
        epoch: u64,
        /// The member that sent it.
        peer: MemberId,
        /// A message.
        bytes: Vec<u8>,
        /// A repetition: counts whatever stream there is by now.
        stray: bool,
    },
    /// An end learns that a stream is open.
    Opened {
        /// Which end.
        here: usize,
        /// To where.
        there: usize,
        /// The stream.
        epoch: u64,
    },
    /// An end learns that its stream is gone.
    Closed {
        /// Which end.
        here: usize,
        /// To where.
        there: usize,
        /// The stream.
        epoch: u64,
    },
    /// Somebody tries to connect.
    Connect {
        /// One end.
        one: usize,
        /// The other end.
        two: usize,
    },
    /// A cut has lasted long enough for a stream to be given up.
    Stalled {
        /// Sender.
        from: usize,
        /// Receiver.
        to: usize,
        /// The stream.
        epoch: u64,
    },
    /// A process wants to be called.
    Timer {
        /// Where.
        place: usize,
        /// Which process.
        life: u64,
    },
    /// A process saves its records.
    Save {
        /// Where.
        place: usize,
        /// Which process.
        life: u64,
    },
    /// A process confirms what is stored by now.
    Confirm {
        /// Where.
        place: usize,
        /// Which process.
        life: u64,
    },
    /// A process starts.
    Start {
        /// Where.
        place: usize,
        /// What its folder held is lost.
        lost: bool,
    },
    /// A process that stood still goes on.
    Resume {
        /// Where.
        place: usize,
    },
    /// A client does what it does each period.
    Wake {
        /// Which.
        client: usize,
        /// Void unless it is the last.
        wake: u64,
    },
    /// A message of a client arrives.
    Request {
        /// Whose.
        client: usize,
        /// Its connection.
        connection: u64,
        /// Where.
        place: usize,
        /// At which process.
        life: u64,
        /// What.
        request: Request,
    },
    /// An answer arrives at a client.
    Reply {
        /// Whose.
        client: usize,
        /// Its connection.
        connection: u64,
        /// What.
        reply: Reply,
    },
    /// A client learns that its connection is broken.
    Broken {
        /// Whose.
        client: usize,
        /// Its connection.
        connection: u64,
    },
    /// The council looks.
    Council,
    /// The membership protocol has opinions.
    Detect,
    /// The next fault.
    Chaos,
    /// The checks look at everything.
    Sweep,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Equal for equal runs.
    pub trace: u64,
    /// How many events there were.
    pub events: u64,
    /// How much virtual time passed, in milliseconds.
    pub time_ms: u64,
    /// What happened how often.
    pub counts: BTreeMap<&'static str, u64>,
}

/// The world.
#[derive(Debug)]
pub struct World {
    /// What the seed decided.
    pub setup: Setup,
    /// True time in milliseconds.
    pub now: u64,
    /// Everything random.
    pub random: Random,
    /// What happened.
    pub trace: Trace,
    /// Where members run.
    pub places: Vec<Place>,
    /// Between them.
    pub network: Network,
    /// Who registers.
    pub clients: Vec<Client>,
    /// Who decides.
    pub council: Council,
    /// What is known to be right, and what was found wrong.
    pub oracle: Oracle,
    /// What happened how often.
    pub counts: BTreeMap<&'static str, u64>,
    /// Bytes of messages that left each place.
    pub sent: Vec<u64>,
    queue: BTreeMap<(u64, u64), Event>,
    scheduled: u64,
    events: u64,
    lives: u64,
    connections: u64,
    next_member: MemberId,
    next_instance: u64,
    next_content: u64,
    /// Faults that happened.
    steps: u64,
    detector: BTreeMap<(usize, usize), council::Opinion>,
    healed: bool,
}

impl World {
    /// Plays a run: its faults, then a time without any, at the end of which everything has to be right.
    ///
    /// # Errors
    /// The first thing that a check found.
    pub fn run(setup: Setup) -> Result<Report, Failure> {
        let mut world = World::new(setup);
        world.play()?;
        world.heal();
        world.settle_and_judge()?;
        Ok(world.report())
    }

    /// All members started, all clients about to connect.
    pub fn new(setup: Setup) -> Self {
        let members: Vec<MemberId> = (1..=setup.members).collect();
        let mut world = World {
            now: 0,
            random: Random::new(setup.seed),
            trace: Trace::new(setup.print),
            places: (0..PLACES).map(|_| Place::default()).collect(),
            network: Network::default(),
            clients: Vec::new(),
            council: Council::default(),
            oracle: Oracle::default(),
            counts: BTreeMap::new(),
            sent: vec![0; PLACES],
            queue: BTreeMap::new(),
            scheduled: 0,
            events: 0,
            lives: 0,
            connections: 0,
            next_member: setup.members + 1,
            next_instance: 0,
            next_content: 0,
            steps: 0,
            detector: BTreeMap::new(),
            healed: false,
            setup,
        };
        world
            .council
            .decide(crate::council::Decision::Members(members.clone()));
        for place in 0..PLACES {
            world.places[place].gone = true;
        }
        for (place, member) in members.iter().enumerate() {
            world.places[place].member = *member;
            world.places[place].gone = false;
            world.places[place].disk.members = members.clone();
            world.connect_new(place);
            let late = world.random.below(2_000);
            world.at(late, Event::Start { place, lost: false });
        }
        for _ in 0..world.setup.clients {
            world.add_client();
        }
        world.at(COUNCIL_MS, Event::Council);
        world.at(DETECT_MS, Event::Detect);
        world.at(SWEEP_MS, Event::Sweep);
        world
    }

    /// Faults until there were as many as the setup says.
    ///
    /// # Errors
    /// The first thing that a check found.
    pub fn play(&mut self) -> Result<(), Failure> {
        // Everybody is there before the first one.
        self.pass(15_000)?;
        if self.setup.steps > 0 {
            self.at(0, Event::Chaos);
        }
        while self.steps < self.setup.steps {
            self.step()?;
        }
        Ok(())
    }

    /// Lets time pass.
    ///
    /// # Errors
    /// The first thing that a check found.
    pub fn pass(&mut self, ms: u64) -> Result<(), Failure> {
        let until = self.now + ms;
        while let Some(((at, _), _)) = self.queue.first_key_value()
            && *at <= until
        {
            self.step()?;
        }
        self.now = until;
        Ok(())
    }

    /// The next event, and every check that it calls for.
    ///
    /// # Errors
    /// What a check found.
    pub fn step(&mut self) -> Result<(), Failure> {
        let Some(((at, _), event)) = self.queue.pop_first() else {
            return Ok(());
        };
        self.now = self.now.max(at);
        self.events += 1;
        self.handle(event);
        self.verdict()
    }

    /// What was found wrong, if anything was.
    ///
    /// # Errors
    /// It.
    pub fn verdict(&self) -> Result<(), Failure> {
        match &self.oracle.found {
            None => Ok(()),
            Some((invariant, what)) => Err(Failure {
                seed: self.setup.seed,
                step: self.steps,
                event: self.events,
                at_ms: self.now,
                invariant: *invariant,
                what: what.clone(),
            }),
        }
    }

    /// What the run came to.
    pub fn report(&self) -> Report {
        Report {
            trace: self.trace.digest(),
            events: self.events,
            time_ms: self.now,
            counts: self.counts.clone(),
        }
    }

    /// Something was found wrong; the first one counts.
    pub fn wrong(&mut self, invariant: Invariant, what: String) {
        self.oracle.found.get_or_insert((invariant, what));
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_insert(0) += 1;
    }

    pub(crate) fn at(&mut self, late: u64, event: Event) {
        self.scheduled += 1;
        self.queue.insert((self.now + late, self.scheduled), event);
    }

    /// The place of a member's process or folder.
    pub fn place_of(&self, member: MemberId) -> Option<usize> {
        self.places
            .iter()
            .position(|place| place.member == member && !place.gone)
    }

    /// True when the process runs, belongs to the list and may serve.
    pub fn serves(&self, place: usize) -> bool {
        let here = &self.places[place];
        here.runs()
            && self.council.members.contains(&here.member)
            && here.process.as_ref().is_some_and(|process| {
                !process.retired
                    && process.replicator.readiness() != causeway_registry::Readiness::Init
            })
    }

    fn handle(&mut self, event: Event) {
        let place = match &event {
            Event::Arrive { to: place, .. }
            | Event::Opened { here: place, .. }
            | Event::Closed { here: place, .. }
            | Event::Timer { place, .. }
            | Event::Save { place, .. }
            | Event::Confirm { place, .. }
            | Event::Request { place, .. } => Some(*place),
            _ => None,
        };
        if let Some(place) = place
            && self.places[place].paused
        {
            self.places[place].backlog.push(event);
            return;
        }
        match event {
            Event::Arrive {
                from,
                to,
                epoch,
                peer,
                bytes,
                stray,
            } => self.arrive(from, to, (!stray).then_some(epoch), peer, &bytes),
            Event::Opened { here, there, epoch } => self.opened(here, there, epoch),
            Event::Closed { here, there, epoch } => self.closed(here, there, epoch),
            Event::Connect { one, two } => self.connect(one, two),
            Event::Stalled { from, to, epoch } => self.stalled(from, to, epoch),
            Event::Timer { place, life } => self.timer(place, life),
            Event::Save { place, life } => self.save_on_time(place, life),
            Event::Confirm { place, life } => self.confirm_on_time(place, life),
            Event::Start { place, lost } => self.start(place, lost),
            Event::Resume { place } => self.resume(place),
            Event::Wake { client, wake } => self.wake(client, wake),
            Event::Request {
                client,
                connection,
                place,
                life,
                request,
            } => self.request(client, connection, place, life, request),
            Event::Reply {
                client,
                connection,
                reply,
            } => self.reply(client, connection, reply),
            Event::Broken { client, connection } => self.broken(client, connection),
            Event::Council => {
                self.hold_council();
                self.at(COUNCIL_MS, Event::Council);
            }
            Event::Detect => {
                self.detect();
                self.at(DETECT_MS, Event::Detect);
            }
            Event::Chaos => {
                if self.steps < self.setup.steps && !self.healed {
                    self.chaos();
                    self.steps += 1;
                    let late = self.random.between(100, self.setup.gap_ms);
                    self.at(late, Event::Chaos);
                }
            }
            Event::Sweep => {
                self.sweep();
                self.at(SWEEP_MS, Event::Sweep);
            }
        }
    }
}
