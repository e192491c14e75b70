//! Users of the etcd port without a legacy etcd: what a kill leaves of them, and what lies on disk.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use causeway_compat_tests::clients::output;
use causeway_compat_tests::{Gateway, Settings, Work};
use serde_json::Value;

const ROOT: &str = "Rk7-secret-of-root";
const READER: &str = "Vx3-secret-of-reader";

/// A call by JSON: the body of the answer.
fn call(address: &str, path: &str, token: Option<&str>, body: &str) -> Result<Value> {
    let url = format!("http://{address}/v3/{path}");
    let mut command = Command::new("curl");
    command.args([
        "--silent",
        "--show-error",
        "--max-time",
        "20",
        "--data",
        body,
    ]);
    if let Some(token) = token {
        command.args(["--header", &format!("Authorization: {token}")]);
    }
    let text = output(command.arg(url))?;
    serde_json::from_str(&text).with_context(|| format!("{path}: {text}"))
}

fn login(address: &str, name: &str, password: &str) -> Result<String> {
    let body = format!("{{\"name\":\"{name}\",\"password\":\"{password}\"}}");
    let answer = call(address, "auth/authenticate", None, &body)?;
    let token = answer["token"].as_str();
    Ok(token.with_context(|| format!("{answer}"))?.to_owned())
}

/// The text of a refusal; empty when there was none.
fn refusal(answer: &Value) -> &str {
    answer["error"].as_str().unwrap_or("")
}

#[test]
fn users_outlive_a_kill_and_tokens_do_not() {
    Work::scenario("users", |work| {
        let mut gateway = Gateway::start(work, "gateway", &Settings::default())?;
        let etcdctl = gateway.target().etcdctl();
        let address = gateway.target().etcd;
        for args in [
            vec!["user", "add", &format!("root:{ROOT}")],
            vec!["user", "grant-role", "root", "root"],
            vec!["user", "add", &format!("reader:{READER}")],
            vec!["role", "add", "letters"],
            vec!["role", "grant-permission", "letters", "read", "a", "b"],
            vec!["user", "grant-role", "reader", "letters"],
            vec!["put", "a1", "before"],
            vec!["auth", "enable"],
        ] {
            etcdctl.run(&args)?;
        }
        let token = login(&address, "reader", READER)?;
        let range = r#"{"key":"YTE="}"#;
        let seen = call(&address, "kv/range", Some(&token), range)?;
        ensure!(seen["count"] == "1", "{seen}");

        gateway.kill();
        gateway.restart()?;

        let seen = call(&address, "kv/range", None, range)?;
        ensure!(refusal(&seen) == "etcdserver: user name is empty", "{seen}");
        let seen = call(&address, "kv/range", Some(&token), range)?;
        ensure!(refusal(&seen) == "etcdserver: invalid auth token", "{seen}");
        let reader = format!("--user=reader:{READER}");
        ensure!(etcdctl.run(&[&reader, "get", "a1"])? == "a1\nbefore\n");
        for args in [
            vec!["put", "a1", "x"],
            vec!["get", "b"],
            vec!["user", "list"],
        ] {
            let args: Vec<&str> = [reader.as_str()].into_iter().chain(args).collect();
            let refused = etcdctl.run(&args);
            ensure!(
                refused
                    .as_ref()
                    .is_err_and(|e| format!("{e:#}").contains("permission denied")),
                "{args:?}: {refused:?}"
            );
        }
        let root = format!("--user=root:{ROOT}");
        ensure!(etcdctl.run(&[&root, "user", "list"])? == "reader\nroot\n");

        // A snapshot holds the same as the log.
        gateway.terminate(std::time::Duration::from_secs(20))?;
        gateway.restart()?;
        ensure!(etcdctl.run(&[&reader, "get", "a1"])? == "a1\nbefore\n");
        ensure!(etcdctl.run(&[&reader, "get", "b"]).is_err());
        gateway.kill();
        for secret in [ROOT, READER] {
            let found = mentions(work.path(""), secret)?;
            ensure!(found.is_empty(), "a password in clear: {found:?}");
        }
        Ok(())
    });
}

/// Files below a folder that hold a text.
fn mentions(folder: impl AsRef<Path>, text: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(mentions(&path, text)?);
        } else {
            let bytes = fs::read(&path)?;
            if bytes
                .windows(text.len())
                .any(|part| part == text.as_bytes())
            {
                found.push(path.display().to_string());
            }
        }
    }
    Ok(found)
}
