//! Causeway's own connection against a real server.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use causeway_backend::testing::{RealZookeeper, free_port};
use causeway_backend::{BackendError, Certainty, ErrorKind};
use causeway_backend_zookeeper::{
    Answer, Handshake, Notifications, Pings, RawUpstream, Servers, Upstream, UpstreamOptions,
};
use causeway_wire::zk::record::Record;
use causeway_wire::zk::reply::{Create2Response, GetDataResponse, StatResponse};
use causeway_wire::zk::request::{
    Acl, AuthRequest, CreateRequest, DeleteRequest, ReadRequest, SetDataRequest,
};
use causeway_wire::zk::{
    ConnectRequest, ConnectResponse, ErrorCode, EventType, OpCode, ReplyHeader, Request,
    encode_request,
};
use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(30);

fn servers(text: &str) -> Servers {
    Servers::parse(text).expect("a good address")
}

/// A request for a new session.
fn fresh(timeout_ms: i32) -> ConnectRequest {
    ConnectRequest {
        timeout_ms,
        password: Some(Bytes::from_static(&[0; 16])),
        read_only: Some(false),
        ..ConnectRequest::default()
    }
}

/// A request for a session that exists.
fn again(session: &ConnectResponse) -> ConnectRequest {
    ConnectRequest {
        session_id: session.session_id,
        password: session.password.clone(),
        ..fresh(session.timeout_ms)
    }
}

async fn shake(
    servers: &Servers,
    request: &ConnectRequest,
    pings: Pings,
) -> Result<Handshake<(Upstream, Notifications)>, BackendError> {
    Upstream::connect(servers, request, &UpstreamOptions::default(), pings).await
}

async fn open(
    servers: &Servers,
    request: &ConnectRequest,
    pings: Pings,
) -> (Upstream, Notifications, ConnectResponse) {
    match shake(servers, request, pings).await {
        Ok(Handshake::Established {
            connection: (upstream, events),
            response,
        }) => (upstream, events, response),
        other => panic!("no session: {other:?}"),
    }
}

fn create(path: &str, flags: i32) -> CreateRequest {
    let anyone = Acl {
        perms: 31,
        scheme: "world".to_owned(),
        id: "anyone".to_owned(),
    };
    CreateRequest {
        path: path.to_owned(),
        data: Some(Bytes::from_static(b"value")),
        acl: vec![anyone],
        flags,
    }
}

fn read(path: &str, watch: bool) -> ReadRequest {
    ReadRequest {
        path: path.to_owned(),
        watch,
    }
}

async fn ask<R: Record>(upstream: &Upstream, op: OpCode, record: &R) -> Answer {
    match timeout(PATIENCE, upstream.submit_record(op, record)).await {
        Ok(Ok(answer)) => answer,
        other => panic!("{op:?} was not answered: {other:?}"),
    }
}

async fn exists(upstream: &Upstream, path: &str) -> bool {
    match ask(upstream, OpCode::Exists, &read(path, false))
        .await
        .header
        .err
    {
        0 => true,
        err if err == ErrorCode::NoNode as i32 => false,
        err => panic!("exists failed with {err}"),
    }
}

