//! The admin port: phase steps, reports, health and metrics for operators, and the registry's native API.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::{Path as UrlPath, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use causeway_engine::core::{Command, Reply};
use causeway_engine::phase::{Census, Forced, Move, Refusal};
use causeway_engine::protection::{Input, Order};
use causeway_registry::StoreKind;
use causeway_registry_node::NativeApi;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::front::zookeeper::{self, Board};
use crate::gateway::Gateway;
use crate::legacy::Legacy;

/// Unclaimed keys shown at most.
const UNCLAIMED: usize = 1000;

#[derive(Clone)]
struct App {
    gateway: Arc<Gateway>,
    legacy: Arc<Legacy>,
    board: Arc<Board>,
}

/// Serves the admin port until the gateway stops.
pub async fn serve(
    gateway: Arc<Gateway>,
    legacy: Arc<Legacy>,
    board: Arc<Board>,
    native: Arc<NativeApi>,
    listener: TcpListener,
) {
    let mut stopping = gateway.stopping();
    let native = causeway_registry_node::router_of(native);
    let app = App {
        gateway,
        legacy,
        board,
    };
    let guarded = Router::new()
        .route("/v1/status", get(status))
        .route("/v1/services", get(services))
        .route("/commands", get(commands))
        .route("/commands/{name}", get(command))
        .route("/v1/explain", get(explain))
        .route("/v1/plan", get(plan))
        .route("/v1/audit", get(audit))
        .route("/v1/alarms", get(alarms))
        .route("/v1/phase/{kind}", post(step))
        .route("/v1/ack", post(ack))
        .route("/v1/hold", post(hold))
        .with_state(app.clone())
        .merge(native)
        .layer(middleware::from_fn_with_state(app.clone(), authorize));
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(app)
        .merge(guarded);
    let stop = async move {
        let _ = stopping.wait_for(|s| *s).await;
    };
    if let Err(error) = axum::serve(listener, router)
        .with_graceful_shutdown(stop)
        .await
    {
        tracing::error!(%error, "the admin port has failed");
    }
}

/// What went wrong, as JSON with the cause.
struct Failure(StatusCode, Value);

impl Failure {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Failure(status, json!({"error": message.into()}))
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}

async fn authorize(State(app): State<App>, request: Request, next: Next) -> Response {
    if let Some(token) = &app.gateway.config.admin_token {
        let given = request
            .headers()
            .get(header::AUTHORIZATION)
            .and_then(|v| v.to_str().ok());
        if given.and_then(|v| v.strip_prefix("Bearer ")) != Some(token.as_str()) {
            return Failure::new(
                StatusCode::UNAUTHORIZED,
                "this admin API asks for a token: --token or CAUSEWAY_ADMIN_TOKEN",
            )
            .into_response();
        }
    }
    next.run(request).await
}

async fn ready(State(app): State<App>) -> Response {
    let trouble = app.legacy.trouble(&app.gateway);
    let journal = app.gateway.is_durable(0).err();
    match journal {
        Some(error) => {
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response()
        }
        // A gateway whose legacy store is away goes on serving and says so.
        None => Json(json!({"ready": true, "legacy": trouble})).into_response(),
    }
}

async fn status(State(app): State<App>) -> Json<Value> {
    let now_ms = app.gateway.now_ms();
    let census = app.legacy.census(&app.gateway);
    let remaining = app.legacy.still_on_legacy(&app.gateway).await;
    let (mut value, _) = app.gateway.with(|core| {
        let phase = core.phase();
        let gates = core.gates(census, remaining, now_ms);
        let next = phase.target(Move::Advance).ok();
        let failures = match (phase.taken_over(), next) {
            (_, Some(to)) => gates.failures(phase.phase(), to),
            (_, None) => Vec::new(),
        };
        let protected: Vec<String> = core
            .protection()
            .services()
            .into_iter()
            .filter(|s| s.protected)
            .map(|s| s.service)
            .collect();
        let summary = core.node().summary();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "phase": phase.phase().name(),
            "taken_over": phase.taken_over(),
            "has_legacy": phase.has_legacy(),
            "epoch": phase.epoch(),
            "attempt": phase.attempt(),
            "since_ms": phase.since_ms(),
            "services": core.services().len(),
            "instances": core.instance_count(),
            "held": core.held_count(),
            "sessions": core.sessions().len(),
            "leases": core.keys().leases().count(),
            "next": next.map(|p| p.name()),
            "gates": gates,
            "gate_failures": failures,
            "protected": protected,
            "registry": summary,
            "zxid": core.last_zxid(),
            "revision": core.last_revision(),
        })
    });
    value["stores"] = Value::Array(app.legacy.report(&app.gateway));
    Json(value)
}

