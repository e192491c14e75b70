//! etcd behind Causeway.
//!
//! [`EtcdBackend`] does the gateway's own work (listing, watching, registering under leases of its
//! own) with the etcd-client crate. [`upstream`] and [`stubs`] serve what that crate cannot do:
//! relaying clients' own requests, and keeping many clients' leases alive over one stream.

mod channel;
mod error;
mod keep_alive;
mod link;
mod names;
pub mod stubs;
pub mod upstream;
mod watch;

pub use channel::channel;
pub use keep_alive::Renewal;
pub use link::EtcdOptions;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use causeway_backend::{
    Backend, BackendError, BackendName, Certainty, Entry, ErrorKind, EtcdMeta, Event, EventStream,
    Expect, Health, Lease, LeaseId, Meta, Owner, Registration, Revision, Scope, ServerHealth,
    Snapshot, Subtree,
};
use causeway_wire::etcd::messages::etcdserverpb::RangeRequest;
use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, GetOptions, KeyValue, LeaseGrantOptions,
    PutOptions, Txn, TxnOp, TxnOpResponse,
};
use futures::StreamExt;
use futures::future::join_all;
use tokio::sync::{OnceCell, mpsc};
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;

use crate::channel::Servers;
use crate::link::Link;
use crate::names::{KeyRange, ranges};
use crate::upstream::{EtcdUpstream, kv, whole_seconds};

/// Pairs asked for at once: bounds the size of an answer.
const PAGE: i64 = 500;

/// Events that a slow reader may lag behind before etcd is no longer read for it.
const EVENTS_IN_FLIGHT: usize = 1024;

/// An etcd cluster as a store of entries.
#[derive(Clone)]
pub struct EtcdBackend {
    name: BackendName,
    link: Link,
    upstream: EtcdUpstream,
    /// Logs in at its first use, which may come long before the cluster can be reached.
    client: Arc<OnceCell<Client>>,
    user: Option<(String, String)>,
    /// A connection to each server, for asking how it is.
    each: Arc<Vec<(Servers, tonic::transport::Channel)>>,
}

impl EtcdBackend {
    /// A backend under the given name; connects at the first call. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when a server's name cannot be meant.
    pub fn new(name: BackendName, options: &EtcdOptions) -> Result<Self, BackendError> {
        let link = Link::new(options)?;
        let each = link
            .servers
            .each()
            .into_iter()
            .map(|server| {
                let channel = server.channel();
                (server, channel)
            })
            .collect();
        Ok(Self {
            name,
            upstream: EtcdUpstream::over(link.clone()),
            link,
            client: Arc::default(),
            user: options.user.clone(),
            each: Arc::new(each),
        })
    }

    /// The same connection for leases and keys of clients.
    pub fn upstream(&self) -> &EtcdUpstream {
        &self.upstream
    }

    fn server(&self) -> String {
        self.link.servers.current().to_owned()
    }

    fn request_timeout(&self) -> Duration {
        self.link.request_timeout
    }

    async fn client(&self) -> Result<Client, BackendError> {
        let server = self.server();
        let connect = || async {
            let mut options = ConnectOptions::new().with_require_leader(true);
            if let Some((name, password)) = &self.user {
                options = options
                    .with_user(name, password)
                    .with_auto_token_refresh(true);
            }
            let channel = etcd_client::Channel::Tonic(self.link.channel.clone());
            let client = Client::from_channel(channel, Some(options)).await;
            client.map_err(|error| error::from_client(&server, &error))
        };
        // The limit is on all of it, since another call may be logging in before this one.
        let limit = self.request_timeout();
        let client = match timeout(limit, self.client.get_or_try_init(connect)).await {
            Ok(Ok(client)) => Ok(client.clone()),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(error::timed_out(&server, limit)),
        };
        // Logging in comes before the call that needs it.
        client.map_err(|error| error.with_certainty(Certainty::NotApplied))
    }

