//! Maintenance: the embedded store as a cluster of one member would answer.

use std::pin::Pin;
use std::sync::Arc;

use causeway_engine::key_space::{Alarm, KeyCommand, KeyReply, Release};
use causeway_wire::etcd::EtcdError;
use causeway_wire::etcd::messages::etcdserverpb as pb;
use futures::{Stream, StreamExt as _, stream};
use tonic::{Request, Response, Status};

use super::connection::{Caller, ended};
use super::permit::Shown;
use super::relay::Responses;
use super::services::etcdserverpb::maintenance_server::Maintenance;
use super::translate::status;
use super::{Api, Front, caller, snapshot};

/// The quota in Status when there is none (etcd: `--quota-backend-bytes`, below 0).
const NO_QUOTA: i64 = -1;

#[tonic::async_trait]
impl Maintenance for Api {
    async fn status(
        &self,
        _request: Request<pb::StatusRequest>,
    ) -> Result<Response<pb::StatusResponse>, Status> {
        let seen = self.seen().await?;
        let (ids, release) = (self.identity.ids(), self.identity.release());
        let applied = u64::try_from(seen.revision).unwrap_or(0);
        let mut reply = pb::StatusResponse {
            header: Some(ids.header(seen.revision)),
            version: self.identity.version(),
            db_size: seen.bytes,
            db_size_in_use: seen.bytes,
            leader: ids.member_id,
            raft_index: applied,
            raft_applied_index: applied,
            raft_term: ids.raft_term,
            errors: seen.alarms.iter().map(alarm_text).collect(),
            ..Default::default()
        };
        if release.tells_storage_version() {
            let target = seen.cluster_release(release).cluster_version();
            reply.storage_version = target.clone();
            reply.db_size_quota = NO_QUOTA;
            reply.downgrade_info = Some(pb::DowngradeInfo {
                enabled: seen.downgrades,
                target_version: if seen.downgrades {
                    target
                } else {
                    String::new()
                },
            });
        }
        Ok(Response::new(reply))
    }

    async fn alarm(
        &self,
        request: Request<pb::AlarmRequest>,
    ) -> Result<Response<pb::AlarmResponse>, Status> {
        use pb::alarm_request::AlarmAction;
        let caller = caller(&request);
        let (metadata, _, asked) = request.into_parts();
        let alarm = Alarm {
            kind: asked.alarm,
            member: asked.member_id,
        };
        let alarms = match AlarmAction::try_from(asked.action) {
            Ok(AlarmAction::Get) => {
                let mut alarms = self.seen().await?.alarms;
                alarms.retain(|raised| alarm.kind == 0 || raised.kind == alarm.kind);
                alarms
            }
            Ok(action @ (AlarmAction::Activate | AlarmAction::Deactivate)) => {
                let active = action == AlarmAction::Activate;
                let done = self.write(
                    Shown::new(&metadata, &caller),
                    KeyCommand::Alarm { active, alarm },
                )?;
                match self.finished(done).await? {
                    KeyReply::Changed(1) => vec![alarm],
                    _ => Vec::new(),
                }
            }
            // etcd's process ends at one.
            Err(_) => return Err(unknown_method()),
        };
        let header = self.seen().await?.revision;
        let has_header = self.identity.release().has_alarm_header();
        Ok(Response::new(pb::AlarmResponse {
            header: has_header.then(|| self.header(header)),
            alarms: alarms.iter().map(alarm_member).collect(),
        }))
    }

    /// There is no free space to give back: the history is trimmed as it grows. etcd's answer has no header
    /// (v3rpc/maintenance.go, Defragment).
    async fn defragment(
        &self,
        _request: Request<pb::DefragmentRequest>,
    ) -> Result<Response<pb::DefragmentResponse>, Status> {
        Ok(Response::new(pb::DefragmentResponse { header: None }))
    }

