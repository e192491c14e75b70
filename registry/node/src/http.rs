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
//! | `GET /v1/registry/settings` | what clients are asked for: `heartbeat_interval_ms`, `cache_services`, `refresh_interval_ms` |
//! | `PUT /v1/registry/settings` | changes it, until this member starts anew; clients on gRPC streams are told at once |
//!
//! While the member has not caught up with the others, lists and the summary say `"warming": true`, and no empty
//! list is pushed.
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
    ClientSettings, ErrorDetail, ErrorReply, Instance, RegisterRequest, Registered, ServiceList,
    ServiceReply, ServicesReply, SummaryReply,
};
use causeway_registry::{Revision, ServiceName};
use futures::stream;
use serde::Deserialize;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::Instant;

use crate::access::RegistryAccess;
use crate::hub::{Seat, Subscriber};
use crate::operations::{Answer, Failure, Kind, Limits, NativeApi, Place, Wanted};

/// How often a silent stream shows that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The API over a registry, with the default limits and settings.
pub fn router(access: Arc<dyn RegistryAccess>) -> Router {
    router_with(access, Limits::default())
}

/// The API over a registry, with the default settings.
pub fn router_with(access: Arc<dyn RegistryAccess>, limits: Limits) -> Router {
    router_of(NativeApi::new(access, limits, ClientSettings::default()))
}

/// The API over HTTP.
pub fn router_of(api: Arc<NativeApi>) -> Router {
    let instance = "/v1/registry/services/{service}/instances/{id}";
    Router::new()
        .route("/v1/registry/services", get(list_services))
        .route("/v1/registry/services/{service}", get(discover))
        .route("/v1/registry/services/{service}/watch", get(watch))
        .route(instance, put(register).post(register).delete(deregister))
        .route(&format!("{instance}/heartbeat"), post(heartbeat))
        .route("/v1/registry/summary", get(summary))
        .route("/v1/registry/settings", get(settings).put(set_settings))
        .layer(DefaultBodyLimit::max(api.limits.body_bytes))
        .with_state(api)
}

impl Kind {
    fn status(self) -> (StatusCode, &'static str) {
        match self {
            Kind::Bad => (StatusCode::BAD_REQUEST, "bad_request"),
            Kind::UnknownInstance => (StatusCode::NOT_FOUND, "unknown_instance"),
            Kind::Refused => (StatusCode::CONFLICT, "refused"),
            Kind::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            // Watches are all that this API counts.
            Kind::TooMany => (StatusCode::SERVICE_UNAVAILABLE, "too_many_watches"),
            Kind::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        }
    }
}

impl From<BytesRejection> for Failure {
    fn from(rejection: BytesRejection) -> Self {
        let kind = match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Kind::TooLarge,
            _ => Kind::Bad,
        };
        Failure {
            kind,
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
        let (status, code) = self.kind.status();
        let error = ErrorDetail {
            code: code.into(),
            message: self.message,
        };
        (status, Json(ErrorReply { error })).into_response()
    }
}

#[derive(Debug, Default, Deserialize)]
struct Params {
    namespace: Option<String>,
    revision: Option<String>,
    wait_ms: Option<u64>,
}

type Parts<T> = Result<Path<T>, PathRejection>;
type Asked = Result<Query<Params>, QueryRejection>;

fn place(api: &NativeApi, parts: Parts<(String, String)>, asked: Asked) -> Answer<Place> {
    let (Path((service, instance)), Query(params)) = (parts?, asked?);
    api.place(params.namespace, service, instance)
}

fn read<T: Default + serde::de::DeserializeOwned>(body: &[u8]) -> Answer<T> {
    match body {
        [] => Ok(T::default()),
        body => {
            serde_json::from_slice(body).map_err(|error| Failure::bad(format!("body: {error}")))
        }
    }
}

fn list(api: &NativeApi, name: &ServiceName) -> ServiceList {
    let (revision, records, warming) = api.list(name);
    ServiceList {
        namespace: name.namespace.clone(),
        service: name.service.clone(),
        revision: revision.to_string(),
        instances: records.iter().map(Instance::from).collect(),
        warming,
    }
}

async fn register(
    State(api): State<Arc<NativeApi>>,
    parts: Parts<(String, String)>,
    asked: Asked,
    body: Result<Bytes, BytesRejection>,
) -> Answer<Response> {
    let at = place(&api, parts, asked)?;
    let request: RegisterRequest = read(&body?)?;
    let ttl_ms = api.ttl(request.ttl_ms)?;
    let claim = request.claim.map(|claim| claim.parse()).transpose();
    let wanted = Wanted {
        place: at.clone(),
        endpoints: request.endpoints,
        attributes: request.attributes,
        claim: claim.map_err(|e| Failure::bad(format!("claim: {e}")))?,
    };
    api.check(&wanted)?;
    let (stamp, created) = api.register(wanted, ttl_ms)?;
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
    State(api): State<Arc<NativeApi>>,
    parts: Parts<(String, String)>,
    asked: Asked,
) -> Answer<Json<Registered>> {
    let at = place(&api, parts, asked)?;
    let (stamp, ttl_ms) = api.heartbeat(&at)?;
    Ok(Json(Registered {
        namespace: at.namespace,
        service: at.service,
        instance: at.instance,
        ttl_ms,
        stamp: stamp.to_string(),
        created: false,
    }))
}

