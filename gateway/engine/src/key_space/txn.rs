//! Checks that a request must pass before it changes anything, and the work of a transaction.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::release::Release;
use super::span::{Span, Spans};
use super::types::*;
use super::{KeySpace, Writer};

/// Fields of a put, from a command or from an operation.
#[derive(Clone, Copy)]
pub(crate) struct Put<'a> {
    pub(crate) key: &'a Bytes,
    pub(crate) value: &'a Bytes,
    pub(crate) lease: i64,
    pub(crate) prev_kv: bool,
    pub(crate) ignore_value: bool,
    pub(crate) ignore_lease: bool,
}

impl Put<'_> {
    /// What can be said without the state (etcd: v3rpc checkPutRequest).
    pub(crate) fn check_shape(&self) -> Result<(), KeyError> {
        check_key(self.key)?;
        if self.ignore_value && !self.value.is_empty() {
            return Err(KeyError::ValueProvided);
        }
        if self.ignore_lease && self.lease != 0 {
            return Err(KeyError::LeaseProvided);
        }
        Ok(())
    }

    /// A lone put looks at the lease first (etcd: applierV3backend.Put).
    pub(crate) fn check_state(&self, space: &KeySpace) -> Result<(), KeyError> {
        self.check_lease(space)?;
        self.check_ignored(space)
    }

    /// Before 3.7 a put in a transaction looks at the pair first (etcd: checkRequestPut).
    fn check_state_in_txn(&self, space: &KeySpace) -> Result<(), KeyError> {
        if space.release.checks_leases_first() {
            return self.check_state(space);
        }
        self.check_ignored(space)?;
        self.check_lease(space)
    }

    fn check_lease(&self, space: &KeySpace) -> Result<(), KeyError> {
        if self.lease != 0 && space.lease(self.lease).is_none() {
            return Err(KeyError::LeaseNotFound);
        }
        Ok(())
    }

    fn check_ignored(&self, space: &KeySpace) -> Result<(), KeyError> {
        if (self.ignore_value || self.ignore_lease) && space.get(self.key).is_none() {
            return Err(KeyError::KeyNotFound);
        }
        Ok(())
    }
}

pub(crate) fn check_key(key: &Bytes) -> Result<(), KeyError> {
    if key.is_empty() {
        Err(KeyError::KeyNotProvided)
    } else {
        Ok(())
    }
}

impl Txn {
    /// What can be said without the state: operations, depth, duplicates.
    pub(crate) fn check_shape(&self, release: Release) -> Result<(), KeyError> {
        check_ops(self, MAX_TXN_OPS, release)?;
        check_duplicates(&self.success)?;
        check_duplicates(&self.failure)?;
        Ok(())
    }

    /// Checks all operations that would be done: one after another, and before 3.6 puts before ranges.
    pub(crate) fn check_state(&self, space: &KeySpace, path: &[bool]) -> Result<(), KeyError> {
        let put = |op: &Op| match op.as_put() {
            Some(put) => put.check_state_in_txn(space),
            None => Ok(()),
        };
        let range = |op: &Op| match op {
            Op::Range(range) => check_revision_in_txn(space, range.revision),
            _ => Ok(()),
        };
        if space.release.checks_in_order() {
            return check_path(self, &mut path.iter(), &|op| {
                put(op).and_then(|()| range(op))
            });
        }
        check_path(self, &mut path.iter(), &put)?;
        check_path(self, &mut path.iter(), &range)
    }

    /// Which branch each transaction takes, outermost first. Nested compares see the state before
    /// the whole transaction (etcd: compareToPath).
    pub(crate) fn path(&self, space: &KeySpace) -> Vec<bool> {
        let mut path = Vec::new();
        choose(space, self, &mut path);
        path
    }

    /// Does the operations on the path. All checks were passed.
    pub(crate) fn run(&self, writer: &mut Writer<'_>, path: &[bool]) -> TxnReply {
        let mut reply = run_branch(self, writer, &mut path.iter());
        reply.revision = writer.revision();
        reply
    }

    /// About the bytes of its encoding.
    pub(crate) fn size(&self) -> usize {
        let compares = self.compare.iter().map(|compare| {
            let value = match &compare.target {
                CompareTarget::Value(value) => value.len(),
                _ => 10,
            };
            compare.key.len() + compare.range_end.len() + value + 12
        });
        let ops = self.success.iter().chain(&self.failure).map(|op| match op {
            Op::Range(range) => range.key.len() + range.range_end.len() + 8,
            Op::Put { key, value, .. } => key.len() + value.len() + 12,
            Op::DeleteRange { key, range_end, .. } => key.len() + range_end.len() + 8,
            Op::Txn(txn) => txn.size() + 8,
            Op::Empty => 2,
        });
        compares.chain(ops).sum()
    }
}

impl Op {
    pub(crate) fn as_put(&self) -> Option<Put<'_>> {
        match self {
            Op::Put {
                key,
                value,
                lease,
                prev_kv,
                ignore_value,
                ignore_lease,
            } => Some(Put {
                key,
                value,
                lease: *lease,
                prev_kv: *prev_kv,
                ignore_value: *ignore_value,
                ignore_lease: *ignore_lease,
            }),
            _ => None,
        }
    }
}

impl Compare {
    /// Whether it holds for the present state (etcd: applyCompare).
    pub fn holds(&self, space: &KeySpace) -> bool {
        let span = Span::new(&self.key, &self.range_end);
        let mut found = false;
        for (_, kv) in span.of(&space.current) {
            found = true;
            if !self.holds_for(kv) {
                return false;
            }
        }
        found
            || (!matches!(self.target, CompareTarget::Value(_))
                && self.holds_for(&KeyValue::default()))
    }

