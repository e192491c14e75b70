//! Runs every test binary of the workspace, one after the other, and counts.

use std::fmt;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::ledger::{Counts, note};

/// A binary that runs longer than this hangs.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// A test binary: its suite's name is `package/target`.
#[derive(Debug, PartialEq, Eq)]
struct Suite {
    package: String,
    target: String,
    folder: PathBuf,
    executable: PathBuf,
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.package, self.target)
    }
}

/// Builds and runs all of them, then the examples in the documentation. Says whether all passed.
pub(crate) fn all(root: &Path) -> Result<bool> {
    let mut good = true;
    for suite in build(root)? {
        let start = Instant::now();
        let mut command = Command::new(&suite.executable);
        // What cargo sets for a test; some libraries look for their files there.
        command
            .current_dir(&suite.folder)
            .env("CARGO_MANIFEST_DIR", &suite.folder);
        let (passed, text) = finish(&mut command)?;
        good &= report(root, &suite.to_string(), passed, &text, start.elapsed())?;
    }
    let start = Instant::now();
    let (passed, text) = finish(
        Command::new("cargo")
            .args(["test", "--quiet", "--workspace", "--doc"])
            .current_dir(root),
    )?;
    good &= report(root, "documentation", passed, &text, start.elapsed())?;
    Ok(good)
}

fn report(root: &Path, name: &str, passed: bool, text: &str, took: Duration) -> Result<bool> {
    let mut counts = count(text);
    if !passed && counts.failed == 0 {
        // It crashed, hung or did not build: that is a failure even if no test says so.
        counts.ran += 1;
        counts.failed = 1;
    }
    if !passed {
        println!("{text}");
    }
    note(root, name, counts)?;
    let Counts {
        ran,
        failed,
        skipped,
    } = counts;
    println!(
        "  {name:36} {ran:5} ran {failed:3} failed {skipped:3} skipped {:6.1} s",
        took.as_secs_f32()
    );
    Ok(passed)
}

/// Asks cargo to build the test binaries, with the flags of every other step, and to name them.
fn build(root: &Path) -> Result<Vec<Suite>> {
    let output = Command::new("cargo")
        .args([
            "test",
            "--workspace",
            "--no-run",
            "--message-format",
            "json-render-diagnostics",
        ])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "the tests do not build");
    let mut suites = suites(&String::from_utf8_lossy(&output.stdout))?;
    suites.sort_by_key(ToString::to_string);
    Ok(suites)
}

fn suites(messages: &str) -> Result<Vec<Suite>> {
    let mut suites = Vec::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line).context("cargo's messages")?;
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            continue;
        }
        let Some(executable) = message["executable"].as_str() else {
            continue;
        };
        let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
        let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
        let name = message["target"]["name"].as_str().unwrap_or_default();
        let package = message["package_id"].as_str().unwrap_or_default();
        suites.push(Suite {
            package: package_name(package).context(package.to_string())?,
            // A library's own name repeats the package's; a test's does not.
            target: if kind == "test" {
                name.to_string()
            } else {
                kind.to_string()
            },
            folder: manifest.parent().map(Path::to_path_buf).unwrap_or_default(),
            executable: executable.into(),
        });
    }
    Ok(suites)
}

/// The name in a package id: `path+file:///…/folder#name@1.0.0`, or `…/name#1.0.0`.
fn package_name(id: &str) -> Option<String> {
    let (url, fragment) = id.split_once('#')?;
    let name = match fragment.split_once('@') {
        Some((name, _)) => name,
        None => url.rsplit('/').next()?,
    };
    Some(name.to_string())
}

/// Runs `command` in a process group of its own, with both outputs in one text, and within the limit.
fn finish(command: &mut Command) -> Result<(bool, String)> {
    let (mut reader, writer) = std::io::pipe()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .process_group(0)
        .spawn()
        .with_context(|| format!("{command:?}"))?;
    // The command holds the pipe's writing end too; without this the reader never sees the end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = reader.read_to_end(&mut text);
        let _ = sender.send(String::from_utf8_lossy(&text).into_owned());
    });
    let passed = wait(&mut child)?;
    // A process that a test left behind may hold the pipe: what came so far is not worth waiting for it.
    let text = receiver
        .recv_timeout(Duration::from_secs(10))
        .unwrap_or_else(|_| "its output did not end: a child of it still runs\n".to_string());
    Ok((passed && !text.starts_with("its output did not end"), text))
}

fn wait(child: &mut Child) -> Result<bool> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        if start.elapsed() > LIMIT {
            let _ = Command::new("/bin/sh")
                .args(["-c", &format!("kill -s KILL -- -{}", child.id())])
                .status();
            child.wait()?;
            bail!("a test binary ran longer than {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Adds up libtest's closing lines: `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
fn count(text: &str) -> Counts {
    let mut counts = Counts::default();
    for line in text.lines() {
        let Some(rest) = line.trim_start().strip_prefix("test result: ") else {
            continue;
        };
        let number = |what: &str| -> u64 {
            rest.split([';', '.'])
                .filter_map(|part| part.trim().strip_suffix(what)?.trim().parse().ok())
                .next()
                .unwrap_or_default()
        };
        let (passed, failed) = (number("passed"), number("failed"));
        counts.ran += passed + failed;
        counts.failed += failed;
        counts.skipped += number("ignored");
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_added_up() {
        let check = |text: &str, ran, failed, skipped| {
            assert_eq!(
                count(text),
                Counts {
                    ran,
                    failed,
                    skipped
                },
                "{text:?}"
            );
        };
        let ok = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.01s\n";
        check("", 0, 0, 0);
        check("running 12 tests\ntest a ... ok\n", 0, 0, 0);
        check(ok, 12, 0, 1);
        check(&ok.repeat(2), 24, 0, 2);
        check(
            "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured\n",
            3,
            1,
            0,
        );
    }

    #[test]
    fn package_ids_give_names() {
        let check = |id: &str, name: Option<&str>| {
            assert_eq!(package_name(id).as_deref(), name, "{id}");
        };
        check(
            "path+file:///w/gateway/wire#causeway-wire@0.1.0",
            Some("causeway-wire"),
        );
        check("path+file:///w/xtask#0.1.0", Some("xtask"));
        check("nonsense", None);
    }

    #[test]
    fn test_binaries_are_named_by_package_and_target() {
        let message = |kind: &str, name: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///w/a#a@0.1.0","manifest_path":"/w/a/Cargo.toml","target":{{"kind":["{kind}"],"name":"{name}"}},"profile":{{"test":{test}}},"executable":"/t/x"}}"#
            )
        };
        let check = |text: &str, names: &[&str]| {
            let found: Vec<String> = suites(text)
                .expect("messages")
                .iter()
                .map(ToString::to_string)
                .collect();
            assert_eq!(found, names, "{text}");
        };
        check(&message("lib", "a", true), &["a/lib"]);
        check(&message("test", "it", true), &["a/it"]);
        check(&message("bin", "a", false), &[]);
        check(r#"{"reason":"build-finished","success":true}"#, &[]);
        assert!(suites("not json").is_err());
    }

    #[test]
    fn a_command_that_fails_or_cannot_start_is_no_success() {
        let shell = |script: &str| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]);
            command
        };
        assert_eq!(
            finish(&mut shell("echo a; echo b >&2")).expect("runs"),
            (true, "a\nb\n".to_string())
        );
        assert!(!finish(&mut shell("exit 3")).expect("runs").0);
        assert!(finish(&mut Command::new("/nonexistent")).is_err());
    }
}
