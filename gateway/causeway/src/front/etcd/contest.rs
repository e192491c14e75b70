//! What locks and elections of the embedded store have in common: each contender has a key of its own under
//! the common name, and the one that was created first has won (etcd: client/v3/concurrency).

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use causeway_engine::key_space::{EventKind, KeyEvent};
use causeway_engine::key_watch::{CreateOutcome, StreamId, WatchSpec, WatchStart};
use causeway_wire::etcd::messages::etcdserverpb as pb;
use causeway_wire::etcd::messages::mvccpb;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status};

use super::connection::{Caller, ended};
use super::services::etcdserverpb::kv_server::Kv;
use super::services::etcdserverpb::lease_server::Lease;
use super::watch::Registered;
use super::{Api, Front, caller, translate};
use crate::journal::Position;
use crate::mailbox::{KeyNews, News};

/// Seconds of a lease that is granted because the caller named none (etcd: concurrency/session.go,
/// defaultSessionTTL).
const SESSION_TTL_S: i64 = 60;

/// A call on the store in the name of the one who asked for a lock or an election.
#[derive(Clone)]
pub(super) struct Contest {
    api: Api,
    pub(super) caller: Arc<Caller>,
    metadata: MetadataMap,
}

impl Contest {
    /// For this call; gives its message too.
    pub(super) fn begin<T>(api: &Api, request: Request<T>) -> (Self, T) {
        let caller = caller(&request);
        let (metadata, _, message) = request.into_parts();
        let api = api.clone();
        let contest = Contest {
            api,
            caller,
            metadata,
        };
        (contest, message)
    }

    /// The lease to contend under: the one named, or one of our own, which the caller has to keep alive.
    pub(super) async fn lease(&self, named: i64) -> Result<i64, Status> {
        if named != 0 {
            return Ok(named);
        }
        let grant = pb::LeaseGrantRequest {
            ttl: SESSION_TTL_S,
            ..Default::default()
        };
        let granted = self.api.lease_grant(self.request(grant)).await;
        granted.map(|g| g.into_inner().id).map_err(told_by_client)
    }

    pub(super) async fn txn(&self, txn: pb::TxnRequest) -> Result<pb::TxnResponse, Status> {
        let done = self.api.txn(self.request(txn)).await;
        done.map(tonic::Response::into_inner)
            .map_err(told_by_client)
    }

    pub(super) async fn range(&self, range: pb::RangeRequest) -> Result<pb::RangeResponse, Status> {
        let found = self.api.range(self.request(range)).await;
        found
            .map(tonic::Response::into_inner)
            .map_err(told_by_client)
    }

    pub(super) async fn delete(&self, key: Bytes) -> Result<pb::DeleteRangeResponse, Status> {
        let delete = pb::DeleteRangeRequest {
            key,
            ..Default::default()
        };
        let done = self.api.delete_range(self.request(delete)).await;
        done.map(tonic::Response::into_inner)
            .map_err(told_by_client)
    }

    /// Removes the contender's key at once: its caller is gone and waits for nothing.
    pub(super) fn withdraw(&self, txn: &pb::TxnRequest) {
        let op = causeway_engine::key_space::KeyCommand::Txn(translate::txn(txn));
        self.api.write_unasked(self.caller.peer.clone(), op);
    }

    /// Waits until no key below `prefix` is older than `revision` (etcd: concurrency/key.go, waitDeletes).
    pub(super) async fn wait_for_older(&self, prefix: &Bytes, revision: i64) -> Result<(), Status> {
        // Nothing is older; and a bound of 0 would be none.
        if revision <= 1 {
            return Ok(());
        }
        loop {
            let youngest = pb::RangeRequest {
                max_create_revision: revision - 1,
                sort_order: pb::range_request::SortOrder::Descend.into(),
                ..one_by_creation(prefix)
            };
            let found = self.range(youngest).await?;
            let Some(before) = found.kvs.into_iter().next() else {
                return Ok(());
            };
            let seen = found.header.map_or(0, |h| h.revision);
            let mut watch = self.watch(before.key, Bytes::new(), seen)?;
            while let Some(event) = watch.next(&self.caller).await? {
                if event.is_delete() {
                    break;
                }
            }
        }
    }

