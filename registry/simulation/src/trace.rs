//! What happened, as one number that two equal runs share, and as text when somebody reads along.

use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;

/// The trace of one run.
#[derive(Clone, Debug)]
pub struct Trace {
    hasher: SipHasher13,
    print: bool,
}

impl Trace {
    /// An empty trace; `print` puts each line on standard output.
    pub fn new(print: bool) -> Self {
        Trace {
            hasher: SipHasher13::new(),
            print,
        }
    }

    /// Something that happened at `at` milliseconds: numbers and bytes for the digest, text for the reader.
    pub fn note(&mut self, at: u64, numbers: &[u64], bytes: &[u8], text: impl FnOnce() -> String) {
        self.hasher.write_u64(at);
        for number in numbers {
            self.hasher.write_u64(*number);
        }
        self.hasher.write(bytes);
        if self.print {
            println!("{:>9.3} {}", at as f64 / 1_000.0, text());
        }
    }

    /// The digest of everything noted so far.
    pub fn digest(&self) -> u64 {
        self.hasher.finish()
    }
}
