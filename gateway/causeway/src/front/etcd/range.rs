//! KV.Range: what many read is encoded once for each change of their range.

use std::sync::Arc;

use bytes::{Buf as _, Bytes, BytesMut};
use causeway_engine::key_auth::Demand;
use causeway_engine::key_space::Release;
use causeway_engine::route::{Kind, Plan, Touches};
use causeway_registry::StoreKind;
use causeway_wire::etcd::frame::put_prefix;
use causeway_wire::etcd::messages::etcdserverpb as pb;
use hyper::http::{Request, Response};
use lru::LruCache;
use parking_lot::Mutex;
use prost::Message;
use prost::encoding::message;
use tonic::Status;
use tonic::body::Body;
use tonic::metadata::MetadataMap;

use super::answer::{Answer, Piece, only_message};
use super::kv::plan_of;
use super::permit::{Shown, may};
use super::services::etcdserverpb::kv_server::Kv;
use super::{Api, caller_in, translate};

/// Bytes of answers that are kept, requests included.
const MAX_KEPT: usize = 64 << 20;

/// Larger answers are made anew each time.
const MAX_ANSWER: usize = 4 << 20;

/// About what an answer takes besides its bytes.
const OVERHEAD: usize = 256;

/// Longest request that is looked up.
const LONGEST: usize = 64 << 10;

/// Field of a RangeResponse.
const HEADER: u32 = 1;

/// Answers a Range; a request that is out of the ordinary is given back for tonic to judge.
pub(super) async fn answer(
    api: &Api,
    request: Request<Body>,
    limit: usize,
) -> Result<Response<Answer>, Request<Body>> {
    let (parts, message) = only_message(request, limit.min(LONGEST)).await?;
    Ok(match ranged(api, parts, message).await {
        Ok(framed) => Answer::message(framed),
        Err(status) => Answer::refusal(status),
    })
}

async fn ranged(
    api: &Api,
    parts: hyper::http::request::Parts,
    message: Bytes,
) -> Result<Piece, Status> {
    if let Some(kept) = api.answers.get(&message) {
        let (current, after) = api.gateway.with(|core| {
            let mode = core.mode(StoreKind::Etcd);
            let plan = plan_of(mode, core.phase().phase(), || kept.touches, Kind::Read);
            let version = core.keys().range_version(&kept.key, &kept.range_end);
            // Who may see it is asked where everything is.
            let open = !core.asks_who_calls();
            let same = version == kept.version && core.keys().release() == kept.release;
            (open && is_local(plan) && same).then(|| core.keys().revision())
        });
        if let Some(revision) = current {
            api.durable(after).await?;
            return Ok(framed(api.header(revision), kept.encoded.clone()));
        }
    }
    let range = pb::RangeRequest::decode(message.clone())
        .map_err(|error| Status::internal(error.to_string()))?;
    let touches = api.touches(&range.key, &range.range_end);
    if range.key.is_empty() || !is_local(api.plan(|| touches, Kind::Read)) {
        let metadata = MetadataMap::from_headers(parts.headers);
        let request = tonic::Request::from_parts(metadata, parts.extensions, range);
        let mut reply = api.range(request).await?.into_inner();
        let header = reply.header.take().unwrap_or_default();
        return Ok(framed(header, reply.encode_to_vec().into()));
    }
    let asked = translate::range(&range);
    let caller = caller_in(&parts.extensions);
    let shown = Shown::over(&parts.headers, &caller);
    let demand = Demand::Read {
        key: &asked.key,
        range_end: &asked.range_end,
    };
    let now_ms = || api.gateway.now_ms();
    let (looked, after) = api.gateway.with(|core| {
        may(core, shown, demand, now_ms)?;
        let version = core.keys().range_version(&asked.key, &asked.range_end);
        let keys = core.keys();
        Ok((keys.range(&asked), version, keys.release()))
    });
    let (found, version, release) = looked.map_err(translate::auth_status)?;
    api.durable(after).await?;
    let found = found.map_err(|error| translate::status(translate::key_error(&error)))?;
    let header = api.header(found.revision);
    let encoded: Bytes = translate::range_reply(None, &found).encode_to_vec().into();
    // A single key is found and encoded as fast as an answer is, and the past can be compacted.
    if !asked.range_end.is_empty() && asked.revision <= 0 {
        api.answers.keep(
            &message,
            Kept {
                key: Bytes::copy_from_slice(&asked.key),
                range_end: Bytes::copy_from_slice(&asked.range_end),
                touches,
                version,
                release,
                encoded: encoded.clone(),
            },
        );
    }
    Ok(framed(header, encoded))
}

