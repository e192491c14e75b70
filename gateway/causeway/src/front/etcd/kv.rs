//! KV: reads and writes of the key space, each by the plan for what it touches.

use causeway_engine::core::Command;
use causeway_engine::key_auth::Demand;
use causeway_engine::key_space::{KeyCommand, KeyReply};
use causeway_engine::phase::Phase;
use causeway_engine::route::{Kind, Mode, Plan, Touches, plan};
use causeway_wire::etcd::EtcdError;
use causeway_wire::etcd::messages::etcdserverpb as pb;
use futures::stream;
use prost::Message;
use tonic::{Request, Response, Status};

use super::permit::{Shown, may};
use super::relay::Responses;
use super::services::etcdserverpb::kv_server::Kv;
use super::translate::{self, status};
use super::{Api, Front, caller, general, observe, range_stream, union};
use crate::gateway::Done;

/// Largest request that writes (etcd: `--max-request-bytes`).
const MAX_REQUEST: usize = 1536 * 1024;

#[tonic::async_trait]
impl Kv for Api {
    async fn range(
        &self,
        request: Request<pb::RangeRequest>,
    ) -> Result<Response<pb::RangeResponse>, Status> {
        let caller = caller(&request);
        let (metadata, _, range) = request.into_parts();
        let shown = Shown::new(&metadata, &caller);
        if range.key.is_empty() {
            return Err(status(EtcdError::EmptyKey));
        }
        let touches = || self.touches(&range.key, &range.range_end);
        match self.plan(touches, Kind::Read) {
            Plan::Local | Plan::LocalThenLegacy => {
                self.local_range(shown, &range).await.map(Response::new)
            }
            Plan::Union => union::range(self, &metadata, &range)
                .await
                .map(Response::new),
            Plan::Legacy | Plan::LegacyThenCopy | Plan::LegacyThenLocal => {
                general::range(self, &metadata, range).await
            }
            Plan::RefuseMixed => Err(refuse_mixed()),
        }
    }

    type RangeStreamStream = Responses<pb::RangeStreamResponse>;

    async fn range_stream(
        &self,
        request: Request<pb::RangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        let caller = caller(&request);
        let (metadata, _, range) = request.into_parts();
        let shown = Shown::new(&metadata, &caller);
        let asked = translate::range(&range);
        asked
            .check_shape(self.identity.release())
            .map_err(|e| status(translate::key_error(&e)))?;
        if let Some(why) = asked.unfit_for_a_stream() {
            return Err(Status::unimplemented(why));
        }
        let touches = || self.touches(&range.key, &range.range_end);
        let whole = match self.plan(touches, Kind::Read) {
            Plan::Local | Plan::LocalThenLegacy => self.local_range(shown, &range).await?,
            Plan::Union => union::range(self, &metadata, &range).await?,
            Plan::Legacy | Plan::LegacyThenCopy | Plan::LegacyThenLocal => {
                return general::range_stream(self, &metadata, range).await;
            }
            Plan::RefuseMixed => return Err(refuse_mixed()),
        };
        let parts = range_stream::parts(whole, range.limit).map(Ok);
        Ok(Response::new(Box::pin(stream::iter(parts))))
    }

    async fn put(
        &self,
        request: Request<pb::PutRequest>,
    ) -> Result<Response<pb::PutResponse>, Status> {
        let caller = caller(&request);
        let (metadata, _, put) = request.into_parts();
        let shown = Shown::new(&metadata, &caller);
        let touches = || {
            if self.owns(&put.key) {
                Touches::Owned
            } else {
                Touches::General
            }
        };
        match self.write_plan(touches, &put)? {
            Plan::Local | Plan::LocalThenLegacy | Plan::Union => {
                self.know_lease(put.lease).await;
                self.put_reply(self.write(shown, translate::put(&put))?)
                    .await
            }
            Plan::LegacyThenLocal => {
                self.know_lease(put.lease).await;
                let asked = general::put(self, &metadata, put.clone()).await?;
                let mark = asked.get_ref().header.as_ref().map_or(0, |h| h.revision);
                let peer = caller.peer.clone();
                self.put_reply(self.acknowledged(peer, translate::put(&put), mark))
                    .await
            }
            Plan::Legacy => general::put(self, &metadata, put).await,
            Plan::LegacyThenCopy => observe::put(self, &metadata, put).await,
            Plan::RefuseMixed => Err(refuse_mixed()),
        }
    }

