//! The naive model: whole states, and every question answered by looking at all of it.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// Whole states, one per revision; every question is answered by looking at all of it.
pub(super) struct Model {
    states: Vec<(i64, BTreeMap<Bytes, KeyValue>)>,
    pub(super) leases: BTreeSet<i64>,
    pub(super) floor: i64,
    pub(super) compacted: i64,
}

impl Model {
    pub(super) fn new() -> Model {
        Model {
            states: vec![(1, BTreeMap::new())],
            leases: BTreeSet::new(),
            floor: 0,
            compacted: -1,
        }
    }

    pub(super) fn now(&self) -> &(i64, BTreeMap<Bytes, KeyValue>) {
        self.states.last().unwrap()
    }

    fn inside(key: &[u8], start: &[u8], end: &[u8]) -> bool {
        match end {
            [] => key == start,
            [0] => key >= start,
            _ => key >= start && key < end,
        }
    }

    fn commit(&mut self, state: BTreeMap<Bytes, KeyValue>, revision: i64, wrote: bool) -> bool {
        if wrote {
            self.states.push((revision, state));
        }
        wrote
    }

    /// The reply's essence, as text.
    pub(super) fn apply(
        &mut self,
        command: &KeyCommand,
        revision: i64,
    ) -> Result<String, KeyError> {
        let mut state = self.now().1.clone();
        let mut wrote = false;
        let reply = match command {
            KeyCommand::Put { .. } | KeyCommand::DeleteRange { .. } | KeyCommand::Txn(_) => {
                let as_op = op(command.clone());
                self.shape(std::slice::from_ref(&as_op), true)?;
                if let Op::Put {
                    key,
                    lease,
                    ignore_value,
                    ignore_lease,
                    ..
                } = &as_op
                {
                    if *lease != 0 && !self.leases.contains(lease) {
                        return Err(KeyError::LeaseNotFound);
                    }
                    if (*ignore_value || *ignore_lease) && !state.contains_key(key) {
                        return Err(KeyError::KeyNotFound);
                    }
                }
                if let Op::Txn(txn) = &as_op {
                    self.admissible(txn, true)?;
                    self.admissible(txn, false)?;
                }
                let (begin, base) = (self.now().0, self.now().1.clone());
                self.run(&as_op, begin, revision, &base, &mut state, &mut wrote)
            }
            KeyCommand::Compact { revision } => {
                if *revision <= self.compacted {
                    return Err(KeyError::Compacted {
                        compact_revision: self.compacted,
                    });
                }
                if *revision > self.now().0 {
                    return Err(KeyError::FutureRevision);
                }
                self.compacted = *revision;
                self.floor = self.floor.max(*revision);
                String::new()
            }
            KeyCommand::LeaseGrant { id, .. } => {
                if !self.leases.insert(*id) {
                    return Err(KeyError::LeaseExists);
                }
                String::new()
            }
            KeyCommand::LeaseRevoke { id, keep } => {
                if !self.leases.remove(id) {
                    return Err(KeyError::LeaseNotFound);
                }
                let before = state.len();
                state.retain(|key, kv| kv.lease != *id || keep.contains(key));
                wrote = state.len() != before;
                format!("{}", before - state.len())
            }
            KeyCommand::RemoveAll { keys } => {
                let before = state.len();
                state.retain(|key, _| !keys.contains(key));
                wrote = state.len() != before;
                format!("{}", before - state.len())
            }
            other => panic!("{other:?}"),
        };
        self.commit(state, revision, wrote);
        Ok(reply)
    }

