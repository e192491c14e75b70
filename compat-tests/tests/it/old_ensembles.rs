//! Ensembles of older releases behind the gateway: what clients of today ask of them.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use causeway_compat_tests::raw::zookeeper::{
    self, Body, Client, ConnectRequest, Greeting, Received, Reply, Request, Stat, op,
};
use causeway_compat_tests::settings::{CURATOR_BASE, Settings, curator};
use causeway_compat_tests::target::{ZooKeeper, ZooKeeperRelease};
use causeway_compat_tests::{Gateway, Work, until};

const LIMIT: Duration = Duration::from_secs(10);

/// create2, createContainer and persistent watches came with 3.5 and 3.6; Curator makes every node with create2.
#[test]
fn create2_works_before_every_release() {
    for release in ZooKeeperRelease::OLD {
        Work::scenario(&format!("old-{release}"), |work| {
            let ensemble =
                ZooKeeper::start_release(work, "zookeeper", ZooKeeperRelease::Maven(release))?;
            ensure!(ensemble.version()?.starts_with(release));
            for phase in ["proxy", "mirror", "merge-legacy", "merge-new"] {
                let settings = Settings {
                    legacy_zookeeper: Some(ensemble.address()),
                    phase: Some(phase.to_string()),
                    ..Settings::default()
                };
                let gateway = Gateway::start(work, &format!("gateway-{phase}"), &settings)?;
                let address = gateway.target().zookeeper;
                general(&address, &format!("/{phase}")).context(phase)?;
                registration(&gateway, &ensemble, phase).context(phase)?;
                goodbye(&address, &format!("/{phase}")).context(phase)?;
            }
            Ok(())
        });
    }
}

/// Pipelined: the answers come in order, each create2 with the Stat that exists shows.
fn general(address: &str, root: &str) -> Result<()> {
    let mut client = session(address)?;
    made(client.call(&create2(root, 0), LIMIT)?.1)?;
    let watch = Request::Read {
        op: op::GET_CHILDREN,
        path: root.to_string(),
        watch: true,
    };
    client.call(&watch, LIMIT)?;
    let asked = client.send_all(&[
        create2(&format!("{root}/plain"), 0),
        exists(&format!("{root}/plain")),
        create2(&format!("{root}/ephemeral"), 1),
        exists(&format!("{root}/ephemeral")),
        create2(&format!("{root}/plain"), 0),
        create2(&format!("{root}/sequence-"), 3),
        Request::Empty { op: op::PING },
        exists(&format!("{root}/sequence-0000000002")),
    ])?;
    let (mut replies, mut events) = (Vec::new(), Vec::new());
    while replies.len() < asked.len() {
        match client.receive(LIMIT)? {
            Received::Reply(reply) => replies.push(reply),
            Received::Event(event) => events.push((replies.len(), event.path)),
            other => bail!("{other:?} after {replies:?}"),
        }
    }
    // The event of the first create comes before its answer.
    ensure!(events == [(0, root.to_string())], "{events:?}");
    // A ping may be answered earlier: nobody waits for its place.
    let pings = replies.iter().filter(|reply| reply.xid == -2).count();
    replies.retain(|reply| reply.xid != -2);
    let xids: Vec<i32> = replies.iter().map(|reply| reply.xid).collect();
    let expected: Vec<i32> = asked.iter().copied().filter(|xid| *xid != -2).collect();
    ensure!(pings == 1 && xids == expected, "{xids:?}");
    let [
        plain,
        plain_stat,
        ephemeral,
        ephemeral_stat,
        again,
        sequence,
        sequence_stat,
    ] = <[Reply; 7]>::try_from(replies).map_err(|replies| anyhow::anyhow!("{replies:?}"))?;
    ensure!(made(plain)? == (format!("{root}/plain"), stat(plain_stat)?));
    let (path, own) = made(ephemeral)?;
    ensure!((path, own) == (format!("{root}/ephemeral"), stat(ephemeral_stat)?));
    ensure!(own.ephemeral_owner != 0 && own.data_length == 4, "{own:?}");
    ensure!(again.error == -110, "{again:?}");
    let numbered = format!("{root}/sequence-0000000002");
    ensure!(made(sequence)? == (numbered, stat(sequence_stat)?));
    Ok(())
}

/// A registration made with create2 is there for clients of the gateway and in the ensemble.
fn registration(gateway: &Gateway, ensemble: &ZooKeeper, phase: &str) -> Result<()> {
    let address = gateway.target().zookeeper;
    let mut client = session(&address)?;
    let (path, value) = curator("old", phase, "127.0.0.1", 4000);
    for parent in [CURATOR_BASE.to_string(), format!("{CURATOR_BASE}/old")] {
        let (_, reply) = client.call(&create2(&parent, 0), LIMIT)?;
        ensure!(matches!(reply.error, 0 | -110), "{parent}: {reply:?}");
    }
    let register = zookeeper::create(op::CREATE2, &path, value.as_bytes(), 1);
    let (_, reply) = client.call(&register, LIMIT)?;
    let (made_path, own) = made(reply)?;
    ensure!(made_path == path && own.ephemeral_owner != 0, "{own:?}");
    for address in [address, ensemble.address()] {
        let there = until(LIMIT, "the registration", || {
            let mut reader = session(&address)?;
            let (_, reply) = reader.call(&exists(&path), LIMIT)?;
            stat(reply)
        });
        there.with_context(|| format!("{path} at {address}"))?;
    }
    Ok(())
}

/// The close goes out behind the create, before anybody can ask for the node's Stat.
fn goodbye(address: &str, root: &str) -> Result<()> {
    let mut client = session(address)?;
    client.send_all(&[
        create2(&format!("{root}/last"), 0),
        Request::Empty {
            op: op::CLOSE_SESSION,
        },
    ])?;
    let Received::Reply(reply) = client.receive(LIMIT)? else {
        bail!("no answer to the create")
    };
    let (path, own) = made(reply)?;
    ensure!(
        path == format!("{root}/last") && own.data_length == 4,
        "{own:?}"
    );
    let Received::Reply(reply) = client.receive(LIMIT)? else {
        bail!("no answer to the close")
    };
    ensure!(reply.error == 0, "{reply:?}");
    ensure!(matches!(client.receive(LIMIT)?, Received::Closed));
    let (_, reply) = session(address)?.call(&exists(&path), LIMIT)?;
    stat(reply).map(drop)
}

fn session(address: &str) -> Result<Client> {
    match Client::connect(address, &ConnectRequest::new(LIMIT), LIMIT)? {
        Greeting::Answered(client, _) => Ok(client),
        Greeting::Closed => bail!("closed in the handshake"),
    }
}

fn create2(path: &str, flags: i32) -> Request {
    zookeeper::create(op::CREATE2, path, b"data", flags)
}

fn exists(path: &str) -> Request {
    zookeeper::read(op::EXISTS, path, false)
}

/// What a create2 has made.
fn made(reply: Reply) -> Result<(String, Stat)> {
    match reply.body {
        Body::PathStat(path, stat) if reply.error == 0 => Ok((path, stat)),
        _ => bail!("{reply:?}"),
    }
}

fn stat(reply: Reply) -> Result<Stat> {
    match reply.body {
        Body::Stat(stat) if reply.error == 0 => Ok(stat),
        _ => bail!("{reply:?}"),
    }
}
