//! Request numbers under ZooKeeper's names (`ZooDefs.OpCode`, 3.9).

/// Reserved transaction ids of the client protocol.
pub mod xid {
    /// A watch event from the server.
    pub const NOTIFICATION: i32 = -1;
    /// A ping; the reply always carries it.
    pub const PING: i32 = -2;
    /// Auth as most clients send it (go-zookeeper uses ordinary ids instead).
    pub const AUTH: i32 = -4;
    /// setWatches as most clients send it; several may be in flight at once.
    pub const SET_WATCHES: i32 = -8;
}

macro_rules! op_codes {
    ($($(#[$meta:meta])* $name:ident = $number:literal, $wire_name:literal;)+) => {
        /// What a request asks for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i32)]
        pub enum OpCode {
            $($(#[$meta])* $name = $number,)+
        }

        impl OpCode {
            /// Every number that ZooKeeper 3.9 defines.
            pub const ALL: &'static [OpCode] = &[$(OpCode::$name,)+];

            /// ZooKeeper's own spelling.
            pub fn name(self) -> &'static str {
                match self {
                    $(OpCode::$name => $wire_name,)+
                }
            }
        }

        impl TryFrom<i32> for OpCode {
            type Error = UnknownOpCode;

            fn try_from(number: i32) -> Result<Self, UnknownOpCode> {
                match number {
                    $($number => Ok(OpCode::$name),)+
                    other => Err(UnknownOpCode(other)),
                }
            }
        }
    };
}

op_codes! {
    /// Server push only.
    Notification = 0, "notification";
    /// Create, path in the reply.
    Create = 1, "create";
    /// Delete a node.
    Delete = 2, "delete";
    /// Stat of a node, watch also when it is missing.
    Exists = 3, "exists";
    /// Data and Stat.
    GetData = 4, "getData";
    /// Replace the data.
    SetData = 5, "setData";
    /// ACL and Stat.
    GetAcl = 6, "getACL";
    /// Replace the ACL.
    SetAcl = 7, "setACL";
    /// Names of the children.
    GetChildren = 8, "getChildren";
    /// Wait until everything before it is visible.
    Sync = 9, "sync";
    /// Keep the session alive.
    Ping = 11, "ping";
    /// Names of the children, and the Stat.
    GetChildren2 = 12, "getChildren2";
    /// Version check; only inside a multi.
    Check = 13, "check";
    /// Several writes at once.
    Multi = 14, "multi";
    /// Create, path and Stat in the reply.
    Create2 = 15, "create2";
    /// Change the ensemble.
    Reconfig = 16, "reconfig";
    /// Ask whether a watch is set.
    CheckWatches = 17, "checkWatches";
    /// Remove watches.
    RemoveWatches = 18, "removeWatches";
    /// Create a container node.
    CreateContainer = 19, "createContainer";
    /// Delete an empty container; the server's own.
    DeleteContainer = 20, "deleteContainer";
    /// Create a node with a time to live.
    CreateTtl = 21, "createTTL";
    /// Several reads at once.
    MultiRead = 22, "multiRead";
    /// Add an identity to the connection.
    Auth = 100, "auth";
    /// Re-arm watches after a reconnect.
    SetWatches = 101, "setWatches";
    /// One step of a SASL exchange.
    Sasl = 102, "sasl";
    /// Ephemerals of the own session below a prefix.
    GetEphemerals = 103, "getEphemerals";
    /// Number of descendants.
    GetAllChildrenNumber = 104, "getAllChildrenNumber";
    /// Re-arm watches, persistent ones included.
    SetWatches2 = 105, "setWatches2";
    /// Add a persistent watch.
    AddWatch = 106, "addWatch";
    /// Identities of the connection.
    WhoAmI = 107, "whoAmI";
    /// The server's own.
    CreateSession = -10, "createSession";
    /// End the session.
    CloseSession = -11, "closeSession";
    /// A failed operation in the answer to a multi.
    Error = -1, "error";
}

/// A number that ZooKeeper 3.9 does not define.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown operation {0}")]
pub struct UnknownOpCode(pub i32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_agree() {
        for &op in OpCode::ALL {
            assert_eq!(OpCode::try_from(op as i32), Ok(op), "{}", op.name());
        }
        for unknown in [10, 23, 99, 108, 500, 997, 9999, -2, -12, i32::MIN, i32::MAX] {
            assert_eq!(OpCode::try_from(unknown), Err(UnknownOpCode(unknown)));
        }
    }
}
