//! Length-prefixed frames out of a growing buffer, and the four-letter words that may stand in for the first one.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::zk::record::wire_length;

/// ZooKeeper's `jute.maxbuffer`: the largest frame that a server takes by default.
pub const DEFAULT_MAX_FRAME: usize = 0xf_ffff;

/// The stream is not ZooKeeper's, or the frame is too large. ZooKeeper closes such a connection without a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A negative length.
    #[error("negative frame length {0}")]
    Negative(i32),
    /// A length above the limit.
    #[error("frame of {length} bytes is above the limit of {max}")]
    TooLarge {
        /// What the prefix said.
        length: usize,
        /// The limit in force.
        max: usize,
    },
}

/// Cuts frames off the front of a read buffer.
#[derive(Debug, Clone, Copy)]
pub struct FrameDecoder {
    max: usize,
}

impl Default for FrameDecoder {
    fn default() -> Self {
        Self::new(DEFAULT_MAX_FRAME)
    }
}

impl FrameDecoder {
    /// A decoder that refuses frames of more than `max` bytes (prefix not counted).
    pub fn new(max: usize) -> Self {
        Self { max }
    }

    /// The next frame without its prefix. `Ok(None)`: more bytes are needed; `Err`: close the connection.
    ///
    /// A bad length is refused as soon as its four bytes are there. Nothing is allocated for a length that was only
    /// promised: the buffer grows with the bytes that come.
    pub fn next(&self, buffer: &mut BytesMut) -> Result<Option<Bytes>, FrameError> {
        let Some(prefix) = buffer.first_chunk::<4>() else {
            return Ok(None);
        };
        let prefix = i32::from_be_bytes(*prefix);
        let length = usize::try_from(prefix).map_err(|_| FrameError::Negative(prefix))?;
        if length > self.max {
            return Err(FrameError::TooLarge {
                length,
                max: self.max,
            });
        }
        let whole = length + 4;
        if buffer.len() < whole {
            return Ok(None);
        }
        buffer.advance(4);
        Ok(Some(buffer.split_to(length).freeze()))
    }
}

/// What the first bytes of a fresh connection are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// Fewer than four bytes so far.
    NeedMore,
    /// An administrator's command: answer with text and close.
    FourLetterWord(FourLetterWord),
    /// Frames; the first holds a [`crate::zk::ConnectRequest`].
    Frames,
}

impl Opening {
    /// Looks at the first bytes of a connection without taking them. Only valid before the first frame: later the
    /// same four bytes are a length.
    pub fn detect(buffer: &[u8]) -> Opening {
        match buffer.first_chunk::<4>() {
            None => Opening::NeedMore,
            Some(word) => match FourLetterWord::from_bytes(*word) {
                Some(word) => Opening::FourLetterWord(word),
                None => Opening::Frames,
            },
        }
    }
}

