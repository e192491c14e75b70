//! Which names there are. DNS compares without case and the registry with it, and a service that lost its last
//! instance must not lose its name: so the names are kept here, fed by the registry's changes.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use causeway_registry::{Delta, ServiceName};
use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::access::RegistryAccess;

/// How many names are kept; then those without records go.
const MOST: usize = 200_000;

/// The names of services, as they were first seen.
pub(super) struct Names {
    access: Arc<dyn RegistryAccess>,
    table: Mutex<Table>,
}

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// This service.
    Service(ServiceName),
    /// Several, which differ in case alone, and none in the case asked for.
    Several,
    /// No service, but there are names below it.
    Between,
    /// Nothing.
    Unknown,
}

impl Names {
    /// The names there are, kept up from now on.
    pub(super) fn follow(access: Arc<dyn RegistryAccess>) -> Arc<Self> {
        // Subscribed before the look, so that no service is missed between.
        let deltas = access.subscribe();
        let names = Arc::new(Names {
            access,
            table: Mutex::default(),
        });
        names.look();
        tokio::spawn(follow(deltas, Arc::downgrade(&names)));
        names
    }

    /// What is known under a name.
    pub(super) fn find(&self, name: &ServiceName) -> Known {
        self.table.lock().find(name)
    }

    /// Whether any service is known in a namespace.
    pub(super) fn has_namespace(&self, namespace: &str) -> bool {
        let table = self.table.lock();
        table.namespaces.contains(&namespace.to_lowercase())
    }

    fn look(&self) {
        let services = self.access.services();
        let mut table = self.table.lock();
        for info in services {
            table.add(&info.name);
        }
    }

    fn note(&self, delta: &Delta) {
        let crowded = {
            let mut table = self.table.lock();
            for change in &delta.changes {
                table.add(&change.service());
            }
            table.count > MOST
        };
        if crowded {
            let services = self.access.services();
            let mut fresh = Table::default();
            for info in services {
                fresh.add(&info.name);
            }
            *self.table.lock() = fresh;
        }
    }
}

async fn follow(mut deltas: broadcast::Receiver<Arc<Delta>>, names: Weak<Names>) {
    loop {
        let received = deltas.recv().await;
        let Some(names) = names.upgrade() else { return };
        match received {
            Ok(delta) => names.note(&delta),
            Err(RecvError::Lagged(_)) => names.look(),
            Err(RecvError::Closed) => return,
        }
    }
}

#[derive(Default)]
struct Table {
    /// By namespace and service in lower case. Without a name: one that is between others.
    by_lower: HashMap<(String, String), BTreeSet<ServiceName>>,
    namespaces: BTreeSet<String>,
    count: usize,
}

impl Table {
    fn add(&mut self, name: &ServiceName) {
        let namespace = name.namespace.to_lowercase();
        let service = name.service.to_lowercase();
        // `b.c` and `c` exist as names when `a.b.c` does (RFC 8020: below what does not exist is nothing).
        for (at, _) in service.match_indices('.') {
            let above = (namespace.clone(), service[at + 1..].to_owned());
            self.by_lower.entry(above).or_default();
        }
        let known = self
            .by_lower
            .entry((namespace.clone(), service))
            .or_default();
        if known.insert(name.clone()) {
            self.count += 1;
        }
        self.namespaces.insert(namespace);
    }

    fn find(&self, name: &ServiceName) -> Known {
        let lower = (name.namespace.to_lowercase(), name.service.to_lowercase());
        let Some(known) = self.by_lower.get(&lower) else {
            return Known::Unknown;
        };
        if known.contains(name) {
            return Known::Service(name.clone());
        }
        let mut exact = known.iter().filter(|one| one.service == name.service);
        if let (Some(one), None) = (exact.next(), exact.next()) {
            return Known::Service(one.clone());
        }
        let mut all = known.iter();
        match (all.next(), all.next()) {
            (None, _) => Known::Between,
            (Some(one), None) => Known::Service(one.clone()),
            (Some(_), Some(_)) => Known::Several,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_without_case_and_stay() {
        let mut table = Table::default();
        for service in ["com.example.Cart", "till", "Till", "POS"] {
            table.add(&ServiceName::new("Shop", service));
        }
        let service = |service: &str| Known::Service(ServiceName::new("Shop", service));
        for (asked, found) in [
            ("com.example.cart", service("com.example.Cart")),
            ("COM.EXAMPLE.CART", service("com.example.Cart")),
            ("till", service("till")),
            ("Till", service("Till")),
            ("TILL", Known::Several),
            ("pos", service("POS")),
            ("example.cart", Known::Between),
            ("Cart", Known::Between),
            ("com", Known::Unknown),
            ("xcart", Known::Unknown),
        ] {
            assert_eq!(
                table.find(&ServiceName::new("shop", asked)),
                found,
                "{asked}"
            );
        }
        assert_eq!(table.find(&ServiceName::new("x", "till")), Known::Unknown);
    }
}
