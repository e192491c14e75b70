//! A snapshot of the embedded store: the database that a real etcd would have, which etcd's own tools read and
//! restore. It is the way back to a real etcd.
//!
//! What is in it is gathered bit by bit, so that nobody waits long for the machine's lock; it is laid out and written on
//! a thread of its own, as fast as the client takes it.

use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};
use causeway_engine::key_auth::AuthStore;
use causeway_engine::key_space::{Alarm, Cluster, Record, Release, hashed};
use causeway_wire::etcd::ServerIds;
use causeway_wire::etcd::bolt::{BoltError, Bucket, Entry, Image};
use causeway_wire::etcd::messages::etcdserverpb as pb;
use causeway_wire::etcd::messages::{authpb, mvccpb};
use crc::{CRC_32_ISCSI, Crc, Table};
use prost::Message;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::auth::shown_permission;
use super::connection::Caller;
use super::maintenance::alarm_member;
use super::{Front, advertised, translate};

/// Bytes of a message (etcd: v3rpc/maintenance.go, snapshotSendBufferSize).
const BLOB: usize = 32 * 1024;

/// Messages that wait for the client.
const AHEAD: usize = 8;

/// Keys or changes that are looked at under one lock.
const AT_ONCE: usize = 2000;

/// How often a compaction may begin the gathering anew; after that it is done under one lock.
const TRIES: usize = 4;

/// etcd's hashes (etcd: mvcc/hash.go).
static CASTAGNOLI: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);

/// Everything that a snapshot holds, of one moment.
pub(super) struct Parts {
    ids: ServerIds,
    release: Release,
    records: Vec<Record>,
    revision: i64,
    compacted: i64,
    floor: i64,
    leases: Vec<(i64, i64)>,
    cluster: Cluster,
    auth: AuthStore,
    urls: Vec<String>,
}

/// Gathers the present moment.
pub(super) async fn gather(front: &Front, caller: &Caller) -> Result<Parts, Status> {
    let mut tries = 0;
    let (parts, after) = loop {
        tries += 1;
        let most = if tries > TRIES { usize::MAX } else { AT_ONCE };
        if let Some(found) = try_gather(front, caller, most).await {
            break found;
        }
    };
    front.durable(after).await?;
    Ok(parts)
}

/// Nothing when the history was compacted meanwhile.
async fn try_gather(
    front: &Front,
    caller: &Caller,
    most: usize,
) -> Option<(Parts, crate::journal::Position)> {
    let ((mut reading, mut parts, mut more), mut after) = front.gateway.with(|core| {
        let keys = core.keys();
        let mut reading = keys.reading();
        let parts = Parts {
            ids: front.identity.ids(),
            release: front.identity.release(),
            records: Vec::new(),
            revision: reading.revision(),
            compacted: keys.compact_revision(),
            floor: reading.floor(),
            leases: keys.leases().map(|(id, l)| (id, l.ttl_s)).collect(),
            cluster: keys.cluster().clone(),
            auth: core.auth().clone(),
            urls: advertised(front, caller),
        };
        let more = keys.read_on(&mut reading, most);
        (reading, parts, more)
    });
    while more.ok()? {
        tokio::task::yield_now().await;
        (more, after) = front
            .gateway
            .with(|core| core.keys().read_on(&mut reading, most));
    }
    parts.records = reading.into_records();
    Some((parts, after))
}

/// Runs something long beside the connections.
pub(super) async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Status::internal(format!("causeway: the work ended: {error}")))
}

