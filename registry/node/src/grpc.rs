//! The native gRPC API: `causeway.registry.v1.Registry` (see the proto), `grpc.health.v1.Health` and reflection.
//!
//! Programs keep one stream (`stream.rs`); the unary calls are for tools. Whoever does not read for
//! [`STUCK`] although there is something for it is disconnected, and so is whoever does not answer HTTP/2
//! pings: state, not a queue, waits for them.

mod holdings;
mod meter;
mod stream;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use causeway_registry::Revision;
use causeway_registry_proto::codec::Update;
use causeway_registry_proto::server::{Registry, RegistryServer};
use causeway_registry_proto::{ConvertError, FILE_DESCRIPTOR_SET, MAX_TO_SERVER, v1};
use futures::{Stream, stream as streams};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::JoinSet;
use tonic::{Request, Response, Status, Streaming};

use crate::hub::Subscriber;
use crate::operations::{Answer, Failure, Kind, NativeApi, Place, Wanted};
use meter::{Connection, Meter, Meters};
use stream::{Line, Outgoing};

/// How long a reader may take nothing although there is something for it.
pub const STUCK: Duration = Duration::from_secs(30);
/// HTTP/2 pings, and how long their answer may take.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_ANSWER: Duration = Duration::from_secs(20);
/// How long connections have to end once the server stops.
const DRAIN: Duration = Duration::from_secs(5);
/// Pause after an accept that failed: out of file descriptors, which does not pass at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A gRPC port of the native API.
#[derive(Clone)]
pub struct Grpc {
    meters: Arc<Meters>,
    service: tonic::service::Routes,
}

impl Grpc {
    /// Serves `api`. To be made in a runtime.
    pub fn new(api: Arc<NativeApi>) -> Self {
        Grpc::with_patience(api, STUCK)
    }

    fn with_patience(api: Arc<NativeApi>, stuck: Duration) -> Self {
        // Before any stream looks at the registry.
        api.hub.start();
        let meters = Meters::start(stuck);
        let calls = Calls {
            api,
            meters: meters.clone(),
        };
        let registry = RegistryServer::new(calls).max_decoding_message_size(MAX_TO_SERVER);
        // A member that answers serves: there is no other state.
        let (_, health) = tonic_health::server::health_reporter();
        let mut service = tonic::service::Routes::new(registry).add_service(health);
        match tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()
        {
            Ok(reflection) => service = service.add_service(reflection),
            Err(error) => tracing::error!(%error, "no server reflection"),
        }
        Grpc {
            meters,
            service: service.prepare(),
        }
    }

    /// How many streams are open.
    pub fn streams(&self) -> usize {
        self.meters.streams()
    }

    /// Asks the clients of so many streams to go to another member; which ones is left to chance. Returns how
    /// many were asked.
    pub fn shed(&self, count: usize) -> usize {
        self.meters.shed(count)
    }

