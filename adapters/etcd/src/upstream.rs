//! What converging clients' leases and keys toward etcd needs beyond the client crate: chosen
//! lease ids, one stream of renewals for all leases, writes that hold only at a mod revision,
//! and the certainty of each outcome.

use std::time::Duration;

use bytes::Bytes;
use causeway_backend::{BackendError, ErrorKind};
use causeway_wire::etcd::messages::etcdserverpb::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest,
    PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse, compare,
    request_op, response_op,
};
use causeway_wire::etcd::messages::mvccpb::KeyValue;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::transport::Channel;

use crate::channel::ConnectFailed;
pub use crate::channel::{PING_EVERY, PING_TIMEOUT};
use crate::keep_alive::{KeepAliveStream, Renewal};
use crate::link::{EtcdOptions, Link};
use crate::stubs::{KvClient, LeaseClient};

/// This gateway's own calls on an etcd cluster, over one connection.
#[derive(Debug, Clone)]
pub struct EtcdUpstream {
    link: Link,
    keep_alive: KeepAliveStream,
}

/// A lease as etcd granted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// Its id.
    pub id: i64,
    /// Its ttl; etcd raises one below 1.5 times its election timeout.
    pub ttl: Duration,
    /// The store's revision when it granted.
    pub revision: i64,
}

/// What is left of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeToLive {
    /// Left before it ends.
    pub left: Duration,
    /// What it was granted.
    pub granted: Duration,
    /// Its keys in order, where they were asked for.
    pub keys: Vec<Bytes>,
}

/// When a write may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfRevision {
    /// Always.
    Any,
    /// While the key's mod revision is this; 0 while there is no such key.
    Is(i64),
}

/// What became of a write.
#[derive(Debug, Clone, PartialEq)]
pub enum Written {
    /// It was done at this revision.
    Done {
        /// The revision it made; for a removal of nothing the store's current one.
        revision: i64,
        /// How many keys it wrote or removed.
        changed: i64,
    },
    /// The key stood at another mod revision, and nothing was done.
    Differs {
        /// What is there; `None` when the key is absent.
        found: Option<KeyValue>,
        /// The store's revision when it looked.
        revision: i64,
    },
}

impl EtcdUpstream {
    /// A handle on the cluster; connects at the first call. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when a server's name cannot be meant.
    pub fn new(options: &EtcdOptions) -> Result<Self, BackendError> {
        Ok(Self::over(Link::new(options)?))
    }

    pub(crate) fn over(link: Link) -> Self {
        Self {
            keep_alive: KeepAliveStream::new(link.clone()),
            link,
        }
    }

    /// The connection of this handle, without its identity: what is relayed over it carries the
    /// client's own token.
    pub fn channel(&self) -> Channel {
        self.link.channel.clone()
    }

    /// A connection of its own to the same servers, for whoever speaks HTTP/2 over it itself. It breaks when they are
    /// left for another one.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when none of them can be reached; it names the reason for each.
    pub async fn socket(
        &self,
    ) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static + use<>, BackendError> {
        let failed = |error: ConnectFailed| {
            BackendError::not_applied(ErrorKind::Unavailable, error.to_string())
        };
        self.link.servers.connect().await.map_err(failed)
    }

    /// The server in use, `host:port`, for logs and alarms.
    pub fn server(&self) -> String {
        self.link.servers.current().to_owned()
    }

    /// Grants a lease under `id`, or under an id of etcd's choice when it is 0. `ttl` is rounded
    /// up to whole seconds.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when the id is taken: it may be ours from an outcome that was
    /// unknown, which [`EtcdUpstream::time_to_live`] tells.
    pub async fn grant(&self, id: i64, ttl: Duration) -> Result<Granted, BackendError> {
        let request = LeaseGrantRequest {
            ttl: whole_seconds(ttl),
            id,
        };
        let answer = self
            .link
            .write(request, |channel, request| async move {
                LeaseClient::new(channel).lease_grant(request).await
            })
            .await?;
        Ok(Granted {
            id: answer.id,
            ttl: seconds(answer.ttl),
            revision: answer.header.map_or(0, |header| header.revision),
        })
    }

    /// Renews a lease; any number at once go over one stream.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseGone`] when etcd does not know the lease (any more).
    pub async fn keep_alive(&self, id: i64) -> Result<Renewal, BackendError> {
        self.keep_alive.renew(id).await
    }

