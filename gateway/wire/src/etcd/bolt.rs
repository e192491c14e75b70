//! A bbolt database file, written from front to back out of sorted entries: what etcd keeps its data in, and what
//! its tools take as a snapshot (bbolt: internal/common/page.go, meta.go; file format version 2).
//!
//! Everything is laid out first, by lengths alone, so that the size is known before the first byte and no page has to
//! be held. There are no free pages and, as in etcd's own files, no list of them.

use std::borrow::Cow;

use bytes::{BufMut, Bytes};

/// Bytes of a page.
const PAGE: usize = 4096;
/// Bytes of a page's header: id, flags, count, overflow.
const PAGE_HEADER: usize = 16;
/// Bytes that an entry of a leaf or of a branch takes beside its key and value.
const ELEMENT: usize = 16;
/// Bytes of a bucket's header: page of its root, sequence.
const BUCKET_HEADER: usize = 16;

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const META: u16 = 0x04;
/// In an entry of a leaf: it is a bucket.
const IS_BUCKET: u32 = 0x01;

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
/// In place of the page of the list of free pages.
const NO_FREELIST: u64 = u64::MAX;
/// Pages 0 and 1.
const METAS: u64 = 2;

/// Longest key, and longest value (bbolt: bucket.go, MaxKeySize and MaxValueSize).
const MAX_KEY: usize = 32_768;
const MAX_VALUE: usize = (1 << 31) - 2;

/// One entry of a bucket.
pub trait Entry {
    /// Its key.
    fn key(&self) -> Cow<'_, [u8]>;
    /// How long its value is.
    fn value_len(&self) -> usize;
    /// Its value, which is exactly so long.
    fn write_value(&self, out: &mut Vec<u8>);
}

/// An entry as it is.
impl Entry for (Bytes, Bytes) {
    fn key(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.0)
    }

    fn value_len(&self) -> usize {
        self.1.len()
    }

    fn write_value(&self, out: &mut Vec<u8>) {
        out.put_slice(&self.1);
    }
}

/// Why something cannot be written as a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BoltError {
    /// Buckets and the keys in each have to rise.
    #[error("the entries are not in order")]
    Order,
    /// bbolt takes keys of 1 to 32,768 bytes and values below 2 GiB.
    #[error("a key or a value has a length that bbolt does not take")]
    Length,
}

/// A bucket with its entries.
#[derive(Debug)]
pub struct Bucket<E> {
    /// Its name.
    pub name: &'static str,
    /// By key.
    pub entries: Vec<E>,
}

/// A database that is laid out.
#[derive(Debug)]
pub struct Image<E> {
    buckets: Vec<Bucket<E>>,
    /// By page.
    pages: Vec<Plan>,
    /// The root page of each bucket; 0 for an empty one, which is written into the root.
    roots: Vec<u64>,
    /// The page of the root bucket.
    root: u64,
    /// The page after the last.
    end: u64,
}

/// A page, with those that it overflows into.
#[derive(Debug, Clone, Copy)]
struct Plan {
    id: u64,
    pages: u64,
    what: Holds,
}

#[derive(Debug, Clone, Copy)]
enum Holds {
    /// Entries of a bucket.
    Entries {
        bucket: usize,
        first: usize,
        count: usize,
    },
    /// Pages below: places in the plan.
    Pages { first: usize, count: usize },
    /// The buckets.
    Buckets,
}

impl<E: Entry> Image<E> {
    /// Lays the buckets out; they have to be by name, and their entries by key.
    pub fn new(buckets: Vec<Bucket<E>>) -> Result<Self, BoltError> {
        let names = buckets.iter().map(|bucket| bucket.name);
        if !names.is_sorted_by(|a, b| a < b) {
            return Err(BoltError::Order);
        }
        let mut image = Image {
            buckets,
            pages: Vec::new(),
            roots: Vec::new(),
            root: 0,
            end: METAS,
        };
        for bucket in 0..image.buckets.len() {
            let root = image.lay_out(bucket)?;
            image.roots.push(root);
        }
        let bytes = image.buckets.iter().map(|bucket| {
            let inline = if bucket.entries.is_empty() {
                PAGE_HEADER
            } else {
                0
            };
            ELEMENT + bucket.name.len() + BUCKET_HEADER + inline
        });
        let bytes = bytes.sum();
        image.root = image.push(bytes, Holds::Buckets);
        Ok(image)
    }