    async fn delete_range(
        &self,
        request: Request<pb::DeleteRangeRequest>,
    ) -> Result<Response<pb::DeleteRangeResponse>, Status> {
        let caller = caller(&request);
        let (metadata, _, delete) = request.into_parts();
        let shown = Shown::new(&metadata, &caller);
        let touches = || self.touches(&delete.key, &delete.range_end);
        match self.write_plan(touches, &delete)? {
            Plan::Local | Plan::LocalThenLegacy | Plan::Union => {
                let done = self.write(shown, translate::delete(&delete))?;
                self.delete_reply(done).await.map(Response::new)
            }
            Plan::LegacyThenLocal => union::delete(self, caller.peer.clone(), &metadata, delete)
                .await
                .map(Response::new),
            Plan::Legacy => general::delete(self, &metadata, delete).await,
            Plan::LegacyThenCopy => observe::delete(self, &metadata, delete).await,
            Plan::RefuseMixed => Err(refuse_mixed()),
        }
    }

    async fn txn(
        &self,
        request: Request<pb::TxnRequest>,
    ) -> Result<Response<pb::TxnResponse>, Status> {
        let caller = caller(&request);
        let (metadata, _, txn) = request.into_parts();
        let shown = Shown::new(&metadata, &caller);
        let touched = || union::touched_by(self, &txn);
        let kind = if union::writes(&txn) {
            Kind::Write
        } else {
            Kind::Read
        };
        let plan = match kind {
            Kind::Write => self.write_plan(touched, &txn)?,
            Kind::Read => self.plan(touched, kind),
        };
        match plan {
            Plan::Local | Plan::LocalThenLegacy => {
                for (lease, _) in union::leased_puts(&txn) {
                    self.know_lease(lease).await;
                }
                let op = KeyCommand::Txn(translate::txn(&txn));
                self.txn_reply(self.write(shown, op)?)
                    .await
                    .map(Response::new)
            }
            Plan::LegacyThenLocal => union::txn(self, caller.peer.clone(), &metadata, &txn)
                .await
                .map(Response::new),
            Plan::Legacy => general::txn(self, &metadata, txn).await,
            Plan::LegacyThenCopy => observe::txn(self, &metadata, txn).await,
            Plan::Union | Plan::RefuseMixed => Err(refuse_mixed()),
        }
    }

    async fn compact(
        &self,
        request: Request<pb::CompactionRequest>,
    ) -> Result<Response<pb::CompactionResponse>, Status> {
        let caller = caller(&request);
        let (metadata, _, compaction) = request.into_parts();
        if self.mode() != Mode::Embedded {
            return general::compact(self, &metadata, compaction).await;
        }
        let op = KeyCommand::Compact {
            revision: compaction.revision,
        };
        let done = self.write(Shown::new(&metadata, &caller), op)?;
        let header = self.header(done.number);
        self.finished(done).await?;
        Ok(Response::new(pb::CompactionResponse {
            header: Some(header),
        }))
    }
}

impl Front {
    /// The plan for an operation; what it touches is only looked at where that matters.
    pub(super) fn plan(&self, touches: impl FnOnce() -> Touches, kind: Kind) -> Plan {
        let (mode, phase) = self.mode_and_phase();
        plan_of(mode, phase, touches, kind)
    }

    /// The same for a write, which is bounded in size where it is judged here.
    fn write_plan(
        &self,
        touches: impl FnOnce() -> Touches,
        request: &impl Message,
    ) -> Result<Plan, Status> {
        let plan = self.plan(touches, Kind::Write);
        let judged_by_legacy = matches!(plan, Plan::Legacy | Plan::LegacyThenCopy);
        if !judged_by_legacy && request.encoded_len() > MAX_REQUEST {
            return Err(status(EtcdError::RequestTooLarge));
        }
        Ok(plan)
    }

    /// Writes to the machine of the gateway's own accord.
    pub(super) fn write_unasked(&self, peer: String, op: KeyCommand) -> Done {
        self.gateway.apply(Command::Keys { peer, op })
    }

    /// Writes to the machine what the legacy cluster has acknowledged at revision `mark`.
    pub(super) fn acknowledged(&self, peer: String, op: KeyCommand, mark: i64) -> Done {
        self.gateway
            .apply(Command::KeysAcknowledged { peer, op, mark })
    }

