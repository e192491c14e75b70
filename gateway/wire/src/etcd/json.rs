//! etcd's JSON gateway (grpc-gateway): which path is which method, and messages as JSON. Both are read from the
//! descriptors and their `google.api.http` annotations, so that no method can be forgotten or mapped by hand.
//!
//! JSON as etcd writes it: names as in the proto, 64-bit numbers as strings, bytes in base64, nothing of what is zero
//! (etcd: embed/serve.go, `UseProtoNames` without `EmitUnpopulated`). It reads either spelling of a name, numbers as
//! numbers or strings, and passes over names that it does not know (`DiscardUnknown`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::OnceLock;

use bytes::{Buf, Bytes, BytesMut};
use prost_reflect::prost::Message;
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, MethodDescriptor,
    SerializeOptions, Value,
};
use serde_json::json;

use super::messages::FILE_DESCRIPTOR_SET;

/// What is not the JSON of a message; the text says why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct JsonError(String);

/// A method of the gateway.
#[derive(Debug)]
pub struct JsonMethod {
    path: String,
    input: MessageDescriptor,
    output: MessageDescriptor,
    client_streams: bool,
    server_streams: bool,
}

impl JsonMethod {
    /// The method that a POST to this path calls. `/v3beta` is the same as `/v3` (etcd: embed/serve.go).
    pub fn at(path: &str) -> Option<&'static JsonMethod> {
        let tables = tables();
        let found = match path.strip_prefix("/v3beta/") {
            Some(rest) => tables.by_path.get(&format!("/v3/{rest}")),
            None => tables.by_path.get(path),
        };
        found.and_then(|at| tables.methods.get(*at))
    }

    /// Its gRPC path, `/package.Service/Method`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether a client may send several messages.
    pub fn client_streams(&self) -> bool {
        self.client_streams
    }

    /// Whether several answers may come: a line each, `{"result":…}`.
    pub fn server_streams(&self) -> bool {
        self.server_streams
    }

    /// A request's message out of its JSON, encoded. Nesting is bounded by the reader (128 levels).
    pub fn request(&self, json: &[u8]) -> Result<Bytes, JsonError> {
        let mut reader = serde_json::Deserializer::from_slice(json);
        let options = DeserializeOptions::new().deny_unknown_fields(false);
        DynamicMessage::deserialize_with_options(self.input.clone(), &mut reader, &options)
            .map(|message| message.encode_to_vec().into())
            .map_err(|error| JsonError(format!("proto: {error}")))
    }

    /// An answer's JSON out of its encoded message.
    pub fn response(&self, message: Bytes) -> Result<Vec<u8>, JsonError> {
        let mut out = Vec::new();
        self.write(message, &mut out)?;
        Ok(out)
    }

    /// The line of one of several answers.
    pub fn line(&self, message: Bytes) -> Result<Vec<u8>, JsonError> {
        let mut out = b"{\"result\":".to_vec();
        self.write(message, &mut out)?;
        out.extend_from_slice(b"}\n");
        Ok(out)
    }

    fn write(&self, message: Bytes, out: &mut Vec<u8>) -> Result<(), JsonError> {
        let failed = |error: &dyn std::fmt::Display| JsonError(error.to_string());
        let message =
            DynamicMessage::decode(self.output.clone(), message).map_err(|e| failed(&e))?;
        let options = SerializeOptions::new()
            .use_proto_field_name(true)
            .skip_default_fields(true);
        message
            .serialize_with_options(&mut serde_json::Serializer::new(out), &options)
            .map_err(|e| failed(&e))
    }
}

/// A method of etcd's services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MethodName {
    /// With its package.
    pub service: String,
    /// In it.
    pub method: String,
    /// Whether a client may send several messages.
    pub client_streams: bool,
    /// Whether several answers may come.
    pub server_streams: bool,
}

/// All methods of etcd's services.
pub fn methods() -> impl Iterator<Item = MethodName> {
    let services = tables().pool.services();
    services.flat_map(|service| {
        let name = service.full_name().to_owned();
        let of = |method: MethodDescriptor| MethodName {
            service: name.clone(),
            method: method.name().to_owned(),
            client_streams: method.is_client_streaming(),
            server_streams: method.is_server_streaming(),
        };
        service.methods().map(of).collect::<Vec<_>>()
    })
}

/// Whether etcd's protos have this service, and if so, this method of it.
pub fn has_method(service: &str, method: &str) -> Option<bool> {
    let methods = tables().names.get(service)?;
    Some(methods.contains(method))
}

/// The body of a refusal: everything that one of etcd's releases puts there, since clients of each look for theirs
/// (3.4 and 3.5: `error`, `code`, `message`; 3.6 on: `code`, `message`).
pub fn error_body(code: i32, message: &str) -> Vec<u8> {
    json!({"error": message, "code": code, "message": message})
        .to_string()
        .into_bytes()
}

