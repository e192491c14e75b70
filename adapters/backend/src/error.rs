//! What went wrong, and whether the store changed all the same.

use std::fmt;

use crate::{Expect, LeaseId, Revision};

/// Whether the operation that failed changed the store. Writing to two stores depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Certainty {
    /// Nothing changed and nothing will.
    NotApplied,
    /// It was done; only what follows it failed.
    Applied,
    /// It may have been done or may be done still: read, then decide.
    Unknown,
}

/// What kind of failure it was; what to do follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// No server could be reached, or the connection broke.
    Unreachable,
    /// A server was reached but did not answer in time.
    Timeout,
    /// A server answered that it cannot serve now (no leader, no quorum, overloaded).
    Unavailable,
    /// An [`Expect`](crate::Expect) did not hold, or a wanted id is taken.
    Conflict,
    /// The lease has ended or never was.
    LeaseGone,
    /// The store refused this gateway's identity.
    Denied,
    /// The store cannot hold such a key.
    InvalidKey,
    /// The value is larger than the store takes.
    TooLarge,
    /// The store cannot do this at all.
    Unsupported,
    /// What was asked for can no longer be had from the store's history (compacted).
    HistoryGone,
    /// The handle was closed.
    Shutdown,
    /// The store broke its own rules or said something this adapter does not know.
    Protocol,
}

/// Why a call on a backend failed, in words that name the server and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendError {
    kind: ErrorKind,
    certainty: Certainty,
    message: String,
}

impl BackendError {
    /// A failure of the given kind.
    pub fn new(kind: ErrorKind, certainty: Certainty, message: impl Into<String>) -> Self {
        Self {
            kind,
            certainty,
            message: message.into(),
        }
    }

    /// A failure that changed nothing.
    pub fn not_applied(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::new(kind, Certainty::NotApplied, message)
    }

    /// A failure after which nobody knows.
    pub fn unknown(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::new(kind, Certainty::Unknown, message)
    }

    /// An expectation about `key` that did not hold, with the revision found instead.
    pub fn conflict(
        store: impl fmt::Display,
        key: &[u8],
        expect: &Expect,
        found: Option<&Revision>,
    ) -> Self {
        let expected = match expect {
            Expect::Absent => "no entry".to_owned(),
            Expect::Revision(revision) => format!("revision {revision}"),
            Expect::Any => "anything".to_owned(),
        };
        let found = match found {
            Some(revision) => format!("revision {revision}"),
            None => "no entry".to_owned(),
        };
        let key = key.escape_ascii();
        Self::not_applied(
            ErrorKind::Conflict,
            format!("{store}: {key}: expected {expected} but found {found}; read it and decide"),
        )
    }

    /// A lease that has ended.
    pub fn lease_gone(store: impl fmt::Display, lease: LeaseId) -> Self {
        Self::not_applied(
            ErrorKind::LeaseGone,
            format!("{store}: lease {lease} has ended; open a new one and register again"),
        )
    }

    /// What kind of failure it was.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the store changed.
    pub fn certainty(&self) -> Certainty {
        self.certainty
    }

    /// Whether the same call can succeed later without anybody changing anything. After
    /// [`Certainty::Unknown`] read first.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::Unreachable | ErrorKind::Timeout | ErrorKind::Unavailable
        )
    }

    /// The same failure with another certainty, for a caller who knows more: a failed read
    /// changed nothing whatever broke it.
    pub fn with_certainty(mut self, certainty: Certainty) -> Self {
        self.certainty = certainty;
        self
    }

    /// The same failure with what was being done in front.
    pub fn context(mut self, doing: impl fmt::Display) -> Self {
        self.message = format!("{doing}: {}", self.message);
        self
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.certainty {
            Certainty::NotApplied => Ok(()),
            Certainty::Applied => f.write_str(" (the change itself was made)"),
            Certainty::Unknown => f.write_str(" (whether the change was made is not known)"),
        }
    }
}

impl std::error::Error for BackendError {}