#[tokio::test]
async fn a_session_outlives_its_connection_and_is_taken_up_by_id_and_password() {
    let server = RealZookeeper::start().await;
    let servers = servers(&server.address());
    let (first, _events, session) = open(&servers, &fresh(8000), Pings::Automatic).await;
    assert_eq!(session.timeout_ms, 8000);
    assert_eq!(session.password.as_ref().map(Bytes::len), Some(16));
    let answer = ask(&first, OpCode::Create2, &create("/owned", 1)).await;
    assert_eq!(answer.header.err, 0);
    let created = Create2Response::decode(answer.body).expect("a reply to create2");
    assert_eq!(created.path, "/owned");
    assert_eq!(created.stat.ephemeral_owner, session.session_id);
    assert_eq!(created.stat.czxid, answer.header.zxid);

    // Dropping the connection leaves the session and what it owns.
    drop(first);
    let (other, _events, _) = open(&servers, &fresh(8000), Pings::Automatic).await;
    sleep(Duration::from_millis(300)).await;
    assert!(exists(&other, "/owned").await);

    let (second, _events, found) = open(&servers, &again(&session), Pings::Automatic).await;
    assert_eq!(
        (found.session_id, &found.password),
        (session.session_id, &session.password)
    );

    // A second connection of the session takes it away from the first, which is told.
    let (third, _events, _) = open(&servers, &again(&session), Pings::Automatic).await;
    let lost = timeout(PATIENCE, second.lost()).await.expect("told");
    assert_eq!(lost.kind(), ErrorKind::Unreachable, "{lost}");
    assert!(exists(&third, "/owned").await);

    third.close_session().await.expect("closes");
    assert!(!exists(&other, "/owned").await);
    let gone = shake(&servers, &again(&session), Pings::Automatic).await;
    assert!(matches!(gone, Ok(Handshake::Expired(_))), "{gone:?}");
}

#[tokio::test]
async fn what_the_server_does_not_know_is_told_as_expired() {
    let server = RealZookeeper::start().await;
    let servers = servers(&server.address());
    let (_upstream, _events, session) = open(&servers, &fresh(8000), Pings::Automatic).await;
    let wrong_password = ConnectRequest {
        password: Some(Bytes::from_static(&[7; 16])),
        ..again(&session)
    };
    let wrong_id = ConnectRequest {
        session_id: session.session_id + 1000,
        ..again(&session)
    };
    for request in [wrong_password, wrong_id] {
        match shake(&servers, &request, Pings::Automatic).await {
            Ok(Handshake::Expired(response)) => assert!(response.is_expired()),
            other => panic!("taken: {other:?}"),
        }
    }
    // A server that is behind what the client has seen says nothing at all.
    let ahead = ConnectRequest {
        last_zxid_seen: i64::MAX,
        ..again(&session)
    };
    let error = shake(&servers, &ahead, Pings::Automatic)
        .await
        .expect_err("closed");
    assert!(
        error.is_retryable() && error.certainty() == Certainty::NotApplied,
        "{error}"
    );
    assert!(error.to_string().contains(&server.address()), "{error}");
}

#[tokio::test]
async fn requests_are_pipelined_and_answered_in_order() {
    let server = RealZookeeper::start().await;
    let servers = servers(&server.address());
    let (upstream, _events, _) = open(&servers, &fresh(8000), Pings::Automatic).await;
    ask(&upstream, OpCode::Create, &create("/n", 0)).await;
    const COUNT: usize = 2000;
    let asked: Vec<_> = (0..COUNT)
        .map(|i| {
            let data = Some(Bytes::from(i.to_string()));
            match i % 4 {
                0 => upstream.submit_record(
                    OpCode::SetData,
                    &SetDataRequest {
                        path: "/n".to_owned(),
                        data,
                        version: -1,
                    },
                ),
                // Errors are answers like any other.
                1 => upstream.submit_record(
                    OpCode::Delete,
                    &DeleteRequest {
                        path: "/none".to_owned(),
                        version: -1,
                    },
                ),
                2 => upstream.submit(OpCode::Ping as i32, &[]),
                _ => upstream.submit_record(OpCode::GetData, &read("/n", false)),
            }
        })
        .collect();
    let answers = timeout(PATIENCE, join_all(asked))
        .await
        .expect("all answered");
    let mut zxid = 0;
    for (i, answer) in answers.into_iter().enumerate() {
        let answer = answer.expect("answered");
        assert!(answer.header.zxid >= zxid || i % 4 == 2, "{i}");
        match i % 4 {
            0 => {
                assert_eq!(answer.header.err, 0);
                let stat = StatResponse::decode(answer.body).expect("a Stat").stat;
                assert_eq!(stat.mzxid, answer.header.zxid);
                zxid = answer.header.zxid;
            }
            1 => assert_eq!(answer.header.err, ErrorCode::NoNode as i32),
            2 => assert!(answer.body.is_empty()),
            _ => {
                let data = GetDataResponse::decode(answer.body).expect("data").data;
                // The value of the setData three requests before.
                assert_eq!(data, Some(Bytes::from((i - 3).to_string())));
            }
        }
    }
}

