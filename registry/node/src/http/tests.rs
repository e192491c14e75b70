use std::collections::BTreeMap;
use std::net::SocketAddr;

use causeway_registry::api::{ServiceDelta, native_key};
use causeway_registry::{LeaseId, NodeConfig, RecordBody, Stamp};
use futures::StreamExt;
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};

use super::*;
use crate::hub::Hub;
use crate::standalone::Registry;

const CART: &str = "/v1/registry/services/cart";
const ONE: &str = "/v1/registry/services/cart/instances/10.0.0.1:80";

/// A member on a socket of its own.
struct Member {
    registry: Arc<Registry>,
    address: SocketAddr,
    http: Client,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn member() -> Member {
    member_with(Limits {
        min_ttl_ms: 100,
        ..Limits::default()
    })
    .await
}

async fn member_with(limits: Limits) -> Member {
    let registry = Registry::start(NodeConfig::new(1, 1_700_000_000_000));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = router_with(registry.clone(), limits);
    let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    Member {
        registry,
        address,
        http: Client::new(),
        server,
    }
}

impl Member {
    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http
            .request(method, format!("http://{}{path}", self.address))
    }

    async fn call(&self, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
        let mut request = self.request(method, path);
        if !body.is_null() {
            request = request.body(body.to_string());
        }
        let reply = request.send().await.unwrap();
        let status = reply.status();
        let text = reply.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    async fn put(&self, path: &str, ttl_ms: u64) -> Value {
        let (status, reply) = self
            .call(Method::PUT, path, json!({ "ttl_ms": ttl_ms }))
            .await;
        assert!(status.is_success(), "{status} {reply}");
        reply
    }

    async fn names(&self, path: &str) -> Vec<String> {
        let (status, reply) = self.call(Method::GET, path, Value::Null).await;
        assert_eq!(status, StatusCode::OK);
        let list: ServiceList = serde_json::from_value(reply).unwrap();
        list.instances
            .into_iter()
            .map(|instance| instance.instance)
            .collect()
    }

    async fn events(&self, path: &str, last: Option<&str>) -> Events {
        let mut request = self.request(Method::GET, path);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let reply = request.send().await.unwrap();
        assert_eq!(reply.status(), StatusCode::OK);
        assert_eq!(reply.headers()["content-type"], "text/event-stream");
        Events {
            bytes: Box::pin(reply.bytes_stream()),
            text: String::new(),
        }
    }
}

type ByteStream = std::pin::Pin<Box<dyn futures::Stream<Item = reqwest::Result<Bytes>> + Send>>;

/// The events of a watch stream, comments skipped.
struct Events {
    bytes: ByteStream,
    text: String,
}

#[derive(Debug, PartialEq)]
enum Event {
    Full(ServiceList),
    Delta(ServiceDelta),
}

impl Events {
    /// None: the stream ended.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let fields: BTreeMap<String, String> = event
                    .lines()
                    .filter_map(|line| line.split_once(": "))
                    .map(|(name, value)| (name.into(), value.into()))
                    .collect();
                self.text = rest.to_owned();
                let Some(kind) = fields.get("event") else {
                    continue;
                };
                let data = &fields["data"];
                let (event, revision) = match kind.as_str() {
                    "full" => {
                        let list: ServiceList = serde_json::from_str(data).unwrap();
                        (Event::Full(list.clone()), list.revision)
                    }
                    "delta" => {
                        let delta: ServiceDelta = serde_json::from_str(data).unwrap();
                        (Event::Delta(delta.clone()), delta.revision)
                    }
                    other => panic!("{other}"),
                };
                assert_eq!(fields["id"], revision);
                return Some(event);
            }
            let more = tokio::time::timeout(Duration::from_secs(10), self.bytes.next());
            let more = more.await.expect("no event within 10 s")?;
            self.text
                .push_str(std::str::from_utf8(&more.ok()?).unwrap());
        }
    }

    async fn full(&mut self) -> ServiceList {
        match self.next().await {
            Some(Event::Full(list)) => list,
            other => panic!("{other:?}"),
        }
    }

    async fn delta(&mut self) -> (Vec<String>, Vec<String>, String) {
        match self.next().await {
            Some(Event::Delta(delta)) => (
                delta
                    .changed
                    .into_iter()
                    .map(|instance| instance.instance)
                    .collect(),
                delta
                    .removed
                    .into_iter()
                    .map(|removed| removed.instance)
                    .collect(),
                delta.revision,
            ),
            other => panic!("{other:?}"),
        }
    }

    async fn is_silent_for(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.next()).await.is_err()
    }
}

