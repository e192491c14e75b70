//! Maintenance and the HTTP routes of the embedded store, beside real etcds.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use causeway_compat_tests::clients::output;
use causeway_compat_tests::protocol::Protocol;
use causeway_compat_tests::raw::etcd as raw;
use causeway_compat_tests::target::{self, Etcd, EtcdRelease, Options, http};
use causeway_compat_tests::{Gateway, Settings, Work, until};
use prost_reflect::DynamicMessage;
use prost_reflect::prost::Message as _;
use serde_json::{Value, json};

const RELEASES: [EtcdRelease; 2] = [EtcdRelease::V3_4, EtcdRelease::V3_7];

/// A gateway without a legacy etcd that shows a version.
fn showing(work: &Work, version: &str) -> Result<Gateway> {
    let settings = Settings {
        extra: format!("[etcd]\nversion = \"{version}\"\n"),
        ..Settings::default()
    };
    Gateway::start(work, &format!("gateway-{version}"), &settings)
}

fn port(address: &str) -> Result<u16> {
    let (_, port) = address.rsplit_once(':').context("a port")?;
    Ok(port.parse()?)
}

fn run(release: EtcdRelease, endpoint: &str, args: &[&str]) -> Result<Value> {
    let mut command = release.etcdctl(endpoint)?;
    let text = output(command.args(args).args(["-w", "json"]))?;
    serde_json::from_str(&text).with_context(|| text.clone())
}

/// A POST of the JSON gateway: status and body, without what releases do differently and the numbers of headers.
fn call(port: u16, path: &str, body: &Value) -> Result<(u16, Value)> {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|name, _| name != "header" && name != "error");
                fields.values_mut().for_each(strip);
            }
            Value::Array(values) => values.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let (status, text) = http(port, "POST", path, &body.to_string())?;
    let mut answer: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
    strip(&mut answer);
    // FailedPrecondition, in 3.4.
    Ok((if status == 412 { 400 } else { status }, answer))
}

/// Everything that a client can see of an etcd's keys: what is there, what was there, and the leases.
fn seen(endpoint: &str, revisions: &[i64]) -> Result<Value> {
    let all = |revision: Option<i64>| -> Result<Value> {
        let mut args = vec!["get".to_string(), String::new(), "--from-key".into()];
        args.extend(revision.map(|revision| format!("--rev={revision}")));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        match run(EtcdRelease::V3_4, endpoint, &args) {
            Ok(answer) => Ok(answer["kvs"].clone()),
            Err(error) if format!("{error:#}").contains("has been compacted") => {
                Ok("compacted".into())
            }
            Err(error) => Err(error),
        }
    };
    let then: Vec<Value> = revisions
        .iter()
        .map(|revision| all(Some(*revision)))
        .collect::<Result<_>>()?;
    let leases = run(EtcdRelease::V3_4, endpoint, &["lease", "list"])?;
    let mut ids: Vec<i64> = leases["leases"]
        .as_array()
        .context("leases")?
        .iter()
        .filter_map(|lease| lease["id"].as_i64())
        .collect();
    ids.sort_unstable();
    let leases: Vec<Value> = ids
        .iter()
        .map(|id| {
            let id = format!("{id:x}");
            let args = ["lease", "timetolive", &id, "--keys"];
            let lease = run(EtcdRelease::V3_4, endpoint, &args)?;
            Ok(json!([lease["id"], lease["granted-ttl"], lease["keys"]]))
        })
        .collect::<Result<_>>()?;
    Ok(json!({"now": all(None)?, "then": then, "leases": leases}))
}

fn revision(endpoint: &str) -> Result<i64> {
    let answer = run(EtcdRelease::V3_4, endpoint, &["get", "nothing"])?;
    answer["header"]["revision"].as_i64().context("a revision")
}

fn hash(endpoint: &str, revision: i64) -> Result<Value> {
    let args = ["endpoint", "hashkv", "--rev", &revision.to_string()];
    let answer = run(EtcdRelease::V3_4, endpoint, &args)?;
    let hash = &answer[0]["HashKV"];
    Ok(json!([hash["hash"], hash["compact_revision"]]))
}

fn saved(work: &Work, name: &str, release: EtcdRelease, endpoint: &str) -> Result<PathBuf> {
    let file = work.path(&format!("{name}.db"));
    let mut save = release.etcdctl(endpoint)?;
    output(save.args(["snapshot", "save"]).arg(&file))?;
    Ok(file)
}