fn is_local(plan: Plan) -> bool {
    matches!(plan, Plan::Local | Plan::LocalThenLegacy)
}

/// The header is new in each answer; the rest stands behind it as it is.
fn framed(header: pb::ResponseHeader, encoded: Bytes) -> Piece {
    let mut head = BytesMut::new();
    let length = message::encoded_len(HEADER, &header);
    put_prefix(&mut head, length + encoded.len());
    message::encode(HEADER, &header, &mut head);
    head.freeze().chain(encoded)
}

/// An answer, and as of when.
struct Kept {
    key: Bytes,
    range_end: Bytes,
    touches: Touches,
    /// Of the range: `KeySpace::range_version`.
    version: u64,
    /// Releases differ in what they leave out.
    release: Release,
    /// The answer without its header.
    encoded: Bytes,
}

/// Answers by their requests' bytes, the one asked for least recently first out.
pub(super) struct Answers(Mutex<Inner>);

struct Inner {
    kept: LruCache<Bytes, Arc<Kept>>,
    bytes: usize,
}

impl Default for Answers {
    fn default() -> Self {
        Answers(Mutex::new(Inner {
            kept: LruCache::unbounded(),
            bytes: 0,
        }))
    }
}

impl Answers {
    fn get(&self, request: &Bytes) -> Option<Arc<Kept>> {
        self.0.lock().kept.get(request).cloned()
    }

    fn keep(&self, request: &Bytes, kept: Kept) {
        if kept.encoded.len() > MAX_ANSWER {
            return;
        }
        // Requests lie in larger buffers.
        let request = Bytes::copy_from_slice(request);
        let inner = &mut *self.0.lock();
        inner.bytes += size(&request, &kept);
        if let Some((request, old)) = inner.kept.push(request, Arc::new(kept)) {
            inner.bytes -= size(&request, &old);
        }
        while inner.bytes > MAX_KEPT
            && let Some((request, old)) = inner.kept.pop_lru()
        {
            inner.bytes -= size(&request, &old);
        }
    }
}

fn size(request: &Bytes, kept: &Kept) -> usize {
    OVERHEAD + request.len() + kept.key.len() + kept.range_end.len() + kept.encoded.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(version: u64, length: usize) -> Kept {
        Kept {
            key: Bytes::from_static(b"a"),
            range_end: Bytes::from_static(b"b"),
            touches: Touches::Owned,
            version,
            release: Release::default(),
            encoded: vec![0; length].into(),
        }
    }

    #[test]
    fn answers_are_kept_within_a_bound() {
        let answers = Answers::default();
        let name = |n: usize| Bytes::from(format!("request {n}"));
        for n in 0..100 {
            answers.keep(&name(n), kept(1, 1 << 20));
            assert!(answers.get(&name(0)).is_some(), "asked for again and again");
        }
        assert!(answers.get(&name(1)).is_none() && answers.get(&name(99)).is_some());
        answers.keep(&name(99), kept(2, 10));
        assert_eq!(answers.get(&name(99)).map(|kept| kept.version), Some(2));
        answers.keep(&name(100), kept(1, MAX_ANSWER + 1));
        assert!(answers.get(&name(100)).is_none());
        let inner = answers.0.lock();
        let sum: usize = inner.kept.iter().map(|(r, k)| size(r, k)).sum();
        assert!(inner.bytes == sum && sum <= MAX_KEPT, "{sum}");
    }

    #[test]
    fn header_and_the_rest_are_one_message() {
        let header = pb::ResponseHeader {
            cluster_id: 1,
            member_id: 2,
            revision: 3,
            raft_term: 4,
        };
        let rest = pb::RangeResponse {
            count: 7,
            more: true,
            ..Default::default()
        };
        let mut piece = framed(header, rest.encode_to_vec().into());
        let all = piece.copy_to_bytes(piece.remaining());
        let message = causeway_wire::etcd::frame::only_message(&all).expect("one message");
        let want = pb::RangeResponse {
            header: Some(header),
            ..rest
        };
        assert_eq!(pb::RangeResponse::decode(message), Ok(want));
    }
}
