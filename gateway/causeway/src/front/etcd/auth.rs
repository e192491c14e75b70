//! Auth of the embedded store: it has no users, and says so as an etcd without authentication does.

use causeway_wire::etcd::EtcdError;
use causeway_wire::etcd::messages::etcdserverpb as pb;
use tonic::{Request, Response, Status};

use super::Api;
use super::services::etcdserverpb::auth_server::Auth;
use super::translate::status;

macro_rules! refuse {
    ($($name:ident: $request:ident -> $response:ident, $method:literal;)+) => {
        #[tonic::async_trait]
        impl Auth for Api {
            async fn authenticate(
                &self,
                _request: Request<pb::AuthenticateRequest>,
            ) -> Result<Response<pb::AuthenticateResponse>, Status> {
                Err(status(EtcdError::AuthNotEnabled))
            }

            async fn auth_status(
                &self,
                _request: Request<pb::AuthStatusRequest>,
            ) -> Result<Response<pb::AuthStatusResponse>, Status> {
                let (revision, after) = self.gateway.with(|core| core.keys().revision());
                self.durable(after).await?;
                Ok(Response::new(pb::AuthStatusResponse {
                    header: Some(self.header(revision)),
                    enabled: false,
                    auth_revision: 1,
                }))
            }

            async fn auth_disable(
                &self,
                _request: Request<pb::AuthDisableRequest>,
            ) -> Result<Response<pb::AuthDisableResponse>, Status> {
                let (revision, after) = self.gateway.with(|core| core.keys().revision());
                self.durable(after).await?;
                Ok(Response::new(pb::AuthDisableResponse { header: Some(self.header(revision)) }))
            }

            $(async fn $name(&self, _request: Request<pb::$request>) -> Result<Response<pb::$response>, Status> {
                Err(Status::unimplemented(concat!(
                    "causeway: ", $method, " is not supported: the embedded store has no users and roles"
                )))
            })+
        }
    };
}

refuse! {
    auth_enable: AuthEnableRequest -> AuthEnableResponse, "AuthEnable";
    user_add: AuthUserAddRequest -> AuthUserAddResponse, "UserAdd";
    user_get: AuthUserGetRequest -> AuthUserGetResponse, "UserGet";
    user_list: AuthUserListRequest -> AuthUserListResponse, "UserList";
    user_delete: AuthUserDeleteRequest -> AuthUserDeleteResponse, "UserDelete";
    user_change_password: AuthUserChangePasswordRequest -> AuthUserChangePasswordResponse, "UserChangePassword";
    user_grant_role: AuthUserGrantRoleRequest -> AuthUserGrantRoleResponse, "UserGrantRole";
    user_revoke_role: AuthUserRevokeRoleRequest -> AuthUserRevokeRoleResponse, "UserRevokeRole";
    role_add: AuthRoleAddRequest -> AuthRoleAddResponse, "RoleAdd";
    role_get: AuthRoleGetRequest -> AuthRoleGetResponse, "RoleGet";
    role_list: AuthRoleListRequest -> AuthRoleListResponse, "RoleList";
    role_delete: AuthRoleDeleteRequest -> AuthRoleDeleteResponse, "RoleDelete";
    role_grant_permission: AuthRoleGrantPermissionRequest -> AuthRoleGrantPermissionResponse, "RoleGrantPermission";
    role_revoke_permission: AuthRoleRevokePermissionRequest -> AuthRoleRevokePermissionResponse, "RoleRevokePermission";
}