/// Keys that the tools count in a snapshot; they check every page of it first.
fn counted(release: EtcdRelease, file: &Path) -> Result<(i64, i64)> {
    let text = output(release.snapshots("status")?.arg(file).args(["-w", "json"]))?;
    let status: Value = serde_json::from_str(&text)?;
    let number = |name: &str| status[name].as_i64().with_context(|| text.clone());
    Ok((number("revision")?, number("totalKey")?))
}

#[test]
fn a_snapshot_is_the_way_back_to_a_real_etcd() {
    Work::scenario("snapshot", |work| {
        let gateway = Gateway::start(work, "gateway", &Settings::default())?;
        let endpoint = gateway.target().etcd;
        let put = |args: &[&str]| {
            let args = [&["put"], args].concat();
            run(EtcdRelease::V3_4, &endpoint, &args).map(drop)
        };
        let begin = revision(&endpoint)?;
        let empty = saved(work, "empty", EtcdRelease::V3_7, &endpoint)?;
        ensure!(counted(EtcdRelease::V3_7, &empty)?.0 == begin);

        let lease = run(EtcdRelease::V3_4, &endpoint, &["lease", "grant", "3600"])?;
        let lease = format!("{:x}", lease["ID"].as_i64().context("an id")?);
        for at in 0..300 {
            // Some of them are larger than a page.
            let value = "x".repeat(if at % 50 == 0 { 20_000 } else { at });
            put(&[&format!("many/{at}"), &value])?;
        }
        put(&["leased", "1", &format!("--lease={lease}")])?;
        put(&["changed", "1"])?;
        run(EtcdRelease::V3_4, &endpoint, &["del", "many/7", "--prefix"])?;
        put(&["changed", "2"])?;
        let compacted = revision(&endpoint)?;
        output(
            EtcdRelease::V3_4
                .etcdctl(&endpoint)?
                .args(["compaction", &compacted.to_string()]),
        )?;
        put(&["changed", "3"])?;
        put(&["new", "1"])?;
        run(EtcdRelease::V3_4, &endpoint, &["del", "new"])?;

        let last = revision(&endpoint)?;
        let revisions: Vec<i64> = (compacted - 1..=last).collect();
        let here = seen(&endpoint, &revisions)?;
        // 3.4 gives none of the lowest revision itself.
        let hashes = |endpoint: &str| -> Result<Vec<Value>> {
            (compacted + 1..=last)
                .map(|at| hash(endpoint, at))
                .collect()
        };
        let hashed = hashes(&endpoint)?;
        for (saver, restorer) in [(0, 1), (1, 0)].map(|(a, b)| (RELEASES[a], RELEASES[b])) {
            let file = saved(work, &format!("by-{saver:?}"), saver, &endpoint)?;
            let keys = here["now"].as_array().map_or(0, Vec::len) as i64;
            for release in RELEASES {
                let (revision, count) = counted(release, &file)?;
                // 3.4 counts everything in the file.
                let right = count == keys || release == EtcdRelease::V3_4;
                ensure!(revision == last && right, "{release:?}: {revision} {count}");
            }
            let name = format!("restored-{restorer:?}");
            let etcd = Etcd::restored(work, &name, restorer, &file)?;
            let there = seen(&etcd.address(), &revisions)?;
            ensure!(there == here, "{restorer:?}\n{there:#}\n{here:#}");
            let there = hashes(&etcd.address())?;
            ensure!(there == hashed, "{restorer:?}: {there:?} is not {hashed:?}");
            ensure!(revision(&etcd.address())? == last, "the revision goes on");
            run(EtcdRelease::V3_4, &etcd.address(), &["put", "after", "1"])?;
            ensure!(revision(&etcd.address())? == last + 1);
        }
        let etcd = Etcd::restored(work, "restored-empty", EtcdRelease::V3_7, &empty)?;
        ensure!(revision(&etcd.address())? == begin, "numbers do not fall");
        Ok(())
    });
}

