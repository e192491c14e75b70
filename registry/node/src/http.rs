//! The native HTTP/JSON API.
//!
//! | call | does |
//! | --- | --- |
//! | `PUT` or `POST /v1/registry/services/{service}/instances/{id}` | registers; the same call again is the heartbeat. Body: `{"ttl_ms", "endpoints": [{"scheme","host","port"}], "attributes": {}, "claim"}`, all optional. 201 when new, 200 when renewed |
//! | `POST …/instances/{id}/heartbeat` | renews without a body; 404 `unknown_instance`: register again |
//! | `DELETE …/instances/{id}` | deregisters at once; 204, or 404 `unknown_instance` |
//! | `GET /v1/registry/services/{service}` | all registrations with a `revision`; an unknown service is an empty list. With `?revision=R&wait_ms=N` it answers when something differs from R, or after N ms |
//! | `GET /v1/registry/services/{service}/watch` | server-sent events: `full` first, then `delta` (`changed`, `removed`), or `full` again where a delta will not do. The event id is the revision; `Last-Event-ID` or `?revision=` resumes. A comment line every 10 s shows that the stream lives |
//! | `GET /v1/registry/services` | all services in numbers; `?namespace=` chooses one namespace |
//! | `GET /v1/registry/summary` | this member in numbers, at constant cost |
//!
//! Every call on a service takes `?namespace=`, by default `default`.
//!
//! Errors are `{"error": {"code", "message"}}`: `bad_request` (400), `unknown_instance` (404),
//! `refused` (409), `too_large` (413), `too_many_watches` and `unavailable` (503).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use causeway_registry::api::{
    ErrorDetail, ErrorReply, Instance, RegisterRequest, Registered, ServiceList, ServiceReply,
    ServicesReply, SummaryReply, native_key,
};
use causeway_registry::{
    CatchUp, LeaseId, LeaseKind, LeaseState, RecordBody, RecordKey, Revision, ServiceName, Stamp,
};
use futures::stream;
use parking_lot::Mutex;
use rand::Rng;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::access::{AccessError, RegistryAccess};
use crate::hub::{Hub, Seat};

/// Bounds on what a client may ask for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Bytes of a namespace, service or instance name.
    pub name_bytes: usize,
    /// Endpoints of an instance.
    pub endpoints: usize,
    /// Attributes of an instance.
    pub attributes: usize,
    /// The shortest time to live, in milliseconds.
    pub min_ttl_ms: u64,
    /// The longest.
    pub max_ttl_ms: u64,
    /// The one taken when none is given.
    pub default_ttl_ms: u64,
    /// The longest `wait_ms`.
    pub max_wait_ms: u64,
    /// Open watches and waiting queries.
    pub watches: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body_bytes: 64 * 1024,
            name_bytes: 512,
            endpoints: 16,
            attributes: 128,
            min_ttl_ms: 1_000,
            max_ttl_ms: 24 * 3_600_000,
            default_ttl_ms: 15_000,
            max_wait_ms: 60_000,
            watches: 20_000,
        }
    }
}

/// How often a silent stream shows that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How long a watcher waits for more changes before it is sent the first.
const DEBOUNCE_MIN: Duration = Duration::from_millis(10);
/// The same while changes do not stop.
const DEBOUNCE_MAX: Duration = Duration::from_millis(500);

/// The API over a registry, with the default limits.
pub fn router(access: Arc<dyn RegistryAccess>) -> Router {
    router_with(access, Limits::default())
}

/// The API over a registry.
pub fn router_with(access: Arc<dyn RegistryAccess>, limits: Limits) -> Router {
    let api = Arc::new(Api {
        hub: Hub::new(access.clone()),
        access,
        limits,
        watches: Arc::new(Semaphore::new(limits.watches.min(Semaphore::MAX_PERMITS))),
        registering: Mutex::new(()),
    });
    let instance = "/v1/registry/services/{service}/instances/{id}";
    Router::new()
        .route("/v1/registry/services", get(list_services))
        .route("/v1/registry/services/{service}", get(discover))
        .route("/v1/registry/services/{service}/watch", get(watch))
        .route(instance, put(register).post(register).delete(deregister))
        .route(&format!("{instance}/heartbeat"), post(heartbeat))
        .route("/v1/registry/summary", get(summary))
        .layer(DefaultBodyLimit::max(limits.body_bytes))
        .with_state(api)
}

struct Api {
    access: Arc<dyn RegistryAccess>,
    hub: Arc<Hub>,
    limits: Limits,
    watches: Arc<Semaphore>,
    /// Held from the look at a registration's lease to its write, so that two calls for one instance
    /// do not each open a lease.
    registering: Mutex<()>,
}

