//! The handshake: the first frame each way.

use bytes::{BufMut, Bytes, BytesMut};

use crate::zk::frame::put_frame;
use crate::zk::record::{Reader, Record, RecordError};

/// Bytes of a session password.
pub const PASSWORD_LEN: usize = 16;

/// First frame of a client: 44 bytes, or 45 with the `readOnly` byte (go-zookeeper sends 44).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConnectRequest {
    /// 0 from every client.
    pub protocol_version: i32,
    /// Last zxid that the client saw; a server that is behind it closes without a reply.
    pub last_zxid_seen: i64,
    /// Wanted session timeout, milliseconds.
    pub timeout_ms: i32,
    /// 0 for a new session.
    pub session_id: i64,
    /// Password of the session; null from some clients for a new one.
    pub password: Option<Bytes>,
    /// Whether a read-only server will do; `None` when the client did not send the byte.
    pub read_only: Option<bool>,
}

impl Record for ConnectRequest {
    const MIN_LEN: usize = 28;

    fn read(reader: &mut Reader) -> Result<Self, RecordError> {
        Ok(Self {
            protocol_version: reader.i32()?,
            last_zxid_seen: reader.i64()?,
            timeout_ms: reader.i32()?,
            session_id: reader.i64()?,
            password: reader.buffer()?,
            read_only: read_optional_bool(reader)?,
        })
    }

    fn write(&self, out: &mut BytesMut) {
        out.put_i32(self.protocol_version);
        out.put_i64(self.last_zxid_seen);
        out.put_i32(self.timeout_ms);
        out.put_i64(self.session_id);
        self.password.write(out);
        if let Some(read_only) = self.read_only {
            read_only.write(out);
        }
    }
}

/// First frame of a server: 36 bytes, or 37 with the `readOnly` byte.
///
/// The byte is written exactly when the request carried it: some clients refuse the other length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectResponse {
    /// Always 0; other values are private extensions of other servers.
    pub protocol_version: i32,
    /// Negotiated session timeout, milliseconds; 0 says expired.
    pub timeout_ms: i32,
    /// The session; 0 says expired.
    pub session_id: i64,
    /// 16 bytes that re-attach the session.
    pub password: Option<Bytes>,
    /// Whether this server is read-only; `None` when the request had no such byte.
    pub read_only: Option<bool>,
}

impl ConnectResponse {
    /// A session is established, in answer to `request`.
    pub fn established(
        request: &ConnectRequest,
        session_id: i64,
        timeout_ms: i32,
        password: [u8; PASSWORD_LEN],
    ) -> Self {
        Self {
            protocol_version: 0,
            timeout_ms,
            session_id,
            password: Some(Bytes::copy_from_slice(&password)),
            read_only: request.read_only.map(|_| false),
        }
    }

    /// The session is unknown, expired, or its password is wrong; the connection closes after it.
    ///
    /// ZooKeeper: `ZooKeeperServer.finishSessionInit` with an invalid session: all zero, full length.
    pub fn expired(request: &ConnectRequest) -> Self {
        Self::established(request, 0, 0, [0; PASSWORD_LEN])
    }

    /// Whether the reply tells the client that its session is gone (what clients test differs; both hold for ours).
    pub fn is_expired(&self) -> bool {
        self.timeout_ms <= 0 || self.session_id == 0
    }

    /// With the length prefix, ready to send.
    pub fn encode_frame(&self) -> Bytes {
        let mut out = BytesMut::new();
        put_frame(&mut out, |out| self.write(out));
        out.freeze()
    }
}

impl Record for ConnectResponse {
    const MIN_LEN: usize = 20;

    fn read(reader: &mut Reader) -> Result<Self, RecordError> {
        Ok(Self {
            protocol_version: reader.i32()?,
            timeout_ms: reader.i32()?,
            session_id: reader.i64()?,
            password: reader.buffer()?,
            read_only: read_optional_bool(reader)?,
        })
    }

    fn write(&self, out: &mut BytesMut) {
        out.put_i32(self.protocol_version);
        out.put_i32(self.timeout_ms);
        out.put_i64(self.session_id);
        self.password.write(out);
        if let Some(read_only) = self.read_only {
            read_only.write(out);
        }
    }
}

impl ConnectRequest {
    /// With the length prefix, ready to send.
    pub fn encode_frame(&self) -> Bytes {
        let mut out = BytesMut::new();
        put_frame(&mut out, |out| self.write(out));
        out.freeze()
    }
}

fn read_optional_bool(reader: &mut Reader) -> Result<Option<bool>, RecordError> {
    if reader.remaining() == 0 {
        Ok(None)
    } else {
        reader.bool().map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(read_only: Option<bool>) -> ConnectRequest {
        ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: 0x0102_0304_0506_0708,
            timeout_ms: 10_000,
            session_id: 0x1000_0000_0000_0001,
            password: Some(Bytes::from_static(&[7; 16])),
            read_only,
        }
    }

    #[test]
    fn request_lengths_and_bytes() {
        for (read_only, length) in [(None, 44), (Some(false), 45), (Some(true), 45)] {
            let bytes = request(read_only).encode();
            assert_eq!(bytes.len(), length);
            assert_eq!(ConnectRequest::decode(bytes), Ok(request(read_only)));
        }
        let want: Vec<u8> = [
            &[0, 0, 0, 45][..],
            &[0, 0, 0, 0],
            &[1, 2, 3, 4, 5, 6, 7, 8],
            &[0, 0, 0x27, 0x10],
            &[0x10, 0, 0, 0, 0, 0, 0, 1],
            &[0, 0, 0, 16],
            &[7; 16],
            &[1],
        ]
        .concat();
        assert_eq!(request(Some(true)).encode_frame(), want);
    }

    #[test]
    fn response_has_the_read_only_byte_exactly_when_the_request_had_it() {
        for (read_only, length) in [(None, 36), (Some(false), 37), (Some(true), 37)] {
            let asked = request(read_only);
            for response in [
                ConnectResponse::established(&asked, 5, 4000, [9; 16]),
                ConnectResponse::expired(&asked),
            ] {
                let bytes = response.encode();
                assert_eq!(bytes.len(), length);
                assert_eq!(ConnectResponse::decode(bytes), Ok(response));
            }
        }
        let expired = ConnectResponse::expired(&request(None)).encode_frame();
        assert_eq!(
            expired[..],
            [&[0, 0, 0, 36][..], &[0; 16], &[0, 0, 0, 16], &[0; 16]].concat()[..]
        );
    }

    #[test]
    fn short_requests_are_errors() {
        let whole = request(None).encode();
        for length in 0..whole.len() {
            assert!(
                ConnectRequest::decode(whole.slice(..length)).is_err(),
                "length {length}"
            );
        }
    }
}
