//! Reads (etcd: apply.go Range and mvcc rangeKeys).

use std::cmp::Ordering;
use std::sync::Arc;

use super::KeySpace;
use super::release::Release;
use super::span::Span;
use super::txn::check_key;
use super::types::*;

impl KeySpace {
    /// Reads a range. Errors: empty key, unknown sort, revision in the future or no longer kept.
    pub fn range(&self, request: &RangeRequest) -> Result<RangeReply, KeyError> {
        request.check_shape(self.release)?;
        if request.revision > 0 {
            self.check_revision(request.revision)?;
        }
        Ok(self.range_at(request, self.revision))
    }

    /// Reads a range that passed its checks; `head` is the number of the last write so far.
    pub(crate) fn range_at(&self, request: &RangeRequest, head: i64) -> RangeReply {
        let span = Span::new(&request.key, &request.range_end);
        let historic = request.revision > 0 && request.revision < head;
        let (mut kvs, count) = if historic {
            let state = self
                .history
                .state_at(&self.current, &span, request.revision);
            collect(state.into_iter(), request)
        } else {
            collect(span.of(&self.current).map(|(_, kv)| kv), request)
        };
        sort(&mut kvs, request);
        let mut more = false;
        if let Ok(limit) = usize::try_from(request.limit)
            && limit > 0
            && kvs.len() > limit
        {
            kvs.truncate(limit);
            more = true;
        }
        if request.keys_only {
            let no_lease =
                self.release.keys_only_has_no_lease() && request.sort_target != SortTarget::Value;
            for kv in &mut kvs {
                *kv = Arc::new(KeyValue {
                    value: Default::default(),
                    lease: if no_lease { 0 } else { kv.lease },
                    ..KeyValue::clone(kv)
                });
            }
        }
        RangeReply {
            revision: head,
            kvs,
            count,
            more,
        }
    }
}

impl RangeRequest {
    /// What can be said without the state (etcd: v3rpc checkRangeRequest). Errors: empty key, unknown sort.
    pub fn check_shape(&self, release: Release) -> Result<(), KeyError> {
        check_key(&self.key)?;
        let unknown =
            self.sort_order == SortOrder::Unknown || self.sort_target == SortTarget::Unknown;
        if unknown && release.refuses_unknown_sorts() {
            return Err(KeyError::InvalidSortOption);
        }
        Ok(())
    }

    /// Whether the pairs come in the order of their keys, all of them: what a stream of ranges can give
    /// (etcd: v3rpc checkRangeStreamRequest). Says what stands against it.
    pub fn unfit_for_a_stream(&self) -> Option<&'static str> {
        let by_key = self.sort_order == SortOrder::None
            || (self.sort_order, self.sort_target) == (SortOrder::Ascend, SortTarget::Key);
        if !by_key {
            Some("RangeStream does not support custom sort orders")
        } else if has_filters(self) {
            Some("RangeStream does not support revision filters")
        } else {
            None
        }
    }
}

/// The pairs to sort and cut, and the count of all.
fn collect<'a>(
    pairs: impl Iterator<Item = &'a Arc<KeyValue>>,
    request: &RangeRequest,
) -> (Vec<Arc<KeyValue>>, i64) {
    // etcd stops one pair after the limit unless an order or a filter is given. An order implied
    // by the target alone does not count there, so such a reply is sorted after the cut.
    let early = request.limit > 0 && request.sort_order == SortOrder::None && !has_filters(request);
    let most = match usize::try_from(request.limit) {
        Ok(limit) if early => limit.saturating_add(1),
        _ => usize::MAX,
    };
    let mut kvs = Vec::new();
    let mut count = 0;
    for kv in pairs {
        count += 1;
        if !request.count_only && kvs.len() < most && passes(kv, request) {
            kvs.push(kv.clone());
        }
    }
    (kvs, count)
}

fn has_filters(request: &RangeRequest) -> bool {
    request.min_mod_revision != 0
        || request.max_mod_revision != 0
        || request.min_create_revision != 0
        || request.max_create_revision != 0
}

fn passes(kv: &KeyValue, request: &RangeRequest) -> bool {
    let within = |number: i64, min: i64, max: i64| {
        (min == 0 || number >= min) && (max == 0 || number <= max)
    };
    within(
        kv.mod_revision,
        request.min_mod_revision,
        request.max_mod_revision,
    ) && within(
        kv.create_revision,
        request.min_create_revision,
        request.max_create_revision,
    )
}

/// Equal pairs keep the order of their keys; etcd's sort leaves theirs open.
fn sort(kvs: &mut [Arc<KeyValue>], request: &RangeRequest) {
    let by = |a: &KeyValue, b: &KeyValue| -> Ordering {
        match request.sort_target {
            SortTarget::Key | SortTarget::Unknown => a.key.cmp(&b.key),
            SortTarget::Version => a.version.cmp(&b.version),
            SortTarget::Create => a.create_revision.cmp(&b.create_revision),
            SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
            SortTarget::Value => a.value.cmp(&b.value),
        }
    };
    match request.sort_order {
        SortOrder::None | SortOrder::Ascend if request.sort_target == SortTarget::Key => {}
        SortOrder::Unknown => {}
        SortOrder::None | SortOrder::Ascend => kvs.sort_by(|a, b| by(a, b)),
        SortOrder::Descend => kvs.sort_by(|a, b| by(b, a)),
    }
}
