//! Keeps an instance registered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use causeway_registry::Endpoint;
use causeway_registry::api::{RegisterRequest, Registered};
use reqwest::Method;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::client::{Error, Shared};
use crate::members::{Call, backoff};

/// What is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The identity within the service, `host:port` as a rule.
    pub id: String,
    /// Where it takes traffic.
    pub endpoints: Vec<Endpoint>,
    /// What else there is to say.
    pub attributes: BTreeMap<String, String>,
    /// How long it lives when this process is not heard from. It renews three times as often.
    pub ttl: Duration,
}

impl Instance {
    /// An instance without endpoints and attributes that lives 15 s.
    pub fn new(id: impl Into<String>) -> Self {
        Instance {
            id: id.into(),
            endpoints: Vec::new(),
            attributes: BTreeMap::new(),
            ttl: Duration::from_secs(15),
        }
    }

    /// Adds an endpoint.
    pub fn endpoint(
        mut self,
        scheme: impl Into<String>,
        host: impl Into<String>,
        port: u16,
    ) -> Self {
        self.endpoints.push(Endpoint {
            scheme: scheme.into(),
            host: host.into(),
            port,
        });
        self
    }

    /// Adds an attribute.
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.attributes.insert(name.into(), value.into());
        self
    }

    /// Sets how long it lives when this process is not heard from.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }
}

/// How the last renewal went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistrationState {
    /// A member confirmed it.
    Registered,
    /// The last try failed; the next comes by itself.
    Failing(String),
}

/// An instance that is kept registered. Dropping it stops the renewals, and the instance lives on for
/// its time to live; [`Registration::deregister`] takes it away at once.
pub struct Registration {
    work: Arc<Work>,
    renewals: JoinHandle<()>,
    stop: Arc<Notify>,
    state: watch::Receiver<RegistrationState>,
}

struct Work {
    shared: Arc<Shared>,
    service: String,
    instance: Instance,
}

impl Registration {
    /// How the last renewal went.
    pub fn state(&self) -> RegistrationState {
        self.state.borrow().clone()
    }

    /// Waits until [`Registration::state`] is another one.
    pub async fn state_changed(&mut self) {
        // The renewals end with this handle only, so there is always a sender.
        let _ = self.state.changed().await;
    }

    /// Stops the renewals and takes the instance away. An instance that is gone already is no error.
    pub async fn deregister(mut self) -> Result<(), Error> {
        self.stop.notify_one();
        // A renewal on its way is waited for: it must not reach a member after the removal.
        let _ = (&mut self.renewals).await;
        self.work.remove().await
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.renewals.abort();
    }
}

pub(crate) async fn register(
    shared: Arc<Shared>,
    service: &str,
    instance: Instance,
) -> Result<Registration, Error> {
    let work = Arc::new(Work {
        shared,
        service: service.into(),
        instance,
    });
    let mut claim = None;
    work.put(&mut claim).await?;
    let (sender, state) = watch::channel(RegistrationState::Registered);
    let stop = Arc::new(Notify::new());
    let renewals = tokio::spawn(renew(work.clone(), claim, sender, stop.clone()));
    Ok(Registration {
        work,
        renewals,
        stop,
        state,
    })
}

/// Renews until it is stopped. A renewal is a registration, so whatever was lost is made anew by it.
async fn renew(
    work: Arc<Work>,
    mut claim: Option<String>,
    state: watch::Sender<RegistrationState>,
    stop: Arc<Notify>,
) {
    let every = work.instance.ttl / 3;
    let mut failures = 0;
    loop {
        let wait = match failures {
            0 => every,
            failures => backoff(failures, every.min(Duration::from_secs(5))),
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stop.notified() => return,
        }
        let next = match work.put(&mut claim).await {
            Ok(()) => {
                failures = 0;
                RegistrationState::Registered
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                tracing::warn!(service = work.service, instance = work.instance.id, %error, "renewal failed");
                RegistrationState::Failing(error.to_string())
            }
        };
        state.send_if_modified(|state| std::mem::replace(state, next.clone()) != next);
    }
}

impl Work {
    async fn put(&self, claim: &mut Option<String>) -> Result<(), Error> {
        let request = RegisterRequest {
            ttl_ms: Some(u64::try_from(self.instance.ttl.as_millis()).unwrap_or(u64::MAX)),
            endpoints: self.instance.endpoints.clone(),
            attributes: self.instance.attributes.clone(),
            claim: claim.clone(),
        };
        let body = serde_json::to_vec(&request).map_err(|e| Error::Config(e.to_string()))?;
        let reply = self
            .call(Method::PUT, Some(body))
            .await
            .inspect_err(|error| {
                if matches!(error, Error::Refused { .. }) {
                    // It may be what was refused: a member's clock can be far behind the last one's.
                    *claim = None;
                }
            })?;
        let registered: Registered = reply
            .json()
            .await
            .map_err(|error| Error::Unreachable(format!("not a member's answer: {error}")))?;
        *claim = Some(registered.stamp);
        Ok(())
    }

    async fn remove(&self) -> Result<(), Error> {
        match self.call(Method::DELETE, None).await {
            Ok(_) => Ok(()),
            Err(Error::Refused { code, .. }) if code == "unknown_instance" => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn call(
        &self,
        method: Method,
        body: Option<Vec<u8>>,
    ) -> Result<reqwest::Response, Error> {
        let path = ["services", &self.service, "instances", &self.instance.id];
        let query = [("namespace", self.shared.config.namespace.as_str())];
        self.shared
            .members
            .call(&Call {
                method,
                path: &path,
                query: &query,
                body,
            })
            .await
    }
}