/// A restored etcd must not let in whom this one kept out.
#[test]
fn users_go_along_with_a_snapshot() {
    Work::scenario("snapshot-users", |work| {
        const ROOT: &str = "--user=root:secret-of-root";
        const READER: &str = "--user=reader:secret-of-reader";
        let gateway = Gateway::start(work, "gateway", &Settings::default())?;
        let endpoint = gateway.target().etcd;
        let etcdctl = |endpoint: &str, args: &[&str]| {
            let mut command = EtcdRelease::V3_4.etcdctl(endpoint)?;
            output(command.args(args))
        };
        for args in [
            &["put", "a/1", "here"][..],
            &["user", "add", "root:secret-of-root"],
            &["user", "grant-role", "root", "root"],
            &["role", "add", "letters"],
            &["role", "grant-permission", "letters", "read", "a/", "a0"],
            &["user", "add", "reader:secret-of-reader"],
            &["user", "grant-role", "reader", "letters"],
            &["user", "add", "certified", "--no-password"],
            &["auth", "enable"],
        ] {
            etcdctl(&endpoint, args)?;
        }
        let file = work.path("users.db");
        let mut save = EtcdRelease::V3_7.etcdctl(&endpoint)?;
        output(save.args([ROOT, "snapshot", "save"]).arg(&file))?;
        for release in RELEASES {
            let etcd = Etcd::restored(work, &format!("users-{release:?}"), release, &file)?;
            let address = etcd.address();
            for endpoint in [&endpoint, &address] {
                let told = |args: &[&str]| match etcdctl(endpoint, args) {
                    Ok(text) => text,
                    Err(error) => format!("{error:#}"),
                };
                for (args, want) in [
                    (&["get", "a/1"][..], "user name is empty"),
                    (&[READER, "get", "a/1"], "a/1\nhere\n"),
                    (&[READER, "get", "b"], "permission denied"),
                    (&[READER, "put", "a/1", "x"], "permission denied"),
                    (
                        &["--user=reader:wrong", "get", "a/1"],
                        "authentication failed",
                    ),
                    (&[ROOT, "get", "b"], ""),
                    (&[ROOT, "user", "list"], "certified\nreader\nroot\n"),
                    (&[ROOT, "role", "list"], "letters\n"),
                ] {
                    let got = told(args);
                    ensure!(
                        got.contains(want),
                        "{release:?} {endpoint}: {args:?}: {got}"
                    );
                }
            }
        }
        Ok(())
    });
}

