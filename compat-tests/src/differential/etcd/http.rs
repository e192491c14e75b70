//! HTTP requests that a script writes itself, and their answers as text that two servers must agree on.
//!
//! JSON is shown as words `field=value`, a line of a stream after the other: names, whether a number is a string, and
//! every value but those that a server chooses (ids, revisions, sizes, versions). Anything else is shown as it is.

use std::time::Duration;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Deserializer, Value as Json};
use tokio::time::timeout;

use super::names::Names;
use super::value::{Value, fill_in, parse, quote};

/// A stream that says nothing for so long has said what it has to.
const QUIET: Duration = Duration::from_millis(400);

/// Any answer begins within this time.
const REPLY: Duration = Duration::from_secs(10);

/// A longer text is shown by its beginning.
const SHOWN: usize = 400;

/// Names whose values a server chooses.
const CHOSEN: &[&str] = &[
    "cluster_id",
    "member_id",
    "memberID",
    "revision",
    "raft_term",
    "create_revision",
    "mod_revision",
    "compact_revision",
    "ID",
    "lease",
    "leader",
    "version",
    "dbSize",
    "dbSizeInUse",
    "dbSizeQuota",
    "raftIndex",
    "raftTerm",
    "raftAppliedIndex",
    "storageVersion",
    "name",
    "peerURLs",
    "clientURLs",
    "etcdserver",
    "etcdcluster",
    "storage",
    "hash",
    "hash_revision",
    "TTL",
    "token",
];

pub(super) struct Http {
    client: reqwest::Client,
    base: String,
}

impl Http {
    pub(super) fn new(address: &str) -> Result<Http> {
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        Ok(Http {
            client,
            base: format!("http://{address}"),
        })
    }

    /// Asks and says what came: status, kind, body, and whether it goes on.
    pub(super) async fn ask(
        &self,
        verb: &str,
        path: &str,
        body: &str,
        names: &Names,
    ) -> Result<String> {
        let verb = reqwest::Method::from_bytes(verb.as_bytes())?;
        let url = format!("{}{path}", self.base);
        let mut request = self.client.request(verb, url);
        if !body.is_empty() {
            request = request.body(filled_in(body, names)?);
        }
        let mut reply = match timeout(REPLY, request.send()).await {
            Err(_) => return Ok("no reply".to_string()),
            Ok(Err(error)) if error.is_builder() => return Err(error.into()),
            Ok(Err(_)) => return Ok("broken".to_string()),
            Ok(Ok(reply)) => reply,
        };
        let kind = reply.headers().get("content-type");
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or("none");
        let head = format!("{} type={kind}", reply.status().as_u16()).replace("; ", ";");
        let mut text = Vec::new();
        let end = loop {
            match timeout(QUIET, reply.chunk()).await {
                Err(_) => break " open",
                Ok(Err(_)) => break " broken",
                Ok(Ok(None)) => break "",
                Ok(Ok(Some(chunk))) => text.extend_from_slice(&chunk),
            }
        };
        Ok(format!("{head} {}{end}", shown(&text))
            .trim_end()
            .to_string())
    }
}

/// A body with what stands between `<` and `>` filled in.
fn filled_in(body: &str, names: &Names) -> Result<String> {
    let mut out = String::new();
    let mut rest = body;
    while let Some((before, after)) = rest.split_once('<') {
        let (inside, after) = after.split_once('>').context("a < without its >")?;
        out.push_str(before);
        match parse(inside) {
            Ok(number @ (Value::Revision(..) | Value::Lease(_) | Value::Chosen(_))) => {
                out.push_str(&number.number(names)?.to_string());
            }
            _ => out.push_str(&BASE64_STANDARD.encode(fill_in(inside.as_bytes(), names)?)),
        }
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

fn shown(text: &[u8]) -> String {
    let parsed: Result<Vec<Json>, _> = Deserializer::from_slice(text).into_iter().collect();
    match parsed {
        Ok(values) if values.iter().all(Json::is_object) => {
            let mut words = Vec::new();
            for value in &values {
                flatten("", value, &mut words);
                if values.len() > 1 {
                    words.push(";".to_string());
                }
            }
            words.join(" ")
        }
        _ => quote(&text[..text.len().min(SHOWN)]),
    }
}

fn flatten(path: &str, value: &Json, out: &mut Vec<String>) {
    let name = path.rsplit('.').next().unwrap_or(path);
    match value {
        Json::Object(fields) if fields.is_empty() => out.push(format!("{path}={{}}")),
        Json::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            for (field, value) in fields {
                let dot = if path.is_empty() { "" } else { "." };
                flatten(&format!("{path}{dot}{field}"), value, out);
            }
        }
        Json::Array(values) if CHOSEN.contains(&name) => {
            out.push(format!("{path}={}*some", values.len()));
        }
        Json::Array(values) => values.iter().for_each(|value| flatten(path, value, out)),
        Json::String(_) if CHOSEN.contains(&name) => out.push(format!("{path}=\"some\"")),
        Json::Number(_) if CHOSEN.contains(&name) => out.push(format!("{path}=some")),
        // Go's protobuf library writes one of two spaces, so that nobody compares.
        Json::String(text) => {
            let text = text.replace('\u{a0}', " ");
            out.push(format!("{path}={}", quote(text.as_bytes())));
        }
        other => out.push(format!("{path}={other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_filled_in() {
        let mut names = Names::new("root");
        names.base = 1000;
        let got = filled_in(r#"{"key":"<$/a>","revision":"<@0+1>"}"#, &names).unwrap();
        assert_eq!(got, r#"{"key":"cm9vdC9h","revision":"1001"}"#);
        assert!(filled_in("<", &names).is_err());
    }

    #[test]
    fn answers_are_words() {
        for (text, expected) in [
            (
                r#"{"b":"1","a":{"revision":"5"}}"#,
                r#"a.revision="some" b="1""#,
            ),
            (r#"{"a":[{"k":1},{"k":true}]}"#, "a.k=1 a.k=true"),
            ("{\"a\":1}\n{\"a\":{}}\n", "a=1 ; a={} ;"),
            (
                "404 page not found\n",
                "\"404\\x20page\\x20not\\x20found\\x0a\"",
            ),
            ("", ""),
        ] {
            assert_eq!(shown(text.as_bytes()), expected, "{text}");
        }
    }
}
