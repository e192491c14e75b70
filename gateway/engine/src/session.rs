//! ZooKeeper sessions after the take-over (or without a legacy store): who they are, which connection
//! speaks for them, and which session of the legacy ensemble stands behind them.
//!
//! How long a session lives is the registry's business (a lease per session); here is only what the
//! protocol adds: id, password, negotiated timeout, and the one connection that may speak for it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// High byte of the session ids that Causeway gives out: positive, and not a server id that an
/// ensemble would use (server ids are small).
pub const SESSION_HIGH_BYTE: i64 = 0x7c;

/// A connection of a client to this gateway; never used again after it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ConnId(pub u64);

/// Who gave the session its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// Causeway.
    Own,
    /// The legacy ensemble, before the take-over; id and password stay.
    Legacy,
}

/// A session of the legacy ensemble that stands behind a client's session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LegacySession {
    /// Its id there.
    pub id: i64,
    /// Its password there.
    pub password: [u8; 16],
    /// Timeout the ensemble granted, in milliseconds.
    pub timeout_ms: u32,
}

/// One session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The id that the client knows and every Stat shows.
    pub id: i64,
    /// The password that proves the id.
    pub password: [u8; 16],
    /// Negotiated timeout in milliseconds.
    pub timeout_ms: u32,
    /// Who gave the id.
    pub origin: Origin,
    /// Raised by each attach; lower claims stop at once.
    pub claim: u64,
    /// The session behind it in the legacy ensemble, once there is one.
    pub legacy: Option<LegacySession>,
    /// Sessions that stood behind it before; what they still own there is this client's too.
    pub former: Vec<i64>,
    /// Whether it holds a general ephemeral in the legacy store, so that it lives as the store says.
    pub bound: bool,
    /// Before the take-over: the ensemble lost an entry of it that nobody here saw removed. With no entry
    /// left the ensemble may have expired it.
    pub lost: bool,
    /// The connection that speaks for it now.
    #[serde(skip)]
    pub connection: Option<ConnId>,
}

/// A client came back and may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resumed {
    /// Timeout in force, in milliseconds.
    pub timeout_ms: u32,
    /// The older connection of the same session, which has to be closed (ZooKeeper: reopenSession).
    pub displaced: Option<ConnId>,
    /// Claim number of this attach.
    pub claim: u64,
}

/// Why a client cannot go on with a session; it is answered *expired* either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ResumeError {
    /// Nobody here knows the id: expired, closed, or never given out.
    #[error("session is not known: expired, closed or never given out")]
    Unknown,
    /// The password does not prove the id.
    #[error("wrong password for the session")]
    WrongPassword,
}

/// The table of sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sessions {
    by_id: BTreeMap<i64, Session>,
    by_legacy: BTreeMap<i64, i64>,
}

impl Sessions {
    /// Adds a session.
    pub fn open(&mut self, session: Session) {
        if let Some(legacy) = &session.legacy {
            self.by_legacy.insert(legacy.id, session.id);
        }
        self.by_id.insert(session.id, session);
    }

    /// A session by the id that its client knows.
    pub fn get(&self, id: i64) -> Option<&Session> {
        self.by_id.get(&id)
    }

    /// All sessions by id.
    pub fn iter(&self) -> impl Iterator<Item = &Session> {
        self.by_id.values()
    }

    /// Number of sessions.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Whether a client may go on with the session, without attaching it.
    pub fn may_resume(&self, id: i64, password: &[u8]) -> Result<(), ResumeError> {
        let session = self.by_id.get(&id).ok_or(ResumeError::Unknown)?;
        if session.password.as_slice() == password {
            Ok(())
        } else {
            Err(ResumeError::WrongPassword)
        }
    }

    /// A client came (back) with id and password on a new connection.
    pub fn attach(
        &mut self,
        id: i64,
        password: &[u8],
        timeout_ms: u32,
        connection: ConnId,
    ) -> Result<Resumed, ResumeError> {
        self.may_resume(id, password)?;
        let session = self.by_id.get_mut(&id).ok_or(ResumeError::Unknown)?;
        session.claim += 1;
        session.timeout_ms = timeout_ms;
        let displaced = session.connection.replace(connection);
        Ok(Resumed {
            timeout_ms,
            displaced,
            claim: session.claim,
        })
    }

    /// A client negotiated another timeout; false when the session is not known.
    pub fn set_timeout(&mut self, id: i64, timeout_ms: u32) -> bool {
        let session = self.by_id.get_mut(&id);
        session
            .map(|session| session.timeout_ms = timeout_ms)
            .is_some()
    }

    /// A connection ended; the session lives on until its timeout.
    pub fn detach(&mut self, id: i64, connection: ConnId) {
        if let Some(session) = self
            .by_id
            .get_mut(&id)
            .filter(|s| s.connection == Some(connection))
        {
            session.connection = None;
        }
    }

    /// The session is over.
    pub fn close(&mut self, id: i64) -> Option<Session> {
        let session = self.by_id.remove(&id)?;
        for owner in session
            .legacy
            .iter()
            .map(|l| l.id)
            .chain(session.former.iter().copied())
        {
            self.by_legacy.remove(&owner);
        }
        Some(session)
    }

