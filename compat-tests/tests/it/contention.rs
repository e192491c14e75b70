//! What several clients write at once, after the take-over, on general and on owned nodes.

use anyhow::{Context as _, Result, ensure};
use causeway_compat_tests::settings::CURATOR_BASE;
use causeway_compat_tests::target::{Legacy, Target};
use causeway_compat_tests::{Gateway, Work};

const PHASES: [&str; 3] = ["merge-legacy", "merge-new", "drain"];

fn said(target: &Target, what: &str, dir: &str, rounds: u32, word: &str) -> Result<Vec<u64>> {
    let text = target.kazoo().contend(what, dir, rounds)?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(word))
        .with_context(|| format!("contend.py {what} printed {text:?}"))?;
    line.split([' ', ','])
        .filter(|word| !word.is_empty())
        .map(|word| word.parse().context("a number"))
        .collect()
}

/// The real server first: otherwise the question would say nothing about the gateway.
fn everywhere(name: &str, ask: impl Fn(&Target, &str) -> Result<()>) {
    Work::scenario(&format!("contend-{name}"), |work| {
        let legacy = Legacy::start(work)?;
        ask(&legacy.target(), "/real").context("the real ZooKeeper")?;
        for phase in PHASES {
            let gateway = Gateway::start(work, phase, &legacy.settings(phase))?;
            for root in ["/general", CURATOR_BASE] {
                let dir = format!("{root}/{name}-{phase}");
                ask(&gateway.target(), &dir).with_context(|| format!("{dir} in {phase}"))?;
            }
        }
        Ok(())
    });
}

#[test]
fn no_one_shot_watch_is_lost() {
    everywhere("watch", |target, dir| {
        let lost = said(target, "watch", dir, 25, "lost")?;
        ensure!(lost == [0], "{lost:?}");
        Ok(())
    });
}

#[test]
fn a_write_on_a_version_lets_one_of_several_pass() {
    everywhere("compare", |target, dir| {
        let counted = said(target, "compare", dir, 20, "counted")?;
        ensure!(counted == [80, 80], "{counted:?}");
        Ok(())
    });
}

/// L has seen fewer creations than the view, since only what stands is brought to it.
#[test]
fn sequence_numbers_rise_over_a_step_back() {
    Work::scenario("contend-sequence", |work| {
        let legacy = Legacy::start(work)?;
        let gateway = Gateway::start(work, "gateway", &legacy.settings("merge-new"))?;
        let dir = format!("{CURATOR_BASE}/sequence");
        let mut all = said(&gateway.target(), "sequence", &dir, 20, "numbers")?;
        gateway.causeway(&["rollback"])?;
        all.extend(said(&gateway.target(), "sequence", &dir, 20, "numbers")?);
        ensure!(
            all.windows(2).all(|pair| matches!(pair, [a, b] if a < b)),
            "{all:?}"
        );
        Ok(())
    });
}
