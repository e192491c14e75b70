//! Auth: users and roles of the embedded store, and logins.
//!
//! A password is hashed or compared on a thread of its own, outside the machine's lock: it takes long by design.
//! What goes into the machine and its log is the hash.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use causeway_engine::core::{Command, Core, Reply};
use causeway_engine::key_auth::{
    AuthCommand, AuthError, Demand, PasswordHash, Permission, PermissionKind,
};
use causeway_wire::etcd::EtcdError;
use causeway_wire::etcd::messages::authpb;
use causeway_wire::etcd::messages::etcdserverpb as pb;
use rand::Rng as _;
use tokio::sync::Semaphore;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use super::connection::Caller;
use super::permit::{Shown, may};
use super::services::etcdserverpb::auth_server::Auth;
use super::translate::{auth_status, status};
use super::{Api, Front, caller};

/// Work of one hash (etcd: `--bcrypt-cost`).
const COST: u32 = 10;

/// Letters of a token before its number (etcd: auth/simple_token.go).
const TOKEN_LETTERS: usize = 16;

/// How often a login is tried while users change beneath it.
const ATTEMPTS: usize = 16;

/// Bounds the hashes under way: anybody may ask for one, and each keeps a core busy.
pub(super) struct Hashing(Semaphore);

impl Default for Hashing {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Hashing(Semaphore::new(cores.div_ceil(2)))
    }
}

impl Hashing {
    async fn run<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, Status> {
        let _turn = self.0.acquire().await;
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|error| Status::internal(format!("a password cannot be hashed: {error}")))
    }
}

#[tonic::async_trait]
impl Auth for Api {
    async fn auth_enable(
        &self,
        request: Request<pb::AuthEnableRequest>,
    ) -> Result<Response<pb::AuthEnableResponse>, Status> {
        let (asks, _) = Asks::of(request);
        let header = self.change(&asks, AuthCommand::Enable).await?;
        Ok(Response::new(pb::AuthEnableResponse { header }))
    }

    async fn auth_disable(
        &self,
        request: Request<pb::AuthDisableRequest>,
    ) -> Result<Response<pb::AuthDisableResponse>, Status> {
        let (asks, _) = Asks::of(request);
        let header = self.change(&asks, AuthCommand::Disable).await?;
        Ok(Response::new(pb::AuthDisableResponse { header }))
    }

    async fn auth_status(
        &self,
        request: Request<pb::AuthStatusRequest>,
    ) -> Result<Response<pb::AuthStatusResponse>, Status> {
        let (asks, _) = Asks::of(request);
        let look = |core: &Core| Ok((core.auth().is_enabled(), core.auth().revision()));
        let (header, seen) = self.look(&asks, Demand::Anything, look).await?;
        Ok(Response::new(pb::AuthStatusResponse {
            header,
            enabled: seen.0,
            auth_revision: seen.1,
        }))
    }

    async fn authenticate(
        &self,
        request: Request<pb::AuthenticateRequest>,
    ) -> Result<Response<pb::AuthenticateResponse>, Status> {
        let pb::AuthenticateRequest { name, password } = request.into_inner();
        let password: Arc<str> = password.into();
        for _ in 0..ATTEMPTS {
            let asked = self.gateway.with(|core| core.auth().password_of(&name)).0;
            let (hash, revision) = asked.map_err(auth_status)?;
            let given = password.clone();
            let matches = self.hashing.run(move || matches(&given, &hash)).await?;
            if !matches {
                return Err(status(EtcdError::AuthFailed));
            }
            let letters = letters();
            let now_ms = self.gateway.now_ms();
            let (issued, after) = self.gateway.with(|core| {
                let at = core.keys().revision();
                let token = format!("{letters}.{at}");
                let issued = core.issue_token(&name, revision, token.clone(), now_ms)?;
                Ok(issued.then_some((at, token)))
            });
            if let Some((at, token)) = issued.map_err(auth_status)? {
                self.durable(after).await?;
                let header = Some(self.header(at));
                return Ok(Response::new(pb::AuthenticateResponse { header, token }));
            }
        }
        Err(status(EtcdError::AuthOldRevision))
    }

