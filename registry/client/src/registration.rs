//! Keeps an instance registered.

use std::collections::BTreeMap;
use std::sync::Arc;

use causeway_registry::Endpoint;
use causeway_registry_proto::v1;
use tokio::sync::watch;

use crate::client::{Error, Shared};
use crate::session::Key;

/// What is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The identity within the service, `host:port` as a rule.
    pub id: String,
    /// Where it takes traffic.
    pub endpoints: Vec<Endpoint>,
    /// What else there is to say.
    pub attributes: BTreeMap<String, String>,
}

impl Instance {
    /// An instance without endpoints and attributes.
    pub fn new(id: impl Into<String>) -> Self {
        Instance {
            id: id.into(),
            endpoints: Vec::new(),
            attributes: BTreeMap::new(),
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
}

/// How it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistrationState {
    /// A member confirmed it.
    Registered,
    /// No member has it for sure at present; it is tried again by itself.
    Failing(String),
}

/// What is told to whoever waits for a registration.
#[derive(Clone, Debug)]
pub(crate) enum Progress {
    /// Nothing was heard yet.
    Waiting,
    /// A member has it.
    Registered,
    /// A member refused it.
    Refused(v1::Failure),
    /// No member answers.
    Unreachable(String),
    /// It was taken away.
    Gone,
    /// A member refused to take it away.
    Kept(v1::Failure),
}

/// An instance that is kept registered. [`Registration::deregister`] takes it away and says how that went; dropped,
/// it goes with the next heartbeat. When the whole process goes, it lives on for its time to live.
pub struct Registration {
    shared: Arc<Shared>,
    key: Key,
    progress: watch::Receiver<Progress>,
    /// Of this handle, and not of a later one for the same instance.
    number: u64,
}

impl Registration {
    /// How it stands.
    pub fn state(&self) -> RegistrationState {
        state(&self.progress.borrow())
    }

    /// Waits until [`Registration::state`] is another one.
    pub async fn state_changed(&mut self) {
        let before = self.state();
        // The client's list holds the sender as long as this handle is there.
        let _ = self.progress.wait_for(|now| state(now) != before).await;
    }

    /// Takes the instance away. One that is gone already is no error. When no member answers in time, the error
    /// says so; the instance then runs out of time, or goes when a member answers after all.
    pub async fn deregister(mut self) -> Result<(), Error> {
        self.progress.mark_unchanged();
        self.shared.deregister(&self.key);
        let patience = self.shared.config.request_timeout * 2;
        let done = self.progress.wait_for(|now| {
            matches!(
                now,
                Progress::Gone | Progress::Kept(_) | Progress::Unreachable(_)
            )
        });
        match tokio::time::timeout(patience, done).await {
            Ok(Ok(now)) => match &*now {
                Progress::Kept(failure) => Err(Error::from(failure.clone())),
                Progress::Unreachable(why) => Err(Error::Unreachable(why.clone())),
                _ => Ok(()),
            },
            Ok(Err(_)) | Err(_) => Err(Error::Unreachable("no member answered in time".into())),
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.shared.forget(&self.key, self.number);
    }
}

fn state(progress: &Progress) -> RegistrationState {
    match progress {
        Progress::Registered => RegistrationState::Registered,
        Progress::Waiting => RegistrationState::Failing("no member has answered yet".into()),
        Progress::Gone => RegistrationState::Failing("it was taken away".into()),
        Progress::Refused(failure) | Progress::Kept(failure) => {
            RegistrationState::Failing(format!("{}: {}", failure.code, failure.message))
        }
        Progress::Unreachable(why) => RegistrationState::Failing(why.clone()),
    }
}

pub(crate) async fn register(
    shared: Arc<Shared>,
    service: &str,
    instance: Instance,
) -> Result<Registration, Error> {
    let key = Key {
        service: service.into(),
        instance: instance.id,
    };
    let wanted = v1::Registration {
        at: None,
        endpoints: instance.endpoints.iter().map(Into::into).collect(),
        attributes: instance.attributes,
        claim: None,
    };
    let (number, progress) = shared.register(&key, wanted);
    // From here on dropping takes it back.
    let mut registration = Registration {
        shared,
        key,
        progress,
        number,
    };
    let answered = registration
        .progress
        .wait_for(|now| !matches!(now, Progress::Waiting))
        .await
        .map(|now| now.clone());
    match answered {
        Ok(Progress::Refused(failure)) => Err(failure.into()),
        Ok(Progress::Unreachable(why)) => Err(Error::Unreachable(why)),
        Ok(_) => Ok(registration),
        Err(_) => Err(Error::Unreachable("the client is stopping".into())),
    }
}
