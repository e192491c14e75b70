//! The HTTP routes that stand beside gRPC on etcd's port, with the texts of the release shown (etcd: etcdhttp).

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use causeway_engine::key_space::Alarm;
use causeway_engine::route::Mode;
use causeway_registry::StoreKind;
use hyper::body::{Body as _, Incoming};
use hyper::http::{Method, Request, Response, StatusCode, header};
use serde_json::json;
use tonic::body::Body;

use super::maintenance::{Seen, alarm_name};
use super::{Front, metrics};

/// Answers a request that is not gRPC.
pub(super) fn answer<B>(front: &Front, request: &Request<B>) -> Response<Body> {
    let query = request.uri().query().unwrap_or_default();
    let release = front.identity.release();
    let reply = match request.uri().path() {
        "/version" => json_reply(version(front), "application/json"),
        "/health" => health(&State::of(front), query, release.has_probes()),
        "/debug/vars" => json_reply(variables(front), "application/json; charset=utf-8"),
        // Prometheus' handler takes every method.
        "/metrics" => return text(StatusCode::OK, METRICS, metrics::text(front)),
        path => match checks(path).filter(|_| release.has_probes()) {
            Some(checks) => probe(&State::of(front), &checks, query),
            None => return text(StatusCode::NOT_FOUND, TEXT, "404 page not found\n".into()),
        },
    };
    if request.method() != Method::GET {
        let body = "Method Not Allowed\n".into();
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, TEXT, body);
        let get = header::HeaderValue::from_static("GET");
        refused.headers_mut().insert(header::ALLOW, get);
        return refused;
    }
    reply
}

/// Reads the body of a request that is answered without it. A client that is still writing would otherwise see
/// its stream reset, or its connection broken, instead of the answer: curl tells of an error and shows nothing.
/// What is longer or slower than a client's honest request is left.
pub(super) async fn discard(mut body: Incoming) {
    let read = async {
        let mut left = DISCARDED;
        while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(length) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    let _ = tokio::time::timeout(DISCARDING, read).await;
}

/// Bytes of a body that are read for nothing at most (Go: net/http, maxPostHandlerReadBytes).
const DISCARDED: usize = 256 << 10;
/// How long that may take.
const DISCARDING: Duration = Duration::from_secs(1);

const TEXT: &str = "text/plain; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the port's health depends on.
#[derive(Debug, Default)]
struct State {
    alarms: Vec<Alarm>,
    /// Why nothing can be read.
    trouble: Option<String>,
}

impl State {
    /// While the legacy cluster answers everything, its health is the port's.
    fn of(front: &Front) -> State {
        let (mode, feed) = front
            .gateway
            .with(|core| (core.mode(StoreKind::Etcd), core.feed(StoreKind::Etcd)))
            .0;
        let (seen, after) = front.look_at_member();
        let on_disk = front.gateway.is_durable(after);
        let trouble = match (mode, feed) {
            (Mode::Relay, Some((false, trouble))) => {
                Some(trouble.unwrap_or_else(|| "the legacy etcd was not read yet".into()))
            }
            _ => on_disk.err().map(|error| error.to_string()),
        };
        State {
            alarms: seen.alarms,
            trouble,
        }
    }
}

/// Values of a parameter.
fn values<'q>(query: &'q str, name: &'q str) -> impl Iterator<Item = String> + 'q {
    url_pairs(query)
        .filter(move |(key, _)| key == name)
        .map(|(_, value)| value)
}

fn url_pairs(query: &str) -> impl Iterator<Item = (String, String)> + '_ {
    reqwest::Url::parse(&format!("http://gateway/?{query}"))
        .map(|url| url.query_pairs().into_owned().collect::<Vec<_>>())
        .unwrap_or_default()
        .into_iter()
}

/// etcd: NewHealthHandler. Releases before 3.5 give no reason.
fn health(state: &State, query: &str, reasons: bool) -> Response<Body> {
    let excluded: Vec<String> = values(query, "exclude").collect();
    let alarm = state
        .alarms
        .iter()
        .map(|alarm| alarm_name(alarm.kind))
        .find(|name| !excluded.contains(name));
    let bad = match (&alarm, &state.trouble) {
        (Some(name), _) => {
            let known = [Alarm::NOSPACE, Alarm::CORRUPT].map(alarm_name);
            let name = if known.contains(name) {
                name
            } else {
                "UNKNOWN"
            };
            Some(format!("ALARM {name}"))
        }
        (None, Some(trouble)) => Some(format!("RANGE ERROR:{trouble}")),
        (None, None) => None,
    };
    let health = if bad.is_some() { "false" } else { "true" };
    let body = if reasons {
        json!({"health": health, "reason": bad.as_deref().unwrap_or_default()})
    } else {
        json!({ "health": health })
    };
    match bad {
        None => text(StatusCode::OK, TEXT, body.to_string()),
        // Go ends the text of an error with a line.
        Some(_) => text(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{body}\n")),
    }
}

/// A check of `/livez` and `/readyz`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    DataCorruption,
    SerializableRead,
    LinearizableRead,
    NonLearner,
}

