//! A raw etcd client: any method of any service by its path, messages as bytes, nothing retried and nothing
//! hidden.
//!
//! Messages are read and written through [`pool`], the compiled descriptors of etcd's protos, so that a field
//! is shown because it is on the wire and not because somebody thought of it: presence, unknown enum values
//! and unknown fields included.

use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::{Buf as _, BufMut as _, Bytes};
use futures::StreamExt as _;
use prost_reflect::{DescriptorPool, MethodDescriptor};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::etcd_json::{Json, Replies};

/// etcd's protos (KV, Watch, Lease, Cluster, Maintenance, Auth, Lock, Election), compiled.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/etcd.bin"));

/// The descriptors of all messages and services of etcd.
pub fn pool() -> &'static DescriptorPool {
    static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
        DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("the build compiled these protos")
    });
    &POOL
}

/// The method behind a gRPC path such as `/etcdserverpb.KV/Range`.
pub fn method(path: &str) -> Option<MethodDescriptor> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    pool()
        .get_service_by_name(service)?
        .methods()
        .find(|candidate| candidate.name() == method)
}

/// Why a call or a stream ended: the gRPC code and its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The gRPC code.
    pub code: Code,
    /// The message, as the server wrote it.
    pub message: String,
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Failure {
            code: status.code(),
            message: status.message().to_string(),
        }
    }
}

/// Metadata of a call, as pairs of ASCII key and value.
pub type Metadata<'a> = &'a [(&'a str, &'a str)];

/// A client of a server: one HTTP/2 connection, or its JSON gateway.
#[derive(Debug, Clone)]
pub struct Client {
    way: Way,
}

#[derive(Debug, Clone)]
enum Way {
    Grpc(Channel),
    Json(Json),
}

impl Client {
    /// Connects to `host:port` without TLS.
    pub async fn connect(address: &str) -> Result<Client> {
        let channel = Endpoint::from_shared(format!("http://{address}"))?
            .connect_timeout(Duration::from_secs(5))
            .connect()
            .await
            .with_context(|| format!("connect to {address}"))?;
        Ok(Client {
            way: Way::Grpc(channel),
        })
    }

    /// Speaks to the JSON gateway of `host:port`: the same messages, each as JSON on its way. The requests of a
    /// stream go out together at [`Stream::half_close`].
    pub fn json(address: &str) -> Result<Client> {
        Ok(Client {
            way: Way::Json(Json::new(address)?),
        })
    }

    /// Whether this client speaks JSON.
    pub fn is_json(&self) -> bool {
        matches!(self.way, Way::Json(_))
    }

    /// One request, one reply.
    pub async fn unary(
        &self,
        path: &str,
        metadata: Metadata<'_>,
        message: Bytes,
    ) -> Result<Bytes, Failure> {
        if let Way::Json(json) = &self.way {
            return json.unary(path, metadata, message).await;
        }
        let mut grpc = self.grpc().await?;
        let request = request(message, metadata)?;
        let reply = grpc.unary(request, path_of(path)?, Raw).await?;
        Ok(reply.into_inner())
    }

    /// Opens a stream; both directions go on until either side ends them. It serves methods that stream one
    /// direction only as well: send one message and call [`Stream::half_close`].
    ///
    /// etcd sends no response headers before its first message, so opening must not wait for them.
    pub fn stream(&self, path: &str, metadata: Metadata<'_>) -> Result<Stream, Failure> {
        let (sender, outgoing) = mpsc::unbounded_channel::<Bytes>();
        let (incoming, receiver) = mpsc::unbounded_channel();
        if let Way::Json(json) = &self.way {
            let task = post_all(json.clone(), path, metadata, outgoing, incoming);
            return Ok(Stream {
                sender: Some(sender),
                receiver,
                task,
            });
        }
        let outgoing = futures::stream::unfold(outgoing, |mut outgoing| async {
            Some((outgoing.recv().await?, outgoing))
        });
        let request = request(outgoing, metadata)?;
        let path = path_of(path)?;
        let client = self.clone();
        let task = tokio::spawn(async move {
            let opened = async {
                let mut grpc = client.grpc().await?;
                Ok::<_, Failure>(grpc.streaming(request, path, Raw).await?.into_inner())
            };
            let mut replies = match opened.await {
                Ok(replies) => replies,
                Err(failure) => {
                    let _ = incoming.send(Err(failure));
                    return;
                }
            };
            while let Some(reply) = replies.next().await {
                let reply = reply.map_err(Failure::from);
                let last = reply.is_err();
                if incoming.send(reply).is_err() || last {
                    return;
                }
            }
        });
        Ok(Stream {
            sender: Some(sender),
            receiver,
            task,
        })
    }

