//! etcd's errors: clients compare the code and the exact text (`api/v3rpc/rpctypes/error.go`, 3.7).

/// gRPC status codes by their numbers, so that this crate needs no gRPC.
mod code {
    pub(super) const CANCELED: i32 = 1;
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const DEADLINE_EXCEEDED: i32 = 4;
    pub(super) const NOT_FOUND: i32 = 5;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(super) const FAILED_PRECONDITION: i32 = 9;
    pub(super) const OUT_OF_RANGE: i32 = 11;
    pub(super) const UNAVAILABLE: i32 = 14;
    pub(super) const DATA_LOSS: i32 = 15;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

macro_rules! errors {
    ($($(#[$meta:meta])* $name:ident: $code:ident, $message:literal;)+) => {
        /// An error as etcd reports it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
        pub enum EtcdError {
            $($(#[$meta])* #[error($message)] $name,)+
        }

        impl EtcdError {
            /// All of them.
            pub const ALL: &'static [EtcdError] = &[$(EtcdError::$name,)+];

            /// The number of the gRPC status code.
            pub fn code(self) -> i32 {
                match self {
                    $(EtcdError::$name => code::$code,)+
                }
            }

            /// The exact text of the gRPC status.
            pub fn message(self) -> &'static str {
                match self {
                    $(EtcdError::$name => $message,)+
                }
            }
        }
    };
}

errors! {
    /// Key empty.
    EmptyKey: INVALID_ARGUMENT, "etcdserver: key is not provided";
    /// Empty operation in a transaction, or ignore_value / ignore_lease on a missing key.
    KeyNotFound: INVALID_ARGUMENT, "etcdserver: key not found";
    /// ignore_value together with a value.
    ValueProvided: INVALID_ARGUMENT, "etcdserver: value is provided";
    /// ignore_lease together with a lease.
    LeaseProvided: INVALID_ARGUMENT, "etcdserver: lease is provided";
    /// More than 128 operations in a transaction.
    TooManyOps: INVALID_ARGUMENT, "etcdserver: too many operations in txn request";
    /// A key put twice in a transaction.
    DuplicateKey: INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request";
    /// Client version not understood.
    InvalidClientApiVersion: INVALID_ARGUMENT, "etcdserver: invalid client api version";
    /// Unknown sort order or target.
    InvalidSortOption: INVALID_ARGUMENT, "etcdserver: invalid sort option";
    /// The revision was compacted.
    Compacted: OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted";
    /// The revision does not exist yet.
    FutureRev: OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision";
    /// Quota reached.
    NoSpace: RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded";

    /// No such lease.
    LeaseNotFound: NOT_FOUND, "etcdserver: requested lease not found";
    /// The chosen lease id is taken.
    LeaseExist: FAILED_PRECONDITION, "etcdserver: lease already exists";
    /// TTL above 9,000,000,000 s.
    LeaseTtlTooLarge: OUT_OF_RANGE, "etcdserver: too large lease TTL";

    /// The client ended the watch stream.
    WatchCanceled: CANCELED, "etcdserver: watch canceled";

    /// The etcd member id is taken.
    MemberExist: FAILED_PRECONDITION, "etcdserver: member ID already exist";
    /// The peer address is taken.
    PeerUrlExist: FAILED_PRECONDITION, "etcdserver: Peer URLs already exists";
    /// The change would lose the quorum.
    MemberNotEnoughStarted: FAILED_PRECONDITION,
        "etcdserver: re-configuration failed due to not enough started members";
    /// Bad peer addresses.
    MemberBadUrls: INVALID_ARGUMENT, "etcdserver: given member URLs are invalid";
    /// No such etcd member.
    MemberNotFound: NOT_FOUND, "etcdserver: member not found";
    /// Not a learner.
    MemberNotLearner: FAILED_PRECONDITION, "etcdserver: can only promote a learner member";
    /// The learner is behind.
    LearnerNotReady: FAILED_PRECONDITION,
        "etcdserver: can only promote a learner member which is in sync with leader";
    /// Too many learners.
    TooManyLearners: FAILED_PRECONDITION, "etcdserver: too many learner members in cluster";
    /// Another cluster.
    ClusterIdMismatch: FAILED_PRECONDITION, "etcdserver: cluster ID mismatch";

    /// Above 1.5 MiB.
    RequestTooLarge: INVALID_ARGUMENT, "etcdserver: request is too large";
    /// The server is overloaded.
    TooManyRequests: RESOURCE_EXHAUSTED, "etcdserver: too many requests";

    /// Auth needs a root user.
    RootUserNotExist: FAILED_PRECONDITION, "etcdserver: root user does not exist";
    /// Auth needs the root role.
    RootRoleNotExist: FAILED_PRECONDITION, "etcdserver: root user does not have root role";
    /// User name taken.
    UserAlreadyExist: FAILED_PRECONDITION, "etcdserver: user name already exists";
    /// No user name.
    UserEmpty: INVALID_ARGUMENT, "etcdserver: user name is empty";
    /// No such user.
    UserNotFound: FAILED_PRECONDITION, "etcdserver: user name not found";
    /// Role name taken.
    RoleAlreadyExist: FAILED_PRECONDITION, "etcdserver: role name already exists";
    /// No such role.
    RoleNotFound: FAILED_PRECONDITION, "etcdserver: role name not found";
    /// No role name.
    RoleEmpty: INVALID_ARGUMENT, "etcdserver: role name is empty";
    /// Wrong password or user.
    AuthFailed: INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID or password";
    /// No permission in the request.
    PermissionNotGiven: INVALID_ARGUMENT, "etcdserver: permission not given";
    /// Not permitted.
    PermissionDenied: PERMISSION_DENIED, "etcdserver: permission denied";
    /// The user has no such role.
    RoleNotGranted: FAILED_PRECONDITION, "etcdserver: role is not granted to the user";
    /// The role has no such permission.
    PermissionNotGranted: FAILED_PRECONDITION, "etcdserver: permission is not granted to the role";
    /// Auth is off.
    AuthNotEnabled: FAILED_PRECONDITION, "etcdserver: authentication is not enabled";
    /// Token unknown or expired; clients authenticate again.
    InvalidAuthToken: UNAUTHENTICATED, "etcdserver: invalid auth token";
    /// Users or roles that may not be changed.
    InvalidAuthMgmt: INVALID_ARGUMENT, "etcdserver: invalid auth management";
    /// Users or roles changed since the token; clients authenticate again.
    AuthOldRevision: INVALID_ARGUMENT, "etcdserver: revision of auth store is old";

    /// No leader.
    NoLeader: UNAVAILABLE, "etcdserver: no leader";
    /// Sent to a follower.
    NotLeader: FAILED_PRECONDITION, "etcdserver: not leader";
    /// The leader changed meanwhile.
    LeaderChanged: UNAVAILABLE, "etcdserver: leader changed";
    /// Not supported at this version.
    NotCapable: FAILED_PRECONDITION, "etcdserver: not capable";
    /// Shutting down.
    Stopped: UNAVAILABLE, "etcdserver: server stopped";
    /// Timed out.
    Timeout: UNAVAILABLE, "etcdserver: request timed out";
    /// Timed out after a leader failed.
    TimeoutDueToLeaderFail: UNAVAILABLE,
        "etcdserver: request timed out, possibly due to previous leader failure";
    /// Timed out after a link failed.
    TimeoutDueToConnectionLost: UNAVAILABLE,
        "etcdserver: request timed out, possibly due to connection lost";
    /// Timed out waiting for the log.
    TimeoutWaitAppliedIndex: UNAVAILABLE,
        "etcdserver: request timed out, waiting for the applied index took too long";
    /// Not healthy.
    Unhealthy: UNAVAILABLE, "etcdserver: unhealthy cluster";
    /// Corrupt.
    Corrupt: DATA_LOSS, "etcdserver: corrupt cluster";
    /// Learners do not answer it.
    NotSupportedForLearner: FAILED_PRECONDITION, "etcdserver: rpc not supported for learner";
    /// Not a fit successor.
    BadLeaderTransferee: FAILED_PRECONDITION, "etcdserver: bad leader transferee";

    /// Bad version text.
    WrongDowngradeVersionFormat: INVALID_ARGUMENT, "etcdserver: wrong downgrade target version format";
    /// Bad target.
    InvalidDowngradeTargetVersion: INVALID_ARGUMENT, "etcdserver: invalid downgrade target version";
    /// Version unknown.
    ClusterVersionUnavailable: FAILED_PRECONDITION,
        "etcdserver: cluster version not found during downgrade";
    /// Under way.
    DowngradeInProcess: FAILED_PRECONDITION, "etcdserver: cluster has a downgrade job in progress";
    /// Not under way.
    NoInflightDowngrade: FAILED_PRECONDITION, "etcdserver: no inflight downgrade job";

    /// Canceled.
    Canceled: CANCELED, "etcdserver: request canceled";
    /// Deadline passed.
    DeadlineExceeded: DEADLINE_EXCEEDED, "etcdserver: context deadline exceeded";
}

impl EtcdError {
    /// The error with this text, for replies of an upstream etcd.
    pub fn from_message(message: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|error| error.message() == message)
    }

    /// Name of the status code as grpc-go prints it.
    pub fn code_name(self) -> &'static str {
        match self.code() {
            code::CANCELED => "Canceled",
            code::INVALID_ARGUMENT => "InvalidArgument",
            code::DEADLINE_EXCEEDED => "DeadlineExceeded",
            code::NOT_FOUND => "NotFound",
            code::PERMISSION_DENIED => "PermissionDenied",
            code::RESOURCE_EXHAUSTED => "ResourceExhausted",
            code::FAILED_PRECONDITION => "FailedPrecondition",
            code::OUT_OF_RANGE => "OutOfRange",
            code::UNAVAILABLE => "Unavailable",
            code::DATA_LOSS => "DataLoss",
            code::UNAUTHENTICATED => "Unauthenticated",
            _ => "Unknown",
        }
    }

    /// The error as grpc-go prints it, which is what etcd puts into the cancel reason of a denied watch
    /// (`v3rpc/watch.go`).
    pub fn grpc_text(self) -> String {
        format!(
            "rpc error: code = {} desc = {}",
            self.code_name(),
            self.message()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_texts_that_clients_act_on() {
        let check = |error: EtcdError, code, message| {
            assert_eq!((error.code(), error.message()), (code, message));
            assert_eq!(error.to_string(), message);
        };
        check(EtcdError::EmptyKey, 3, "etcdserver: key is not provided");
        check(
            EtcdError::Compacted,
            11,
            "etcdserver: mvcc: required revision has been compacted",
        );
        check(
            EtcdError::FutureRev,
            11,
            "etcdserver: mvcc: required revision is a future revision",
        );
        check(
            EtcdError::NoSpace,
            8,
            "etcdserver: mvcc: database space exceeded",
        );
        check(
            EtcdError::LeaseNotFound,
            5,
            "etcdserver: requested lease not found",
        );
        check(EtcdError::LeaseExist, 9, "etcdserver: lease already exists");
        check(
            EtcdError::LeaseTtlTooLarge,
            11,
            "etcdserver: too large lease TTL",
        );
        check(
            EtcdError::InvalidAuthToken,
            16,
            "etcdserver: invalid auth token",
        );
        check(
            EtcdError::AuthOldRevision,
            3,
            "etcdserver: revision of auth store is old",
        );
        check(
            EtcdError::PermissionDenied,
            7,
            "etcdserver: permission denied",
        );
        check(EtcdError::LeaderChanged, 14, "etcdserver: leader changed");
        check(EtcdError::NotLeader, 9, "etcdserver: not leader");
        check(EtcdError::Corrupt, 15, "etcdserver: corrupt cluster");
    }

    #[test]
    fn texts_are_unique_and_found_again() {
        for &error in EtcdError::ALL {
            assert_eq!(EtcdError::from_message(error.message()), Some(error));
            assert_ne!(error.code_name(), "Unknown", "{error:?}");
            assert!(error.message().starts_with("etcdserver: "));
        }
        assert_eq!(EtcdError::from_message("etcdserver: something new"), None);
    }

    #[test]
    fn text_of_a_denied_watch() {
        assert_eq!(
            EtcdError::PermissionDenied.grpc_text(),
            "rpc error: code = PermissionDenied desc = etcdserver: permission denied"
        );
    }
}
