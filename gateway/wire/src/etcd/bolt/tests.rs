//! The file is read again by a reader that knows only the format. That bbolt itself takes it is shown in
//! `compat-tests`.

use std::collections::BTreeSet;

use bytes::Buf;

use super::*;

type Pair = (Bytes, Bytes);

/// What a file holds, and that each of its pages is used exactly once.
struct Reader<'a> {
    file: &'a [u8],
    used: BTreeSet<u64>,
}

impl Reader<'_> {
    fn read(file: &[u8]) -> Vec<(String, Vec<Pair>)> {
        let mut metas = Vec::new();
        for id in 0..METAS {
            let mut page = &file[id as usize * PAGE..][..PAGE];
            assert_eq!((page.get_u64_le(), page.get_u16_le()), (id, META));
            page.advance(6);
            let (mut meta, mut sum) = page[..64].split_at(56);
            assert_eq!(fnv(meta), sum.get_u64_le());
            assert_eq!((meta.get_u32_le(), meta.get_u32_le()), (MAGIC, VERSION));
            assert_eq!((meta.get_u32_le(), meta.get_u32_le()), (PAGE as u32, 0));
            let root = meta.get_u64_le();
            assert_eq!((meta.get_u64_le(), meta.get_u64_le()), (0, NO_FREELIST));
            metas.push((root, meta.get_u64_le()));
            assert_eq!(meta.get_u64_le(), id);
        }
        assert_eq!(metas[0], metas[1]);
        let (root, end) = metas[0];
        assert_eq!(file.len() as u64, end * PAGE as u64);
        let mut reader = Reader {
            file,
            used: BTreeSet::from([0, 1]),
        };
        let mut out = Vec::new();
        for (flags, name, value) in reader.leaves(root) {
            assert_eq!(flags, IS_BUCKET);
            let root = (&value[..]).get_u64_le();
            let pairs = if root == 0 {
                assert_eq!(value.len(), BUCKET_HEADER + PAGE_HEADER);
                Vec::new()
            } else {
                let leaves = reader.leaves(root);
                leaves.into_iter().map(|(_, k, v)| (k, v)).collect()
            };
            out.push((String::from_utf8(name.to_vec()).expect("a name"), pairs));
        }
        assert_eq!(reader.used, (0..end).collect());
        out
    }

    fn leaves(&mut self, id: u64) -> Vec<(u32, Bytes, Bytes)> {
        let page = &self.file[id as usize * PAGE..];
        let mut header = page;
        assert_eq!(header.get_u64_le(), id);
        let (kind, count, overflow) = (
            header.get_u16_le(),
            header.get_u16_le(),
            header.get_u32_le(),
        );
        for used in id..=id + u64::from(overflow) {
            assert!(self.used.insert(used), "{used} is used twice");
        }
        let mut out = Vec::new();
        for at in 0..usize::from(count) {
            let element = &page[PAGE_HEADER + at * ELEMENT..];
            let mut fields = element;
            if kind == BRANCH {
                let (pos, len) = (fields.get_u32_le() as usize, fields.get_u32_le() as usize);
                let below = self.leaves(fields.get_u64_le());
                assert_eq!(below[0].1, element[pos..pos + len]);
                out.extend(below);
            } else {
                assert_eq!(kind, LEAF);
                let flags = fields.get_u32_le();
                let (pos, key, value) = (
                    fields.get_u32_le() as usize,
                    fields.get_u32_le() as usize,
                    fields.get_u32_le() as usize,
                );
                out.push((
                    flags,
                    Bytes::copy_from_slice(&element[pos..pos + key]),
                    Bytes::copy_from_slice(&element[pos + key..pos + key + value]),
                ));
            }
        }
        out
    }
}

fn check(buckets: &[(&'static str, Vec<Pair>)]) {
    let given = buckets.iter().map(|(name, entries)| Bucket {
        name,
        entries: entries.clone(),
    });
    let image = Image::new(given.collect()).expect("in order");
    let file: Vec<u8> = image.pages().flatten().collect();
    assert_eq!(file.len() as u64, image.size());
    let want: Vec<(String, Vec<Pair>)> = buckets
        .iter()
        .map(|(name, pairs)| ((*name).to_owned(), pairs.clone()))
        .collect();
    assert_eq!(Reader::read(&file), want);
}

fn pairs(
    count: usize,
    key: impl Fn(usize) -> Vec<u8>,
    value: impl Fn(usize) -> usize,
) -> Vec<Pair> {
    let of = |at| {
        let value = vec![at as u8; value(at)];
        (Bytes::from(key(at)), Bytes::from(value))
    };
    (0..count).map(of).collect()
}

fn numbered(at: usize) -> Vec<u8> {
    (at as u64).to_be_bytes().to_vec()
}

#[test]
fn what_is_written_is_read_again() {
    check(&[]);
    check(&[("empty", Vec::new())]);
    // As many as fill a page to its last byte, one more, and several levels of branches.
    for count in [1, 2, 127, 128, 170, 171, 30_000] {
        check(&[
            ("alarm", Vec::new()),
            ("key", pairs(count, numbered, |_| 0)),
            ("meta", pairs(1, numbered, |_| 8)),
        ]);
    }
    // Values around the size of a page and far above it.
    for value in [4056, 4057, 4058, 8152, 100_000] {
        check(&[("key", pairs(5, numbered, |_| value))]);
        check(&[(
            "key",
            pairs(300, numbered, |at| if at % 7 == 0 { value } else { 3 }),
        )]);
    }
    // Keys so long that a branch holds no two of them in one page.
    let long = |at: usize| [vec![b'x'; 5000], numbered(at)].concat();
    for count in 1..9 {
        check(&[("key", pairs(count, long, |_| 1))]);
    }
}

#[test]
fn what_bbolt_would_not_take_is_refused() {
    let refused = |name: &'static [&'static str], entries: Vec<Pair>| {
        let buckets = name.iter().map(|name| Bucket {
            name,
            entries: entries.clone(),
        });
        Image::new(buckets.collect())
            .map(|image| image.size())
            .err()
    };
    let pair = |key: &'static [u8]| (Bytes::from_static(key), Bytes::new());
    for (names, entries, want) in [
        (&["a", "b"][..], vec![pair(b"1"), pair(b"2")], None),
        (&["b", "a"], Vec::new(), Some(BoltError::Order)),
        (&["a", "a"], Vec::new(), Some(BoltError::Order)),
        (&["a"], vec![pair(b"1"), pair(b"1")], Some(BoltError::Order)),
        (&["a"], vec![pair(b"2"), pair(b"1")], Some(BoltError::Order)),
        (&["a"], vec![pair(b"")], Some(BoltError::Length)),
        (
            &["a"],
            vec![pair(&[7; MAX_KEY + 1])],
            Some(BoltError::Length),
        ),
        (&["a"], vec![pair(&[7; MAX_KEY])], None),
    ] {
        assert_eq!(refused(names, entries), want, "{names:?}");
    }
}