/// The line that ends a stream with an error; of 3.5 and of 3.6 likewise.
pub fn error_line(code: i32, message: &str) -> Vec<u8> {
    let status = http_status(code);
    let text = match status {
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        409 => "Conflict",
        429 => "Too Many Requests",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        499 => "Client Closed Request",
        _ => "Internal Server Error",
    };
    let error = json!({
        "grpc_code": code, "http_code": status, "message": message, "http_status": text, "code": code,
    });
    format!("{}\n", json!({ "error": error })).into_bytes()
}

/// The HTTP status of a gRPC code (grpc-gateway: runtime/errors.go, HTTPStatusFromCode).
pub fn http_status(code: i32) -> u16 {
    match code {
        0 => 200,
        1 => 499,
        3 | 9 | 11 => 400,
        4 => 504,
        5 => 404,
        6 | 10 => 409,
        7 => 403,
        8 => 429,
        12 => 501,
        14 => 503,
        16 => 401,
        _ => 500,
    }
}

/// Cuts a body into the JSON objects that stand in it one after another. Each byte is looked at once.
#[derive(Debug, Default)]
pub struct JsonValues {
    buffer: BytesMut,
    /// Bytes of the buffer that were looked at.
    at: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl JsonValues {
    /// What came next.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes that are kept: of values that were not taken, or are not whole yet.
    pub fn waiting(&self) -> usize {
        self.buffer.len()
    }

    /// The next whole value.
    pub fn take(&mut self) -> Result<Option<Bytes>, JsonError> {
        self.skip_blanks();
        while let Some(byte) = self.buffer.get(self.at).copied() {
            if self.at == 0 && byte != b'{' {
                return Err(JsonError(format!(
                    "proto: syntax error: a message begins with {{, not with {}",
                    byte.escape_ascii()
                )));
            }
            self.at += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            if self.depth == 0 {
                let value = self.buffer.split_to(self.at).freeze();
                self.at = 0;
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// At the end of the body: nothing half is left.
    pub fn finish(&mut self) -> Result<(), JsonError> {
        self.skip_blanks();
        if self.buffer.is_empty() {
            Ok(())
        } else {
            Err(JsonError("unexpected EOF".into()))
        }
    }

    fn skip_blanks(&mut self) {
        if self.at == 0 {
            let blanks = self.buffer.iter().take_while(|b| b.is_ascii_whitespace());
            let blanks = blanks.count();
            self.buffer.advance(blanks);
        }
    }
}

struct Tables {
    pool: DescriptorPool,
    /// Methods by their service. Every call is looked up, and descriptors are counted references, which threads would
    /// take from each other.
    names: BTreeMap<String, BTreeSet<String>>,
    methods: Vec<JsonMethod>,
    by_path: HashMap<String, usize>,
}

fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| {
        // Our own build's output; that it has all methods is a test.
        let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap_or_default();
        let names = pool.services().map(|service| {
            let methods = service.methods().map(|m| m.name().to_owned()).collect();
            (service.full_name().to_owned(), methods)
        });
        let names = names.collect();
        let (mut methods, mut by_path) = (Vec::new(), HashMap::new());
        for method in pool
            .services()
            .flat_map(|s| s.methods().collect::<Vec<_>>())
        {
            let paths = paths(&pool, &method);
            if !paths.is_empty() {
                by_path.extend(paths.into_iter().map(|path| (path, methods.len())));
                methods.push(JsonMethod {
                    path: format!("/{}/{}", method.parent_service().full_name(), method.name()),
                    input: method.input(),
                    output: method.output(),
                    client_streams: method.is_client_streaming(),
                    server_streams: method.is_server_streaming(),
                });
            }
        }
        Tables {
            pool,
            names,
            methods,
            by_path,
        }
    })
}

/// The paths that a POST with the whole message as its body goes to: the rule's own and its additional ones.
fn paths(pool: &DescriptorPool, method: &MethodDescriptor) -> Vec<String> {
    let Some(http) = pool.get_extension_by_name("google.api.http") else {
        return Vec::new();
    };
    let options = method.options();
    if !options.has_extension(&http) {
        return Vec::new();
    }
    let rule = options.get_extension(&http);
    let Some(rule) = rule.as_message() else {
        return Vec::new();
    };
    let more = rule.get_field_by_name("additional_bindings");
    let more = more.as_deref().and_then(Value::as_list).unwrap_or_default();
    std::iter::once(rule)
        .chain(more.iter().filter_map(Value::as_message))
        .filter(|rule| text(rule, "body") == "*")
        .map(|rule| text(rule, "post"))
        .filter(|path| !path.is_empty())
        .collect()
}

fn text(message: &DynamicMessage, field: &str) -> String {
    let value = message.get_field_by_name(field);
    let value = value.as_deref().and_then(Value::as_str);
    value.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
