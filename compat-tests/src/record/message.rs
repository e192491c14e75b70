//! etcd's messages as values, and back: protobuf by its descriptors, JSON as it stands.

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost_reflect::prost::Message as _;
use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage as _,
    Value as Proto,
};

use super::transcript::Side;
use super::value::{Class, Raw, Value};
use crate::raw::etcd::method;

/// The message that `side` sends in the method of `path`.
pub fn descriptor(path: &str, side: Side) -> Option<MessageDescriptor> {
    let method = method(path)?;
    Some(match side {
        Side::Client => method.input(),
        Side::Server => method.output(),
    })
}

/// A protobuf message; `{raw: ".."}` when its fields do not say all of it.
pub fn decode(path: &str, side: Side, bytes: &[u8]) -> Value {
    let raw = || Value::record([("raw", Value::bytes(bytes))]);
    let Some(descriptor) = descriptor(path, side) else {
        return raw();
    };
    let Ok(message) = DynamicMessage::decode(descriptor.clone(), bytes) else {
        return raw();
    };
    let value = from_message(&message, side);
    // Only what a client says has to be said again.
    match side {
        Side::Server if message.unknown_fields().next().is_none() => value,
        Side::Client if encode(path, &value).is_ok_and(|again| again == bytes) => value,
        _ => raw(),
    }
}

/// The bytes of a client's message.
///
/// # Errors
/// A field that the message does not have, or of another type.
pub fn encode(path: &str, value: &Value) -> Result<Vec<u8>> {
    if let Some(raw) = value.get("raw").and_then(Value::plain) {
        return Ok(raw);
    }
    let descriptor =
        descriptor(path, Side::Client).with_context(|| format!("no method {path} is known"))?;
    Ok(to_message(descriptor, value)?.encode_to_vec())
}

/// What a number or a text of this name is, when it is chosen by the server. JSON does not say its message.
fn class(message: &str, field: &str) -> Option<Class> {
    let of_a_lease = message.starts_with("Lease") || message.is_empty();
    Some(match field {
        "revision"
        | "create_revision"
        | "mod_revision"
        | "start_revision"
        | "compact_revision"
        | "min_mod_revision"
        | "max_mod_revision"
        | "min_create_revision"
        | "max_create_revision"
        | "rev"
        | "hash_revision" => Class::Revision,
        "lease" | "lease_id" => Class::Lease,
        "ID" | "id" if of_a_lease => Class::Lease,
        "token" => Class::Token,
        _ => return None,
    })
}

/// What tells of the server itself and not of its keys.
fn is_its_own(message: &str, field: &str, side: Side) -> bool {
    let named = match field {
        "cluster_id" | "member_id" | "raft_term" | "raftTerm" | "raftIndex"
        | "raftAppliedIndex" | "leader" | "dbSize" | "dbSizeInUse" | "dbSizeQuota" | "hash"
        | "peerURLs" | "clientURLs" | "blob" | "remaining_bytes" | "storageVersion"
        | "downgradeInfo" => true,
        "version" => message == "StatusResponse",
        "ID" | "name" => message == "Member",
        // What is left of a lease depends on the moment.
        "TTL" => message == "LeaseTimeToLiveResponse",
        _ => false,
    };
    named && side == Side::Server
}

fn from_message(message: &DynamicMessage, side: Side) -> Value {
    let descriptor = message.descriptor();
    let mut fields: Vec<(u32, String, Value)> = message
        .fields()
        .map(|(field, value)| {
            let name = field.name().to_string();
            let value = if is_its_own(descriptor.name(), &name, side) {
                Value::Any
            } else {
                from_proto(descriptor.name(), &field, value, side)
            };
            (field.number(), name, value)
        })
        .collect();
    fields.sort_by_key(|(number, _, _)| *number);
    Value::Record(
        fields
            .into_iter()
            .map(|(_, name, value)| (name, value))
            .collect(),
    )
}

