//! Where the members are, and in which order they are tried.

use std::net::SocketAddr;
use std::time::Duration;

use rand::Rng;
use rand::seq::SliceRandom as _;

use crate::client::Error;

/// The members as they were named: each may stand for several addresses, as a DNS name of all members does.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    names: Vec<String>,
    /// Those that are left of this round.
    left: Vec<SocketAddr>,
    last: Option<SocketAddr>,
}

impl Members {
    pub(crate) fn new(names: &[String]) -> Result<Self, Error> {
        if names.is_empty() {
            return Err(Error::Config("members: none given".into()));
        }
        let names: Result<Vec<String>, Error> = names.iter().map(|name| host_port(name)).collect();
        Ok(Members {
            names: names?,
            left: Vec::new(),
            last: None,
        })
    }

    /// Begins a round: all names are resolved anew, and the addresses come in random order, the one used last at
    /// the end. The error says why there is none.
    pub(crate) async fn begin(&mut self, patience: Duration) -> Result<(), String> {
        let mut found = Vec::new();
        let mut why = String::new();
        for name in &self.names {
            match tokio::time::timeout(patience, tokio::net::lookup_host(name)).await {
                Ok(Ok(addresses)) => found.extend(addresses),
                Ok(Err(error)) => why = format!("{name}: {error}"),
                Err(_) => why = format!("{name}: its name is not resolved in time"),
            }
        }
        found.sort();
        found.dedup();
        self.left = order(found, self.last, &mut rand::rng());
        if self.left.is_empty() {
            return Err(if why.is_empty() {
                "no name of a member has an address".into()
            } else {
                why
            });
        }
        Ok(())
    }

    /// The next one of this round.
    pub(crate) fn next(&mut self) -> Option<SocketAddr> {
        let next = self.left.pop()?;
        self.last = Some(next);
        Some(next)
    }
}

/// Tried from the end.
fn order(
    mut found: Vec<SocketAddr>,
    last: Option<SocketAddr>,
    rng: &mut impl Rng,
) -> Vec<SocketAddr> {
    found.shuffle(rng);
    found.sort_by_key(|address| Some(*address) != last);
    found
}

/// How long to wait after the n-th failure in a row: doubling up to `max`, and somewhat random, so
/// that clients that lost the same member do not return together.
pub(crate) fn backoff(failures: u32, max: Duration) -> Duration {
    let full = Duration::from_millis(100)
        .saturating_mul(1 << failures.min(16))
        .min(max);
    full.mul_f64(rand::rng().random_range(0.5..=1.0))
}

fn host_port(member: &str) -> Result<String, Error> {
    let wrong = |cause: &str| Error::Config(format!("member {member:?}: {cause}"));
    let name = match member.split_once("://") {
        Some(("http", rest)) => rest.trim_end_matches('/'),
        Some((other, _)) => return Err(wrong(&format!("http is spoken, not {other}"))),
        None => member,
    };
    let port = name
        .rsplit_once(':')
        .filter(|(host, _)| !host.is_empty())
        .map(|(_, port)| port.parse::<u16>());
    match port {
        Some(Ok(1..)) => Ok(name.into()),
        _ => Err(wrong("HOST:PORT of its gRPC port is expected")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_member_used_last_is_tried_last() {
        let all: Vec<SocketAddr> = (1..=5)
            .map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
            .collect();
        let mut firsts = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let mut order = order(all.clone(), Some(all[2]), &mut rand::rng());
            assert_eq!(order[0], all[2]);
            firsts.extend(order.pop());
        }
        assert_eq!(firsts.len(), 4, "any other may be the first");
    }
}
