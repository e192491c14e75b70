//! Writes before the take-over: the legacy cluster does them, and what it acknowledged on registrations is
//! shown to the machine before the client hears of it.
//!
//! The machine wants to know the pair that is there afterwards, so the pairs before are asked for with the
//! write (`prev_kv`) and taken out of the answer again when the client did not want them.

use bytes::Bytes;
use causeway_engine::core::{Command, LegacyEntry, LegacyEvent, LegacyMeta};
use causeway_engine::key_space::KeyCommand;
use causeway_registry::StoreKind;
use causeway_wire::etcd::messages::etcdserverpb as pb;
use causeway_wire::etcd::messages::etcdserverpb::request_op::Request as Asked;
use causeway_wire::etcd::messages::etcdserverpb::response_op::Response as Answer;
use causeway_wire::etcd::messages::mvccpb::KeyValue;
use tonic::metadata::MetadataMap;
use tonic::{Code, Response, Status};

use super::general::{answered, kv};
use super::{Front, with_metadata};
use causeway_engine::route::Touches;

pub(super) async fn put(
    front: &Front,
    metadata: &MetadataMap,
    put: pb::PutRequest,
) -> Result<Response<pb::PutResponse>, Status> {
    let mut client = kv(front)?;
    if !front.owns(&put.key) {
        return answered(client.put(with_metadata(metadata, put)).await);
    }
    let asked = pb::PutRequest {
        prev_kv: true,
        ..put.clone()
    };
    let (mut response, before_known) =
        match answered(client.put(with_metadata(metadata, asked)).await) {
            Err(status) if may_not_read(&status) && !put.prev_kv => (
                answered(client.put(with_metadata(metadata, put.clone())).await)?,
                false,
            ),
            other => (other?, true),
        };
    let answer = response.get_mut();
    let before = if before_known {
        Before::Known(answer.prev_kv.as_ref())
    } else {
        Before::Unknown
    };
    let events = entry_after(&put, before, revision(answer.header.as_ref())).map(LegacyEvent::Put);
    tell(front, events).await?;
    if !put.prev_kv {
        answer.prev_kv = None;
    }
    Ok(response)
}

pub(super) async fn delete(
    front: &Front,
    metadata: &MetadataMap,
    delete: pb::DeleteRangeRequest,
) -> Result<Response<pb::DeleteRangeResponse>, Status> {
    let mut client = kv(front)?;
    if front.touches(&delete.key, &delete.range_end) == Touches::General {
        return answered(client.delete_range(with_metadata(metadata, delete)).await);
    }
    let asked = pb::DeleteRangeRequest {
        prev_kv: true,
        ..delete.clone()
    };
    let (mut response, known) =
        match answered(client.delete_range(with_metadata(metadata, asked)).await) {
            Err(status) if may_not_read(&status) && !delete.prev_kv => (
                answered(
                    client
                        .delete_range(with_metadata(metadata, delete.clone()))
                        .await,
                )?,
                false,
            ),
            other => (other?, true),
        };
    let answer = response.get_mut();
    let mark = revision(answer.header.as_ref());
    let gone = if known {
        answer.prev_kvs.iter().map(|kv| kv.key.clone()).collect()
    } else {
        in_view(front, &delete.key, &delete.range_end)
    };
    let gone = gone
        .into_iter()
        .filter(|key| front.owns(key))
        .map(|key| LegacyEvent::Delete { key, mark });
    tell(front, gone).await?;
    if !delete.prev_kv {
        answer.prev_kvs.clear();
    }
    Ok(response)
}

pub(super) async fn txn(
    front: &Front,
    metadata: &MetadataMap,
    txn: pb::TxnRequest,
) -> Result<Response<pb::TxnResponse>, Status> {
    let mut client = kv(front)?;
    let owned = |key: &[u8], range_end: &[u8]| front.touches(key, range_end) != Touches::General;
    let Some(asked) = ask_for_pairs(&txn, &owned) else {
        return answered(client.txn(with_metadata(metadata, txn)).await);
    };
    let (mut response, known) = match answered(client.txn(with_metadata(metadata, asked)).await) {
        Err(status) if may_not_read(&status) => (
            answered(client.txn(with_metadata(metadata, txn.clone())).await)?,
            false,
        ),
        other => (other?, true),
    };
    let answer = response.get_mut();
    let mark = revision(answer.header.as_ref());
    let mut events = Vec::new();
    let in_view = |key: &Bytes, range_end: &Bytes| in_view(front, key, range_end);
    walk(&txn, answer, &mut |asked, answer| match (asked, answer) {
        (Asked::RequestPut(put), Answer::ResponsePut(answer)) if front.owns(&put.key) => {
            let before = if known {
                Before::Known(answer.prev_kv.as_ref())
            } else {
                Before::Unknown
            };
            events.extend(entry_after(put, before, mark).map(LegacyEvent::Put));
            if !put.prev_kv {
                answer.prev_kv = None;
            }
        }
        (Asked::RequestDeleteRange(delete), Answer::ResponseDeleteRange(answer))
            if owned(&delete.key, &delete.range_end) =>
        {
            let gone = if known {
                answer.prev_kvs.iter().map(|kv| kv.key.clone()).collect()
            } else {
                in_view(&delete.key, &delete.range_end)
            };
            let gone = gone.into_iter().filter(|key| front.owns(key));
            events.extend(gone.map(|key| LegacyEvent::Delete { key, mark }));
            if !delete.prev_kv {
                answer.prev_kvs.clear();
            }
        }
        _ => {}
    });
    tell(front, events).await?;
    Ok(response)
}

