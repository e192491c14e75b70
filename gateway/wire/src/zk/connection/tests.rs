use super::*;
use crate::zk::connect::ConnectRequest;
use crate::zk::frame::FrameDecoder;
use crate::zk::multi::{MultiOp, MultiRequest};
use crate::zk::op_code::OpCode;
use crate::zk::request::{AddWatchRequest, ReadRequest, SetWatchesRequest};

const GET: i32 = OpCode::GetData as i32;

fn opened() -> Connection {
    let mut connection = Connection::default();
    connection.open(
        &ConnectResponse::established(&ConnectRequest::default(), 1, 4000, [0; 16]),
        0,
    );
    assert_eq!(connection.poll_output().unwrap().len(), 40);
    connection
}

fn frames(connection: &mut Connection) -> Vec<(ReplyHeader, Bytes)> {
    let mut bytes = BytesMut::new();
    while let Some(chunk) = connection.poll_output() {
        bytes.extend_from_slice(&chunk);
    }
    let mut frames = Vec::new();
    while let Some(frame) = FrameDecoder::new(usize::MAX).next(&mut bytes).unwrap() {
        frames.push(ReplyHeader::split(frame).unwrap());
    }
    assert!(bytes.is_empty());
    frames
}

fn headers(connection: &mut Connection) -> Vec<(i32, i64, i32)> {
    frames(connection)
        .into_iter()
        .map(|(header, _)| (header.xid, header.zxid, header.err))
        .collect()
}

fn path(path: &str) -> Watches {
    Watches::Path(path.into())
}

#[test]
fn every_frame_waits_for_its_turn() {
    let mut connection = opened();
    // An ordinary request, a ping, auth in both styles, two setWatches and an unknown operation.
    let requests = [
        (1, GET),
        (99, 11),
        (-4, 100),
        (7, 100),
        (-8, 101),
        (-8, 101),
        (8, 9999),
    ];
    let slots = requests.map(|(xid, op)| connection.request(xid, op, Watches::None).unwrap());
    for (slot, (zxid, err)) in slots
        .iter()
        .zip([
            (10, 0),
            (10, 0),
            (0, 0),
            (0, -115),
            (11, 0),
            (12, 0),
            (-1, -6),
        ])
        .rev()
    {
        assert_eq!(connection.poll_output(), None);
        connection.fill(*slot, zxid, err, Bytes::new()).unwrap();
    }
    let want = [
        (1, 10, 0),
        (-2, 10, 0),
        (-4, 0, 0),
        (7, 0, -115),
        (-8, 11, 0),
        (-8, 12, 0),
        (8, -1, -6),
    ];
    assert_eq!(headers(&mut connection), want);
}

#[test]
fn nothing_goes_out_before_the_connect_response() {
    let mut connection = Connection::default();
    let slot = connection.request(1, GET, Watches::None).unwrap();
    connection.fill(slot, 5, 0, Bytes::new()).unwrap();
    assert_eq!(connection.poll_output(), None);
    connection.open(
        &ConnectResponse::established(&ConnectRequest::default(), 1, 4000, [0; 16]),
        9,
    );
    assert_eq!(connection.poll_output().unwrap().len(), 40);
    assert_eq!(
        headers(&mut connection),
        [(1, 9, 0)],
        "not below what the client showed"
    );
}

#[test]
fn a_refused_connection_ends_with_its_response() {
    let mut connection = Connection::default();
    connection.request(1, GET, Watches::None).unwrap();
    connection.refuse(&ConnectResponse::expired(&ConnectRequest::default()));
    assert!(!connection.is_finished());
    assert_eq!(
        connection.request(2, GET, Watches::None),
        Err(ConnectionError::Closing)
    );
    assert_eq!(connection.poll_output().unwrap().len(), 40);
    assert_eq!(connection.poll_output(), None);
    assert!(connection.is_finished());
}

