//! What etcd's failures mean.

use std::error::Error as _;

use causeway_backend::{BackendError, Certainty, ErrorKind};
use tonic::{Code, Status};

use crate::channel::ConnectFailed;

/// A failed call as a backend error. `server` is the one that was asked.
pub(crate) fn from_status(server: &str, status: &Status) -> BackendError {
    if let Some(error) = status
        .source()
        .and_then(|source| without_effect(server, source))
    {
        return error;
    }
    let (kind, certainty) = classify(status.code(), status.message());
    let advice = match kind {
        ErrorKind::Denied => "; check the user and its roles in etcd",
        ErrorKind::Protocol => "; check the server's log",
        _ => "",
    };
    let text = match status.message() {
        "" => status.code().description(),
        text => text,
    };
    BackendError::new(kind, certainty, format!("etcd at {server}: {text}{advice}"))
}

/// A failure of the client crate as a backend error.
pub(crate) fn from_client(server: &str, error: &etcd_client::Error) -> BackendError {
    use etcd_client::Error;
    match error {
        Error::GRpcStatus(status) => from_status(server, status),
        Error::TransportError(error) => without_effect(server, error).unwrap_or_else(|| {
            let message = format!("etcd at {server}: the connection broke: {error}");
            BackendError::unknown(ErrorKind::Unreachable, message)
        }),
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
            let message = format!("etcd at {server}: {error}");
            BackendError::not_applied(ErrorKind::Protocol, message)
        }
        _ => BackendError::unknown(ErrorKind::Protocol, format!("etcd at {server}: {error}")),
    }
}

/// No answer in time.
pub(crate) fn timed_out(server: &str, limit: std::time::Duration) -> BackendError {
    let message = format!("etcd at {server} did not answer within {limit:?}; check its load");
    BackendError::unknown(ErrorKind::Timeout, message)
}

/// Whether the server lost its cluster, so that another may do better.
pub(crate) fn is_servers_fault(error: &BackendError) -> bool {
    matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable)
}

/// Whether a token of authentication has run out.
pub(crate) fn is_invalid_token(status: &Status) -> bool {
    status.code() == Code::Unauthenticated || status.message() == "etcdserver: invalid auth token"
}

fn classify(code: Code, message: &str) -> (ErrorKind, Certainty) {
    use Certainty::{NotApplied, Unknown};
    let text = message.strip_prefix("etcdserver: ").unwrap_or(message);
    match code {
        // Raft may still commit what timed out here (etcd: ErrTimeout and its relatives); only a
        // request that was refused at the door is surely without effect.
        Code::Unavailable => match text {
            "no leader" | "not capable" => (ErrorKind::Unavailable, NotApplied),
            text if text.starts_with("request timed out") => (ErrorKind::Timeout, Unknown),
            "leader changed" | "server stopped" => (ErrorKind::Unavailable, Unknown),
            _ => (ErrorKind::Unreachable, Unknown),
        },
        Code::DeadlineExceeded => (ErrorKind::Timeout, Unknown),
        Code::PermissionDenied | Code::Unauthenticated => (ErrorKind::Denied, NotApplied),
        Code::NotFound => (ErrorKind::LeaseGone, NotApplied),
        Code::OutOfRange => (ErrorKind::HistoryGone, NotApplied),
        Code::AlreadyExists => (ErrorKind::Conflict, NotApplied),
        Code::FailedPrecondition => match text {
            "lease already exists" => (ErrorKind::Conflict, NotApplied),
            _ => (ErrorKind::Denied, NotApplied),
        },
        Code::ResourceExhausted => match text {
            "too many requests" | "mvcc: database space exceeded" => {
                (ErrorKind::Unavailable, NotApplied)
            }
            _ => (ErrorKind::TooLarge, NotApplied),
        },
        Code::InvalidArgument => match text {
            "request is too large" => (ErrorKind::TooLarge, NotApplied),
            "key is not provided" => (ErrorKind::InvalidKey, NotApplied),
            "user name is empty" => (ErrorKind::Denied, NotApplied),
            text if text.contains("authentication failed") => (ErrorKind::Denied, NotApplied),
            _ => (ErrorKind::Protocol, NotApplied),
        },
        Code::Unimplemented => (ErrorKind::Unsupported, NotApplied),
        // A broken connection shows as one of these, depending on when it broke.
        Code::Unknown | Code::Internal | Code::Cancelled | Code::Aborted | Code::DataLoss => {
            (ErrorKind::Unreachable, Unknown)
        }
        Code::Ok => (ErrorKind::Protocol, Unknown),
    }
}

/// A failure before anything was sent.
fn without_effect(server: &str, error: &(dyn std::error::Error + 'static)) -> Option<BackendError> {
    if let Some(failed) = find::<ConnectFailed>(error) {
        let message = failed.to_string();
        return Some(BackendError::not_applied(ErrorKind::Unreachable, message));
    }
    if !never_left(error) {
        return None;
    }
    let message = format!("etcd at {server}: the connection closed before the request was sent");
    Some(BackendError::not_applied(ErrorKind::Unreachable, message))
}

/// Whether a call can simply be made again: it never left, and the next one makes a new
/// connection. hyper cancels what still waits for its turn when a connection closes, and nothing
/// else.
pub(crate) fn never_left(error: &(dyn std::error::Error + 'static)) -> bool {
    find::<hyper::Error>(error).is_some_and(hyper::Error::is_canceled)
}

fn find<'a, T: std::error::Error + 'static>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certainty_follows_from_etcds_words() {
        use Certainty::{NotApplied, Unknown};
        let cases: &[(Code, &str, ErrorKind, Certainty, bool)] = &[
            (
                Code::Unavailable,
                "etcdserver: no leader",
                ErrorKind::Unavailable,
                NotApplied,
                true,
            ),
            (
                Code::Unavailable,
                "etcdserver: leader changed",
                ErrorKind::Unavailable,
                Unknown,
                true,
            ),
            (
                Code::Unavailable,
                "etcdserver: request timed out",
                ErrorKind::Timeout,
                Unknown,
                true,
            ),
            (
                Code::Unavailable,
                "etcdserver: request timed out, possibly due to connection lost",
                ErrorKind::Timeout,
                Unknown,
                true,
            ),
            (
                Code::Unavailable,
                "transport is closing",
                ErrorKind::Unreachable,
                Unknown,
                true,
            ),
            (
                Code::NotFound,
                "etcdserver: requested lease not found",
                ErrorKind::LeaseGone,
                NotApplied,
                false,
            ),
            (
                Code::FailedPrecondition,
                "etcdserver: lease already exists",
                ErrorKind::Conflict,
                NotApplied,
                false,
            ),
            (
                Code::OutOfRange,
                "etcdserver: mvcc: required revision has been compacted",
                ErrorKind::HistoryGone,
                NotApplied,
                false,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: request is too large",
                ErrorKind::TooLarge,
                NotApplied,
                false,
            ),
            (
                Code::ResourceExhausted,
                "etcdserver: mvcc: database space exceeded",
                ErrorKind::Unavailable,
                NotApplied,
                true,
            ),
            (
                Code::PermissionDenied,
                "etcdserver: permission denied",
                ErrorKind::Denied,
                NotApplied,
                false,
            ),
        ];
        for (code, message, kind, certainty, retryable) in cases {
            let error = from_status("a:1", &Status::new(*code, *message));
            assert_eq!(
                (error.kind(), error.certainty(), error.is_retryable()),
                (*kind, *certainty, *retryable),
                "{message}"
            );
            assert!(error.to_string().contains("a:1") && error.to_string().contains(message));
        }
    }
}
