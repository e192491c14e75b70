//! Leases: granted for a key each, and kept alive.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use tokio::time::{MissedTickBehavior, interval};

use super::{CLIENTS, KEEP_ALIVE, connections, grant, instance, put};
use crate::h2::Connection;
use crate::measure::{Figures, Rounds, Server, Span, in_turn};
use crate::protobuf::{Message, number};

/// Field of a LeaseKeepAliveResponse.
const TTL: u32 = 3;

/// A lease and a key under it, one after the other from each client; an operation is both together. The keys are below
/// `prefix`, or are registrations where it is a service's.
pub async fn grants(
    servers: &[&Server],
    rounds: Rounds,
    operations: usize,
    prefix: &str,
) -> Result<Vec<Figures>> {
    let set_up = async |server: &Server| connections(server, CLIENTS).await;
    let round = async |server: &Server, clients: &mut Vec<Connection>| {
        let span = Span::begin(server)?;
        let latencies = try_join_all(clients.iter_mut().enumerate().map(async |(of, client)| {
            let mut latencies = Vec::with_capacity(operations / CLIENTS);
            for n in 0..operations / CLIENTS {
                // The same keys in each round, lest the stores grow.
                let (key, value) = instance(&format!("10.21.{of}.{}", n % 250));
                let key = match prefix.strip_suffix('/') {
                    Some(_) => format!("{prefix}{key}"),
                    None => key,
                };
                let begun = Instant::now();
                let lease = grant(client).await?;
                put(client, key.as_bytes(), value.as_bytes(), lease).await?;
                latencies.push(begun.elapsed());
            }
            anyhow::Ok(latencies)
        }))
        .await?;
        span.end(latencies.concat())
    };
    in_turn(servers, rounds, set_up, round).await
}

/// A client with a lease and the stream that keeps it.
struct Keeper {
    connection: Connection,
    stream: u32,
    request: Message,
}

impl Keeper {
    async fn open(mut connection: Connection) -> Result<Keeper> {
        let lease = grant(&mut connection).await?;
        let stream = connection.begin(KEEP_ALIVE);
        Ok(Keeper {
            connection,
            stream,
            request: Message::default().number(1, lease),
        })
    }

    async fn keep(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        self.connection.put(self.stream, &self.request.0, false);
        self.connection.send().await?;
        let said = self.connection.next().await?;
        let message = said.message.context("the stream ended")?;
        ensure!(number(&message, TTL)? > 0, "the lease is gone");
        Ok(begun.elapsed())
    }
}

async fn keepers(server: &Server) -> Result<Vec<Keeper>> {
    try_join_all(
        connections(server, CLIENTS)
            .await?
            .into_iter()
            .map(Keeper::open),
    )
    .await
}

/// `per_s` keep-alives in a second from all clients together, for `span`.
pub async fn paced(
    servers: &[&Server],
    rounds: Rounds,
    span: Duration,
    per_s: u32,
) -> Result<Vec<Figures>> {
    let set_up = async |server: &Server| keepers(server).await;
    let round = async |server: &Server, keepers: &mut Vec<Keeper>| {
        let each = Duration::from_secs(1) * CLIENTS as u32 / per_s;
        let count = span.as_micros() / each.as_micros();
        let measured = Span::begin(server)?;
        let latencies = try_join_all(keepers.iter_mut().enumerate().map(async |(of, keeper)| {
            // Spread evenly: clients do not beat at the same moment.
            tokio::time::sleep(each * of as u32 / CLIENTS as u32).await;
            let mut ticks = interval(each);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let mut latencies = Vec::new();
            for _ in 0..count {
                ticks.tick().await;
                latencies.push(keeper.keep().await?);
            }
            anyhow::Ok(latencies)
        }))
        .await?;
        measured.end(latencies.concat())
    };
    in_turn(servers, rounds, set_up, round).await
}

/// One keep-alive after the other from each client.
pub async fn closed(
    servers: &[&Server],
    rounds: Rounds,
    operations: usize,
) -> Result<Vec<Figures>> {
    let set_up = async |server: &Server| keepers(server).await;
    let round = async |server: &Server, keepers: &mut Vec<Keeper>| {
        let span = Span::begin(server)?;
        let latencies = try_join_all(keepers.iter_mut().map(async |keeper| {
            let mut latencies = Vec::with_capacity(operations / CLIENTS);
            for _ in 0..operations / CLIENTS {
                latencies.push(keeper.keep().await?);
            }
            anyhow::Ok(latencies)
        }))
        .await?;
        span.end(latencies.concat())
    };
    in_turn(servers, rounds, set_up, round).await
}
