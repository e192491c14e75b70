//! How a store is.

use std::time::Duration;

/// How a backend is, as seen from this gateway now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// The verdict.
    pub state: HealthState,
    /// The verdict in words that name the server at fault.
    pub detail: String,
    /// Each configured server.
    pub servers: Vec<ServerHealth>,
}

impl Health {
    /// The verdict over servers: `Up` when all answer, `Degraded` when some do, `Down` when none
    /// does.
    pub fn of_servers(servers: Vec<ServerHealth>) -> Self {
        let bad: Vec<&str> = servers
            .iter()
            .filter(|server| !server.answering)
            .map(|server| server.detail.as_str())
            .collect();
        let state = match bad.len() {
            0 => HealthState::Up,
            n if n == servers.len() => HealthState::Down,
            _ => HealthState::Degraded,
        };
        let detail = if bad.is_empty() {
            format!("{} of {} servers answer", servers.len(), servers.len())
        } else {
            bad.join("; ")
        };
        Self {
            state,
            detail,
            servers,
        }
    }

    /// Whether reads and writes can be expected to succeed.
    pub fn is_usable(&self) -> bool {
        self.state != HealthState::Down
    }
}

/// The verdict on a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthState {
    /// Everything answers.
    Up,
    /// It can be used, but something is wrong.
    Degraded,
    /// It cannot be used.
    Down,
}

/// How one server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerHealth {
    /// Its address as configured.
    pub address: String,
    /// Whether it answered a request that needs a working store.
    pub answering: bool,
    /// How long the answer took.
    pub latency: Option<Duration>,
    /// What it answered, or why it did not, naming it.
    pub detail: String,
}
