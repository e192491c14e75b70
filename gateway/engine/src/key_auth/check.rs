//! Who may do what (etcd: etcdserver/apply/auth.go, v3_server.go and v3rpc, in 3.7).

use bytes::Bytes;

use super::{AuthError, AuthStore, Credentials, ROOT, Tokens};
use crate::key_space::{KeyCommand, KeySpace, Lease, Op, Txn};

/// Who calls; nobody without a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity(Option<String>);

/// What a caller wants to do.
#[derive(Debug, Clone, Copy)]
pub enum Demand<'a> {
    /// Nothing that needs a right, but a token that is shown has to be good.
    Anything,
    /// Something that everybody may who is somebody.
    BeKnown,
    /// Something that only `root` may.
    BeRoot,
    /// To read, or to watch.
    Read {
        /// First key.
        key: &'a [u8],
        /// End of the range.
        range_end: &'a [u8],
    },
    /// To write. A transaction that only reads is one too.
    Write(&'a KeyCommand),
    /// To keep a lease alive: to write all its keys.
    RenewLease(i64),
    /// To see the keys of a lease: to read them all.
    ReadLease(i64),
    /// To see all leases: to read all keys of them all.
    ReadLeases,
    /// To see a user: `root` may, and the user.
    SeeUser(&'a str),
    /// To see a role: `root` may, and whoever has it.
    SeeRole(&'a str),
}

impl AuthStore {
    /// Who calls. A name in a certificate is believed as it is; whether there is such a user is asked later.
    pub fn identify(
        &self,
        tokens: &mut Tokens,
        shown: Credentials<'_>,
        now_ms: i64,
    ) -> Result<Identity, AuthError> {
        let name = match shown.token {
            Some(token) => {
                let token = token.strip_prefix("Bearer ").unwrap_or(token);
                Some(tokens.user(token, now_ms).ok_or(AuthError::InvalidToken)?)
            }
            None => shown.certificate,
        };
        Ok(Identity(name.map(str::to_owned)))
    }

    /// Whether the caller may. While authentication is off everybody may everything.
    pub fn permit(
        &self,
        who: &Identity,
        demand: Demand<'_>,
        keys: &KeySpace,
    ) -> Result<(), AuthError> {
        if !self.is_enabled() {
            return Ok(());
        }
        match demand {
            Demand::Anything => Ok(()),
            Demand::BeKnown => who.0.as_ref().map(|_| ()).ok_or(AuthError::UserEmpty),
            Demand::BeRoot => self.be_root(who),
            Demand::Read { key, range_end } => self.read(who, key, range_end),
            Demand::Write(command) => self.write_command(who, command, keys),
            Demand::RenewLease(id) => {
                self.permit(who, Demand::BeKnown, keys)?;
                self.write_lease(who, keys.lease(id))
            }
            Demand::ReadLease(id) => {
                self.permit(who, Demand::BeKnown, keys)?;
                self.read_lease(who, keys.lease(id))
            }
            Demand::ReadLeases => {
                self.permit(who, Demand::BeKnown, keys)?;
                keys.leases()
                    .try_for_each(|(_, lease)| self.read_lease(who, Some(lease)))
            }
            Demand::SeeUser(name) => match self.be_root(who) {
                Err(error) if name != who.name() => Err(error),
                _ => Ok(()),
            },
            Demand::SeeRole(role) => {
                let has = |user: &super::User| user.roles.contains(role);
                match self.be_root(who) {
                    Err(error) if !self.users.get(who.name()).is_some_and(has) => Err(error),
                    _ => Ok(()),
                }
            }
        }
    }

    fn be_root(&self, who: &Identity) -> Result<(), AuthError> {
        if who.name().is_empty() {
            return Err(AuthError::UserEmpty);
        }
        let user = self.users.get(who.name()).ok_or(AuthError::UserNotFound)?;
        if user.roles.contains(ROOT) {
            Ok(())
        } else {
            Err(AuthError::PermissionDenied)
        }
    }

    fn read(&self, who: &Identity, key: &[u8], range_end: &[u8]) -> Result<(), AuthError> {
        self.on_range(who, |permitted| permitted.may_read(key, range_end))
    }

    fn write(&self, who: &Identity, key: &[u8], range_end: &[u8]) -> Result<(), AuthError> {
        self.on_range(who, |permitted| permitted.may_write(key, range_end))
    }

    fn on_range(
        &self,
        who: &Identity,
        allows: impl FnOnce(&super::Permitted) -> bool,
    ) -> Result<(), AuthError> {
        let Some(name) = &who.0 else {
            return Err(AuthError::UserEmpty);
        };
        let is_root = self
            .users
            .get(name)
            .is_some_and(|user| user.roles.contains(ROOT));
        if is_root || self.permitted.get(name).is_some_and(allows) {
            Ok(())
        } else {
            Err(AuthError::PermissionDenied)
        }
    }

    fn write_command(
        &self,
        who: &Identity,
        command: &KeyCommand,
        keys: &KeySpace,
    ) -> Result<(), AuthError> {
        match command {
            KeyCommand::Put {
                key,
                lease,
                prev_kv,
                ..
            } => self.put(who, key, *lease, *prev_kv, keys),
            KeyCommand::DeleteRange {
                key,
                range_end,
                prev_kv,
            } => self.delete(who, key, range_end, *prev_kv),
            KeyCommand::Txn(txn) => self.txn(who, txn, keys),
            KeyCommand::LeaseGrant { .. } => self.permit(who, Demand::BeKnown, keys),
            KeyCommand::LeaseRevoke { id, .. } => {
                self.permit(who, Demand::BeKnown, keys)?;
                self.write_lease(who, keys.lease(*id))
            }
            // A compaction; the others are no clients' requests.
            KeyCommand::Compact { .. }
            | KeyCommand::Alarm { .. }
            | KeyCommand::Downgrade { .. }
            | KeyCommand::RemoveAll { .. }
            | KeyCommand::Import { .. }
            | KeyCommand::ImportAll { .. }
            | KeyCommand::ForgetLease { .. }
            | KeyCommand::AdoptLease { .. }
            | KeyCommand::TrimHistory { .. } => self.be_root(who),
        }
    }

    /// Under a lease whose other keys the caller may not write, it could not take its own key back by revoking.
    fn put(
        &self,
        who: &Identity,
        key: &Bytes,
        lease: i64,
        prev_kv: bool,
        keys: &KeySpace,
    ) -> Result<(), AuthError> {
        self.write(who, key, b"")?;
        self.write_lease(who, keys.lease(lease))?;
        if prev_kv {
            self.read(who, key, b"")?;
        }
        Ok(())
    }

    fn delete(
        &self,
        who: &Identity,
        key: &Bytes,
        range_end: &Bytes,
        prev_kv: bool,
    ) -> Result<(), AuthError> {
        self.write(who, key, range_end)?;
        if prev_kv {
            self.read(who, key, range_end)?;
        }
        Ok(())
    }

    /// Both branches, whichever is taken: the refusal must not tell which.
    fn txn(&self, who: &Identity, txn: &Txn, keys: &KeySpace) -> Result<(), AuthError> {
        for compare in &txn.compare {
            self.read(who, &compare.key, &compare.range_end)?;
        }
        for op in txn.success.iter().chain(&txn.failure) {
            match op {
                Op::Range(range) => self.read(who, &range.key, &range.range_end)?,
                Op::Put {
                    key,
                    lease,
                    prev_kv,
                    ..
                } => self.put(who, key, *lease, *prev_kv, keys)?,
                Op::DeleteRange {
                    key,
                    range_end,
                    prev_kv,
                } => self.delete(who, key, range_end, *prev_kv)?,
                // No deeper than the shape allows, which is checked before.
                Op::Txn(inner) => self.txn(who, inner, keys)?,
                Op::Empty => {}
            }
        }
        Ok(())
    }

    fn write_lease(&self, who: &Identity, lease: Option<&Lease>) -> Result<(), AuthError> {
        let mut keys = lease.into_iter().flat_map(|lease| &lease.keys);
        keys.try_for_each(|key| self.write(who, key, b""))
    }

    fn read_lease(&self, who: &Identity, lease: Option<&Lease>) -> Result<(), AuthError> {
        let mut keys = lease.into_iter().flat_map(|lease| &lease.keys);
        keys.try_for_each(|key| self.read(who, key, b""))
    }
}

impl Identity {
    /// Nobody in particular.
    pub fn nobody() -> Self {
        Identity(None)
    }

    /// A user.
    pub fn user(name: &str) -> Self {
        Identity(Some(name.to_owned()))
    }

    fn name(&self) -> &str {
        self.0.as_deref().unwrap_or("")
    }
}