    async fn grpc(&self) -> Result<Grpc<Channel>, Failure> {
        let Way::Grpc(channel) = &self.way else {
            return Err(not_sent("this client speaks JSON"));
        };
        let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(usize::MAX);
        grpc.ready().await.map_err(|error| Failure {
            code: Code::Unavailable,
            message: format!("not connected: {error}"),
        })?;
        Ok(grpc)
    }
}

fn post_all(
    json: Json,
    path: &str,
    metadata: Metadata<'_>,
    mut outgoing: mpsc::UnboundedReceiver<Bytes>,
    incoming: Replies,
) -> JoinHandle<()> {
    let path = path.to_string();
    let metadata: Vec<(String, String)> = metadata
        .iter()
        .map(|(key, value)| ((*key).to_string(), (*value).to_string()))
        .collect();
    tokio::spawn(async move {
        let mut requests = Vec::new();
        while let Some(request) = outgoing.recv().await {
            requests.push(request);
        }
        let metadata: Vec<(&str, &str)> = metadata
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        if let Err(failure) = json.stream(&path, &metadata, requests, &incoming).await {
            let _ = incoming.send(Err(failure));
        }
    })
}

/// An open stream. Dropping it cancels the call.
#[derive(Debug)]
pub struct Stream {
    sender: Option<mpsc::UnboundedSender<Bytes>>,
    receiver: mpsc::UnboundedReceiver<Result<Bytes, Failure>>,
    task: JoinHandle<()>,
}

impl Stream {
    /// Sends a message; false when this side was closed or the stream is over.
    pub fn send(&self, message: Bytes) -> bool {
        self.sender
            .as_ref()
            .is_some_and(|sender| sender.send(message).is_ok())
    }

    /// Ends this side only; the server may go on.
    pub fn half_close(&mut self) {
        self.sender = None;
    }

    /// The next message or the failure that ended the stream; `None` after its end.
    pub async fn next(&mut self) -> Option<Result<Bytes, Failure>> {
        self.receiver.recv().await
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn path_of(path: &str) -> Result<PathAndQuery, Failure> {
    path.parse()
        .map_err(|error| not_sent(&format!("path {path}: {error}")))
}

fn request<T>(message: T, metadata: Metadata<'_>) -> Result<Request<T>, Failure> {
    let mut request = Request::new(message);
    for (key, value) in metadata {
        let key: AsciiMetadataKey = key
            .parse()
            .map_err(|error| not_sent(&format!("metadata {key}: {error}")))?;
        let value: AsciiMetadataValue = value
            .parse()
            .map_err(|error| not_sent(&format!("metadata value {value}: {error}")))?;
        request.metadata_mut().insert(key, value);
    }
    Ok(request)
}

fn not_sent(message: &str) -> Failure {
    Failure {
        code: Code::InvalidArgument,
        message: format!("not sent: {message}"),
    }
}

/// Messages as they are on the wire.
#[derive(Debug, Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

#[cfg(test)]
mod tests {
    use super::{method, pool};

    #[test]
    fn methods_are_found_by_their_paths() {
        for path in [
            "/etcdserverpb.KV/Range",
            "/etcdserverpb.Watch/Watch",
            "/etcdserverpb.Lease/LeaseKeepAlive",
            "/etcdserverpb.Cluster/MemberList",
            "/etcdserverpb.Maintenance/Status",
            "/etcdserverpb.Auth/Authenticate",
            "/v3lockpb.Lock/Lock",
            "/v3electionpb.Election/Observe",
        ] {
            assert!(method(path).is_some(), "{path}");
        }
        for path in ["/etcdserverpb.KV/Nope", "/no.Service/Range", "KV/Range", ""] {
            assert!(method(path).is_none(), "{path}");
        }
        assert!(
            pool()
                .get_message_by_name("etcdserverpb.WatchResponse")
                .is_some()
        );
    }
}