async fn services(State(app): State<App>) -> Json<Value> {
    let (rows, unclaimed) = app
        .gateway
        .with(|core| (core.services(), core.unclaimed(UNCLAIMED)))
        .0;
    let mut unclaimed: Vec<Value> = unclaimed.into_iter().map(|u| json!(u)).collect();
    unclaimed.extend(app.legacy.unclaimed(&app.gateway, UNCLAIMED).await);
    Json(json!({"services": rows, "unclaimed": unclaimed}))
}

#[derive(Deserialize)]
struct Which {
    instance: String,
}

async fn explain(State(app): State<App>, Query(which): Query<Which>) -> Json<Value> {
    let now_ms = app.gateway.now_ms();
    let found = app
        .gateway
        .with(|core| core.explain(&which.instance, now_ms))
        .0;
    Json(json!({"registrations": found}))
}

async fn plan(State(app): State<App>) -> Result<Json<Value>, Failure> {
    let now_ms = app.gateway.now_ms();
    let census = app.legacy.census(&app.gateway);
    let remaining = app.legacy.still_on_legacy(&app.gateway).await;
    let planned = app.gateway.with(|core| {
        let to = match core.phase().target(Move::Advance) {
            Ok(to) => to,
            Err(Refusal::NeedsTakeOver { .. }) => core.phase().phase(),
            Err(refusal) => return Err(refusal),
        };
        let from = core.phase().phase();
        let gates = core.gates(census, remaining, now_ms);
        let mut changes = core.preview(to);
        if from == to {
            changes.push(
                "take-over: sessions, leases and numbers become Causeway's own; each client connection is closed once"
                    .into(),
            );
        }
        Ok(json!({"from": from.name(), "to": to.name(), "changes": changes, "failures": gates.failures(from, to)}))
    });
    planned
        .0
        .map(Json)
        .map_err(|r| Failure::new(StatusCode::CONFLICT, r.to_string()))
}

async fn audit(State(app): State<App>) -> Json<Value> {
    let steps: Vec<Value> = app
        .gateway
        .with(|core| core.phase().steps().iter().map(|s| json!(s)).collect())
        .0;
    let orders: Vec<Value> = app
        .gateway
        .with(|core| core.orders().map(|a| json!(a)).collect())
        .0;
    Json(json!({"steps": steps, "orders": orders}))
}

async fn alarms(State(app): State<App>) -> Json<Value> {
    let standing = app.gateway.with(|core| core.protection().alarms()).0;
    Json(json!({"standing": standing, "recent": app.gateway.recent_alarms()}))
}

#[derive(Deserialize)]
struct StepRequest {
    #[serde(default)]
    force: bool,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    actor: String,
}

async fn step(
    State(app): State<App>,
    axum::extract::Path(kind): axum::extract::Path<String>,
    Json(request): Json<StepRequest>,
) -> Result<Json<Value>, Failure> {
    let kind = match kind.as_str() {
        "advance" => Move::Advance,
        "rollback" => Move::Rollback,
        "take-over" => Move::TakeOver,
        other => {
            return Err(Failure::new(
                StatusCode::NOT_FOUND,
                format!("no step is called {other:?}"),
            ));
        }
    };
    let prepared = app.legacy.prepare_step(&app.gateway, kind).await;
    if let (Err(failure), false) = (&prepared, request.force) {
        return Err(Failure(
            StatusCode::CONFLICT,
            json!({"error": "the step is not prepared", "failures": [failure]}),
        ));
    }
    let census = app.legacy.census(&app.gateway);
    let remaining = app.legacy.still_on_legacy(&app.gateway).await;
    let force = request.force.then(|| Forced {
        reason: request.reason.clone(),
    });
    let taken = app.gateway.step(|core, now_ms| {
        let gates = core.gates(census, remaining, now_ms);
        core.judge(
            kind,
            &gates,
            force.as_ref(),
            &request.actor,
            &request.reason,
            now_ms,
        )
    });
    let (step, done) = taken.map_err(|refusal| {
        let failures = match &refusal {
            Refusal::Gates { failures, .. } => failures.clone(),
            _ => Vec::new(),
        };
        Failure(
            StatusCode::CONFLICT,
            json!({"error": refusal.to_string(), "failures": failures}),
        )
    })?;
    app.gateway
        .durable(done.after)
        .await
        .map_err(|e| Failure::new(StatusCode::SERVICE_UNAVAILABLE, e.to_string()))?;
    tracing::info!(
        step = step.kind.name(), from = %step.from, to = %step.to, epoch = step.epoch,
        actor = %step.actor, reason = %step.reason, forced = step.forced.len(), "phase step"
    );
    app.legacy.stepped(&app.gateway);
    Ok(Json(json!(step)))
}