#[tokio::test]
async fn requests_beyond_the_limit_are_refused_and_others_go_on() {
    let server = RealZookeeper::start().await;
    let servers = servers(&server.address());
    let options = UpstreamOptions {
        max_in_flight: 4,
        ..UpstreamOptions::default()
    };
    let handshake = Upstream::connect(&servers, &fresh(8000), &options, Pings::ByCaller).await;
    let Ok(Handshake::Established {
        connection: (upstream, _events),
        ..
    }) = handshake
    else {
        panic!("no session: {handshake:?}");
    };
    server.pause();
    let asked: Vec<_> = (0..6).map(|_| upstream.ping()).collect();
    server.resume();
    let answers = join_all(asked).await;
    assert!(answers.iter().take(4).all(Result::is_ok), "{answers:?}");
    for refused in answers.iter().skip(4) {
        let error = refused.as_ref().expect_err("beyond the limit");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(error.certainty(), Certainty::NotApplied);
    }
    assert!(upstream.ping().await.is_ok());
}

#[tokio::test]
async fn a_watch_is_told_before_the_answer_that_shows_its_change() {
    let server = RealZookeeper::start().await;
    let servers = servers(&server.address());
    let (watcher, mut events, _) = open(&servers, &fresh(8000), Pings::Automatic).await;
    let (writer, _events, _) = open(&servers, &fresh(8000), Pings::Automatic).await;
    ask(&writer, OpCode::Create, &create("/n", 0)).await;
    let before = ask(&watcher, OpCode::GetData, &read("/n", true)).await;
    assert_eq!(before.events_before, 0);
    let set = SetDataRequest {
        path: "/n".to_owned(),
        data: None,
        version: -1,
    };
    ask(&writer, OpCode::SetData, &set).await;
    let after = ask(&watcher, OpCode::GetData, &read("/n", false)).await;
    assert_eq!(after.events_before, 1);
    let event = events.try_recv().expect("told already");
    assert_eq!(event.number, 1);
    assert_eq!(
        (event.event.kind, &event.event.path[..]),
        (EventType::NodeDataChanged as i32, "/n")
    );
    // null data stays null.
    assert_eq!(
        GetDataResponse::decode(after.body).expect("data").data,
        None
    );
}

#[tokio::test]
async fn pings_keep_a_session_only_when_they_are_sent() {
    let server = RealZookeeper::start().await;
    let servers = servers(&server.address());
    let (_kept, _events, kept) = open(&servers, &fresh(1500), Pings::Automatic).await;
    let (by_hand, _events, pinged) = open(&servers, &fresh(1500), Pings::ByCaller).await;
    let (silent, _events, unpinged) = open(&servers, &fresh(1500), Pings::ByCaller).await;
    let start = Instant::now();
    // The server closes the connection of a session that expired.
    while start.elapsed() < Duration::from_secs(5) || silent.lost_already().is_none() {
        assert!(
            start.elapsed() < PATIENCE,
            "the silent session never expired"
        );
        by_hand.ping().await.expect("alive");
        sleep(Duration::from_millis(300)).await;
    }
    let alive = [(kept, true), (pinged, true), (unpinged, false)];
    for (session, alive) in alive {
        let found = shake(&servers, &again(&session), Pings::ByCaller).await;
        let is_alive = matches!(found, Ok(Handshake::Established { .. }));
        assert_eq!(is_alive, alive, "{found:?}");
    }
}

