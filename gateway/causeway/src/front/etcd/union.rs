//! Requests over registrations and general keys at once, and transactions that the legacy cluster has to
//! acknowledge before the view follows.

use std::collections::BTreeMap;

use bytes::Bytes;
use causeway_engine::core::Core;
use causeway_engine::key_space::{
    Compare, CompareTarget, KeyCommand, Op, RangeRequest, Release, Txn,
};
use causeway_engine::path::Protocol;
use causeway_engine::route::Touches;
use causeway_registry::{RecordKey, StoreKind};
use causeway_wire::etcd::EtcdError;
use causeway_wire::etcd::messages::etcdserverpb as pb;
use causeway_wire::etcd::messages::etcdserverpb::request_op::Request as Asked;
use causeway_wire::etcd::messages::etcdserverpb::response_op::Response as Answer;
use causeway_wire::etcd::messages::mvccpb::KeyValue;
use parking_lot::Mutex;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use super::keep_alive::PATIENCE;
use super::translate::{self, status};
use super::{Front, general};

/// Ranges whose general keys are remembered, and keys of each.
const KEPT: usize = 1024;

/// A range over both: the legacy cluster's general keys and the view's registrations as one list, under our
/// header. A past revision selects the registrations' past; general keys are those of now.
pub(super) async fn range(
    front: &Front,
    metadata: &MetadataMap,
    range: &pb::RangeRequest,
) -> Result<pb::RangeResponse, Status> {
    let release = front.identity.release();
    let whole = translate::range(range);
    whole
        .check_shape(release)
        .map_err(|e| status(translate::key_error(&e)))?;
    let mut kvs = general_part(front, metadata, range).await?;
    let asked = RangeRequest {
        key: whole.key,
        range_end: whole.range_end,
        revision: whole.revision,
        ..Default::default()
    };
    let (found, after) = front.gateway.with(|core| core.keys().range(&asked));
    front.durable(after).await?;
    let found = found.map_err(|e| status(translate::key_error(&e)))?;
    kvs.extend(found.kvs.iter().map(|kv| translate::kv(kv)));
    let (kvs, count, more) = select(range, release, kvs);
    Ok(pb::RangeResponse {
        header: Some(front.header(found.revision)),
        kvs,
        more,
        count,
    })
}

/// The general keys of a range over both. Readers of one directory of registrations often leave out the
/// slash at its end, and so ask for general keys that hardly ever exist: they must not lose sight of the
/// registrations with the legacy cluster, and are given what was last seen of the rest.
async fn general_part(
    front: &Front,
    metadata: &MetadataMap,
    range: &pb::RangeRequest,
) -> Result<Vec<KeyValue>, Status> {
    let everything = pb::RangeRequest {
        key: range.key.clone(),
        range_end: range.range_end.clone(),
        serializable: range.serializable,
        ..Default::default()
    };
    let asked = general::range(front, metadata, everything);
    if !is_directory(
        &front.gateway.config.layouts.owned_roots(Protocol::Etcd),
        &range.key,
    ) {
        return Ok(without_copies(front, asked.await?.into_inner().kvs));
    }
    let which = (range.key.clone(), range.range_end.clone());
    let failed = match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(answer)) => {
            let kvs = without_copies(front, answer.into_inner().kvs);
            front.last_seen.keep(which, &kvs);
            return Ok(kvs);
        }
        Ok(Err(status)) if status.code() != Code::Unavailable => return Err(status),
        Ok(Err(status)) => status,
        Err(_) => Status::unavailable("no answer in time"),
    };
    tracing::debug!(prefix = %range.key.escape_ascii(), %failed, "general keys beside registrations are shown as last seen");
    Ok(front.last_seen.get(&which))
}

/// Copies of registrations in the legacy cluster are not what readers see.
fn without_copies(front: &Front, mut kvs: Vec<KeyValue>) -> Vec<KeyValue> {
    kvs.retain(|kv| !front.owns(&kv.key));
    kvs
}

/// Whether a key is a directory of registrations without the slash at its end.
fn is_directory(roots: &[Vec<u8>], key: &[u8]) -> bool {
    roots
        .iter()
        .any(|root| root.strip_suffix(b"/") == Some(key))
}