    async fn hash(
        &self,
        request: Request<pb::HashRequest>,
    ) -> Result<Response<pb::HashResponse>, Status> {
        let parts = snapshot::gather(self, &caller(&request)).await?;
        let revision = parts.revision();
        let hash = snapshot::in_background(move || parts.hash()).await??;
        Ok(Response::new(pb::HashResponse {
            header: Some(self.header(revision)),
            hash,
        }))
    }

    async fn hash_kv(
        &self,
        request: Request<pb::HashKvRequest>,
    ) -> Result<Response<pb::HashKvResponse>, Status> {
        let asked = request.get_ref().revision;
        let parts = snapshot::gather(self, &caller(&request)).await?;
        let (revision, compact_revision) = (parts.revision(), parts.compact_revision());
        if asked > 0 && asked < compact_revision {
            return Err(status(EtcdError::Compacted));
        }
        if asked > revision {
            return Err(status(EtcdError::FutureRev));
        }
        let hash_revision = if asked == 0 { revision } else { asked };
        let hash = snapshot::in_background(move || parts.hash_of_keys(hash_revision)).await?;
        Ok(Response::new(pb::HashKvResponse {
            header: Some(self.header(revision)),
            hash,
            compact_revision,
            hash_revision,
        }))
    }

    type SnapshotStream = Responses<pb::SnapshotResponse>;

    async fn snapshot(
        &self,
        request: Request<pb::SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        let parts = snapshot::gather(self, &caller(&request)).await?;
        let blobs = snapshot::stream(parts, self.identity.release()).await?;
        Ok(Response::new(until_ended(caller(&request), blobs)))
    }

    /// The only member leads, and so can only be asked to lead on.
    async fn move_leader(
        &self,
        request: Request<pb::MoveLeaderRequest>,
    ) -> Result<Response<pb::MoveLeaderResponse>, Status> {
        if request.get_ref().target_id != self.identity.ids().member_id {
            return Err(status(EtcdError::BadLeaderTransferee));
        }
        Ok(Response::new(pb::MoveLeaderResponse { header: None }))
    }

    async fn downgrade(
        &self,
        request: Request<pb::DowngradeRequest>,
    ) -> Result<Response<pb::DowngradeResponse>, Status> {
        use pb::downgrade_request::DowngradeAction;
        let caller = caller(&request);
        let (metadata, _, asked) = request.into_parts();
        let seen = self.seen().await?;
        let shown = self.identity.release();
        let enable = match DowngradeAction::try_from(asked.action) {
            Ok(DowngradeAction::Validate) => {
                check_downgrade(&asked.version, shown, seen.downgrades).map_err(status)?;
                None
            }
            Ok(DowngradeAction::Enable) => {
                check_downgrade(&asked.version, shown, seen.downgrades).map_err(status)?;
                Some(true)
            }
            // Without one that is under way etcd only logs it.
            Ok(DowngradeAction::Cancel) => Some(false),
            Err(_) => return Err(unknown_method()),
        };
        if let Some(enable) = enable {
            let shown = Shown::new(&metadata, &caller);
            let done = self.write(shown, KeyCommand::Downgrade { enable })?;
            self.finished(done).await?;
        }
        Ok(Response::new(pb::DowngradeResponse {
            header: Some(self.header(seen.revision)),
            version: seen.cluster_release(shown).short(),
        }))
    }
}

/// What the store says of itself.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) revision: i64,
    /// About what it takes; never 0, which tools divide by.
    pub(super) bytes: i64,
    pub(super) alarms: Vec<Alarm>,
    pub(super) downgrades: bool,
}

impl Seen {
    /// The release that the cluster is at: the one before while it is being downgraded. etcd gets there within
    /// some seconds (version/monitor.go).
    pub(super) fn cluster_release(&self, shown: Release) -> Release {
        if self.downgrades {
            shown.before()
        } else {
            shown
        }
    }
}

impl Front {
    async fn seen(&self) -> Result<Seen, Status> {
        let (seen, after) = self.look_at_member();
        self.durable(after).await?;
        Ok(seen)
    }

