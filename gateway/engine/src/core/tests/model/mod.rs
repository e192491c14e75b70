//! Random runs of the machine over a model of a legacy store with real clients' habits: crashes, returns,
//! direct writers, outages, wipes, a lagging feed, attempts whose outcome is not known, phase steps both
//! ways, restarts from a snapshot and the log. Checkers look at every step; a failure names seed and step.
//!
//! `CAUSEWAY_MODEL_SEEDS` sets the number of seeds, `CAUSEWAY_MODEL_SEED` runs one and prints its steps.

mod checks;
mod interleaved;
mod store;
mod world;

use causeway_registry::StoreKind;

use world::World;

/// Seeds of a normal run.
const SEEDS: u64 = 200;

/// Steps of a run before it comes to rest.
const STEPS: usize = 120;

/// A small generator; the standard library has none that is seeded.
#[derive(Debug, Clone)]
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(n.max(1)).expect("small")).expect("small")
    }

    fn percent(&mut self, p: usize) -> bool {
        self.below(100) < p
    }
}

fn run(kind: StoreKind, seed: u64) {
    let mut world = World::new(kind, seed);
    for step in 0..STEPS {
        world.step_no = step;
        world.random_step();
        world.check();
    }
    world.come_to_rest();
    world.check_rest();
}

fn seeds(kind: StoreKind) {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    match number("CAUSEWAY_MODEL_SEED") {
        Some(seed) => run(kind, seed),
        None => (0..number("CAUSEWAY_MODEL_SEEDS").unwrap_or(SEEDS) / 2)
            .for_each(|seed| run(kind, seed)),
    }
}

#[test]
fn random_runs_over_a_legacy_ensemble() {
    seeds(StoreKind::Zookeeper);
}

#[test]
fn random_runs_over_a_legacy_etcd() {
    seeds(StoreKind::Etcd);
}
