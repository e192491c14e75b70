//! Leases and keys of clients, against a real etcd.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use causeway_backend::testing::{RealEtcd, free_port};
use causeway_backend::{
    Backend, BackendName, Certainty, ErrorKind, Event, Expect, Owner, Registration, Scope, Subtree,
};
use causeway_backend_etcd::upstream::{EtcdUpstream, IfRevision, Written};
use causeway_backend_etcd::{EtcdBackend, EtcdOptions, channel, stubs};
use causeway_wire::etcd::messages::etcdserverpb::{PutRequest, RangeRequest};
use futures::StreamExt;
use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(30);
const TTL: Duration = Duration::from_secs(20);

fn upstream(endpoints: &[String]) -> EtcdUpstream {
    EtcdUpstream::new(&EtcdOptions::new(endpoints)).expect("good addresses")
}

fn done(written: Written) -> i64 {
    match written {
        Written::Done { revision, .. } => revision,
        other => panic!("not written: {other:?}"),
    }
}

/// The value of one of etcd's own counters.
async fn metric(server: &RealEtcd, start: &str) -> u64 {
    let output = Command::new("python3")
        .arg("-c")
        .arg("import sys,urllib.request as r;print(r.urlopen(sys.argv[1]).read().decode())")
        .arg(format!("{}/metrics", server.url()))
        .output()
        .expect("python3 is there");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with(start));
    let value = line
        .and_then(|line| line.rsplit(' ').next())
        .and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("no {start} in {text}"))
}

#[tokio::test]
async fn leases_are_granted_under_chosen_ids_and_revoked() {
    let server = RealEtcd::start().await;
    let upstream = upstream(&[server.url()]);
    for id in [7587886422117001234, 1, -5] {
        let granted = upstream
            .grant(id, Duration::from_millis(19_001))
            .await
            .expect("grants");
        assert_eq!((granted.id, granted.ttl), (id, TTL));
        let taken = upstream.grant(id, TTL).await.expect_err("taken");
        assert_eq!(
            (taken.kind(), taken.certainty()),
            (ErrorKind::Conflict, Certainty::NotApplied)
        );
    }
    let chosen = upstream.grant(0, TTL).await.expect("grants");
    assert!(chosen.id > 0);

    upstream
        .put("/a".into(), "1".into(), 1, IfRevision::Any)
        .await
        .expect("puts");
    upstream
        .put("/b".into(), "1".into(), 1, IfRevision::Any)
        .await
        .expect("puts");
    let left = upstream
        .time_to_live(1, true)
        .await
        .expect("asks")
        .expect("is known");
    assert_eq!(left.granted, TTL);
    assert_eq!(left.keys, [Bytes::from("/a"), Bytes::from("/b")]);
    upstream.revoke(1).await.expect("revokes");
    assert_eq!(upstream.time_to_live(1, true).await, Ok(None));
    let gone = upstream.revoke(1).await.expect_err("revoked");
    assert_eq!(gone.kind(), ErrorKind::LeaseGone);
    let gone = upstream
        .put("/a".into(), "1".into(), 1, IfRevision::Any)
        .await;
    assert_eq!(gone.expect_err("revoked").kind(), ErrorKind::LeaseGone);
    let all = RangeRequest {
        key: "/".into(),
        range_end: "0".into(),
        ..Default::default()
    };
    assert_eq!(upstream.range(all).await.expect("ranges").count, 0);
}

#[tokio::test]
async fn many_leases_are_renewed_over_one_stream() {
    let server = RealEtcd::start().await;
    let upstream = upstream(&[server.url()]);
    let ids: Vec<i64> = (1..=300).collect();
    join_all(ids.iter().map(|id| upstream.grant(*id, TTL)))
        .await
        .into_iter()
        .collect::<Result<Vec<_>, _>>()
        .expect("grants");
    for _ in 0..3 {
        // Some twice at once, and some that do not exist.
        let asked = ids
            .iter()
            .chain(&[1, 2, 3, 4000, 4001])
            .map(|id| upstream.keep_alive(*id));
        let answers = join_all(asked).await;
        for answer in &answers[..303] {
            let renewal = answer.as_ref().expect("renewed");
            assert_eq!(renewal.ttl, TTL);
            assert!(renewal.revision > 0);
        }
        for answer in &answers[303..] {
            let error = answer.as_ref().expect_err("unknown lease");
            assert_eq!(error.kind(), ErrorKind::LeaseGone);
        }
    }
    let streams = "grpc_server_started_total{grpc_method=\"LeaseKeepAlive\"";
    assert_eq!(metric(&server, streams).await, 1);
}

