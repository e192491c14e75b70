//! etcd's own notion of robustness: what clients saw of a store that is killed again and again is judged by named
//! promises. The real etcd passes first; then Causeway alone, as a relay, and after the take-over, with itself and the
//! store behind it killed.

mod checks;
mod traffic;

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use causeway_compat_tests::differential::Random;
use causeway_compat_tests::protocol::Protocol;
use causeway_compat_tests::target::{self, Fault, Options, Running};
use causeway_compat_tests::{Work, until};

use traffic::{Kind, LIMIT, Shared};

const WRITERS: usize = 4;
/// Calls between two kills, of all writers together.
const BETWEEN: usize = 60;

const WATCHERS: [Kind; 3] = [
    Kind {
        prev_kv: true,
        fragment: false,
        half_closed: false,
        progress: false,
    },
    Kind {
        prev_kv: false,
        fragment: false,
        half_closed: false,
        progress: true,
    },
    Kind {
        prev_kv: false,
        fragment: true,
        half_closed: true,
        progress: false,
    },
];

#[test]
fn a_real_etcd() {
    promises("etcd-3.7", &["restart"; 5]);
}

#[test]
fn alone() {
    promises("causeway-embedded", &["restart"; 12]);
}

#[test]
fn as_a_relay() {
    let both = ["restart", "legacy etcd restart"];
    promises("causeway-relay", &[both; 3].concat());
}

#[test]
fn after_the_take_over() {
    let both = ["restart", "legacy etcd restart"];
    promises("causeway-merge-new", &[both; 3].concat());
}

fn promises(name: &str, faults: &[&str]) {
    Work::scenario(&format!("robustness-{name}"), |work| {
        let mut target = target::start(work, name, &Options::default())?;
        let address = target.one_address(Protocol::Etcd)?;
        // See "headers of requests on different classes of keys" in docs/divergences.md.
        let shared = Shared::new(&address, name == "causeway-merge-new");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let watchers: Vec<_> = WATCHERS
            .into_iter()
            .enumerate()
            .map(|(number, kind)| runtime.spawn(traffic::watch(number, kind, shared.clone())))
            .collect();
        until(LIMIT, "all watch", || {
            let watching = shared.watching.load(Ordering::SeqCst);
            ensure!(watching == WATCHERS.len(), "{watching} do");
            Ok(())
        })?;
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| runtime.spawn(traffic::write(number, shared.clone())))
            .collect();
        let killed = kill(&mut *target, faults, &shared);
        shared.over.store(true, Ordering::SeqCst);
        for writer in writers {
            runtime.block_on(writer)?.context("a writer")?;
        }
        killed?;
        let last = runtime.block_on(traffic::marker(&shared))?;
        shared.last.store(last, Ordering::SeqCst);
        for watcher in watchers {
            let opened = runtime.block_on(watcher)?.context("a watcher")?;
            // Otherwise the kills have met nobody at a watch.
            ensure!(opened > faults.len() / 2, "a watcher came {opened} times");
        }
        let lost = shared.lost.load(Ordering::SeqCst);
        ensure!(lost >= faults.len(), "{lost} calls were lost");
        checks::check(&shared.take())
    });
}

fn kill(target: &mut dyn Running, faults: &[&str], shared: &Shared) -> Result<()> {
    let mut moments = Random::new(7);
    for fault in faults {
        let before = shared.acknowledged.load(Ordering::SeqCst);
        until(LIMIT, "the writers go on", || {
            let acknowledged = shared.acknowledged.load(Ordering::SeqCst) - before;
            ensure!(acknowledged >= BETWEEN, "{acknowledged} calls");
            Ok(())
        })?;
        let pause = u64::try_from(moments.below(200))?;
        std::thread::sleep(Duration::from_millis(pause));
        target.fault(&fault.parse::<Fault>()?)?;
    }
    std::thread::sleep(Duration::from_millis(300));
    Ok(())
}
