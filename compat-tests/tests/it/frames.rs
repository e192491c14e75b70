//! ZooKeeper's protocol frame by frame, where a script of the differential engine cannot say it: order of frames,
//! identity of sessions, and what keeps them alive. The rules are ZooKeeper's own, apart from strict order, which
//! real servers break for auth: clients that count their replies cope with it, and kazoo does not without.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use causeway_compat_tests::Work;
use causeway_compat_tests::protocol::Protocol;
use causeway_compat_tests::raw::zookeeper::{
    self, Body, Client, ConnectRequest, ConnectResponse, Event, Greeting, Received, Request, op,
    read, xid,
};
use causeway_compat_tests::target::{self, Running};

const PATIENCE: Duration = Duration::from_secs(10);

fn on_target(name: &str, target_name: &str, test: impl FnOnce(&str) -> Result<()>) {
    Work::scenario(name, |work| {
        let running: Box<dyn Running + Send> =
            target::start(work, target_name, &target::Options::default())?;
        let Some(address) = running.address(Protocol::ZooKeeper) else {
            bail!("{target_name} has no ZooKeeper port");
        };
        test(&address)
    });
}

fn connect(address: &str, request: &ConnectRequest) -> Result<(Client, ConnectResponse)> {
    match Client::connect(address, request, PATIENCE)? {
        Greeting::Answered(client, response) => Ok((client, response)),
        Greeting::Closed => bail!("closed instead of an answer to the connect"),
    }
}

fn new_session(address: &str, timeout: Duration) -> Result<(Client, ConnectResponse)> {
    connect(address, &ConnectRequest::new(timeout))
}

fn create(path: &str, flags: i32) -> Request {
    zookeeper::create(op::CREATE, path, b"x", flags)
}

fn done(client: &mut Client, request: &Request) -> Result<(Vec<Event>, Body)> {
    let (events, reply) = client.call(request, PATIENCE)?;
    ensure!(reply.error == 0, "{request:?}: error {}", reply.error);
    Ok((events, reply.body))
}

/// The xids of the next replies, in the order in which they come.
fn replies(client: &mut Client, count: usize) -> Result<Vec<i32>> {
    let mut xids = Vec::new();
    while xids.len() < count {
        match client.receive(PATIENCE)? {
            Received::Reply(reply) => {
                ensure!(reply.error == 0, "reply to {}: {}", reply.xid, reply.error);
                xids.push(reply.xid);
            }
            Received::Event(_) => {}
            Received::Closed => bail!("closed after {xids:?}"),
            Received::Nothing => bail!("silent after {xids:?}"),
        }
    }
    Ok(xids)
}

fn auth() -> Request {
    Request::Auth {
        kind: 0,
        scheme: "digest".to_string(),
        auth: Some(b"u:p".to_vec()),
    }
}

fn set_watches(exist: Vec<String>) -> Request {
    Request::SetWatches {
        zxid: 0,
        data: Vec::new(),
        exist,
        child: Vec::new(),
        persistent: None,
    }
}

#[test]
fn replies_come_in_the_order_of_requests_auth_and_ping_among_them() {
    on_target("frames-order", "causeway-embedded", |address| {
        let (mut client, _) = new_session(address, Duration::from_secs(20))?;
        let mut requests: Vec<Request> = (0..50).map(|n| create(&format!("/n{n}"), 0)).collect();
        requests.push(auth());
        requests.push(Request::Empty { op: op::PING });
        requests.push(read(op::GET_DATA, "/n49", false));
        requests.extend(std::iter::repeat_with(auth).take(5));
        requests.extend(std::iter::repeat_with(|| set_watches(vec!["/none".into()])).take(3));
        requests.push(Request::Empty { op: op::WHO_AM_I });
        let sent = client.send_all(&requests)?;
        ensure!(sent.iter().filter(|sent| **sent == xid::AUTH).count() == 6);
        let got = replies(&mut client, sent.len())?;
        ensure!(got == sent, "sent {sent:?}, answered {got:?}");
        Ok(())
    });
}

#[test]
fn set_watches_in_several_frames_of_one_number_are_all_armed() {
    on_target("frames-set-watches", "causeway-embedded", |address| {
        let (mut client, _) = new_session(address, Duration::from_secs(20))?;
        // As the Java client does with more than 128 KB of them.
        let batches: Vec<Vec<String>> = (0..5)
            .map(|batch| {
                (0..4000)
                    .map(|n| format!("/batch-{batch}-{n:05}"))
                    .collect()
            })
            .collect();
        let requests: Vec<Request> = batches.iter().cloned().map(set_watches).collect();
        client.send_all(&requests)?;
        ensure!(replies(&mut client, 5)? == [xid::SET_WATCHES; 5]);
        let (mut other, _) = new_session(address, Duration::from_secs(20))?;
        let mut expected = BTreeSet::new();
        for batch in &batches {
            for path in [&batch[0], &batch[3999]] {
                done(&mut other, &create(path, 0))?;
                expected.insert(path.clone());
            }
        }
        let (events, _) = done(&mut client, &read(op::EXISTS, "/", false))?;
        let fired: BTreeSet<String> = events.iter().map(|event| event.path.clone()).collect();
        ensure!(
            fired == expected && events.len() == expected.len(),
            "{events:?}"
        );
        Ok(())
    });
}