#[tokio::test]
async fn writes_hold_only_at_their_revision() {
    let server = RealEtcd::start().await;
    let upstream = upstream(&[server.url()]);
    let key = || Bytes::from_static(b"/k\x00\xff");
    let put = async |value: &str, condition: IfRevision| {
        let value = Bytes::copy_from_slice(value.as_bytes());
        upstream
            .put(key(), value, 0, condition)
            .await
            .expect("answers")
    };
    let differs = |written: Written| match written {
        Written::Differs { found, .. } => found.map(|pair| (pair.value, pair.mod_revision)),
        other => panic!("written: {other:?}"),
    };
    assert_eq!(differs(put("0", IfRevision::Is(5)).await), None);
    let first = done(put("1", IfRevision::Is(0)).await);
    assert_eq!(
        differs(put("x", IfRevision::Is(0)).await),
        Some(("1".into(), first))
    );
    let second = done(put("2", IfRevision::Is(first)).await);
    let third = done(put("3", IfRevision::Any).await);
    assert!(first < second && second < third);
    let stale = upstream
        .delete(key(), IfRevision::Is(second))
        .await
        .expect("answers");
    assert_eq!(differs(stale), Some(("3".into(), third)));
    let gone = upstream
        .delete(key(), IfRevision::Is(third))
        .await
        .expect("answers");
    assert_eq!(
        gone,
        Written::Done {
            revision: third + 1,
            changed: 1
        }
    );
    let nothing = upstream
        .delete(key(), IfRevision::Any)
        .await
        .expect("answers");
    assert_eq!(
        nothing,
        Written::Done {
            revision: third + 1,
            changed: 0
        }
    );
}

#[tokio::test]
async fn a_killed_server_fails_what_is_in_flight_and_comes_back() {
    let mut server = RealEtcd::start().await;
    let upstream = upstream(&[server.url()]);
    upstream.grant(9, TTL).await.expect("grants");
    upstream.keep_alive(9).await.expect("renews");
    server.pause();
    let asked: Vec<_> = (0..3)
        .map(|i| {
            let upstream = upstream.clone();
            tokio::spawn(async move {
                match i {
                    0 => upstream.keep_alive(9).await.map(|_| ()),
                    1 => upstream
                        .put("/k".into(), "1".into(), 9, IfRevision::Any)
                        .await
                        .map(|_| ()),
                    _ => upstream.time_to_live(9, false).await.map(|_| ()),
                }
            })
        })
        .collect();
    sleep(Duration::from_millis(300)).await;
    server.kill();
    for (i, answer) in timeout(PATIENCE, join_all(asked))
        .await
        .expect("told")
        .into_iter()
        .enumerate()
    {
        let error = answer.expect("no panic").expect_err("no server");
        assert!(
            error.is_retryable() && error.to_string().contains(&server.address()),
            "{error}"
        );
        let expected = if i == 2 {
            Certainty::NotApplied
        } else {
            Certainty::Unknown
        };
        assert_eq!(error.certainty(), expected, "call {i}: {error}");
    }
    let error = upstream
        .put("/k".into(), "1".into(), 9, IfRevision::Any)
        .await;
    let error = error.expect_err("no server");
    assert_eq!(
        (error.kind(), error.certainty()),
        (ErrorKind::Unreachable, Certainty::NotApplied)
    );

    server.restart().await;
    // The lease was kept on disk.
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = upstream.keep_alive(9).await {
        assert!(error.is_retryable() && Instant::now() < deadline, "{error}");
        sleep(Duration::from_millis(100)).await;
    }
    done(
        upstream
            .put("/k".into(), "1".into(), 9, IfRevision::Any)
            .await
            .expect("puts"),
    );
}

