//! What an etcd cluster keeps beside its keys: alarms, and a downgrade that was begun.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::release::Release;
use super::types::*;

/// An alarm as etcd keeps it: kinds that are not known count as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Alarm {
    /// etcd's number of the kind ([`Alarm::NOSPACE`], [`Alarm::CORRUPT`]); 0 is none.
    pub kind: i32,
    /// The etcd member that it was raised for, as the client named it.
    pub member: u64,
}

impl Alarm {
    /// The quota is used up.
    pub const NOSPACE: i32 = 1;
    /// Members differ.
    pub const CORRUPT: i32 = 2;
}

/// Alarms and downgrade.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    alarms: BTreeSet<Alarm>,
    downgrades: bool,
}

impl Cluster {
    /// Alarms that are raised, by kind.
    pub fn alarms(&self) -> impl Iterator<Item = Alarm> + '_ {
        self.alarms.iter().copied()
    }

    /// Whether a downgrade to the release before was begun and not ended.
    pub fn downgrades(&self) -> bool {
        self.downgrades
    }

    fn has(&self, kind: i32) -> bool {
        self.alarms.iter().any(|alarm| alarm.kind == kind)
    }

    /// What the raised alarms do not let a client do (etcd: apply/capped.go, apply/corrupt.go).
    pub(crate) fn refusal(&self, command: &KeyCommand, release: Release) -> Option<KeyError> {
        if self.alarms.is_empty() {
            return None;
        }
        let changes = match command {
            KeyCommand::Put { .. }
            | KeyCommand::DeleteRange { .. }
            | KeyCommand::Compact { .. }
            | KeyCommand::LeaseGrant { .. }
            | KeyCommand::LeaseRevoke { .. } => true,
            // One that only reads is answered without asking the cluster (etcd: txn.IsTxnReadonly).
            KeyCommand::Txn(txn) => !ops(txn).all(|op| matches!(op, Op::Range(_))),
            _ => false,
        };
        if changes && self.has(Alarm::CORRUPT) {
            return Some(KeyError::Corrupt);
        }
        let takes_space = match command {
            KeyCommand::Put { .. } | KeyCommand::LeaseGrant { .. } => true,
            KeyCommand::Txn(txn) => puts(txn, release.counts_nested_puts()),
            _ => false,
        };
        (takes_space && self.has(Alarm::NOSPACE)).then_some(KeyError::NoSpace)
    }

    pub(crate) fn check_alarm(&self, active: bool, alarm: Alarm) -> Result<(), KeyError> {
        if active && self.alarms.len() >= MAX_ALARMS && !self.alarms.contains(&alarm) {
            return Err(KeyError::TooManyAlarms);
        }
        Ok(())
    }

    /// Gives whether there is or was such an alarm (etcd: apply/backend.go, Alarm).
    pub(crate) fn set_alarm(&mut self, active: bool, alarm: Alarm) -> bool {
        match (active, alarm.kind) {
            (true, 0) => false,
            (true, _) => {
                self.alarms.insert(alarm);
                true
            }
            (false, _) => self.alarms.remove(&alarm),
        }
    }

    pub(crate) fn check_downgrade(&self, enable: bool) -> Result<(), KeyError> {
        if enable && self.downgrades {
            return Err(KeyError::DowngradeInProcess);
        }
        Ok(())
    }

    pub(crate) fn set_downgrade(&mut self, enable: bool) {
        self.downgrades = enable;
    }
}

fn ops(txn: &Txn) -> impl Iterator<Item = &Op> {
    txn.success.iter().chain(&txn.failure)
}

/// Whether a transaction may put something.
fn puts(txn: &Txn, nested_too: bool) -> bool {
    ops(txn).any(|op| match op {
        Op::Put { .. } => true,
        Op::Txn(nested) => nested_too && puts(nested, nested_too),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put() -> Op {
        Op::Put {
            key: "a".into(),
            value: "".into(),
            lease: 0,
            prev_kv: false,
            ignore_value: false,
            ignore_lease: false,
        }
    }

    fn txn(success: Vec<Op>) -> KeyCommand {
        KeyCommand::Txn(Txn {
            success,
            ..Txn::default()
        })
    }

    #[test]
    fn what_each_alarm_refuses() {
        let put_command = || KeyCommand::Put {
            key: "a".into(),
            value: "".into(),
            lease: 0,
            prev_kv: false,
            ignore_value: false,
            ignore_lease: false,
        };
        let delete = || KeyCommand::DeleteRange {
            key: "a".into(),
            range_end: "".into(),
            prev_kv: false,
        };
        let nested = || {
            txn(vec![Op::Txn(Txn {
                failure: vec![put()],
                ..Txn::default()
            })])
        };
        let range = || txn(vec![Op::Range(RangeRequest::default())]);
        let newest = Release::default();
        for (kind, command, release, want) in [
            (1, put_command(), newest, Some(KeyError::NoSpace)),
            (
                1,
                KeyCommand::LeaseGrant { id: 1, ttl_s: 1 },
                newest,
                Some(KeyError::NoSpace),
            ),
            (1, txn(vec![put()]), newest, Some(KeyError::NoSpace)),
            (1, nested(), newest, Some(KeyError::NoSpace)),
            (1, nested(), Release::new(3, 6), None),
            (1, range(), newest, None),
            (1, delete(), newest, None),
            (1, KeyCommand::Compact { revision: 1 }, newest, None),
            (2, put_command(), newest, Some(KeyError::Corrupt)),
            (2, delete(), newest, Some(KeyError::Corrupt)),
            (2, nested(), newest, Some(KeyError::Corrupt)),
            (2, range(), newest, None),
            (
                2,
                KeyCommand::Compact { revision: 1 },
                newest,
                Some(KeyError::Corrupt),
            ),
            (
                2,
                KeyCommand::LeaseRevoke {
                    id: 1,
                    keep: Vec::new(),
                },
                newest,
                Some(KeyError::Corrupt),
            ),
            (2, KeyCommand::RemoveAll { keys: Vec::new() }, newest, None),
            (3, put_command(), newest, None),
        ] {
            let mut cluster = Cluster::default();
            assert_eq!(cluster.refusal(&command, release), None);
            assert!(cluster.set_alarm(true, Alarm { kind, member: 7 }));
            assert_eq!(
                cluster.refusal(&command, release),
                want,
                "{kind} {command:?}"
            );
        }
    }

    #[test]
    fn alarms_are_kept_by_kind_and_member_within_a_bound() {
        let mut cluster = Cluster::default();
        let alarm = |member| Alarm { kind: 1, member };
        assert!(!cluster.set_alarm(true, Alarm { kind: 0, member: 1 }));
        assert!(!cluster.set_alarm(false, alarm(1)));
        for member in 0..MAX_ALARMS as u64 {
            assert_eq!(cluster.check_alarm(true, alarm(member)), Ok(()));
            cluster.set_alarm(true, alarm(member));
        }
        let over = alarm(u64::MAX);
        assert_eq!(
            cluster.check_alarm(true, over),
            Err(KeyError::TooManyAlarms)
        );
        assert_eq!(cluster.check_alarm(true, alarm(0)), Ok(()));
        assert!(cluster.set_alarm(false, alarm(0)));
        assert_eq!(cluster.check_alarm(true, over), Ok(()));
    }
}