    /// What is there, whether it is on disk yet or not, and what it depends on.
    pub(super) fn look_at_member(&self) -> (Seen, crate::journal::Position) {
        self.gateway.with(|core| {
            let keys = core.keys();
            // The bytes of the history, and the bookkeeping of each pair.
            let bytes = i64::try_from(keys.history_bytes()).unwrap_or(i64::MAX);
            let pairs = i64::try_from(keys.len()).unwrap_or(0);
            Seen {
                revision: keys.revision(),
                bytes: bytes.saturating_add(pairs.saturating_mul(64)).max(1),
                alarms: keys.cluster().alarms().collect(),
                downgrades: keys.cluster().downgrades(),
            }
        })
    }
}

/// Whether a downgrade may begin (etcd: version/version.go, DowngradeValidate): to the release before the cluster's,
/// which is one lower while one is under way.
fn check_downgrade(target: &str, shown: Release, under_way: bool) -> Result<(), EtcdError> {
    let target = Release::named(target).ok_or(EtcdError::WrongDowngradeVersionFormat)?;
    let before = shown.before();
    // The cluster may not be there yet.
    if target != before && !(under_way && target == before.before()) {
        return Err(EtcdError::InvalidDowngradeTargetVersion);
    }
    if under_way {
        return Err(EtcdError::DowngradeInProcess);
    }
    Ok(())
}

/// An action that does not exist (etcd: errors.ErrUnknownMethod, for Downgrade).
fn unknown_method() -> Status {
    Status::unknown("etcdserver: unknown method")
}

pub(super) fn alarm_member(alarm: &Alarm) -> pb::AlarmMember {
    pb::AlarmMember {
        member_id: alarm.member,
        alarm: alarm.kind,
    }
}

/// As Go prints the message.
fn alarm_text(alarm: &Alarm) -> String {
    format!("memberID:{} alarm:{}", alarm.member, alarm_name(alarm.kind))
}

/// The name of a kind; one that is not known is its number.
pub(super) fn alarm_name(kind: i32) -> String {
    match pb::AlarmType::try_from(kind) {
        Ok(kind) => kind.as_str_name().to_owned(),
        Err(_) => kind.to_string(),
    }
}

/// Responses until the connection has to end.
fn until_ended<T: Send + 'static>(
    caller: Arc<Caller>,
    responses: impl Stream<Item = Result<T, Status>> + Send + Unpin + 'static,
) -> Responses<T> {
    let ends: Pin<Box<dyn Future<Output = ()> + Send>> =
        Box::pin(async move { caller.ends().await });
    Box::pin(stream::unfold(
        (Some(responses), ends),
        |(responses, mut ends)| async move {
            let mut responses = responses?;
            tokio::select! {
                next = responses.next() => next.map(|next| (next, (Some(responses), ends))),
                () = &mut ends => Some((Err(ended()), (None, ends))),
            }
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn downgrades_go_to_the_release_before() {
        use EtcdError::*;
        let shown = Release::new(3, 7);
        for (target, under_way, want) in [
            ("3.6", false, Ok(())),
            ("3.6.4", false, Ok(())),
            ("3.7", false, Err(InvalidDowngradeTargetVersion)),
            ("3.5", false, Err(InvalidDowngradeTargetVersion)),
            ("3.6", true, Err(DowngradeInProcess)),
            ("3.5", true, Err(DowngradeInProcess)),
            ("3.4", true, Err(InvalidDowngradeTargetVersion)),
            ("3", false, Err(WrongDowngradeVersionFormat)),
        ] {
            assert_eq!(check_downgrade(target, shown, under_way), want, "{target}");
        }
    }

    #[test]
    fn alarms_are_told_by_name() {
        let text = |kind| alarm_text(&Alarm { kind, member: 7 });
        assert_eq!(text(Alarm::NOSPACE), "memberID:7 alarm:NOSPACE");
        assert_eq!(text(Alarm::CORRUPT), "memberID:7 alarm:CORRUPT");
        assert_eq!(text(9), "memberID:7 alarm:9");
    }
}