/// The snapshot as etcd sends it: the file, and its SHA-256 as the last message.
pub(super) async fn stream(
    parts: Parts,
    release: Release,
) -> Result<ReceiverStream<Result<pb::SnapshotResponse, Status>>, Status> {
    let version = if release.tells_storage_version() {
        parts.storage_release().cluster_version()
    } else {
        String::new()
    };
    let image = in_background(move || parts.image())
        .await?
        .map_err(unwritable)?;
    let (send, receive) = mpsc::channel(AHEAD);
    tokio::task::spawn_blocking(move || {
        let mut left = image.size();
        let mut hash = Sha256::new();
        let message = |blob: Bytes, left| {
            let message = pb::SnapshotResponse {
                header: None,
                remaining_bytes: left,
                blob,
                version: version.clone(),
            };
            // The client has gone.
            send.blocking_send(Ok(message)).ok()
        };
        let mut waiting = BytesMut::new();
        for page in image.pages() {
            hash.update(&page);
            waiting.extend_from_slice(&page);
            while waiting.len() >= BLOB {
                left -= BLOB as u64;
                message(waiting.split_to(BLOB).freeze(), left)?;
            }
        }
        if !waiting.is_empty() {
            message(waiting.freeze(), 0)?;
        }
        message(Bytes::copy_from_slice(&hash.finalize()), 0)
    });
    Ok(ReceiverStream::new(receive))
}

fn unwritable(error: BoltError) -> Status {
    Status::internal(format!("causeway: the snapshot cannot be written: {error}"))
}

impl Parts {
    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    /// The lowest revision that can be read; -1 before there was any compaction.
    pub(super) fn compact_revision(&self) -> i64 {
        if self.floor > 0 {
            self.compacted.max(self.floor)
        } else {
            self.compacted
        }
    }

    fn storage_release(&self) -> Release {
        if self.cluster.downgrades() {
            self.release.before()
        } else {
            self.release
        }
    }

    /// HashKV's: over the history up to a revision (etcd: mvcc/hash.go, unsafeHashByRev).
    pub(super) fn hash_of_keys(&self, revision: i64) -> u32 {
        let mut digest = CASTAGNOLI.digest();
        digest.update(b"key");
        for record in hashed(&self.records, self.compact_revision(), revision) {
            hash_entry(&mut digest, &Row::Record(record.clone()));
        }
        digest.finalize()
    }

    /// Hash's: over everything but what differs between members anyhow (etcd: backend.go, Hash, and
    /// schema.DefaultIgnores).
    pub(super) fn hash(self) -> Result<u32, Status> {
        let mut digest = CASTAGNOLI.digest();
        for bucket in self.buckets() {
            digest.update(bucket.name.as_bytes());
            let own = |row: &&Row| {
                bucket.name == "meta"
                    && [&b"consistent_index"[..], b"term", b"storageVersion"]
                        .contains(&row.key().as_ref())
            };
            for row in bucket.entries.iter().filter(|row| !own(row)) {
                hash_entry(&mut digest, row);
            }
        }
        Ok(digest.finalize())
    }

    fn image(self) -> Result<Image<Row>, BoltError> {
        Image::new(self.buckets())
    }