    /// Notes the session of the ensemble that stands behind a client's session, or that there is none
    /// any more.
    pub fn set_legacy(&mut self, id: i64, legacy: Option<LegacySession>) {
        if let Some(session) = self.by_id.get_mut(&id) {
            if let Some(old) = session.legacy.take() {
                session.former.push(old.id);
            }
            if let Some(new) = &legacy {
                self.by_legacy.insert(new.id, id);
            }
            session.legacy = legacy;
        }
    }

    /// Marks a session as living by the legacy store's word.
    pub fn set_bound(&mut self, id: i64) {
        if let Some(session) = self.by_id.get_mut(&id) {
            session.bound = true;
        }
    }

    /// Notes that the ensemble lost an entry of a session.
    pub fn set_lost(&mut self, id: i64) {
        if let Some(session) = self.by_id.get_mut(&id) {
            session.lost = true;
        }
    }

    /// The client's session behind an owner seen in the ensemble. Before it has a session of its own
    /// there, a session that came from the ensemble stands for itself.
    pub fn by_legacy_owner(&self, owner: i64) -> Option<&Session> {
        match self.by_legacy.get(&owner) {
            Some(id) => self.by_id.get(id),
            None => self
                .by_id
                .get(&owner)
                .filter(|s| s.origin == Origin::Legacy),
        }
    }
}

/// The timeout a server grants, in milliseconds: what is asked, within what the server grants (ZooKeeper:
/// `minSessionTimeout` and `maxSessionTimeout`, by default 2 and 20 ticks).
pub fn negotiate_timeout(asked_ms: i32, granted: RangeInclusive<u32>) -> u32 {
    let asked = u32::try_from(asked_ms.max(0)).unwrap_or(0);
    asked.min(*granted.end()).max(*granted.start())
}

/// A session id from time and a counter that never repeats within the millisecond.
pub fn session_id(now_ms: i64, counter: u16) -> i64 {
    (SESSION_HIGH_BYTE << 56) | ((now_ms & 0xff_ffff_ffff) << 16) | i64::from(counter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(id: i64, origin: Origin) -> Session {
        Session {
            id,
            password: [7; 16],
            timeout_ms: 10_000,
            origin,
            claim: 0,
            legacy: None,
            former: Vec::new(),
            bound: false,
            lost: false,
            connection: None,
        }
    }

    #[test]
    fn timeouts_stay_within_what_is_granted() {
        for (asked, want) in [
            (60_000, 40_000),
            (100, 4_000),
            (10_000, 10_000),
            (-5, 4_000),
            (i32::MAX, 40_000),
        ] {
            assert_eq!(negotiate_timeout(asked, 4_000..=40_000), want);
        }
    }

    #[test]
    fn ids_are_positive_and_carry_the_high_byte() {
        let a = session_id(1_796_000_000_000, 0);
        let b = session_id(1_796_000_000_000, 1);
        assert!(a > 0 && b > a);
        assert_eq!(a >> 56, SESSION_HIGH_BYTE);
    }

    #[test]
    fn the_newer_connection_displaces_the_older_and_raises_the_claim() {
        let mut table = Sessions::default();
        table.open(session(5, Origin::Own));
        let first = table.attach(5, &[7; 16], 8_000, ConnId(1)).expect("known");
        assert_eq!((first.displaced, first.claim), (None, 1));
        let second = table.attach(5, &[7; 16], 9_000, ConnId(2)).expect("known");
        assert_eq!(
            (second.displaced, second.claim, second.timeout_ms),
            (Some(ConnId(1)), 2, 9_000)
        );
        table.detach(5, ConnId(1));
        assert_eq!(table.get(5).and_then(|s| s.connection), Some(ConnId(2)));
        assert_eq!(
            table.attach(5, &[8; 16], 1, ConnId(3)),
            Err(ResumeError::WrongPassword)
        );
        assert_eq!(
            table.attach(6, &[7; 16], 1, ConnId(3)),
            Err(ResumeError::Unknown)
        );
    }

    #[test]
    fn owners_in_the_ensemble_map_to_the_clients_session() {
        let mut table = Sessions::default();
        table.open(session(5, Origin::Own));
        table.open(session(77, Origin::Legacy));
        assert_eq!(table.by_legacy_owner(5), None);
        assert_eq!(table.by_legacy_owner(77).map(|s| s.id), Some(77));
        table.set_legacy(
            5,
            Some(LegacySession {
                id: 900,
                password: [1; 16],
                timeout_ms: 4_000,
            }),
        );
        assert_eq!(table.by_legacy_owner(900).map(|s| s.id), Some(5));
        // What the former session still owns there is this client's too.
        table.set_legacy(5, None);
        assert_eq!(table.by_legacy_owner(900).map(|s| s.id), Some(5));
        table.close(5);
        assert_eq!(table.by_legacy_owner(900), None);
        table.close(77);
        assert_eq!(table.by_legacy_owner(77), None);
    }
}