    /// Follows keys from the change after `seen`.
    pub(super) fn watch(
        &self,
        key: Bytes,
        range_end: Bytes,
        seen: i64,
    ) -> Result<Following, Status> {
        let front = self.api.clone();
        let id = StreamId(front.gateway.next_connection());
        let news = front.gateway.key_queue(id);
        let registered = Registered::new(front.gateway.clone(), id);
        let (created, after) = front.gateway.with(|core| {
            let spec = WatchSpec {
                watch_id: 1,
                key,
                range_end,
                start: WatchStart::At(seen.saturating_add(1)),
                no_put: false,
                no_delete: false,
                prev_kv: false,
            };
            let (watches, space) = core.key_watches();
            watches.create(id, spec, space)
        });
        let mut early = VecDeque::new();
        let lives = match created.outcome {
            CreateOutcome::Live => true,
            CreateOutcome::Replay(groups) => {
                for group in &groups {
                    early.extend(changes(group.revision, &group.events));
                }
                true
            }
            // Whoever waits looks again.
            CreateOutcome::Compacted { .. } => false,
            CreateOutcome::Rejected(reject) => return Err(Status::unknown(reject.to_string())),
        };
        Ok(Following {
            front,
            news,
            early,
            lives,
            after,
            _registered: registered,
        })
    }

    /// A header of the store at a revision.
    pub(super) fn header(&self, revision: i64) -> pb::ResponseHeader {
        self.api.header(revision)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request =
            Request::from_parts(self.metadata.clone(), tonic::Extensions::default(), message);
        request.extensions_mut().insert(self.caller.clone());
        request
    }
}

/// A change of a key that is followed.
pub(super) struct Change {
    pub(super) revision: i64,
    event: KeyEvent,
}

impl Change {
    pub(super) fn is_delete(&self) -> bool {
        self.event.kind == EventKind::Delete
    }

    pub(super) fn kv(&self) -> mvccpb::KeyValue {
        translate::kv(&self.event.kv)
    }
}

/// Changes of the keys followed, each once.
pub(super) struct Following {
    front: Api,
    news: News<KeyNews>,
    early: VecDeque<Change>,
    lives: bool,
    after: Position,
    _registered: Registered,
}

impl Following {
    /// The next change, once it may be told; `None` when the past that was asked for is compacted.
    pub(super) async fn next(&mut self, caller: &Caller) -> Result<Option<Change>, Status> {
        loop {
            if let Some(change) = self.early.pop_front() {
                self.front.durable(self.after).await?;
                return Ok(Some(change));
            }
            if !self.lives {
                return Ok(None);
            }
            let news = tokio::select! {
                news = self.news.next() => news,
                () = caller.ends() => return Err(ended()),
            };
            let KeyNews::Events {
                revision,
                events,
                after,
                ..
            } = news
            else {
                return Err(Status::unavailable(
                    "causeway: the keys changed faster than could be followed",
                ));
            };
            self.after = self.after.max(after);
            self.early.extend(changes(revision, events.events()));
        }
    }
}

fn changes(revision: i64, events: &[KeyEvent]) -> impl Iterator<Item = Change> {
    events
        .iter()
        .cloned()
        .map(move |event| Change { revision, event })
}

/// The refusal of a name among registrations, where no lock is kept.
pub(super) fn refuse_owned(front: &Front, name: &[u8]) -> Result<(), Status> {
    // etcd: the keys are the name, a slash and the lease (concurrency/{mutex,election}.go).
    if !front.owns(&[name, b"/"].concat()) {
        return Ok(());
    }
    Err(Status::failed_precondition(format!(
        "causeway: {} lies among registrations, where no lock can be kept; choose a name outside",
        name.escape_ascii()
    )))
}