macro_rules! four_letter_words {
    ($($(#[$meta:meta])* $name:ident = $word:literal;)+) => {
        /// The administrator's commands of ZooKeeper 3.9.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum FourLetterWord {
            $($(#[$meta])* $name,)+
        }

        impl FourLetterWord {
            /// All of them.
            pub const ALL: &'static [FourLetterWord] = &[$(FourLetterWord::$name,)+];

            /// The word as sent.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(FourLetterWord::$name => $word,)+
                }
            }

            fn from_bytes(word: [u8; 4]) -> Option<Self> {
                $(if word == *$word.as_bytes() {
                    return Some(FourLetterWord::$name);
                })+
                None
            }
        }
    };
}

four_letter_words! {
    /// Configuration.
    Conf = "conf";
    /// Connections and sessions.
    Cons = "cons";
    /// Reset the counters of connections.
    Crst = "crst";
    /// Total size of snapshots and logs.
    Dirs = "dirs";
    /// Sessions and their ephemerals.
    Dump = "dump";
    /// Environment.
    Envi = "envi";
    /// Trace mask.
    Gtmk = "gtmk";
    /// Digests of recent transactions.
    Hash = "hash";
    /// `ro` or `rw`.
    Isro = "isro";
    /// Figures for monitoring.
    Mntr = "mntr";
    /// `imok`.
    Ruok = "ruok";
    /// Reset the counters of the server.
    Srst = "srst";
    /// Server and its figures.
    Srvr = "srvr";
    /// Server, figures and connections.
    Stat = "stat";
    /// Set the trace mask.
    Stmk = "stmk";
    /// Watches by session.
    Wchc = "wchc";
    /// Watches by path.
    Wchp = "wchp";
    /// Number of watches.
    Wchs = "wchs";
}

/// Appends a frame: `body` writes it, the length in front is filled in afterwards.
pub(crate) fn put_frame(out: &mut BytesMut, body: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.put_i32(0);
    body(out);
    let length = wire_length(out.len() - start - 4);
    if let Some(prefix) = out.get_mut(start..start + 4) {
        prefix.copy_from_slice(&length.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(decoder: FrameDecoder, bytes: &[u8], want: Result<Option<&[u8]>, FrameError>) {
        let mut buffer = BytesMut::from(bytes);
        let got = decoder.next(&mut buffer);
        assert_eq!(
            got.as_ref().map(|f| f.as_deref()).map_err(|e| *e),
            want,
            "bytes {bytes:02x?}"
        );
    }

    #[test]
    fn need_more_is_not_wrong_bytes() {
        let decoder = FrameDecoder::new(8);
        check(decoder, &[], Ok(None));
        check(decoder, &[0, 0, 0], Ok(None));
        check(decoder, &[0, 0, 0, 0], Ok(Some(&[])));
        check(decoder, &[0, 0, 0, 2, 1], Ok(None));
        check(decoder, &[0, 0, 0, 2, 1, 2, 3], Ok(Some(&[1, 2])));
        check(
            decoder,
            &[0, 0, 0, 9],
            Err(FrameError::TooLarge { length: 9, max: 8 }),
        );
        check(
            decoder,
            &[0xff, 0xff, 0xff, 0xff],
            Err(FrameError::Negative(-1)),
        );
        check(
            decoder,
            &[0x80, 0, 0, 0],
            Err(FrameError::Negative(i32::MIN)),
        );
        let default = FrameDecoder::default();
        check(default, &[0, 0x0f, 0xff, 0xff], Ok(None));
        check(
            default,
            &[0, 0x10, 0, 0],
            Err(FrameError::TooLarge {
                length: 0x10_0000,
                max: DEFAULT_MAX_FRAME,
            }),
        );
    }

    #[test]
    fn frames_come_out_in_order_byte_by_byte() {
        let stream = [0, 0, 0, 1, b'a', 0, 0, 0, 0, 0, 0, 0, 2, b'b', b'c'];
        let mut buffer = BytesMut::new();
        let mut frames = Vec::new();
        for byte in stream {
            buffer.put_u8(byte);
            while let Some(frame) = FrameDecoder::default().next(&mut buffer).unwrap() {
                frames.push(frame);
            }
        }
        assert_eq!(frames, [&b"a"[..], b"", b"bc"]);
        assert!(buffer.is_empty());
    }

    #[test]
    fn four_letter_words_are_found_only_whole() {
        for &word in FourLetterWord::ALL {
            assert_eq!(
                Opening::detect(word.as_str().as_bytes()),
                Opening::FourLetterWord(word)
            );
            assert_eq!(
                Opening::detect(&word.as_str().as_bytes()[..3]),
                Opening::NeedMore
            );
        }
        assert_eq!(
            Opening::detect(b"ruok\n"),
            Opening::FourLetterWord(FourLetterWord::Ruok)
        );
        assert_eq!(Opening::detect(&[0, 0, 0, 45]), Opening::Frames);
        assert_eq!(Opening::detect(b"RUOK"), Opening::Frames);
        assert_eq!(Opening::detect(b"GET "), Opening::Frames);
    }

    #[test]
    fn every_four_letter_word_is_an_oversized_length() {
        for &word in FourLetterWord::ALL {
            let mut buffer = BytesMut::from(word.as_str());
            assert!(FrameDecoder::default().next(&mut buffer).is_err());
        }
    }
}
