//! Makes a failing script small: fewer steps, then fewer operations, then simpler ones.

use std::time::{Duration, Instant};

use super::script::{Script, Step};

/// Where shrinking ends, done or not.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Runs of a candidate.
    pub runs: usize,
    /// Time for all of them.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            runs: 600,
            time: Duration::from_secs(90),
        }
    }
}

/// The smallest script found for which `fails` still says yes, and how many runs it took.
///
/// `simplify` gives simpler variants of an operation, the simplest first.
pub fn shrink<O: Clone + PartialEq>(
    script: &Script<O>,
    limits: Limits,
    simplify: impl Fn(&O) -> Vec<O>,
    fails: impl FnMut(&Script<O>) -> bool,
) -> (Script<O>, usize) {
    let mut search = Search {
        best: script.clone(),
        runs: 0,
        limits,
        deadline: Instant::now() + limits.time,
        fails,
    };
    loop {
        let before = search.best.clone();
        search.steps();
        search.operations();
        search.apart();
        search.simpler(&simplify);
        search.fewer_clients();
        if search.best == before || search.spent() {
            return (search.best, search.runs);
        }
    }
}

struct Search<O, F> {
    best: Script<O>,
    runs: usize,
    limits: Limits,
    deadline: Instant,
    fails: F,
}

impl<O: Clone + PartialEq, F: FnMut(&Script<O>) -> bool> Search<O, F> {
    fn spent(&self) -> bool {
        self.runs >= self.limits.runs || Instant::now() >= self.deadline
    }

    /// Takes `candidate` for the best when it still fails.
    fn attempt(&mut self, candidate: Script<O>) -> bool {
        if self.spent() || candidate == self.best || candidate.steps.is_empty() {
            return false;
        }
        self.runs += 1;
        let fails = (self.fails)(&candidate);
        if fails {
            self.best = candidate;
        }
        fails
    }

    /// Leaves out runs of steps, long ones first, from the end: what comes late depends on what came early.
    fn steps(&mut self) {
        let mut chunk = self.best.steps.len().div_ceil(2).max(1);
        loop {
            let mut end = self.best.steps.len();
            while end > 0 && !self.spent() {
                let start = end.saturating_sub(chunk);
                let mut steps = self.best.steps.clone();
                steps.drain(start..end.min(steps.len()));
                self.attempt(self.best.with_steps(steps));
                end = start.min(self.best.steps.len());
            }
            if chunk == 1 || self.spent() {
                return;
            }
            chunk = chunk.div_ceil(2);
        }
    }

    /// Leaves out single operations of steps that have several.
    fn operations(&mut self) {
        for step in (0..self.best.steps.len()).rev() {
            for op in (0..self.best.steps[step].ops.len()).rev() {
                if self.best.steps[step].ops.len() > 1 {
                    let mut steps = self.best.steps.clone();
                    steps[step].ops.remove(op);
                    self.attempt(self.best.with_steps(steps));
                }
            }
        }
    }

    /// Sends one after another what was sent together.
    fn apart(&mut self) {
        for step in (0..self.best.steps.len()).rev() {
            if self.best.steps[step].ops.len() > 1 {
                let mut steps = self.best.steps.clone();
                let ops = std::mem::take(&mut steps[step].ops);
                let singles = ops.into_iter().map(|(client, op)| Step::one(client, op));
                steps.splice(step..=step, singles);
                self.attempt(self.best.with_steps(steps));
            }
        }
    }

    fn simpler(&mut self, simplify: &impl Fn(&O) -> Vec<O>) {
        for step in 0..self.best.steps.len() {
            for op in 0..self.best.steps[step].ops.len() {
                // A variant may have simpler ones itself; each is simpler than the last, so this ends.
                'again: while !self.spent() {
                    for variant in simplify(&self.best.steps[step].ops[op].1) {
                        let mut steps = self.best.steps.clone();
                        steps[step].ops[op].1 = variant;
                        if self.attempt(self.best.with_steps(steps)) {
                            continue 'again;
                        }
                    }
                    break;
                }
            }
        }
    }

    /// Gives a client's operations to an earlier one, and drops clients that do nothing.
    fn fewer_clients(&mut self) {
        for client in (1..self.best.clients).rev() {
            for other in 0..client {
                if !used(&self.best, client) {
                    break;
                }
                let steps = renamed(&self.best, client, other);
                self.attempt(self.best.with_steps(steps));
            }
        }
        for client in (1..self.best.clients).rev() {
            if used(&self.best, client) {
                // A name that is free below.
                if let Some(free) = (0..client).find(|other| !used(&self.best, *other)) {
                    let steps = renamed(&self.best, client, free);
                    self.attempt(self.best.with_steps(steps));
                }
            }
        }
        let needed = (0..self.best.clients)
            .rev()
            .find(|client| used(&self.best, *client));
        let mut fewer = self.best.clone();
        fewer.clients = needed.map_or(1, |client| client + 1);
        self.attempt(fewer);
    }
}

fn used<O>(script: &Script<O>, client: usize) -> bool {
    script
        .steps
        .iter()
        .any(|step| step.ops.iter().any(|(who, _)| *who == client))
}

fn renamed<O: Clone>(script: &Script<O>, from: usize, to: usize) -> Vec<Step<O>> {
    let mut steps = script.steps.clone();
    for step in &mut steps {
        for (who, _) in &mut step.ops {
            if *who == from {
                *who = to;
            }
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differential::random::Random;

    fn script(seed: u64, length: usize) -> Script<u64> {
        let mut random = Random::new(seed);
        let mut script = Script::new("toy", 3);
        for _ in 0..length {
            let ops = (0..1 + random.below(3)).map(|_| (random.below(3), random.draw() % 100));
            script.steps.push(Step { ops: ops.collect() });
        }
        script
    }

    fn smaller(op: &u64) -> Vec<u64> {
        let smaller = [Some(0), Some(1), Some(op / 2), op.checked_sub(1)];
        smaller
            .into_iter()
            .flatten()
            .filter(|other| other < op)
            .collect()
    }

    #[test]
    fn a_known_fault_comes_down_to_its_cause() {
        // Fails when somebody says at least 50 and later anybody says an odd number.
        let fails = |script: &Script<u64>| {
            let said: Vec<u64> = script
                .steps
                .iter()
                .flat_map(|s| s.ops.iter().map(|o| o.1))
                .collect();
            let big = said.iter().position(|op| *op >= 50);
            big.is_some_and(|at| said[at + 1..].iter().any(|op| op % 2 == 1))
        };
        for seed in 0..20 {
            let start = script(seed, 40);
            assert!(fails(&start));
            let limits = Limits {
                runs: 5000,
                time: Duration::from_secs(20),
            };
            let (small, _) = shrink(&start, limits, smaller, fails);
            assert_eq!(small.clients, 1, "{small:?}");
            assert_eq!(
                small.steps,
                [Step::one(0, 50), Step::one(0, 1)],
                "seed {seed}"
            );
        }
    }

    #[test]
    fn it_keeps_within_its_limits() {
        let mut runs = 0;
        let limits = Limits {
            runs: 7,
            time: Duration::from_secs(20),
        };
        let (_, counted) = shrink(&script(1, 100), limits, smaller, |_| {
            runs += 1;
            true
        });
        assert_eq!((runs, counted), (7, 7));
    }
}
