//! What a seed decides before anything happens: how large, how long, which faults.
//!
//! Durations are shorter than in production, in proportion, so that a run of a few minutes sees tombstones collected,
//! orphans judged and lives ended many times.

use causeway_registry::replication::ReplicationConfig;

use crate::random::Random;

/// How often each kind of fault happens, relative to the others; 0: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    /// Processes killed, restarted from what their folder held.
    pub crash: u64,
    /// Processes stopped for up to a minute (SIGSTOP).
    pub pause: u64,
    /// Links cut in one direction or both, members split, isolated or half detached.
    pub partition: u64,
    /// Streams broken and made again.
    pub breaks: u64,
    /// Clocks put forward or back.
    pub clock: u64,
    /// Members that go for good and are forgotten, new ones that join.
    pub membership: u64,
    /// All members stopped at once.
    pub outage: u64,
    /// Wrong opinions of the detector.
    pub rumour: u64,
    /// Folders of owned records lost at a restart.
    pub lost_folder: u64,
    /// What clients do.
    pub clients: u64,
    /// Of 1,000 messages between members, how many vanish though their stream lives.
    pub loss: u64,
    /// Of 1,000 messages between members, how many come again later, over a later stream too.
    pub repeat: u64,
}

/// A run, decided by its seed; scenarios put their own values in.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The seed of everything random.
    pub seed: u64,
    /// How many members begin.
    pub members: u16,
    /// How many clients begin.
    pub clients: usize,
    /// How many services they share.
    pub services: u64,
    /// Between two messages of a client, in milliseconds; its lease is three times that.
    pub ping_ms: u64,
    /// Bytes of payload in each record.
    pub payload: usize,
    /// How many faults happen before everything heals.
    pub steps: u64,
    /// The longest time between two of them, in milliseconds.
    pub gap_ms: u64,
    /// Which faults.
    pub weather: Weather,
    /// The longest delay of a message, in milliseconds.
    pub delay_ms: u64,
    /// How many messages are on their way in one direction of a stream at most.
    pub window: usize,
    /// How often a member saves its records at least, in milliseconds.
    pub save_ms: u64,
    /// How old a tombstone becomes, in milliseconds.
    pub tombstone_age_ms: u64,
    /// What tombstones may cost in bytes.
    pub tombstone_bytes: usize,
    /// The replicator's settings.
    pub replication: ReplicationConfig,
    /// Verdicts remove whatever has the key by now.
    pub unconditional_expiry: bool,
    /// Print what happens.
    pub print: bool,
}

impl Setup {
    /// The run of a seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x5eed);
        let members = random.between(3, 9).min(random.between(3, 9));
        // Not every fault in every run: what never happens together would hide behind what always does.
        let mut on = |weight: u64, of: u64, among: u64| {
            let drawn = random.between(1, weight);
            if random.chance(of, among) { drawn } else { 0 }
        };
        let weather = Weather {
            crash: on(12, 2, 3),
            pause: on(6, 1, 2),
            partition: on(16, 3, 4),
            breaks: on(12, 1, 2),
            clock: on(6, 1, 2),
            membership: on(4, 1, 3),
            outage: on(2, 1, 4),
            rumour: on(4, 1, 3),
            lost_folder: on(3, 1, 4),
            clients: on(30, 1, 1),
            loss: on(30, 1, 4),
            repeat: on(30, 1, 4),
        };
        let delay_ms = random.pick(&[2, 20, 60]).unwrap_or(2);
        let replication = ReplicationConfig {
            batch_bytes: random.pick(&[200, 1_000, 20_000]).unwrap_or(200),
            window_bytes: random.pick(&[1_000, 20_000]).unwrap_or(1_000),
            tombstone_settled_ms: random.between(3_000, 20_000),
            alone_ms: 3_000,
            // A start asks one segment after the other.
            warming_ms: 8_000 + 260 * delay_ms,
            orphan_ms: random.between(15_000, 45_000),
            orphan_margin_ms: 3_000,
            inherit_ms: 2_000,
            ..ReplicationConfig::default()
        };
        Setup {
            seed,
            members: u16::try_from(members).unwrap_or(3),
            clients: random.index(20) + 4,
            services: random.between(1, 4),
            ping_ms: random.between(1_500, 5_000),
            payload: random.index(60),
            steps: random.between(20, 70),
            gap_ms: random.between(500, 5_000),
            weather,
            delay_ms,
            window: random.pick(&[2, 8, 64]).unwrap_or(8),
            save_ms: random.between(500, 10_000),
            tombstone_age_ms: random.between(25_000, 90_000),
            tombstone_bytes: random.pick(&[3_000, 64 << 20]).unwrap_or(64 << 20),
            replication,
            unconditional_expiry: false,
            print: false,
        }
    }

    /// Without a fault of its own: what a scenario begins with.
    pub fn calm(seed: u64, members: u16, clients: usize) -> Self {
        let mut setup = Setup::from_seed(seed);
        setup.members = members;
        setup.clients = clients;
        setup.weather = Weather::default();
        setup.steps = 0;
        setup.ping_ms = 5_000;
        setup.delay_ms = 2;
        setup.replication.warming_ms = 8_000;
        setup.window = 64;
        setup.save_ms = 2_000;
        setup.tombstone_age_ms = 60_000;
        setup.tombstone_bytes = 64 << 20;
        setup.replication.batch_bytes = 256 << 10;
        setup.replication.window_bytes = 1 << 20;
        setup
    }

    /// A client's lease in milliseconds.
    pub fn ttl_ms(&self) -> u64 {
        3 * self.ping_ms
    }

    /// How long a change may take to members that are joined to its writer by `hops` links without a fault.
    pub fn detection_ms(&self, hops: u64) -> u64 {
        let rough = if self.weather.loss > 0 { 4 } else { 1 };
        // A slow stream with a small window takes a while for everything that a split kept apart.
        let slow = if self.delay_ms > 20 { 3 } else { 1 };
        5_000 * hops * rough * slow
    }
}