    fn shape(&self, ops: &[Op], outermost: bool) -> Result<(), KeyError> {
        for op in ops {
            match op {
                Op::Put {
                    value,
                    lease,
                    ignore_value,
                    ignore_lease,
                    ..
                } => {
                    if *ignore_value && !value.is_empty() {
                        return Err(KeyError::ValueProvided);
                    }
                    if *ignore_lease && *lease != 0 {
                        return Err(KeyError::LeaseProvided);
                    }
                }
                Op::Txn(txn) => {
                    self.shape(&txn.success, false)?;
                    self.shape(&txn.failure, false)?;
                    if outermost {
                        Self::written(&txn.success)?;
                        Self::written(&txn.failure)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Keys put and ranges deleted, every pair compared.
    #[allow(clippy::type_complexity)]
    fn written(ops: &[Op]) -> Result<(Vec<Bytes>, Vec<(Bytes, Bytes)>), KeyError> {
        let hits = |deletes: &[(Bytes, Bytes)], key: &Bytes| {
            deletes
                .iter()
                .any(|(start, end)| end.as_ref() != [0] && Self::inside(key, start, end))
        };
        let mut deletes: Vec<(Bytes, Bytes)> = ops
            .iter()
            .filter_map(|op| match op {
                Op::DeleteRange { key, range_end, .. } => Some((key.clone(), range_end.clone())),
                _ => None,
            })
            .collect();
        let mut puts: Vec<Bytes> = Vec::new();
        for op in ops {
            let Op::Txn(txn) = op else { continue };
            let (then_puts, then_deletes) = Self::written(&txn.success)?;
            let (else_puts, else_deletes) = Self::written(&txn.failure)?;
            let either: BTreeSet<Bytes> = then_puts.into_iter().chain(else_puts).collect();
            for key in either {
                if puts.contains(&key) || hits(&deletes, &key) {
                    return Err(KeyError::DuplicateKey);
                }
                puts.push(key);
            }
            deletes.extend(then_deletes);
            deletes.extend(else_deletes);
        }
        for op in ops {
            let Op::Put { key, .. } = op else { continue };
            if puts.contains(key) || hits(&deletes, key) {
                return Err(KeyError::DuplicateKey);
            }
            puts.push(key.clone());
        }
        Ok((puts, deletes))
    }

    fn chosen<'t>(&self, txn: &'t Txn) -> (bool, &'t [Op]) {
        let state = &self.now().1;
        let absent = KeyValue::default();
        let succeeded = txn.compare.iter().all(|compare| {
            let mut pairs: Vec<&KeyValue> = state
                .values()
                .filter(|kv| Self::inside(&kv.key, &compare.key, &compare.range_end))
                .collect();
            if pairs.is_empty() {
                if matches!(compare.target, CompareTarget::Value(_)) {
                    return false;
                }
                pairs.push(&absent);
            }
            pairs.into_iter().all(|kv| {
                let order = match &compare.target {
                    CompareTarget::Version(to) => kv.version.cmp(to),
                    CompareTarget::Create(to) => kv.create_revision.cmp(to),
                    CompareTarget::Mod(to) => kv.mod_revision.cmp(to),
                    CompareTarget::Lease(to) => kv.lease.cmp(to),
                    CompareTarget::Value(to) => kv.value.cmp(to),
                    CompareTarget::Unknown => std::cmp::Ordering::Equal,
                };
                match compare.result {
                    CompareResult::Equal => order.is_eq(),
                    CompareResult::NotEqual => !order.is_eq(),
                    CompareResult::Greater => order.is_gt(),
                    CompareResult::Less => order.is_lt(),
                    CompareResult::Unknown => true,
                }
            })
        });
        (
            succeeded,
            if succeeded {
                &txn.success
            } else {
                &txn.failure
            },
        )
    }

    fn admissible(&self, txn: &Txn, puts: bool) -> Result<(), KeyError> {
        for op in self.chosen(txn).1 {
            match op {
                Op::Put {
                    key,
                    lease,
                    ignore_value,
                    ignore_lease,
                    ..
                } if puts => {
                    if (*ignore_value || *ignore_lease) && !self.now().1.contains_key(key) {
                        return Err(KeyError::KeyNotFound);
                    }
                    if *lease != 0 && !self.leases.contains(lease) {
                        return Err(KeyError::LeaseNotFound);
                    }
                }
                Op::Range(range) if !puts && range.revision > self.now().0 => {
                    return Err(KeyError::FutureRevision);
                }
                Op::Range(range) if !puts && range.revision > 0 && range.revision < self.floor => {
                    return Err(KeyError::Compacted {
                        compact_revision: self.floor,
                    });
                }
                Op::Txn(nested) => self.admissible(nested, puts)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn run(
        &self,
        op: &Op,
        begin: i64,
        revision: i64,
        base: &BTreeMap<Bytes, KeyValue>,
        state: &mut BTreeMap<Bytes, KeyValue>,
        wrote: &mut bool,
    ) -> String {
        match op {
            Op::Range(range) => {
                let seen = if range.revision <= 0 || (range.revision == begin && !*wrote) {
                    &*state
                } else if range.revision == begin {
                    base
                } else {
                    &self.at(range.revision).1
                };
                Self::list(seen, range)
            }
            Op::Put {
                key,
                value,
                lease,
                prev_kv,
                ignore_value,
                ignore_lease,
            } => {
                let before = state.get(key).cloned();
                let blank = KeyValue {
                    create_revision: revision,
                    ..KeyValue::default()
                };
                let old = before.clone().unwrap_or(blank);
                *wrote = true;
                let value = if *ignore_value && before.is_some() {
                    old.value
                } else {
                    value.clone()
                };
                let lease = if *ignore_lease && before.is_some() {
                    old.lease
                } else {
                    *lease
                };
                let new = KeyValue {
                    key: key.clone(),
                    value,
                    create_revision: old.create_revision,
                    mod_revision: revision,
                    version: old.version + 1,
                    lease,
                };
                state.insert(key.clone(), new);
                format!(
                    "put was {:?}",
                    before.filter(|_| *prev_kv).map(|kv| pair(&kv))
                )
            }
            Op::DeleteRange { key, range_end, .. } => {
                let gone: Vec<KeyValue> = state
                    .values()
                    .filter(|kv| Self::inside(&kv.key, key, range_end))
                    .cloned()
                    .collect();
                for kv in &gone {
                    state.remove(&kv.key);
                }
                *wrote |= !gone.is_empty();
                format!("deleted {:?}", gone.iter().map(pair).collect::<Vec<_>>())
            }
            Op::Txn(txn) => {
                let (succeeded, ops) = self.chosen(txn);
                let parts: Vec<String> = ops
                    .iter()
                    .map(|op| self.run(op, begin, revision, base, state, wrote))
                    .collect();
                format!("{succeeded} {parts:?}")
            }
            Op::Empty => String::new(),
        }
    }

    pub(super) fn at(&self, revision: i64) -> &(i64, BTreeMap<Bytes, KeyValue>) {
        self.states
            .iter()
            .rev()
            .find(|(number, _)| *number <= revision)
            .unwrap_or(&self.states[0])
    }

    pub(super) fn list(state: &BTreeMap<Bytes, KeyValue>, range: &RangeRequest) -> String {
        let inside: Vec<&KeyValue> = state
            .values()
            .filter(|kv| Self::inside(&kv.key, &range.key, &range.range_end))
            .collect();
        let within = |number: i64, min: i64, max: i64| {
            (min == 0 || min <= number) && (max == 0 || number <= max)
        };
        let mut kvs: Vec<KeyValue> = inside
            .iter()
            .filter(|kv| {
                within(
                    kv.mod_revision,
                    range.min_mod_revision,
                    range.max_mod_revision,
                )
            })
            .filter(|kv| {
                within(
                    kv.create_revision,
                    range.min_create_revision,
                    range.max_create_revision,
                )
            })
            .map(|kv| (*kv).clone())
            .collect();
        let filtered = range.min_mod_revision
            | range.max_mod_revision
            | range.min_create_revision
            | range.max_create_revision;
        if range.limit > 0 && range.sort_order == SortOrder::None && filtered == 0 {
            kvs.truncate(range.limit as usize + 1);
        }
        match range.sort_target {
            SortTarget::Key | SortTarget::Unknown => {}
            SortTarget::Version => kvs.sort_by_key(|kv| kv.version),
            SortTarget::Create => kvs.sort_by_key(|kv| kv.create_revision),
            SortTarget::Mod => kvs.sort_by_key(|kv| kv.mod_revision),
            SortTarget::Value => kvs.sort_by_key(|kv| kv.value.clone()),
        }
        if range.sort_order == SortOrder::Descend {
            // Equal ones keep the order of their keys.
            kvs.reverse();
            let mut stable: Vec<Vec<KeyValue>> = Vec::new();
            let same = |a: &KeyValue, b: &KeyValue| match range.sort_target {
                SortTarget::Key | SortTarget::Unknown => a.key == b.key,
                SortTarget::Version => a.version == b.version,
                SortTarget::Create => a.create_revision == b.create_revision,
                SortTarget::Mod => a.mod_revision == b.mod_revision,
                SortTarget::Value => a.value == b.value,
            };
            for kv in kvs {
                match stable.last_mut() {
                    Some(run) if same(&run[0], &kv) => run.insert(0, kv),
                    _ => stable.push(vec![kv]),
                }
            }
            kvs = stable.into_iter().flatten().collect();
        }
        let mut more = false;
        if range.count_only {
            kvs.clear();
        }
        if range.limit > 0 && kvs.len() > range.limit as usize {
            kvs.truncate(range.limit as usize);
            more = true;
        }
        if range.keys_only {
            for kv in &mut kvs {
                kv.value = Bytes::new();
            }
        }
        let kvs = kvs.into_iter().map(Arc::new).collect();
        shown(&RangeReply {
            revision: 0,
            kvs,
            count: inside.len() as i64,
            more,
        })
    }
}

pub(super) fn essence(reply: &KeyReply) -> String {
    match reply {
        KeyReply::Put(reply) => essence_of_op(&OpReply::Put(reply.clone())),
        KeyReply::DeleteRange(reply) => essence_of_op(&OpReply::DeleteRange(reply.clone())),
        KeyReply::Txn(reply) => essence_of_op(&OpReply::Txn(reply.clone())),
        KeyReply::Changed(count) => format!("{count}"),
        KeyReply::LeaseGrant { .. } | KeyReply::Done => String::new(),
    }
}

fn essence_of_op(reply: &OpReply) -> String {
    match reply {
        OpReply::Range(reply) => shown(reply),
        OpReply::Put(reply) => format!("put was {:?}", reply.prev_kv.as_deref().map(pair)),
        OpReply::DeleteRange(reply) => {
            let gone: Vec<String> = reply.prev_kvs.iter().map(|kv| pair(kv)).collect();
            assert_eq!(reply.deleted, gone.len() as i64);
            format!("deleted {gone:?}")
        }
        OpReply::Txn(reply) => {
            let parts: Vec<String> = reply.replies.iter().map(essence_of_op).collect();
            format!("{} {parts:?}", reply.succeeded)
        }
    }
}
