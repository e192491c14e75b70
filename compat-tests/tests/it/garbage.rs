//! Garbage on any port costs that connection and nothing else.

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use causeway_compat_tests::clients::STEP;
use causeway_compat_tests::settings::{CURATOR_BASE, curator};
use causeway_compat_tests::target::connect;
use causeway_compat_tests::{Gateway, Settings, Work};

/// Bytes that look random and are the same in every run.
pub(crate) fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..length)
        .map(|_| {
            // Xorshift: enough to be no protocol.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// What is thrown at a port: a name and the bytes.
fn thrown() -> Vec<(&'static str, Vec<u8>)> {
    let frame = |payload: &[u8]| {
        let mut bytes = (payload.len() as u32).to_be_bytes().to_vec();
        bytes.extend_from_slice(payload);
        bytes
    };
    // ConnectRequest: version, lastZxidSeen, timeout, session id, password of 16 bytes, readOnly.
    let mut hello = vec![0; 4 + 8];
    hello.extend_from_slice(&4000_u32.to_be_bytes());
    hello.extend_from_slice(&[0; 8]);
    hello.extend_from_slice(&16_u32.to_be_bytes());
    hello.extend_from_slice(&[0; 17]);
    let after_hello = |rest: &[u8]| [frame(&hello), rest.to_vec()].concat();
    let mut vector = vec![0, 0, 0, 1, 0, 0, 0, 14]; // xid 1, multi
    vector.extend_from_slice(&[0xff; 64]);
    let mut path = vec![0, 0, 0, 1, 0, 0, 0, 4]; // xid 1, getData
    path.extend_from_slice(&0x7fff_ffff_u32.to_be_bytes());
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    vec![
        ("nothing at all", Vec::new()),
        ("one byte", vec![0]),
        ("random bytes", noise(4096, 7)),
        ("a lot of random bytes", noise(1 << 20, 99)),
        ("a frame of 2 GiB", 0x7fff_ffff_u32.to_be_bytes().to_vec()),
        (
            "a frame of negative length",
            0xffff_fff0_u32.to_be_bytes().to_vec(),
        ),
        ("an empty frame", frame(&[])),
        ("a frame of noise", frame(&noise(512, 3))),
        ("half a connect request", frame(&hello)[..20].to_vec()),
        (
            "a request of noise after the handshake",
            after_hello(&frame(&noise(256, 5))),
        ),
        ("a multi of nonsense", after_hello(&frame(&vector))),
        ("a path longer than the frame", after_hello(&frame(&path))),
        (
            "an oversized frame after the handshake",
            after_hello(&0x0800_0000_u32.to_be_bytes()),
        ),
        (
            "the preface of HTTP/2 and noise",
            [&preface[..], &noise(2048, 11)].concat(),
        ),
        ("the preface alone", preface.to_vec()),
        ("a request line without an end", vec![b'A'; 1 << 17]),
        (
            "headers without an end",
            [&b"GET / HTTP/1.1\r\n"[..], &b"x: y\r\n".repeat(20_000)].concat(),
        ),
        (
            "a body that is no JSON",
            b"POST /v3/kv/range HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n{{{".to_vec(),
        ),
        (
            "a client hello of TLS",
            [&[0x16, 3, 1, 2, 0][..], &noise(512, 13)].concat(),
        ),
    ]
}

#[test]
fn garbage_costs_one_connection() {
    Work::scenario("garbage", |work| {
        let mut gateway = Gateway::start(work, "gateway", &Settings::default())?;
        let target = gateway.target();
        let node = curator("calm", "one", "10.20.9.1", 7000);
        let mut held = target
            .kazoo()
            .register(work, "calm", std::slice::from_ref(&node))?;
        let mut watcher =
            target
                .kazoo()
                .watch(work, "calm-watch", &format!("{CURATOR_BASE}/calm"))?;
        let mut leases = target.etcdctl().watch(work, "calm-etcd", "calm/")?;
        watcher.drain();
        let memory = resident(&mut gateway)?;

        // Half-open connections stay open on all ports while everything else happens.
        let mut half_open = Vec::new();
        for (name, port) in gateway.listeners() {
            for (what, bytes) in thrown() {
                let mut stream = connect(port)?;
                // The gateway may close before all is written: that is an answer too.
                let _ = stream.write_all(&bytes);
                let _ = stream.set_read_timeout(Some(Duration::from_millis(30)));
                let _ = stream.read(&mut [0; 256]);
                gateway
                    .server()
                    .check_alive()
                    .map_err(|e| e.context(format!("{what} on {name}")))?;
                half_open.push(stream);
            }
        }
        let started = Instant::now();
        let names = target.kazoo().names(&format!("{CURATOR_BASE}/calm"))?;
        ensure!(names == ["one"], "others are served: {names:?}");
        target.etcdctl().run(&["put", "calm/key", "1"])?;
        leases.expect("calm/key", STEP)?;
        gateway.causeway(&["status"])?;
        ensure!(
            started.elapsed() < Duration::from_secs(10),
            "and in time: {:?}",
            started.elapsed()
        );
        for program in [&mut held.program, &mut watcher] {
            let lines = program.drain();
            ensure!(
                !lines.iter().any(|line| line.starts_with("state")),
                "no other connection broke: {lines:?}"
            );
        }
        let grown = resident(&mut gateway)?.saturating_sub(memory);
        ensure!(
            grown < 256 << 10,
            "an oversized frame is not allocated: {grown} KiB more"
        );
        Ok(())
    });
}

/// Resident memory of the gateway in KiB.
fn resident(gateway: &mut Gateway) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/status", gateway.server().pid()))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap_or_default();
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
