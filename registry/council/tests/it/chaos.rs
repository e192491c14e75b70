//! Seeded runs: clients propose while members crash (also between a write to disk and what would have
//! been sent after it), links lose, delay and are cut one way, members come back with what their disk
//! had. Afterwards the recorded calls have to be explainable, and all members equal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use causeway_registry_council::{
    Council, CouncilError, MemberId, RegisterCommand, RegisterReply, Registers,
};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use crate::history::{Answer, Call, Operation, check_counter, check_linearizable};
use crate::world::World;

const CLIENTS: u64 = 4;
const KEYS: u64 = 3;
const CALLS: usize = 60;

/// What clients share.
#[derive(Clone)]
struct Recorder {
    start: Instant,
    members: Arc<Mutex<BTreeMap<MemberId, Council<Registers>>>>,
    operations: Arc<Mutex<Vec<Operation>>>,
    taken: Arc<Mutex<Vec<(u64, u64, u64)>>>,
}

impl Recorder {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

async fn client(me: u64, seed: u64, recorder: Recorder) {
    let mut rng = StdRng::seed_from_u64(seed ^ (me << 32));
    let mut unique = me * 1_000_000;
    let mut known: BTreeMap<u64, Option<u64>> = BTreeMap::new();
    for _ in 0..CALLS {
        tokio::time::sleep(Duration::from_millis(rng.random_range(1..400))).await;
        let member = {
            let members = recorder.members.lock();
            let at = rng.random_range(0..members.len().max(1));
            members.values().nth(at).cloned()
        };
        let Some(member) = member else { continue };
        let key = rng.random_range(0..KEYS);
        let began = recorder.now();
        match rng.random_range(0..4) {
            0 => {
                let command = RegisterCommand::Next { name: "n".into() };
                let ticket = member.ticket().expect("few are waiting");
                let mut reply = member.propose_with(&ticket, &command).await;
                if reply == Err(CouncilError::Unknown) {
                    // Once more with the same ticket: it must not take a second number.
                    reply = member.propose_with(&ticket, &command).await;
                }
                if let Ok(RegisterReply::Number(number)) = reply {
                    recorder.taken.lock().push((began, recorder.now(), number));
                }
            }
            1 => {
                let read = member.read_index().await;
                let value = member.read(|r| r.get(&key.to_be_bytes()).cloned());
                let value = value.map(|v| u64::from_be_bytes(v[..].try_into().expect("8 bytes")));
                if read.is_ok() {
                    known.insert(key, value);
                    recorder.operations.lock().push(Operation {
                        key,
                        began,
                        ended: recorder.now(),
                        call: Call::Read,
                        answer: Answer::Value(value),
                    });
                }
            }
            _ => {
                unique += 1;
                let expected = known.get(&key).copied().flatten();
                let bytes = |v: u64| bytes::Bytes::copy_from_slice(&v.to_be_bytes());
                let command = RegisterCommand::CompareAndSet {
                    key: bytes(key),
                    expected: expected.map(bytes),
                    new: Some(bytes(unique)),
                };
                let answer = match member.propose(&command).await {
                    Ok(RegisterReply::Set) => {
                        known.insert(key, Some(unique));
                        Answer::Set(true)
                    }
                    Ok(RegisterReply::Differs(present)) => {
                        let value =
                            present.map(|v| u64::from_be_bytes(v[..].try_into().expect("8 bytes")));
                        known.insert(key, value);
                        Answer::Set(false)
                    }
                    Ok(other) => panic!("{other:?} from compare-and-set"),
                    // Surely nothing happened: must not be needed to explain anything.
                    Err(CouncilError::NotApplied(_)) => continue,
                    Err(CouncilError::Unknown) => Answer::Unknown,
                };
                recorder.operations.lock().push(Operation {
                    key,
                    began,
                    ended: recorder.now(),
                    call: Call::CompareAndSet {
                        expected,
                        new: unique,
                    },
                    answer,
                });
            }
        }
    }
}

/// One fault, or the end of one. At most a minority is away at a time, but cuts may take the majority.
async fn fault(world: &mut World, rng: &mut StdRng, count: u64, recorder: &Recorder) {
    let away: Vec<MemberId> = (1..=count)
        .filter(|m| !world.members.contains_key(m))
        .collect();
    let any = rng.random_range(1..=count);
    match rng.random_range(0..7) {
        0 | 1 => {
            for member in away {
                world.start(member).await;
            }
        }
        2 if away.is_empty() => world.kill(any).await,
        // Dies at one of its next writes to disk: before it, or after it and before anything is sent.
        3 | 4 if away.is_empty() => {
            let network = world.network.clone();
            let after = rng.random_bool(0.7);
            let nth = rng.random_range(1..6);
            world.disks[&any].crash_at(nth, after, move || network.detach(any));
        }
        5 => world.network.cut(any, rng.random_range(1..=count)),
        _ => {
            world.network.heal();
            world
                .network
                .set_loss(f64::from(rng.random_range(0..3)) * 0.05);
            let most = Duration::from_millis(rng.random_range(1..120));
            world.network.set_delay(Duration::ZERO, most);
        }
    }
    // One whose disk stopped it is taken away, to come back later.
    let stopped: Vec<MemberId> = world
        .members
        .iter()
        .filter(|(_, m)| m.status().stopped.is_some())
        .map(|(m, _)| *m)
        .collect();
    for member in stopped {
        world.kill(member).await;
    }
    *recorder.members.lock() = world.members.clone();
}

async fn run(seed: u64, count: u64) -> (usize, usize) {
    let mut world = World::new(seed);
    world.settings.snapshot_every = 25;
    let mut world = world.grown(count).await;
    let recorder = Recorder {
        start: Instant::now(),
        members: Arc::new(Mutex::new(world.members.clone())),
        operations: Arc::default(),
        taken: Arc::default(),
    };
    let clients: Vec<_> = (0..CLIENTS)
        .map(|me| tokio::spawn(client(me, seed, recorder.clone())))
        .collect();
    let mut rng = StdRng::seed_from_u64(seed);
    while !clients.iter().all(tokio::task::JoinHandle::is_finished) {
        tokio::time::sleep(Duration::from_millis(rng.random_range(100..3_000))).await;
        fault(&mut world, &mut rng, count, &recorder).await;
    }
    for client in clients {
        client.await.expect("a client's own checks");
    }
    recorder.members.lock().clear();
    world.network.heal();
    world.network.set_loss(0.0);
    for member in 1..=count {
        // All at once, also those that were well.
        world.kill(member).await;
    }
    for member in 1..=count {
        world.start(member).await;
    }
    world.leader().await;
    world.members[&1].read_index().await.expect("a majority");
    world.agree().await;
    let taken = recorder.taken.lock().clone();
    check_counter(&taken);
    let given = world.members[&1].read(|r| r.next("n"));
    let greatest = taken.iter().map(|(_, _, n)| *n + 1).max().unwrap_or(0);
    assert!(
        given >= greatest,
        "a number that was given out is forgotten"
    );
    let mut operations = recorder.operations.lock().clone();
    // What is there in the end has to be explained as well: nothing acknowledged is lost.
    for key in 0..KEYS {
        let value = world.members[&1].read(|r| r.get(&key.to_be_bytes()).cloned());
        let at = recorder.now();
        operations.push(Operation {
            key,
            began: at,
            ended: at + 1,
            call: Call::Read,
            answer: Answer::Value(
                value.map(|v| u64::from_be_bytes(v[..].try_into().expect("8 bytes"))),
            ),
        });
    }
    check_linearizable(&operations);
    for member in 1..=count {
        world.kill(member).await;
    }
    (operations.len(), taken.len())
}

/// `COUNCIL_SEEDS=from..to` chooses other seeds, to look for faults by hand.
fn seeds() -> std::ops::Range<u64> {
    let chosen = std::env::var("COUNCIL_SEEDS").ok();
    let range = chosen.as_deref().and_then(|c| c.split_once(".."));
    let parsed = range.and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?));
    parsed.unwrap_or(0..14)
}

#[test]
fn faults_lose_and_double_nothing() {
    let mut total = (0, 0);
    for seed in seeds() {
        let count = if seed % 2 == 0 { 3 } else { 5 };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime");
        println!("seed {seed}, {count} members");
        let (operations, taken) = runtime.block_on(run(seed, count));
        println!("seed {seed}: {operations} operations, {taken} numbers");
        total = (total.0 + operations, total.1 + taken);
    }
    assert!(
        total.0 > 100 && total.1 > 20,
        "too little happened: {total:?}"
    );
}
