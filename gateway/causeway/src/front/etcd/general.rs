//! General keys, which have the legacy cluster as their one store: calls on it, in the client's name.

use causeway_backend::{BackendError, ErrorKind};
use causeway_backend_etcd::stubs::KvClient;
use causeway_wire::etcd::EtcdError;
use causeway_wire::etcd::messages::etcdserverpb as pb;
use futures::StreamExt;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::relay::{Responses, upstream_error};
use super::translate::status;
use super::{Front, union, with_metadata};

/// Answers of any size: the legacy cluster bounds them.
pub(super) fn kv(front: &Front) -> Result<KvClient<Channel>, Status> {
    Ok(KvClient::new(front.upstream()?)
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX))
}

/// An answer without the headers of its hop.
pub(super) fn answered<T>(response: Result<Response<T>, Status>) -> Result<Response<T>, Status> {
    response
        .map(|r| Response::new(r.into_inner()))
        .map_err(upstream_error)
}

/// What the gateway's own calls on the legacy cluster failed with, as the client gets it.
pub(super) fn backend_error(error: &BackendError) -> Status {
    match error.kind() {
        ErrorKind::LeaseGone => status(EtcdError::LeaseNotFound),
        ErrorKind::Denied => status(EtcdError::PermissionDenied),
        _ => Status::unavailable(format!(
            "causeway: the legacy etcd cannot be reached: {error}"
        )),
    }
}

pub(super) async fn range(
    front: &Front,
    metadata: &MetadataMap,
    range: pb::RangeRequest,
) -> Result<Response<pb::RangeResponse>, Status> {
    answered(kv(front)?.range(with_metadata(metadata, range)).await)
}

pub(super) async fn range_stream(
    front: &Front,
    metadata: &MetadataMap,
    range: pb::RangeRequest,
) -> Result<Response<Responses<pb::RangeStreamResponse>>, Status> {
    let asked = kv(front)?
        .range_stream(with_metadata(metadata, range))
        .await;
    let parts = answered(asked)?
        .into_inner()
        .map(|next| next.map_err(upstream_error));
    Ok(Response::new(Box::pin(parts)))
}

pub(super) async fn put(
    front: &Front,
    metadata: &MetadataMap,
    put: pb::PutRequest,
) -> Result<Response<pb::PutResponse>, Status> {
    prepare(front, put.lease, &put.key).await?;
    answered(kv(front)?.put(with_metadata(metadata, put)).await)
}

pub(super) async fn delete(
    front: &Front,
    metadata: &MetadataMap,
    delete: pb::DeleteRangeRequest,
) -> Result<Response<pb::DeleteRangeResponse>, Status> {
    answered(
        kv(front)?
            .delete_range(with_metadata(metadata, delete))
            .await,
    )
}

pub(super) async fn txn(
    front: &Front,
    metadata: &MetadataMap,
    txn: pb::TxnRequest,
) -> Result<Response<pb::TxnResponse>, Status> {
    for (lease, key) in union::leased_puts(&txn) {
        prepare(front, lease, &key).await?;
    }
    answered(kv(front)?.txn(with_metadata(metadata, txn)).await)
}

/// Before a put under a lease: the legacy cluster has to know it, and the machine that it is bound.
async fn prepare(front: &Front, lease: i64, key: &[u8]) -> Result<(), Status> {
    if front.has_general(lease, key) {
        front.bind_lease(lease).await
    } else {
        front.ensure_lease(lease).await
    }
}

pub(super) async fn compact(
    front: &Front,
    metadata: &MetadataMap,
    compaction: pb::CompactionRequest,
) -> Result<Response<pb::CompactionResponse>, Status> {
    answered(
        kv(front)?
            .compact(with_metadata(metadata, compaction))
            .await,
    )
}
