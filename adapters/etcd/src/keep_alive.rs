//! Renewals of many leases over one stream.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use causeway_backend::{BackendError, ErrorKind, LeaseId};
use causeway_wire::etcd::messages::etcdserverpb::{LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};

use crate::error;
use crate::link::Link;
use crate::stubs::LeaseClient;

/// Asks and answers in flight; more wait in line.
const IN_FLIGHT: usize = 1024;

/// A handle on the task that keeps the stream. The task ends with its last handle.
#[derive(Debug, Clone)]
pub(crate) struct KeepAliveStream {
    asks: mpsc::Sender<Ask>,
}

/// What etcd answered: the ttl that starts now and the revision of its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewal {
    /// Time to live from now on.
    pub ttl: Duration,
    /// The store's revision when it renewed.
    pub revision: i64,
}

#[derive(Debug)]
struct Ask {
    id: i64,
    answer: oneshot::Sender<Result<Renewal, BackendError>>,
}

impl KeepAliveStream {
    pub(crate) fn new(link: Link) -> Self {
        let (asks, receiver) = mpsc::channel(IN_FLIGHT);
        tokio::spawn(run(link, receiver));
        Self { asks }
    }

    pub(crate) async fn renew(&self, id: i64) -> Result<Renewal, BackendError> {
        let (answer, answered) = oneshot::channel();
        if self.asks.send(Ask { id, answer }).await.is_err() {
            return Err(stopped());
        }
        match answered.await {
            Ok(result) => result,
            Err(_) => Err(stopped()),
        }
    }
}

async fn run(link: Link, mut asks: mpsc::Receiver<Ask>) {
    // Connected only while somebody asks: an idle gateway costs the store nothing.
    while let Some(first) = asks.recv().await {
        let mut stream = Stream::default();
        let failure = stream.serve(&link, first, &mut asks).await;
        if error::is_servers_fault(&failure) {
            link.servers.move_on();
        }
        stream.fail_all(&failure);
    }
}

/// What was asked on the stream and not answered yet. etcd answers a lease's asks in order.
#[derive(Default)]
struct Stream {
    waiting: HashMap<i64, VecDeque<oneshot::Sender<Result<Renewal, BackendError>>>>,
    count: usize,
}

impl Stream {
    /// Serves asks until the stream breaks; gives the reason.
    async fn serve(
        &mut self,
        link: &Link,
        first: Ask,
        asks: &mut mpsc::Receiver<Ask>,
    ) -> BackendError {
        // etcd sends no headers before its first answer, so the first ask is in the stream
        // before it is opened.
        let (requests, receiver) = mpsc::channel(IN_FLIGHT);
        self.ask(&requests, first).await;
        let server = link.servers.current().to_owned();
        let mut answers = match self.open(link, receiver, &server).await {
            Ok(answers) => answers,
            Err(failure) => return failure,
        };
        let mut deadline = Instant::now() + link.request_timeout;
        loop {
            tokio::select! {
                answer = answers.message() => match answer {
                    Ok(Some(answer)) => {
                        self.answer(&server, &answer);
                        deadline = Instant::now() + link.request_timeout;
                    }
                    Ok(None) => {
                        return error::from_status(&server, &Status::unavailable("the stream of renewals ended"));
                    }
                    Err(status) => {
                        if error::is_invalid_token(&status) {
                            link.forget_token();
                        }
                        return error::from_status(&server, &status);
                    }
                },
                ask = asks.recv(), if self.count < IN_FLIGHT => match ask {
                    Some(ask) => {
                        if self.count == 0 {
                            deadline = Instant::now() + link.request_timeout;
                        }
                        self.ask(&requests, ask).await;
                    }
                    None => return stopped(),
                },
                () = sleep_until(deadline), if self.count > 0 => {
                    return error::timed_out(&server, link.request_timeout);
                }
            }
        }
    }

    async fn open(
        &self,
        link: &Link,
        requests: mpsc::Receiver<LeaseKeepAliveRequest>,
        server: &str,
    ) -> Result<Streaming<LeaseKeepAliveResponse>, BackendError> {
        let mut request = Request::new(ReceiverStream::new(requests));
        link.authenticate(&mut request).await?;
        let mut client = LeaseClient::new(link.channel.clone());
        match timeout(link.request_timeout, client.lease_keep_alive(request)).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => {
                if error::is_invalid_token(&status) {
                    link.forget_token();
                }
                Err(error::from_status(server, &status))
            }
            Err(_) => Err(error::timed_out(server, link.request_timeout)),
        }
    }

    async fn ask(&mut self, requests: &mpsc::Sender<LeaseKeepAliveRequest>, ask: Ask) {
        self.count += 1;
        self.waiting
            .entry(ask.id)
            .or_default()
            .push_back(ask.answer);
        // A closed stream shows as the end of the answers.
        let _ = requests.send(LeaseKeepAliveRequest { id: ask.id }).await;
    }

    fn answer(&mut self, server: &str, answer: &LeaseKeepAliveResponse) {
        let Some(line) = self.waiting.get_mut(&answer.id) else {
            return;
        };
        let asked = line.pop_front();
        if line.is_empty() {
            self.waiting.remove(&answer.id);
        }
        let Some(asked) = asked else { return };
        self.count -= 1;
        // etcd answers a renewal of a lease that has ended with a ttl of 0.
        let result = match u64::try_from(answer.ttl) {
            Ok(ttl) if ttl > 0 => Ok(Renewal {
                ttl: Duration::from_secs(ttl),
                revision: answer.header.as_ref().map_or(0, |header| header.revision),
            }),
            _ => {
                let store = format!("etcd at {server}");
                Err(BackendError::lease_gone(store, LeaseId(answer.id)))
            }
        };
        let _ = asked.send(result);
    }

    fn fail_all(self, failure: &BackendError) {
        for asked in self.waiting.into_values().flatten() {
            let _ = asked.send(Err(failure.clone()));
        }
    }
}

fn stopped() -> BackendError {
    BackendError::not_applied(ErrorKind::Shutdown, "the stream of renewals was stopped")
}