#[tokio::test]
async fn an_instance_registers_renews_and_leaves() {
    let member = member().await;
    let body = json!({
        "ttl_ms": 5_000,
        "endpoints": [{ "scheme": "http", "host": "10.0.0.1", "port": 80 }],
        "attributes": { "zone": "a" },
    });
    let (status, first) = member.call(Method::PUT, ONE, body.clone()).await;
    assert_eq!(
        (status, &first["created"]),
        (StatusCode::CREATED, &json!(true))
    );
    let (status, again) = member.call(Method::POST, ONE, body).await;
    assert_eq!((status, &again["created"]), (StatusCode::OK, &json!(false)));
    assert_eq!(again["stamp"], first["stamp"], "a renewal changes nothing");
    let (status, beat) = member
        .call(Method::POST, &format!("{ONE}/heartbeat"), Value::Null)
        .await;
    assert_eq!((status, &beat["ttl_ms"]), (StatusCode::OK, &json!(5_000)));

    let (_, list) = member.call(Method::GET, CART, Value::Null).await;
    let expected = json!({
        "id": "native:default/cart/10.0.0.1:80",
        "instance": "10.0.0.1:80",
        "store": "native",
        "health": "live",
        "endpoints": [{ "scheme": "http", "host": "10.0.0.1", "port": 80 }],
        "attributes": { "zone": "a" },
        "stamp": first["stamp"],
    });
    assert_eq!(list["instances"], json!([expected]));
    let (_, services) = member
        .call(Method::GET, "/v1/registry/services", Value::Null)
        .await;
    assert_eq!(services["services"][0]["service"], "cart");
    assert_eq!(services["services"][0]["live"], 1);
    let other = "/v1/registry/services?namespace=other";
    assert_eq!(
        member.call(Method::GET, other, Value::Null).await.1,
        json!({ "services": [] })
    );
    let (_, summary) = member
        .call(Method::GET, "/v1/registry/summary", Value::Null)
        .await;
    assert_eq!(
        (&summary["services"], &summary["instances"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(summary["incarnation"], "1700000000000");

    // Another namespace is another service.
    assert_eq!(
        member.names(&format!("{CART}?namespace=other")).await,
        Vec::<String>::new()
    );

    assert_eq!(
        member.call(Method::DELETE, ONE, Value::Null).await.0,
        StatusCode::NO_CONTENT
    );
    for (method, path) in [
        (Method::DELETE, ONE.to_owned()),
        (Method::POST, format!("{ONE}/heartbeat")),
    ] {
        let (status, error) = member.call(method, &path, Value::Null).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        assert_eq!(error["error"]["code"], "unknown_instance");
    }
    assert_eq!(
        member.registry.summary().leases,
        0,
        "the lease went with its instance"
    );
}

#[tokio::test]
async fn bad_requests_are_told_why() {
    let member = member().await;
    let long = "x".repeat(513);
    let cases: Vec<(Method, String, Value, StatusCode, &str, &str)> = vec![
        (
            Method::PUT,
            ONE.into(),
            json!({"ttl_ms": 99}),
            StatusCode::BAD_REQUEST,
            "bad_request",
            "ttl_ms: 100 to",
        ),
        (
            Method::PUT,
            ONE.into(),
            json!({"ttl_ms": -1}),
            StatusCode::BAD_REQUEST,
            "bad_request",
            "body: ",
        ),
        (
            Method::PUT,
            ONE.into(),
            json!({"tll_ms": 1}),
            StatusCode::BAD_REQUEST,
            "bad_request",
            "tll_ms",
        ),
        (
            Method::PUT,
            ONE.into(),
            json!("x"),
            StatusCode::BAD_REQUEST,
            "bad_request",
            "body: ",
        ),
        (
            Method::PUT,
            ONE.into(),
            json!({"endpoints": [{"host": "", "port": 1}]}),
            StatusCode::BAD_REQUEST,
            "bad_request",
            "host",
        ),
        (
            Method::PUT,
            ONE.into(),
            json!({"endpoints": [{"host": "h", "port": 65_536}]}),
            StatusCode::BAD_REQUEST,
            "bad_request",
            "body: ",
        ),
        (
            Method::PUT,
            ONE.into(),
            json!({"endpoints": vec![json!({"host": "h", "port": 1}); 17]}),
            StatusCode::BAD_REQUEST,
            "bad_request",
            "endpoints: at most 16",
        ),
        (
            Method::PUT,
            ONE.into(),
            json!({"attributes": (0..129).map(|n| (n.to_string(), json!(""))).collect::<serde_json::Map<_, _>>()}),
            StatusCode::BAD_REQUEST,
            "bad_request",
            "attributes: at most 128",
        ),
        (
            Method::PUT,
            ONE.into(),
            json!({"attributes": {"a": "x".repeat(70_000)}}),
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            "limit",
        ),
        (
            Method::PUT,
            ONE.into(),
            json!({"claim": "soon"}),
            StatusCode::BAD_REQUEST,
            "bad_request",
            "claim: ",
        ),
        (
            Method::PUT,
            ONE.into(),
            json!({"claim": format!("{}.1", u64::MAX)}),
            StatusCode::BAD_REQUEST,
            "bad_request",
            "claim: ",
        ),
        (
            Method::PUT,
            format!("{CART}/instances/{long}"),
            json!({}),
            StatusCode::BAD_REQUEST,
            "bad_request",
            "instance: 1 to 512 bytes, not 513",
        ),
        (
            Method::PUT,
            format!("{CART}/instances/a%0Ab"),
            json!({}),
            StatusCode::BAD_REQUEST,
            "bad_request",
            "control",
        ),
        (
            Method::PUT,
            format!("{CART}/instances/%FF"),
            json!({}),
            StatusCode::BAD_REQUEST,
            "bad_request",
            "UTF-8",
        ),
        (
            Method::GET,
            format!("{CART}?namespace="),
            Value::Null,
            StatusCode::BAD_REQUEST,
            "bad_request",
            "namespace: 1 to",
        ),
        (
            Method::GET,
            format!("{CART}?wait_ms=60001&revision=1.1"),
            Value::Null,
            StatusCode::BAD_REQUEST,
            "bad_request",
            "wait_ms: at most",
        ),
        (
            Method::GET,
            format!("{CART}?wait_ms=5"),
            Value::Null,
            StatusCode::BAD_REQUEST,
            "bad_request",
            "needs the revision",
        ),
        (
            Method::GET,
            format!("{CART}?wait_ms=x"),
            Value::Null,
            StatusCode::BAD_REQUEST,
            "bad_request",
            "",
        ),
        (
            Method::GET,
            format!("{CART}/watch?revision=x"),
            Value::Null,
            StatusCode::BAD_REQUEST,
            "bad_request",
            "revision: ",
        ),
    ];
    for (method, path, body, status, code, text) in cases {
        let got = member.call(method.clone(), &path, body).await;
        assert_eq!(got.0, status, "{method} {path}: {}", got.1);
        assert_eq!(got.1["error"]["code"], code, "{method} {path}");
        let message = got.1["error"]["message"].as_str().unwrap();
        assert!(message.contains(text), "{method} {path}: {message}");
    }
    assert_eq!(member.registry.summary().records, 0);
    assert_eq!(member.registry.summary().leases, 0);
}

#[tokio::test]
async fn an_instance_that_stops_renewing_goes_and_one_that_renews_stays() {
    let member = member().await;
    let two = format!("{CART}/instances/two");
    member.put(ONE, 400).await;
    member.put(&two, 400).await;
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        member.put(&two, 400).await;
    }
    assert_eq!(member.names(CART).await, ["two"]);
    assert_eq!(member.registry.summary().leases, 1);
    // A registration that expired is made anew by the same call.
    assert_eq!(member.put(ONE, 400).await["created"], true);
    // A new time to live holds from now on.
    member.put(ONE, 60_000).await;
    member.put(&two, 100).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(member.names(CART).await, ["10.0.0.1:80"]);
}

#[tokio::test]
async fn a_watch_gives_everything_then_changes() {
    let member = member().await;
    let mut events = member.events(&format!("{CART}/watch"), None).await;
    let empty = events.full().await;
    assert_eq!(
        (empty.namespace.as_str(), empty.instances.len()),
        ("default", 0)
    );

    member.put(ONE, 5_000).await;
    let (changed, removed, after_one) = events.delta().await;
    assert_eq!((changed, removed), (vec!["10.0.0.1:80".into()], vec![]));
    // Renewals and other services are not its business.
    member.put(ONE, 5_000).await;
    member
        .put("/v1/registry/services/till/instances/x", 5_000)
        .await;
    member.put(&format!("{ONE}?namespace=other"), 5_000).await;
    assert!(events.is_silent_for(Duration::from_millis(300)).await);

    member.put(&format!("{CART}/instances/two"), 5_000).await;
    member.call(Method::DELETE, ONE, Value::Null).await;
    let mut seen = (Vec::new(), Vec::new());
    while seen.1.is_empty() {
        let (changed, removed, _) = events.delta().await;
        seen.0.extend(changed);
        seen.1.extend(removed);
    }
    assert_eq!(seen, (vec!["two".into()], vec!["10.0.0.1:80".into()]));

    // Whoever comes back is told what it missed, in one event; a mark of another life gives all.
    let mut resumed = member
        .events(&format!("{CART}/watch"), Some(&after_one))
        .await;
    let (changed, removed, mark) = resumed.delta().await;
    assert_eq!(
        (changed, removed),
        (vec!["two".into()], vec!["10.0.0.1:80".into()])
    );
    let mut up_to_date = member
        .events(&format!("{CART}/watch?revision={mark}"), None)
        .await;
    assert!(up_to_date.is_silent_for(Duration::from_millis(200)).await);
    let mut stranger = member
        .events(&format!("{CART}/watch?revision=5.1"), None)
        .await;
    assert_eq!(stranger.full().await.instances.len(), 1);
}

#[tokio::test]
async fn a_burst_is_told_in_few_events_and_all_watchers_end_equal() {
    let member = member().await;
    let mut watchers = Vec::new();
    for _ in 0..20 {
        let mut events = member.events(&format!("{CART}/watch"), None).await;
        events.full().await;
        watchers.push(events);
    }
    for n in 0..200 {
        let key = native_key("default", "cart", &format!("i{n:03}"));
        let body = RecordBody {
            namespace: "default".into(),
            service: "cart".into(),
            instance: format!("i{n:03}"),
            ..RecordBody::default()
        };
        member.registry.register(key, body, None).unwrap();
    }
    let last = member.registry.snapshot().0.to_string();
    for mut events in watchers {
        let (mut count, mut seen) = (0, BTreeMap::new());
        loop {
            count += 1;
            // More changes than are remembered: some of the events are full ones.
            let revision = match events.next().await.unwrap() {
                Event::Full(list) => {
                    seen = list
                        .instances
                        .into_iter()
                        .map(|i| (i.id, i.instance))
                        .collect();
                    list.revision
                }
                Event::Delta(delta) => {
                    seen.extend(delta.changed.into_iter().map(|i| (i.id, i.instance)));
                    delta.revision
                }
            };
            if revision == last {
                break;
            }
        }
        assert_eq!(seen.len(), 200);
        assert!(count < 50, "{count} events for one burst");
    }
}

#[tokio::test]
async fn watches_are_bounded_and_leave_nothing_behind() {
    let registry = Registry::start(NodeConfig::new(1, 1));
    let hub = Hub::new(registry.clone());
    let name = ServiceName::new("default", "cart");
    let bell: Arc<dyn Subscriber> = Arc::new(Bell::default());
    for _ in 0..1_000 {
        let sit = || hub.sit(name.clone(), None, Arc::downgrade(&bell), 0);
        let (first, second) = (sit(), sit());
        drop(first);
        assert_eq!(hub.watched(), 1);
        drop(second);
        assert_eq!(hub.watched(), 0);
    }

    let member = member_with(Limits {
        watches: 1,
        ..Limits::default()
    })
    .await;
    let mut events = member.events(&format!("{CART}/watch"), None).await;
    events.full().await;
    let path = format!("{CART}/watch");
    let (status, error) = member.call(Method::GET, &path, Value::Null).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(error["error"]["code"], "too_many_watches");
    drop(events);
    let again = async {
        loop {
            let reply = member.request(Method::GET, &path).send().await.unwrap();
            if reply.status() == StatusCode::OK {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), again)
        .await
        .expect("its place is free again");
}

#[tokio::test]
async fn a_waiting_query_answers_on_change_or_when_time_is_up() {
    let member = member().await;
    let (_, list) = member.call(Method::GET, CART, Value::Null).await;
    let revision = list["revision"].as_str().unwrap().to_owned();
    let wait = |ms: u64| format!("{CART}?revision={revision}&wait_ms={ms}");

    let start = Instant::now();
    assert_eq!(member.names(&wait(200)).await, Vec::<String>::new());
    assert!(start.elapsed() >= Duration::from_millis(200));

    let start = Instant::now();
    let path = wait(30_000);
    let (names, _) = tokio::join!(member.names(&path), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        member.put(ONE, 5_000).await
    });
    assert_eq!(names, ["10.0.0.1:80"]);
    assert!(start.elapsed() < Duration::from_secs(10));
    // What differs already is told at once.
    assert_eq!(member.names(&path).await, ["10.0.0.1:80"]);
}

#[tokio::test]
async fn calls_at_once_for_one_instance_share_one_lease() {
    let member = member().await;
    let calls = (0..50).map(|_| member.put(ONE, 5_000));
    let created = futures::future::join_all(calls).await;
    assert_eq!(
        created
            .iter()
            .filter(|reply| reply["created"] == true)
            .count(),
        1
    );
    assert_eq!(member.registry.summary().leases, 1);
}

#[tokio::test]
async fn a_claim_orders_a_client_after_what_it_did_elsewhere() {
    let member = member().await;
    let first = member.put(ONE, 5_000).await;
    let stamp: Stamp = first["stamp"].as_str().unwrap().parse().unwrap();
    // Half an hour ahead, as if the other member's clock were.
    let there = Stamp {
        hlc: stamp.hlc + (1_800_000 << 16),
        member: 9,
    };
    let body = json!({ "attributes": { "moved": "yes" }, "claim": there.to_string() });
    let (_, reply) = member.call(Method::PUT, ONE, body).await;
    let here: Stamp = reply["stamp"].as_str().unwrap().parse().unwrap();
    assert!(here > there);
}

#[tokio::test]
async fn watch_streams_end_with_the_registry() {
    let member = member().await;
    let path = format!("{CART}/watch");
    let mut events = member.events(&path, None).await;
    events.full().await;
    member.registry.stop();
    assert_eq!(events.next().await, None);
    // Also one that opens after that.
    let mut late = member.events(&path, None).await;
    late.full().await;
    assert_eq!(late.next().await, None);

    let registry = Registry::start(NodeConfig::new(1, 1));
    let mut deltas = registry.subscribe();
    drop(registry);
    // The timer task holds it for moments only.
    let ended = tokio::time::timeout(Duration::from_secs(5), deltas.recv()).await;
    assert!(matches!(ended, Ok(Err(_))), "{ended:?}");
}

#[tokio::test]
async fn a_lease_shorter_than_the_timers_sleep_is_not_late() {
    let registry = Registry::start(NodeConfig::new(1, 1));
    // The timer sleeps for a second now.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let lease = LeaseId::native(1);
    registry.open_lease(lease, 100).unwrap();
    registry
        .register(
            native_key("d", "s", "i"),
            RecordBody::default(),
            Some(lease),
        )
        .unwrap();
    // A lease that owns nothing ends, too.
    registry.open_lease(LeaseId::native(2), 100).unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let summary = registry.summary();
    assert_eq!(
        (summary.records, summary.leases, summary.tombstones),
        (0, 0, 1)
    );
}