impl Check {
    const READY: [Check; 4] = [
        Check::DataCorruption,
        Check::SerializableRead,
        Check::LinearizableRead,
        Check::NonLearner,
    ];
    const LIVE: [Check; 1] = [Check::SerializableRead];

    fn name(self) -> &'static str {
        match self {
            Check::DataCorruption => "data_corruption",
            Check::SerializableRead => "serializable_read",
            Check::LinearizableRead => "linearizable_read",
            Check::NonLearner => "non_learner",
        }
    }

    fn run(self, state: &State) -> Result<(), String> {
        match self {
            Check::DataCorruption => match state.alarms.iter().any(|a| a.kind == Alarm::CORRUPT) {
                true => Err("alarm activated: CORRUPT".into()),
                false => Ok(()),
            },
            Check::SerializableRead | Check::LinearizableRead => {
                state.trouble.clone().map_or(Ok(()), Err)
            }
            Check::NonLearner => Ok(()),
        }
    }
}

/// The checks of a path below `/livez` and `/readyz`.
fn checks(path: &str) -> Option<Vec<Check>> {
    let (all, one) = match path.strip_prefix("/livez") {
        Some(one) => (&Check::LIVE[..], one),
        None => (&Check::READY[..], path.strip_prefix("/readyz")?),
    };
    if one.is_empty() {
        return Some(all.to_vec());
    }
    let one = one.strip_prefix('/')?;
    let found = all.iter().find(|check| check.name() == one)?;
    Some(vec![*found])
}

