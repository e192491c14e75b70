//! Watches: many on few streams, and one each on many connections.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;

use super::{WATCH, connections, instance, prefix, put};
use crate::h2::Connection;
use crate::measure::{Figures, Rounds, Server, Span, in_turn};
use crate::protobuf::{Fields, Message, Value, bytes, number};
use causeway_compat_tests::settings::GRPC_TARGET;

/// Changes in a round, for a thousand watchers; fewer where there are more.
const CHANGES: usize = 60;

/// Fields of a WatchResponse.
const WATCH_ID: u32 = 2;
const CREATED: u32 = 3;
const EVENTS: u32 = 11;

/// A connection with the watches of its one stream, and the revision that each was told last.
struct Watcher {
    connection: Connection,
    told: HashMap<i64, i64>,
}

impl Watcher {
    async fn open(mut connection: Connection, watches: usize) -> Result<Watcher> {
        let stream = connection.begin(WATCH);
        let create = prefix(&format!("{GRPC_TARGET}/"));
        let request = Message::default().bytes(1, &create.0);
        for _ in 0..watches {
            connection.put(stream, &request.0, false);
        }
        connection.send().await?;
        let mut told = HashMap::new();
        for _ in 0..watches {
            let message = connection.next().await?.message.context("an answer")?;
            ensure!(number(&message, CREATED)? == 1, "a watch was not created");
            told.insert(number(&message, WATCH_ID)?, 0);
        }
        ensure!(told.len() == watches, "two watches with one id");
        Ok(Watcher { connection, told })
    }

    /// Reads until each watch was told of one change, and checks that it is the same one for all and newer than the
    /// one before; gives its revision.
    async fn change(&mut self, begun: Instant) -> Result<(i64, Vec<Duration>)> {
        let mut latencies = Vec::with_capacity(self.told.len());
        let mut revision = 0;
        while latencies.len() < self.told.len() {
            let said = self.connection.next().await?;
            let message = said.message.context("the stream ended")?;
            let last = self
                .told
                .get_mut(&number(&message, WATCH_ID)?)
                .context("an event of no watch")?;
            for field in Fields(&message) {
                if let (EVENTS, Value::Bytes(event)) = field? {
                    let this = number(bytes(event, 2)?, 3)?;
                    ensure!(this > *last, "revision {this} after {last}");
                    ensure!(
                        revision == 0 || revision == this,
                        "revision {this} beside {revision}"
                    );
                    (*last, revision) = (this, this);
                    latencies.push(begun.elapsed());
                }
            }
        }
        Ok((revision, latencies))
    }
}

/// An instance of the service changes again and again, and everybody watches it. An operation is one event for one
/// watch. None is lost, doubled or out of order: each watch is told each change's own revision, once, or the run fails.
pub async fn told(
    servers: &[&Server],
    rounds: Rounds,
    watches: usize,
    streams: usize,
) -> Result<Vec<Figures>> {
    let (key, value) = instance("10.20.30.1");
    let (key, value) = (key.as_bytes(), value.as_bytes());
    let changes = CHANGES * 1000 / watches;
    let set_up = async |server: &Server| {
        let mut watchers = Vec::with_capacity(streams);
        for connection in connections(server, streams).await? {
            watchers.push(Watcher::open(connection, watches / streams).await?);
        }
        Ok((Connection::open(&server.address).await?, watchers))
    };
    let round = async |server: &Server, (writer, watchers): &mut (Connection, Vec<Watcher>)| {
        let mut change = async || {
            let begun = Instant::now();
            // The watchers wait before the change is sent.
            let all = try_join_all(watchers.iter_mut().map(|watcher| watcher.change(begun)));
            let (of_each, revision) = futures::try_join!(all, put(writer, key, value, 0))?;
            let mut latencies = Vec::with_capacity(watches);
            for (seen, of_watcher) in of_each {
                ensure!(
                    seen == revision,
                    "told of {seen}, but {revision} was written"
                );
                latencies.extend(of_watcher);
            }
            anyhow::Ok(latencies)
        };
        let span = Span::begin(server)?;
        let (mut latencies, mut lasts) = (Vec::new(), Vec::new());
        for _ in 0..changes {
            let of_change = change().await?;
            lasts.extend(of_change.iter().max().copied());
            latencies.extend(of_change);
        }
        let mut sample = span.end(latencies)?;
        // What is not counted: an event of the last change that comes twice would stand before this one's.
        change().await?;
        sample.last = lasts;
        Ok(sample)
    };
    in_turn(servers, rounds, set_up, round).await
}