/// A lease that the legacy cluster granted.
pub(super) async fn granted(front: &Front, id: i64, ttl_s: i64) -> Result<(), Status> {
    let done = front.gateway.apply(Command::AdoptLease { id, ttl_s });
    if let Some(leases) = &front.legacy.leases {
        leases.confirmed(id);
    }
    front.durable(done.after).await
}

/// A lease that the legacy cluster has ended, with the registrations that it had before.
pub(super) async fn over(
    front: &Front,
    id: i64,
    keys: Vec<Bytes>,
    mark: i64,
) -> Result<(), Status> {
    tell(
        front,
        keys.into_iter()
            .map(|key| LegacyEvent::Delete { key, mark }),
    )
    .await?;
    let known = front.gateway.with(|core| core.keys().lease(id).is_some()).0;
    if known {
        let done = front.write_unasked(String::new(), KeyCommand::ForgetLease { id });
        front.durable(done.after).await?;
    }
    Ok(())
}

async fn tell(front: &Front, events: impl IntoIterator<Item = LegacyEvent>) -> Result<(), Status> {
    let mut last = None;
    for event in events {
        last = Some(
            front
                .gateway
                .apply(Command::Legacy {
                    store: StoreKind::Etcd,
                    event,
                })
                .after,
        );
    }
    match last {
        Some(after) => front.durable(after).await,
        None => Ok(()),
    }
}

/// The machine's own picture of a range.
fn in_view(front: &Front, key: &Bytes, range_end: &Bytes) -> Vec<Bytes> {
    front
        .gateway
        .with(|core| {
            core.keys()
                .pairs(key, range_end)
                .map(|kv| kv.key.clone())
                .collect()
        })
        .0
}

/// Users may write without reading; then the pairs before are not told.
fn may_not_read(status: &Status) -> bool {
    status.code() == Code::PermissionDenied
}

fn revision(header: Option<&pb::ResponseHeader>) -> i64 {
    header.map_or(0, |h| h.revision)
}

/// What is known of the pair before a put.
#[derive(Debug, Clone, Copy)]
enum Before<'a> {
    Known(Option<&'a KeyValue>),
    Unknown,
}

/// The pair after a put at `revision`; `None` when the put kept something that is not known: the feed
/// shows it then.
fn entry_after(put: &pb::PutRequest, before: Before<'_>, revision: i64) -> Option<LegacyEntry> {
    let kept = match before {
        Before::Known(kept) => kept,
        Before::Unknown => None,
    };
    if (put.ignore_value || put.ignore_lease) && kept.is_none() {
        return None;
    }
    let (create_revision, version) = match (before, kept) {
        // 0 is "not known".
        (Before::Unknown, _) => (0, 0),
        (Before::Known(_), None) => (revision, 1),
        (Before::Known(_), Some(kept)) => (kept.create_revision, kept.version.saturating_add(1)),
    };
    let value = match kept {
        Some(kept) if put.ignore_value => kept.value.clone(),
        _ => put.value.clone(),
    };
    let owner = match kept {
        Some(kept) if put.ignore_lease => kept.lease,
        _ => put.lease,
    };
    Some(LegacyEntry {
        key: put.key.clone(),
        value: Some(value),
        owner,
        mark: revision,
        meta: LegacyMeta::Pair {
            create_revision,
            version,
        },
    })
}

/// The transaction with the pairs before asked for where registrations may be written; `None` when none
/// are.
fn ask_for_pairs(
    txn: &pb::TxnRequest,
    owned: &dyn Fn(&[u8], &[u8]) -> bool,
) -> Option<pb::TxnRequest> {
    let mut asked = txn.clone();
    let mut any = false;
    for op in asked.success.iter_mut().chain(&mut asked.failure) {
        match &mut op.request {
            Some(Asked::RequestPut(put)) if owned(&put.key, b"") => {
                put.prev_kv = true;
                any = true;
            }
            Some(Asked::RequestDeleteRange(delete)) if owned(&delete.key, &delete.range_end) => {
                delete.prev_kv = true;
                any = true;
            }
            Some(Asked::RequestTxn(inner)) => {
                if let Some(with_pairs) = ask_for_pairs(inner, owned) {
                    *inner = with_pairs;
                    any = true;
                }
            }
            _ => {}
        }
    }
    any.then_some(asked)
}