    /// Serves connections until `stop` becomes true or its sender is gone; then clients are told to go
    /// elsewhere, and what is left after 5 s is closed.
    pub async fn serve(self, listener: TcpListener, mut stop: watch::Receiver<bool>) {
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = stopped(&mut stop) => break,
                Some(_) = connections.join_next() => continue,
            };
            match accepted {
                Ok((stream, _)) => {
                    // Frames are small and somebody waits for them.
                    let _ = stream.set_nodelay(true);
                    let (grpc, stop) = (self.clone(), stop.clone());
                    connections.spawn(async move { grpc.serve_connection(stream, stop).await });
                }
                Err(error) => {
                    tracing::warn!(%error, "a gRPC connection cannot be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        self.meters.stop();
        let ended = async { while connections.join_next().await.is_some() {} };
        // What is left is dropped, and closed by that.
        let _ = tokio::time::timeout(DRAIN, ended).await;
    }

    /// Serves one connection, whatever carries it, to its end.
    pub async fn serve_connection<I>(&self, io: I, mut stop: watch::Receiver<bool>)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let connection = Connection::default();
        let routes = self.service.clone();
        let mark = connection.clone();
        let service = tower::service_fn(move |mut request: axum::http::Request<_>| {
            request.extensions_mut().insert(mark.clone());
            tower::Service::call(&mut routes.clone(), request)
        });
        let mut http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_ANSWER)
            .max_concurrent_streams(u32::MAX);
        let served = http.serve_connection(TokioIo::new(io), TowerToHyperService::new(service));
        tokio::pin!(served);
        let outcome = tokio::select! {
            outcome = served.as_mut() => outcome,
            () = connection.closed() => return,
            () = stopped(&mut stop) => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        };
        if let Err(error) = outcome {
            // Clients come and go.
            tracing::debug!(%error, "a gRPC connection ended");
        }
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// The service.
struct Calls {
    api: Arc<NativeApi>,
    meters: Arc<Meters>,
}

type ToTool = Pin<Box<dyn Stream<Item = Result<Update, Status>> + Send>>;

#[tonic::async_trait]
impl Registry for Calls {
    type OpenStream = Outgoing;
    type WatchStream = ToTool;

    async fn open(
        &self,
        request: Request<Streaming<v1::ClientMessage>>,
    ) -> Result<Response<Outgoing>, Status> {
        let permit = self.api.stream_permit()?;
        let connection = connection(&request);
        let meter = Meter::new(connection);
        let line = Line::new(self.api.clone(), meter);
        let entry = self.meters.enter(&line);
        let outgoing = Outgoing::new(line.clone(), (permit, entry));
        tokio::spawn(stream::listen(line, request.into_inner()));
        Ok(Response::new(outgoing))
    }

    async fn register(
        &self,
        request: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::Registered>, Status> {
        let v1::RegisterRequest {
            registration,
            ttl_ms,
        } = request.into_inner();
        let wanted = wanted(&self.api, registration.unwrap_or_default())?;
        let ttl_ms = self.api.ttl(Some(ttl_ms).filter(|ttl| *ttl != 0))?;
        let at = wanted.place.clone();
        let (stamp, created) = self.api.register(wanted, ttl_ms)?;
        Ok(Response::new(v1::Registered {
            at: Some(at.into()),
            stamp: Some(stamp.into()),
            ttl_ms,
            created,
        }))
    }

    async fn heartbeat(
        &self,
        request: Request<v1::InstanceRef>,
    ) -> Result<Response<v1::Registered>, Status> {
        let at = place(&self.api, request.into_inner())?;
        let (stamp, ttl_ms) = self.api.heartbeat(&at)?;
        Ok(Response::new(v1::Registered {
            at: Some(at.into()),
            stamp: Some(stamp.into()),
            ttl_ms,
            created: false,
        }))
    }

    async fn deregister(
        &self,
        request: Request<v1::InstanceRef>,
    ) -> Result<Response<v1::Deregistered>, Status> {
        let at = place(&self.api, request.into_inner())?;
        self.api.deregister(&at)?;
        Ok(Response::new(v1::Deregistered {
            at: Some(at.into()),
            existed: true,
        }))
    }

    async fn discover(
        &self,
        request: Request<v1::DiscoverRequest>,
    ) -> Result<Response<Update>, Status> {
        let v1::DiscoverRequest { namespace, service } = request.into_inner();
        let update = discover(&self.api, namespace, service)?;
        Ok(Response::new(Update::Own(Box::new(update))))
    }

    async fn list_services(
        &self,
        request: Request<v1::ListServicesRequest>,
    ) -> Result<Response<v1::ServicesReply>, Status> {
        let namespace = request.into_inner().namespace;
        let services = self.api.access.services();
        let wanted = |name: &str| namespace.is_empty() || namespace == name;
        Ok(Response::new(v1::ServicesReply {
            services: services
                .iter()
                .filter(|info| wanted(&info.name.namespace))
                .map(Into::into)
                .collect(),
        }))
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<ToTool>, Status> {
        let connection = connection(&request);
        let v1::WatchRequest {
            namespace,
            service,
            revision,
        } = request.into_inner();
        let name = self.api.service(given(namespace), service)?;
        let permit = self.api.watch_permit()?;
        let bell = Arc::new(stream::Bell::new(Meter::new(connection)));
        let entry = self.meters.enter(&bell);
        let whose: Arc<dyn Subscriber> = bell.clone();
        let seat = self.api.hub.sit(
            name,
            revision.map(Revision::from),
            Arc::downgrade(&whose),
            0,
        );
        // The first look needs no ring.
        bell.ring(0);
        let watcher = stream::Watcher {
            seat,
            bell,
            api: self.api.clone(),
            _kept: (permit, entry),
        };
        let updates = streams::unfold(watcher, |watcher| watcher.next());
        Ok(Response::new(Box::pin(updates)))
    }

    async fn summary(
        &self,
        _request: Request<v1::SummaryRequest>,
    ) -> Result<Response<v1::SummaryReply>, Status> {
        let access = &self.api.access;
        let reply = v1::SummaryReply::new(&access.summary(), access.warming());
        Ok(Response::new(reply))
    }
}

/// What a stream keeps as long as it is open.
type Kept = (OwnedSemaphorePermit, meter::Entry);

fn connection<T>(request: &Request<T>) -> Connection {
    let extensions = request.extensions();
    extensions.get::<Connection>().cloned().unwrap_or_default()
}

/// An empty namespace is the default one.
fn given(namespace: String) -> Option<String> {
    Some(namespace).filter(|namespace| !namespace.is_empty())
}

fn place(api: &NativeApi, at: v1::InstanceRef) -> Answer<Place> {
    api.place(given(at.namespace), at.service, at.instance)
}

fn wanted(api: &NativeApi, registration: v1::Registration) -> Answer<Wanted> {
    let v1::Registration {
        at,
        endpoints,
        attributes,
        claim,
    } = registration;
    let endpoints: Result<_, ConvertError> = endpoints.into_iter().map(TryInto::try_into).collect();
    let wanted = Wanted {
        place: place(api, at.unwrap_or_default())?,
        endpoints: endpoints?,
        attributes,
        claim: claim.map(TryInto::try_into).transpose()?,
    };
    api.check(&wanted)?;
    Ok(wanted)
}

fn discover(api: &NativeApi, namespace: String, service: String) -> Answer<v1::ServiceUpdate> {
    let name = api.service(given(namespace), service)?;
    let (revision, records, warming) = api.list(&name);
    Ok(v1::ServiceUpdate {
        namespace: name.namespace,
        service: name.service,
        revision: Some(revision.into()),
        full: true,
        changed: records.iter().map(Into::into).collect(),
        removed: Vec::new(),
        warming,
    })
}

impl From<Place> for v1::InstanceRef {
    fn from(at: Place) -> Self {
        v1::InstanceRef {
            namespace: at.namespace,
            service: at.service,
            instance: at.instance,
        }
    }
}

impl From<ConvertError> for Failure {
    fn from(error: ConvertError) -> Self {
        Failure::bad(error.to_string())
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        let message = failure.message;
        match failure.kind {
            Kind::Bad => Status::invalid_argument(message),
            Kind::UnknownInstance => Status::not_found(message),
            Kind::Refused => Status::failed_precondition(message),
            Kind::TooLarge | Kind::TooMany => Status::resource_exhausted(message),
            Kind::Unavailable => Status::unavailable(message),
        }
    }
}

impl From<Failure> for v1::Failure {
    fn from(failure: Failure) -> Self {
        let code = match failure.kind {
            Kind::Bad => "bad_request",
            Kind::UnknownInstance => "unknown_instance",
            Kind::Refused => "refused",
            Kind::TooLarge => "too_large",
            Kind::TooMany => "too_many",
            Kind::Unavailable => "unavailable",
        };
        v1::Failure {
            code: code.into(),
            message: failure.message,
        }
    }
}

#[cfg(test)]
mod tests;
