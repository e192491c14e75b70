//! The port as a client sees it, in front of the embedded store: by JSON, which goes through the gRPC calls.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::gateway::Gateway;
use crate::legacy::Legacy;
use crate::{app, config};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

struct Port {
    gateway: std::sync::Arc<Gateway>,
    url: String,
    client: reqwest::Client,
}

impl Port {
    async fn open() -> Port {
        let gateway = app::in_memory(config::defaults()).expect("a gateway");
        let legacy = Legacy::start(&gateway).expect("no legacy store");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(gateway.clone().run_timers());
        tokio::spawn(super::serve(gateway.clone(), legacy, listener));
        Port {
            gateway,
            url: format!("http://{address}"),
            client: reqwest::Client::new(),
        }
    }

    async fn send(&self, path: &str, body: impl Into<reqwest::Body>) -> reqwest::Response {
        let request = self.client.post(format!("{}{path}", self.url)).body(body);
        let sent = tokio::time::timeout(PATIENCE, request.send()).await;
        sent.expect("an answer in time").expect("an answer")
    }

    /// Status and body.
    async fn say(&self, path: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
        let answer = self.send(path, body).await;
        let status = answer.status().as_u16();
        assert_eq!(answer.headers()["content-type"], "application/json");
        let text = answer.text().await.expect("a body");
        let read = serde_json::from_str(&text);
        (
            status,
            read.unwrap_or_else(|error| panic!("{error}: {text}")),
        )
    }

    /// The body of an answer that is no refusal, without its header.
    async fn call(&self, path: &str, body: Value) -> Value {
        let (status, mut answer) = self.say(path, body.to_string()).await;
        assert_eq!(status, 200, "{path} {body}: {answer}");
        if let Some(answer) = answer.as_object_mut() {
            answer.remove("header");
        }
        answer
    }

    async fn refusal(&self, path: &str, body: Value) -> (u16, String) {
        let (status, answer) = self.say(path, body.to_string()).await;
        assert_eq!(answer["error"], answer["message"]);
        (status, answer["message"].as_str().unwrap_or("").to_owned())
    }

    async fn grant(&self, id: i64) {
        self.call("/v3/lease/grant", json!({"TTL": 60, "ID": id}))
            .await;
    }

    /// The keys below a prefix that ends with a slash.
    async fn keys(&self, prefix: &str) -> Vec<String> {
        let end = format!("{}0", prefix.trim_end_matches('/'));
        let asked = json!({"key": base64(prefix), "range_end": base64(&end)});
        let found = self.call("/v3/kv/range", asked).await;
        let kvs = found["kvs"].as_array().cloned().unwrap_or_default();
        let keys = kvs.iter().filter_map(|kv| kv["key"].as_str());
        keys.map(str::to_owned).collect()
    }

    async fn until_keys(&self, prefix: &str, want: &[&str]) {
        let want: Vec<String> = want.iter().map(|key| base64(key)).collect();
        let same = async {
            while self.keys(prefix).await != want {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, same).await;
        assert!(waited.is_ok(), "{:?}", self.keys(prefix).await);
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.gateway.stop();
    }
}

/// Standard base64, which has no place among the crate's needs but here.
fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for group in text.as_bytes().chunks(3) {
        let bits = (0..3).fold(0_usize, |all, at| {
            all << 8 | usize::from(group.get(at).copied().unwrap_or(0))
        });
        for at in 0..4 {
            let digit = DIGITS[bits >> (18 - 6 * at) & 63];
            out.push(if at <= group.len() {
                char::from(digit)
            } else {
                '='
            });
        }
    }
    out
}