    /// etcd's buckets, by name (etcd: storage/schema).
    fn buckets(self) -> Vec<Bucket<Row>> {
        let index = u64::try_from(self.revision).unwrap_or(0);
        let member = self.ids.member_id;
        let conf_state = json!({"voters": [member], "auto_leave": false}).to_string();
        let mut meta = vec![
            pair(b"confState", conf_state.into_bytes()),
            pair(b"consistent_index", index.to_be_bytes().into()),
        ];
        let compacted = self.compact_revision();
        if compacted > 0 {
            let revision = revision_key(compacted, 0, false);
            meta.push(pair(b"finishedCompactRev", revision.to_vec()));
            meta.push(pair(b"scheduledCompactRev", revision.to_vec()));
        }
        if self.release.tells_storage_version() {
            let version = self.storage_release().cluster_version();
            meta.push(pair(b"storageVersion", version.into_bytes()));
        }
        meta.push(pair(b"term", self.ids.raft_term.to_be_bytes().into()));

        let mut leases: Vec<Row> = self
            .leases
            .iter()
            .map(|(id, ttl_s)| {
                let lease = Lease {
                    id: *id,
                    ttl: *ttl_s,
                };
                let key = Bytes::copy_from_slice(&id.to_be_bytes());
                Row::Pair(key, lease.encode_to_vec().into())
            })
            .collect();
        leases.sort_by(|a, b| a.key().cmp(&b.key()));

        let mut alarms: Vec<Row> = self
            .cluster
            .alarms()
            .map(|alarm: Alarm| {
                Row::Pair(alarm_member(&alarm).encode_to_vec().into(), Bytes::new())
            })
            .collect();
        alarms.sort_by(|a, b| a.key().cmp(&b.key()));

        let [auth, roles, users] = auth_buckets(&self.auth);
        let cluster_version = self.storage_release().cluster_version();
        let mut cluster = vec![pair(
            b"clusterVersion",
            cluster_version.clone().into_bytes(),
        )];
        if self.cluster.downgrades() {
            let info = json!({"target-version": cluster_version, "enabled": true});
            cluster.push(pair(b"downgrade", info.to_string().into_bytes()));
        }
        let urls = &self.urls;
        let value = json!({"id": member, "peerURLs": urls, "name": "causeway", "clientURLs": urls});
        let id = format!("{member:x}");
        let members = vec![Row::Pair(id.into(), value.to_string().into())];

        let mut keys: Vec<Row> = self.records.into_iter().map(Row::Record).collect();
        // Where nothing is left of the last revision a deletion of no key tells it, so that numbers do not fall.
        let last = keys.last().map_or(0, |row| match row {
            Row::Record(record) => record.main,
            Row::Pair(..) => 0,
        });
        if last < self.revision {
            keys.push(Row::Record(Record {
                main: self.revision,
                sub: 0,
                tombstone: true,
                kv: Default::default(),
            }));
        }
        let bucket = |name, entries| Bucket { name, entries };
        vec![
            bucket("alarm", alarms),
            bucket("auth", auth),
            bucket("authRoles", roles),
            bucket("authUsers", users),
            bucket("cluster", cluster),
            bucket("key", keys),
            bucket("lease", leases),
            bucket("members", members),
            bucket("members_removed", Vec::new()),
            bucket("meta", meta),
        ]
    }
}

fn pair(key: &'static [u8], value: Vec<u8>) -> Row {
    Row::Pair(Bytes::from_static(key), value.into())
}

/// What etcd keeps of authentication, its roles and its users, each by name (etcd: storage/schema/auth.go,
/// auth_roles.go, auth_users.go). A restored etcd asks who calls if this one did.
fn auth_buckets(auth: &AuthStore) -> [Vec<Row>; 3] {
    let named = |name: &str, message: Vec<u8>| Row::Pair(name.to_owned().into(), message.into());
    let state = vec![
        pair(b"authEnabled", vec![u8::from(auth.is_enabled())]),
        pair(b"authRevision", auth.revision().to_be_bytes().into()),
    ];
    let roles = auth.all_roles().map(|(name, granted)| {
        let role = authpb::Role {
            name: name.to_owned().into(),
            key_permission: granted.iter().cloned().map(shown_permission).collect(),
        };
        named(name, role.encode_to_vec())
    });
    let users = auth.all_users().map(|(name, password, roles)| {
        let user = authpb::User {
            name: name.to_owned().into(),
            password: password.map(|hash| hash.0.clone()).unwrap_or_default(),
            roles: roles.map(str::to_owned).collect(),
            options: Some(authpb::UserAddOptions {
                no_password: password.is_none(),
            }),
        };
        named(name, user.encode_to_vec())
    });
    [state, roles.collect(), users.collect()]
}

/// A lease as etcd keeps it (etcd: lease/leasepb/lease.proto). Without a remaining time it begins anew.
#[derive(Clone, PartialEq, prost::Message)]
struct Lease {
    #[prost(int64, tag = "1")]
    id: i64,
    #[prost(int64, tag = "2")]
    ttl: i64,
}

/// One entry of a bucket.
#[derive(Debug)]
enum Row {
    Pair(Bytes, Bytes),
    Record(Record),
}

