//! The index by service: who is in it, how it changes, and what a subscriber missed.
//!
//! A subscriber is a revision, never a queue: what it lacks is worked out when it asks, from the
//! present records, so a slow one costs nothing and gets only the newest state.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::record::{Health, Record, RecordKey};

/// A service of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServiceName {
    /// The namespace.
    pub namespace: String,
    /// The service within it.
    pub service: String,
}

impl ServiceName {
    /// A service of a namespace.
    pub fn new(namespace: impl Into<String>, service: impl Into<String>) -> Self {
        ServiceName {
            namespace: namespace.into(),
            service: service.into(),
        }
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.service)
    }
}

/// A mark in a member's changes. Marks of one incarnation rise; marks of two do not compare.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Revision {
    /// The member's life that counts.
    pub incarnation: u64,
    /// Its count of changes.
    pub number: u64,
}

/// What happened to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeKind {
    /// It was not there.
    Added,
    /// Its owner wrote it again; body, lease or stamp differ.
    Updated,
    /// Its owner, or whoever speaks for it, took it away.
    Removed,
    /// A verdict took it away after its lease had run out.
    Expired,
}

/// One record's part of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What happened.
    pub kind: ChangeKind,
    /// The record as it is now, or as it was when it went.
    pub record: Record,
    /// What an update replaced.
    pub previous: Option<Record>,
}

impl Change {
    /// The service whose list changed.
    pub fn service(&self) -> ServiceName {
        self.record.service()
    }

    /// True when the record is gone.
    pub fn is_removal(&self) -> bool {
        matches!(self.kind, ChangeKind::Removed | ChangeKind::Expired)
    }
}

/// One change, of one record or of several at once (all of a closed lease).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    /// The mark of the change; each touched service's revision becomes it, if its visible content
    /// changed.
    pub revision: Revision,
    /// The parts, in order.
    pub changes: Vec<Change>,
}

/// A service in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceInfo {
    /// Which service.
    pub name: ServiceName,
    /// The mark of its last visible change.
    pub revision: Revision,
    /// Identities.
    pub instances: usize,
    /// Registrations, of which an instance may have several. The four healths add up to it.
    pub registrations: usize,
    /// Registrations whose owner was heard from.
    pub live: usize,
    /// Registrations whose owner is late.
    pub silent: usize,
    /// Registrations whose owner timed out.
    pub expired: usize,
    /// Registrations kept against their timeout.
    pub held: usize,
    /// Records beside the instances.
    pub companions: usize,
}

/// What a subscriber lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatchUp {
    /// Nothing.
    Current {
        /// The mark it is at.
        revision: Revision,
    },
    /// What became of each registration that changed since.
    Delta {
        /// The mark it is at with this.
        revision: Revision,
        /// New and changed ones, as they are now.
        changed: Vec<Record>,
        /// Those that are gone.
        removed: Vec<Gone>,
    },
    /// Too much or too long ago: everything there is. What is not in it is gone.
    Full {
        /// The mark it is at with this.
        revision: Revision,
        /// All registrations of the service, by instance.
        records: Vec<Record>,
    },
}

/// A registration that is not in the service any more.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gone {
    /// The registration.
    pub key: RecordKey,
    /// The instance it stood for; another registration may still do so.
    pub instance: String,
    /// Its owner, or whoever speaks for it, took it away; false: a verdict after its lease ran out.
    pub explicit: bool,
}

/// One service.
#[derive(Clone, Debug, Default)]
pub(crate) struct Service {
    revision: u64,
    /// Registrations by identity, sorted.
    instances: BTreeMap<String, Vec<RecordKey>>,
    companions: BTreeSet<RecordKey>,
    registrations: usize,
    live: usize,
    silent: usize,
    expired: usize,
    held: usize,
    /// The last visible changes; what the key is now is looked up when somebody asks.
    history: VecDeque<(u64, Gone)>,
    /// A subscriber at this number or above finds all it missed in `history`.
    history_from: u64,
}

impl Service {
    fn count(&mut self, health: Health) -> &mut usize {
        match health {
            Health::Live => &mut self.live,
            Health::Silent => &mut self.silent,
            Health::Expired => &mut self.expired,
            Health::Held => &mut self.held,
        }
    }

    fn is_empty(&self) -> bool {
        self.instances.is_empty() && self.companions.is_empty()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &RecordKey> {
        self.instances.values().flatten()
    }

    pub(crate) fn companions(&self) -> impl Iterator<Item = &RecordKey> {
        self.companions.iter()
    }
}

/// The change that a service's list is changed by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) number: u64,
    /// False: by a verdict, not by an owner.
    pub(crate) explicit: bool,
}

/// What a subscriber must look at.
pub(crate) enum Missed {
    Nothing,
    Keys(Vec<Gone>),
    Everything,
}

/// All services of a member.
#[derive(Clone, Debug)]
pub(crate) struct Services {
    by_name: BTreeMap<ServiceName, Service>,
    /// Services without records, by revision: kept for a while so that their subscribers learn
    /// that they are empty, and no more often than once.
    empty: BTreeSet<(u64, ServiceName)>,
    /// The highest revision of a service that was forgotten.
    forgotten: u64,
    with_instances: usize,
    instances: usize,
    registrations: usize,
    history_limit: usize,
    empty_limit: usize,
}

impl Services {
    pub(crate) fn new(history_limit: usize, empty_limit: usize) -> Self {
        Services {
            by_name: BTreeMap::new(),
            empty: BTreeSet::new(),
            forgotten: 0,
            with_instances: 0,
            instances: 0,
            registrations: 0,
            history_limit,
            empty_limit,
        }
    }

    /// Services with at least one instance.
    pub(crate) fn with_instances(&self) -> usize {
        self.with_instances
    }

