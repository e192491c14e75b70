//! Numbers of proposals, so that one that is sent again is applied once. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

/// How many proposals of one member may wait at a time; bounds what all members keep for answering again.
pub(crate) const TICKETS: usize = 1024;

/// The numbers that one run of a member has given out and still waits for.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    state: Mutex<Outstanding>,
}

#[derive(Debug, Default)]
struct Outstanding {
    next: u64,
    waiting: BTreeSet<u64>,
}

/// The right to one change. As long as it is kept, proposing with it again cannot apply the change twice.
#[derive(Debug)]
pub struct Ticket {
    pub(crate) sequence: u64,
    tickets: Arc<Tickets>,
}

impl Tickets {
    /// The next number; `None`: too many are waiting.
    pub(crate) fn issue(self: &Arc<Self>) -> Option<Ticket> {
        let mut state = self.state.lock();
        if state.waiting.len() >= TICKETS {
            return None;
        }
        state.next += 1;
        let sequence = state.next;
        state.waiting.insert(sequence);
        Some(Ticket {
            sequence,
            tickets: self.clone(),
        })
    }

    /// Nobody waits for anything below this number.
    pub(crate) fn settled(&self) -> u64 {
        let state = self.state.lock();
        state.waiting.first().copied().unwrap_or(state.next + 1)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.tickets.state.lock().waiting.remove(&self.sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_is_not_settled() {
        let tickets = Arc::new(Tickets::default());
        let issue = || tickets.issue().expect("few are waiting");
        let (first, second) = (issue(), issue());
        assert_eq!(tickets.settled(), first.sequence);
        drop(second);
        assert_eq!(tickets.settled(), first.sequence);
        drop(first);
        assert_eq!(tickets.settled(), 3);
        assert_eq!(issue().sequence, 3);
    }

    #[test]
    fn waiting_is_bounded() {
        let tickets = Arc::new(Tickets::default());
        let mut all: Vec<_> = (0..TICKETS).map(|_| tickets.issue()).collect();
        assert!(tickets.issue().is_none());
        all.pop();
        assert!(tickets.issue().is_some());
    }
}