    async fn user_add(
        &self,
        request: Request<pb::AuthUserAddRequest>,
    ) -> Result<Response<pb::AuthUserAddResponse>, Status> {
        let (asks, user) = Asks::of(request);
        let password = if user.options.is_some_and(|options| options.no_password) {
            None
        } else {
            Some(self.hash(&asks, user.password).await?)
        };
        let name = user.name;
        let header = self
            .change(&asks, AuthCommand::UserAdd { name, password })
            .await?;
        Ok(Response::new(pb::AuthUserAddResponse { header }))
    }

    async fn user_get(
        &self,
        request: Request<pb::AuthUserGetRequest>,
    ) -> Result<Response<pb::AuthUserGetResponse>, Status> {
        let (asks, user) = Asks::of(request);
        let look = |core: &Core| Ok(owned(core.auth().roles_of(&user.name)?));
        let (header, roles) = self.look(&asks, Demand::SeeUser(&user.name), look).await?;
        Ok(Response::new(pb::AuthUserGetResponse { header, roles }))
    }

    async fn user_list(
        &self,
        request: Request<pb::AuthUserListRequest>,
    ) -> Result<Response<pb::AuthUserListResponse>, Status> {
        let (asks, _) = Asks::of(request);
        let look = |core: &Core| Ok(owned(core.auth().users()));
        let (header, users) = self.look(&asks, Demand::BeRoot, look).await?;
        Ok(Response::new(pb::AuthUserListResponse { header, users }))
    }

    async fn user_delete(
        &self,
        request: Request<pb::AuthUserDeleteRequest>,
    ) -> Result<Response<pb::AuthUserDeleteResponse>, Status> {
        let (asks, user) = Asks::of(request);
        let name = user.name;
        let header = self.change(&asks, AuthCommand::UserDelete { name }).await?;
        Ok(Response::new(pb::AuthUserDeleteResponse { header }))
    }

    async fn user_change_password(
        &self,
        request: Request<pb::AuthUserChangePasswordRequest>,
    ) -> Result<Response<pb::AuthUserChangePasswordResponse>, Status> {
        let (asks, user) = Asks::of(request);
        let password = if user.password.is_empty() {
            // A caller may bring the hash itself; without either nobody can log in (etcd: v3_server.go,
            // UserChangePassword, and auth/store.go, selectPassword).
            let given = STANDARD.decode(&user.hashed_password).ok();
            given.map(|hash| PasswordHash(hash.into()))
        } else {
            Some(self.hash(&asks, user.password).await?)
        };
        let name = user.name;
        let command = AuthCommand::UserChangePassword { name, password };
        let header = self.change(&asks, command).await?;
        Ok(Response::new(pb::AuthUserChangePasswordResponse { header }))
    }

    async fn user_grant_role(
        &self,
        request: Request<pb::AuthUserGrantRoleRequest>,
    ) -> Result<Response<pb::AuthUserGrantRoleResponse>, Status> {
        let (asks, pb::AuthUserGrantRoleRequest { user, role }) = Asks::of(request);
        let header = self
            .change(&asks, AuthCommand::UserGrantRole { user, role })
            .await?;
        Ok(Response::new(pb::AuthUserGrantRoleResponse { header }))
    }

    async fn user_revoke_role(
        &self,
        request: Request<pb::AuthUserRevokeRoleRequest>,
    ) -> Result<Response<pb::AuthUserRevokeRoleResponse>, Status> {
        let (asks, pb::AuthUserRevokeRoleRequest { name: user, role }) = Asks::of(request);
        let header = self
            .change(&asks, AuthCommand::UserRevokeRole { user, role })
            .await?;
        Ok(Response::new(pb::AuthUserRevokeRoleResponse { header }))
    }