    /// One call of the client crate that changes something.
    async fn write<T, Fut>(&self, call: impl Fn(Client) -> Fut) -> Result<T, BackendError>
    where
        Fut: Future<Output = Result<T, etcd_client::Error>>,
    {
        let client = self.client().await?;
        let limit = self.request_timeout();
        let mut resent = false;
        loop {
            let server = self.server();
            let error = match timeout(limit, call(client.clone())).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(etcd_client::Error::GRpcStatus(status)))
                    if error::never_left(&status) && !resent =>
                {
                    resent = true;
                    continue;
                }
                Ok(Err(error)) => error::from_client(&server, &error),
                Err(_) => error::timed_out(&server, limit),
            };
            if error::is_servers_fault(&error) {
                self.link.servers.move_on();
            }
            return Err(error);
        }
    }

    /// One call that changes nothing: made again when the first one broke.
    async fn read<T, Fut>(&self, call: impl Fn(Client) -> Fut) -> Result<T, BackendError>
    where
        Fut: Future<Output = Result<T, etcd_client::Error>>,
    {
        let mut result = self.write(&call).await;
        if let Err(error) = &result
            && error.is_retryable()
            && error.certainty() == Certainty::Unknown
        {
            result = self.write(&call).await;
        }
        result.map_err(|error| error.with_certainty(Certainty::NotApplied))
    }

    /// Everything in the ranges at one revision, which is given too.
    async fn list(&self, ranges: &[KeyRange]) -> Result<(Snapshot, i64), BackendError> {
        // A compaction may overtake the pages; from the start they are new again.
        let mut attempts = 3;
        loop {
            attempts -= 1;
            match self.list_once(ranges).await {
                Err(error) if error.kind() == ErrorKind::HistoryGone && attempts > 0 => {}
                result => return result,
            }
        }
    }

    async fn list_once(&self, ranges: &[KeyRange]) -> Result<(Snapshot, i64), BackendError> {
        let mut revision = 0;
        let mut entries = Vec::new();
        for range in ranges {
            let mut from = range.key.clone();
            loop {
                let key = &from;
                let mut answer = self
                    .read(|client| async move {
                        let options = GetOptions::new()
                            .with_range(range.end.clone())
                            .with_limit(PAGE)
                            .with_revision(revision);
                        let client = client.kv_client();
                        let mut client = client.max_decoding_message_size(usize::MAX);
                        client.get(key.clone(), Some(options)).await
                    })
                    .await?;
                if revision == 0 {
                    revision = answer.header().map_or(0, |header| header.revision());
                }
                let more = answer.more();
                let pairs = answer.take_kvs();
                if let Some(last) = pairs.last() {
                    // The next key after the last one seen.
                    from = [last.key(), &[0]].concat();
                }
                let last_page = !more || pairs.is_empty();
                entries.extend(pairs.into_iter().map(|pair| entry(&self.name, pair)));
                if last_page {
                    break;
                }
            }
        }
        // Ranges of a scope do not overlap but may enclose each other's names.
        entries.sort_by(|a: &Entry, b: &Entry| a.key.cmp(&b.key));
        let mark = Revision::from_i64(self.name.clone(), revision);
        Ok((
            Snapshot {
                entries,
                revision: mark,
            },
            revision,
        ))
    }

    async fn conflict(&self, key: &[u8], expect: &Expect) -> BackendError {
        match self.lookup(key).await {
            Ok(found) => self.conflict_with(key, expect, found.map(|entry| entry.revision)),
            Err(error) => error,
        }
    }

    fn conflict_with(&self, key: &[u8], expect: &Expect, found: Option<Revision>) -> BackendError {
        BackendError::conflict(
            format!("etcd at {}", self.server()),
            key,
            expect,
            found.as_ref(),
        )
    }

    /// The compare that makes a write hold only as expected; `None` when nothing can hold.
    fn compare(&self, key: &[u8], expect: &Expect) -> Option<Vec<Compare>> {
        match expect {
            Expect::Any => Some(Vec::new()),
            Expect::Absent => Some(vec![Compare::version(key, CompareOp::Equal, 0)]),
            Expect::Revision(revision) if *revision.backend() == self.name => {
                let revision = revision.as_i64().filter(|revision| *revision > 0)?;
                Some(vec![Compare::mod_revision(key, CompareOp::Equal, revision)])
            }
            Expect::Revision(_) => None,
        }
    }

    /// Runs one write under its compare; gives the answer, or what was found instead.
    async fn write_if(
        &self,
        key: &[u8],
        compare: Vec<Compare>,
        write: TxnOp,
    ) -> Result<Outcome, BackendError> {
        let look = GetOptions::new().with_keys_only();
        let txn = Txn::new()
            .when(compare)
            .and_then(vec![write])
            .or_else(vec![TxnOp::get(key, Some(look))]);
        let answer = self
            .write(|mut client| {
                let txn = txn.clone();
                async move { client.txn(txn).await }
            })
            .await?;
        let revision = answer.header().map_or(0, |header| header.revision());
        let revision = Revision::from_i64(self.name.clone(), revision);
        Ok(match answer.op_responses().into_iter().next() {
            Some(TxnOpResponse::Get(found)) => Outcome::Differs {
                found: found
                    .kvs()
                    .first()
                    .map(|pair| Revision::from_i64(self.name.clone(), pair.mod_revision())),
            },
            Some(TxnOpResponse::Delete(answer)) => Outcome::Done {
                revision,
                changed: answer.deleted() > 0,
            },
            _ => Outcome::Done {
                revision,
                changed: true,
            },
        })
    }

    /// Asks one server for something that needs the whole cluster.
    async fn ask(&self, server: &Servers, channel: tonic::transport::Channel) -> ServerHealth {
        let address = server.current().to_owned();
        let limit = self.request_timeout().min(Duration::from_secs(3));
        let request = RangeRequest {
            key: Bytes::from_static(b"health"),
            ..Default::default()
        };
        let started = Instant::now();
        let refusal = match timeout(limit, kv(channel).range(request)).await {
            Ok(Ok(_)) => None,
            Ok(Err(status)) => {
                let error = error::from_status(&address, &status);
                // etcd checks permissions after it heard from the majority, and so does its own
                // /health.
                (error.kind() != ErrorKind::Denied).then_some(error)
            }
            Err(_) => Some(error::timed_out(&address, limit)),
        };
        let latency = refusal.is_none().then(|| started.elapsed());
        let detail = match refusal {
            None => format!("etcd at {address} answers"),
            Some(error) => error.with_certainty(Certainty::NotApplied).to_string(),
        };
        ServerHealth {
            address,
            answering: latency.is_some(),
            latency,
            detail,
        }
    }
}

