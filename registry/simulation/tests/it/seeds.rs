use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use causeway_registry_simulation::{Failure, Report, Setup, World};

/// How many seeds a run of the tests plays, unless `CAUSEWAY_SEEDS` says otherwise.
const SEEDS: u64 = 100;

fn play(seed: u64) -> Result<Report, Failure> {
    World::run(Setup::from_seed(seed))
}

#[test]
fn every_seed_holds() {
    let seeds = std::env::var("CAUSEWAY_SEEDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(SEEDS);
    let next = AtomicU64::new(0);
    let work = || {
        let mut failures = Vec::new();
        while failures.is_empty() {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                break;
            }
            failures.extend(play(seed).err());
        }
        failures
    };
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    let failures: Vec<Failure> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    let texts: Vec<String> = failures.iter().map(ToString::to_string).collect();
    assert!(texts.is_empty(), "{}", texts.join("\n"));
}

#[test]
fn a_seed_gives_the_same_trace_twice() {
    let mut traces = BTreeSet::new();
    for seed in 0..20 {
        let (one, two) = (play(seed), play(seed));
        assert_eq!(one, two, "I15 Repeatable, seed {seed}");
        traces.extend(one.ok().map(|report| report.trace));
    }
    assert_eq!(traces.len(), 20, "different seeds differ");
}

#[test]
fn faults_of_every_kind_happen() {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..60 {
        for (what, times) in play(seed).map(|report| report.counts).unwrap_or_default() {
            *counts.entry(what).or_insert(0) += times;
        }
    }
    for what in [
        "crashes",
        "lost folders",
        "pauses",
        "cuts",
        "breaks",
        "clock jumps",
        "members forgotten",
        "members joined",
        "outages",
        "keys used again",
        "messages lost",
        "messages repeated",
        "verdicts",
        "verdicts on orphans",
        "leases expired",
        "removed by expiry",
        "removed by owners",
        "protection entered",
        "protection left",
        "exchange done",
        "origin past",
    ] {
        let times = counts.get(what).copied().unwrap_or(0);
        assert!(times > 0, "{what}: {counts:?}");
    }
}