/// A failure as the client sees it.
#[derive(Debug)]
struct Failure {
    status: StatusCode,
    code: &'static str,
    message: String,
}

type Answer<T> = Result<T, Failure>;

impl Failure {
    fn bad(message: impl Into<String>) -> Self {
        Failure {
            status: StatusCode::BAD_REQUEST,
            code: "bad_request",
            message: message.into(),
        }
    }

    fn unknown(at: &Place) -> Self {
        let message = format!(
            "no instance {} of {} in namespace {}",
            at.instance, at.service, at.namespace
        );
        Failure {
            status: StatusCode::NOT_FOUND,
            code: "unknown_instance",
            message,
        }
    }
}

impl From<AccessError> for Failure {
    fn from(error: AccessError) -> Self {
        let (status, code) = match &error {
            // This API opens a lease just before it registers; whatever ended it between may be
            // over at the next try.
            AccessError::UnknownLease(_) | AccessError::Unavailable(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, "unavailable")
            }
            AccessError::Refused(_) => (StatusCode::CONFLICT, "refused"),
        };
        Failure {
            status,
            code,
            message: error.to_string(),
        }
    }
}

impl From<BytesRejection> for Failure {
    fn from(rejection: BytesRejection) -> Self {
        let status = rejection.status();
        let code = match status {
            StatusCode::PAYLOAD_TOO_LARGE => "too_large",
            _ => "bad_request",
        };
        Failure {
            status,
            code,
            message: rejection.body_text(),
        }
    }
}

impl From<PathRejection> for Failure {
    fn from(rejection: PathRejection) -> Self {
        Failure::bad(rejection.body_text())
    }
}

impl From<QueryRejection> for Failure {
    fn from(rejection: QueryRejection) -> Self {
        Failure::bad(rejection.body_text())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let error = ErrorDetail {
            code: self.code.into(),
            message: self.message,
        };
        (self.status, Json(ErrorReply { error })).into_response()
    }
}

#[derive(Debug, Default, Deserialize)]
struct Params {
    namespace: Option<String>,
    revision: Option<String>,
    wait_ms: Option<u64>,
}

/// The names a call is about, checked.
struct Place {
    namespace: String,
    service: String,
    instance: String,
}

impl Place {
    fn key(&self) -> RecordKey {
        native_key(&self.namespace, &self.service, &self.instance)
    }
}

type Parts<T> = Result<Path<T>, PathRejection>;
type Asked = Result<Query<Params>, QueryRejection>;

impl Api {
    fn place(&self, parts: Parts<(String, String)>, params: &Params) -> Answer<Place> {
        let Path((service, instance)) = parts?;
        let instance = self.name("instance", instance)?;
        let ServiceName { namespace, service } = self.service(service, params)?;
        Ok(Place {
            namespace,
            service,
            instance,
        })
    }

    fn service(&self, service: String, params: &Params) -> Answer<ServiceName> {
        let namespace = params.namespace.clone().unwrap_or_else(|| "default".into());
        Ok(ServiceName {
            namespace: self.name("namespace", namespace)?,
            service: self.name("service", service)?,
        })
    }

    fn name(&self, what: &str, name: String) -> Answer<String> {
        let limit = self.limits.name_bytes;
        if name.is_empty() || name.len() > limit {
            let length = name.len();
            return Err(Failure::bad(format!(
                "{what}: 1 to {limit} bytes, not {length}"
            )));
        }
        if name.chars().any(char::is_control) {
            return Err(Failure::bad(format!("{what}: no control characters")));
        }
        Ok(name)
    }

    fn request(&self, body: &[u8]) -> Answer<RegisterRequest> {
        let request: RegisterRequest = match body {
            [] => RegisterRequest::default(),
            body => serde_json::from_slice(body)
                .map_err(|error| Failure::bad(format!("body: {error}")))?,
        };
        let limits = &self.limits;
        let ttl = request.ttl_ms.unwrap_or(limits.default_ttl_ms);
        if !(limits.min_ttl_ms..=limits.max_ttl_ms).contains(&ttl) {
            let (min, max) = (limits.min_ttl_ms, limits.max_ttl_ms);
            return Err(Failure::bad(format!("ttl_ms: {min} to {max}, not {ttl}")));
        }
        for (what, have, limit) in [
            ("endpoints", request.endpoints.len(), limits.endpoints),
            ("attributes", request.attributes.len(), limits.attributes),
        ] {
            if have > limit {
                return Err(Failure::bad(format!("{what}: at most {limit}, not {have}")));
            }
        }
        if request
            .endpoints
            .iter()
            .any(|endpoint| endpoint.host.is_empty())
        {
            return Err(Failure::bad("endpoints: host is empty"));
        }
        Ok(RegisterRequest {
            ttl_ms: Some(ttl),
            ..request
        })
    }

