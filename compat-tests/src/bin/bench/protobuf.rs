//! The few of etcd's messages that are sent and looked at, field by field: no more of the client's time than that.

use anyhow::{Context as _, Result, bail};

/// A message under construction.
#[derive(Debug, Default, Clone)]
pub struct Message(pub Vec<u8>);

impl Message {
    /// Adds a number; a negative one has ten bytes.
    pub fn number(mut self, field: u32, value: i64) -> Message {
        self.varint(u64::from(field << 3));
        self.varint(value as u64);
        self
    }

    /// Adds bytes, a text or a message.
    pub fn bytes(mut self, field: u32, value: &[u8]) -> Message {
        self.varint(u64::from(field << 3 | 2));
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// A field's content.
#[derive(Debug, Clone, Copy)]
pub enum Value<'m> {
    /// A number.
    Number(i64),
    /// Bytes, a text or a message.
    Bytes(&'m [u8]),
}

/// The fields of a message, in order.
pub struct Fields<'m>(pub &'m [u8]);

impl<'m> Iterator for Fields<'m> {
    type Item = Result<(u32, Value<'m>)>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.0.is_empty()).then(|| self.field())
    }
}

impl<'m> Fields<'m> {
    fn field(&mut self) -> Result<(u32, Value<'m>)> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()? as i64),
            2 => {
                let length = self.varint()? as usize;
                let (bytes, rest) = self.0.split_at_checked(length).context("a cut field")?;
                self.0 = rest;
                Value::Bytes(bytes)
            }
            other => bail!("wire type {other}"),
        };
        Ok(((tag >> 3) as u32, value))
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let (byte, rest) = self.0.split_first().context("a cut number")?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift.min(63);
            if *byte < 0x80 {
                return Ok(value);
            }
        }
        bail!("a number of more than ten bytes")
    }
}

/// A number in a message, 0 when it is not there.
pub fn number(message: &[u8], wanted: u32) -> Result<i64> {
    for field in Fields(message) {
        if let (field, Value::Number(value)) = field?
            && field == wanted
        {
            return Ok(value);
        }
    }
    Ok(0)
}

/// The bytes of a field, empty when it is not there.
pub fn bytes(message: &[u8], wanted: u32) -> Result<&[u8]> {
    for field in Fields(message) {
        if let (field, Value::Bytes(value)) = field?
            && field == wanted
        {
            return Ok(value);
        }
    }
    Ok(&[])
}