impl Entry for Row {
    fn key(&self) -> Cow<'_, [u8]> {
        match self {
            Row::Pair(key, _) => Cow::Borrowed(key),
            Row::Record(record) => {
                Cow::Owned(revision_key(record.main, record.sub, record.tombstone).to_vec())
            }
        }
    }

    fn value_len(&self) -> usize {
        match self {
            Row::Pair(_, value) => value.len(),
            Row::Record(record) => stored(record).encoded_len(),
        }
    }

    fn write_value(&self, out: &mut Vec<u8>) {
        match self {
            Row::Pair(_, value) => out.extend_from_slice(value),
            Row::Record(record) => out.extend_from_slice(&stored(record).encode_to_vec()),
        }
    }
}

/// The pair as etcd stores it; of a deletion the key alone (etcd: mvcc/kvstore_txn.go, delete).
fn stored(record: &Record) -> mvccpb::KeyValue {
    if record.tombstone {
        return mvccpb::KeyValue {
            key: record.kv.key.clone(),
            ..Default::default()
        };
    }
    translate::kv(&record.kv)
}

/// etcd: mvcc/revision.go, BucketKeyToBytes.
fn revision_key(main: i64, sub: i64, tombstone: bool) -> Bytes {
    let mut key = BytesMut::with_capacity(18);
    key.put_i64(main);
    key.put_u8(b'_');
    key.put_i64(sub);
    if tombstone {
        key.put_u8(b't');
    }
    key.freeze()
}

fn hash_entry(digest: &mut crc::Digest<'_, u32, Table<16>>, row: &Row) {
    let mut value = Vec::with_capacity(row.value_len());
    row.write_value(&mut value);
    digest.update(&row.key());
    digest.update(&value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(main: i64, key: &'static str, tombstone: bool) -> Record {
        let kv = causeway_engine::key_space::KeyValue {
            key: key.into(),
            value: "v".into(),
            create_revision: main,
            mod_revision: main,
            version: 1,
            lease: 0,
        };
        Record {
            main,
            sub: 0,
            tombstone,
            kv: kv.into(),
        }
    }

    fn parts(records: Vec<Record>, revision: i64) -> Parts {
        Parts {
            ids: ServerIds {
                cluster_id: 1,
                member_id: 0xab,
                raft_term: 2,
            },
            release: Release::default(),
            records,
            revision,
            compacted: -1,
            floor: 0,
            leases: vec![(7, 60), (-3, 9)],
            cluster: Cluster::default(),
            auth: AuthStore::default(),
            urls: vec!["http://127.0.0.1:2379".into()],
        }
    }

    #[test]
    fn keys_are_as_etcd_writes_them() {
        let key = revision_key(0x0102, 3, true);
        assert_eq!(&key[..], b"\0\0\0\0\0\0\x01\x02_\0\0\0\0\0\0\0\x03t");
        assert_eq!(revision_key(1, 0, false).len(), 17);
    }

    #[test]
    fn every_bucket_is_in_order_and_the_last_revision_is_told() {
        for (records, revision, last) in [
            (vec![record(2, "a", false), record(3, "a", true)], 3, 3),
            (vec![record(2, "a", false)], 9, 9),
            (Vec::new(), 5, 5),
        ] {
            let image = parts(records, revision).image().expect("in order");
            let keys = image.buckets().iter().find(|b| b.name == "key");
            let rows = &keys.expect("there is one").entries;
            let key = rows.last().expect("a row").key().into_owned();
            assert_eq!(key[..8], i64::to_be_bytes(last));
        }
    }

    #[test]
    fn hashes_are_etcds() {
        // A real etcd 3.7 without any key.
        assert_eq!(parts(Vec::new(), 1).hash_of_keys(1), 1_084_519_789);
        let one = parts(vec![record(2, "a", false)], 2);
        assert_ne!(one.hash_of_keys(2), 1_084_519_789);
        assert_eq!(one.hash_of_keys(1), 1_084_519_789);
    }
}