    fn permit(&self) -> Answer<OwnedSemaphorePermit> {
        self.watches
            .clone()
            .try_acquire_owned()
            .map_err(|_| Failure {
                status: StatusCode::SERVICE_UNAVAILABLE,
                code: "too_many_watches",
                message: format!("at most {} watches are open at once", self.limits.watches),
            })
    }

    /// The lease that a registration has, if this API made it and it can be renewed.
    fn lease_of(&self, key: &RecordKey) -> Option<LeaseId> {
        let lease = self.access.get(key)?.lease?;
        let open = self.access.lease(lease)?.state != LeaseState::Over;
        (lease.kind == LeaseKind::Native && open).then_some(lease)
    }

    fn unused_lease(&self) -> LeaseId {
        loop {
            let lease = LeaseId::native(rand::rng().random_range(1..=i64::MAX));
            if self.access.lease(lease).is_none() {
                return lease;
            }
        }
    }

    fn list(&self, name: &ServiceName) -> ServiceList {
        let (revision, records) = match self.access.catch_up(&name.namespace, &name.service, None) {
            CatchUp::Full { revision, records } => (revision, records),
            // Whoever has seen nothing is given everything.
            CatchUp::Current { revision } | CatchUp::Delta { revision, .. } => (
                revision,
                self.access.by_service(&name.namespace, &name.service),
            ),
        };
        ServiceList {
            namespace: name.namespace.clone(),
            service: name.service.clone(),
            revision: revision.to_string(),
            instances: records.iter().map(Instance::from).collect(),
        }
    }
}

async fn register(
    State(api): State<Arc<Api>>,
    parts: Parts<(String, String)>,
    asked: Asked,
    body: Result<Bytes, BytesRejection>,
) -> Answer<Response> {
    let at = api.place(parts, &asked?.0)?;
    let request = api.request(&body?)?;
    if let Some(claim) = &request.claim {
        let stamp: Stamp = claim
            .parse()
            .map_err(|e| Failure::bad(format!("claim: {e}")))?;
        if !api.access.observe_clock(stamp.hlc) {
            return Err(Failure::bad(
                "claim: more than an hour ahead of this member's clock",
            ));
        }
    }
    let ttl_ms = request.ttl_ms.unwrap_or(api.limits.default_ttl_ms);
    let key = at.key();
    let body = RecordBody {
        namespace: at.namespace.clone(),
        service: at.service.clone(),
        instance: at.instance.clone(),
        endpoints: request.endpoints,
        attributes: request.attributes,
        ..RecordBody::default()
    };
    let (stamp, created) = {
        let _one_at_a_time = api.registering.lock();
        let created = api.access.get(&key).is_none();
        let lease = api.lease_of(&key).unwrap_or_else(|| api.unused_lease());
        if api
            .access
            .lease(lease)
            .is_none_or(|lease| lease.ttl_ms != ttl_ms)
        {
            api.access.open_lease(lease, ttl_ms)?;
        }
        (api.access.register(key, body, Some(lease))?, created)
    };
    let reply = Registered {
        namespace: at.namespace,
        service: at.service,
        instance: at.instance,
        ttl_ms,
        stamp: stamp.to_string(),
        created,
    };
    let status = if created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok((status, Json(reply)).into_response())
}

async fn heartbeat(
    State(api): State<Arc<Api>>,
    parts: Parts<(String, String)>,
    asked: Asked,
) -> Answer<Json<Registered>> {
    let at = api.place(parts, &asked?.0)?;
    let key = at.key();
    let renewed = api
        .lease_of(&key)
        .filter(|lease| api.access.renew(*lease).known);
    let lease = renewed.and_then(|lease| api.access.lease(lease));
    let (Some(lease), Some(record)) = (lease, api.access.get(&key)) else {
        return Err(Failure::unknown(&at));
    };
    Ok(Json(Registered {
        namespace: at.namespace,
        service: at.service,
        instance: at.instance,
        ttl_ms: lease.ttl_ms,
        stamp: record.stamp.to_string(),
        created: false,
    }))
}

async fn deregister(
    State(api): State<Arc<Api>>,
    parts: Parts<(String, String)>,
    asked: Asked,
) -> Answer<StatusCode> {
    let at = api.place(parts, &asked?.0)?;
    let _one_at_a_time = api.registering.lock();
    let Some(record) = api.access.deregister(&at.key())? else {
        return Err(Failure::unknown(&at));
    };
    if let Some(lease) = record.lease
        && api
            .access
            .lease(lease)
            .is_some_and(|lease| lease.records == 0)
    {
        api.access.close_lease(lease)?;
    }
    Ok(StatusCode::NO_CONTENT)
}

