//! v3lock and v3election after the take-over: locks are general keys, so the legacy cluster keeps them; a
//! lease of ours has to be there first.

use bytes::Bytes;
use prost::Message;
use tonic::Status;

use super::Front;

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

/// Prepares a call, or refuses it: a lock is never kept among registrations.
pub(super) async fn prepare(front: &Front, request: &Bytes) -> Result<(), Status> {
    let holding = Holding::decode(request.clone())
        .map_err(|e| Status::internal(format!("cannot be decoded: {e}")))?;
    // etcd: the lock's keys are the name, a slash and the lease (concurrency/mutex.go).
    let key = [&holding.name[..], b"/"].concat();
    if front.owns(&key) {
        return Err(Status::failed_precondition(format!(
            "causeway: {} lies among registrations, where no lock can be kept; choose a name outside",
            holding.name.escape_ascii()
        )));
    }
    if holding.lease != 0 {
        front.bind_lease(holding.lease).await?;
    }
    Ok(())
}
