//! Every order of a few events around one client, one key and one gateway: whatever the order, what the
//! client was told holds, and machine and store come to rest in agreement.
//!
//! `CAUSEWAY_MODEL_DEPTH` sets the number of events.

use causeway_registry::StoreKind;

use super::world::World;
use crate::phase::{Move, Phase};

/// Events of a normal run.
const DEPTH: u32 = 2;

#[derive(Debug, Clone, Copy)]
enum Event {
    Register,
    Remove,
    Close,
    Deliver,
    Attempt,
    AttemptOfUnknownOutcome,
    ToolDeletes,
    OwnerEndsInLegacy,
    Advance,
    StepBack,
    Restart,
}

const EVENTS: [Event; 11] = [
    Event::Register,
    Event::Remove,
    Event::Close,
    Event::Deliver,
    Event::Attempt,
    Event::AttemptOfUnknownOutcome,
    Event::ToolDeletes,
    Event::OwnerEndsInLegacy,
    Event::Advance,
    Event::StepBack,
    Event::Restart,
];

fn run(kind: StoreKind, phase: Phase, events: &[Event]) {
    let mut world = World::quiet(kind, phase);
    // There and in L when it begins, unless the first event says otherwise.
    world.register(0);
    world.deliver(usize::MAX);
    world.converge();
    world.converge();
    world.deliver(usize::MAX);
    world.label = format!("{events:?} from {phase}");
    for event in events {
        world.say(&format!("{event:?}"));
        match event {
            Event::Register => world.register(0),
            Event::Remove => world.remove(0),
            Event::Close => world.close(0),
            Event::Deliver => world.deliver(1),
            Event::Attempt => world.converge(),
            Event::AttemptOfUnknownOutcome => {
                world.blind = true;
                world.converge();
                world.blind = false;
            }
            Event::ToolDeletes => world.tool_deletes(0),
            Event::OwnerEndsInLegacy => world.owner_ends(0),
            Event::Advance => world.phase_step(Move::Advance),
            Event::StepBack => world.phase_step(Move::Rollback),
            Event::Restart => world.restart(),
        }
        world.check();
    }
    world.settle_down();
    world.check_rest();
}

fn all(kind: StoreKind) {
    let depth = std::env::var("CAUSEWAY_MODEL_DEPTH")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(DEPTH);
    for phase in [
        Phase::MergeLegacy,
        Phase::MergeNew,
        Phase::New,
        Phase::Drain,
    ] {
        for number in 0..EVENTS.len().pow(depth) {
            let mut rest = number;
            let events: Vec<Event> = (0..depth)
                .map(|_| {
                    let event = EVENTS[rest % EVENTS.len()];
                    rest /= EVENTS.len();
                    event
                })
                .collect();
            run(kind, phase, &events);
        }
    }
}

#[test]
fn every_order_over_a_legacy_ensemble() {
    all(StoreKind::Zookeeper);
}

#[test]
fn every_order_over_a_legacy_etcd() {
    all(StoreKind::Etcd);
}