    /// Where the legacy cluster acknowledges first, what protection or an operator's hold does not let pass
    /// must not get there: afterwards it could only be followed.
    pub(super) fn refuse_before_legacy(&self, peer: &str, op: &KeyCommand) -> Result<(), Status> {
        let now_ms = self.gateway.now_ms();
        let refused = self.gateway.with(|core| match op {
            KeyCommand::LeaseRevoke { id, .. } => core.revoke_refusal(*id, now_ms),
            other => core.keys_refusal(peer, other, now_ms),
        });
        match refused.0 {
            Some(_) => Err(status(EtcdError::PermissionDenied)),
            None => Ok(()),
        }
    }

    /// The answer to a write, once it may leave.
    pub(super) async fn finished(&self, done: Done) -> Result<KeyReply, Status> {
        self.durable(done.after).await?;
        translate::key_reply(done.reply).map_err(status)
    }

    async fn local_range(
        &self,
        shown: Shown<'_>,
        range: &pb::RangeRequest,
    ) -> Result<pb::RangeResponse, Status> {
        let asked = translate::range(range);
        let demand = Demand::Read {
            key: &asked.key,
            range_end: &asked.range_end,
        };
        let now_ms = || self.gateway.now_ms();
        let (found, after) = self.gateway.with(|core| {
            may(core, shown, demand, now_ms)?;
            Ok(core.keys().range(&asked))
        });
        let found = found.map_err(translate::auth_status)?;
        self.durable(after).await?;
        let found = found.map_err(|e| status(translate::key_error(&e)))?;
        let header = self.header(found.revision);
        Ok(translate::range_reply(Some(header), &found))
    }

    pub(super) async fn put_reply(&self, done: Done) -> Result<Response<pb::PutResponse>, Status> {
        match self.finished(done).await? {
            KeyReply::Put(reply) => Ok(Response::new(translate::put_reply(
                self.header(reply.revision),
                &reply,
            ))),
            _ => Err(another_question()),
        }
    }

    pub(super) async fn delete_reply(&self, done: Done) -> Result<pb::DeleteRangeResponse, Status> {
        match self.finished(done).await? {
            KeyReply::DeleteRange(reply) => {
                Ok(translate::delete_reply(self.header(reply.revision), &reply))
            }
            _ => Err(another_question()),
        }
    }

    pub(super) async fn txn_reply(&self, done: Done) -> Result<pb::TxnResponse, Status> {
        match self.finished(done).await? {
            KeyReply::Txn(reply) => Ok(translate::txn_reply(self.header(reply.revision), &reply)),
            _ => Err(another_question()),
        }
    }
}

/// [`plan`], but before the take-over every write is looked at: whether N is written too is the machine's
/// matter, and its view has to follow in any case.
pub(super) fn plan_of(
    mode: Mode,
    phase: Phase,
    touches: impl FnOnce() -> Touches,
    kind: Kind,
) -> Plan {
    match (mode, kind) {
        (Mode::Embedded, _) => Plan::Local,
        (Mode::Relay, Kind::Write) => Plan::LegacyThenCopy,
        (Mode::Relay, Kind::Read) => Plan::Legacy,
        (Mode::TakenOver, kind) => plan(mode, phase, touches(), kind),
    }
}

fn another_question() -> Status {
    Status::internal("the machine answered another question")
}

/// A request over general keys and registrations has no one store that could do it as a whole.
pub(super) fn refuse_mixed() -> Status {
    Status::failed_precondition(
        "causeway: the request touches both general keys and registrations, which are in different stores; \
         send it as two requests",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_touched_counts_only_after_the_take_over() {
        let check = |mode, kind, want| {
            for phase in Phase::ALL {
                let got = plan_of(mode, phase, || unreachable!("not looked at"), kind);
                assert_eq!(got, want, "{mode:?} {kind:?} {phase}");
            }
        };
        check(Mode::Embedded, Kind::Read, Plan::Local);
        check(Mode::Embedded, Kind::Write, Plan::Local);
        check(Mode::Relay, Kind::Read, Plan::Legacy);
        check(Mode::Relay, Kind::Write, Plan::LegacyThenCopy);
        let owned = plan_of(
            Mode::TakenOver,
            Phase::MergeNew,
            || Touches::Owned,
            Kind::Write,
        );
        assert_eq!(owned, Plan::LocalThenLegacy);
    }
}
