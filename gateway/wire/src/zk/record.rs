//! Jute primitives, both directions.
//!
//! Integers are big-endian; a string or buffer is an `i32` length (-1 is null) and bytes; a vector is an `i32`
//! count (-1 is null) and items. Every length and count is checked against the bytes that are really there before
//! anything is allocated for it.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Wrong bytes inside a whole frame. The frame boundary is intact, so the connection can go on after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The frame ended inside a field.
    #[error("record ends early: {wanted} more bytes wanted, {left} left")]
    Truncated {
        /// Bytes that the field needs.
        wanted: usize,
        /// Bytes that the frame still has.
        left: usize,
    },
    /// A length below -1, or one that reaches beyond the frame.
    #[error("unreasonable length {0}")]
    BadLength(i32),
    /// A vector count below -1, or more items than the frame could hold.
    #[error("unreasonable count {0}")]
    BadCount(i32),
    /// A multi holds an operation that ZooKeeper does not take inside a multi.
    #[error("operation {0} is not allowed inside a multi")]
    BadMultiOp(i32),
    /// A create inside a multi has no ACL at all.
    #[error("a create inside a multi has a null ACL")]
    NullAcl,
    /// A create inside a multi is of no kind that it can make without a time to live.
    #[error("no kind of node for flags {0} inside a multi")]
    BadCreateFlags(i32),
    /// A multi holds more operations than [`crate::zk::multi::MAX_MULTI_OPS`].
    #[error("more than {0} operations in a multi")]
    TooManyMultiOps(usize),
}

/// Reads fields off the front of a frame. Buffers come out as slices of the frame, without a copy.
#[derive(Debug, Clone)]
pub struct Reader {
    bytes: Bytes,
}

impl Reader {
    /// A reader over one frame, or over what is left of one.
    pub fn new(bytes: Bytes) -> Self {
        Self { bytes }
    }

    /// Bytes not yet read.
    pub fn remaining(&self) -> usize {
        self.bytes.len()
    }

    /// What was not read, as a slice of the frame.
    pub fn into_rest(self) -> Bytes {
        self.bytes
    }

    fn need(&self, wanted: usize) -> Result<(), RecordError> {
        let left = self.bytes.len();
        if left < wanted {
            Err(RecordError::Truncated { wanted, left })
        } else {
            Ok(())
        }
    }

    /// A 32-bit integer.
    pub fn i32(&mut self) -> Result<i32, RecordError> {
        self.need(4)?;
        Ok(self.bytes.get_i32())
    }

    /// A 64-bit integer.
    pub fn i64(&mut self) -> Result<i64, RecordError> {
        self.need(8)?;
        Ok(self.bytes.get_i64())
    }

    /// One byte; everything but 0 is true, as in Java's `readBoolean`.
    pub fn bool(&mut self) -> Result<bool, RecordError> {
        self.need(1)?;
        Ok(self.bytes.get_u8() != 0)
    }

    /// A buffer; null and empty are different values (ZooKeeper stores both).
    pub fn buffer(&mut self) -> Result<Option<Bytes>, RecordError> {
        let length = self.i32()?;
        if length == -1 {
            return Ok(None);
        }
        let size = usize::try_from(length).map_err(|_| RecordError::BadLength(length))?;
        if size > self.bytes.len() {
            return Err(RecordError::BadLength(length));
        }
        Ok(Some(self.bytes.split_to(size)))
    }

    /// A string or null. Bytes that are not UTF-8 become U+FFFD as in the Java server, which refuses such paths.
    pub fn nullable_string(&mut self) -> Result<Option<String>, RecordError> {
        Ok(self
            .buffer()?
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }
}

/// A value with a Jute form. `read` and `write` are each other's inverse for every value that `write` can be given.
///
/// Bytes after the last field are ignored, as the Java server does.
pub trait Record: Sized {
    /// Fewest bytes that a value can take; bounds vector counts before allocating.
    const MIN_LEN: usize;

    /// Takes one value off the front of the frame.
    fn read(reader: &mut Reader) -> Result<Self, RecordError>;

    /// Appends the value.
    fn write(&self, out: &mut BytesMut);

    /// Reads from bytes that hold this record first.
    fn decode(bytes: Bytes) -> Result<Self, RecordError> {
        Self::read(&mut Reader::new(bytes))
    }

    /// The record alone, without length prefix or header.
    fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.write(&mut out);
        out.freeze()
    }
}

impl Record for () {
    const MIN_LEN: usize = 0;

    fn read(_: &mut Reader) -> Result<Self, RecordError> {
        Ok(())
    }

    fn write(&self, _: &mut BytesMut) {}
}

impl Record for i32 {
    const MIN_LEN: usize = 4;

    fn read(reader: &mut Reader) -> Result<Self, RecordError> {
        reader.i32()
    }

    fn write(&self, out: &mut BytesMut) {
        out.put_i32(*self);
    }
}

impl Record for i64 {
    const MIN_LEN: usize = 8;

    fn read(reader: &mut Reader) -> Result<Self, RecordError> {
        reader.i64()
    }

    fn write(&self, out: &mut BytesMut) {
        out.put_i64(*self);
    }
}

impl Record for bool {
    const MIN_LEN: usize = 1;

    fn read(reader: &mut Reader) -> Result<Self, RecordError> {
        reader.bool()
    }

    fn write(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(*self));
    }
}

impl Record for Option<Bytes> {
    const MIN_LEN: usize = 4;

    fn read(reader: &mut Reader) -> Result<Self, RecordError> {
        reader.buffer()
    }

