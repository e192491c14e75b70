//! v3lock. The embedded store keeps locks itself. After a take-over locks are general keys, so the legacy
//! cluster keeps them, and a lease of ours has to be there first.

use bytes::Bytes;
use causeway_wire::etcd::messages::etcdserverpb as pb;
use causeway_wire::etcd::messages::v3lockpb::{
    LockRequest, LockResponse, UnlockRequest, UnlockResponse,
};
use prost::Message;
use tonic::{Request, Response, Status};

use super::contest::{self, Contest};
use super::services::v3lockpb::lock_server::Lock;
use super::{Api, Front};

/// Calls that put a key under a lease.
pub(super) const HOLDING: [&str; 2] = ["/v3lockpb.Lock/Lock", "/v3electionpb.Election/Campaign"];

/// What LockRequest and CampaignRequest have in common.
#[derive(Clone, PartialEq, Message)]
struct Holding {
    #[prost(bytes = "bytes", tag = "1")]
    name: Bytes,
    #[prost(int64, tag = "2")]
    lease: i64,
}

/// Prepares a call for the legacy cluster, or refuses it: a lock is never kept among registrations.
pub(super) async fn prepare(front: &Front, request: &Bytes) -> Result<(), Status> {
    let holding = Holding::decode(request.clone())
        .map_err(|e| Status::internal(format!("cannot be decoded: {e}")))?;
    contest::refuse_owned(front, &holding.name)?;
    if holding.lease != 0 {
        front.bind_lease(holding.lease).await?;
    }
    Ok(())
}

#[tonic::async_trait]
impl Lock for Api {
    /// etcd: concurrency/mutex.go, Lock.
    async fn lock(&self, request: Request<LockRequest>) -> Result<Response<LockResponse>, Status> {
        let (contest, lock) = Contest::begin(self, request);
        contest::refuse_owned(self, &lock.name)?;
        let lease = contest.lease(lock.lease).await?;
        let prefix = contest::prefix_of(&lock.name);
        let key = contest::key_of(&prefix, lease);
        let owner = || contest::get_op(contest::one_by_creation(&prefix));
        let entered = contest
            .txn(pb::TxnRequest {
                compare: vec![contest::created_at(&key, 0)],
                success: vec![contest::put_op(&key, Bytes::new(), lease), owner()],
                failure: vec![contest::get_op(contest::single(&key)), owner()],
            })
            .await?;
        let revision = if entered.succeeded {
            entered.header.map_or(0, |h| h.revision)
        } else {
            contest::first_of(&entered, 0).map_or(0, |kv| kv.create_revision)
        };
        let first = contest::first_of(&entered, 1);
        if first.is_none_or(|owner| owner.create_revision == revision) {
            return Ok(locked(entered.header, key));
        }

        let mut waiting = Waiting {
            contest: &contest,
            key: key.clone(),
            leaves: true,
        };
        match contest.wait_for_older(&prefix, revision).await {
            Ok(()) => {}
            Err(error) => {
                // A gateway that stops leaves the place in the queue to a client that comes back.
                waiting.leaves = error.code() != tonic::Code::Unavailable;
                return Err(error);
            }
        }
        let present = contest.range(contest::single(&key)).await?;
        waiting.leaves = false;
        if present.kvs.is_empty() {
            // The lease ended meanwhile (etcd: concurrency.ErrSessionExpired).
            return Err(Status::unknown("mutex: session is expired"));
        }
        Ok(locked(present.header, key))
    }

    async fn unlock(
        &self,
        request: Request<UnlockRequest>,
    ) -> Result<Response<UnlockResponse>, Status> {
        let (contest, unlock) = Contest::begin(self, request);
        let header = contest.delete(unlock.key).await?.header;
        Ok(Response::new(UnlockResponse { header }))
    }
}

fn locked(header: Option<pb::ResponseHeader>, key: Bytes) -> Response<LockResponse> {
    Response::new(LockResponse { header, key })
}

/// A contender in the queue; its key goes when its call ends before it has the lock.
struct Waiting<'a> {
    contest: &'a Contest,
    key: Bytes,
    leaves: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.leaves {
            self.contest.withdraw(&pb::TxnRequest {
                success: vec![contest::delete_op(&self.key)],
                ..Default::default()
            });
        }
    }
}