fn from_proto(message: &str, field: &FieldDescriptor, value: &Proto, side: Side) -> Value {
    let int = |number: i64| match class(message, field.name()) {
        Some(class) => Value::Chosen(class, Raw::Int(number)),
        None => Value::Int(number.into()),
    };
    let text = |bytes: &[u8]| match class(message, field.name()) {
        Some(class) => Value::Chosen(class, Raw::Bytes(bytes.to_vec())),
        None => Value::bytes(bytes),
    };
    match value {
        Proto::Bool(value) => Value::Bool(*value),
        Proto::I32(number) => Value::Int((*number).into()),
        Proto::I64(number) => int(*number),
        Proto::U32(number) => Value::Int((*number).into()),
        Proto::U64(number) => Value::Int((*number).into()),
        Proto::F32(number) => Value::word(number.to_string()),
        Proto::F64(number) => Value::word(number.to_string()),
        Proto::String(value) => text(value.as_bytes()),
        Proto::Bytes(value) => text(value),
        Proto::EnumNumber(number) => match field.kind() {
            Kind::Enum(kind) => kind.get_value(*number).map_or_else(
                || Value::Int((*number).into()),
                |value| Value::word(value.name()),
            ),
            _ => Value::Int((*number).into()),
        },
        Proto::Message(message) => from_message(message, side),
        Proto::List(list) => Value::List(
            list.iter()
                .map(|value| from_proto(message, field, value, side))
                .collect(),
        ),
        Proto::Map(map) => {
            let mut fields: Vec<(String, Value)> = map
                .iter()
                .map(|(key, value)| {
                    let key = match key {
                        MapKey::String(key) => key.clone(),
                        other => format!("{other:?}"),
                    };
                    (key, from_proto(message, field, value, side))
                })
                .collect();
            fields.sort();
            Value::Record(fields)
        }
    }
}

fn to_message(descriptor: MessageDescriptor, value: &Value) -> Result<DynamicMessage> {
    let mut message = DynamicMessage::new(descriptor.clone());
    for (name, value) in value.fields() {
        let field = descriptor
            .get_field_by_name(name)
            .with_context(|| format!("{} has no field {name}", descriptor.name()))?;
        let proto = if field.is_list() {
            Proto::List(
                value
                    .list()
                    .iter()
                    .map(|value| to_proto(&field, value))
                    .collect::<Result<_>>()?,
            )
        } else {
            to_proto(&field, value)?
        };
        message.try_set_field(&field, proto)?;
    }
    Ok(message)
}

fn to_proto(field: &FieldDescriptor, value: &Value) -> Result<Proto> {
    let number = || -> Result<i128> {
        match value {
            Value::Int(number) => Ok(*number),
            Value::Chosen(_, Raw::Int(number)) => Ok((*number).into()),
            _ => bail!("{} is no number: {value}", field.name()),
        }
    };
    let bytes = || {
        value
            .plain()
            .with_context(|| format!("{} is no text: {value}", field.name()))
    };
    Ok(match field.kind() {
        Kind::Bool => Proto::Bool(*value == Value::Bool(true)),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Proto::I32(number()?.try_into()?),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Proto::I64(number()?.try_into()?),
        Kind::Uint32 | Kind::Fixed32 => Proto::U32(number()?.try_into()?),
        Kind::Uint64 | Kind::Fixed64 => Proto::U64(number()?.try_into()?),
        Kind::String => Proto::String(String::from_utf8(bytes()?)?),
        Kind::Bytes => Proto::Bytes(bytes()?.into()),
        Kind::Enum(kind) => Proto::EnumNumber(match value {
            Value::Word(word) => kind
                .get_value_by_name(word)
                .with_context(|| format!("{} has no {word}", kind.name()))?
                .number(),
            _ => number()?.try_into()?,
        }),
        Kind::Message(descriptor) => Proto::Message(to_message(descriptor, value)?),
        Kind::Float | Kind::Double => bail!("{}: etcd's clients send no fractions", field.name()),
    })
}

/// Fields whose text is base64 in the JSON of etcd's gateway.
const BYTES: [&str; 8] = [
    "key",
    "range_end",
    "rangeEnd",
    "value",
    "name",
    "prefix",
    "keys",
    "blob",
];

/// JSON as it stands: `{str: 5}` is a number in quotes, `{b64: ".."}` the bytes behind base64.
pub fn from_json(json: &serde_json::Value, field: &str, side: Side) -> Value {
    use serde_json::Value as Json;
    let snake = snake(field);
    if is_its_own("", &snake, side) {
        return Value::Any;
    }
    let int = |number: i64| match class("", &snake) {
        Some(class) => Value::Chosen(class, Raw::Int(number)),
        None => Value::Int(number.into()),
    };
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => number
            .as_i64()
            .map_or_else(|| Value::word(number.to_string()), int),
        Json::String(text) => {
            if let Ok(number) = text.parse::<i64>()
                && number.to_string() == *text
            {
                return Value::record([("str", int(number))]);
            }
            if BYTES.contains(&field)
                && let Ok(bytes) = STANDARD.decode(text)
                && STANDARD.encode(&bytes) == *text
            {
                return Value::record([("b64", Value::bytes(bytes))]);
            }
            match class("", &snake) {
                Some(class) => Value::Chosen(class, Raw::Bytes(text.clone().into_bytes())),
                None => Value::bytes(text.as_bytes()),
            }
        }
        Json::Array(list) => Value::List(
            list.iter()
                .map(|value| from_json(value, field, side))
                .collect(),
        ),
        Json::Object(fields) => Value::Record(
            fields
                .iter()
                .map(|(name, value)| {
                    let value = if field == "members" && is_its_own("Member", name, side) {
                        Value::Any
                    } else {
                        from_json(value, name, side)
                    };
                    (name.clone(), value)
                })
                .collect(),
        ),
    }
}