/// General keys as last seen in ranges over both classes.
#[derive(Default)]
pub(super) struct LastSeen(Mutex<BTreeMap<(Bytes, Bytes), Vec<KeyValue>>>);

impl LastSeen {
    fn keep(&self, range: (Bytes, Bytes), kvs: &[KeyValue]) {
        let mut ranges = self.0.lock();
        if kvs.is_empty() {
            ranges.remove(&range);
        } else if kvs.len() <= KEPT && (ranges.len() < KEPT || ranges.contains_key(&range)) {
            ranges.insert(range, kvs.to_vec());
        }
    }

    fn get(&self, range: &(Bytes, Bytes)) -> Vec<KeyValue> {
        self.0.lock().get(range).cloned().unwrap_or_default()
    }
}

/// Sort, bounds, limit and fields of a range, over pairs from anywhere (etcd: apply.go Range).
fn select(
    range: &pb::RangeRequest,
    release: Release,
    mut kvs: Vec<KeyValue>,
) -> (Vec<KeyValue>, i64, bool) {
    use pb::range_request::{SortOrder, SortTarget};
    let count = i64::try_from(kvs.len()).unwrap_or(i64::MAX);
    if range.count_only {
        return (Vec::new(), count, false);
    }
    let within = |number: i64, low: i64, high: i64| {
        (low == 0 || number >= low) && (high == 0 || number <= high)
    };
    kvs.retain(|kv| {
        within(
            kv.mod_revision,
            range.min_mod_revision,
            range.max_mod_revision,
        ) && within(
            kv.create_revision,
            range.min_create_revision,
            range.max_create_revision,
        )
    });
    kvs.sort_by(|a, b| a.key.cmp(&b.key));
    match range.sort_target() {
        SortTarget::Key => {}
        SortTarget::Version => kvs.sort_by_key(|kv| kv.version),
        SortTarget::Create => kvs.sort_by_key(|kv| kv.create_revision),
        SortTarget::Mod => kvs.sort_by_key(|kv| kv.mod_revision),
        SortTarget::Value => kvs.sort_by(|a, b| a.value.cmp(&b.value)),
    }
    if range.sort_order() == SortOrder::Descend {
        kvs.reverse();
    }
    let mut more = false;
    if let Ok(limit @ 1..) = usize::try_from(range.limit) {
        more = kvs.len() > limit;
        kvs.truncate(limit);
    }
    if range.keys_only {
        let no_lease = release.keys_only_has_no_lease() && range.sort_target() != SortTarget::Value;
        for kv in &mut kvs {
            kv.value = Bytes::new();
            if no_lease {
                kv.lease = 0;
            }
        }
    }
    (kvs, count, more)
}

/// A deletion that the legacy cluster acknowledges first.
pub(super) async fn delete(
    front: &Front,
    peer: String,
    metadata: &MetadataMap,
    delete: pb::DeleteRangeRequest,
) -> Result<pb::DeleteRangeResponse, Status> {
    let op = translate::delete(&delete);
    front.refuse_before_legacy(&peer, &op)?;
    let mixed = front.touches(&delete.key, &delete.range_end) == Touches::Mixed;
    let asked = pb::DeleteRangeRequest {
        prev_kv: delete.prev_kv || mixed,
        ..delete.clone()
    };
    let there = general::delete(front, metadata, asked).await?.into_inner();
    let mark = there.header.as_ref().map_or(0, |h| h.revision);
    let done = front.acknowledged(peer, op, mark);
    let mut answer = front.delete_reply(done).await?;
    if mixed {
        let general: Vec<KeyValue> = there
            .prev_kvs
            .into_iter()
            .filter(|kv| !front.owns(&kv.key))
            .collect();
        answer.deleted += i64::try_from(general.len()).unwrap_or(0);
        if delete.prev_kv {
            answer.prev_kvs.extend(general);
            answer.prev_kvs.sort_by(|a, b| a.key.cmp(&b.key));
        }
    }
    Ok(answer)
}

