//! Cluster: clients find endpoints in it, so it shows gateways and never a legacy server.

use causeway_backend_etcd::stubs::ClusterClient;
use causeway_engine::route::Mode;
use causeway_wire::etcd::messages::etcdserverpb as pb;
use tonic::{Request, Response, Status};

use super::general::answered;
use super::services::etcdserverpb::cluster_server::Cluster;
use super::{Api, advertised, caller, with_metadata};

/// An empty name means to clients that a member has not started.
const NAME: &str = "causeway";

#[tonic::async_trait]
impl Cluster for Api {
    async fn member_list(
        &self,
        request: Request<pb::MemberListRequest>,
    ) -> Result<Response<pb::MemberListResponse>, Status> {
        let urls = advertised(self, &caller(&request));
        let (metadata, _, list) = request.into_parts();
        if self.mode() == Mode::Relay {
            let client = ClusterClient::new(self.upstream()?);
            let there = answered({ client }.member_list(with_metadata(&metadata, list)).await)?
                .into_inner();
            return Ok(Response::new(instead(there, urls)));
        }
        let ids = self.identity.ids();
        // etcd: the list's header has ids and no revision (v3rpc/member.go).
        Ok(Response::new(pb::MemberListResponse {
            header: Some(ids.header(0)),
            members: vec![member(ids.member_id, NAME.into(), urls)],
        }))
    }

    async fn member_add(
        &self,
        _request: Request<pb::MemberAddRequest>,
    ) -> Result<Response<pb::MemberAddResponse>, Status> {
        Err(refused("MemberAdd"))
    }

    async fn member_remove(
        &self,
        _request: Request<pb::MemberRemoveRequest>,
    ) -> Result<Response<pb::MemberRemoveResponse>, Status> {
        Err(refused("MemberRemove"))
    }

    async fn member_update(
        &self,
        _request: Request<pb::MemberUpdateRequest>,
    ) -> Result<Response<pb::MemberUpdateResponse>, Status> {
        Err(refused("MemberUpdate"))
    }

    async fn member_promote(
        &self,
        _request: Request<pb::MemberPromoteRequest>,
    ) -> Result<Response<pb::MemberPromoteResponse>, Status> {
        Err(refused("MemberPromote"))
    }
}

/// The list with this gateway in the place of the members, under the id that headers carry.
fn instead(there: pb::MemberListResponse, urls: Vec<String>) -> pb::MemberListResponse {
    let answering = there.header.as_ref().map_or(0, |h| h.member_id);
    let name = there
        .members
        .into_iter()
        .find(|m| m.id == answering)
        .map(|m| m.name)
        .filter(|n| !n.is_empty());
    pb::MemberListResponse {
        members: vec![member(answering, name.unwrap_or_else(|| NAME.into()), urls)],
        header: there.header,
    }
}

fn member(id: u64, name: String, urls: Vec<String>) -> pb::Member {
    pb::Member {
        id,
        name,
        peer_ur_ls: urls.clone(),
        client_ur_ls: urls,
        is_learner: false,
    }
}

fn refused(method: &str) -> Status {
    Status::failed_precondition(format!(
        "causeway: {method} is refused: the members shown here are gateways, which join and leave by their own means"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_gateway_is_shown_under_the_id_of_the_header() {
        let legacy =
            |id, name: &str| member(id, name.into(), vec![format!("http://legacy-{id}:2379")]);
        let header = Some(pb::ResponseHeader {
            cluster_id: 1,
            member_id: 3,
            revision: 0,
            raft_term: 2,
        });
        let gateway = || vec!["http://gateway:2379".to_owned()];
        for (members, name) in [
            (vec![legacy(2, "b"), legacy(3, "c")], "c"),
            (vec![legacy(2, "b"), legacy(3, "")], "causeway"),
            (vec![], "causeway"),
        ] {
            let shown = instead(pb::MemberListResponse { header, members }, gateway());
            assert_eq!(shown.members, [member(3, name.into(), gateway())]);
            assert_eq!(shown.header, header);
        }
    }
}