    async fn role_add(
        &self,
        request: Request<pb::AuthRoleAddRequest>,
    ) -> Result<Response<pb::AuthRoleAddResponse>, Status> {
        let (asks, pb::AuthRoleAddRequest { name }) = Asks::of(request);
        let header = self.change(&asks, AuthCommand::RoleAdd { name }).await?;
        Ok(Response::new(pb::AuthRoleAddResponse { header }))
    }

    async fn role_get(
        &self,
        request: Request<pb::AuthRoleGetRequest>,
    ) -> Result<Response<pb::AuthRoleGetResponse>, Status> {
        let (asks, pb::AuthRoleGetRequest { role }) = Asks::of(request);
        let look = |core: &Core| core.auth().permissions_of(&role);
        let (header, permissions) = self.look(&asks, Demand::SeeRole(&role), look).await?;
        let perm = permissions.into_iter().map(shown_permission).collect();
        Ok(Response::new(pb::AuthRoleGetResponse { header, perm }))
    }

    async fn role_list(
        &self,
        request: Request<pb::AuthRoleListRequest>,
    ) -> Result<Response<pb::AuthRoleListResponse>, Status> {
        let (asks, _) = Asks::of(request);
        let look = |core: &Core| Ok(owned(core.auth().roles()));
        let (header, roles) = self.look(&asks, Demand::BeRoot, look).await?;
        Ok(Response::new(pb::AuthRoleListResponse { header, roles }))
    }

    async fn role_delete(
        &self,
        request: Request<pb::AuthRoleDeleteRequest>,
    ) -> Result<Response<pb::AuthRoleDeleteResponse>, Status> {
        let (asks, pb::AuthRoleDeleteRequest { role: name }) = Asks::of(request);
        let header = self.change(&asks, AuthCommand::RoleDelete { name }).await?;
        Ok(Response::new(pb::AuthRoleDeleteResponse { header }))
    }

    async fn role_grant_permission(
        &self,
        request: Request<pb::AuthRoleGrantPermissionRequest>,
    ) -> Result<Response<pb::AuthRoleGrantPermissionResponse>, Status> {
        let (asks, pb::AuthRoleGrantPermissionRequest { name: role, perm }) = Asks::of(request);
        let permission = perm.map(asked_permission);
        let command = AuthCommand::RoleGrantPermission { role, permission };
        let header = self.change(&asks, command).await?;
        Ok(Response::new(pb::AuthRoleGrantPermissionResponse {
            header,
        }))
    }

    async fn role_revoke_permission(
        &self,
        request: Request<pb::AuthRoleRevokePermissionRequest>,
    ) -> Result<Response<pb::AuthRoleRevokePermissionResponse>, Status> {
        let (asks, revoke) = Asks::of(request);
        let command = AuthCommand::RoleRevokePermission {
            role: revoke.role,
            key: revoke.key,
            range_end: revoke.range_end,
        };
        let header = self.change(&asks, command).await?;
        Ok(Response::new(pb::AuthRoleRevokePermissionResponse {
            header,
        }))
    }
}

/// Who asks.
struct Asks {
    caller: Arc<Caller>,
    metadata: MetadataMap,
}

impl Asks {
    fn of<T>(request: Request<T>) -> (Self, T) {
        let caller = caller(&request);
        let (metadata, _, message) = request.into_parts();
        (Asks { caller, metadata }, message)
    }

    fn shown(&self) -> Shown<'_> {
        Shown::new(&self.metadata, &self.caller)
    }
}

impl Front {
    /// Makes a change that only `root` may make while authentication is on; gives the header of the answer.
    async fn change(
        &self,
        asks: &Asks,
        command: AuthCommand,
    ) -> Result<Option<pb::ResponseHeader>, Status> {
        let permitted = |core: &mut Core, _: &Command, now_ms| {
            may(core, asks.shown(), Demand::BeRoot, || now_ms)
        };
        let done = self.gateway.apply_if(Command::Auth(command), permitted);
        let done = done.map_err(auth_status)?;
        self.durable(done.after).await?;
        match done.reply {
            Reply::Auth(changed) => changed.map_err(auth_status)?,
            _ => return Err(Status::internal("the machine answered another question")),
        }
        Ok(Some(self.header(done.number)))
    }

