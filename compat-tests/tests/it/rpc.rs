//! etcd's calls over gRPC with JSON on this side: what a test asks and reads is one expression.

use std::time::Duration;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use causeway_compat_tests::raw::etcd::{Client, Failure, Stream, method};
use prost_reflect::prost::Message as _;
use prost_reflect::{DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde_json::Value;
use tokio::time::timeout;
use tonic::Code;

/// A call without an answer is over after this time.
const REPLY: Duration = Duration::from_secs(5);

/// One connection.
#[derive(Debug, Clone)]
pub(crate) struct Rpc(Client);

impl Rpc {
    /// To `host:port`.
    pub(crate) async fn connect(address: &str) -> Result<Rpc> {
        Ok(Rpc(Client::connect(address).await?))
    }

    /// `Service/Method` of etcdserverpb; what has no answer in time is Unavailable.
    pub(crate) async fn call(&self, name: &str, request: Value) -> Result<Value, Failure> {
        let path = format!("/etcdserverpb.{name}");
        let bad = |error: anyhow::Error| Failure {
            code: Code::InvalidArgument,
            message: format!("{name}: {error:#}"),
        };
        let descriptor = method(&path).context("no such method").map_err(bad)?;
        let message = encode(&descriptor.input(), request).map_err(bad)?;
        let answered = timeout(REPLY, self.0.unary(&path, &[], message)).await;
        let answered = answered.map_err(|_| Failure {
            code: Code::Unavailable,
            message: "no answer".to_string(),
        })?;
        decode(&descriptor.output(), answered?).map_err(bad)
    }

    /// Opens a stream of `Service/Method`.
    pub(crate) fn stream(&self, name: &str) -> Result<Flow> {
        let path = format!("/etcdserverpb.{name}");
        let descriptor = method(&path).context("no such method")?;
        let stream = self.0.stream(&path, &[]);
        Ok(Flow {
            stream: stream.map_err(|failure| anyhow::anyhow!("{failure:?}"))?,
            input: descriptor.input(),
            output: descriptor.output(),
        })
    }
}

/// An open stream; dropping it cancels the call.
#[derive(Debug)]
pub(crate) struct Flow {
    stream: Stream,
    input: MessageDescriptor,
    output: MessageDescriptor,
}

impl Flow {
    /// Sends a message.
    pub(crate) fn send(&self, request: Value) -> Result<()> {
        self.stream.send(encode(&self.input, request)?);
        Ok(())
    }

    /// Ends this side only.
    pub(crate) fn half_close(&mut self) {
        self.stream.half_close();
    }

    /// The next message; `None` after the end. Waits as long as it takes.
    pub(crate) async fn next(&mut self) -> Option<Result<Value, Failure>> {
        let message = match self.stream.next().await? {
            Ok(message) => message,
            Err(failure) => return Some(Err(failure)),
        };
        Some(decode(&self.output, message).map_err(|error| Failure {
            code: Code::DataLoss,
            message: format!("{error:#}"),
        }))
    }

    /// The next message, which has to come within `limit`.
    pub(crate) async fn within(&mut self, limit: Duration) -> Result<Value> {
        let next = timeout(limit, self.next()).await.context("silence")?;
        let next = next.context("the stream ended")?;
        next.map_err(|failure| anyhow::anyhow!("{failure:?}"))
    }
}

fn encode(descriptor: &MessageDescriptor, request: Value) -> Result<Bytes> {
    let options = DeserializeOptions::new();
    let message = DynamicMessage::deserialize_with_options(descriptor.clone(), request, &options)?;
    Ok(message.encode_to_vec().into())
}

fn decode(descriptor: &MessageDescriptor, message: Bytes) -> Result<Value> {
    let message = DynamicMessage::decode(descriptor.clone(), message)?;
    let options = SerializeOptions::new().use_proto_field_name(true);
    Ok(message.serialize_with_options(serde_json::value::Serializer, &options)?)
}

/// Bytes as a field has them.
pub(crate) fn bytes(text: impl AsRef<[u8]>) -> String {
    BASE64_STANDARD.encode(text)
}

/// The text in a field of bytes.
pub(crate) fn text(field: &Value) -> String {
    let decoded = BASE64_STANDARD.decode(field.as_str().unwrap_or_default());
    String::from_utf8_lossy(&decoded.unwrap_or_default()).into_owned()
}

/// A number, which JSON has as a string; 0 when it is left out.
pub(crate) fn int(field: &Value) -> i64 {
    let written = field.as_str().and_then(|text| text.parse().ok());
    written.or_else(|| field.as_i64()).unwrap_or_default()
}

/// The revision of an answer's header.
pub(crate) fn revision(answer: &Value) -> i64 {
    int(&answer["header"]["revision"])
}