/// etcd: newHealthHandler. A failure is told whole, success only to those who ask for it.
fn probe(state: &State, checks: &[Check], query: &str) -> Response<Body> {
    let excluded: Vec<String> = match checks {
        [_] => Vec::new(),
        _ => values(query, "exclude").collect(),
    };
    let (mut told, mut failed) = (String::new(), false);
    for check in checks {
        let name = check.name();
        if excluded.iter().any(|excluded| excluded == name) {
            continue;
        }
        match check.run(state) {
            Ok(()) => told.push_str(&format!("[+]{name} ok\n")),
            Err(why) => {
                failed = true;
                told.push_str(&format!("[-]{name} failed: {why}\n"));
            }
        }
    }
    if failed {
        return text(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{told}\n"));
    }
    let verbose = url_pairs(query).any(|(name, _)| name == "verbose");
    let told = if verbose { told } else { String::new() };
    text(StatusCode::OK, TEXT, format!("{told}ok\n"))
}

/// etcd shows its own version and the lowest minor version of its members.
fn version(front: &Front) -> String {
    let release = front.identity.release();
    let cluster = cluster_release(front, &front.look_at_member().0).cluster_version();
    let mut versions = json!({"etcdserver": front.identity.version(), "etcdcluster": cluster});
    if release.tells_storage_version() {
        versions["storage"] = cluster.into();
    }
    versions.to_string()
}

/// A downgrade is the embedded store's alone.
pub(super) fn cluster_release(front: &Front, seen: &Seen) -> causeway_engine::key_space::Release {
    seen.cluster_release(front.identity.release())
}

/// Of Go's variables those that mean something here (etcd: etcdhttp/debug.go). The command line is not told: it may
/// hold a secret.
fn variables(front: &Front) -> String {
    let (ids, (seen, _)) = (front.identity.ids(), front.look_at_member());
    let id = format!("{:x}", ids.member_id);
    let index = seen.revision;
    let status = json!({
        "id": id, "term": ids.raft_term, "vote": id, "commit": index, "lead": id,
        "raftState": "StateLeader", "applied": index,
        "progress": {&id: {"match": index, "next": index.saturating_add(1), "state": "StateReplicate"}},
        "leadtransferee": "0",
    });
    let limit = metrics::file_limit().unwrap_or_default();
    format!(
        "{{\n\"cmdline\": [\"causeway\"],\n\"file_descriptor_limit\": {limit},\n\"raft.status\": {status}\n}}\n"
    )
}

/// A refusal in Go's form (net/http, Error).
pub(super) fn bad_request(why: &str) -> Response<Body> {
    text(
        StatusCode::BAD_REQUEST,
        "text/plain; charset=utf-8",
        format!("{why}\n"),
    )
}

fn json_reply(body: String, kind: &'static str) -> Response<Body> {
    text(StatusCode::OK, kind, body)
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
    use super::*;

    fn body(response: Response<Body>) -> (u16, String) {
        let status = response.status().as_u16();
        let bytes = futures::executor::block_on(axum::body::to_bytes(
            axum::body::Body::new(response.into_body()),
            1 << 16,
        ));
        let text = String::from_utf8(bytes.expect("a body").to_vec());
        (status, text.expect("text"))
    }

    fn state(kinds: &[i32], trouble: Option<&str>) -> State {
        let alarm = |kind: &i32| Alarm {
            kind: *kind,
            member: 7,
        };
        State {
            alarms: kinds.iter().map(alarm).collect(),
            trouble: trouble.map(str::to_owned),
        }
    }

    /// Each as a real etcd 3.7 or 3.4 answered.
    #[test]
    fn health_as_etcd_tells_it() {
        let good = r#"{"health":"true","reason":""}"#;
        for (kinds, trouble, query, reasons, want) in [
            (&[][..], None, "", true, (200, good)),
            (&[1], None, "exclude=NOSPACE", true, (200, good)),
            (
                &[1],
                None,
                "",
                true,
                (503, "{\"health\":\"false\",\"reason\":\"ALARM NOSPACE\"}\n"),
            ),
            (
                &[1, 2],
                None,
                "exclude=NOSPACE&exclude=",
                true,
                (503, "{\"health\":\"false\",\"reason\":\"ALARM CORRUPT\"}\n"),
            ),
            (
                &[9],
                None,
                "",
                true,
                (503, "{\"health\":\"false\",\"reason\":\"ALARM UNKNOWN\"}\n"),
            ),
            (
                &[],
                Some("gone"),
                "",
                true,
                (
                    503,
                    "{\"health\":\"false\",\"reason\":\"RANGE ERROR:gone\"}\n",
                ),
            ),
            (&[], None, "", false, (200, r#"{"health":"true"}"#)),
            (&[1], None, "", false, (503, "{\"health\":\"false\"}\n")),
        ] {
            let got = body(health(&state(kinds, trouble), query, reasons));
            assert_eq!((got.0, got.1.as_str()), want, "{kinds:?} {query}");
        }
    }

    #[test]
    fn probes_as_etcd_tells_them() {
        let check = |path: &str, query, state: &State, want: (u16, &str)| {
            let checks = checks(path).expect("a path");
            let got = body(probe(state, &checks, query));
            assert_eq!((got.0, got.1.as_str()), want, "{path}?{query}");
        };
        let good = State::default();
        check("/livez", "", &good, (200, "ok\n"));
        check(
            "/livez",
            "verbose",
            &good,
            (200, "[+]serializable_read ok\nok\n"),
        );
        check(
            "/readyz",
            "verbose&exclude=data_corruption&exclude=x",
            &good,
            (
                200,
                "[+]serializable_read ok\n[+]linearizable_read ok\n[+]non_learner ok\nok\n",
            ),
        );
        let corrupt = state(&[Alarm::CORRUPT], None);
        check("/livez", "", &corrupt, (200, "ok\n"));
        check(
            "/readyz",
            "",
            &corrupt,
            (
                503,
                "[-]data_corruption failed: alarm activated: CORRUPT\n[+]serializable_read ok\n[+]linearizable_read ok\n[+]non_learner ok\n\n",
            ),
        );
        check(
            "/readyz/data_corruption",
            "exclude=data_corruption",
            &corrupt,
            (
                503,
                "[-]data_corruption failed: alarm activated: CORRUPT\n\n",
            ),
        );
        check("/readyz/non_learner", "", &corrupt, (200, "ok\n"));
        check(
            "/livez/serializable_read",
            "",
            &state(&[], Some("gone")),
            (503, "[-]serializable_read failed: gone\n\n"),
        );
        for path in ["/livez/", "/livezz", "/readyz/nope", "/livez/non_learner"] {
            assert_eq!(checks(path), None, "{path}");
        }
    }
}
