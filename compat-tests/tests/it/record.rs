//! Recorders hide nothing from clients, replays find what is otherwise, and new calls are noticed.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};

use anyhow::{Context as _, Result, ensure};
use causeway_compat_tests::protocol::Protocol;
use causeway_compat_tests::record::patterns::{collect, print, read, unknown};
use causeway_compat_tests::record::replay::{Options, Report, replay_with};
use causeway_compat_tests::record::transcript::{Entry, Side};
use causeway_compat_tests::record::{Recorder, Run, Transcript, folder, patterns, transcripts};
use causeway_compat_tests::target::{Etcd, ZooKeeper};
use causeway_compat_tests::{Etcdctl, Kazoo, Work};

fn run(client: &str, prefix: &str) -> Run {
    Run {
        client: client.to_string(),
        scenario: "everyday".to_string(),
        server: "real".to_string(),
        prefix: prefix.to_string(),
    }
}

/// A server that sends back, each turned over, whatever bytes come, then ends its side as the client did.
fn mirror() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let (mut stream, mut all) = (stream, Vec::new());
                let _ = stream.read_to_end(&mut all);
                all.iter_mut().for_each(|byte| *byte = !*byte);
                let _ = stream.write_all(&all);
            });
        }
    });
    Ok(address)
}

#[test]
fn whatever_bytes_pass_a_recorder_unchanged() {
    let upstream = mirror().unwrap();
    // Not one of them is a message of the protocol; a half-closed connection goes on the other way.
    let noise: Vec<u8> = (0..300_000_u32)
        .map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    for subject in [Protocol::ZooKeeper, Protocol::Etcd] {
        for start in [
            &b""[..],
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"POST /v3/kv/range HTTP/1.1\r\n",
        ] {
            let recorder = Recorder::start(subject, &upstream).unwrap();
            let bytes = [start, &noise].concat();
            let mut stream = TcpStream::connect(recorder.address()).unwrap();
            stream.write_all(&bytes).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut back = Vec::new();
            stream.read_to_end(&mut back).unwrap();
            assert!(back.iter().map(|byte| !byte).eq(bytes.iter().copied()));
            let transcript = recorder.finish(run("noise", "/n"));
            Transcript::parse(&transcript.to_string()).unwrap();
        }
    }
}

#[test]
fn refused_upstream_is_refused_downstream() {
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let recorder = Recorder::start(Protocol::ZooKeeper, &free.to_string()).unwrap();
    let mut stream = TcpStream::connect(recorder.address()).unwrap();
    // A reset and not an end.
    assert!(stream.read(&mut [0]).is_err());
    let text = recorder.finish(run("x", "/x")).to_string();
    assert!(text.ends_with("1 > open\n1 < refused\n"), "{text}");
}

/// Replays `transcript` with the first line changed that holds `from`.
fn changed(transcript: &Transcript, from: &str, to: &str, address: &str) -> Result<Report> {
    let text = transcript.to_string();
    ensure!(text.contains(from), "no line holds {from}:\n{text}");
    let text = text.replacen(from, to, 1);
    replay_with(&Transcript::parse(&text)?, address, Options::default())
}

/// Replays it without the first message of the server that is of this kind.
fn without(transcript: &Transcript, kind: &str, address: &str) -> Result<Report> {
    let mut transcript = transcript.clone();
    let at = transcript
        .entries
        .iter()
        .position(|entry| {
            matches!(entry, Entry::Line(line) if line.side == Side::Server && line.kind == kind)
        })
        .with_context(|| format!("no {kind}"))?;
    transcript.entries.remove(at);
    replay_with(&transcript, address, Options::default())
}

fn clean(what: &str, report: &Report) -> Result<()> {
    ensure!(
        report.differences.is_empty() && report.stopped.is_none() && report.compared > 10,
        "{what}: {report:#?}"
    );
    Ok(())
}

#[test]
fn a_recorded_zookeeper_client_is_replayed() {
    Work::scenario("record-zookeeper", |work| {
        let server = ZooKeeper::start(work, "zookeeper")?;
        let direct = server.kazoo().everyday("/direct")?;
        let recorder = Recorder::start(Protocol::ZooKeeper, &server.address())?;
        let through = Kazoo::new(&recorder.address()).everyday("/recorded")?;
        ensure!(
            direct == through,
            "{direct:?} but through the recorder {through:?}"
        );
        let transcript = recorder.finish(run("kazoo", "/recorded"));
        ensure!(transcript == Transcript::parse(&transcript.to_string())?);

        clean(
            "as recorded",
            &replay_with(&transcript, &server.address(), Options::default())?,
        )?;
        let report = changed(&transcript, "version: 1,", "version: 7,", &server.address())?;
        ensure!(
            !report.differences.is_empty(),
            "a wrong version is not found"
        );
        let report = without(&transcript, "event", &server.address())?;
        ensure!(
            !report.differences.is_empty(),
            "an event too many is not found"
        );
        Ok(())
    });
}