    /// Bytes of the whole file.
    pub fn size(&self) -> u64 {
        self.end * PAGE as u64
    }

    /// The buckets that it was made of.
    pub fn buckets(&self) -> &[Bucket<E>] {
        &self.buckets
    }

    /// The file, a run of pages at a time.
    pub fn pages(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        let metas = (0..METAS).map(|id| self.meta(id));
        metas.chain(self.pages.iter().map(|plan| self.page(plan)))
    }

    /// Gives the page of the bucket's root; 0 when it is empty.
    fn lay_out(&mut self, bucket: usize) -> Result<u64, BoltError> {
        let entries = self.buckets.get(bucket).map(|b| &b.entries);
        let lengths = lengths(entries.map_or(&[], Vec::as_slice))?;
        let mut level = self.pages.len();
        for (first, count) in packed(&lengths, 1) {
            let bytes = lengths.get(first..first + count).unwrap_or_default();
            let holds = Holds::Entries {
                bucket,
                first,
                count,
            };
            self.push(bytes.iter().sum(), holds);
        }
        // Branches over them, until one page is above all.
        while self.pages.len() - level > 1 {
            let below = level;
            level = self.pages.len();
            let lengths: Vec<usize> = (below..level)
                .map(|at| ELEMENT + self.first_key(at).len())
                .collect();
            for (first, count) in packed(&lengths, 2) {
                let bytes = lengths.get(first..first + count).unwrap_or_default();
                let holds = Holds::Pages {
                    first: below + first,
                    count,
                };
                self.push(bytes.iter().sum(), holds);
            }
        }
        Ok(self.pages.get(level).map_or(0, |plan| plan.id))
    }

    /// Gives its page.
    fn push(&mut self, bytes: usize, what: Holds) -> u64 {
        let id = self.end;
        let pages = (PAGE_HEADER + bytes).div_ceil(PAGE) as u64;
        self.pages.push(Plan { id, pages, what });
        self.end += pages;
        id
    }

    /// The lowest key of a page in the plan, or below it.
    fn first_key(&self, mut at: usize) -> Cow<'_, [u8]> {
        loop {
            match self.pages.get(at).map(|plan| plan.what) {
                Some(Holds::Pages { first, .. }) => at = first,
                Some(Holds::Entries { bucket, first, .. }) => {
                    let entry = self.buckets.get(bucket).and_then(|b| b.entries.get(first));
                    return entry.map_or(Cow::Borrowed(&[]), Entry::key);
                }
                Some(Holds::Buckets) | None => return Cow::Borrowed(&[]),
            }
        }
    }

    fn page(&self, plan: &Plan) -> Vec<u8> {
        let mut out = Vec::with_capacity(plan.pages as usize * PAGE);
        match plan.what {
            Holds::Entries {
                bucket,
                first,
                count,
            } => {
                let entries = self.buckets.get(bucket).map(|b| b.entries.as_slice());
                let entries = entries.and_then(|all| all.get(first..first + count));
                let entries = entries.unwrap_or_default();
                header(&mut out, plan, LEAF, entries.len());
                let mut data = Vec::new();
                for (at, entry) in entries.iter().enumerate() {
                    let key = entry.key();
                    leaf_element(
                        &mut out,
                        0,
                        (entries.len() - at) * ELEMENT + data.len(),
                        key.len(),
                        entry.value_len(),
                    );
                    data.put_slice(&key);
                    entry.write_value(&mut data);
                }
                out.append(&mut data);
            }
            Holds::Pages { first, count } => {
                header(&mut out, plan, BRANCH, count);
                let mut data = Vec::new();
                for at in 0..count {
                    let key = self.first_key(first + at);
                    put_u32(&mut out, (count - at) * ELEMENT + data.len());
                    put_u32(&mut out, key.len());
                    out.put_u64_le(self.pages.get(first + at).map_or(0, |plan| plan.id));
                    data.put_slice(&key);
                }
                out.append(&mut data);
            }
            Holds::Buckets => {
                header(&mut out, plan, LEAF, self.buckets.len());
                let mut data = Vec::new();
                for (at, (bucket, root)) in self.buckets.iter().zip(&self.roots).enumerate() {
                    let inline = if *root == 0 { PAGE_HEADER } else { 0 };
                    leaf_element(
                        &mut out,
                        IS_BUCKET,
                        (self.buckets.len() - at) * ELEMENT + data.len(),
                        bucket.name.len(),
                        BUCKET_HEADER + inline,
                    );
                    data.put_slice(bucket.name.as_bytes());
                    data.put_u64_le(*root);
                    data.put_u64_le(0);
                    if *root == 0 {
                        // A whole empty leaf, of no page.
                        data.put_u64_le(0);
                        data.put_u16_le(LEAF);
                        data.put_u16_le(0);
                        data.put_u32_le(0);
                    }
                }
                out.append(&mut data);
            }
        }
        out.resize(plan.pages as usize * PAGE, 0);
        out
    }

    fn meta(&self, id: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(PAGE);
        let plan = Plan {
            id,
            pages: 1,
            what: Holds::Buckets,
        };
        header(&mut out, &plan, META, 0);
        let mut meta = Vec::new();
        meta.put_u32_le(MAGIC);
        meta.put_u32_le(VERSION);
        put_u32(&mut meta, PAGE);
        meta.put_u32_le(0);
        meta.put_u64_le(self.root);
        meta.put_u64_le(0);
        meta.put_u64_le(NO_FREELIST);
        meta.put_u64_le(self.end);
        // The transaction: each of the two pages holds every other one.
        meta.put_u64_le(id);
        let checksum = fnv(&meta);
        meta.put_u64_le(checksum);
        out.append(&mut meta);
        out.resize(PAGE, 0);
        out
    }
}

