//! What stands before an etcd that answers everything itself: Causeway's relay beside etcd's own proxy.

use anyhow::Result;

use super::range::asked;
use super::{CLIENTS, connections, instance};
use crate::h2::Connection;
use crate::measure::{Figures, Rounds, Server, in_turn};
use crate::protobuf::Message;
use crate::report::Report;

/// Range of one key, straight at etcd and through both; from one client, where what is added to the median counts, and
/// from many, where the throughput does.
pub async fn beside(
    real: &Server,
    proxy: &Server,
    relay: &Server,
    rounds: Rounds,
    operations: usize,
    report: &mut Report,
) -> Result<()> {
    let servers = [real, proxy, relay];
    let (key, _) = instance("10.20.30.1");
    let request = Message::default().bytes(1, key.as_bytes());
    for clients in [1, CLIENTS] {
        let set_up = async |server: &Server| connections(server, clients).await;
        let round = async |server: &Server, connections: &mut Vec<Connection>| {
            let operations = match clients {
                1 => operations,
                _ => operations * 4,
            };
            asked(server, connections, operations, &request, 1).await
        };
        let rounds = Rounds {
            counted: rounds.counted * 2,
            ..rounds
        };
        let figures = in_turn(&servers, rounds, set_up, round).await?;
        let what = format!("Range of one key, {clients} at a time");
        report.costs(&what, &figures, None);
        if let [real, proxy, relay] = &figures[..] {
            if clients == 1 {
                added(report, real, proxy, relay);
            } else {
                let what = "relay: throughput, of grpc-proxy's";
                report.least(what, relay.server, relay.rate / proxy.rate, 1.5);
            }
        }
    }
    Ok(())
}

fn added(report: &mut Report, real: &Figures, proxy: &Figures, relay: &Figures) {
    let (ours, theirs) = (relay.p50 - real.p50, proxy.p50 - real.p50);
    let figure = format!("{ours:.0} µs beside {theirs:.0} µs");
    let what = "relay: added to the median, of what grpc-proxy adds";
    report.extra(what, relay.server, &figure, Some(ours / theirs), Some(0.5));
}
