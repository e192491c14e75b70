//! Plays seeds, or one of them with everything that happens.

use clap::Parser;

use causeway_registry_simulation::{Setup, World};

/// Seeded runs of a whole registry cluster in virtual time.
#[derive(Debug, Parser)]
struct Arguments {
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How many seeds from there on.
    #[arg(long, default_value_t = 1)]
    count: u64,
    /// Let everything heal after so many faults.
    #[arg(long)]
    steps: Option<u64>,
    /// Print all that happens.
    #[arg(long)]
    trace: bool,
    /// Go on after a failure.
    #[arg(long)]
    keep_going: bool,
}

fn main() -> std::process::ExitCode {
    let arguments = Arguments::parse();
    let mut failures = 0;
    let mut counts = std::collections::BTreeMap::new();
    let (mut events, mut time_ms) = (0, 0);
    for seed in arguments.seed..arguments.seed.saturating_add(arguments.count) {
        let mut setup = Setup::from_seed(seed);
        setup.steps = arguments.steps.unwrap_or(setup.steps);
        setup.print = arguments.trace;
        match World::run(setup) {
            Ok(report) => {
                events += report.events;
                time_ms += report.time_ms;
                for (what, times) in report.counts {
                    *counts.entry(what).or_insert(0) += times;
                }
            }
            Err(failure) => {
                failures += 1;
                println!("{failure}");
                if !arguments.keep_going {
                    break;
                }
            }
        }
    }
    println!(
        "{} seeds, {failures} failures, {events} events in {} h of virtual time",
        arguments.count,
        time_ms / 3_600_000
    );
    for (what, times) in counts {
        println!("{times:>10} {what}");
    }
    std::process::ExitCode::from(u8::from(failures > 0))
}