/// Bytes of each entry in a leaf.
fn lengths<E: Entry>(entries: &[E]) -> Result<Vec<usize>, BoltError> {
    let mut last: Option<Cow<'_, [u8]>> = None;
    let mut out = Vec::with_capacity(entries.len());
    for entry in entries {
        let key = entry.key();
        let value = entry.value_len();
        if key.is_empty() || key.len() > MAX_KEY || value > MAX_VALUE {
            return Err(BoltError::Length);
        }
        if last.is_some_and(|last| last >= key) {
            return Err(BoltError::Order);
        }
        out.push(ELEMENT + key.len() + value);
        last = Some(key);
    }
    Ok(out)
}

/// Groups that fit into a page each, as first and count; one that has fewer than `least` overflows instead.
fn packed(lengths: &[usize], least: usize) -> Vec<(usize, usize)> {
    let mut groups: Vec<(usize, usize)> = Vec::new();
    let (mut first, mut bytes) = (0, PAGE_HEADER);
    for (at, length) in lengths.iter().enumerate() {
        if at - first >= least && bytes + length > PAGE {
            groups.push((first, at - first));
            (first, bytes) = (at, PAGE_HEADER);
        }
        bytes += length;
    }
    if first < lengths.len() {
        let rest = lengths.len() - first;
        match groups.last_mut() {
            Some(last) if rest < least => last.1 += rest,
            _ => groups.push((first, rest)),
        }
    }
    groups
}

fn header(out: &mut Vec<u8>, plan: &Plan, kind: u16, count: usize) {
    out.put_u64_le(plan.id);
    out.put_u16_le(kind);
    // A page of this size holds 255 elements at most, and one that overflows two.
    out.put_u16_le(u16::try_from(count).unwrap_or(u16::MAX));
    out.put_u32_le(u32::try_from(plan.pages - 1).unwrap_or(u32::MAX));
}

/// `at`: where its key begins, counted from the element's own beginning.
fn leaf_element(out: &mut Vec<u8>, flags: u32, at: usize, key: usize, value: usize) {
    out.put_u32_le(flags);
    put_u32(out, at);
    put_u32(out, key);
    put_u32(out, value);
}

/// Lengths were checked against [`MAX_VALUE`].
fn put_u32(out: &mut Vec<u8>, number: usize) {
    out.put_u32_le(u32::try_from(number).unwrap_or(u32::MAX));
}

/// FNV-1a of 64 bits (bbolt: meta.go, Sum64).
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests;
