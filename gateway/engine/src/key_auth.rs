//! Users, roles and permissions of the etcd protocol (etcd: auth/store.go), and the tokens that stand for users.
//!
//! [`AuthStore`] is state that the log rebuilds: it changes by [`AuthCommand`]s alone and holds hashes, never
//! passwords. [`Tokens`] are volatile, as etcd's simple tokens are: after a restart clients log in again.
//! `check` says who may do what; it is asked in the same moment in which the change is made.

mod check;
mod permission;
#[cfg(test)]
mod tests;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub use check::{Demand, Identity};
pub use permission::{Permission, PermissionKind};
pub use tokens::{Credentials, TOKEN_TTL_MS, Tokens};

use permission::Permitted;

/// The user that has to exist, with the role of the same name, before authentication is enabled; the role may do
/// everything.
pub const ROOT: &str = "root";

/// Why something about users was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// Enabling needs a user `root`.
    #[error("root user does not exist")]
    RootUserNotExist,
    /// Enabling needs the user `root` to have the role `root`.
    #[error("root user does not have root role")]
    RootRoleNotExist,
    /// The user exists.
    #[error("user name already exists")]
    UserAlreadyExist,
    /// No name in the request, or nobody logged in.
    #[error("user name is empty")]
    UserEmpty,
    /// No such user.
    #[error("user name not found")]
    UserNotFound,
    /// The role exists.
    #[error("role name already exists")]
    RoleAlreadyExist,
    /// No such role.
    #[error("role name not found")]
    RoleNotFound,
    /// No name in the request.
    #[error("role name is empty")]
    RoleEmpty,
    /// Unknown user or wrong password.
    #[error("authentication failed, invalid user ID or password")]
    AuthFailed,
    /// A password for a user that logs in by certificate alone, or a hash that is none.
    #[error("authentication failed, password was given for no password user")]
    NoPasswordUser,
    /// The request has no permission.
    #[error("permission not given")]
    PermissionNotGiven,
    /// The caller may not.
    #[error("permission denied")]
    PermissionDenied,
    /// The user has no such role.
    #[error("role is not granted to the user")]
    RoleNotGranted,
    /// The role has no such permission.
    #[error("permission is not granted to the role")]
    PermissionNotGranted,
    /// Authentication is off.
    #[error("authentication is not enabled")]
    NotEnabled,
    /// Nobody has this token (any more).
    #[error("invalid auth token")]
    InvalidToken,
    /// `root` while authentication is on, or a range that ends before it begins.
    #[error("invalid auth management")]
    InvalidManagement,
}

/// A change of users and roles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuthCommand {
    /// From now on callers have to be somebody.
    Enable,
    /// Everybody may do everything again.
    Disable,
    /// A new user.
    UserAdd {
        /// Name.
        name: String,
        /// Hash of the password; `None` for a user that logs in by certificate alone.
        password: Option<PasswordHash>,
    },
    /// A user is gone, and its tokens with it.
    UserDelete {
        /// Name.
        name: String,
    },
    /// Another password; the user's tokens are void.
    UserChangePassword {
        /// Name.
        name: String,
        /// Hash of the new password; `None` when what was given is no hash.
        password: Option<PasswordHash>,
    },
    /// A user gets a role.
    UserGrantRole {
        /// User.
        user: String,
        /// Role; `root` need not exist as one.
        role: String,
    },
    /// A user loses a role.
    UserRevokeRole {
        /// User.
        user: String,
        /// Role.
        role: String,
    },
    /// A new role without permissions.
    RoleAdd {
        /// Name.
        name: String,
    },
    /// A role is gone, from its users too.
    RoleDelete {
        /// Name.
        name: String,
    },
    /// A role may do more.
    RoleGrantPermission {
        /// Role.
        role: String,
        /// What it may; `None` when the request had none.
        permission: Option<Permission>,
    },
    /// A role may do less.
    RoleRevokePermission {
        /// Role.
        role: String,
        /// First key, as it was granted.
        key: Bytes,
        /// End of the range, as it was granted.
        range_end: Bytes,
    },
}

/// A hash of a password in bcrypt's text form. Not shown in logs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PasswordHash(pub Bytes);