    async fn look<R>(
        &self,
        asks: &Asks,
        demand: Demand<'_>,
        look: impl FnOnce(&Core) -> Result<R, AuthError>,
    ) -> Result<(Option<pb::ResponseHeader>, R), Status> {
        let now_ms = || self.gateway.now_ms();
        let (seen, after) = self.gateway.with(|core| {
            may(core, asks.shown(), demand, now_ms)?;
            Ok((core.keys().revision(), look(core)?))
        });
        self.durable(after).await?;
        let (revision, seen) = seen.map_err(auth_status)?;
        Ok((Some(self.header(revision)), seen))
    }

    /// The hash of a new password, for whoever may set one.
    async fn hash(&self, asks: &Asks, password: String) -> Result<PasswordHash, Status> {
        self.demand(asks.shown(), Demand::BeRoot)?;
        let hashed = self
            .hashing
            .run(move || bcrypt::non_truncating_hash(password, COST))
            .await?;
        match hashed {
            Ok(hash) => Ok(PasswordHash(hash.into())),
            // In Go's words, which etcd passes on (golang.org/x/crypto/bcrypt, ErrPasswordTooLong).
            Err(bcrypt::BcryptError::Truncation(_)) => {
                Err(Status::unknown("bcrypt: password length exceeds 72 bytes"))
            }
            Err(error) => Err(Status::internal(format!(
                "a password cannot be hashed: {error}"
            ))),
        }
    }
}

/// Whether a password is the one of a hash; nobody's is that of what is no hash.
fn matches(password: &str, hash: &PasswordHash) -> bool {
    std::str::from_utf8(&hash.0).is_ok_and(|hash| bcrypt::verify(password, hash).unwrap_or(false))
}

/// What cannot be guessed of a token.
fn letters() -> String {
    const LETTERS: &[u8; 52] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let mut rng = rand::rng();
    let mut letter = || LETTERS.get(rng.random_range(0..LETTERS.len())).copied();
    std::iter::repeat_with(|| char::from(letter().unwrap_or(b'a')))
        .take(TOKEN_LETTERS)
        .collect()
}

fn owned<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    names.map(str::to_owned).collect()
}

fn asked_permission(permission: authpb::Permission) -> Permission {
    use authpb::permission::Type;
    Permission {
        kind: match Type::try_from(permission.perm_type) {
            Ok(Type::Read) => PermissionKind::Read,
            Ok(Type::Write) => PermissionKind::Write,
            Ok(Type::Readwrite) => PermissionKind::ReadWrite,
            Err(_) => PermissionKind::Unknown(permission.perm_type),
        },
        key: permission.key,
        range_end: permission.range_end,
    }
}

pub(super) fn shown_permission(permission: Permission) -> authpb::Permission {
    use authpb::permission::Type;
    authpb::Permission {
        perm_type: match permission.kind {
            PermissionKind::Read => Type::Read.into(),
            PermissionKind::Write => Type::Write.into(),
            PermissionKind::ReadWrite => Type::Readwrite.into(),
            PermissionKind::Unknown(number) => number,
        },
        key: permission.key,
        range_end: permission.range_end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_matches_its_own_hash_alone() {
        // Cost 4 is the least. Go's and the crate's own prefix.
        let made = bcrypt::hash("secret", 4).expect("a hash");
        let gos = made.replacen("$2b$", "$2a$", 1);
        for hash in [made, gos] {
            let hash = PasswordHash(hash.into());
            assert!(matches("secret", &hash));
            assert!(!matches("Secret", &hash) && !matches("", &hash));
        }
        for none in ["", "secret", "$2b$04$"] {
            assert!(!matches("", &PasswordHash(none.into())), "{none}");
        }
    }

    #[test]
    fn tokens_are_letters_that_do_not_repeat() {
        let (one, other) = (letters(), letters());
        assert_ne!(one, other);
        assert!(one.len() == TOKEN_LETTERS && one.chars().all(|c| c.is_ascii_alphabetic()));
    }
}