    /// Ends a lease and removes its keys; gives the revision.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseGone`] when etcd does not know the lease (any more).
    pub async fn revoke(&self, id: i64) -> Result<i64, BackendError> {
        let answer = self
            .link
            .write(LeaseRevokeRequest { id }, |channel, request| async move {
                LeaseClient::new(channel).lease_revoke(request).await
            })
            .await?;
        Ok(answer.header.map_or(0, |header| header.revision))
    }

    /// What is left of a lease; `None` when etcd does not know it.
    pub async fn time_to_live(
        &self,
        id: i64,
        keys: bool,
    ) -> Result<Option<TimeToLive>, BackendError> {
        let answer = self
            .link
            .read(
                LeaseTimeToLiveRequest { id, keys },
                |channel, request| async move {
                    LeaseClient::new(channel).lease_time_to_live(request).await
                },
            )
            .await?;
        let mut keys = answer.keys;
        keys.sort();
        // etcd: -1 for an unknown lease; 0 for one that has ended and still holds its keys.
        Ok((answer.ttl >= 0).then(|| TimeToLive {
            left: seconds(answer.ttl),
            granted: seconds(answer.granted_ttl),
            keys,
        }))
    }

    /// Writes a key under a lease, or under none when `lease` is 0.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseGone`] when etcd does not know the lease (any more).
    pub async fn put(
        &self,
        key: Bytes,
        value: Bytes,
        lease: i64,
        condition: IfRevision,
    ) -> Result<Written, BackendError> {
        let put = PutRequest {
            key: key.clone(),
            value,
            lease,
            ..Default::default()
        };
        self.write_key(key, request_op::Request::RequestPut(put), condition)
            .await
    }

    /// Removes a key.
    pub async fn delete(&self, key: Bytes, condition: IfRevision) -> Result<Written, BackendError> {
        let delete = DeleteRangeRequest {
            key: key.clone(),
            ..Default::default()
        };
        self.write_key(
            key,
            request_op::Request::RequestDeleteRange(delete),
            condition,
        )
        .await
    }

    /// Reads as asked.
    pub async fn range(&self, request: RangeRequest) -> Result<RangeResponse, BackendError> {
        self.link
            .read(request, |channel, request| async move {
                kv(channel).range(request).await
            })
            .await
    }

    /// A transaction as asked. It counts as a write, even if it only reads.
    pub async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, BackendError> {
        self.link
            .write(request, |channel, request| async move {
                kv(channel).txn(request).await
            })
            .await
    }

    async fn write_key(
        &self,
        key: Bytes,
        write: request_op::Request,
        condition: IfRevision,
    ) -> Result<Written, BackendError> {
        let range = RangeRequest {
            key: key.clone(),
            ..Default::default()
        };
        let compare = match condition {
            IfRevision::Any => vec![],
            // A compare of an absent key takes its numbers as 0.
            IfRevision::Is(revision) => vec![Compare {
                result: compare::CompareResult::Equal.into(),
                target: compare::CompareTarget::Mod.into(),
                key,
                target_union: Some(compare::TargetUnion::ModRevision(revision)),
                ..Default::default()
            }],
        };
        let request = TxnRequest {
            compare,
            success: vec![RequestOp {
                request: Some(write),
            }],
            failure: vec![RequestOp {
                request: Some(request_op::Request::RequestRange(range)),
            }],
        };
        let answer = self.txn(request).await?;
        let revision = answer.header.map_or(0, |header| header.revision);
        match answer
            .responses
            .into_iter()
            .next()
            .and_then(|op| op.response)
        {
            Some(response_op::Response::ResponsePut(_)) => Ok(Written::Done {
                revision,
                changed: 1,
            }),
            Some(response_op::Response::ResponseDeleteRange(answer)) => Ok(Written::Done {
                revision,
                changed: answer.deleted,
            }),
            Some(response_op::Response::ResponseRange(answer)) => Ok(Written::Differs {
                found: answer.kvs.into_iter().next(),
                revision,
            }),
            _ => Err(BackendError::unknown(
                ErrorKind::Protocol,
                format!("etcd at {}: an answer to another question", self.server()),
            )),
        }
    }
}

/// A client that takes answers of any size: a key's value is bounded by etcd, a range's size only
/// by what was asked.
pub(crate) fn kv(channel: Channel) -> KvClient<Channel> {
    KvClient::new(channel).max_decoding_message_size(usize::MAX)
}

/// Whole seconds, rounded up: a lease must not end before its owner's time.
pub(crate) fn whole_seconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX)
}

fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or(0))
}
