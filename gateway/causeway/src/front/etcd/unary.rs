//! Calls of one message with an answer of one message, without a server of gRPC between: its streams of messages and boxes
//! around bodies cost a small call more than its own work here. The frequent calls of the etcd port take this way.

use std::future::Future;

use bytes::{Buf as _, Bytes, BytesMut};
use causeway_wire::etcd::frame::put_message;
use hyper::http::{Request, Response};
use prost::Message;
use tonic::Status;
use tonic::body::Body;
use tonic::metadata::MetadataMap;

use super::Api;
use super::answer::{Answer, only_message};
use super::services::etcdserverpb::kv_server::Kv;
use super::services::etcdserverpb::lease_server::Lease;

/// Longest request that is read here: all but a few are shorter.
const LONGEST: usize = 64 << 10;

/// Answers a frequent call; any other, and one that is out of the ordinary, is given back for tonic to judge.
pub(super) async fn answer(
    api: &Api,
    request: Request<Body>,
    limit: usize,
) -> Result<Response<Answer>, Request<Body>> {
    let limit = limit.min(LONGEST);
    match request.uri().path() {
        "/etcdserverpb.KV/Put" => served(request, limit, |asked| api.put(asked)).await,
        "/etcdserverpb.KV/DeleteRange" => {
            served(request, limit, |asked| api.delete_range(asked)).await
        }
        "/etcdserverpb.KV/Txn" => served(request, limit, |asked| api.txn(asked)).await,
        "/etcdserverpb.Lease/LeaseGrant" => {
            served(request, limit, |asked| api.lease_grant(asked)).await
        }
        "/etcdserverpb.Lease/LeaseRevoke" => {
            served(request, limit, |asked| api.lease_revoke(asked)).await
        }
        "/etcdserverpb.Lease/LeaseTimeToLive" => {
            served(request, limit, |asked| api.lease_time_to_live(asked)).await
        }
        _ => Err(request),
    }
}

async fn served<Q, A, F>(
    request: Request<Body>,
    limit: usize,
    serve: impl FnOnce(tonic::Request<Q>) -> F,
) -> Result<Response<Answer>, Request<Body>>
where
    Q: Message + Default,
    A: Message,
    F: Future<Output = Result<tonic::Response<A>, Status>>,
{
    let (parts, message) = only_message(request, limit).await?;
    let asked = match Q::decode(message) {
        Ok(asked) => asked,
        Err(error) => return Ok(Answer::refusal(Status::internal(error.to_string()))),
    };
    let metadata = MetadataMap::from_headers(parts.headers);
    let asked = tonic::Request::from_parts(metadata, parts.extensions, asked);
    Ok(match serve(asked).await {
        // None of these calls says anything beside its answer.
        Ok(answered) => {
            let mut frame = BytesMut::new();
            put_message(&mut frame, answered.get_ref());
            Answer::message(frame.freeze().chain(Bytes::new()))
        }
        Err(status) => Answer::refusal(status),
    })
}
