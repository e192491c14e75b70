//! gRPC's frame around a message (gRPC over HTTP/2, Length-Prefixed-Message), uncompressed.

use bytes::{Buf as _, BufMut, Bytes, BytesMut};
use prost::Message;

/// What stands before a message: whether it is compressed, and its length.
pub const FRAME_PREFIX: usize = 5;

/// Appends a message with its frame.
pub fn put_message(into: &mut BytesMut, message: &impl Message) {
    put_prefix(into, message.encoded_len());
    // A BytesMut grows as needed.
    let _ = message.encode(into);
}

/// Appends the frame of a message of this length, which has to follow.
pub fn put_prefix(into: &mut BytesMut, length: usize) {
    into.reserve(FRAME_PREFIX + length);
    into.put_u8(0);
    // No message that is made comes near to 4 GiB.
    into.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
}

/// The only message of a body that has ended: `None` when it is another number of messages, or compressed.
pub fn only_message(body: &Bytes) -> Option<Bytes> {
    let (prefix, message) = body.split_at_checked(FRAME_PREFIX)?;
    let (compressed, length) = prefix.split_first()?;
    let length: [u8; 4] = length.try_into().ok()?;
    let is_whole = usize::try_from(u32::from_be_bytes(length)) == Ok(message.len());
    (*compressed == 0 && is_whole).then(|| body.slice(FRAME_PREFIX..))
}

/// Takes a whole message off the front, as it is in its frame.
pub fn take_message(buffer: &mut BytesMut) -> Option<Bytes> {
    let length: [u8; 4] = buffer.get(1..FRAME_PREFIX)?.try_into().ok()?;
    let length = usize::try_from(u32::from_be_bytes(length)).ok()?;
    let whole = FRAME_PREFIX.checked_add(length)?;
    if buffer.len() < whole {
        return None;
    }
    let mut message = buffer.split_to(whole);
    message.advance(FRAME_PREFIX);
    Some(message.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::messages::etcdserverpb::PutRequest;

    fn put(key: &'static [u8]) -> PutRequest {
        PutRequest {
            key: Bytes::from_static(key),
            ..PutRequest::default()
        }
    }

    fn framed(keys: &[&'static [u8]]) -> BytesMut {
        let mut body = BytesMut::new();
        for key in keys {
            put_message(&mut body, &put(key));
        }
        body
    }

    #[test]
    fn messages_are_cut_out_of_their_frames() {
        let keys = [&b"one"[..], b"", b"three"];
        let whole = framed(&keys);
        for cut in 0..whole.len() {
            let mut got = Vec::new();
            let mut buffer = BytesMut::new();
            for part in [&whole[..cut], &whole[cut..]] {
                buffer.extend_from_slice(part);
                got.extend(std::iter::from_fn(|| take_message(&mut buffer)));
            }
            let want: Vec<Vec<u8>> = keys.iter().map(|key| put(key).encode_to_vec()).collect();
            assert_eq!(got, want, "{cut}");
        }
    }

    #[test]
    fn only_a_single_whole_message_is_the_only_one() {
        let one = framed(&[b"key"]).freeze();
        assert_eq!(only_message(&one), Some(one.slice(FRAME_PREFIX..)));
        assert_eq!(only_message(&framed(&[b""]).freeze()), Some(Bytes::new()));
        let mut compressed = framed(&[b"key"]);
        compressed[0] = 1;
        for other in [
            Bytes::new(),
            one.slice(..3),
            one.slice(..one.len() - 1),
            framed(&[b"a", b"b"]).freeze(),
            compressed.freeze(),
        ] {
            assert_eq!(only_message(&other), None, "{other:?}");
        }
    }
}