#[test]
fn sessions_have_ids_of_their_own_and_only_those_who_know_one_take_it_along() {
    on_target("frames-ids", "causeway-embedded", |address| {
        let mut seen = BTreeSet::new();
        for round in 0..1000 {
            let (client, response) = new_session(address, Duration::from_secs(30))?;
            ensure!(response.session_id > 0, "round {round}: {response:?}");
            ensure!(
                seen.insert(response.session_id),
                "{:x} twice",
                response.session_id
            );
            drop(client);
            let back = ConnectRequest {
                session_id: response.session_id,
                password: response.password.clone(),
                ..ConnectRequest::new(Duration::from_secs(30))
            };
            let (_, again) = connect(address, &back)?;
            ensure!(again.session_id == response.session_id, "{again:?}");
            ensure!(again.password == response.password, "{again:?}");
        }
        for strange in [-1, 1, i64::MIN, i64::MAX] {
            let request = ConnectRequest {
                session_id: strange,
                ..ConnectRequest::new(Duration::from_secs(30))
            };
            let (mut client, response) = connect(address, &request)?;
            ensure!(response.is_expired(), "{strange:x}: {response:?}");
            ensure!(matches!(client.receive(PATIENCE)?, Received::Closed));
        }
        Ok(())
    });
}

#[test]
fn the_end_of_other_sessions_loses_no_reply() {
    on_target("frames-closes", "causeway-embedded", |address| {
        let (mut reader, _) = new_session(address, Duration::from_secs(20))?;
        done(&mut reader, &create("/n", 0))?;
        let requests = vec![read(op::GET_DATA, "/n", false); 100];
        for round in 0..200 {
            let (mut other, _) = new_session(address, Duration::from_secs(20))?;
            done(&mut other, &create("/n/e", 1))?;
            let sent = reader.send_all(&requests)?;
            other.send(&Request::Empty {
                op: op::CLOSE_SESSION,
            })?;
            let got = replies(&mut reader, sent.len())?;
            ensure!(got == sent, "round {round}: {got:?}");
            ensure!(replies(&mut other, 1)?.len() == 1);
        }
        Ok(())
    });
}

#[test]
fn any_frame_keeps_a_session_alive_and_silence_ends_it() {
    on_target("frames-alive", "causeway-embedded", |address| {
        let (mut owner, response) = new_session(address, Duration::from_secs(4))?;
        let timeout = Duration::from_millis(u64::try_from(response.timeout)?);
        done(&mut owner, &create("/alive", 1))?;
        let (mut other, _) = new_session(address, Duration::from_secs(40))?;
        let end = Instant::now() + timeout + timeout / 2;
        while Instant::now() < end {
            sleep(timeout / 4);
            done(&mut owner, &read(op::EXISTS, "/", false))?;
        }
        done(&mut other, &read(op::EXISTS, "/alive", true))?;
        let silent = Instant::now();
        // A timeout, and a tick in which servers look.
        match other.receive(timeout + Duration::from_secs(4))? {
            Received::Event(event) => ensure!(event.path == "/alive", "{event:?}"),
            what => bail!("{what:?} after {:?}", silent.elapsed()),
        }
        ensure!(
            silent.elapsed() > timeout * 3 / 4,
            "after {:?}",
            silent.elapsed()
        );
        ensure!(matches!(owner.receive(PATIENCE)?, Received::Closed));
        Ok(())
    });
}

#[test]
fn a_directory_of_both_classes_is_one_list() {
    on_target("frames-union", "causeway-merge-new", |address| {
        let (mut client, _) = new_session(address, Duration::from_secs(20))?;
        let (mut other, _) = new_session(address, Duration::from_secs(20))?;
        let list = |client: &mut Client| -> Result<(usize, Vec<String>, i32, i64)> {
            // What is under way of the other's writes is there behind a sync.
            let sync = Request::Path {
                op: op::SYNC,
                path: "/".to_string(),
            };
            let (mut events, _) = done(client, &sync)?;
            let (more, body) = done(client, &read(op::GET_CHILDREN2, "/", true))?;
            events.extend(more);
            let Body::NamesStat(names, stat) = body else {
                bail!("{body:?}");
            };
            ensure!(events.iter().all(|event| event.path == "/"), "{events:?}");
            let distinct: BTreeSet<&String> = names.iter().collect();
            ensure!(distinct.len() == names.len(), "{names:?}");
            ensure!(
                usize::try_from(stat.num_children)? == names.len(),
                "{names:?} {stat:?}"
            );
            Ok((events.len(), names, stat.cversion, stat.pzxid))
        };
        let delete = |path: &str| Request::Delete {
            path: path.to_string(),
            version: -1,
        };
        let (_, mut before, mut cversion, mut pzxid) = list(&mut client)?;
        for (request, name, added) in [
            (create("/general", 0), "general", true),
            (create("/discovery", 0), "discovery", true),
            (delete("/general"), "general", false),
            (create("/general", 1), "general", true),
        ] {
            done(&mut other, &request)?;
            let (events, names, counted, changed) = list(&mut client)?;
            ensure!(events == 1, "{request:?}: {events} events");
            ensure!(
                names.contains(&name.to_string()) == added,
                "{request:?}: {names:?}"
            );
            let count = if added {
                before.len() + 1
            } else {
                before.len() - 1
            };
            ensure!(names.len() == count, "{request:?}: {before:?} {names:?}");
            ensure!(counted == cversion + 1, "{request:?}: {cversion} {counted}");
            ensure!(changed > pzxid, "{request:?}: {pzxid} {changed}");
            (before, cversion, pzxid) = (names, counted, changed);
        }
        // What happens below does not concern the list.
        done(&mut other, &create("/discovery/orders", 0))?;
        done(&mut other, &create("/discovery/orders/one", 1))?;
        let (events, names, counted, _) = list(&mut client)?;
        ensure!(
            (events, names.len(), counted) == (0, before.len(), cversion),
            "{names:?}"
        );
        Ok(())
    });
}