/// A transaction that the legacy cluster acknowledges first. Conditions on numbers of registrations are
/// judged here, since the numbers are ours, and then asked of that cluster as "unchanged since seen": it
/// decides, atomically with the writes. Then the view follows with the operations that were done.
pub(super) async fn txn(
    front: &Front,
    peer: String,
    metadata: &MetadataMap,
    txn: &pb::TxnRequest,
) -> Result<pb::TxnResponse, Status> {
    check(front, txn)?;
    front.refuse_before_legacy(&peer, &KeyCommand::Txn(translate::txn(txn)))?;
    for (lease, _) in leased_puts(txn) {
        front.know_lease(lease).await;
    }
    let turned = front
        .gateway
        .with(|core| {
            let owned = |compare: &pb::Compare| {
                front.touches(&compare.key, &compare.range_end) == Touches::Owned
            };
            let unchanged = |compare: &pb::Compare| unchanged(core, compare);
            turn(txn, &owned, &unchanged, &|compare| {
                compare.holds(core.keys())
            })
        })
        .0;
    let there = general::txn(front, metadata, turned).await?.into_inner();
    let mark = there.header.as_ref().map_or(0, |h| h.revision);
    let op = KeyCommand::Txn(done_here(txn, &there, &|key, range_end| {
        front.touches(key, range_end) != Touches::General
    }));
    let is_mixed = touched_by(front, txn) == Touches::Mixed;
    let here = front.txn_reply(front.acknowledged(peer, op, mark)).await?;
    if is_mixed {
        return Ok(there);
    }
    let mut answer = here;
    as_decided(&mut answer, &there);
    Ok(answer)
}

/// What can be refused without asking anybody, in the key space's own words.
fn check(front: &Front, txn: &pb::TxnRequest) -> Result<(), Status> {
    // Conditions and general keys are not ours to judge, so the operations alone are checked.
    let shape = Txn {
        compare: Vec::new(),
        ..translate::txn(txn)
    };
    let refused = front
        .gateway
        .with(|core| core.keys().check(&KeyCommand::Txn(shape)).err())
        .0;
    match refused.as_ref().map(translate::key_error) {
        Some(
            error @ (EtcdError::EmptyKey
            | EtcdError::TooManyOps
            | EtcdError::DuplicateKey
            | EtcdError::ValueProvided
            | EtcdError::LeaseProvided
            | EtcdError::RequestTooLarge),
        ) => Err(status(error)),
        _ => Ok(()),
    }
}

/// The transaction for the legacy cluster: a condition on a registration's number is judged with `holds`,
/// and becomes that cluster's `unchanged` or one that can never hold. Left out, it would let two clients
/// pass that were judged before either wrote.
fn turn(
    txn: &pb::TxnRequest,
    owned: &dyn Fn(&pb::Compare) -> bool,
    unchanged: &dyn Fn(&pb::Compare) -> pb::Compare,
    holds: &dyn Fn(&Compare) -> bool,
) -> pb::TxnRequest {
    let compare = |compare: &pb::Compare| {
        let ours = translate::compare(compare);
        if !owned(compare) || matches!(ours.target, CompareTarget::Value(_)) {
            return compare.clone();
        }
        if holds(&ours) {
            unchanged(compare)
        } else {
            never(&compare.key)
        }
    };
    let op = |op: &pb::RequestOp| match &op.request {
        Some(Asked::RequestTxn(inner)) => pb::RequestOp {
            request: Some(Asked::RequestTxn(turn(inner, owned, unchanged, holds))),
        },
        _ => op.clone(),
    };
    pb::TxnRequest {
        compare: txn.compare.iter().map(compare).collect(),
        success: txn.success.iter().map(op).collect(),
        failure: txn.failure.iter().map(op).collect(),
    }
}

/// Holds in the legacy cluster as long as it has what the machine last saw there.
fn unchanged(core: &Core, compare: &pb::Compare) -> pb::Compare {
    let mark = |key: &Bytes| {
        core.legacy_entry(&RecordKey::new(StoreKind::Etcd, key.clone()))
            .map_or(0, |entry| entry.mark)
    };
    let (result, mark) = if compare.range_end.is_empty() {
        (pb::compare::CompareResult::Equal, mark(&compare.key))
    } else {
        // One condition holds for each pair of a range, or for none: nothing newer than what was seen.
        let pairs = core.keys().pairs(&compare.key, &compare.range_end);
        let newest = pairs.map(|kv| mark(&kv.key)).max().unwrap_or(0);
        (pb::compare::CompareResult::Less, newest.saturating_add(1))
    };
    pb::Compare {
        key: compare.key.clone(),
        range_end: compare.range_end.clone(),
        target: pb::compare::CompareTarget::Mod.into(),
        result: result.into(),
        target_union: Some(pb::compare::TargetUnion::ModRevision(mark)),
    }
}

