//! The legacy stores behind the gateway: what they show is fed into the machine ([`feed`]), what the
//! machine wants there is brought to them ([`converge`]), and each client's session or lease has its own
//! counterpart in them ([`sessions`], [`leases`]).

pub mod converge;
pub mod feed;
pub mod leases;
pub mod sessions;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use causeway_backend::{Backend, BackendName, Owner, Scope, Subtree};
use causeway_backend_etcd::upstream::EtcdUpstream;
use causeway_backend_etcd::{EtcdBackend, EtcdOptions};
use causeway_backend_zookeeper::{Servers, ZookeeperBackend, ZookeeperOptions};
use causeway_engine::layout::NodeKind;
use causeway_engine::path::Protocol;
use causeway_engine::phase::{Acknowledges, Census, Move, Phase};
use causeway_engine::route::Mode;
use causeway_registry::StoreKind;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::gateway::Gateway;

/// How long a step back waits for L to have everything.
const ROLLBACK_WAIT: Duration = Duration::from_secs(30);

/// How long somebody waits for a store that is being listed.
const LISTING_WAIT: Duration = Duration::from_secs(5);

/// Handles of the legacy stores.
pub struct Legacy {
    /// The ensemble's servers.
    pub zookeeper_servers: Option<Servers>,
    /// The ensemble, for the gateway's own work.
    pub zookeeper: Option<Arc<dyn Backend>>,
    /// Sessions of clients in the ensemble.
    pub sessions: Option<Arc<sessions::Upstreams>>,
    /// The etcd cluster, for the gateway's own work.
    pub etcd: Option<Arc<dyn Backend>>,
    /// The same cluster for clients' own requests.
    pub etcd_upstream: Option<EtcdUpstream>,
    /// Leases of clients in the etcd cluster.
    pub leases: Option<Arc<leases::Leases>>,
    /// Health as last asked, by store.
    health: Mutex<BTreeMap<&'static str, (bool, String)>>,
}

impl std::fmt::Debug for Legacy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Legacy").finish_non_exhaustive()
    }
}

impl Legacy {
    /// Makes the handles and starts the tasks. Stores may be away: the tasks keep trying and say so.
    pub fn start(gateway: &Arc<Gateway>) -> anyhow::Result<Arc<Self>> {
        let config = &gateway.config;
        let (mut zookeeper, mut zookeeper_servers, mut sessions) = (None, None, None);
        if let Some(legacy) = &config.legacy_zookeeper {
            let servers = Servers::parse(&format!("{}{}", legacy.servers.join(","), legacy.chroot))
                .context("legacy-zookeeper")?;
            // A node's ACL is enforced from memory after the take-over, so it is read with the node.
            let options = ZookeeperOptions {
                read_acls: true,
                ..ZookeeperOptions::new(servers.clone())
            };
            let backend = ZookeeperBackend::new(BackendName::new("zookeeper"), options);
            zookeeper = Some(Arc::new(backend) as Arc<dyn Backend>);
            sessions = Some(Arc::new(sessions::Upstreams::new(servers.clone())));
            zookeeper_servers = Some(servers);
        }
        let (mut etcd, mut etcd_upstream, mut leases) = (None, None, None);
        if let Some(urls) = &config.legacy_etcd {
            let backend = EtcdBackend::new(
                BackendName::new("etcd"),
                &EtcdOptions::new(urls.iter().cloned()),
            )
            .context("legacy-etcd")?;
            let upstream = backend.upstream().clone();
            leases = Some(Arc::new(leases::Leases::new(upstream.clone())));
            etcd_upstream = Some(upstream);
            etcd = Some(Arc::new(backend) as Arc<dyn Backend>);
        }
        let legacy = Arc::new(Legacy {
            zookeeper_servers,
            zookeeper,
            sessions,
            etcd,
            etcd_upstream,
            leases,
            health: Mutex::default(),
        });
        for store in [StoreKind::Zookeeper, StoreKind::Etcd] {
            if let Some(backend) = legacy.backend(store) {
                tokio::spawn(feed::run(gateway.clone(), store, backend.clone()));
                tokio::spawn(converge::run(gateway.clone(), legacy.clone(), store));
                tokio::spawn(watch_health(
                    gateway.clone(),
                    legacy.clone(),
                    store,
                    backend.clone(),
                ));
            }
        }
        if let Some(sessions) = &legacy.sessions {
            tokio::spawn(converge::keep_attached(gateway.clone(), sessions.clone()));
        }
        if legacy.zookeeper.is_some() || legacy.etcd.is_some() {
            tokio::spawn(converge::follow_over(gateway.clone(), legacy.clone()));
        }
        Ok(legacy)
    }

    /// The adapter of a store.
    pub fn backend(&self, store: StoreKind) -> Option<&Arc<dyn Backend>> {
        match store {
            StoreKind::Zookeeper => self.zookeeper.as_ref(),
            StoreKind::Etcd => self.etcd.as_ref(),
            StoreKind::Native => None,
        }
    }