#[test]
fn http_routes_answer_as_a_real_etcd_does() {
    for kind in ["etcd-3.4", "etcd-3.7"] {
        Work::scenario(&format!("http-{kind}"), |work| {
            let real = target::start(work, kind, &Options::default())?;
            let real = port(&real.one_address(Protocol::Etcd)?)?;
            let (_, version) = http(real, "GET", "/version", "")?;
            let version: Value = serde_json::from_str(&version)?;
            let version = version["etcdserver"].as_str().context("a version")?;
            let gateway = showing(work, version)?;
            let here = port(&gateway.target().etcd)?;
            let same = |method: &str, path: &str| -> Result<()> {
                let ask = |port| -> Result<(u16, Vec<String>)> {
                    let (status, body) = http(port, method, path, "")?;
                    // Go tells checks in any order.
                    let mut lines: Vec<String> = body.lines().map(str::to_owned).collect();
                    lines.sort();
                    Ok((status, lines))
                };
                let (want, got) = (ask(real)?, ask(here)?);
                ensure!(got == want, "{method} {path}: {got:?}, not {want:?}");
                Ok(())
            };
            let everywhere = || -> Result<()> {
                for path in [
                    "/version",
                    "/health",
                    "/health?serializable=true",
                    "/health?exclude=NOSPACE",
                    "/health?exclude=NOSPACE&exclude=CORRUPT",
                    "/livez",
                    "/livez?verbose",
                    "/livez/serializable_read",
                    "/livez/nope",
                    "/readyz",
                    "/readyz?verbose",
                    "/readyz?verbose&exclude=data_corruption",
                    "/readyz?exclude=nope",
                    "/readyz/data_corruption",
                    "/readyz/linearizable_read?verbose",
                    "/readyz/non_learner",
                    "/v2/keys/a",
                    "/v3alpha/kv/range",
                    "/nope",
                ] {
                    same("GET", path)?;
                }
                for path in ["/version", "/health", "/livez", "/readyz/non_learner"] {
                    same("POST", path)?;
                }
                Ok(())
            };
            everywhere()?;
            let maintenance = |path: &str, body: Value| -> Result<()> {
                let path = format!("/v3/{path}");
                let (want, got) = (call(real, &path, &body)?, call(here, &path, &body)?);
                ensure!(got == want, "{path} {body}: {got:?}, not {want:?}");
                Ok(())
            };
            let alarm = |action: &str, alarm: &str| {
                let body = json!({"action": action, "memberID": "7", "alarm": alarm});
                maintenance("maintenance/alarm", body)
            };
            let refused = || -> Result<()> {
                for (path, body) in [
                    ("kv/put", json!({"key": "YQ==", "value": "Yg=="})),
                    ("kv/put", json!({"value": "Yg=="})),
                    ("kv/put", json!({"key": "YQ==", "lease": "77"})),
                    ("lease/grant", json!({"TTL": "60", "ID": "5"})),
                    ("lease/revoke", json!({"ID": "5"})),
                    ("kv/range", json!({"key": "eg=="})),
                    ("kv/deleterange", json!({"key": "eg=="})),
                    (
                        "kv/txn",
                        json!({"success": [{"request_put": {"key": "YQ=="}}]}),
                    ),
                    (
                        "kv/txn",
                        json!({"failure": [{"request_put": {"key": "YQ=="}}]}),
                    ),
                    ("kv/compaction", json!({"revision": "-1"})),
                ] {
                    maintenance(path, body)?;
                }
                Ok(())
            };
            for kind in ["NOSPACE", "CORRUPT"] {
                alarm("GET", "NONE")?;
                alarm("DEACTIVATE", kind)?;
                alarm("ACTIVATE", kind)?;
                alarm("ACTIVATE", kind)?;
                alarm("GET", "NONE")?;
                everywhere()?;
                refused()?;
                alarm("DEACTIVATE", kind)?;
                everywhere()?;
            }
            refused()?;
            maintenance("maintenance/transfer-leadership", json!({"targetID": "5"}))?;
            maintenance("maintenance/defragment", json!({}))?;
            if kind == "etcd-3.7" {
                for version in ["x", "", "3", "3.7", "3.5", "3.6", "3.6.4", "v3.6.1"] {
                    let body = json!({"action": "VALIDATE", "version": version});
                    maintenance("maintenance/downgrade", body)?;
                }
                maintenance("maintenance/downgrade", json!({"action": "CANCEL"}))?;
                maintenance("maintenance/downgrade", json!({"action": 7}))?;
                let enable = json!({"action": "ENABLE", "version": "3.6"});
                maintenance("maintenance/downgrade", enable)?;
                // etcd's cluster gets there within some seconds.
                until(Duration::from_secs(20), "the downgrade is shown", || {
                    same("GET", "/version")?;
                    let validate = json!({"action": "VALIDATE", "version": "3.5"});
                    maintenance("maintenance/downgrade", validate)
                })?;
                let cancel = json!({"action": "CANCEL"});
                maintenance("maintenance/downgrade", cancel)?;
            }
            Ok(())
        });
    }
}

#[test]
fn alarms_outlive_a_restart() {
    Work::scenario("alarm-restart", |work| {
        let mut gateway = Gateway::start(work, "gateway", &Settings::default())?;
        let raise = json!({"action": "ACTIVATE", "memberID": "7", "alarm": "NOSPACE"});
        let etcd = port(&gateway.target().etcd)?;
        call(etcd, "/v3/maintenance/alarm", &raise)?;
        gateway.kill();
        gateway.restart()?;
        let etcd = port(&gateway.target().etcd)?;
        let (status, body) = http(etcd, "GET", "/health", "")?;
        ensure!(status == 503 && body.contains("NOSPACE"), "{status} {body}");
        let told = output(
            EtcdRelease::V3_4
                .etcdctl(&gateway.target().etcd)?
                .args(["alarm", "disarm"]),
        )?;
        ensure!(told.contains("memberID:7 alarm:NOSPACE"), "{told}");
        let (status, body) = http(etcd, "GET", "/health", "")?;
        ensure!(status == 200, "{status} {body}");
        Ok(())
    });
}

/// What the usual dashboard and alerts for etcd read.
#[test]
fn dashboards_find_their_metrics() {
    Work::scenario("etcd-metrics", |work| {
        let gateway = Gateway::start(work, "gateway", &Settings::default())?;
        let etcd = port(&gateway.target().etcd)?;
        call(etcd, "/v3/kv/put", &json!({"key": "YQ=="}))?;
        let (status, text) = http(etcd, "GET", "/metrics", "")?;
        ensure!(status == 200, "{status} {text}");
        for name in [
            "etcd_server_has_leader 1",
            "etcd_server_leader_changes_seen_total 0",
            "etcd_server_proposals_committed_total 1",
            "etcd_server_proposals_pending 0",
            "etcd_server_version{server_version=\"3.7.3\"} 1",
            "etcd_cluster_version{cluster_version=\"3.7\"} 1",
            "etcd_mvcc_db_total_size_in_bytes ",
            "etcd_mvcc_db_total_size_in_use_in_bytes ",
            "etcd_server_quota_backend_bytes -1",
            "etcd_mvcc_put_total 1",
            "etcd_debugging_mvcc_keys_total 1",
            "etcd_network_client_grpc_received_bytes_total ",
            "etcd_network_client_grpc_sent_bytes_total ",
            "grpc_server_started_total{grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} 1",
            "grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} 1",
            "process_resident_memory_bytes ",
            "process_open_fds ",
        ] {
            ensure!(text.contains(&format!("\n{name}")), "{name} in\n{text}");
        }
        Ok(())
    });
}

