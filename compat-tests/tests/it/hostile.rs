//! A thousand malformed or hostile connections do not disturb a good one.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use causeway_compat_tests::clients::STEP;
use causeway_compat_tests::raw::zookeeper::{
    Client, ConnectRequest, Greeting, Received, Request, op, open_acl,
};
use causeway_compat_tests::target::connect;
use causeway_compat_tests::{Gateway, Settings, Work};

use crate::garbage::noise;

/// How many connections are made, by how many at a time, and how many of each stay open.
const CONNECTIONS: usize = 1000;
const AT_A_TIME: usize = 20;
const HELD: usize = 15;

/// Beyond this an answer is late, on a machine as slow as they come.
const LATE: Duration = Duration::from_secs(10);

/// More memory than this, in KiB, is not bounded by what a connection may hold.
const GROWTH: u64 = 400 << 10;

fn frame(payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

fn hello() -> Vec<u8> {
    frame(&ConnectRequest::new(Duration::from_secs(10)).encode())
}

/// A request: number, operation, body.
fn request(op: i32, body: &[u8]) -> Vec<u8> {
    frame(&[&[0, 0, 0, 1][..], &op.to_be_bytes(), body].concat())
}

fn string(text: &[u8]) -> Vec<u8> {
    frame(text)
}

/// What connection number `at` does with its socket.
fn attack(at: usize, stream: &mut TcpStream) -> std::io::Result<()> {
    let kinds = 16;
    let big = i32::MAX.to_be_bytes();
    match at % kinds {
        0 => stream.write_all(&noise(8192, 2 * at as u64)),
        1 => stream.write_all(&big),
        2 => stream.write_all(&(-(at as i32) - 1).to_be_bytes()),
        // Half a frame of the largest size, kept open.
        3 => {
            stream.write_all(&hello())?;
            stream.write_all(&0xf_ffff_u32.to_be_bytes())?;
            stream.write_all(&vec![7; 200 << 10])
        }
        // A handshake a byte at a time that does not end.
        4 => {
            for byte in hello().iter().take(12) {
                stream.write_all(&[*byte])?;
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        }
        // Lists that promise two thousand million entries.
        5 => {
            stream.write_all(&hello())?;
            let lists = [&[0; 8][..], &big, &big, &big].concat();
            stream.write_all(&request(op::SET_WATCHES, &lists))?;
            let acl = [&string(b"/x")[..], &string(b""), &big, &[0; 4]].concat();
            stream.write_all(&request(op::CREATE, &acl))
        }
        // A multi inside a multi inside a multi …
        6 => {
            stream.write_all(&hello())?;
            let nested: Vec<u8> = [0, 0, 0, 14, 0, 0xff, 0xff, 0xff, 0xff].repeat(20_000);
            stream.write_all(&request(op::MULTI, &nested))
        }
        // A multi of as many operations as fit.
        7 => {
            stream.write_all(&hello())?;
            let check = [
                &[0, 0, 0, 13, 0, 0xff, 0xff, 0xff, 0xff][..],
                &string(b"/"),
                &[0xff; 4],
            ]
            .concat();
            stream.write_all(&request(op::MULTI, &check.repeat(30_000)))
        }
        8 => {
            stream.write_all(&hello())?;
            stream.write_all(&request(9999 + at as i32, &noise(64, 2 * at as u64)))
        }
        // Asks for more and more and reads nothing.
        9 => {
            stream.write_all(&hello())?;
            stream.set_write_timeout(Some(Duration::from_millis(200)))?;
            let get = request(
                op::GET_DATA,
                &[&string(b"/hostile/large")[..], &[0]].concat(),
            );
            stream.write_all(&get.repeat(2000))
        }
        // A session that is opened and dropped, with an ephemeral.
        10 => {
            stream.write_all(&hello())?;
            let path = format!("/hostile/e{at}");
            let body = [
                &string(path.as_bytes())[..],
                &string(b""),
                &1_i32.to_be_bytes(),
                &31_i32.to_be_bytes(),
                &string(b"world"),
                &string(b"anyone"),
                &1_i32.to_be_bytes(),
            ]
            .concat();
            stream.write_all(&request(op::CREATE, &body))?;
            stream.shutdown(std::net::Shutdown::Both)
        }
        // Every operation with a body of noise.
        11 => {
            stream.write_all(&hello())?;
            for number in (-11..23).chain(100..108) {
                stream.write_all(&request(
                    number,
                    &noise(48, 2 * (at as u64 + u64::from(number.unsigned_abs()))),
                ))?;
            }
            Ok(())
        }
        // A session that is somebody else's.
        12 => {
            let mut other = ConnectRequest::new(Duration::from_secs(10));
            other.session_id = at as i64 + 1;
            other.password = Some(noise(16, 2 * at as u64));
            stream.write_all(&frame(&other.encode()))
        }
        // Paths that are none.
        13 => {
            stream.write_all(&hello())?;
            for path in [&b"//"[..], b"/\0", b"/../..", b"\xff\xfe", &[b'/'; 5000]] {
                let body = [&string(path)[..], &[1]].concat();
                stream.write_all(&request(op::EXISTS, &body))?;
            }
            Ok(())
        }
        // Watches without end.
        14 => {
            stream.write_all(&hello())?;
            let mut all = Vec::new();
            for number in 0..2000 {
                let path = format!("/hostile/watched/{at}/{number}");
                let body = [&string(path.as_bytes())[..], &[1]].concat();
                all.extend_from_slice(&request(op::EXISTS, &body));
            }
            stream.write_all(&all)
        }
        _ => stream.write_all(b"GET / HTTP/1.1\r\nHost: causeway\r\n\r\n"),
    }
}

/// Makes every so-many-th connection and keeps the last of them open until the good ones are through.
fn attacker(port: u16, first: usize, made: &AtomicUsize, over: &AtomicBool) -> Result<()> {
    let mut held = std::collections::VecDeque::new();
    for at in (first..CONNECTIONS).step_by(AT_A_TIME) {
        let mut stream = connect(port)?;
        // The gateway may close in the middle: that is an answer too.
        let _ = attack(at, &mut stream);
        if at % 3 == 0 && at % 16 != 9 {
            stream.set_read_timeout(Some(Duration::from_millis(20)))?;
            let _ = stream.read(&mut [0; 4096]);
        }
        held.push_back(stream);
        if held.len() > HELD {
            held.pop_front();
        }
        made.fetch_add(1, Ordering::Relaxed);
    }
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn session(address: &str) -> Result<Client> {
    match Client::connect(address, &ConnectRequest::new(Duration::from_secs(20)), STEP)? {
        Greeting::Answered(client, _) => Ok(client),
        Greeting::Closed => bail!("a good connection is refused"),
    }
}

fn create(path: &str, data: Vec<u8>) -> Request {
    Request::Create {
        op: op::CREATE,
        path: path.to_string(),
        data: Some(data),
        acl: Some(open_acl()),
        flags: 0,
        ttl: None,
    }
}

/// One round of a good client: requests that are answered in order and in time, and a watch that fires.
fn round(watcher: &mut Client, writer: &mut Client, at: usize) -> Result<Duration> {
    let read = |watch| Request::Read {
        op: op::GET_DATA,
        path: "/good".to_string(),
        watch,
    };
    let started = Instant::now();
    let (events, reply) = watcher.call(&read(true), LATE)?;
    ensure!(
        events.is_empty() && reply.error == 0,
        "{at}: {events:?} {reply:?}"
    );
    let set = Request::SetData {
        path: "/good".to_string(),
        data: Some(at.to_string().into_bytes()),
        version: i32::try_from(at)?,
    };
    let (_, reply) = writer.call(&set, LATE)?;
    ensure!(reply.error == 0, "{at}: {reply:?}");
    match watcher.receive(LATE)? {
        Received::Event(event) if event.path == "/good" && event.kind == 3 => {}
        other => bail!("{at}: instead of the event {other:?}"),
    }
    let xids = watcher.send_all(&vec![read(false); 20])?;
    for xid in xids {
        match watcher.receive(LATE)? {
            Received::Reply(reply) if reply.xid == xid && reply.error == 0 => {}
            other => bail!("{at}: instead of reply {xid} {other:?}"),
        }
    }
    Ok(started.elapsed())
}

#[test]
fn a_thousand_hostile_connections_do_not_disturb_a_good_one() {
    Work::scenario("hostile", |work| {
        let mut gateway = Gateway::start(work, "gateway", &Settings::default())?;
        let address = gateway.target().zookeeper;
        let (_, port) = address.rsplit_once(':').context("no port")?;
        let port: u16 = port.parse()?;
        let (mut watcher, mut writer) = (session(&address)?, session(&address)?);
        for (path, size) in [("/good", 1), ("/hostile", 1), ("/hostile/large", 50_000)] {
            let (_, reply) = writer.call(&create(path, vec![b'x'; size]), STEP)?;
            ensure!(reply.error == 0, "{path}: {reply:?}");
        }
        let before = resident(&mut gateway)?;
        let (made, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (rounds, slowest, most) = std::thread::scope(|scope| -> Result<_> {
            let (made, over) = (&made, &over);
            let attackers: Vec<_> = (0..AT_A_TIME)
                .map(|first| scope.spawn(move || attacker(port, first, made, over)))
                .collect();
            let result = (|| {
                let (mut at, mut slowest, mut most) = (0, Duration::ZERO, 0);
                // Rounds go on for a while after the last has come, while all that are held stay open.
                let mut more = 20;
                while more > 0 {
                    slowest = slowest.max(round(&mut watcher, &mut writer, at)?);
                    at += 1;
                    if at % 10 == 0 {
                        most = most.max(resident(&mut gateway)?);
                    }
                    if made.load(Ordering::Relaxed) == CONNECTIONS {
                        more -= 1;
                    }
                    ensure!(
                        !attackers.iter().any(|one| one.is_finished()),
                        "an attacker is not let in"
                    );
                }
                Ok((at, slowest, most))
            })();
            over.store(true, Ordering::Relaxed);
            result
        })?;
        gateway.server().check_alive()?;
        let grown = most.saturating_sub(before);
        println!("{rounds} rounds, the slowest {slowest:?}, {grown} KiB more at most");
        ensure!(slowest < LATE, "the slowest round took {slowest:?}");
        ensure!(grown < GROWTH, "{grown} KiB more");
        // Those that were dropped leave nothing behind but sessions that end in their time.
        let (_, reply) = writer.call(
            &Request::Empty {
                op: op::CLOSE_SESSION,
            },
            STEP,
        )?;
        ensure!(reply.error == 0, "{reply:?}");
        Ok(())
    });
}

/// Resident memory of the gateway in KiB.
fn resident(gateway: &mut Gateway) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/status", gateway.server().pid()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    Ok(line
        .unwrap_or_default()
        .trim()
        .trim_end_matches(" kB")
        .parse()?)
}