#[test]
fn the_close_reply_is_the_last_frame() {
    let mut connection = opened();
    let first = connection.request(1, GET, Watches::None).unwrap();
    let close = connection
        .request(2, OpCode::CloseSession as i32, Watches::None)
        .unwrap();
    let late = connection.request(3, GET, Watches::None).unwrap();
    connection.close_after(late);
    connection.close_after(close);
    assert_eq!(
        connection.request(4, GET, Watches::None),
        Err(ConnectionError::Closing)
    );
    connection.fill(close, 6, 0, Bytes::new()).unwrap();
    connection.fill(late, 6, 0, Bytes::new()).unwrap();
    assert_eq!(connection.poll_output(), None);
    assert!(!connection.is_finished());
    connection.fill(first, 5, 0, Bytes::new()).unwrap();
    assert_eq!(headers(&mut connection), [(1, 5, 0), (2, 6, 0)]);
    assert!(connection.is_finished());
    assert_eq!(
        connection.fill(late, 6, 0, Bytes::new()),
        Err(ConnectionError::NotWaiting)
    );
    assert_eq!(connection.queued_bytes(), 0);
}

#[test]
fn slots_are_bounded_and_answered_once() {
    let mut connection = Connection::new(ConnectionLimits { max_slots: 1 });
    connection.open(&ConnectResponse::expired(&ConnectRequest::default()), 0);
    let slot = connection.request(1, GET, Watches::None).unwrap();
    assert!(!connection.has_room());
    assert_eq!(
        connection.request(2, GET, Watches::None),
        Err(ConnectionError::TooManySlots)
    );
    connection.fill(slot, 1, 0, Bytes::new()).unwrap();
    assert_eq!(
        connection.fill(slot, 1, 0, Bytes::new()),
        Err(ConnectionError::NotWaiting)
    );
    while connection.poll_output().is_some() {}
    assert!(connection.has_room());
    assert_eq!(
        connection.fill(slot, 1, 0, Bytes::new()),
        Err(ConnectionError::NotWaiting)
    );
    assert_eq!(
        connection.fill(SlotId(50), 1, 0, Bytes::new()),
        Err(ConnectionError::NotWaiting)
    );
}

#[test]
fn large_bodies_are_not_copied() {
    let mut connection = opened();
    let large = Bytes::from(vec![7; 100_000]);
    for xid in [1, 2] {
        let slot = connection.request(xid, GET, Watches::None).unwrap();
        connection.fill(slot, 5, 0, large.clone()).unwrap();
    }
    assert_eq!(connection.queued_bytes(), 200_000);
    assert_eq!(connection.poll_output().unwrap().len(), 20);
    assert_eq!(connection.poll_output().unwrap().as_ptr(), large.as_ptr());
    assert_eq!(frames(&mut connection).len(), 1);
    assert_eq!(connection.queued_bytes(), 0);
}

#[test]
fn numbers_are_raised_never_lowered() {
    let mut connection = opened();
    for (xid, zxid) in [(1, 10), (2, 8), (3, 0), (4, -1), (5, 11)] {
        let slot = connection.request(xid, GET, Watches::None).unwrap();
        connection.fill(slot, zxid, 0, Bytes::new()).unwrap();
    }
    connection.event(9, "/a", Bytes::new());
    connection.event(0, "/a", Bytes::new());
    // Nothing is out yet, so the event of change 9 goes before the reply that shows 10.
    let want = [
        (-1, 9, 0),
        (1, 10, 0),
        (2, 10, 0),
        (3, 0, 0),
        (4, -1, 0),
        (5, 11, 0),
        (-1, -1, 0),
    ];
    assert_eq!(headers(&mut connection), want);
    assert_eq!(connection.last_zxid(), 11);
}

