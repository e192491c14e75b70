//! Calls over the generated stubs: time limits, authentication, moving on to another server.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use causeway_backend::{BackendError, Certainty};
use causeway_wire::etcd::messages::etcdserverpb::AuthenticateRequest;
use parking_lot::Mutex;
use tokio::time::timeout;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::channel::{Limits, Servers};
use crate::error;
use crate::stubs::AuthClient;

/// How to reach an etcd cluster.
#[derive(Clone)]
pub struct EtcdOptions {
    /// Servers, tried in turn: `http://host:port` or `host:port`.
    pub endpoints: Vec<String>,
    /// User and password, when the cluster asks for them.
    pub user: Option<(String, String)>,
    /// Longest wait for an answer.
    pub request_timeout: Duration,
}

impl EtcdOptions {
    /// Options for the given servers, with 5 s for an answer and no user.
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            user: None,
            request_timeout: Duration::from_secs(5),
        }
    }
}

impl std::fmt::Debug for EtcdOptions {
    /// Without the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("endpoints", &self.endpoints)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .field("request_timeout", &self.request_timeout)
            .finish()
    }
}

/// One channel to the cluster with this gateway's identity.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) servers: Servers,
    pub(crate) channel: Channel,
    pub(crate) request_timeout: Duration,
    user: Option<Arc<User>>,
}

struct User {
    name: String,
    password: String,
    token: Mutex<Option<MetadataValue<Ascii>>>,
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) fn new(options: &EtcdOptions) -> Result<Self, BackendError> {
        let servers = Servers::new(&options.endpoints, Limits::default())?;
        let user = options.user.clone().map(|(name, password)| {
            Arc::new(User {
                name,
                password,
                token: Mutex::new(None),
            })
        });
        Ok(Self {
            channel: servers.channel(),
            servers,
            request_timeout: options.request_timeout,
            user,
        })
    }

    /// One call that changes something: made once, since its outcome may be unknown.
    pub(crate) async fn write<Req: Clone, Res, Fut>(
        &self,
        request: Req,
        call: impl Fn(Channel, Request<Req>) -> Fut,
    ) -> Result<Res, BackendError>
    where
        Fut: Future<Output = Result<Response<Res>, Status>>,
    {
        let result = self.attempt(&request, &call).await;
        if let Err(error) = &result
            && error::is_servers_fault(error)
        {
            self.servers.move_on();
        }
        result
    }

    /// One call that changes nothing: asks another server when the first one fails.
    pub(crate) async fn read<Req: Clone, Res, Fut>(
        &self,
        request: Req,
        call: impl Fn(Channel, Request<Req>) -> Fut,
    ) -> Result<Res, BackendError>
    where
        Fut: Future<Output = Result<Response<Res>, Status>>,
    {
        let mut result = self.write(request.clone(), &call).await;
        if let Err(error) = &result
            && error.is_retryable()
            && error.certainty() == Certainty::Unknown
        {
            result = self.write(request, &call).await;
        }
        result.map_err(|error| error.with_certainty(Certainty::NotApplied))
    }

    async fn attempt<Req: Clone, Res, Fut>(
        &self,
        request: &Req,
        call: &impl Fn(Channel, Request<Req>) -> Fut,
    ) -> Result<Res, BackendError>
    where
        Fut: Future<Output = Result<Response<Res>, Status>>,
    {
        let (mut refreshed, mut resent) = (false, false);
        loop {
            let mut message = Request::new(request.clone());
            self.authenticate(&mut message).await?;
            let server = self.servers.current().to_owned();
            match timeout(self.request_timeout, call(self.channel.clone(), message)).await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) if error::is_invalid_token(&status) && !refreshed => {
                    // The server refused before it did anything, so the call may be repeated.
                    self.forget_token();
                    refreshed = true;
                }
                Ok(Err(status)) if error::never_left(&status) && !resent => resent = true,
                Ok(Err(status)) => return Err(error::from_status(&server, &status)),
                Err(_) => return Err(error::timed_out(&server, self.request_timeout)),
            }
        }
    }

    /// Puts the token of this gateway's user on a request, asking for one if there is none yet.
    pub(crate) async fn authenticate<T>(
        &self,
        request: &mut Request<T>,
    ) -> Result<(), BackendError> {
        let Some(user) = &self.user else {
            return Ok(());
        };
        let known = user.token.lock().clone();
        let token = match known {
            Some(token) => token,
            None => {
                let token = self.ask_for_token(user).await?;
                user.token.lock().insert(token).clone()
            }
        };
        request.metadata_mut().insert("token", token);
        Ok(())
    }

    /// To be called when the token was refused.
    pub(crate) fn forget_token(&self) {
        if let Some(user) = &self.user {
            *user.token.lock() = None;
        }
    }

    async fn ask_for_token(&self, user: &User) -> Result<MetadataValue<Ascii>, BackendError> {
        let request = AuthenticateRequest {
            name: user.name.clone(),
            password: user.password.clone(),
        };
        let server = self.servers.current().to_owned();
        let mut client = AuthClient::new(self.channel.clone());
        // Whatever becomes of it, the call that needed the token was not made.
        let refused = |error: BackendError| {
            error
                .with_certainty(Certainty::NotApplied)
                .context(format!("cannot log in as {:?}", user.name))
        };
        match timeout(self.request_timeout, client.authenticate(request)).await {
            Ok(Ok(response)) => response.into_inner().token.parse().map_err(|_| {
                refused(error::from_status(
                    &server,
                    &Status::internal("the token is not ASCII"),
                ))
            }),
            Ok(Err(status)) => Err(refused(error::from_status(&server, &status))),
            Err(_) => Err(refused(error::timed_out(&server, self.request_timeout))),
        }
    }
}
