//! Maintenance: the embedded store as a cluster of one member would answer; what does not exist is refused
//! by name.

use bytes::Bytes;
use causeway_engine::key_space::{KeyValue, RangeRequest};
use causeway_wire::etcd::EtcdError;
use causeway_wire::etcd::messages::etcdserverpb as pb;
use sha2::{Digest, Sha256};
use tonic::{Request, Response, Status};

use super::relay::Responses;
use super::services::etcdserverpb::maintenance_server::Maintenance;
use super::translate::{key_error, status};
use super::{Api, Front};

#[tonic::async_trait]
impl Maintenance for Api {
    async fn status(
        &self,
        _request: Request<pb::StatusRequest>,
    ) -> Result<Response<pb::StatusResponse>, Status> {
        let (seen, after) = self.gateway.with(|core| {
            let keys = core.keys();
            (keys.revision(), keys.history_bytes(), keys.len())
        });
        self.durable(after).await?;
        let (revision, history, pairs) = seen;
        let ids = self.identity.ids();
        // About the bytes of the history and the bookkeeping of each pair; never 0, which tools divide by.
        let bytes = i64::try_from(history)
            .unwrap_or(i64::MAX)
            .saturating_add(i64::try_from(pairs).unwrap_or(0) * 64);
        let applied = u64::try_from(revision).unwrap_or(0);
        Ok(Response::new(pb::StatusResponse {
            header: Some(ids.header(revision)),
            version: self.identity.version(),
            db_size: bytes.max(1),
            db_size_in_use: bytes.max(1),
            leader: ids.member_id,
            raft_index: applied,
            raft_applied_index: applied,
            raft_term: ids.raft_term,
            ..Default::default()
        }))
    }

    async fn alarm(
        &self,
        request: Request<pb::AlarmRequest>,
    ) -> Result<Response<pb::AlarmResponse>, Status> {
        use pb::alarm_request::AlarmAction;
        match request.get_ref().action() {
            AlarmAction::Get | AlarmAction::Deactivate => {
                let header = Some(self.now().await?);
                Ok(Response::new(pb::AlarmResponse {
                    header,
                    alarms: Vec::new(),
                }))
            }
            AlarmAction::Activate => Err(refused(
                "Alarm ACTIVATE",
                "the store has neither a quota nor a disk image",
            )),
        }
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
        _request: Request<pb::HashRequest>,
    ) -> Result<Response<pb::HashResponse>, Status> {
        let (revision, hash, _) = self.hash_at(0).await?;
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
        let (revision, hash, compact_revision) = self.hash_at(asked).await?;
        Ok(Response::new(pb::HashKvResponse {
            header: Some(self.header(revision)),
            hash,
            compact_revision,
            hash_revision: if asked > 0 { asked } else { revision },
        }))
    }

    type SnapshotStream = Responses<pb::SnapshotResponse>;

    async fn snapshot(
        &self,
        _request: Request<pb::SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        Err(refused(
            "Snapshot",
            "the store has no database file; copy the folder of --data-dir",
        ))
    }

    async fn move_leader(
        &self,
        _request: Request<pb::MoveLeaderRequest>,
    ) -> Result<Response<pb::MoveLeaderResponse>, Status> {
        // etcd: there is no other member to move it to.
        Err(status(EtcdError::BadLeaderTransferee))
    }

    async fn downgrade(
        &self,
        _request: Request<pb::DowngradeRequest>,
    ) -> Result<Response<pb::DowngradeResponse>, Status> {
        Err(refused(
            "Downgrade",
            "the store has no etcd version of its own",
        ))
    }
}

impl Front {
    async fn now(&self) -> Result<pb::ResponseHeader, Status> {
        let (revision, after) = self.gateway.with(|core| core.keys().revision());
        self.durable(after).await?;
        Ok(self.header(revision))
    }

    /// Present revision, hash of all pairs at a revision (0: the present), and the compaction below it.
    async fn hash_at(&self, revision: i64) -> Result<(i64, u32, i64), Status> {
        let everything = RangeRequest {
            key: Bytes::from_static(&[0]),
            range_end: Bytes::from_static(&[0]),
            revision,
            ..Default::default()
        };
        let (found, after) = self.gateway.with(|core| {
            (
                core.keys().range(&everything),
                core.keys().compact_revision(),
            )
        });
        self.durable(after).await?;
        let (reply, compacted) = (found.0.map_err(|e| status(key_error(&e)))?, found.1);
        Ok((
            reply.revision,
            hash(reply.kvs.iter().map(|kv| &**kv)),
            compacted,
        ))
    }
}

/// Equal for equal pairs; it is compared between gateways only, never with a real etcd's.
fn hash<'a>(kvs: impl Iterator<Item = &'a KeyValue>) -> u32 {
    let mut hash = Sha256::new();
    for kv in kvs {
        for bytes in [&kv.key, &kv.value] {
            hash.update((bytes.len() as u64).to_be_bytes());
            hash.update(bytes);
        }
        for number in [kv.create_revision, kv.mod_revision, kv.version, kv.lease] {
            hash.update(number.to_be_bytes());
        }
    }
    let digest = hash.finalize();
    digest
        .iter()
        .take(4)
        .fold(0, |all, byte| all << 8 | u32::from(*byte))
}

fn refused(method: &str, why: &str) -> Status {
    Status::unimplemented(format!("causeway: {method} is not supported: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_tells_pairs_apart() {
        let kv = |key: &'static str, value: &'static str, version| KeyValue {
            key: key.into(),
            value: value.into(),
            version,
            ..KeyValue::default()
        };
        let of = |kvs: &[KeyValue]| hash(kvs.iter());
        let one = of(&[kv("a", "bc", 1)]);
        assert_eq!(one, of(&[kv("a", "bc", 1)]));
        for other in [
            of(&[kv("ab", "c", 1)]),
            of(&[kv("a", "bc", 2)]),
            of(&[]),
            of(&[kv("a", "bc", 1), kv("b", "", 1)]),
        ] {
            assert_ne!(one, other);
        }
    }
}
