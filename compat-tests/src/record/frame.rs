//! HTTP/2 frames, RFC 9113 section 4.

/// What every client says first, section 3.4.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

/// Flag of SETTINGS and PING.
pub(super) const ACK: u8 = 1;
/// Flag of DATA and HEADERS.
pub(super) const END_STREAM: u8 = 1;
/// Flag of HEADERS and CONTINUATION.
pub(super) const END_HEADERS: u8 = 4;
/// Flag of DATA and HEADERS.
pub(super) const PADDED: u8 = 8;
/// Flag of HEADERS.
pub(super) const PRIORITY: u8 = 32;

/// Names of settings, section 6.5.2.
pub(super) const HEADER_TABLE_SIZE: u16 = 1;
pub(super) const INITIAL_WINDOW_SIZE: u16 = 4;

/// Every receiver takes frames of this length.
pub(super) const MAX_LENGTH: usize = 16_384;

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

impl Frame {
    /// Takes the first frame out of `buffer`; nothing while it is not whole.
    pub(super) fn take(buffer: &mut Vec<u8>) -> Option<Frame> {
        let [a, b, c, kind, flags, d, e, f, g] = *buffer.first_chunk::<9>()?;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let payload = buffer.get(9..9 + length)?.to_vec();
        buffer.drain(..9 + length);
        Some(Frame {
            kind,
            flags,
            stream: u32::from_be_bytes([d & 0x7f, e, f, g]),
            payload,
        })
    }

    /// The name and number of each setting of a SETTINGS frame.
    pub(super) fn settings(&self) -> impl Iterator<Item = (u16, u32)> {
        self.payload
            .as_chunks::<6>()
            .0
            .iter()
            .map(|&[a, b, c, d, e, f]| {
                (u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, f]))
            })
    }
}

/// The bytes of a frame; `payload` is at most [`MAX_LENGTH`] long.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_taken_when_it_is_whole() {
        let settings = [0, 4, 0, 1, 0, 0, 0, 1, 0, 0, 0x10, 0, 9];
        let bytes = [
            frame(SETTINGS, 0, 0, &settings),
            frame(DATA, END_STREAM, 7, b"x"),
        ]
        .concat();
        let mut found = Vec::new();
        let mut buffer = Vec::new();
        for byte in bytes {
            buffer.push(byte);
            found.extend(Frame::take(&mut buffer));
        }
        assert!(buffer.is_empty());
        let [first, second] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(
            first.settings().collect::<Vec<_>>(),
            [(INITIAL_WINDOW_SIZE, 0x1_0000), (HEADER_TABLE_SIZE, 0x1000)]
        );
        let expected = Frame {
            kind: DATA,
            flags: END_STREAM,
            stream: 7,
            payload: b"x".to_vec(),
        };
        assert_eq!(*second, expected);
    }
}
