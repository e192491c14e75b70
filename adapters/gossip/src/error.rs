//! What the registry's refusals mean. None of them changed anything.

use causeway_backend::{BackendError, ErrorKind, LeaseId};
use causeway_registry_node::AccessError;

use crate::Inner;

impl Inner {
    pub(crate) fn error(&self, error: &AccessError) -> BackendError {
        let store = format!("registry {}", self.name);
        let kind = match error {
            AccessError::UnknownLease(lease) => {
                return BackendError::lease_gone(store, LeaseId(lease.id));
            }
            AccessError::Refused(_) => ErrorKind::Denied,
            AccessError::Unavailable(_) => ErrorKind::Unavailable,
        };
        BackendError::not_applied(kind, format!("{store}: {error}"))
    }
}