async fn deregister(
    State(api): State<Arc<NativeApi>>,
    parts: Parts<(String, String)>,
    asked: Asked,
) -> Answer<StatusCode> {
    let at = place(&api, parts, asked)?;
    api.deregister(&at)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn discover(
    State(api): State<Arc<NativeApi>>,
    parts: Parts<String>,
    asked: Asked,
) -> Answer<Json<ServiceList>> {
    let (Path(service), Query(params)) = (parts?, asked?);
    let name = api.service(params.namespace, service)?;
    let Some(wait_ms) = params.wait_ms else {
        return Ok(Json(list(&api, &name)));
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
    let _permit = api.watch_permit()?;
    let until = Instant::now() + Duration::from_millis(wait_ms);
    let mut watcher = Watcher::sit(&api, name.clone(), Some(since));
    while watcher.seat.next_frame().is_none() {
        match tokio::time::timeout_at(until, watcher.changed()).await {
            Ok(true) => {}
            // Time is up, or the registry ends: the answer is what is there.
            Ok(false) | Err(_) => break,
        }
    }
    Ok(Json(list(&api, &name)))
}

async fn watch(
    State(api): State<Arc<NativeApi>>,
    parts: Parts<String>,
    asked: Asked,
    headers: HeaderMap,
) -> Answer<Response> {
    let (Path(service), Query(params)) = (parts?, asked?);
    let name = api.service(params.namespace, service)?;
    // What the stream itself gave out last is newer than what the URL was made with.
    let last = match headers.get("last-event-id").map(HeaderValue::to_str) {
        Some(Ok(last)) => Some(last),
        Some(Err(_)) => return Err(Failure::bad("Last-Event-ID: not a revision")),
        None => params.revision.as_deref(),
    };
    let since = revision(last)?;
    let permit = api.watch_permit()?;
    let stream = EventStream {
        watcher: Watcher::sit(&api, name, since),
        greeted: false,
        _permit: permit,
    };
    let events = stream::unfold(stream, |stream| stream.next());
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

/// Waits for one service.
pub(crate) struct Watcher {
    pub(crate) seat: Seat,
    bell: Arc<Bell>,
    api: Arc<NativeApi>,
}

#[derive(Default)]
struct Bell(Notify);

impl Subscriber for Bell {
    fn ring(&self, _seat: u32) {
        self.0.notify_one();
    }
}

impl Watcher {
    pub(crate) fn sit(api: &Arc<NativeApi>, name: ServiceName, since: Option<Revision>) -> Self {
        let bell = Arc::new(Bell::default());
        let whose: Arc<dyn Subscriber> = bell.clone();
        Watcher {
            seat: api.hub.sit(name, since, Arc::downgrade(&whose), 0),
            bell,
            api: api.clone(),
        }
    }

    /// Waits until the service may have changed since the last frame. False when the registry tells of
    /// no more changes.
    pub(crate) async fn changed(&self) -> bool {
        if !self.api.hub.ended() {
            self.bell.0.notified().await;
        }
        !self.api.hub.ended()
    }
}

/// A watch stream. It makes its next event only when the connection has taken the last.
struct EventStream {
    watcher: Watcher,
    greeted: bool,
    _permit: OwnedSemaphorePermit,
}

impl EventStream {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        if !self.greeted {
            self.greeted = true;
            let bytes = match self.watcher.seat.next_frame() {
                Some(frame) => frame.event(),
                // Resumed, with nothing missed: headers alone may stay in a buffer.
                None => Bytes::from_static(b":\n\n"),
            };
            return Some((Ok(bytes), self));
        }
        loop {
            match tokio::time::timeout(KEEP_ALIVE, self.watcher.changed()).await {
                Err(_) => return Some((Ok(Bytes::from_static(b":\n\n")), self)),
                Ok(false) => return None,
                Ok(true) => {}
            }
            if let Some(frame) = self.watcher.seat.next_frame() {
                return Some((Ok(frame.event()), self));
            }
        }
    }
}

async fn list_services(
    State(api): State<Arc<NativeApi>>,
    asked: Asked,
) -> Answer<Json<ServicesReply>> {
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

async fn summary(State(api): State<Arc<NativeApi>>) -> Json<SummaryReply> {
    Json(SummaryReply {
        warming: api.access.warming(),
        ..SummaryReply::from(&api.access.summary())
    })
}

async fn settings(State(api): State<Arc<NativeApi>>) -> Json<ClientSettings> {
    Json(api.settings())
}

async fn set_settings(
    State(api): State<Arc<NativeApi>>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<Json<ClientSettings>> {
    let settings =
        serde_json::from_slice(&body?).map_err(|error| Failure::bad(format!("body: {error}")))?;
    api.set_settings(settings)
        .map_err(|faults| Failure::bad(faults.join("; ")))?;
    Ok(Json(settings))
}

#[cfg(test)]
mod tests;
