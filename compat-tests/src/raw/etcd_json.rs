//! The same messages through etcd's JSON gateway: a request becomes the JSON that its descriptor says, a POST to the path
//! that its annotation says, and what comes back becomes a message again. So whoever compares messages compares both ways.
//!
//! A stream's requests go out as one body when the client's side is closed, as clients without full duplex do it; its
//! replies come a line each. A field that the descriptors do not know fails the call: JSON would hide it.

use anyhow::Result;
use bytes::{Bytes, BytesMut};
use prost_reflect::prost::Message as _;
use prost_reflect::{DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde_json::Value;
use tokio::sync::mpsc;
use tonic::Code;

use super::etcd::{Failure, Metadata, method, pool};

/// A way to a server's JSON gateway.
#[derive(Debug, Clone)]
pub(super) struct Json {
    http: reqwest::Client,
    base: String,
}

/// Replies, one for each request or line.
pub(super) type Replies = mpsc::UnboundedSender<Result<Bytes, Failure>>;

impl Json {
    /// To `host:port`.
    pub(super) fn new(address: &str) -> Result<Json> {
        Ok(Json {
            http: reqwest::Client::builder().no_proxy().build()?,
            base: format!("http://{address}"),
        })
    }

    /// One request, one reply.
    pub(super) async fn unary(
        &self,
        path: &str,
        metadata: Metadata<'_>,
        message: Bytes,
    ) -> Result<Bytes, Failure> {
        let body = json(path, &message)?;
        let reply = self.post(path, metadata, body).await?;
        let status = reply.status();
        let text = reply.bytes().await.map_err(|error| broken(&error))?;
        if !status.is_success() {
            return Err(refusal(status.as_u16(), &text));
        }
        message_of(&output(path)?, &text)
    }

    /// Posts all requests and passes on each line.
    pub(super) async fn stream(
        &self,
        path: &str,
        metadata: Metadata<'_>,
        requests: Vec<Bytes>,
        replies: &Replies,
    ) -> Result<(), Failure> {
        let mut body = String::new();
        for request in requests {
            body.push_str(&json(path, &request)?);
            body.push('\n');
        }
        let mut reply = self.post(path, metadata, body).await?;
        let status = reply.status();
        let mut waiting = BytesMut::new();
        loop {
            while let Some(end) = waiting.iter().position(|byte| *byte == b'\n') {
                let line = waiting.split_to(end + 1);
                // Whoever reads is gone.
                if replies.send(Ok(result(path, &line)?)).is_err() {
                    return Ok(());
                }
            }
            match reply.chunk().await.map_err(|error| broken(&error))? {
                Some(chunk) => waiting.extend_from_slice(&chunk),
                None if waiting.iter().all(u8::is_ascii_whitespace) => return Ok(()),
                None if status.is_success() => {
                    return Err(failure(Code::DataLoss, "the last line has no end"));
                }
                None => return Err(refusal(status.as_u16(), &waiting)),
            }
        }
    }

    async fn post(
        &self,
        path: &str,
        metadata: Metadata<'_>,
        body: String,
    ) -> Result<reqwest::Response, Failure> {
        let route = route(path).ok_or_else(|| failure(Code::Unimplemented, "has no JSON path"))?;
        let mut request = self.http.post(format!("{}{route}", self.base)).body(body);
        for (key, value) in metadata {
            request = match *key {
                "token" => request.header("authorization", *value),
                key => request.header(format!("grpc-metadata-{key}"), *value),
            };
        }
        request.send().await.map_err(|error| broken(&error))
    }
}

/// The path that a POST for this method goes to, from its `google.api.http` annotation.
pub fn route(path: &str) -> Option<String> {
    let options = method(path)?.options();
    let http = pool().get_extension_by_name("google.api.http")?;
    let rule = options.get_extension(&http);
    let post = rule.as_message()?.get_field_by_name("post")?;
    post.as_str().map(str::to_string)
}

fn output(path: &str) -> Result<MessageDescriptor, Failure> {
    method(path)
        .map(|method| method.output())
        .ok_or_else(|| failure(Code::Unimplemented, "has no descriptor"))
}

/// The JSON of a request.
fn json(path: &str, message: &[u8]) -> Result<String, Failure> {
    let not_sent = |text: String| failure(Code::InvalidArgument, &format!("not sent: {text}"));
    let method = method(path).ok_or_else(|| not_sent("no such method".to_string()))?;
    let message =
        DynamicMessage::decode(method.input(), message).map_err(|e| not_sent(e.to_string()))?;
    let mut out = Vec::new();
    message
        .serialize_with_options(
            &mut serde_json::Serializer::new(&mut out),
            &SerializeOptions::new().use_proto_field_name(true),
        )
        .map_err(|e| not_sent(e.to_string()))?;
    String::from_utf8(out).map_err(|e| not_sent(e.to_string()))
}

/// A line of a stream: `{"result":…}`, or an error.
fn result(path: &str, line: &[u8]) -> Result<Bytes, Failure> {
    let parsed: Value = serde_json::from_slice(line)
        .map_err(|error| failure(Code::DataLoss, &format!("a line is no JSON: {error}")))?;
    match parsed.get("result") {
        Some(result) => message_of(&output(path)?, result.to_string().as_bytes()),
        None => Err(refusal(0, line)),
    }
}

fn message_of(descriptor: &MessageDescriptor, json: &[u8]) -> Result<Bytes, Failure> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let strict = DeserializeOptions::new();
    DynamicMessage::deserialize_with_options(descriptor.clone(), &mut reader, &strict)
        .map(|message| message.encode_to_vec().into())
        .map_err(|error| failure(Code::DataLoss, &format!("undecodable JSON: {error}")))
}