    fn holds_for(&self, kv: &KeyValue) -> bool {
        let order = match &self.target {
            CompareTarget::Version(given) => kv.version.cmp(given),
            CompareTarget::Create(given) => kv.create_revision.cmp(given),
            CompareTarget::Mod(given) => kv.mod_revision.cmp(given),
            CompareTarget::Lease(given) => kv.lease.cmp(given),
            CompareTarget::Value(given) => kv.value.cmp(given),
            CompareTarget::Unknown => std::cmp::Ordering::Equal,
        };
        match self.result {
            CompareResult::Equal => order.is_eq(),
            CompareResult::NotEqual => order.is_ne(),
            CompareResult::Greater => order.is_gt(),
            CompareResult::Less => order.is_lt(),
            CompareResult::Unknown => true,
        }
    }
}

/// etcd: v3rpc checkTxnRequest. The budget also bounds the recursion.
fn check_ops(txn: &Txn, budget: usize, release: Release) -> Result<(), KeyError> {
    let used = txn
        .compare
        .len()
        .max(txn.success.len())
        .max(txn.failure.len());
    let left = budget.checked_sub(used).ok_or(KeyError::TooManyOps)?;
    for compare in &txn.compare {
        check_key(&compare.key)?;
    }
    for op in txn.success.iter().chain(&txn.failure) {
        match op {
            Op::Range(range) => range.check_shape(release)?,
            Op::DeleteRange { key, .. } => check_key(key)?,
            Op::Put { .. } => op.as_put().map_or(Ok(()), |put| put.check_shape())?,
            Op::Txn(nested) => check_ops(nested, left, release)?,
            Op::Empty => return Err(KeyError::KeyNotFound),
        }
    }
    Ok(())
}

/// Puts and deletions of a list of operations, if no key is written twice (etcd: v3rpc
/// checkIntervals, with its order: own deletions, then nested transactions, then own puts).
fn check_duplicates(ops: &[Op]) -> Result<(BTreeSet<&Bytes>, Spans), KeyError> {
    let mut deletes = Spans::default();
    let mut puts = BTreeSet::new();
    for op in ops {
        if let Op::DeleteRange { key, range_end, .. } = op {
            deletes.add(key, range_end);
        }
    }
    for op in ops {
        let Op::Txn(nested) = op else { continue };
        let (then_puts, then_deletes) = check_duplicates(&nested.success)?;
        let (else_puts, else_deletes) = check_duplicates(&nested.failure)?;
        // Only one of the two branches is done, so they may share keys with each other.
        let either: BTreeSet<&Bytes> = then_puts.union(&else_puts).copied().collect();
        for key in either {
            if deletes.contains(key) || !puts.insert(key) {
                return Err(KeyError::DuplicateKey);
            }
        }
        deletes.add_all(then_deletes);
        deletes.add_all(else_deletes);
    }
    for op in ops {
        if let Op::Put { key, .. } = op
            && (deletes.contains(key) || !puts.insert(key))
        {
            return Err(KeyError::DuplicateKey);
        }
    }
    Ok((puts, deletes))
}

/// A revision inside a transaction is compared as it stands (etcd: checkRequestRange), so that a
/// negative one is "compacted" here although a lone range takes it for the present.
fn check_revision_in_txn(space: &KeySpace, revision: i64) -> Result<(), KeyError> {
    if revision > 0 {
        space.check_revision(revision)
    } else if revision < 0 && revision < space.compacted {
        Err(KeyError::Compacted {
            compact_revision: space.compacted,
        })
    } else {
        Ok(())
    }
}

fn choose(space: &KeySpace, txn: &Txn, path: &mut Vec<bool>) {
    let succeeded = txn.compare.iter().all(|compare| compare.holds(space));
    path.push(succeeded);
    for op in txn.branch(succeeded) {
        if let Op::Txn(nested) = op {
            choose(space, nested, path);
        }
    }
}

type Path<'a> = std::slice::Iter<'a, bool>;

fn check_path(
    txn: &Txn,
    path: &mut Path<'_>,
    check: &dyn Fn(&Op) -> Result<(), KeyError>,
) -> Result<(), KeyError> {
    let succeeded = path.next().copied().unwrap_or_default();
    for op in txn.branch(succeeded) {
        match op {
            Op::Txn(nested) => check_path(nested, path, check)?,
            other => check(other)?,
        }
    }
    Ok(())
}

fn run_branch(txn: &Txn, writer: &mut Writer<'_>, path: &mut Path<'_>) -> TxnReply {
    let succeeded = path.next().copied().unwrap_or_default();
    let mut replies = Vec::new();
    for op in txn.branch(succeeded) {
        replies.push(match op {
            Op::Range(range) => OpReply::Range(writer.range(range)),
            Op::Put { .. } => match op.as_put() {
                Some(put) => OpReply::Put(writer.put(put)),
                None => continue,
            },
            Op::DeleteRange {
                key,
                range_end,
                prev_kv,
            } => OpReply::DeleteRange(writer.delete_range(key, range_end, *prev_kv)),
            Op::Txn(nested) => OpReply::Txn(run_branch(nested, writer, path)),
            // Refused by the check of the shape.
            Op::Empty => continue,
        });
    }
    TxnReply {
        revision: 0,
        succeeded,
        replies,
    }
}

impl Txn {
    fn branch(&self, succeeded: bool) -> &[Op] {
        if succeeded {
            &self.success
        } else {
            &self.failure
        }
    }
}
