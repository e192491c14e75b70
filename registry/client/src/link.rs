//! The task that keeps one stream to a member: it connects, passes messages between stream and session, and goes to
//! another member when this one is of no use any more.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use causeway_registry_proto::client::RegistryClient;
use causeway_registry_proto::{MAX_TO_CLIENT, v1};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::transport::Endpoint;

use crate::client::Shared;
use crate::members::{Members, backoff};

/// The longest pause between two rounds of tries.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// How often lists are judged and saved, and it is looked whether the client is still there.
const TICK: Duration = Duration::from_secs(1);
/// Bytes that a member may send ahead: a large list comes in few round trips.
const WINDOW: u32 = 1 << 20;

struct Stream {
    said: mpsc::UnboundedSender<v1::ClientMessage>,
    told: Streaming<v1::ServerMessage>,
}

/// Runs until the client is gone.
pub(crate) async fn run(shared: Weak<Shared>, mut members: Members) {
    let start = Instant::now();
    let mut failures = 0;
    let mut why = String::from("no member was tried yet");
    loop {
        let Some(client) = shared.upgrade() else {
            return;
        };
        let patience = client.config.request_timeout;
        let mut welcomed = false;
        match members.begin(patience).await {
            Ok(()) => {
                while !welcomed && let Some(address) = members.next() {
                    match connect(address, patience).await {
                        Ok(stream) => {
                            (welcomed, why) = follow(&client, stream, start).await;
                            why = format!("{address}: {why}");
                        }
                        Err(error) => why = format!("{address}: {error}"),
                    }
                    tracing::debug!(why, "another member is taken");
                }
            }
            Err(error) => why = error,
        }
        // After a stream that worked the others are tried soon, and somewhat apart from other clients.
        failures = if welcomed { 0 } else { failures + 1 };
        if !welcomed {
            client.unreachable(&why).await;
        }
        drop(client);
        let until = Instant::now() + backoff(failures, MAX_PAUSE);
        while Instant::now() < until {
            tokio::time::sleep_until(until.min(Instant::now() + TICK)).await;
            // Judgements do not wait for members.
            let Some(client) = shared.upgrade() else {
                return;
            };
            tick(&client);
        }
    }
}

async fn connect(address: SocketAddr, patience: Duration) -> Result<Stream, String> {
    let connect = async {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| error.to_string())?
            .connect_timeout(patience)
            .tcp_nodelay(true)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW);
        let channel = endpoint.connect().await.map_err(cause)?;
        let mut client = RegistryClient::new(channel).max_decoding_message_size(MAX_TO_CLIENT);
        let (said, to_say) = mpsc::unbounded_channel();
        let opened = client.open(UnboundedReceiverStream::new(to_say)).await;
        let opened = opened.map_err(|status| status.message().to_owned())?;
        Ok(Stream {
            said,
            told: opened.into_inner(),
        })
    };
    match tokio::time::timeout(patience, connect).await {
        Ok(outcome) => outcome,
        Err(_) => Err("no answer".into()),
    }
}

/// Follows a stream to its end. Returns whether the member took this client, and why it ended.
async fn follow(client: &Arc<Shared>, stream: Stream, start: Instant) -> (bool, String) {
    let Stream { said, mut told } = stream;
    let now = || u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    client.session.lock().connected(now());
    let mut welcomed = false;
    let mut next_tick = Instant::now() + TICK;
    let why = loop {
        if let Err(why) = pass_on(client, &said) {
            break why;
        }
        let (has_come, due) = {
            let session = client.session.lock();
            (session.welcomed(), session.next_timeout())
        };
        welcomed |= has_come;
        let due = due.map_or(next_tick, |ms| start + Duration::from_millis(ms));
        tokio::select! {
            message = told.message() => match message {
                Ok(Some(message)) => client.session.lock().handle(message, now()),
                Ok(None) => break "the member ended the stream".into(),
                Err(status) => break format!("the stream broke: {}", status.message()),
            },
            () = client.wake.notified() => {}
            () = tokio::time::sleep_until(due.min(next_tick)) => {
                client.session.lock().handle_timeout(now());
                if Instant::now() >= next_tick {
                    next_tick = Instant::now() + TICK;
                    tick(client);
                    if Arc::strong_count(client) == 1 {
                        // Nobody is left who would want anything.
                        break "the client is gone".into();
                    }
                }
            }
        }
    };
    client.session.lock().disconnected();
    client.lost();
    (welcomed, why)
}

/// Sends what is to be sent, and tells what became of things.
fn pass_on(client: &Shared, said: &mpsc::UnboundedSender<v1::ClientMessage>) -> Result<(), String> {
    loop {
        let (message, event) = {
            let mut session = client.session.lock();
            (session.poll_send(), session.poll_event())
        };
        if message.is_none() && event.is_none() {
            return Ok(());
        }
        if let Some(message) = message
            && said.send(message).is_err()
        {
            return Err("the member reads no more".into());
        }
        if let Some(event) = event {
            client.dispatch(event)?;
        }
    }
}

fn tick(client: &Shared) {
    let every = client.refresh_every();
    for feed in client.feeds() {
        if feed.tick(every) {
            client.session.lock().refresh(feed.service());
        }
    }
}

/// An error with what lies behind it: the outermost one says only that connecting failed.
fn cause(error: tonic::transport::Error) -> String {
    let mut innermost: &dyn std::error::Error = &error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