    /// What is wrong with the legacy stores; empty when nothing is.
    pub fn trouble(&self, gateway: &Gateway) -> Vec<String> {
        [StoreKind::Zookeeper, StoreKind::Etcd]
            .into_iter()
            .filter_map(|store| {
                let (whole, trouble) = gateway.with(|core| core.feed(store)).0?;
                (!whole).then(|| {
                    format!(
                        "{}: {}",
                        store.name(),
                        trouble.unwrap_or_else(|| "no snapshot yet".into())
                    )
                })
            })
            .collect()
    }

    /// A row for each store, for `causeway status`.
    pub fn report(&self, gateway: &Gateway) -> Vec<Value> {
        let mut rows = Vec::new();
        for store in [StoreKind::Zookeeper, StoreKind::Etcd] {
            let (mode, feed) = gateway.with(|core| (core.mode(store), core.feed(store))).0;
            let role = match mode {
                Mode::Embedded => "embedded",
                Mode::Relay => "legacy, relayed",
                Mode::TakenOver => "legacy, behind the view",
            };
            let (state, detail) = match feed {
                None => ("serving", String::new()),
                Some((true, _)) => ("whole", self.health_of(store)),
                Some((false, trouble)) => (
                    "not whole",
                    trouble.unwrap_or_else(|| "no snapshot yet".into()),
                ),
            };
            rows.push(
                json!({"store": store.name(), "role": role, "state": state, "detail": detail}),
            );
        }
        let durable = gateway
            .config
            .data_dir
            .as_ref()
            .map(|d| d.display().to_string());
        let detail = durable.map_or_else(|| "in memory".to_owned(), |d| format!("log in {d}"));
        rows.push(
            json!({"store": "registry", "role": "new", "state": "serving", "detail": detail}),
        );
        rows
    }

    fn health_of(&self, store: StoreKind) -> String {
        self.health
            .lock()
            .get(store.name())
            .map(|(_, detail)| detail.clone())
            .unwrap_or_default()
    }

    /// Direct readers and writers of L, as far as they can be known. Readers of L cannot be seen from here:
    /// that is *cannot tell* and not a pass.
    pub fn census(&self, gateway: &Gateway) -> Census {
        let writers = gateway.with(|core| core.direct_writers(10)).0;
        if !writers.is_empty() {
            return Census::Some(writers);
        }
        Census::CannotTell(
            "direct readers of the legacy store leave no trace that can be relied on; rotate its credentials so that \
             only Causeway can log in, or pass the gate with --force and a reason"
                .into(),
        )
    }

    /// What `done` would cut off. Looked at only when that is the next step: it lists the stores whole.
    pub async fn still_on_legacy(&self, gateway: &Gateway) -> Vec<String> {
        let mut out = Vec::new();
        if gateway.with(|core| core.phase().phase()).0 != Phase::Drain {
            return out;
        }
        for store in [StoreKind::Zookeeper, StoreKind::Etcd] {
            out.extend(self.general_keys(gateway, store).await);
        }
        let bound = gateway
            .with(|core| core.sessions().iter().filter(|s| s.bound).count())
            .0;
        if bound > 0 {
            out.push(format!(
                "{bound} sessions hold general ephemerals in the legacy ensemble"
            ));
        }
        let bound = gateway.with(|core| core.bound_leases().len()).0;
        if bound > 0 {
            out.push(format!(
                "{bound} leases hold general keys in the legacy etcd"
            ));
        }
        out
    }

    /// General keys that a store holds, counted, with examples.
    async fn general_keys(&self, gateway: &Gateway, store: StoreKind) -> Option<String> {
        let (backend, everything) = (self.backend(store)?, everything(store));
        let listed =
            tokio::time::timeout(LISTING_WAIT, backend.snapshot(&Scope::from(everything))).await;
        let entries = match listed {
            Ok(Ok(snapshot)) => snapshot.entries,
            Ok(Err(error)) => {
                return Some(format!(
                    "{}: its general keys cannot be listed: {error}",
                    store.name()
                ));
            }
            Err(_) => {
                return Some(format!(
                    "{}: its general keys cannot be listed in time",
                    store.name()
                ));
            }
        };
        let general: Vec<String> = gateway
            .with(|core| {
                let layouts = core.layouts();
                entries
                    .iter()
                    // Parents of what layouts own go with it.
                    .filter(|e| {
                        !core.owns(store, &e.key)
                            && !layouts.owns_descendants_of(protocol(store), &e.key)
                    })
                    .map(|e| causeway_engine::layout::redact(&e.key))
                    .filter(|k| store != StoreKind::Zookeeper || !k.starts_with("/zookeeper"))
                    .collect()
            })
            .0;
        let shown = general
            .iter()
            .take(3)
            .cloned()
            .collect::<Vec<_>>()
            .join(", ");
        (!general.is_empty()).then(|| {
            format!(
                "{}: {} general keys, such as {shown}",
                store.name(),
                general.len()
            )
        })
    }

