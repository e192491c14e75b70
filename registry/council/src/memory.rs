//! Links within one process, for tests: with loss, delay and one-way cuts, drawn from a seed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::network::Links;
use crate::types::MemberId;

/// What a member does with a frame.
pub type Receiver = Arc<dyn Fn(MemberId, Bytes) + Send + Sync>;

/// A network of members in one process.
#[derive(Clone)]
pub struct Network {
    state: Arc<Mutex<State>>,
}

struct State {
    rng: StdRng,
    loss: f64,
    delay: (Duration, Duration),
    cut: HashSet<(MemberId, MemberId)>,
    receivers: HashMap<MemberId, Receiver>,
    sent: HashMap<MemberId, (u64, u64)>,
}

struct From {
    me: MemberId,
    network: Network,
}

impl Network {
    /// A network that loses nothing and delays by up to a millisecond.
    pub fn new(seed: u64) -> Self {
        Network {
            state: Arc::new(Mutex::new(State {
                rng: StdRng::seed_from_u64(seed),
                loss: 0.0,
                delay: (Duration::ZERO, Duration::from_millis(1)),
                cut: HashSet::new(),
                receivers: HashMap::new(),
                sent: HashMap::new(),
            })),
        }
    }

    /// The links of a member.
    pub fn links(&self, me: MemberId) -> Arc<dyn Links> {
        Arc::new(From {
            me,
            network: self.clone(),
        })
    }

    /// Brings frames to a member from now on.
    pub fn attach(&self, member: MemberId, receiver: Receiver) {
        self.state.lock().receivers.insert(member, receiver);
    }

    /// The member is gone: there is no link to it, and what was on its way is lost.
    pub fn detach(&self, member: MemberId) {
        // Dropped outside the lock: a receiver may own the last handle of a member.
        let _gone = self.state.lock().receivers.remove(&member);
    }

    /// Loses frames one way, without telling the sender.
    pub fn cut(&self, from: MemberId, to: MemberId) {
        self.state.lock().cut.insert((from, to));
    }

    /// Ends all cuts.
    pub fn heal(&self) {
        self.state.lock().cut.clear();
    }

    /// How many of all frames are lost, from 0 to 1.
    pub fn set_loss(&self, loss: f64) {
        self.state.lock().loss = loss.clamp(0.0, 1.0);
    }

    /// How long a frame takes; those of different lengths overtake each other.
    pub fn set_delay(&self, least: Duration, most: Duration) {
        self.state.lock().delay = (least, most.max(least));
    }

    /// (frames, bytes) that a member has sent.
    pub fn sent(&self, member: MemberId) -> (u64, u64) {
        self.state
            .lock()
            .sent
            .get(&member)
            .copied()
            .unwrap_or_default()
    }
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

impl Links for From {
    fn send(&self, to: MemberId, _address: &str, frame: Bytes) -> bool {
        let me = self.me;
        let delay = {
            let mut state = self.network.state.lock();
            if !state.receivers.contains_key(&to) {
                return false;
            }
            let sent = state.sent.entry(me).or_default();
            *sent = (sent.0 + 1, sent.1 + frame.len() as u64);
            let (least, most) = state.delay;
            let delay = state.rng.random_range(least..=most);
            let loss = state.loss;
            if state.cut.contains(&(me, to)) || state.rng.random_bool(loss) {
                return true;
            }
            delay
        };
        let state = self.network.state.clone();
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            let receiver = {
                let state = state.lock();
                if state.cut.contains(&(me, to)) {
                    return;
                }
                state.receivers.get(&to).cloned()
            };
            if let Some(receiver) = receiver {
                receiver(me, frame);
            }
        });
        true
    }
}
