//! A gateway before an ensemble of three whose members die one after the other: a client that comes back as every
//! client library does keeps its session, its nodes and its watches.

use anyhow::{Context as _, Result, bail, ensure};
use causeway_compat_tests::protocol::Protocol;
use causeway_compat_tests::raw::zookeeper::{Body, Request};
use causeway_compat_tests::settings::{CURATOR_BASE, Settings, curator};
use causeway_compat_tests::target::{self, Options, Running};
use causeway_compat_tests::{Gateway, Work};

use crate::stubborn::{Stubborn, create, exists};

#[test]
fn a_relayed_client_outlives_any_member() {
    outlives("proxy");
}

#[test]
fn a_client_with_general_nodes_outlives_any_member_after_the_take_over() {
    outlives("merge-new");
}

fn outlives(phase: &str) {
    Work::scenario(&format!("ensemble-{phase}"), |work| {
        let mut ensemble = target::start(work, "zookeeper-3.9-x3", &Options::default())?;
        let servers = ensemble
            .address(Protocol::ZooKeeper)
            .context("addresses of the ensemble")?;
        let settings = Settings {
            legacy_zookeeper: Some(servers),
            phase: Some(phase.to_string()),
            ..Settings::default()
        };
        let gateway = Gateway::start(work, "gateway", &settings)?;
        let address = gateway.target().zookeeper;
        let mut owner = Stubborn::new(&address)?;
        let mut writer = Stubborn::new(&address)?;
        owner.call(&create("/watched", b"0", 0))?;
        owner.call(&create("/mine", b"", 1))?;
        for parent in [CURATOR_BASE.to_string(), format!("{CURATOR_BASE}/orders")] {
            let reply = owner.call(&create(&parent, b"", 0))?;
            ensure!(matches!(reply.error, 0 | -110), "{parent}: {reply:?}");
        }
        let (path, value) = curator("orders", "one", "127.0.0.1", 4000);
        owner.call(&create(&path, value.as_bytes(), 1))?;
        for member in 1..=3 {
            owner.watch("/watched")?;
            act(&mut *ensemble, &format!("kill {member}"))?;
            let data = format!("while {member} is away");
            let set = Request::SetData {
                path: "/watched".to_string(),
                data: Some(data.into_bytes()),
                version: -1,
            };
            let reply = writer.call(&set)?;
            ensure!(reply.error == 0, "{reply:?}");
            owner
                .event("/watched")
                .with_context(|| format!("member {member} is away"))?;
            for path in ["/mine", path.as_str()] {
                let reply = owner.call(&exists(path))?;
                match reply.body {
                    Body::Stat(stat) if stat.ephemeral_owner == owner.session.session_id => {}
                    _ => bail!("{path} while {member} is away: {reply:?}"),
                }
            }
            act(&mut *ensemble, &format!("start {member}"))?;
        }
        Ok(())
    });
}

fn act(target: &mut dyn Running, verb: &str) -> Result<()> {
    target.fault(&verb.parse()?)
}