#[tokio::test]
async fn a_channel_moves_to_the_next_server() {
    // Two clusters of one tell which of them was asked.
    let (mut one, mut two) = (RealEtcd::start().await, RealEtcd::start().await);
    for server in [&one, &two] {
        let name = Bytes::from(server.url());
        upstream(&[server.url()])
            .put("name".into(), name, 0, IfRevision::Any)
            .await
            .expect("puts");
    }
    let dead = format!("http://127.0.0.1:{}", free_port());
    let channel = channel(&[dead, one.url(), two.url()]).expect("good addresses");
    let asked = async || {
        let request = RangeRequest {
            key: "name".into(),
            ..Default::default()
        };
        let mut client = stubs::KvClient::new(channel.clone());
        let answer = timeout(PATIENCE, client.range(request))
            .await
            .expect("in time")?;
        let pair = answer.into_inner().kvs.into_iter().next().expect("named");
        Ok::<String, tonic::Status>(String::from_utf8_lossy(&pair.value).into_owned())
    };
    assert_eq!(asked().await.expect("answers"), one.url());
    one.kill();
    // The call that meets the broken connection may fail; the next one goes to another server.
    let answer = match asked().await {
        Ok(answer) => answer,
        Err(_) => asked().await.expect("answers"),
    };
    assert_eq!(answer, two.url());
    two.kill();
    let _ = asked().await;
    let status = asked().await.expect_err("all dead");
    for server in [&one, &two] {
        assert!(
            format!("{status:?}").contains(&server.address()),
            "{status:?}"
        );
    }
    one.restart().await;
    assert_eq!(asked().await.expect("answers"), one.url());
}

#[tokio::test]
async fn a_stalled_server_is_left_for_another() {
    let (one, two) = (RealEtcd::start().await, RealEtcd::start().await);
    let mut options = EtcdOptions::new([one.url(), two.url()]);
    options.request_timeout = Duration::from_millis(800);
    let upstream = EtcdUpstream::new(&options).expect("good addresses");
    upstream
        .put("/k".into(), "1".into(), 0, IfRevision::Any)
        .await
        .expect("puts");
    assert_eq!(upstream.server(), one.address());
    one.pause();
    // A read is asked again elsewhere; a write is not, since nobody knows what became of it.
    let error = upstream
        .put("/k".into(), "2".into(), 0, IfRevision::Any)
        .await;
    let error = error.expect_err("stalled");
    assert_eq!(
        (error.kind(), error.certainty()),
        (ErrorKind::Timeout, Certainty::Unknown)
    );
    assert!(error.to_string().contains(&one.address()), "{error}");
    upstream
        .put("/k".into(), "2".into(), 0, IfRevision::Any)
        .await
        .expect("puts");
    assert_eq!(upstream.server(), two.address());
    two.pause();
    one.resume();
    let found = upstream
        .range(RangeRequest {
            key: "/k".into(),
            ..Default::default()
        })
        .await;
    assert_eq!(found.expect("reads elsewhere").count, 1);
    assert_eq!(upstream.server(), one.address());
    two.resume();
}

#[tokio::test]
async fn users_log_in_and_stay_logged_in() {
    // The shortest life of a token that this etcd has.
    let server = RealEtcd::start_with(&["--auth-token-ttl=1"]).await;
    let plain = upstream(&[server.url()]);
    plain
        .put("/k".into(), "1".into(), 0, IfRevision::Any)
        .await
        .expect("puts");
    let etcdctl = |arguments: &str| {
        let status = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints={}", server.url()))
            .args(arguments.split(' '))
            .status()
            .expect("etcdctl is there");
        assert!(status.success(), "{arguments}");
    };
    etcdctl("user add root:secret");
    etcdctl("user grant-role root root");
    etcdctl("auth enable");

    let user = |name: &str, password: &str| {
        let mut options = EtcdOptions::new([server.url()]);
        options.user = Some((name.to_owned(), password.to_owned()));
        options
    };
    let backend = |options: &EtcdOptions| {
        EtcdBackend::new(BackendName::new("etcd"), options).expect("a good address")
    };
    let strangers = [
        EtcdOptions::new([server.url()]),
        user("root", "wrong"),
        user("nobody", "x"),
    ];
    for options in &strangers {
        let error = EtcdUpstream::new(options)
            .expect("a good address")
            .put("/k".into(), "2".into(), 0, IfRevision::Any)
            .await
            .expect_err("refused");
        assert_eq!(
            (error.kind(), error.certainty()),
            (ErrorKind::Denied, Certainty::NotApplied)
        );
        let error = backend(options).lookup(b"/k").await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(
            !error.to_string().contains("wrong"),
            "a password in {error}"
        );
    }
    assert!(!format!("{:?}", user("root", "secret")).contains("secret"));

    let backend = backend(&user("root", "secret"));
    let lease = backend.open_lease(None, TTL).await.expect("opens");
    let mut events = backend.watch(Scope::from(Subtree::root("/owned")));
    let write = |value: &'static str| Registration {
        key: "/owned/n".into(),
        value: value.into(),
        owner: Owner::Lease(lease.id),
        expect: Expect::Any,
    };
    backend.register(write("1")).await.expect("registers");
    // Longer than the token lives, for the client crate and for the stubs.
    sleep(Duration::from_secs(3)).await;
    backend.register(write("2")).await.expect("registers");
    backend.renew(lease.id).await.expect("renews");
    let upstream = backend.upstream();
    upstream
        .put("/k".into(), "2".into(), 0, IfRevision::Any)
        .await
        .expect("puts");
    assert!(backend.health().await.is_usable());
    let last = async {
        loop {
            match events.next().await {
                Some(Event::Put(entry)) if entry.value == "2" => return,
                Some(_) => {}
                None => panic!("the watch ended"),
            }
        }
    };
    timeout(PATIENCE, last).await.expect("told");
}

