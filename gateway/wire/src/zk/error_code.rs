//! Reply codes under ZooKeeper's names (`KeeperException.Code`, 3.9).

macro_rules! error_codes {
    ($($(#[$meta:meta])* $name:ident = $number:literal;)+) => {
        /// The outcome in a reply header or in a slot of a multi.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i32)]
        pub enum ErrorCode {
            $($(#[$meta])* $name = $number,)+
        }

        impl ErrorCode {
            /// Every code that ZooKeeper 3.9 defines.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name,)+];

            /// The code with this number; `None` for numbers that ZooKeeper 3.9 does not define.
            pub fn from_number(number: i32) -> Option<Self> {
                match number {
                    $($number => Some(ErrorCode::$name),)+
                    _ => None,
                }
            }
        }
    };
}

error_codes! {
    /// Success.
    Ok = 0;
    /// Something in the server failed.
    SystemError = -1;
    /// Inside a failed multi: not run because of another slot. Never a code of a reply header.
    RuntimeInconsistency = -2;
    /// The server's data is inconsistent.
    DataInconsistency = -3;
    /// A client's own code; never sent.
    ConnectionLoss = -4;
    /// The request could not be decoded.
    MarshallingError = -5;
    /// The operation is unknown or switched off.
    Unimplemented = -6;
    /// A client's own code; never sent.
    OperationTimeout = -7;
    /// Bad path or arguments.
    BadArguments = -8;
    /// The session is not known.
    UnknownSession = -12;
    /// The new ensemble would have no quorum.
    NewConfigNoQuorum = -13;
    /// Another reconfiguration runs.
    ReconfigInProgress = -14;
    /// Boundary of the codes below; not sent.
    ApiError = -100;
    /// The node does not exist.
    NoNode = -101;
    /// Not permitted.
    NoAuth = -102;
    /// The version does not match.
    BadVersion = -103;
    /// An ephemeral node cannot have children.
    NoChildrenForEphemerals = -108;
    /// The node exists already.
    NodeExists = -110;
    /// The node has children.
    NotEmpty = -111;
    /// The session has expired.
    SessionExpired = -112;
    /// A client's own code.
    InvalidCallback = -113;
    /// The ACL list is empty or not valid.
    InvalidAcl = -114;
    /// The credentials were refused; the connection closes after it.
    AuthFailed = -115;
    /// The session lives on another server now.
    SessionMoved = -118;
    /// A write was sent to a read-only server.
    NotReadOnly = -119;
    /// Ephemeral node on a local session.
    EphemeralOnLocalSession = -120;
    /// No such watch.
    NoWatcher = -121;
    /// The request waited too long in the server.
    RequestTimeout = -122;
    /// Reconfiguration is switched off.
    ReconfigDisabled = -123;
    /// The server takes SASL sessions only.
    SessionClosedRequireSaslAuth = -124;
    /// A quota would be exceeded; only clients from 3.7 on know it.
    QuotaExceeded = -125;
    /// The server throttles; only clients from 3.7 on know it.
    ThrottledOp = -127;
}

impl ErrorCode {
    /// The number on the wire.
    pub fn number(self) -> i32 {
        self as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_map_both_ways() {
        for &code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_number(code.number()), Some(code));
        }
        for unknown in [1, -9, -10, -11, -15, -99, -104, -126, -128, i32::MIN] {
            assert_eq!(ErrorCode::from_number(unknown), None);
        }
    }
}