impl std::fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PasswordHash(..)")
    }
}

/// A user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct User {
    /// `None`: logs in by certificate alone.
    password: Option<PasswordHash>,
    roles: BTreeSet<String>,
}

/// Users and roles.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(from = "Saved")]
pub struct AuthStore {
    enabled: bool,
    revision: u64,
    users: BTreeMap<String, User>,
    roles: BTreeMap<String, Vec<Permission>>,
    /// What each user may through all its roles.
    #[serde(skip_serializing)]
    permitted: BTreeMap<String, Permitted>,
}

/// [`AuthStore`] without what follows from the rest.
#[derive(Deserialize)]
struct Saved {
    enabled: bool,
    revision: u64,
    users: BTreeMap<String, User>,
    roles: BTreeMap<String, Vec<Permission>>,
}

impl From<Saved> for AuthStore {
    fn from(saved: Saved) -> Self {
        let mut store = AuthStore {
            enabled: saved.enabled,
            revision: saved.revision,
            users: saved.users,
            roles: saved.roles,
            permitted: BTreeMap::new(),
        };
        store.permit_anew();
        store
    }
}

impl Default for AuthStore {
    /// Without users, and off.
    fn default() -> Self {
        AuthStore {
            enabled: false,
            revision: 1,
            users: BTreeMap::new(),
            roles: BTreeMap::new(),
            permitted: BTreeMap::new(),
        }
    }
}

/// Reads.
impl AuthStore {
    /// Whether callers have to be somebody.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Counts changes of users and roles, from 1.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Names of the users, in order.
    pub fn users(&self) -> impl Iterator<Item = &str> {
        self.users.keys().map(String::as_str)
    }

    /// Names of the roles, in order.
    pub fn roles(&self) -> impl Iterator<Item = &str> {
        self.roles.keys().map(String::as_str)
    }

    /// Roles of a user, in order.
    pub fn roles_of(&self, user: &str) -> Result<impl Iterator<Item = &str>, AuthError> {
        let user = self.users.get(user).ok_or(AuthError::UserNotFound)?;
        Ok(user.roles.iter().map(String::as_str))
    }

    /// Permissions of a role, in the order of their keys. `root` shows all it may, whatever it was granted.
    pub fn permissions_of(&self, role: &str) -> Result<Vec<Permission>, AuthError> {
        let granted = self.roles.get(role).ok_or(AuthError::RoleNotFound)?;
        if role == ROOT {
            return Ok(vec![Permission {
                kind: PermissionKind::ReadWrite,
                key: Bytes::new(),
                range_end: Bytes::from_static(&[0]),
            }]);
        }
        Ok(granted.clone())
    }

    /// Each user's name, password (`None`: logs in by certificate alone) and roles, for a snapshot.
    pub fn all_users(
        &self,
    ) -> impl Iterator<Item = (&str, Option<&PasswordHash>, impl Iterator<Item = &str>)> {
        self.users.iter().map(|(name, user)| {
            let roles = user.roles.iter().map(String::as_str);
            (name.as_str(), user.password.as_ref(), roles)
        })
    }

    /// Each role's name and what it was granted, for a snapshot.
    pub fn all_roles(&self) -> impl Iterator<Item = (&str, &[Permission])> {
        let roles = self.roles.iter();
        roles.map(|(name, granted)| (name.as_str(), granted.as_slice()))
    }

    /// What a password of the user has to match, and the revision at which that is so: by the time it was compared
    /// the user may have another one.
    pub fn password_of(&self, user: &str) -> Result<(PasswordHash, u64), AuthError> {
        if !self.enabled {
            return Err(AuthError::NotEnabled);
        }
        let user = self.users.get(user).ok_or(AuthError::AuthFailed)?;
        let hash = user.password.clone().ok_or(AuthError::NoPasswordUser)?;
        Ok((hash, self.revision))
    }
}