/// The parts of a range, or what it was refused with: keys, whether there is a header, and the whole of the rest.
fn parts(address: &str, request: &Value) -> Result<Vec<String>> {
    const METHOD: &str = "/etcdserverpb.KV/RangeStream";
    let method = raw::method(METHOD).context(METHOD)?;
    let request = DynamicMessage::deserialize(method.input(), request)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let client = raw::Client::connect(address).await?;
        let mut stream = client
            .stream(METHOD, &[])
            .map_err(|failure| anyhow!("{failure:?}"))?;
        stream.send(request.encode_to_vec().into());
        stream.half_close();
        let mut parts = Vec::new();
        while let Some(next) = tokio::time::timeout(Duration::from_secs(20), stream.next()).await? {
            parts.push(match next {
                Ok(message) => {
                    let message = DynamicMessage::decode(method.output(), message)?;
                    let message = serde_json::to_value(message)?;
                    let part = &message["rangeResponse"];
                    let keys: Vec<&str> = part["kvs"]
                        .as_array()
                        .map(Vec::as_slice)
                        .unwrap_or_default()
                        .iter()
                        .filter_map(|kv| kv["key"].as_str())
                        .collect();
                    let header = part["header"]["revision"].is_string();
                    format!("{keys:?} {header} {} {}", part["more"], part["count"])
                }
                Err(failure) => format!("{:?}: {}", failure.code, failure.message),
            });
        }
        Ok(parts)
    })
}

#[test]
fn ranges_are_streamed_as_a_real_etcd_does() {
    Work::scenario("range-stream", |work| {
        let real = target::start(work, "etcd-3.7", &Options::default())?;
        let real = real.one_address(Protocol::Etcd)?;
        let gateway = Gateway::start(work, "gateway", &Settings::default())?;
        let here = gateway.target().etcd;
        for address in [&real, &here] {
            for at in 10..85 {
                // base64 of "a10" and so on; values of 64 KiB make parts that stop growing.
                let key = base64(&format!("a{at}"));
                let value = base64(&"v".repeat(65_536));
                let (status, answer) = call(
                    port(address)?,
                    "/v3/kv/put",
                    &json!({"key": key, "value": value}),
                )?;
                ensure!(status == 200, "{answer}");
            }
        }
        let all = |fields: Value| {
            let mut request = json!({"key": base64("a"), "rangeEnd": base64("b")});
            for (name, value) in fields.as_object().into_iter().flatten() {
                request[name] = value.clone();
            }
            request
        };
        for request in [
            all(json!({})),
            all(json!({"keysOnly": true})),
            all(json!({"limit": "30"})),
            all(json!({"limit": "75"})),
            all(json!({"limit": "5"})),
            all(json!({"limit": "-1"})),
            all(json!({"countOnly": true})),
            all(json!({"sortOrder": "ASCEND"})),
            all(json!({"sortTarget": "MOD"})),
            all(json!({"sortOrder": "DESCEND"})),
            all(json!({"sortOrder": "ASCEND", "sortTarget": "MOD"})),
            all(json!({"minModRevision": "1"})),
            all(json!({"sortOrder": 7})),
            all(json!({"revision": "9000000000000000"})),
            json!({"key": base64("nothing")}),
            json!({}),
        ] {
            let (want, got) = (parts(&real, &request)?, parts(&here, &request)?);
            ensure!(got == want, "{request}\n{got:#?}\nnot\n{want:#?}");
        }
        let older = showing(work, "3.6.9")?;
        let refused = parts(&older.target().etcd, &all(json!({})))?;
        let want = "Unimplemented: unknown method RangeStream for service etcdserverpb.KV";
        ensure!(refused == [want], "{refused:?}");
        Ok(())
    });
}

fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}