#[test]
fn events_go_before_what_reveals_them_and_behind_what_sets_their_watch() {
    // Slots by (watch, fill) with fill None while unfilled; event (zxid, path); where it comes out.
    let check = |slots: &[(Watches, Option<(i64, i32)>)], (zxid, at): (i64, &str), want: usize| {
        let mut connection = opened();
        let mut ids = Vec::new();
        for (xid, (watches, _)) in (0..).zip(slots) {
            ids.push(
                connection
                    .request(xid, OpCode::Exists as i32, watches.clone())
                    .unwrap(),
            );
        }
        for (id, (_, fill)) in ids.iter().zip(slots) {
            if let Some((zxid, err)) = fill {
                connection.fill(*id, *zxid, *err, Bytes::new()).unwrap();
            }
        }
        connection.event(zxid, at, Bytes::new());
        for id in ids {
            // Answered already, or not: afterwards all are.
            let _ = connection.fill(id, 100, 0, Bytes::new());
        }
        let got = headers(&mut connection)
            .iter()
            .position(|header| header.0 == -1);
        assert_eq!(got, Some(want), "{slots:?} {zxid} {at}");
    };
    let none = || Watches::None;
    check(&[], (6, "/a"), 0);
    check(&[(none(), None)], (6, "/a"), 0);
    check(&[(none(), Some((5, 0)))], (6, "/a"), 1);
    check(&[(none(), Some((6, 0)))], (6, "/a"), 0);
    check(
        &[
            (none(), Some((5, 0))),
            (none(), None),
            (none(), Some((5, 0))),
        ],
        (6, "/a"),
        1,
    );
    check(
        &[
            (none(), Some((5, 0))),
            (none(), Some((7, 0))),
            (none(), None),
        ],
        (6, "/a"),
        1,
    );
    // Its watch is set by a reply that waits behind another one.
    check(&[(none(), None), (path("/a"), Some((5, 0)))], (6, "/a"), 2);
    check(&[(none(), None), (path("/b"), Some((5, 0)))], (6, "/a"), 0);
    check(&[(none(), None), (path("/a"), Some((6, 0)))], (6, "/a"), 0);
    check(&[(none(), None), (path("/a"), None)], (6, "/a"), 0);
    check(
        &[(none(), None), (Watches::Many, Some((5, 0)))],
        (6, "/a"),
        2,
    );
    check(
        &[
            (none(), None),
            (Watches::Subtree("/a".into()), Some((5, 0))),
        ],
        (6, "/a/b"),
        2,
    );
    check(
        &[
            (none(), None),
            (Watches::Subtree("/a".into()), Some((5, 0))),
        ],
        (6, "/ab"),
        0,
    );
    check(
        &[(none(), None), (Watches::Subtree("/".into()), Some((5, 0)))],
        (6, "/a"),
        2,
    );
    // exists sets its watch on a missing node too; any other failure sets none.
    check(
        &[(none(), None), (path("/a"), Some((5, -101)))],
        (6, "/a"),
        2,
    );
    check(
        &[(none(), None), (path("/a"), Some((5, -102)))],
        (6, "/a"),
        0,
    );
    // A source that does not tell the zxid of its events gives them in order with its replies.
    check(&[(none(), Some((5, 0))), (none(), None)], (-1, "/a"), 1);
    check(&[(none(), None), (path("/a"), Some((5, 0)))], (-1, "/a"), 2);
}

#[test]
fn an_event_does_not_wait_for_the_slot_behind_it() {
    let mut connection = opened();
    connection.request(1, GET, Watches::None).unwrap();
    connection.event(6, "/a", Bytes::from_static(b"event"));
    assert_eq!(headers(&mut connection), [(-1, 6, 0)]);
}

#[test]
fn watches_of_requests() {
    let read = |watch| ReadRequest {
        path: "/a".into(),
        watch,
    };
    let check = |request: Request, want| assert_eq!(Watches::of(&request), want, "{request:?}");
    check(Request::GetData(read(true)), path("/a"));
    check(Request::GetData(read(false)), Watches::None);
    check(Request::Exists(read(true)), path("/a"));
    check(Request::GetChildren(read(true)), path("/a"));
    check(Request::GetChildren2(read(true)), path("/a"));
    check(
        Request::AddWatch(AddWatchRequest {
            path: "/a".into(),
            mode: 0,
        }),
        path("/a"),
    );
    check(
        Request::AddWatch(AddWatchRequest {
            path: "/a".into(),
            mode: 1,
        }),
        Watches::Subtree("/a".into()),
    );
    check(
        Request::SetWatches(SetWatchesRequest::default()),
        Watches::Many,
    );
    check(Request::Ping, Watches::None);
    let watching = vec![MultiOp::GetData(read(true))];
    let multi_read = MultiRequest { ops: watching };
    check(Request::MultiRead(multi_read), Watches::None);
}