    /// Ephemerals and leased keys in L that no layout claims, with the layout that would fit.
    pub async fn unclaimed(&self, gateway: &Gateway, limit: usize) -> Vec<Value> {
        let mut out = Vec::new();
        for store in [StoreKind::Zookeeper, StoreKind::Etcd] {
            let Some(backend) = self.backend(store) else {
                continue;
            };
            let listed = tokio::time::timeout(
                LISTING_WAIT,
                backend.snapshot(&Scope::from(everything(store))),
            )
            .await;
            let snapshot = match listed {
                Ok(Ok(snapshot)) => snapshot,
                Ok(Err(error)) => {
                    out.push(json!({"store": store.name(), "key": "?", "owner": "?", "would_fit": error.to_string()}));
                    continue;
                }
                Err(_) => continue,
            };
            for entry in snapshot.entries {
                let Owner::Lease(lease) = entry.owner else {
                    continue;
                };
                let node = match store {
                    StoreKind::Zookeeper => NodeKind::Ephemeral,
                    _ => NodeKind::Leased,
                };
                let found = gateway
                    .with(|core| core.unclaimed_one(store, &entry.key, &entry.value, node, lease.0))
                    .0;
                out.extend(found.map(|u| json!(u)));
                if out.len() >= limit {
                    return out;
                }
            }
        }
        out
    }

    /// What makes a step safe is done first: a store that is being listed is waited for, and before a step
    /// back L gets everything that N acknowledged.
    ///
    /// # Errors
    /// What could not be done, for the operator: the step would not be safe.
    pub async fn prepare_step(&self, gateway: &Gateway, kind: Move) -> Result<(), String> {
        let whole = async {
            while !self.trouble(gateway).is_empty() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let _ = tokio::time::timeout(LISTING_WAIT, whole).await;
        let leaves_new = gateway
            .with(|core| {
                let phase = core.phase();
                kind == Move::Rollback
                    && phase.phase().acknowledges() == Acknowledges::New
                    && phase.phase() != Phase::Done
            })
            .0;
        if !leaves_new {
            return Ok(());
        }
        let caught_up = async {
            loop {
                gateway.converge.notify_one();
                if gateway.with(|core| core.backlog()).0 == 0 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let _ = tokio::time::timeout(ROLLBACK_WAIT, caught_up).await;
        let names_again = gateway
            .with(|core| core.phase().phase() == Phase::MergeNew)
            .0;
        if let Some(sessions) = self.sessions.as_ref().filter(|_| names_again) {
            let raised =
                tokio::time::timeout(ROLLBACK_WAIT, converge::raise_counters(gateway, sessions))
                    .await;
            let why = match raised {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("not within {ROLLBACK_WAIT:?}"),
            };
            let failure = format!(
                "sequence counters of the legacy ensemble cannot be raised to the view's: {why}"
            );
            tracing::warn!(
                failure,
                "a step back would give names of sequential nodes twice"
            );
            return Err(failure);
        }
        Ok(())
    }

    /// A step was taken: L may have to follow.
    pub fn stepped(&self, gateway: &Gateway) {
        gateway.converge.notify_one();
    }
}

/// Keeps the health of a store known, and says when it changes.
async fn watch_health(
    gateway: Arc<Gateway>,
    legacy: Arc<Legacy>,
    store: StoreKind,
    backend: Arc<dyn Backend>,
) {
    let mut stopping = gateway.stopping();
    let mut was: Option<bool> = None;
    loop {
        let health = backend.health().await;
        let usable = health.is_usable();
        if was != Some(usable) {
            if usable {
                tracing::info!(store = store.name(), "legacy store is reachable");
            } else {
                tracing::warn!(store = store.name(), detail = %health.detail, "legacy store cannot be reached; trying on");
            }
            was = Some(usable);
        }
        legacy
            .health
            .lock()
            .insert(store.name(), (usable, health.detail));
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(5)) => {}
            () = crate::gateway::stopped(&mut stopping) => return,
        }
    }
}

fn protocol(store: StoreKind) -> Protocol {
    if store == StoreKind::Zookeeper {
        Protocol::Zookeeper
    } else {
        Protocol::Etcd
    }
}

/// All keys of a store.
fn everything(store: StoreKind) -> Subtree {
    if store == StoreKind::Zookeeper {
        Subtree::root("/")
    } else {
        Subtree::prefix("")
    }
}

/// What the gateway lists and watches in a store.
pub fn scope(gateway: &Gateway, store: StoreKind) -> Scope {
    let layouts = &gateway.config.layouts;
    match store {
        StoreKind::Zookeeper => Scope::new(
            layouts
                .owned_roots(Protocol::Zookeeper)
                .into_iter()
                .map(Subtree::root),
        ),
        _ => Scope::new(
            layouts
                .owned_roots(Protocol::Etcd)
                .into_iter()
                .map(Subtree::prefix),
        ),
    }
}
