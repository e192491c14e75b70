//! Digests of all records, kept up to date in constant time per write.
//!
//! Two members that hold the same records have the same digest. When they differ, 256 buckets, then
//! the 256 parts of a differing bucket, lead to the keys. A cell combines the hashes of its records
//! by exclusive or and by sum: both are undone by the same hash, so a removal costs what an insertion
//! does, and a pair of hashes that cancels in one does not in the other.

use std::collections::BTreeMap;
use std::hash::Hasher;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;

use crate::origin::Origin;
use crate::record::{Record, RecordKey, StoreKind, Version};

const FAN: usize = 256;

/// The combined hash of a set of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// Exclusive or of the records' hashes.
    pub xor: u64,
    /// Wrapping sum of the records' hashes.
    pub sum: u64,
    /// How many records.
    pub count: u64,
}

impl Cell {
    fn add(&mut self, hash: u64) {
        self.xor ^= hash;
        self.sum = self.sum.wrapping_add(hash);
        self.count = self.count.wrapping_add(1);
    }

    fn remove(&mut self, hash: u64) {
        self.xor ^= hash;
        self.sum = self.sum.wrapping_sub(hash);
        self.count = self.count.wrapping_sub(1);
    }
}

#[derive(Clone, Debug)]
struct Bucket {
    total: Cell,
    parts: Vec<Cell>,
}

/// Two-level digest over the living records, whole and per origin.
#[derive(Clone, Debug)]
pub struct Digest {
    key: (u64, u64),
    total: Cell,
    origins: BTreeMap<Origin, Cell>,
    /// By the first byte of the key's hash; a bucket exists from its first record on.
    buckets: Vec<Option<Box<Bucket>>>,
}

impl Digest {
    /// An empty digest. Members compare digests only if they hash under the same `key`; a key that
    /// clients do not know keeps them from choosing records that cancel out.
    pub fn new(key: (u64, u64)) -> Self {
        Digest {
            key,
            total: Cell::default(),
            origins: BTreeMap::new(),
            buckets: vec![None; FAN],
        }
    }

    /// Counts a record in.
    pub fn add(&mut self, record: &Record) {
        let (place, hash) = (self.place(&record.key), self.hash(record));
        self.total.add(hash);
        self.origins.entry(record.dot.origin).or_default().add(hash);
        if let Some(slot) = self.buckets.get_mut(place.0) {
            let bucket = slot.get_or_insert_with(|| {
                Box::new(Bucket {
                    total: Cell::default(),
                    parts: vec![Cell::default(); FAN],
                })
            });
            bucket.total.add(hash);
            if let Some(part) = bucket.parts.get_mut(place.1) {
                part.add(hash);
            }
        }
    }

    /// Counts a record out. It must be as it was when counted in.
    pub fn remove(&mut self, record: &Record) {
        let (place, hash) = (self.place(&record.key), self.hash(record));
        self.total.remove(hash);
        if let Some(cell) = self.origins.get_mut(&record.dot.origin) {
            cell.remove(hash);
            if cell.count == 0 {
                self.origins.remove(&record.dot.origin);
            }
        }
        if let Some(slot) = self.buckets.get_mut(place.0)
            && let Some(bucket) = slot
        {
            bucket.total.remove(hash);
            if let Some(part) = bucket.parts.get_mut(place.1) {
                part.remove(hash);
            }
            if bucket.total.count == 0 {
                *slot = None;
            }
        }
    }

    /// Over all records.
    pub fn total(&self) -> Cell {
        self.total
    }

    /// Over the records that an origin wrote last.
    pub fn origin(&self, origin: Origin) -> Cell {
        self.origins.get(&origin).copied().unwrap_or_default()
    }

    /// The first level: one cell per first byte of the key's hash.
    pub fn buckets(&self) -> impl Iterator<Item = Cell> + '_ {
        self.buckets
            .iter()
            .map(|bucket| bucket.as_ref().map(|b| b.total).unwrap_or_default())
    }

    /// The second level of one bucket; empty where the bucket has no record.
    pub fn parts(&self, bucket: u8) -> &[Cell] {
        match self.buckets.get(usize::from(bucket)) {
            Some(Some(bucket)) => &bucket.parts,
            _ => &[],
        }
    }

    /// Bucket and part of a key.
    pub fn place(&self, key: &RecordKey) -> (usize, usize) {
        let [.., second, first] = self.key_hash(key).to_le_bytes();
        (usize::from(first), usize::from(second))
    }

    /// Where a key stands among all: its highest byte is the bucket, the next one the part.
    pub fn key_hash(&self, key: &RecordKey) -> u64 {
        let mut hasher = self.hasher();
        write_key(&mut hasher, key);
        hasher.finish()
    }

    /// Equal for the same version of the same key, dead ones included.
    pub(crate) fn version_hash(&self, key: &RecordKey, version: Version) -> u64 {
        let mut hasher = self.hasher();
        write_key(&mut hasher, key);
        hasher.write(&version.stamp.hlc.to_le_bytes());
        hasher.write(&version.stamp.member.to_le_bytes());
        hasher.write(&version.sub.to_le_bytes());
        if version.dead {
            hasher.write(&[1]);
        }
        hasher.finish()
    }

    /// Over what decides between two values, so that equal digests mean equal versions.
    fn hash(&self, record: &Record) -> u64 {
        self.version_hash(&record.key, record.version())
    }

    fn hasher(&self) -> SipHasher24 {
        SipHasher24::new_with_keys(self.key.0, self.key.1)
    }
}

/// Bytes of fixed order, since members of different machines must agree.
fn write_key(hasher: &mut SipHasher24, key: &RecordKey) {
    let store = match key.store {
        StoreKind::Zookeeper => 1u8,
        StoreKind::Etcd => 2,
        StoreKind::Native => 3,
    };
    hasher.write(&[store]);
    hasher.write(&(key.key.len() as u64).to_le_bytes());
    hasher.write(&key.key);
}