/// No key has a version below 0.
fn never(key: &Bytes) -> pb::Compare {
    pb::Compare {
        key: key.clone(),
        target: pb::compare::CompareTarget::Version.into(),
        result: pb::compare::CompareResult::Less.into(),
        target_union: Some(pb::compare::TargetUnion::Version(0)),
        ..Default::default()
    }
}

/// The operations on registrations that were done, without conditions.
fn done_here(
    txn: &pb::TxnRequest,
    there: &pb::TxnResponse,
    owned: &dyn Fn(&[u8], &[u8]) -> bool,
) -> Txn {
    let branch = if there.succeeded {
        &txn.success
    } else {
        &txn.failure
    };
    let mut success = Vec::new();
    for (op, answer) in branch.iter().zip(&there.responses) {
        let of_view = match (&op.request, &answer.response) {
            (Some(Asked::RequestTxn(inner)), Some(Answer::ResponseTxn(answer))) => {
                success.push(Op::Txn(done_here(inner, answer, owned)));
                continue;
            }
            (Some(Asked::RequestPut(put)), _) => owned(&put.key, b""),
            (Some(Asked::RequestDeleteRange(delete)), _) => owned(&delete.key, &delete.range_end),
            (Some(Asked::RequestRange(range)), _) => owned(&range.key, &range.range_end),
            _ => false,
        };
        if of_view {
            success.extend(
                translate::txn(&pb::TxnRequest {
                    success: vec![op.clone()],
                    ..Default::default()
                })
                .success,
            );
        }
    }
    Txn {
        success,
        ..Txn::default()
    }
}

/// Our answer with the legacy cluster's verdicts on the conditions.
fn as_decided(answer: &mut pb::TxnResponse, there: &pb::TxnResponse) {
    answer.succeeded = there.succeeded;
    for (answer, there) in answer.responses.iter_mut().zip(&there.responses) {
        if let (Some(Answer::ResponseTxn(answer)), Some(Answer::ResponseTxn(there))) =
            (&mut answer.response, &there.response)
        {
            as_decided(answer, there);
        }
    }
}

/// What a transaction touches, over conditions and both branches.
pub(super) fn touched_by(front: &Front, txn: &pb::TxnRequest) -> Touches {
    let mut all = None;
    each_range(txn, &mut |key, range_end| {
        let this = front.touches(key, range_end);
        all = Some(match all {
            None => this,
            Some(before) if before == this => this,
            Some(_) => Touches::Mixed,
        });
    });
    all.unwrap_or(Touches::General)
}

fn each_range(txn: &pb::TxnRequest, each: &mut dyn FnMut(&[u8], &[u8])) {
    for compare in &txn.compare {
        each(&compare.key, &compare.range_end);
    }
    for op in txn.success.iter().chain(&txn.failure) {
        match &op.request {
            Some(Asked::RequestRange(range)) => each(&range.key, &range.range_end),
            Some(Asked::RequestPut(put)) => each(&put.key, b""),
            Some(Asked::RequestDeleteRange(delete)) => each(&delete.key, &delete.range_end),
            Some(Asked::RequestTxn(inner)) => each_range(inner, each),
            None => {}
        }
    }
}

/// Whether a transaction may change something.
pub(super) fn writes(txn: &pb::TxnRequest) -> bool {
    txn.success
        .iter()
        .chain(&txn.failure)
        .any(|op| match &op.request {
            Some(Asked::RequestPut(_) | Asked::RequestDeleteRange(_)) => true,
            Some(Asked::RequestTxn(inner)) => writes(inner),
            Some(Asked::RequestRange(_)) | None => false,
        })
}

/// Puts under a lease, as lease and key.
pub(super) fn leased_puts(txn: &pb::TxnRequest) -> Vec<(i64, Bytes)> {
    let mut out = Vec::new();
    for op in txn.success.iter().chain(&txn.failure) {
        match &op.request {
            Some(Asked::RequestPut(put)) if put.lease != 0 => {
                out.push((put.lease, put.key.clone()))
            }
            Some(Asked::RequestTxn(inner)) => out.extend(leased_puts(inner)),
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests;