#[test]
fn a_recorded_etcd_client_is_replayed() {
    Work::scenario("record-etcd", |work| {
        let server = Etcd::start(work, "etcd")?;
        let script = |etcdctl: &Etcdctl, prefix: &str| -> Result<Vec<String>> {
            let key = format!("{prefix}/a");
            let long = "x".repeat(100_000);
            ensure!(etcdctl.run(&["put", &key, "1"])?.contains("OK"));
            Ok(vec![
                etcdctl.run(&["put", &key, "2", "--prev-kv"])?,
                etcdctl.run(&["get", prefix, "--prefix", "--keys-only=false"])?,
                etcdctl.run(&["put", &format!("{prefix}/long"), &long])?,
                etcdctl.run(&["get", &format!("{prefix}/long")])?,
                etcdctl.run(&["del", &key, "--prev-kv"])?,
            ])
        };
        let direct = script(&server.etcdctl(), "same")?;
        let recorder = Recorder::start(Protocol::Etcd, &server.address())?;
        server.etcdctl().run(&["del", "same", "--prefix"])?;
        let etcdctl = Etcdctl::new(&recorder.address());
        let through = script(&etcdctl, "same")?;
        ensure!(direct == through, "other outputs through the recorder");
        let lease = etcdctl.run(&["lease", "grant", "60"])?;
        let id = lease.split_whitespace().nth(1).context("a lease")?;
        etcdctl.run(&["put", &format!("same/{id}"), "leased", "--lease", id])?;
        etcdctl.run(&["lease", "keep-alive", "--once", id])?;
        etcdctl.run(&["lease", "revoke", id])?;
        let transcript = recorder.finish(run("etcdctl", "same"));
        ensure!(transcript == Transcript::parse(&transcript.to_string())?);
        ensure!(
            transcript.to_string().len() < 100_000,
            "the long value is written out"
        );

        clean(
            "as recorded",
            &replay_with(&transcript, &server.address(), Options::default())?,
        )?;
        let report = changed(&transcript, "version: 2", "version: 7", &server.address())?;
        ensure!(
            !report.differences.is_empty(),
            "a wrong version is not found"
        );
        let report = without(&transcript, "Put", &server.address())?;
        ensure!(
            !report.differences.is_empty(),
            "a reply too many is not found"
        );
        Ok(())
    });
}

#[test]
fn the_list_of_patterns_knows_every_transcript_and_nothing_else() {
    let all = transcripts(&folder()).unwrap();
    assert!(!all.is_empty());
    let all: Vec<Transcript> = all.into_iter().map(|(_, transcript)| transcript).collect();
    let known = read(&folder().join("patterns.txt")).unwrap();
    let new = unknown(&known, &all);
    assert!(new.is_empty(), "{new:#?}");
    assert_eq!(
        print(&known),
        print(&collect(&all)),
        "patterns that no transcript shows any more"
    );
}

#[test]
fn a_new_pattern_is_found_with_its_line() {
    let text = "# subject: etcd\n# client: etcdctl 9\n# scenario: kv\n# server: x\n# prefix: p\n# replay: yes\n\
        1 > open\n1.1 > call {method: \"/etcdserverpb.KV/Range\"}\n1.1 > Range {key: \"${prefix}/\", range_end: \"${prefix}0\", limit: 1}\n";
    let transcript = Transcript::parse(text).unwrap();
    let seen = patterns(&transcript);
    assert_eq!(
        seen.iter().collect::<Vec<_>>(),
        ["etcd Range prefix limit=1"]
    );
    let known = collect([&transcript]);
    assert!(unknown(&known, [&transcript]).is_empty());
    let other =
        Transcript::parse(&text.replace("limit: 1", "limit: 1, serializable: true")).unwrap();
    let new = unknown(&known, [&other]);
    assert_eq!(new.len(), 1);
    assert_eq!(
        new[0].to_string(),
        "etcdctl 9 in kv, line 9: etcd Range prefix limit=1 serializable (not seen before)"
    );
    // Known of another client is not known of this one.
    let other = Transcript::parse(&text.replace("etcdctl 9", "jetcd 1")).unwrap();
    assert!(unknown(&known, [&other])[0].others);
}
