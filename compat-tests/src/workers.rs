//! Work done by several threads.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Does all of it with `jobs` workers (one at least), each with a state of its own that `fresh` makes.
pub fn side_by_side<T: Send, S>(
    jobs: usize,
    all: Vec<T>,
    fresh: impl Fn() -> S + Sync,
    act: impl Fn(&mut S, T) + Sync,
) {
    let queue = Mutex::new(VecDeque::from(all));
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                let mut state = fresh();
                loop {
                    let next = lock(&queue).pop_front();
                    let Some(next) = next else { break };
                    act(&mut state, next);
                }
            });
        }
    });
}

/// Takes a lock. One that a thread panicked under is taken too: a lock here is only held for work that cannot fail
/// half-way.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_done_once_by_as_many_as_there_are() {
        for jobs in [0, 1, 3, 50] {
            let done = Mutex::new(Vec::new());
            side_by_side(jobs, (0..20).collect(), || (), |(), n| lock(&done).push(n));
            let mut done = done.into_inner().expect("nobody panicked");
            done.sort_unstable();
            assert_eq!(done, (0..20).collect::<Vec<_>>(), "{jobs}");
        }
    }
}