/// Any of the shapes of an error that etcd's releases have.
fn refusal(status: u16, body: &[u8]) -> Failure {
    let parsed: Value = serde_json::from_slice(body).unwrap_or_default();
    let inner = match &parsed["error"] {
        inner @ Value::Object(_) => inner,
        _ => &parsed,
    };
    let code = ["code", "grpc_code"]
        .iter()
        .find_map(|name| inner[*name].as_i64());
    let message = inner["message"].as_str();
    match (code.and_then(|code| i32::try_from(code).ok()), message) {
        (Some(code), message) => failure(Code::from_i32(code), message.unwrap_or_default()),
        _ => failure(
            Code::Unknown,
            &format!("HTTP {status}: {}", String::from_utf8_lossy(body)),
        ),
    }
}

fn broken(error: &reqwest::Error) -> Failure {
    failure(Code::Unavailable, &format!("not connected: {error}"))
}

fn failure(code: Code, message: &str) -> Failure {
    Failure {
        code,
        message: message.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_annotations() {
        for (path, expected) in [
            ("/etcdserverpb.KV/Range", Some("/v3/kv/range")),
            (
                "/etcdserverpb.Lease/LeaseKeepAlive",
                Some("/v3/lease/keepalive"),
            ),
            ("/v3lockpb.Lock/Lock", Some("/v3/lock/lock")),
            ("/etcdserverpb.KV/Nope", None),
        ] {
            assert_eq!(route(path).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn every_shape_of_an_error_is_read() {
        let expected = failure(Code::NotFound, "gone");
        for body in [
            r#"{"error":"gone","message":"gone","code":5}"#,
            r#"{"code":5,"message":"gone"}"#,
            r#"{"error":{"grpc_code":5,"http_code":404,"message":"gone","http_status":"Not Found"}}"#,
            r#"{"error":{"code":5,"message":"gone"}}"#,
        ] {
            assert_eq!(refusal(404, body.as_bytes()), expected, "{body}");
        }
        assert_eq!(refusal(404, b"404 page not found").code, Code::Unknown);
    }

    #[test]
    fn a_request_is_the_json_of_its_descriptor() {
        // Put: key "a", lease 7.
        let got = json("/etcdserverpb.KV/Put", &[0x0a, 1, b'a', 0x18, 7]);
        assert_eq!(got.unwrap(), r#"{"key":"YQ==","lease":"7"}"#);
        let unknown = result("/etcdserverpb.Watch/Watch", br#"{"result":{"nope":1}}"#);
        assert_eq!(unknown.unwrap_err().code, Code::DataLoss);
    }
}
