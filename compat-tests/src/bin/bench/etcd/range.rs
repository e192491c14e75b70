//! Range over a service.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::future::try_join_all;

use super::{CLIENTS, INSTANCES, RANGE, connections, service};
use crate::h2::Connection;
use crate::measure::{Figures, Rounds, Sample, Server, Span, in_turn};
use crate::protobuf::{Message, number};
use crate::report::PROXY;

/// Field of a RangeRequest: the proxy answers from its cache only what may be stale.
const SERIALIZABLE: u32 = 7;
/// Field of a RangeResponse.
const COUNT: u32 = 4;

/// One Range after the other from each client.
pub async fn ranges(
    servers: &[&Server],
    rounds: Rounds,
    operations: usize,
) -> Result<Vec<Figures>> {
    let set_up = async |server: &Server| connections(server, CLIENTS).await;
    let round = async |server: &Server, clients: &mut Vec<Connection>| {
        let request = match server.name {
            PROXY => service().number(SERIALIZABLE, 1),
            _ => service(),
        };
        asked(server, clients, operations, &request, i64::from(INSTANCES)).await
    };
    in_turn(servers, rounds, set_up, round).await
}

/// `operations` of one Range on all of the connections together, each with `count` pairs for its answer.
pub async fn asked(
    server: &Server,
    clients: &mut [Connection],
    operations: usize,
    request: &Message,
    count: i64,
) -> Result<Sample> {
    let each = operations / clients.len();
    let span = Span::begin(server)?;
    let latencies = try_join_all(clients.iter_mut().map(async |client| {
        let mut latencies: Vec<Duration> = Vec::with_capacity(each);
        for _ in 0..each {
            let begun = Instant::now();
            let reply = client.call(RANGE, &request.0).await?;
            latencies.push(begun.elapsed());
            let got = number(&reply, COUNT)?;
            ensure!(got == count, "{got} pairs instead of {count}");
        }
        Ok(latencies)
    }))
    .await?;
    span.end(latencies.concat())
}