#[tokio::test]
async fn long_lists_come_whole_and_at_one_revision() {
    let server = RealEtcd::start().await;
    let backend = EtcdBackend::new(BackendName::new("etcd"), &EtcdOptions::new([server.url()]));
    let backend = backend.expect("a good address");
    let upstream = backend.upstream();
    const COUNT: usize = 1234;
    let key = |i: usize| Bytes::from(format!("/list/{i:05}"));
    let puts = (0..COUNT).map(|i| upstream.put(key(i), "0".into(), 0, IfRevision::Any));
    join_all(puts)
        .await
        .into_iter()
        .collect::<Result<Vec<_>, _>>()
        .expect("puts");
    // The last key moves while pages are read; a list at one revision never shows it twice or not
    // at all.
    let mover = tokio::spawn({
        let upstream = upstream.clone();
        async move {
            loop {
                for name in ["/list/00000-moves", "/list/99999-moves"] {
                    let _ = upstream
                        .put(name.into(), "".into(), 0, IfRevision::Any)
                        .await;
                    let other = if name.contains("99999") {
                        "/list/00000-moves"
                    } else {
                        "/list/99999-moves"
                    };
                    let _ = upstream.delete(other.into(), IfRevision::Any).await;
                }
            }
        }
    });
    sleep(Duration::from_millis(50)).await;
    for _ in 0..20 {
        let list = backend
            .discover(&Subtree::root("/list"))
            .await
            .expect("lists");
        let keys: BTreeSet<Bytes> = list.entries.iter().map(|entry| entry.key.clone()).collect();
        assert_eq!(keys.len(), list.entries.len());
        assert!((0..COUNT).all(|i| keys.contains(&key(i))));
        let moving = keys.len() - COUNT;
        assert!(moving == 1 || moving == 2, "{moving} of the moving keys");
        let newest = list
            .entries
            .iter()
            .filter_map(|entry| entry.revision.as_i64())
            .max();
        assert!(newest <= list.revision.as_i64());
    }
    mover.abort();
}