async fn discover(
    State(api): State<Arc<Api>>,
    parts: Parts<String>,
    asked: Asked,
) -> Answer<Json<ServiceList>> {
    let (Path(service), Query(params)) = (parts?, asked?);
    let name = api.service(service, &params)?;
    let Some(wait_ms) = params.wait_ms else {
        return Ok(Json(api.list(&name)));
    };
    let max = api.limits.max_wait_ms;
    if wait_ms > max {
        return Err(Failure::bad(format!(
            "wait_ms: at most {max}, not {wait_ms}"
        )));
    }
    let Some(since) = revision(params.revision.as_deref())? else {
        return Err(Failure::bad("wait_ms: needs the revision to wait from"));
    };
    let _permit = api.permit()?;
    let until = Instant::now() + Duration::from_millis(wait_ms);
    let mut seat = api.hub.sit(name.clone(), Some(since)).await;
    while seat.next_frame().is_none() {
        match tokio::time::timeout_at(until, seat.changed()).await {
            Ok(true) => {}
            // Time is up, or the registry ends: the answer is what is there.
            Ok(false) | Err(_) => break,
        }
    }
    Ok(Json(api.list(&name)))
}

async fn watch(
    State(api): State<Arc<Api>>,
    parts: Parts<String>,
    asked: Asked,
    headers: HeaderMap,
) -> Answer<Response> {
    let (Path(service), Query(params)) = (parts?, asked?);
    let name = api.service(service, &params)?;
    // What the stream itself gave out last is newer than what the URL was made with.
    let last = match headers.get("last-event-id").map(HeaderValue::to_str) {
        Some(Ok(last)) => Some(last),
        Some(Err(_)) => return Err(Failure::bad("Last-Event-ID: not a revision")),
        None => params.revision.as_deref(),
    };
    let since = revision(last)?;
    let permit = api.permit()?;
    let watcher = Watcher {
        seat: api.hub.sit(name, since).await,
        last_frame: None,
        debounce: DEBOUNCE_MIN,
        greeted: false,
        _permit: permit,
    };
    let events = stream::unfold(watcher, |watcher| watcher.next());
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        // A proxy that collects a whole answer would never deliver this one.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, Body::from_stream(events)).into_response())
}

/// A revision from outside; the empty text is none, as in the event stream's own header.
fn revision(text: Option<&str>) -> Answer<Option<Revision>> {
    match text {
        None | Some("") => Ok(None),
        Some(text) => text
            .parse()
            .map(Some)
            .map_err(|e| Failure::bad(format!("revision: {e}"))),
    }
}

/// A watch stream. It makes its next event only when the connection has taken the last.
struct Watcher {
    seat: Seat,
    last_frame: Option<Instant>,
    debounce: Duration,
    greeted: bool,
    _permit: OwnedSemaphorePermit,
}

impl Watcher {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        if !self.greeted {
            self.greeted = true;
            let bytes = match self.seat.next_frame() {
                Some(frame) => frame.bytes,
                // Resumed, with nothing missed: headers alone may stay in a buffer.
                None => Bytes::from_static(b":\n\n"),
            };
            return Some((Ok(bytes), self));
        }
        loop {
            match tokio::time::timeout(KEEP_ALIVE, self.seat.changed()).await {
                Err(_) => return Some((Ok(Bytes::from_static(b":\n\n")), self)),
                Ok(false) => return None,
                Ok(true) => {}
            }
            let busy = self
                .last_frame
                .is_some_and(|last| last.elapsed() < 2 * self.debounce);
            self.debounce = if busy {
                (2 * self.debounce).min(DEBOUNCE_MAX)
            } else {
                DEBOUNCE_MIN
            };
            tokio::time::sleep(self.debounce).await;
            if let Some(frame) = self.seat.next_frame() {
                self.last_frame = Some(Instant::now());
                return Some((Ok(frame.bytes), self));
            }
        }
    }
}

async fn list_services(State(api): State<Arc<Api>>, asked: Asked) -> Answer<Json<ServicesReply>> {
    let Query(params) = asked?;
    let services = api.access.services();
    let wanted = |name: &ServiceName| {
        params
            .namespace
            .as_ref()
            .is_none_or(|n| *n == name.namespace)
    };
    let services = services
        .iter()
        .filter(|info| wanted(&info.name))
        .map(ServiceReply::from)
        .collect();
    Ok(Json(ServicesReply { services }))
}

async fn summary(State(api): State<Arc<Api>>) -> Json<SummaryReply> {
    Json(SummaryReply::from(&api.access.summary()))
}

#[cfg(test)]
mod tests;