#[derive(Deserialize)]
struct AckRequest {
    service: String,
    reason: String,
    #[serde(default)]
    actor: String,
}

async fn ack(
    State(app): State<App>,
    Json(request): Json<AckRequest>,
) -> Result<Json<Value>, Failure> {
    let input = Input::Ack {
        service: request.service.clone(),
        by: request.actor,
        reason: request.reason,
    };
    order(&app, input).await?;
    Ok(Json(
        json!({"message": format!("{}: the present size is expected from now on", request.service)}),
    ))
}

#[derive(Deserialize)]
struct HoldRequest {
    seconds: u64,
    reason: String,
    #[serde(default)]
    actor: String,
}

async fn hold(
    State(app): State<App>,
    Json(request): Json<HoldRequest>,
) -> Result<Json<Value>, Failure> {
    let until = i64::try_from(request.seconds)
        .unwrap_or(i64::MAX / 2000)
        .saturating_mul(1000);
    let expires_ms = app.gateway.now_ms().saturating_add(until);
    let input = Input::HoldExplicit {
        service: None,
        order: Order {
            by: request.actor,
            reason: request.reason,
            expires_ms,
        },
    };
    order(&app, input).await?;
    Ok(Json(
        json!({"message": format!("explicit removals are held for {} s", request.seconds)}),
    ))
}

async fn order(app: &App, input: Input) -> Result<(), Failure> {
    let done = app.gateway.apply(Command::Protection(input));
    if let Reply::OrderRefused(why) = done.reply {
        return Err(Failure::new(StatusCode::BAD_REQUEST, why));
    }
    app.gateway
        .durable(done.after)
        .await
        .map_err(|e| Failure::new(StatusCode::SERVICE_UNAVAILABLE, e.to_string()))
}

/// The commands of ZooKeeper's AdminServer. It lists them as links in HTML.
async fn commands() -> Html<String> {
    let link = |name| format!("<a href=\"/commands/{name}\">{name}</a>\n<br/>\n");
    Html(zookeeper::commands::names().map(link).collect())
}

async fn command(State(app): State<App>, UrlPath(name): UrlPath<String>) -> Response {
    match zookeeper::commands::answer(&app.gateway, &app.board, &name) {
        Some(answer) => Json(answer).into_response(),
        None => Failure::new(StatusCode::NOT_FOUND, format!("no command {name:?}")).into_response(),
    }
}

async fn metrics(State(app): State<App>) -> Response {
    let mut text = String::new();
    let census = Census::CannotTell(String::new());
    let now_ms = app.gateway.now_ms();
    app.gateway.with(|core| {
        let phase = core.phase();
        let gates = core.gates(census, Vec::new(), now_ms);
        let mut gauge = |name: &str, help: &str, value: i128| {
            let _ = writeln!(text, "# HELP causeway_{name} {help}\n# TYPE causeway_{name} gauge\ncauseway_{name} {value}");
        };
        gauge("phase", "Phase in force, 0 (proxy) to 6 (done).", phase.phase() as i128);
        gauge("taken_over", "Whether the take-over has happened.", i128::from(phase.taken_over()));
        gauge("epoch", "Number of the last phase step.", i128::from(phase.epoch()));
        gauge("instances", "Instances that clients see.", core.instance_count() as i128);
        gauge("held_instances", "Instances that protection holds.", gates.held as i128);
        gauge("sessions", "ZooKeeper sessions.", core.sessions().len() as i128);
        gauge("leases", "etcd leases.", core.keys().leases().count() as i128);
        gauge("differences", "Registrations that differ between L and N.", gates.differences.len() as i128);
        gauge("backlog", "Entries that L has not reached.", gates.backlog as i128);
        let _ = writeln!(text, "# HELP causeway_protected Whether a service is protected.\n# TYPE causeway_protected gauge");
        for report in core.protection().services() {
            let service = report.service.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = writeln!(text, "causeway_protected{{service=\"{service}\"}} {}", u8::from(report.protected));
        }
        for store in [StoreKind::Zookeeper, StoreKind::Etcd] {
            if let Some((whole, _)) = core.feed(store) {
                let _ = writeln!(text, "causeway_legacy_whole{{store=\"{}\"}} {}", store.name(), u8::from(whole));
            }
        }
    });
    app.board.metrics(&mut text);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}
