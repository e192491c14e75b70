//! What the ZooKeeper port does at each of its limits and above it, beside a good connection.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use causeway_compat_tests::clients::STEP;
use causeway_compat_tests::protocol::Protocol;
use causeway_compat_tests::raw::zookeeper::{
    self, Body, Client, ConnectRequest, Greeting, Received, Request, op, read,
};
use causeway_compat_tests::target::{self, Options, connect, http};
use causeway_compat_tests::{Gateway, Settings, Work, ZooKeeper, until};

/// ZooKeeper's `jute.maxbuffer`.
const MAX_FRAME: usize = 0xf_ffff;

fn session(address: &str) -> Result<Client> {
    match Client::connect(address, &ConnectRequest::new(Duration::from_secs(20)), STEP)? {
        Greeting::Answered(client, response) if response.session_id != 0 => Ok(client),
        Greeting::Answered(..) => bail!("expired"),
        Greeting::Closed => bail!("closed"),
    }
}

fn create(path: &str) -> Request {
    zookeeper::create(op::CREATE, path, b"", 0)
}

fn answers(client: &mut Client) -> Result<()> {
    let (_, reply) = client.call(&read(op::EXISTS, "/", false), STEP)?;
    ensure!(reply.error == 0, "{reply:?}");
    Ok(())
}

fn closes(client: &mut Client, what: &str) -> Result<()> {
    match client.receive(STEP)? {
        Received::Closed => Ok(()),
        other => bail!("{what}: {other:?}"),
    }
}

/// A gateway with a line in its section `[zookeeper]`.
fn gateway(work: &Work, name: &str, setting: &str) -> Result<Gateway> {
    let settings = Settings {
        extra: format!("[zookeeper]\n{setting}\n"),
        ..Settings::default()
    };
    Gateway::start(work, name, &settings)
}

/// The limit was counted, and its setting is named in the log.
fn told(gateway: &mut Gateway, setting: &str) -> Result<()> {
    let (_, metrics) = http(gateway.admin_port(), "GET", "/metrics", "")?;
    let row = format!("causeway_zookeeper_limit_total{{setting=\"{setting}\"}} ");
    let hits = metrics.lines().find_map(|line| line.strip_prefix(&row));
    let hits: u64 = hits.context("no such metric")?.parse()?;
    ensure!(hits > 0, "{setting} was not counted");
    let log = gateway.server().log();
    let named = format!("zookeeper.{setting}");
    ensure!(log.contains(&named), "the log does not name {named}: {log}");
    Ok(())
}

#[test]
fn connections() {
    Work::scenario("limit-connections", |work| {
        for setting in ["max_connections", "max_connections_per_address"] {
            let mut gateway = gateway(work, setting, &format!("{setting} = 3"))?;
            let address = gateway.target().zookeeper;
            let mut good = session(&address)?;
            let second = session(&address)?;
            let third = session(&address)?;
            let mut over = Client::open(&address, STEP)?;
            closes(&mut over, "one too many is closed without a word")?;
            answers(&mut good)?;
            drop((second, third));
            until(STEP, "there is room again", || session(&address))?;
            answers(&mut good)?;
            told(&mut gateway, setting)?;
        }
        Ok(())
    });
}

/// What is true of a frame at the limit and above it, and of replies, on a real server and here.
fn frames(address: &str) -> Result<()> {
    let mut good = session(address)?;
    good.call(&create("/limit"), STEP)?;
    // Length, xid, operation, path and version: what is left of a whole frame is data.
    let data = MAX_FRAME - (4 + 4 + 4 + "/limit".len() + 4 + 4);
    let set = |data: usize| Request::SetData {
        path: "/limit".to_string(),
        data: Some(vec![b'x'; data]),
        version: -1,
    };
    let mut client = session(address)?;
    let (_, reply) = client.call(&set(data), STEP)?;
    ensure!(reply.error == 0, "a frame of the largest size: {reply:?}");
    let _ = client.send(&set(data + 1));
    closes(&mut client, "a byte more closes without a reply")?;
    for length in [-1, i32::MIN, i32::MAX] {
        let mut client = session(address)?;
        client.send_bytes(&length.to_be_bytes())?;
        closes(&mut client, "a length that cannot be")?;
        let mut fresh = Client::open(address, STEP)?;
        fresh.send_bytes(&length.to_be_bytes())?;
        closes(&mut fresh, "nor before the handshake")?;
    }
    let (_, reply) = good.call(&read(op::GET_DATA, "/limit", false), STEP)?;
    match reply.body {
        Body::Data(Some(bytes), stat) if bytes.len() == data && stat.version == 1 => {}
        other => bail!("exactly the first was set: {other:?}"),
    }
    // A reply may be larger than any frame of a client: it is the client that has a limit there.
    let name = "n".repeat(2000);
    let many: Vec<Request> = (0..600)
        .map(|at| create(&format!("/limit/{at:04}{name}")))
        .collect();
    for some in many.chunks(100) {
        good.send_all(some)?;
        for _ in some {
            ensure!(
                matches!(good.receive(STEP)?, Received::Reply(reply) if reply.error == 0),
                "created"
            );
        }
    }
    let (_, reply) = good.call(&read(op::GET_CHILDREN, "/limit", false), STEP)?;
    match reply.body {
        Body::Names(names) if names.len() == 600 => Ok(()),
        other => bail!("600 names in one reply: {other:?}"),
    }
}

