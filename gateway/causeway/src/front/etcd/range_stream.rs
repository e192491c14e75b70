//! A range in parts (etcd: v3_server.go, rangeStream): what a client need not hold twice, and a server need not send
//! as one message.

use causeway_wire::etcd::messages::etcdserverpb as pb;
use prost::Message;

/// Pairs of the first part (etcd: initialStreamChunkLimit).
const FIRST: usize = 10;

/// Bytes that a part should have (etcd: `--max-request-bytes`).
const WANTED: usize = 1536 * 1024;

/// The parts of an answer. All but the last have pairs alone; a negative limit is one part, as in etcd.
pub(super) fn parts(
    whole: pb::RangeResponse,
    limit: i64,
) -> impl Iterator<Item = pb::RangeStreamResponse> {
    let mut size = if limit < 0 { usize::MAX } else { FIRST };
    let mut left = Some(whole);
    std::iter::from_fn(move || {
        let whole = left.as_mut()?;
        let part = if whole.kvs.len() <= size {
            left.take()?
        } else {
            let rest = whole.kvs.split_off(size);
            let part = pb::RangeResponse {
                kvs: std::mem::replace(&mut whole.kvs, rest),
                ..Default::default()
            };
            size = next(size, part.encoded_len());
            part
        };
        Some(pb::RangeStreamResponse {
            range_response: Some(part),
        })
    })
}

/// Pairs of the next part (etcd: adjustChunkLimit).
fn next(size: usize, bytes: usize) -> usize {
    let next = if bytes < WANTED / 2 {
        size.saturating_mul(2)
    } else if bytes > WANTED * 2 {
        size / 2
    } else {
        size
    };
    next.max(1)
}

#[cfg(test)]
mod tests {
    use causeway_wire::etcd::messages::mvccpb::KeyValue;

    use super::*;

    fn sizes(pairs: usize, bytes: usize, limit: i64) -> Vec<usize> {
        let kvs: Vec<KeyValue> = (0..pairs)
            .map(|at| KeyValue {
                key: at.to_string().into(),
                value: vec![0; bytes].into(),
                ..Default::default()
            })
            .collect();
        let whole = pb::RangeResponse {
            header: Some(pb::ResponseHeader::default()),
            kvs: kvs.clone(),
            more: true,
            count: 77,
        };
        let parts: Vec<pb::RangeResponse> = parts(whole, limit)
            .map(|part| part.range_response.expect("a part"))
            .collect();
        let (last, before) = parts.split_last().expect("the last one");
        assert!(last.header.is_some() && last.more && last.count == 77);
        for part in before {
            assert!(part.header.is_none() && !part.more && part.count == 0);
        }
        let all: Vec<KeyValue> = parts.iter().flat_map(|part| part.kvs.clone()).collect();
        assert_eq!(all, kvs);
        parts.iter().map(|part| part.kvs.len()).collect()
    }

    #[test]
    fn parts_grow_until_they_are_large() {
        for (pairs, bytes, limit, want) in [
            (0, 0, 0, vec![0]),
            (10, 1, 0, vec![10]),
            (11, 1, 0, vec![10, 1]),
            (75, 1, 100, vec![10, 20, 40, 5]),
            (75, 1, -1, vec![75]),
            (30, 100_000, 0, vec![10, 10, 10]),
            (21, 500_000, 0, vec![10, 5, 5, 1]),
        ] {
            assert_eq!(sizes(pairs, bytes, limit), want, "{pairs} of {bytes}");
        }
        assert_eq!((next(1, 1 << 30), next(usize::MAX, 0)), (1, usize::MAX));
    }
}