/// Each operation that was done, with its answer.
pub(super) fn walk(
    txn: &pb::TxnRequest,
    answer: &mut pb::TxnResponse,
    each: &mut dyn FnMut(&Asked, &mut Answer),
) {
    let branch = if answer.succeeded {
        &txn.success
    } else {
        &txn.failure
    };
    for (op, answer) in branch.iter().zip(&mut answer.responses) {
        match (&op.request, &mut answer.response) {
            (Some(Asked::RequestTxn(inner)), Some(Answer::ResponseTxn(answer))) => {
                walk(inner, answer, each)
            }
            (Some(asked), Some(answer)) => each(asked, answer),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(value: &'static str, lease: i64) -> pb::PutRequest {
        pb::PutRequest {
            key: "k".into(),
            value: value.into(),
            lease,
            ..Default::default()
        }
    }

    #[test]
    fn the_pair_after_a_put() {
        let old = KeyValue {
            key: "k".into(),
            value: "old".into(),
            create_revision: 3,
            mod_revision: 5,
            version: 2,
            lease: 77,
        };
        let check = |put: &pb::PutRequest, before, want: Option<(&str, i64, i64, i64)>| {
            let got = entry_after(put, before, 9).map(|e| {
                let LegacyMeta::Pair {
                    create_revision,
                    version,
                } = e.meta
                else {
                    panic!("a pair")
                };
                assert_eq!(e.mark, 9);
                (
                    String::from_utf8(e.value.expect("a value").to_vec()).expect("text"),
                    e.owner,
                    create_revision,
                    version,
                )
            });
            assert_eq!(
                got,
                want.map(|(v, o, c, n)| (v.to_owned(), o, c, n)),
                "{put:?} {before:?}"
            );
        };
        let (known, fresh) = (Before::Known(Some(&old)), Before::Known(None));
        check(&put("new", 1), fresh, Some(("new", 1, 9, 1)));
        check(&put("new", 1), known, Some(("new", 1, 3, 3)));
        check(&put("new", 0), known, Some(("new", 0, 3, 3)));
        check(&put("new", 1), Before::Unknown, Some(("new", 1, 0, 0)));
        let keeps_value = pb::PutRequest {
            ignore_value: true,
            ..put("", 8)
        };
        check(&keeps_value, known, Some(("old", 8, 3, 3)));
        check(&keeps_value, Before::Unknown, None);
        let keeps_lease = pb::PutRequest {
            ignore_lease: true,
            ..put("new", 0)
        };
        check(&keeps_lease, known, Some(("new", 77, 3, 3)));
    }

    fn op(request: Asked) -> pb::RequestOp {
        pb::RequestOp {
            request: Some(request),
        }
    }

    fn answer(response: Answer) -> pb::ResponseOp {
        pb::ResponseOp {
            response: Some(response),
        }
    }

    #[test]
    fn only_the_branch_that_was_done_is_walked() {
        let inner = pb::TxnRequest {
            success: vec![op(Asked::RequestPut(put("inner-then", 0)))],
            failure: vec![op(Asked::RequestPut(put("inner-else", 0)))],
            ..Default::default()
        };
        let txn = pb::TxnRequest {
            success: vec![
                op(Asked::RequestPut(put("then", 0))),
                op(Asked::RequestTxn(inner)),
            ],
            failure: vec![op(Asked::RequestPut(put("else", 0)))],
            ..Default::default()
        };
        let done = || answer(Answer::ResponsePut(pb::PutResponse::default()));
        let check = |succeeded, inner_succeeded, want: &[&str]| {
            let inner = pb::TxnResponse {
                succeeded: inner_succeeded,
                responses: vec![done()],
                header: None,
            };
            let mut responses = vec![done()];
            if succeeded {
                responses.push(answer(Answer::ResponseTxn(inner)));
            }
            let mut response = pb::TxnResponse {
                succeeded,
                responses,
                header: None,
            };
            let mut seen = Vec::new();
            walk(&txn, &mut response, &mut |asked, _| {
                if let Asked::RequestPut(put) = asked {
                    seen.push(String::from_utf8_lossy(&put.value).into_owned());
                }
            });
            assert_eq!(seen, want);
        };
        check(true, true, &["then", "inner-then"]);
        check(true, false, &["then", "inner-else"]);
        check(false, false, &["else"]);
    }

    #[test]
    fn pairs_are_asked_for_only_where_registrations_may_be_written() {
        let owned = |key: &[u8], _: &[u8]| key == b"k";
        let general = pb::PutRequest {
            key: "g".into(),
            ..put("v", 0)
        };
        let txn = |request| pb::TxnRequest {
            success: vec![op(request)],
            ..Default::default()
        };
        assert_eq!(
            ask_for_pairs(&txn(Asked::RequestPut(general.clone())), &owned),
            None
        );
        let asked = ask_for_pairs(
            &txn(Asked::RequestTxn(txn(Asked::RequestPut(put("v", 0))))),
            &owned,
        );
        let want = pb::PutRequest {
            prev_kv: true,
            ..put("v", 0)
        };
        assert_eq!(
            asked,
            Some(txn(Asked::RequestTxn(txn(Asked::RequestPut(want)))))
        );
    }
}