#[tokio::test]
async fn json_is_read_and_written_as_etcd_does() {
    let port = Port::open().await;
    let put = json!({"key": base64("a"), "value": base64("1"), "nobody": "knows"});
    assert_eq!(port.call("/v3/kv/put", put).await, json!({}));
    let found = port
        .call("/v3beta/kv/range", json!({"key": base64("a")}))
        .await;
    assert_eq!(found["count"], "1");
    assert_eq!(found["kvs"][0]["version"], "1");
    assert!(found.get("more").is_none() && found["kvs"][0].get("lease").is_none());

    port.grant(7).await;
    assert_eq!(
        port.call("/v3/kv/lease/leases", json!({})).await,
        json!({"leases": [{"ID": "7"}]})
    );
    let left = port.call("/v3/lease/timetolive", json!({"ID": "8"})).await;
    assert_eq!(left, json!({"ID": "8", "TTL": "-1"}));
    // A stream of one.
    let alive = port.call("/v3/lease/keepalive", json!({"ID": 7})).await;
    assert_eq!(alive["result"]["TTL"], "60");
}

#[tokio::test]
async fn refusals_have_their_status() {
    let port = Port::open().await;
    let check = async |path: &str, body: &str, status: u16, code: i64, message: &str| {
        let (got, answer) = port.say(path, body.to_owned()).await;
        assert_eq!(got, status, "{path} {body}: {answer}");
        assert_eq!(answer["code"], code, "{path} {body}");
        let text = answer["error"].as_str().unwrap_or("");
        assert!(text.starts_with(message), "{path} {body}: {text}");
        assert_eq!(answer["error"], answer["message"]);
    };
    check(
        "/v3/kv/range",
        "{}",
        400,
        3,
        "etcdserver: key is not provided",
    )
    .await;
    check(
        "/v3/kv/range",
        "",
        400,
        3,
        "etcdserver: key is not provided",
    )
    .await;
    check("/v3/kv/range", "{\"key\":", 400, 3, "unexpected EOF").await;
    check("/v3/kv/range", "no", 400, 3, "proto: ").await;
    check("/v3/kv/range", r#"{"key":7}"#, 400, 3, "proto: ").await;
    check("/v3/watch", r#"{"create_request":7}"#, 400, 3, "proto: ").await;
    check("/v3/kv/txn", &"[".repeat(100_000), 400, 3, "proto: ").await;
    check(
        "/v3/kv/txn",
        &format!("{{\"success\":{}", "[".repeat(100_000)),
        400,
        3,
        "unexpected EOF",
    )
    .await;
    check(
        "/v3/lease/revoke",
        r#"{"ID":9}"#,
        404,
        5,
        "etcdserver: requested lease not found",
    )
    .await;
    check(
        "/v3/kv/compaction",
        r#"{"revision":"9223372036854775807"}"#,
        400,
        11,
        "etcdserver: mvcc: required revision is a future revision",
    )
    .await;
    let text = "etcdserver: user name is empty";
    check("/v3/auth/user/add", "{}", 400, 3, text).await;
    check("/v3/kv/nothing", "{}", 404, 5, "Not Found").await;
    let big = json!({"key": base64("k"), "value": base64(&"v".repeat(2_000_000))});
    let text = "etcdserver: request is too large";
    check("/v3/kv/put", &big.to_string(), 400, 3, text).await;
    let bigger = json!({"key": base64("k"), "value": base64(&"v".repeat(2_200_000))});
    let text = "grpc: received message larger than max";
    check("/v3/kv/put", &bigger.to_string(), 429, 8, text).await;
    let endless = format!("{{\"key\":\"{}\"}}", "A".repeat(5_000_000));
    check("/v3/kv/put", &endless, 429, 8, "the body is larger").await;

    let got = port
        .client
        .get(format!("{}/v3/kv/range", port.url))
        .send()
        .await;
    assert_eq!(got.expect("an answer").status(), 405);
    for path in ["/v3alpha/kv/range", "/v3", "/v2/keys"] {
        assert_eq!(port.send(path, "{}").await.status(), 404, "{path}");
    }
}

#[tokio::test]
async fn a_watch_is_a_line_for_each_answer() {
    let port = Port::open().await;
    let watch = json!({"create_request": {"key": base64("a"), "prev_kv": true}});
    let mut lines = port.send("/v3/watch", watch.to_string()).await;
    let mut next = async || {
        let line = tokio::time::timeout(PATIENCE, lines.chunk()).await;
        let line = line.expect("in time").expect("a chunk").expect("a line");
        assert!(line.ends_with(b"}\n"), "{line:?}");
        serde_json::from_slice::<Value>(&line).expect("JSON")["result"].clone()
    };
    let created = next().await;
    assert_eq!(created["created"], true);
    // Ids begin with 0, which is not written.
    assert!(created.get("watch_id").is_none());
    port.call("/v3/kv/put", json!({"key": base64("a")})).await;
    let event = next().await["events"][0].clone();
    // So is the kind of a put.
    assert!(event.get("type").is_none());
    assert_eq!(event["kv"]["key"], base64("a"));
    port.call("/v3/kv/deleterange", json!({"key": base64("a")}))
        .await;
    assert_eq!(next().await["events"][0]["type"], "DELETE");
}

#[tokio::test]
async fn messages_are_read_as_they_come() {
    let port = Port::open().await;
    let (to_body, body) = tokio::sync::mpsc::channel::<Result<String, std::io::Error>>(4);
    let body = tokio_stream::wrappers::ReceiverStream::new(body);
    let watch = json!({"create_request": {"key": base64("a")}}).to_string();
    let (head, tail) = watch.split_at(9);
    to_body.send(Ok(head.into())).await.expect("read");
    to_body.send(Ok(tail.into())).await.expect("read");
    let mut lines = port
        .send("/v3/watch", reqwest::Body::wrap_stream(body))
        .await;
    let created = lines.chunk().await.expect("a chunk").expect("a line");
    assert!(String::from_utf8_lossy(&created).contains("created"));
    let cancel = json!({"cancel_request": {"watch_id": "0"}}).to_string();
    to_body.send(Ok(cancel)).await.expect("read");
    let line = tokio::time::timeout(PATIENCE, lines.chunk()).await;
    let line = line.expect("in time").expect("a chunk").expect("a line");
    assert!(
        String::from_utf8_lossy(&line).contains("canceled"),
        "{line:?}"
    );
}

#[tokio::test]
async fn a_lock_passes_in_the_order_of_creation() {
    let port = Port::open().await;
    for id in [10, 11, 12] {
        port.grant(id).await;
    }
    let lock = |lease: i64| json!({"name": base64("n"), "lease": lease});
    assert_eq!(
        port.call("/v3/lock/lock", lock(10)).await["key"],
        base64("n/a")
    );
    // Whoever has it has it still.
    assert_eq!(
        port.call("/v3/lock/lock", lock(10)).await["key"],
        base64("n/a")
    );

    let (second, third) = tokio::join!(
        async {
            let got = port.call("/v3/lock/lock", lock(11)).await;
            assert_eq!(port.keys("n/").await[0], got["key"], "it is the oldest");
            port.call("/v3/lease/revoke", json!({"ID": 11})).await;
            got
        },
        async {
            port.until_keys("n/", &["n/a", "n/b"]).await;
            let (third, ()) = tokio::join!(port.call("/v3/lock/lock", lock(12)), async {
                port.until_keys("n/", &["n/a", "n/b", "n/c"]).await;
                port.call("/v3/lock/unlock", json!({"key": base64("n/a")}))
                    .await;
            });
            third
        }
    );
    assert_eq!(
        (&second["key"], &third["key"]),
        (&json!(base64("n/b")), &json!(base64("n/c")))
    );
    assert_eq!(port.keys("n/").await, [base64("n/c")]);

    // No lease named: one of 60 s is granted.
    let got = port
        .call("/v3/lock/lock", json!({"name": base64("m")}))
        .await;
    assert!(got["key"].as_str().is_some_and(|key| key.starts_with("bS")));
    let unknown = port.refusal("/v3/lock/lock", lock(99)).await;
    assert_eq!(
        unknown,
        (500, "etcdserver: requested lease not found".into())
    );
    let nothing = port.refusal("/v3/lock/unlock", json!({})).await;
    assert_eq!(nothing, (500, "etcdserver: key is not provided".into()));
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_the_queue() {
    let port = Port::open().await;
    for id in [10, 11] {
        port.grant(id).await;
    }
    for (path, name) in [("/v3/lock/lock", "l"), ("/v3/election/campaign", "e")] {
        let enter = |lease: i64| json!({"name": base64(name), "lease": lease});
        let keys = [format!("{name}/a"), format!("{name}/b")];
        let prefix = format!("{name}/");
        port.call(path, enter(10)).await;
        let waiting = tokio::time::timeout(Duration::from_millis(300), port.call(path, enter(11)));
        let both = [keys[0].as_str(), keys[1].as_str()];
        let (waited, ()) = tokio::join!(waiting, port.until_keys(&prefix, &both));
        assert!(waited.is_err(), "{path}: {waited:?}");
        port.until_keys(&prefix, &[&keys[0]]).await;
    }
}

#[tokio::test]
async fn who_waits_learns_that_the_lease_is_over() {
    let port = Port::open().await;
    for id in [10, 11] {
        port.grant(id).await;
    }
    let lock = |lease: i64| json!({"name": base64("n"), "lease": lease});
    port.call("/v3/lock/lock", lock(10)).await;
    let (refusal, ()) = tokio::join!(port.refusal("/v3/lock/lock", lock(11)), async {
        port.until_keys("n/", &["n/a", "n/b"]).await;
        port.call("/v3/lease/revoke", json!({"ID": 11})).await;
        port.call("/v3/lease/revoke", json!({"ID": 10})).await;
    });
    assert_eq!(refusal, (500, "mutex: session is expired".into()));
}

#[tokio::test]
async fn a_gateway_that_stops_leaves_the_place_in_the_queue() {
    let port = Port::open().await;
    for id in [10, 11] {
        port.grant(id).await;
    }
    let lock = |lease: i64| json!({"name": base64("n"), "lease": lease});
    port.call("/v3/lock/lock", lock(10)).await;
    let (refusal, ()) = tokio::join!(port.refusal("/v3/lock/lock", lock(11)), async {
        port.until_keys("n/", &["n/a", "n/b"]).await;
        port.gateway.stop();
    });
    assert_eq!(refusal, (503, "etcdserver: server stopped".into()));
    let kept = port
        .gateway
        .with(|core| core.keys().get(b"n/b").is_some())
        .0;
    assert!(kept);
}

#[tokio::test]
async fn an_election_from_campaign_to_resignation() {
    let port = Port::open().await;
    for id in [10, 11] {
        port.grant(id).await;
    }
    let name = json!({"name": base64("e")});
    let no_leader = port.refusal("/v3/election/leader", name.clone()).await;
    assert_eq!(no_leader, (500, "election: no leader".into()));
    // Its first line waits for a leader.
    let watching = tokio::spawn({
        let request = port
            .client
            .post(format!("{}/v3/election/observe", port.url));
        request.body(name.to_string()).send()
    });

    let campaign = |lease: i64, value: &str| json!({"name": base64("e"), "lease": lease, "value": base64(value)});
    let first = port
        .call("/v3/election/campaign", campaign(10, "one"))
        .await["leader"]
        .clone();
    assert_eq!(
        (&first["name"], &first["key"], &first["lease"]),
        (&json!(base64("e")), &json!(base64("e/a")), &json!("10"))
    );
    let mut seen = watching.await.expect("a task").expect("an answer");
    let mut next = async || {
        let line = tokio::time::timeout(PATIENCE, seen.chunk()).await;
        let line = line.expect("in time").expect("a chunk").expect("a line");
        let line: Value = serde_json::from_slice(&line).expect("JSON");
        assert!(line["result"]["header"]["revision"].is_string(), "{line}");
        line["result"]["kv"]["value"].clone()
    };
    assert_eq!(next().await, base64("one"));
    let leader = port.call("/v3/election/leader", name.clone()).await;
    assert_eq!(leader["kv"]["create_revision"], first["rev"]);

    // Campaigning again proclaims another value.
    let again = port
        .call("/v3/election/campaign", campaign(10, "uno"))
        .await;
    assert_eq!(again["leader"]["rev"], first["rev"]);
    assert_eq!(next().await, base64("uno"));
    let proclaim = json!({"leader": first, "value": base64("eins")});
    port.call("/v3/election/proclaim", proclaim).await;
    assert_eq!(next().await, base64("eins"));

    let (second, ()) = tokio::join!(
        port.call("/v3/election/campaign", campaign(11, "two")),
        async {
            port.until_keys("e/", &["e/a", "e/b"]).await;
            port.call("/v3/election/resign", json!({"leader": first}))
                .await;
        }
    );
    assert_eq!(second["leader"]["key"], base64("e/b"));
    assert_eq!(next().await, base64("two"));

    let late = json!({"leader": first, "value": base64("x")});
    let refused = port.refusal("/v3/election/proclaim", late).await;
    assert_eq!(refused, (500, "election: not leader".into()));
    // To resign twice is no fault.
    port.call("/v3/election/resign", json!({"leader": first}))
        .await;
    for path in ["/v3/election/proclaim", "/v3/election/resign"] {
        let refused = port.refusal(path, json!({})).await;
        assert_eq!(refused, (500, "\"leader\" field must be provided".into()));
    }
}

#[tokio::test]
async fn no_lock_among_registrations() {
    let port = Port::open().await;
    let name = json!({"name": base64("/microservices/orders")});
    for path in ["/v3/lock/lock", "/v3/election/campaign"] {
        let (status, message) = port.refusal(path, name.clone()).await;
        assert_eq!(status, 400);
        assert!(message.contains("lies among registrations"), "{message}");
    }
}

/// A call with a token.
async fn as_user(port: &Port, token: &str, path: &str, body: Value) -> (u16, Value) {
    let request = port.client.post(format!("{}{path}", port.url));
    let request = request
        .header("Authorization", token)
        .body(body.to_string());
    let sent = tokio::time::timeout(PATIENCE, request.send()).await;
    let answer = sent.expect("an answer in time").expect("an answer");
    let status = answer.status().as_u16();
    (status, answer.json().await.expect("JSON"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_answer_is_of_the_release_shown() {
    let port = Port::open().await;
    port.grant(7).await;
    let put = json!({"key": base64("k/1"), "value": base64("v"), "lease": 7});
    port.call("/v3/kv/put", put).await;
    let asked =
        json!({"key": base64("k/"), "range_end": base64("k0"), "keys_only": true}).to_string();
    let lease = async || {
        let (_, found) = port.say("/v3/kv/range", asked.clone()).await;
        found["kvs"][0]["lease"].as_str().map(str::to_owned)
    };
    let shown = |minor| {
        let release = causeway_engine::key_space::Release::new(3, minor);
        port.gateway.with(|core| core.show_release(release));
    };
    for (minor, want) in [(5, Some("7")), (7, None), (5, Some("7"))] {
        shown(minor);
        for _ in 0..2 {
            assert_eq!(lease().await.as_deref(), want, "3.{minor}");
        }
    }
}

#[tokio::test]
async fn users_are_asked_for_once_there_are_some() {
    let port = Port::open().await;
    let off = port.call("/v3/auth/status", json!({})).await;
    assert_eq!(off, json!({"authRevision": "1"}));
    for (path, body) in [
        ("user/add", json!({"name": "root", "password": "secret"})),
        ("user/grant", json!({"user": "root", "role": "root"})),
        ("user/add", json!({"name": "joe", "password": "letters"})),
        ("role/add", json!({"name": "r"})),
        (
            "role/grant",
            json!({"name": "r", "perm": {"permType": "READ", "key": base64("a"), "range_end": base64("b")}}),
        ),
        ("user/grant", json!({"user": "joe", "role": "r"})),
        ("enable", json!({})),
    ] {
        port.call(&format!("/v3/auth/{path}"), body).await;
    }
    let too_long = json!({"name": "x", "password": "x".repeat(73)});
    let anonymous = [
        ("/v3/kv/range", json!({"key": base64("a")})),
        ("/v3/kv/put", json!({"key": base64("a")})),
        ("/v3/lease/grant", json!({"TTL": 60})),
        ("/v3/lease/leases", json!({})),
        ("/v3/lease/timetolive", json!({"ID": 1})),
        ("/v3/kv/compaction", json!({"revision": 1})),
        ("/v3/cluster/member/list", json!({})),
        ("/v3/cluster/member/remove", json!({"ID": 1})),
        ("/v3/maintenance/status", json!({})),
        ("/v3/maintenance/alarm", json!({})),
        ("/v3/maintenance/hash", json!({})),
        ("/v3/auth/user/list", json!({})),
        ("/v3/auth/user/add", too_long.clone()),
    ];
    for (path, body) in anonymous {
        let refused = port.refusal(path, body).await;
        assert_eq!(
            refused,
            (400, "etcdserver: user name is empty".into()),
            "{path}"
        );
    }
    let open = port.call("/v3/auth/status", json!({})).await;
    assert_eq!(open["enabled"], true);

    let login = async |name: &str, password: &str| {
        let body = json!({"name": name, "password": password});
        let answer = port.call("/v3/auth/authenticate", body).await;
        answer["token"].as_str().expect("a token").to_owned()
    };
    let (root, joe) = (login("root", "secret").await, login("joe", "letters").await);
    assert_ne!(root, joe);
    let check = async |token: &str, path: &str, body: Value, status: u16, error: &str| {
        let (got, answer) = as_user(&port, token, path, body.clone()).await;
        assert_eq!(got, status, "{path} {body}: {answer}");
        assert_eq!(
            answer["error"].as_str().unwrap_or(""),
            error,
            "{path} {body}"
        );
    };
    let (denied, invalid) = (
        "etcdserver: permission denied",
        "etcdserver: invalid auth token",
    );
    let key = json!({"key": base64("a")});
    check(&joe, "/v3/kv/range", key.clone(), 200, "").await;
    check(&joe, "/v3/kv/put", key.clone(), 403, denied).await;
    check(
        &joe,
        "/v3/kv/range",
        json!({"key": base64("b")}),
        403,
        denied,
    )
    .await;
    check(&root, "/v3/kv/put", key.clone(), 200, "").await;
    check("none.1", "/v3/kv/range", key.clone(), 401, invalid).await;
    let words = "bcrypt: password length exceeds 72 bytes";
    check(&root, "/v3/auth/user/add", too_long, 500, words).await;

    // A watch is answered as canceled, a stream of keep-alives ends.
    let watch = json!({"create_request": {"key": base64("b")}}).to_string();
    let request = port.client.post(format!("{}/v3/watch", port.url));
    let request = request.header("Authorization", &joe).body(watch);
    let first = async { request.send().await?.chunk().await };
    let first = tokio::time::timeout(PATIENCE, first)
        .await
        .expect("in time");
    let first = first.expect("an answer").expect("a line");
    let first: Value = serde_json::from_slice(&first).expect("JSON");
    let result = &first["result"];
    assert_eq!(
        (&result["watch_id"], &result["canceled"]),
        (&json!("-1"), &json!(true))
    );
    let reason = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
    assert_eq!(result["cancel_reason"], reason);
    let granted = as_user(&port, &root, "/v3/lease/grant", json!({"TTL": 60, "ID": 7})).await;
    assert_eq!(granted.0, 200);
    let leased = json!({"key": base64("b"), "lease": 7});
    check(&root, "/v3/kv/put", leased, 200, "").await;
    let (status, ended) = as_user(&port, &joe, "/v3/lease/keepalive", json!({"ID": 7})).await;
    assert_eq!(
        (status, &ended["error"]["message"]),
        (403, &json!(denied)),
        "{ended}"
    );
}