    /// Identities over all services.
    pub(crate) fn instances(&self) -> usize {
        self.instances
    }

    /// Registrations of instances over all services.
    pub(crate) fn registrations(&self) -> usize {
        self.registrations
    }

    pub(crate) fn get(&self, name: &ServiceName) -> Option<&Service> {
        self.by_name.get(name)
    }

    /// Services that have records, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ServiceName, &Service)> {
        self.by_name
            .iter()
            .filter(|(_, service)| !service.is_empty())
    }

    pub(crate) fn info(&self, name: &ServiceName, service: &Service, life: u64) -> ServiceInfo {
        ServiceInfo {
            name: name.clone(),
            revision: Revision {
                incarnation: life,
                number: service.revision,
            },
            instances: service.instances.len(),
            registrations: service.registrations,
            live: service.live,
            silent: service.silent,
            expired: service.expired,
            held: service.held,
            companions: service.companions.len(),
        }
    }

    /// Counts a record in. `mark` is None when nothing visible changes by it.
    pub(crate) fn add(&mut self, record: &Record, mark: Option<Mark>) {
        let name = record.service();
        // A subscriber from before the service was forgotten must not take this one for the same.
        let forgotten = self.forgotten;
        let service = self.by_name.entry(name.clone()).or_insert_with(|| Service {
            revision: forgotten,
            history_from: forgotten,
            ..Service::default()
        });
        if service.is_empty() {
            self.empty.remove(&(service.revision, name));
        }
        if record.body.companion {
            service.companions.insert(record.key.clone());
            return;
        }
        if service.instances.is_empty() {
            self.with_instances += 1;
        }
        let keys = service
            .instances
            .entry(record.body.instance.clone())
            .or_default();
        if keys.is_empty() {
            self.instances += 1;
        }
        if let Err(at) = keys.binary_search(&record.key) {
            keys.insert(at, record.key.clone());
        }
        service.registrations += 1;
        self.registrations += 1;
        *service.count(record.health) += 1;
        if let Some(mark) = mark {
            note(service, self.history_limit, record, mark);
        }
    }

    /// Counts a record out. It must be as it was when counted in.
    pub(crate) fn remove(&mut self, record: &Record, mark: Option<Mark>) {
        let name = record.service();
        let Some(service) = self.by_name.get_mut(&name) else {
            return;
        };
        if record.body.companion {
            service.companions.remove(&record.key);
        } else if let Some(keys) = service.instances.get_mut(&record.body.instance)
            && let Ok(at) = keys.binary_search(&record.key)
        {
            keys.remove(at);
            if keys.is_empty() {
                service.instances.remove(&record.body.instance);
                self.instances -= 1;
                if service.instances.is_empty() {
                    self.with_instances -= 1;
                }
            }
            service.registrations -= 1;
            self.registrations -= 1;
            *service.count(record.health) -= 1;
            if let Some(mark) = mark {
                note(service, self.history_limit, record, mark);
            }
        }
        if service.is_empty() {
            self.empty.insert((service.revision, name));
            self.forget_empty();
        }
    }

    /// The record's health changes to `health`; nobody is told.
    pub(crate) fn set_health(&mut self, record: &Record, health: Health) {
        if record.body.companion {
            return;
        }
        if let Some(service) = self.by_name.get_mut(&record.service()) {
            *service.count(record.health) -= 1;
            *service.count(health) += 1;
        }
    }

    /// What a subscriber at `since` lacks. `latest` is the number of the member's last change.
    pub(crate) fn missed(
        &self,
        name: &ServiceName,
        since: Option<u64>,
        latest: u64,
    ) -> (u64, Missed) {
        let Some(service) = self.by_name.get(name) else {
            return match since {
                Some(since) if since >= self.forgotten && since <= latest => {
                    (since, Missed::Nothing)
                }
                _ => (latest, Missed::Everything),
            };
        };
        let missed = match since {
            // A number not given out yet comes from elsewhere.
            Some(since) if since > latest => Missed::Everything,
            Some(since) if since >= service.revision => Missed::Nothing,
            Some(since) if since >= service.history_from => {
                // The last that became of each registration under each identity.
                let keys: BTreeMap<_, &Gone> = service
                    .history
                    .iter()
                    .filter(|(number, _)| *number > since)
                    .map(|(_, gone)| ((&gone.key, &gone.instance), gone))
                    .collect();
                Missed::Keys(keys.into_values().cloned().collect())
            }
            _ => Missed::Everything,
        };
        let at = match missed {
            Missed::Nothing => since.unwrap_or(service.revision),
            _ => service.revision,
        };
        (at, missed)
    }

    /// A new life counts anew: no number from before means anything.
    pub(crate) fn start_life(&mut self) {
        for (_, name) in std::mem::take(&mut self.empty) {
            self.by_name.remove(&name);
        }
        self.forgotten = 0;
        for service in self.by_name.values_mut() {
            service.revision = 0;
            service.history.clear();
            service.history_from = 0;
        }
    }

    fn forget_empty(&mut self) {
        while self.empty.len() > self.empty_limit {
            let Some((revision, name)) = self.empty.pop_first() else {
                return;
            };
            self.by_name.remove(&name);
            self.forgotten = self.forgotten.max(revision);
        }
    }
}

fn note(service: &mut Service, limit: usize, record: &Record, mark: Mark) {
    service.revision = mark.number;
    let gone = Gone {
        key: record.key.clone(),
        instance: record.body.instance.clone(),
        explicit: mark.explicit,
    };
    service.history.push_back((mark.number, gone));
    while service.history.len() > limit {
        if let Some((dropped, _)) = service.history.pop_front() {
            service.history_from = dropped;
        }
    }
}