#[tokio::test]
async fn a_slow_reader_gets_everything_even_over_a_compaction() {
    let server = RealEtcd::start().await;
    let backend = EtcdBackend::new(BackendName::new("etcd"), &EtcdOptions::new([server.url()]));
    let backend = backend.expect("a good address");
    let upstream = backend.upstream();
    let scope = Scope::from(Subtree::root("/slow"));
    let mut events = backend.watch(scope.clone());
    // Nobody reads until all of this is behind; it is more than fits in between.
    let value = Bytes::from(vec![b'x'; 16 << 10]);
    for round in 0..40 {
        let puts = (0..50).map(|i| {
            upstream.put(
                format!("/slow/{i}-{round}").into(),
                value.clone(),
                0,
                IfRevision::Any,
            )
        });
        join_all(puts)
            .await
            .into_iter()
            .collect::<Result<Vec<_>, _>>()
            .expect("puts");
        if round > 0 {
            let deletes = (0..50).map(|i| {
                upstream.delete(format!("/slow/{i}-{}", round - 1).into(), IfRevision::Any)
            });
            join_all(deletes)
                .await
                .into_iter()
                .collect::<Result<Vec<_>, _>>()
                .expect("deletes");
        }
    }
    let truth = backend.snapshot(&scope).await.expect("lists");
    let compacted = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .arg(format!("--endpoints={}", server.url()))
        .args(["compact", &truth.revision.as_i64().unwrap_or(0).to_string()])
        .status();
    assert!(compacted.expect("etcdctl is there").success());
    let mut known = BTreeSet::new();
    let mut snapshot = None;
    let mut lost = false;
    let deadline = Instant::now() + PATIENCE;
    let expected: BTreeSet<Bytes> = truth
        .entries
        .iter()
        .map(|entry| entry.key.clone())
        .collect();
    assert_eq!(expected.len(), 50);
    while known != expected {
        match tokio::time::timeout_at(deadline, events.next()).await {
            Ok(Some(Event::SnapshotStart)) => snapshot = Some(BTreeSet::new()),
            Ok(Some(Event::SnapshotDone { .. })) => known = snapshot.take().unwrap_or_default(),
            Ok(Some(Event::Put(entry))) => {
                snapshot.as_mut().unwrap_or(&mut known).insert(entry.key);
            }
            Ok(Some(Event::Delete { key, .. })) => {
                assert!(known.remove(&key), "{key:?} was not there");
            }
            Ok(Some(Event::Lost { reason })) => {
                assert!(reason.contains("compacted"), "{reason}");
                lost = true;
                snapshot = None;
            }
            Ok(None) | Err(_) => panic!("incomplete: {} of {}", known.len(), expected.len()),
        }
    }
    assert!(lost, "the history was there all the time");
}

#[tokio::test]
async fn requests_that_etcd_refuses_are_told_apart() {
    let server = RealEtcd::start().await;
    let backend = EtcdBackend::new(BackendName::new("etcd"), &EtcdOptions::new([server.url()]));
    let backend = backend.expect("a good address");
    let write = |key: &'static str, size: usize| Registration {
        key: key.into(),
        value: vec![0; size].into(),
        owner: Owner::Persistent,
        expect: Expect::Any,
    };
    for (registration, kind) in [
        (write("", 1), ErrorKind::InvalidKey),
        (write("/large", 1_700_000), ErrorKind::TooLarge),
        (write("/larger", 3_000_000), ErrorKind::TooLarge),
    ] {
        let key = registration.key.clone();
        let error = backend.register(registration).await.expect_err("refused");
        assert_eq!(
            (error.kind(), error.certainty()),
            (kind, Certainty::NotApplied),
            "{key:?}: {error}"
        );
    }
    let channel = channel(&[server.url()]).expect("a good address");
    let put = PutRequest {
        key: "/relayed".into(),
        ..Default::default()
    };
    stubs::KvClient::new(channel)
        .put(put)
        .await
        .expect("relayed");
    assert!(backend.lookup(b"/relayed").await.expect("reads").is_some());
}

#[tokio::test]
async fn a_server_that_falls_silent_is_told_as_lost() {
    let server = RealEtcd::start().await;
    let backend = EtcdBackend::new(BackendName::new("etcd"), &EtcdOptions::new([server.url()]));
    let backend = backend.expect("a good address");
    let mut events = backend.watch(Scope::from(Subtree::root("/n")));
    let mut next = async || {
        let event = timeout(PATIENCE, events.next()).await;
        event.expect("in time").expect("endless")
    };
    while !matches!(next().await, Event::SnapshotDone { .. }) {}
    server.pause();
    let started = Instant::now();
    // A ping after 10 s and 5 s of waiting for it: etcd allows no quicker pings.
    assert!(matches!(next().await, Event::Lost { .. }));
    assert!(
        started.elapsed() < Duration::from_secs(25),
        "{:?}",
        started.elapsed()
    );
    let health = backend.health().await;
    assert!(
        !health.is_usable() && health.detail.contains(&server.address()),
        "{health:?}"
    );
    server.resume();
    assert_eq!(next().await, Event::SnapshotStart);
}
