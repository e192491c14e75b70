//! Messages that are written as they are, or were encoded before.
//!
//! All subscribers of a service at the same mark are sent the same bytes, and a [`ServiceUpdate`] is the same
//! whether it stands alone (Watch) or in a [`ServerMessage`] (Open). So it is encoded once, as a
//! `ServerMessage`, of which the `ServiceUpdate` is the end.

use std::marker::PhantomData;

use bytes::{BufMut, Bytes};
use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, EncodeBuf, Encoder};
use tonic_prost::ProstDecoder;

use crate::v1::{ServerMessage, ServiceUpdate, server_message};

/// A [`ServiceUpdate`], encoded once for all that it goes to. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedUpdate {
    /// A `ServerMessage` without id, with the update alone in it.
    whole: Bytes,
    /// Where the update begins.
    inner: usize,
}

impl SharedUpdate {
    /// Encodes it.
    pub fn new(update: ServiceUpdate) -> Self {
        let length = update.encoded_len();
        let message = ServerMessage {
            id: 0,
            what: Some(server_message::What::Update(update)),
        };
        let whole: Bytes = message.encode_to_vec().into();
        SharedUpdate {
            inner: whole.len() - length,
            whole,
        }
    }

    /// Bytes of the message on the stream of Open.
    pub fn size(&self) -> usize {
        self.whole.len()
    }
}

/// What the stream of Open sends.
#[derive(Clone, Debug)]
pub enum ToClient {
    /// For this client.
    Own(Box<ServerMessage>),
    /// For everybody.
    Shared(SharedUpdate),
}

/// What Discover and Watch send.
#[derive(Clone, Debug)]
pub enum Update {
    /// For this client.
    Own(Box<ServiceUpdate>),
    /// For everybody.
    Shared(SharedUpdate),
}

/// What can be put on the wire.
pub trait Wire: Send + 'static {
    /// Bytes it takes.
    fn wire_len(&self) -> usize;
    /// Writes that many.
    fn write(&self, out: &mut impl BufMut);
}

impl<M: Message + 'static> Wire for M {
    fn wire_len(&self) -> usize {
        self.encoded_len()
    }

    fn write(&self, out: &mut impl BufMut) {
        self.encode_raw(out);
    }
}

impl Wire for ToClient {
    fn wire_len(&self) -> usize {
        match self {
            ToClient::Own(message) => message.encoded_len(),
            ToClient::Shared(shared) => shared.whole.len(),
        }
    }

    fn write(&self, out: &mut impl BufMut) {
        match self {
            ToClient::Own(message) => message.encode_raw(out),
            ToClient::Shared(shared) => out.put_slice(&shared.whole),
        }
    }
}

impl Wire for Update {
    fn wire_len(&self) -> usize {
        match self {
            Update::Own(message) => message.encoded_len(),
            Update::Shared(shared) => shared.whole.len() - shared.inner,
        }
    }

    fn write(&self, out: &mut impl BufMut) {
        match self {
            Update::Own(message) => message.encode_raw(out),
            Update::Shared(shared) => out.put_slice(&shared.whole[shared.inner..]),
        }
    }
}

/// The server's codec: protobuf, except that what was encoded before is copied as it is.
#[derive(Debug)]
pub struct OnceCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for OnceCodec<T, U> {
    fn default() -> Self {
        OnceCodec(PhantomData)
    }
}

/// Bytes that a stream holds from its start: most streams are idle, so it grows only when needed.
const BUFFER: usize = 256;
/// Bytes after which what is ready leaves as one piece.
const PIECE: usize = 32 * 1024;

impl<T: Wire, U: Message + Default + 'static> Codec for OnceCodec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = OnceEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        OnceEncoder(PhantomData)
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(BufferSettings::new(BUFFER, PIECE))
    }
}

/// The sending half of [`OnceCodec`].
#[derive(Debug)]
pub struct OnceEncoder<T>(PhantomData<T>);

impl<T: Wire> Encoder for OnceEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(item.wire_len());
        item.write(buffer);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, PIECE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{Instance, Revision};

    fn written(item: &impl Wire) -> Vec<u8> {
        let mut out = Vec::new();
        item.write(&mut out);
        assert_eq!(out.len(), item.wire_len());
        out
    }

    #[test]
    fn a_shared_update_is_both_messages() {
        for changed in [0, 1, 500] {
            let update = ServiceUpdate {
                namespace: "default".into(),
                service: "cart".into(),
                revision: Some(Revision {
                    incarnation: 1_700_000_000_000,
                    number: 7,
                }),
                full: true,
                changed: vec![
                    Instance {
                        instance: "10.0.0.1:80".into(),
                        ..Instance::default()
                    };
                    changed
                ],
                ..ServiceUpdate::default()
            };
            let shared = SharedUpdate::new(update.clone());
            let alone = written(&Update::Shared(shared.clone()));
            assert_eq!(alone, written(&Update::Own(Box::new(update.clone()))));
            assert_eq!(ServiceUpdate::decode(alone.as_slice()), Ok(update.clone()));
            let message = ServerMessage {
                id: 0,
                what: Some(server_message::What::Update(update)),
            };
            assert_eq!(written(&ToClient::Shared(shared)), written(&message));
        }
    }
}
