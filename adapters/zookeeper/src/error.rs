//! What ZooKeeper's failures mean.

use causeway_backend::{BackendError, Certainty, ErrorKind};
use zookeeper_client::Error;

/// A failed call as a backend error. `servers` is what the configuration names: the client crate
/// does not say which of them it was.
pub(crate) fn from_client(servers: &str, error: &Error) -> BackendError {
    let (kind, certainty) = classify(error);
    let advice = match kind {
        ErrorKind::Denied => "; check the gateway's credentials and the node's ACL",
        ErrorKind::LeaseGone => "; a new session is needed",
        _ => "",
    };
    BackendError::new(
        kind,
        certainty,
        format!("ZooKeeper at {servers}: {error}{advice}"),
    )
}

fn classify(error: &Error) -> (ErrorKind, Certainty) {
    use Certainty::{NotApplied, Unknown};
    match error {
        Error::NoHosts => (ErrorKind::Unreachable, NotApplied),
        // These come from the session's task when nothing more is sent.
        Error::SessionExpired | Error::ClientClosed => (ErrorKind::LeaseGone, NotApplied),
        Error::NoNode | Error::BadVersion | Error::NodeExists | Error::RuntimeInconsistent => {
            (ErrorKind::Conflict, NotApplied)
        }
        Error::NotEmpty | Error::NoChildrenForEphemerals | Error::Unimplemented => {
            (ErrorKind::Unsupported, NotApplied)
        }
        Error::BadArguments(_) => (ErrorKind::InvalidKey, NotApplied),
        Error::NoAuth | Error::AuthFailed | Error::InvalidAcl => (ErrorKind::Denied, NotApplied),
        Error::QuotaExceeded => (ErrorKind::TooLarge, NotApplied),
        Error::NotReadOnly | Error::Throttled | Error::SessionMoved => {
            (ErrorKind::Unavailable, NotApplied)
        }
        Error::MarshallingError | Error::NoWatcher | Error::ReconfigDisabled => {
            (ErrorKind::Protocol, NotApplied)
        }
        Error::ConnectionLoss | Error::Custom(_) => (ErrorKind::Unreachable, Unknown),
        Error::Timeout => (ErrorKind::Timeout, Unknown),
        _ => (ErrorKind::Protocol, Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certainty_follows_from_what_the_server_said() {
        use Certainty::{NotApplied, Unknown};
        let cases: &[(Error, ErrorKind, Certainty, bool)] = &[
            (Error::NoHosts, ErrorKind::Unreachable, NotApplied, true),
            (Error::ConnectionLoss, ErrorKind::Unreachable, Unknown, true),
            (Error::Timeout, ErrorKind::Timeout, Unknown, true),
            (Error::NodeExists, ErrorKind::Conflict, NotApplied, false),
            (Error::BadVersion, ErrorKind::Conflict, NotApplied, false),
            (
                Error::SessionExpired,
                ErrorKind::LeaseGone,
                NotApplied,
                false,
            ),
            (Error::NoAuth, ErrorKind::Denied, NotApplied, false),
            (
                Error::BadArguments(&"path"),
                ErrorKind::InvalidKey,
                NotApplied,
                false,
            ),
            (
                Error::UnexpectedErrorCode(-99),
                ErrorKind::Protocol,
                Unknown,
                false,
            ),
        ];
        for (error, kind, certainty, retryable) in cases {
            let found = from_client("a:1,b:2", error);
            assert_eq!(
                (found.kind(), found.certainty(), found.is_retryable()),
                (*kind, *certainty, *retryable),
                "{error}"
            );
            assert!(found.to_string().contains("a:1,b:2"));
        }
    }
}