/// What the random run below did, by request number.
#[derive(Debug, Default)]
struct Run {
    /// zxid at which each request was answered, and the path it watches.
    answers: Vec<(i64, Option<String>)>,
    /// By number.
    events: Vec<PlannedEvent>,
}

#[derive(Debug)]
struct PlannedEvent {
    zxid: i64,
    /// The last request whose reply, made before the change, sets a watch on the path.
    behind: Option<usize>,
}

/// What came out: the request or the event, and its header zxid.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Seen {
    Reply(usize, i64),
    Event(usize, i64),
}

/// The promises of the connection, over a whole transcript.
fn verify(run: &Run, seen: &[Seen]) -> Result<(), String> {
    let mut shown = 0;
    let mut next = 0;
    let mut at_event = vec![None; run.events.len()];
    let mut at_reply = vec![None; run.answers.len()];
    for (position, item) in seen.iter().enumerate() {
        let zxid = match *item {
            Seen::Reply(request, zxid) => {
                if request != next {
                    return Err(format!("reply {request} instead of {next}"));
                }
                next += 1;
                at_reply[request] = Some(position);
                zxid
            }
            Seen::Event(event, zxid) => {
                if at_event[event].replace(position).is_some() {
                    return Err(format!("event {event} twice"));
                }
                zxid
            }
        };
        if zxid < shown {
            return Err(format!("zxid falls from {shown} to {zxid}"));
        }
        shown = zxid;
    }
    if next != run.answers.len() {
        return Err("a reply is missing".into());
    }
    for (number, event) in run.events.iter().enumerate() {
        let Some(at) = at_event[number] else {
            return Err(format!("event {number} is missing"));
        };
        if let Some(behind) = event.behind
            && at_reply[behind] > Some(at)
        {
            return Err(format!(
                "event {number} before reply {behind} that sets its watch"
            ));
        }
        let first = event.behind.map_or(0, |behind| behind + 1);
        for (request, (answer, at_reply)) in
            run.answers.iter().zip(&at_reply).enumerate().skip(first)
        {
            if answer.0 >= event.zxid && *at_reply < Some(at) {
                return Err(format!("reply {request} reveals event {number} before it"));
            }
        }
    }
    Ok(())
}

#[test]
fn the_checker_sees_every_kind_of_fault() {
    let run = Run {
        answers: vec![(5, Some("/a".into())), (6, None)],
        events: vec![PlannedEvent {
            zxid: 6,
            behind: Some(0),
        }],
    };
    let (first, event, second) = (Seen::Reply(0, 5), Seen::Event(0, 6), Seen::Reply(1, 6));
    assert_eq!(verify(&run, &[first, event, second]), Ok(()));
    let wrong: [&[Seen]; 7] = [
        &[event, Seen::Reply(0, 6), second],
        &[first, second, event],
        &[first, second],
        &[first, event],
        &[Seen::Reply(1, 6), event, Seen::Reply(0, 6)],
        &[first, event, event, second],
        &[first, Seen::Event(0, 6), Seen::Reply(1, 5)],
    ];
    for seen in wrong {
        assert!(verify(&run, seen).is_err(), "{seen:?}");
    }
}

struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// Requests, answers in any order, changes with their events early or just behind an answer that shows them, and
/// output taken at any time.
fn random_run(seed: u64) -> (Run, Vec<Seen>, usize) {
    let mut random = Xorshift(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut connection = opened();
    let mut run = Run::default();
    let mut slots: Vec<SlotId> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let mut armed: Vec<String> = Vec::new();
    let mut bytes = BytesMut::new();
    let mut zxid = 100;
    let mut out_of_order = 0;

    let steps = 150;
    for step in 0.. {
        let is_draining = step >= steps;
        if is_draining && open.is_empty() {
            break;
        }
        match random.below(10) {
            0..=2 if !is_draining => {
                let watched = (random.below(2) == 0).then(|| format!("/{}", random.below(4)));
                let watches = watched.clone().map_or(Watches::None, Watches::Path);
                open.push(slots.len());
                let number = i32::try_from(slots.len()).unwrap();
                slots.push(connection.request(number, GET, watches).unwrap());
                run.answers.push((i64::MIN, watched));
            }
            3..=5 if !open.is_empty() => {
                let at = random.below(open.len());
                out_of_order += usize::from(at != 0);
                let request = open.remove(at);
                answer(&mut connection, &mut run, &slots, &mut armed, request, zxid);
            }
            6..=7 if !is_draining => {
                let changed = format!("/{}", random.below(4));
                zxid += 1;
                // The client's own write: its answer is there just before the event.
                if random.below(3) == 0
                    && let Some(at) = open
                        .iter()
                        .position(|request| run.answers[*request].1.is_none())
                {
                    let request = open.remove(at);
                    answer(&mut connection, &mut run, &slots, &mut armed, request, zxid);
                }
                if armed.contains(&changed) {
                    armed.retain(|path| *path != changed);
                    let sets_it = |(filled, watched): &(i64, Option<String>)| {
                        *filled >= 0 && *filled < zxid && watched.as_ref() == Some(&changed)
                    };
                    let behind = run.answers.iter().rposition(sets_it);
                    let number = u64::try_from(run.events.len()).unwrap();
                    connection.event(
                        zxid,
                        &changed,
                        Bytes::copy_from_slice(&number.to_be_bytes()),
                    );
                    run.events.push(PlannedEvent { zxid, behind });
                }
            }
            _ => {
                if let Some(chunk) = connection.poll_output() {
                    bytes.extend_from_slice(&chunk);
                }
            }
        }
    }
    while let Some(chunk) = connection.poll_output() {
        bytes.extend_from_slice(&chunk);
    }
    let mut seen = Vec::new();
    while let Some(frame) = FrameDecoder::default().next(&mut bytes).unwrap() {
        let (header, body) = ReplyHeader::split(frame).unwrap();
        seen.push(match usize::try_from(header.xid) {
            Ok(request) => Seen::Reply(request, header.zxid),
            Err(_) => {
                let number = u64::from_be_bytes(*body.first_chunk().unwrap());
                Seen::Event(usize::try_from(number).unwrap(), header.zxid)
            }
        });
    }
    assert_eq!(connection.in_flight(), 0);
    assert_eq!(connection.queued_bytes(), 0);
    (run, seen, out_of_order)
}

fn answer(
    connection: &mut Connection,
    run: &mut Run,
    slots: &[SlotId],
    armed: &mut Vec<String>,
    request: usize,
    zxid: i64,
) {
    connection
        .fill(slots[request], zxid, 0, Bytes::new())
        .unwrap();
    run.answers[request].0 = zxid;
    armed.extend(run.answers[request].1.clone());
}

#[test]
fn random_answers_and_events_keep_every_promise() {
    let (mut events, mut behind, mut shuffled) = (0, 0, 0);
    for seed in 1..=500 {
        let (run, seen, out_of_order) = random_run(seed);
        if let Err(fault) = verify(&run, &seen) {
            panic!("seed {seed}: {fault}\n{run:?}\n{seen:?}");
        }
        events += run.events.len();
        behind += run
            .events
            .iter()
            .filter(|event| event.behind.is_some())
            .count();
        shuffled += out_of_order;
    }
    assert!(
        events > 1000 && behind > 1000 && shuffled > 1000,
        "{events} {behind} {shuffled}"
    );
}