#[tokio::test]
async fn a_loss_leaves_requests_in_flight_unknown_and_is_told_once() {
    let mut server = RealZookeeper::start().await;
    let servers = servers(&server.address());
    let (upstream, mut events, session) = open(&servers, &fresh(8000), Pings::Automatic).await;
    assert_eq!(upstream.lost_already(), None);
    server.pause();
    let asked: Vec<_> = (0..10)
        .map(|i| upstream.submit_record(OpCode::Create, &create(&format!("/n{i}"), 1)))
        .collect();
    sleep(Duration::from_millis(100)).await;
    server.kill();
    for answer in timeout(PATIENCE, join_all(asked)).await.expect("told") {
        let error = answer.expect_err("no server");
        assert_eq!(error.certainty(), Certainty::Unknown, "{error}");
        assert!(
            error.is_retryable() && error.to_string().contains(&server.address()),
            "{error}"
        );
    }
    let reason = timeout(PATIENCE, upstream.lost()).await.expect("told");
    assert_eq!(upstream.lost().await, reason);
    assert_eq!(events.recv().await, None);
    let late = upstream.ping().await.expect_err("lost");
    assert_eq!(
        (late.certainty(), late.kind()),
        (Certainty::NotApplied, ErrorKind::Unreachable)
    );
    let error = shake(&servers, &again(&session), Pings::Automatic)
        .await
        .expect_err("no server");
    assert!(
        error.is_retryable() && error.to_string().contains(&server.address()),
        "{error}"
    );

    // The session comes through the restart.
    server.restart().await;
    let (_back, _events, found) = open(&servers, &again(&session), Pings::Automatic).await;
    assert_eq!(found.session_id, session.session_id);
}

#[tokio::test]
async fn a_server_that_falls_silent_is_given_up() {
    let server = RealZookeeper::start().await;
    let servers = servers(&server.address());
    let (upstream, _events, session) = open(&servers, &fresh(1500), Pings::Automatic).await;
    let timeout_ms = u64::try_from(session.timeout_ms).expect("positive");
    server.pause();
    let started = Instant::now();
    let reason = timeout(PATIENCE, upstream.lost()).await.expect("told");
    // A ping after a third, and two thirds of waiting for it.
    assert!(
        started.elapsed() >= Duration::from_millis(timeout_ms * 2 / 3),
        "{reason}"
    );
    assert!(reason.to_string().contains("nothing was heard"), "{reason}");
    server.resume();
}

#[tokio::test]
async fn servers_are_tried_in_turn() {
    let server = RealZookeeper::start().await;
    let dead = free_port();
    let servers = servers(&format!("127.0.0.1:{dead},{}", server.address()));
    for _ in 0..3 {
        let (upstream, _events, _) = open(&servers, &fresh(8000), Pings::Automatic).await;
        assert_eq!(upstream.server(), server.address());
        upstream.close_session().await.expect("closes");
    }
    // What accepts and says nothing costs one attempt.
    let mute = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("binds");
    let mute = mute.local_addr().expect("bound");
    let servers = Servers::parse(&format!("{mute},{}", server.address())).expect("parses");
    let options = UpstreamOptions {
        attempt_timeout: Duration::from_millis(500),
        ..Default::default()
    };
    for _ in 0..2 {
        let found = Upstream::connect(&servers, &fresh(8000), &options, Pings::Automatic).await;
        assert!(
            matches!(found, Ok(Handshake::Established { .. })),
            "{found:?}"
        );
    }
}