    fn write(&self, out: &mut BytesMut) {
        put_nullable(self.as_deref(), out);
    }
}

impl Record for Option<String> {
    const MIN_LEN: usize = 4;

    fn read(reader: &mut Reader) -> Result<Self, RecordError> {
        reader.nullable_string()
    }

    fn write(&self, out: &mut BytesMut) {
        put_nullable(self.as_deref().map(str::as_bytes), out);
    }
}

/// Null reads as empty: where a string is a path, both are refused by the path check with the same code.
impl Record for String {
    const MIN_LEN: usize = 4;

    fn read(reader: &mut Reader) -> Result<Self, RecordError> {
        Ok(reader.nullable_string()?.unwrap_or_default())
    }

    fn write(&self, out: &mut BytesMut) {
        put_nullable(Some(self.as_bytes()), out);
    }
}

/// Null reads as empty: ZooKeeper treats a null ACL list and an empty one alike, but inside a multi.
impl<T: Record> Record for Vec<T> {
    const MIN_LEN: usize = 4;

    fn read(reader: &mut Reader) -> Result<Self, RecordError> {
        let count = reader.i32()?;
        if count == -1 {
            return Ok(Vec::new());
        }
        let size = usize::try_from(count).map_err(|_| RecordError::BadCount(count))?;
        if size.saturating_mul(T::MIN_LEN.max(1)) > reader.remaining() {
            return Err(RecordError::BadCount(count));
        }
        let mut items = Vec::with_capacity(size);
        for _ in 0..size {
            items.push(T::read(reader)?);
        }
        Ok(items)
    }

    fn write(&self, out: &mut BytesMut) {
        out.put_i32(wire_length(self.len()));
        for item in self {
            item.write(out);
        }
    }
}

/// Declares structs with a [`Record`] form that is their fields in order.
macro_rules! records {
    ($($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $kind:ty,)* })+) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $kind,)*
        }

        impl $crate::zk::record::Record for $name {
            const MIN_LEN: usize = 0 $(+ <$kind as $crate::zk::record::Record>::MIN_LEN)*;

            fn read(
                reader: &mut $crate::zk::record::Reader,
            ) -> Result<Self, $crate::zk::record::RecordError> {
                Ok(Self { $($field: $crate::zk::record::Record::read(reader)?,)* })
            }

            fn write(&self, out: &mut bytes::BytesMut) {
                $($crate::zk::record::Record::write(&self.$field, out);)*
            }
        }
    )+};
}
pub(crate) use records;

/// A length as the wire has it. Frames are far below 2 GiB, so saturation is never seen.
pub(crate) fn wire_length(length: usize) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}

fn put_nullable(bytes: Option<&[u8]>, out: &mut BytesMut) {
    match bytes {
        None => out.put_i32(-1),
        Some(bytes) => {
            out.put_i32(wire_length(bytes.len()));
            out.put_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;

    fn check<T: Record + PartialEq + Debug>(bytes: &[u8], want: Result<T, RecordError>) {
        assert_eq!(
            T::decode(Bytes::copy_from_slice(bytes)),
            want,
            "bytes {bytes:02x?}"
        );
    }

    #[test]
    fn primitives_read_what_jute_writes() {
        check::<i32>(&[0, 0, 1, 2], Ok(258));
        check::<i64>(&[0xff; 8], Ok(-1));
        check::<bool>(&[2], Ok(true));
        check::<Option<Bytes>>(&[0xff; 4], Ok(None));
        check::<Option<Bytes>>(&[0; 4], Ok(Some(Bytes::new())));
        check::<String>(&[0xff; 4], Ok(String::new()));
        check::<Option<String>>(&[0xff; 4], Ok(None));
        check::<String>(&[0, 0, 0, 1, 0x80], Ok("\u{fffd}".into()));
        check::<Vec<String>>(&[0xff; 4], Ok(Vec::new()));
        check::<Vec<i32>>(&[0, 0, 0, 1, 0, 0, 0, 7], Ok(vec![7]));
    }

    #[test]
    fn lengths_and_counts_are_bounded_by_the_frame() {
        check::<i32>(&[0, 0], Err(RecordError::Truncated { wanted: 4, left: 2 }));
        check::<i64>(&[0; 7], Err(RecordError::Truncated { wanted: 8, left: 7 }));
        check::<bool>(&[], Err(RecordError::Truncated { wanted: 1, left: 0 }));
        check::<Option<Bytes>>(&[0xff, 0xff, 0xff, 0xfe], Err(RecordError::BadLength(-2)));
        check::<Option<Bytes>>(
            &[0x7f, 0xff, 0xff, 0xff, 1],
            Err(RecordError::BadLength(i32::MAX)),
        );
        check::<String>(&[0, 0, 0, 2, b'a'], Err(RecordError::BadLength(2)));
        check::<Vec<i32>>(&[0x80, 0, 0, 0], Err(RecordError::BadCount(i32::MIN)));
        check::<Vec<i32>>(
            &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0],
            Err(RecordError::BadCount(i32::MAX)),
        );
        check::<Vec<String>>(
            &[0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 9],
            Err(RecordError::BadLength(9)),
        );
    }

    #[test]
    fn buffers_are_slices_of_the_frame() {
        let frame = Bytes::from_static(&[0, 0, 0, 2, b'h', b'i']);
        let data = <Option<Bytes>>::decode(frame.clone()).unwrap().unwrap();
        assert_eq!(data.as_ptr(), frame[4..].as_ptr());
    }
}
