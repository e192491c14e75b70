//! The HTTP routes that stand beside gRPC on etcd's port.

use causeway_engine::route::Mode;
use causeway_registry::StoreKind;
use hyper::http::{Method, Request, Response, StatusCode, header};
use serde_json::json;
use tonic::body::Body;

use super::Front;

/// Answers a request that is not gRPC.
pub(super) fn answer<B>(front: &Front, request: &Request<B>) -> Response<Body> {
    let reply = match request.uri().path() {
        "/version" => json_reply(version(front)),
        "/health" => health(front),
        "/livez"
        | "/livez/serializable_read"
        | "/readyz"
        | "/readyz/serializable_read"
        | "/readyz/data_corruption" => {
            text(StatusCode::OK, "text/plain; charset=utf-8", "ok\n".into())
        }
        "/metrics" => text(
            StatusCode::OK,
            "text/plain; version=0.0.4; charset=utf-8",
            metrics(front),
        ),
        _ => {
            return text(
                StatusCode::NOT_FOUND,
                "text/plain; charset=utf-8",
                "404 page not found\n".into(),
            );
        }
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return text(
            StatusCode::METHOD_NOT_ALLOWED,
            "text/plain; charset=utf-8",
            "Method Not Allowed\n".into(),
        );
    }
    reply
}

/// While the legacy cluster answers everything, its health is the port's.
fn health(front: &Front) -> Response<Body> {
    let looked = front
        .gateway
        .with(|core| (core.mode(StoreKind::Etcd), core.feed(StoreKind::Etcd)))
        .0;
    match looked {
        (Mode::Relay, Some((false, trouble))) => {
            let reason = trouble.unwrap_or_else(|| "the legacy etcd was not read yet".into());
            let body = json!({"health": "false", "reason": reason}).to_string();
            text(StatusCode::SERVICE_UNAVAILABLE, "application/json", body)
        }
        _ => json_reply(json!({"health": "true", "reason": ""}).to_string()),
    }
}

/// etcd shows its own version and the lowest minor version of its members.
fn version(front: &Front) -> String {
    let server = front.identity.version();
    let cluster = cluster_version(&server);
    json!({"etcdserver": server, "etcdcluster": cluster}).to_string()
}

fn cluster_version(server: &str) -> String {
    let mut parts = server.split('.');
    match (parts.next(), parts.next()) {
        (Some(major), Some(minor)) => format!("{major}.{minor}.0"),
        _ => server.to_owned(),
    }
}

/// What dashboards for etcd look at first, as far as it exists here.
fn metrics(front: &Front) -> String {
    let (revision, keys, leases, watches, bytes) = front
        .gateway
        .with(|core| {
            let keys = core.keys();
            let (revision, len, leases, bytes) = (
                keys.revision(),
                keys.len(),
                keys.leases().count(),
                keys.history_bytes(),
            );
            (revision, len, leases, core.key_watches().0.len(), bytes)
        })
        .0;
    let relayed = front.mode() == Mode::Relay;
    let mut out = String::new();
    let mut gauge = |name: &str, help: &str, value: String| {
        out.push_str(&format!(
            "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n"
        ));
    };
    gauge(
        "etcd_server_has_leader",
        "Whether requests are answered.",
        "1".into(),
    );
    gauge(
        "etcd_debugging_mvcc_current_revision",
        "The current revision of the key space here.",
        revision.to_string(),
    );
    gauge(
        "etcd_debugging_mvcc_keys_total",
        "Keys in the key space here.",
        keys.to_string(),
    );
    gauge(
        "etcd_debugging_mvcc_watcher_total",
        "Watches served from the key space here.",
        watches.to_string(),
    );
    gauge(
        "etcd_mvcc_db_total_size_in_use_in_bytes",
        "About the bytes that the history takes.",
        bytes.to_string(),
    );
    gauge(
        "causeway_etcd_leases",
        "Leases known here.",
        leases.to_string(),
    );
    gauge(
        "causeway_etcd_relayed",
        "Whether the legacy cluster answers everything.",
        u8::from(relayed).to_string(),
    );
    out
}

fn json_reply(body: String) -> Response<Body> {
    text(StatusCode::OK, "application/json", body)
}

fn text(status: StatusCode, kind: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Body::new(axum::body::Body::from(body)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::cluster_version;

    #[test]
    fn the_clusters_version_is_the_minor_one() {
        for (server, cluster) in [
            ("3.5.21", "3.5.0"),
            ("3.4.23", "3.4.0"),
            ("3.6.0-rc.1", "3.6.0"),
            ("4", "4"),
        ] {
            assert_eq!(cluster_version(server), cluster);
        }
    }
}
