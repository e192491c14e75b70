//! The digest by which a client and its member compare what is registered, at constant cost per heartbeat.

use std::hash::Hasher as _;

use causeway_registry::{RecordKey, Stamp};
use siphasher::sip::SipHasher24;

/// The part of one registration. The digest of several is their wrapping sum, so that one that comes or goes is
/// added or taken away.
///
/// The stamp stands for the content: whoever writes the registration anew makes a new stamp.
pub fn digest(key: &RecordKey, stamp: Stamp) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(&key.key);
    hasher.write(&stamp.hlc.to_le_bytes());
    hasher.write(&stamp.member.to_le_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use causeway_registry::api::native_key;

    use super::*;

    #[test]
    fn the_digest_is_what_the_proto_says() {
        let key = native_key("default", "a/b", "10.0.0.1:80");
        let stamp = Stamp {
            hlc: 0x0102_0304_0506_0708,
            member: 0x090a,
        };
        let mut plain = SipHasher24::new();
        plain.write(b"default/a%2Fb/10.0.0.1:80\x08\x07\x06\x05\x04\x03\x02\x01\x0a\x09");
        assert_eq!(digest(&key, stamp), plain.finish());
        let later = Stamp {
            hlc: stamp.hlc + 1,
            ..stamp
        };
        assert_ne!(digest(&key, stamp), digest(&key, later));
    }
}