#[test]
fn frame_sizes() {
    Work::scenario("limit-frames", |work| {
        let real = target::start(work, "zookeeper-3.9", &Options::default())?;
        frames(&real.one_address(Protocol::ZooKeeper)?).context("a real server")?;
        let mut gateway = Gateway::start(work, "gateway", &Settings::default())?;
        frames(&gateway.target().zookeeper).context("the gateway")?;
        told(&mut gateway, "max_frame")
    });
}

/// Sends many requests at once and wants every reply, in order, without an error.
fn pipelined(client: &mut Client, count: usize) -> Result<()> {
    let requests = vec![read(op::GET_DATA, "/", false); count];
    let xids = client.send_all(&requests)?;
    for xid in xids {
        match client.receive(STEP)? {
            Received::Reply(reply) if reply.xid == xid && reply.error == 0 => {}
            other => bail!("{xid}: {other:?}"),
        }
    }
    Ok(())
}

#[test]
fn requests_in_flight() {
    Work::scenario("limit-requests", |work| {
        let setting = "max_requests_per_connection";
        let mut gateway = gateway(work, setting, &format!("{setting} = 4"))?;
        let address = gateway.target().zookeeper;
        let (mut good, mut greedy) = (session(&address)?, session(&address)?);
        pipelined(&mut good, 4)?;
        pipelined(&mut greedy, 2000)?;
        answers(&mut good)?;
        told(&mut gateway, setting)?;

        // Requests wait where a store behind is asked: it is held still, so that they pile up.
        let setting = "max_outstanding_requests";
        let mut zookeeper = ZooKeeper::start(work, "zookeeper")?;
        let settings = Settings {
            legacy_zookeeper: Some(zookeeper.address()),
            extra: format!("[zookeeper]\n{setting} = 10\n"),
            ..Settings::default()
        };
        let mut gateway = Gateway::start(work, setting, &settings)?;
        let address = gateway.target().zookeeper;
        let (mut good, mut greedy) = (session(&address)?, session(&address)?);
        zookeeper.server().freeze(true);
        let requests = vec![read(op::GET_DATA, "/", false); 2000];
        let sent = greedy.send_all(&requests);
        let piled = until(STEP, "they pile up", || told(&mut gateway, setting));
        zookeeper.server().freeze(false);
        piled?;
        for xid in sent? {
            match greedy.receive(STEP)? {
                Received::Reply(reply) if reply.xid == xid && reply.error == 0 => {}
                other => bail!("{xid}: {other:?}"),
            }
        }
        answers(&mut good)
    });
}

#[test]
fn watches() {
    Work::scenario("limit-watches", |work| {
        let setting = "max_watches_per_connection";
        let mut gateway = gateway(work, setting, &format!("{setting} = 5"))?;
        let address = gateway.target().zookeeper;
        let (mut good, mut greedy) = (session(&address)?, session(&address)?);
        for at in 0..5 {
            for _ in 0..2 {
                greedy.call(&read(op::EXISTS, &format!("/{at}"), true), STEP)?;
            }
        }
        good.call(&create("/3"), STEP)?;
        match greedy.receive(STEP)? {
            Received::Event(event) if event.path == "/3" => {}
            other => bail!("at the limit all of them work: {other:?}"),
        }
        greedy.call(&read(op::EXISTS, "/3", true), STEP)?;
        greedy.send(&read(op::EXISTS, "/5", true))?;
        closes(&mut greedy, "one too many closes the connection")?;
        answers(&mut good)?;
        told(&mut gateway, setting)
    });
}

#[test]
fn session_timeouts() {
    Work::scenario("limit-timeouts", |work| {
        let granted = "min_session_timeout_ms = 5000\nmax_session_timeout_ms = 6000";
        let gateway = gateway(work, "gateway", granted)?;
        let address = gateway.target().zookeeper;
        for (asked, wanted) in [
            (1, 5000),
            (5000, 5000),
            (5500, 5500),
            (6000, 6000),
            (60_000, 6000),
        ] {
            let request = ConnectRequest::new(Duration::from_millis(asked));
            match Client::connect(&address, &request, STEP)? {
                Greeting::Answered(_, response) => {
                    ensure!(response.timeout == wanted, "{asked}: {}", response.timeout);
                }
                Greeting::Closed => bail!("{asked}: closed"),
            }
        }
        Ok(())
    });
}

#[test]
fn a_connection_that_says_nothing_is_closed_in_time() {
    Work::scenario("limit-silence", |work| {
        let gateway = Gateway::start(work, "gateway", &Settings::default())?;
        let port = gateway
            .listeners()
            .iter()
            .find(|(name, _)| *name == "zookeeper")
            .map(|(_, port)| *port);
        let mut stream = connect(port.context("no such port")?)?;
        stream.write_all(&[0, 0])?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let count = stream.read(&mut [0; 8]).context("closed in time")?;
        ensure!(count == 0, "closed without a word");
        Ok(())
    });
}
