//! The servers of an ensemble, as the configuration names them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use causeway_backend::{BackendError, ErrorKind};
use parking_lot::Mutex;

use crate::srvr;

/// How long a server may take to say of which release it is, once.
const RELEASE: Duration = Duration::from_secs(1);

/// `HOST:PORT[,…][/chroot]`, taken apart. Clones share whose turn it is.
#[derive(Debug, Clone)]
pub struct Servers {
    addresses: Arc<[String]>,
    chroot: String,
    turn: Arc<AtomicUsize>,
    /// By address, as the servers said.
    releases: Arc<Mutex<BTreeMap<String, (u32, u32)>>>,
}

impl Servers {
    /// Takes a connect string apart; a host without a port has ZooKeeper's 2181.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], naming the part that cannot be meant.
    pub fn parse(text: &str) -> Result<Self, BackendError> {
        let (hosts, chroot) = match text.find('/') {
            Some(at) => text.split_at(at),
            None => (text, ""),
        };
        let chroot = chroot.trim_end_matches('/');
        if chroot
            .split('/')
            .skip(1)
            .any(|part| part.is_empty() || part == "." || part == "..")
        {
            return Err(refuse(text, "its chroot is not a path"));
        }
        let addresses: Vec<String> = hosts
            .split(',')
            .map(|host| address(text, host.trim()))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            addresses: addresses.into(),
            chroot: chroot.to_owned(),
            turn: Arc::default(),
            releases: Arc::default(),
        })
    }

    /// Each server as `host:port`.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The path below which everything happens, or nothing. ZooKeeper itself knows no chroot: a
    /// client puts it in front of its paths.
    pub fn chroot(&self) -> &str {
        &self.chroot
    }

    /// All servers, each time from another one on, so that connections spread.
    pub(crate) fn in_turn(&self) -> impl Iterator<Item = &String> {
        let count = self.addresses.len();
        let first = self.turn.fetch_add(1, Ordering::Relaxed) % count.max(1);
        self.addresses.iter().cycle().skip(first).take(count)
    }

    /// Whether a server has create2, which came with ZooKeeper 3.5: an older one answers Unimplemented and hangs
    /// up. Each is asked once; one that does not tell is taken for a newer one and asked again.
    pub(crate) async fn has_create2(&self, server: &str) -> bool {
        let known = self.releases.lock().get(server).copied();
        let release = match known {
            Some(release) => Some(release),
            None => srvr::release(server, RELEASE).await,
        };
        let Some(release) = release else {
            return true;
        };
        if known.is_none() {
            self.releases.lock().insert(server.to_owned(), release);
        }
        release >= (3, 5)
    }

    /// The connect string again.
    pub(crate) fn connect_string(&self) -> String {
        format!("{}{}", self.addresses.join(","), self.chroot)
    }
}

impl std::fmt::Display for Servers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.connect_string())
    }
}

fn address(text: &str, host: &str) -> Result<String, BackendError> {
    // A bare IPv6 address has colons but no port; with a port it stands in brackets.
    let (name, port) = match host.rsplit_once(':') {
        Some((name, _)) if name.contains(':') && !name.starts_with('[') => {
            return Err(refuse(text, "write an IPv6 address in brackets"));
        }
        Some((name, port)) if !host.ends_with(']') => (name, port),
        _ => (host, "2181"),
    };
    if name.is_empty() {
        return Err(refuse(text, "a host is missing"));
    }
    match port.parse::<u16>() {
        Ok(port) if port > 0 => Ok(format!("{name}:{port}")),
        _ => Err(refuse(text, "a port is not a number from 1 to 65535")),
    }
}

fn refuse(text: &str, why: &str) -> BackendError {
    let message = format!("ZooKeeper servers {text:?}: {why}; write HOST:PORT[,…][/chroot]");
    BackendError::not_applied(ErrorKind::Unsupported, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_strings_are_taken_apart() {
        let check = |text: &str, expected: Option<(&[&str], &str)>| match Servers::parse(text) {
            Ok(servers) => {
                let (addresses, chroot) = expected.unwrap_or_else(|| panic!("{text} was taken"));
                assert_eq!(servers.addresses(), addresses, "{text}");
                assert_eq!(servers.chroot(), chroot, "{text}");
            }
            Err(error) => {
                assert!(expected.is_none(), "{error}");
                assert!(error.to_string().contains(text), "{error}");
            }
        };
        check("a:1", Some((&["a:1"], "")));
        check("a", Some((&["a:2181"], "")));
        check("a:1,b, c:3/x/y", Some((&["a:1", "b:2181", "c:3"], "/x/y")));
        check("a:1/", Some((&["a:1"], "")));
        check(
            "[::1]:2181,[::2]/x",
            Some((&["[::1]:2181", "[::2]:2181"], "/x")),
        );
        for text in [
            "", ":1", "a:0", "a:x", "a:1,", "a:1//x", "a:1/../x", "::1:2181",
        ] {
            check(text, None);
        }
    }

    #[test]
    fn connections_take_turns() {
        let servers = Servers::parse("a:1,b:1,c:1").expect("parses");
        let firsts: Vec<&String> = (0..4).filter_map(|_| servers.in_turn().next()).collect();
        assert_eq!(firsts, ["a:1", "b:1", "c:1", "a:1"]);
        assert_eq!(servers.in_turn().count(), 3);
    }
}