/// Changes.
impl AuthStore {
    /// Makes one change, or says why not.
    pub fn apply(&mut self, command: &AuthCommand) -> Result<(), AuthError> {
        match command {
            AuthCommand::Enable => return self.enable(),
            AuthCommand::Disable => {
                if !self.enabled {
                    return Ok(());
                }
                self.enabled = false;
            }
            AuthCommand::UserAdd { name, password } => self.add_user(name, password.clone())?,
            AuthCommand::UserDelete { name } => {
                self.guard_root(name == ROOT)?;
                self.users.remove(name).ok_or(AuthError::UserNotFound)?;
            }
            AuthCommand::UserChangePassword { name, password } => {
                let user = self.user(name)?;
                if user.password.is_some() {
                    let hash = password.clone().ok_or(AuthError::NoPasswordUser)?;
                    user.password = Some(hash);
                }
            }
            AuthCommand::UserGrantRole { user, role } => {
                let known = role == ROOT || self.roles.contains_key(role);
                let user = self.user(user)?;
                if !known {
                    return Err(AuthError::RoleNotFound);
                }
                if !user.roles.insert(role.clone()) {
                    return Ok(());
                }
            }
            AuthCommand::UserRevokeRole { user, role } => {
                self.guard_root(user == ROOT && role == ROOT)?;
                if !self.user(user)?.roles.remove(role) {
                    return Err(AuthError::RoleNotGranted);
                }
            }
            AuthCommand::RoleAdd { name } => {
                if name.is_empty() {
                    return Err(AuthError::RoleEmpty);
                }
                if self.roles.contains_key(name) {
                    return Err(AuthError::RoleAlreadyExist);
                }
                self.roles.insert(name.clone(), Vec::new());
            }
            AuthCommand::RoleDelete { name } => {
                self.guard_root(name == ROOT)?;
                self.roles.remove(name).ok_or(AuthError::RoleNotFound)?;
                for user in self.users.values_mut() {
                    user.roles.remove(name);
                }
            }
            AuthCommand::RoleGrantPermission { role, permission } => {
                let wanted = permission.as_ref().ok_or(AuthError::PermissionNotGiven)?;
                if !wanted.is_valid() {
                    return Err(AuthError::InvalidManagement);
                }
                let granted = self.roles.get_mut(role).ok_or(AuthError::RoleNotFound)?;
                permission::grant(granted, wanted);
            }
            AuthCommand::RoleRevokePermission {
                role,
                key,
                range_end,
            } => {
                let granted = self.roles.get_mut(role).ok_or(AuthError::RoleNotFound)?;
                let before = granted.len();
                granted.retain(|p| p.key != key || p.range_end != range_end);
                if granted.len() == before {
                    return Err(AuthError::PermissionNotGranted);
                }
            }
        }
        self.revision += 1;
        self.permit_anew();
        Ok(())
    }

    /// Enabling is no change of users: it counts no revision.
    fn enable(&mut self) -> Result<(), AuthError> {
        if !self.enabled {
            let root = self.users.get(ROOT).ok_or(AuthError::RootUserNotExist)?;
            if !root.roles.contains(ROOT) {
                return Err(AuthError::RootRoleNotExist);
            }
            self.enabled = true;
        }
        Ok(())
    }

    fn add_user(&mut self, name: &str, password: Option<PasswordHash>) -> Result<(), AuthError> {
        if name.is_empty() {
            return Err(AuthError::UserEmpty);
        }
        if self.users.contains_key(name) {
            return Err(AuthError::UserAlreadyExist);
        }
        let roles = BTreeSet::new();
        self.users.insert(name.into(), User { password, roles });
        Ok(())
    }

    /// While authentication is on, nobody may lock everybody out.
    fn guard_root(&self, is_root: bool) -> Result<(), AuthError> {
        if self.enabled && is_root {
            return Err(AuthError::InvalidManagement);
        }
        Ok(())
    }

    fn user(&mut self, name: &str) -> Result<&mut User, AuthError> {
        self.users.get_mut(name).ok_or(AuthError::UserNotFound)
    }

    fn permit_anew(&mut self) {
        let of = |user: &User| {
            let granted = user.roles.iter().filter_map(|role| self.roles.get(role));
            Permitted::of(granted.flatten())
        };
        let permitted = self
            .users
            .iter()
            .map(|(name, user)| (name.clone(), of(user)));
        self.permitted = permitted.collect();
    }
}