/// All contenders' keys begin with it.
pub(super) fn prefix_of(name: &[u8]) -> Bytes {
    [name, b"/"].concat().into()
}

/// A contender's key (Go's `%x`: the sign, then the digits).
pub(super) fn key_of(prefix: &[u8], lease: i64) -> Bytes {
    let sign = if lease < 0 { "-" } else { "" };
    let id = format!("{sign}{:x}", lease.unsigned_abs());
    [prefix, id.as_bytes()].concat().into()
}

/// The first created below a prefix that ends with a slash.
pub(super) fn one_by_creation(prefix: &Bytes) -> pb::RangeRequest {
    pb::RangeRequest {
        key: prefix.clone(),
        range_end: after_slash(prefix),
        limit: 1,
        sort_order: pb::range_request::SortOrder::Ascend.into(),
        sort_target: pb::range_request::SortTarget::Create.into(),
        ..Default::default()
    }
}

/// The end of the range of a prefix that ends with a slash.
pub(super) fn after_slash(prefix: &[u8]) -> Bytes {
    let stem = prefix.strip_suffix(b"/").unwrap_or(prefix);
    [stem, b"0"].concat().into()
}

/// Holds as long as the key has this create revision; 0: while it does not exist.
pub(super) fn created_at(key: &Bytes, revision: i64) -> pb::Compare {
    pb::Compare {
        key: key.clone(),
        target: pb::compare::CompareTarget::Create.into(),
        result: pb::compare::CompareResult::Equal.into(),
        target_union: Some(pb::compare::TargetUnion::CreateRevision(revision)),
        ..Default::default()
    }
}

pub(super) fn put_op(key: &Bytes, value: Bytes, lease: i64) -> pb::RequestOp {
    let put = pb::PutRequest {
        key: key.clone(),
        value,
        lease,
        ..Default::default()
    };
    pb::RequestOp {
        request: Some(pb::request_op::Request::RequestPut(put)),
    }
}

pub(super) fn get_op(range: pb::RangeRequest) -> pb::RequestOp {
    pb::RequestOp {
        request: Some(pb::request_op::Request::RequestRange(range)),
    }
}

pub(super) fn delete_op(key: &Bytes) -> pb::RequestOp {
    let delete = pb::DeleteRangeRequest {
        key: key.clone(),
        ..Default::default()
    };
    pb::RequestOp {
        request: Some(pb::request_op::Request::RequestDeleteRange(delete)),
    }
}

/// The key itself.
pub(super) fn single(key: &Bytes) -> pb::RangeRequest {
    pb::RangeRequest {
        key: key.clone(),
        ..Default::default()
    }
}

/// The first pair of the range at this place of a transaction's answer.
pub(super) fn first_of(answer: &pb::TxnResponse, at: usize) -> Option<&mvccpb::KeyValue> {
    match answer.responses.get(at)?.response.as_ref()? {
        pb::response_op::Response::ResponseRange(range) => range.kvs.first(),
        _ => None,
    }
}

/// An error of the store as a lock or an election tells it: they stand on etcd's Go client inside the
/// server, whose errors have etcd's text but no code (rpctypes.EtcdError).
fn told_by_client(status: Status) -> Status {
    match status.code() {
        Code::Unavailable | Code::Unimplemented => status,
        _ => Status::unknown(status.message()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contenders_key_is_the_prefix_and_the_lease_as_go_prints_it() {
        for (lease, key) in [
            (0x2a, "n/2a"),
            (-0x2a, "n/-2a"),
            (i64::MIN, "n/-8000000000000000"),
        ] {
            assert_eq!(key_of(&prefix_of(b"n"), lease), key);
        }
        assert_eq!(after_slash(b"n/"), "n0");
    }
}