#[async_trait]
impl Backend for EtcdBackend {
    fn name(&self) -> &BackendName {
        &self.name
    }

    async fn open_lease(
        &self,
        hint: Option<LeaseId>,
        ttl: Duration,
    ) -> Result<Lease, BackendError> {
        let id = hint.map_or(0, |id| id.0);
        let answer = self
            .write(|mut client| async move {
                let options = LeaseGrantOptions::new().with_id(id);
                client.lease_grant(whole_seconds(ttl), Some(options)).await
            })
            .await?;
        let ttl = Duration::from_secs(u64::try_from(answer.ttl()).unwrap_or(0));
        Ok(Lease {
            id: LeaseId(answer.id()),
            ttl,
        })
    }

    async fn renew(&self, lease: LeaseId) -> Result<Duration, BackendError> {
        self.upstream
            .keep_alive(lease.0)
            .await
            .map(|renewal| renewal.ttl)
    }

    async fn close_lease(&self, lease: LeaseId) -> Result<(), BackendError> {
        match self
            .write(|mut client| async move { client.lease_revoke(lease.0).await })
            .await
        {
            Err(error) if error.kind() != ErrorKind::LeaseGone => Err(error),
            _ => Ok(()),
        }
    }

    async fn register(&self, registration: Registration) -> Result<Revision, BackendError> {
        let Registration {
            key,
            value,
            owner,
            expect,
        } = registration;
        let Some(compare) = self.compare(&key, &expect) else {
            return Err(self.conflict(&key, &expect).await);
        };
        let lease = owner.lease();
        let options = PutOptions::new().with_lease(lease.map_or(0, |lease| lease.0));
        let put = TxnOp::put(key.to_vec(), value.to_vec(), Some(options));
        match self.write_if(&key, compare, put).await {
            Ok(Outcome::Done { revision, .. }) => Ok(revision),
            Ok(Outcome::Differs { found }) => Err(self.conflict_with(&key, &expect, found)),
            Err(error) => Err(error),
        }
    }

    async fn deregister(
        &self,
        key: &[u8],
        expect: Expect,
    ) -> Result<Option<Revision>, BackendError> {
        let Some(compare) = self.compare(key, &expect) else {
            return match self.lookup(key).await? {
                Some(entry) => Err(self.conflict_with(key, &expect, Some(entry.revision))),
                None => Ok(None),
            };
        };
        match self
            .write_if(key, compare, TxnOp::delete(key, None))
            .await?
        {
            Outcome::Done { revision, changed } => Ok(changed.then_some(revision)),
            Outcome::Differs { found: None } => Ok(None),
            Outcome::Differs { found } => Err(self.conflict_with(key, &expect, found)),
        }
    }

    async fn lookup(&self, key: &[u8]) -> Result<Option<Entry>, BackendError> {
        let mut answer = self
            .read(|mut client| async move { client.get(key, None).await })
            .await?;
        let pair = answer.take_kvs().into_iter().next();
        Ok(pair.map(|pair| entry(&self.name, pair)))
    }

    async fn discover(&self, service: &Subtree) -> Result<Snapshot, BackendError> {
        self.snapshot(&Scope::from(service.clone())).await
    }

    async fn snapshot(&self, scope: &Scope) -> Result<Snapshot, BackendError> {
        self.list(&ranges(scope))
            .await
            .map(|(snapshot, _)| snapshot)
    }

    fn watch(&self, scope: Scope) -> EventStream {
        let (events, receiver) = mpsc::channel::<Event>(EVENTS_IN_FLIGHT);
        tokio::spawn(watch::follow(self.clone(), scope, events));
        ReceiverStream::new(receiver).boxed()
    }

    async fn health(&self) -> Health {
        let asked = self
            .each
            .iter()
            .map(|(server, channel)| self.ask(server, channel.clone()));
        Health::of_servers(join_all(asked).await)
    }
}

enum Outcome {
    Done { revision: Revision, changed: bool },
    Differs { found: Option<Revision> },
}

fn entry(name: &BackendName, pair: KeyValue) -> Entry {
    let revision = Revision::from_i64(name.clone(), pair.mod_revision());
    let owner = match pair.lease() {
        0 => Owner::Persistent,
        lease => Owner::Lease(LeaseId(lease)),
    };
    let meta = Meta::Etcd(EtcdMeta {
        create_revision: pair.create_revision(),
        mod_revision: pair.mod_revision(),
        version: pair.version(),
    });
    let (key, value) = pair.into_key_value();
    Entry {
        key: key.into(),
        value: value.into(),
        owner,
        revision,
        meta,
    }
}