/// The JSON that [`from_json`] read.
///
/// # Errors
/// Something that JSON cannot hold.
pub fn to_json(value: &Value) -> Result<serde_json::Value> {
    use serde_json::Value as Json;
    Ok(match value {
        Value::Null => Json::Null,
        Value::Bool(value) => Json::Bool(*value),
        Value::Int(number) => i64::try_from(*number)?.into(),
        Value::Chosen(_, Raw::Int(number)) => (*number).into(),
        Value::Word(word) => serde_json::from_str(word)?,
        Value::Text(_) | Value::Chosen(..) => {
            String::from_utf8(value.plain().context("a text with a name")?)?.into()
        }
        Value::List(list) => list.iter().map(to_json).collect::<Result<_>>()?,
        Value::Record(fields) => match fields.as_slice() {
            [(name, value)] if name == "str" => value.int().context("a number")?.to_string().into(),
            [(name, value)] if name == "b64" => {
                STANDARD.encode(value.plain().context("bytes")?).into()
            }
            _ => Json::Object(
                fields
                    .iter()
                    .map(|(name, value)| Ok((name.clone(), to_json(value)?)))
                    .collect::<Result<_>>()?,
            ),
        },
        Value::Symbol(_) | Value::Any => bail!("{value} is not known"),
    })
}

fn snake(field: &str) -> String {
    // ID stays: it is one word.
    if field.bytes().all(|byte| !byte.is_ascii_lowercase()) {
        return field.to_string();
    }
    let mut name = String::new();
    for letter in field.chars() {
        if letter.is_ascii_uppercase()
            && !field.starts_with("raft")
            && !field.starts_with("db")
            && !field.ends_with("URLs")
        {
            name.push('_');
            name.push(letter.to_ascii_lowercase());
        } else {
            name.push(letter);
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    const TXN: &str = "/etcdserverpb.KV/Txn";

    #[track_caller]
    fn check(path: &str, text: &str) {
        let bytes = encode(path, &Value::parse(text).unwrap()).unwrap();
        let mut names = crate::record::names::Names::new("p");
        let value = decode(path, Side::Client, &bytes);
        let named = names.name(
            1,
            Side::Client,
            "Txn",
            value,
            &crate::record::names::Context::default(),
        );
        assert_eq!(named.to_string(), text);
    }

    #[test]
    fn requests_come_back_with_all_that_is_on_the_wire() {
        check("/etcdserverpb.KV/Range", "{}");
        check(
            "/etcdserverpb.KV/Range",
            "{key: \"a\", range_end: \"\\x00\", limit: 1, sort_order: DESCEND, sort_target: MOD, serializable: true}",
        );
        // Zeros of a oneof are on the wire and tell which one it is.
        check(
            TXN,
            "{compare: [{result: GREATER, target: CREATE, key: \"k\", create_revision: 0}], \
             success: [{request_put: {key: \"k\", lease: 5}}], failure: [{request_range: {}}]}",
        );
        check(
            "/etcdserverpb.Watch/Watch",
            "{create_request: {key: \"a\", progress_notify: true, filters: [NOPUT, NODELETE], watch_id: 3}}",
        );
    }

    #[test]
    fn what_the_fields_do_not_say_is_kept_as_bytes() {
        let unknown = [0x0a, 0x01, b'k', 0xf8, 0x07, 0x01];
        let value = decode("/etcdserverpb.KV/Range", Side::Client, &unknown);
        assert_eq!(value.to_string(), "{raw: \"\\n\\x01k\\xf8\\x07\\x01\"}");
        assert_eq!(encode("/etcdserverpb.KV/Range", &value).unwrap(), unknown);
        let other = decode("/other.Service/Call", Side::Client, b"x");
        assert_eq!(encode("/other.Service/Call", &other).unwrap(), b"x");
        let field = Value::parse("{nokey: 1}").unwrap();
        assert!(encode("/etcdserverpb.KV/Range", &field).is_err());
    }

    #[test]
    fn json_keeps_its_style() {
        let text =
            r#"{"key":"Zm9v","rangeEnd":"b+","limit":"5","lease":7,"sort_order":"ASCEND","f":1.5}"#;
        let json: serde_json::Value = serde_json::from_str(text).unwrap();
        let value = from_json(&json, "", Side::Client);
        assert_eq!(value.at(&["key", "b64"]), Some(&Value::bytes("foo")));
        assert_eq!(value.at(&["limit", "str"]), Some(&Value::Int(5)));
        assert_eq!(
            value.get("lease"),
            Some(&Value::Chosen(Class::Lease, Raw::Int(7)))
        );
        assert_eq!(to_json(&value).unwrap(), json);
    }
}