#[tokio::test]
async fn frames_pass_as_they_are() {
    let server = RealZookeeper::start().await;
    let servers = servers(&server.address());
    let options = UpstreamOptions::default();
    let handshake = RawUpstream::connect(&servers, &fresh(8000), &options).await;
    let Ok(Handshake::Established {
        connection: mut raw,
        ..
    }) = handshake
    else {
        panic!("no session: {handshake:?}");
    };
    assert_eq!(raw.server(), server.address());
    let frame = |xid: i32, request: &Request| {
        let whole = encode_request(xid, request);
        whole.slice(4..)
    };
    raw.send_frame(&frame(77, &Request::Create(create("/raw", 1))))
        .await
        .expect("sent");
    let (header, body) =
        ReplyHeader::split(raw.next_frame().await.expect("a reply")).expect("whole");
    assert_eq!((header.xid, header.err), (77, 0));
    assert_eq!(&body[4..], b"/raw");

    let (mut sender, mut receiver) = raw.split();
    let reader = tokio::spawn(async move {
        let mut xids = Vec::new();
        while let Ok(frame) = receiver.next_frame().await {
            let (header, _) = ReplyHeader::split(frame).expect("whole");
            xids.push(header.xid);
        }
        xids
    });
    for xid in 100..200 {
        sender.feed(&frame(xid, &Request::Exists(read("/raw", false))));
    }
    assert!(sender.pending() > 0);
    sender.flush().await.expect("sent");
    sender
        .send_frame(&frame(200, &Request::CloseSession))
        .await
        .expect("sent");
    // The server answers the close and then closes.
    let xids = timeout(PATIENCE, reader)
        .await
        .expect("ends")
        .expect("no panic");
    assert_eq!(xids, (100..=200).collect::<Vec<i32>>());
}

#[tokio::test]
async fn auth_and_unknown_operations_are_answered() {
    let server = RealZookeeper::start().await;
    let servers = servers(&server.address());
    let (upstream, _events, _) = open(&servers, &fresh(8000), Pings::Automatic).await;
    let auth = AuthRequest {
        kind: 0,
        scheme: "digest".to_owned(),
        auth: Some(Bytes::from_static(b"user:password")),
    };
    // Pipelined, as clients do before they know whether it is taken.
    let authenticated = upstream.submit_record(OpCode::Auth, &auth);
    let secret = CreateRequest {
        acl: vec![Acl {
            perms: 31,
            scheme: "auth".to_owned(),
            id: String::new(),
        }],
        ..create("/secret", 0)
    };
    let created = upstream.submit_record(OpCode::Create, &secret);
    assert_eq!(authenticated.await.expect("answered").header.err, 0);
    assert_eq!(created.await.expect("answered").header.err, 0);
    let (stranger, _events, _) = open(&servers, &fresh(8000), Pings::Automatic).await;
    let refused = ask(&stranger, OpCode::GetData, &read("/secret", false)).await;
    assert_eq!(refused.header.err, ErrorCode::NoAuth as i32);

    let unknown = timeout(PATIENCE, stranger.submit(9999, &[]))
        .await
        .expect("answered");
    assert_eq!(
        unknown.expect("answered").header.err,
        ErrorCode::Unimplemented as i32
    );
}

#[tokio::test]
async fn what_is_not_zookeeper_is_named() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("binds");
    let address = listener.local_addr().expect("bound").to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            use tokio::io::AsyncWriteExt;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let error = shake(&servers(&address), &fresh(8000), Pings::Automatic)
        .await
        .expect_err("not ZooKeeper");
    assert!(error.to_string().contains(&address), "{error}");
}

#[tokio::test]
async fn connections_are_shared_between_tasks() {
    let server = RealZookeeper::start().await;
    let servers = servers(&server.address());
    let (upstream, _events, _) = open(&servers, &fresh(8000), Pings::Automatic).await;
    let upstream = Arc::new(upstream);
    ask(&upstream, OpCode::Create, &create("/d", 0)).await;
    let tasks = (0..8).map(|task| {
        let upstream = upstream.clone();
        tokio::spawn(async move {
            for i in 0..50 {
                let path = format!("/d/{task}-{i}");
                assert_eq!(
                    ask(&upstream, OpCode::Create, &create(&path, 1))
                        .await
                        .header
                        .err,
                    0
                );
            }
        })
    });
    for task in join_all(tasks).await {
        task.expect("no panic");
    }
    let stat = ask(&upstream, OpCode::Exists, &read("/d", false)).await;
    assert_eq!(
        StatResponse::decode(stat.body)
            .expect("a Stat")
            .stat
            .num_children,
        400
    );
}
