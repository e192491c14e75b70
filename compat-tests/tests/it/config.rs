//! What is refused at start, and how it is said.

use std::fs;
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use causeway_compat_tests::clients::Program;
use causeway_compat_tests::target::{binary, connect};
use causeway_compat_tests::{Work, until};

/// Runs the binary to its end and gives whether it succeeded, with all it said.
fn run(work: &Work, args: &[&str]) -> Result<(bool, String)> {
    let log = work.path("config.log");
    let file = fs::File::create(&log)?;
    let mut command = Command::new(binary()?);
    command
        .args(args)
        .stdout(file.try_clone()?)
        .stderr(file)
        .current_dir(work.dir());
    let mut child = command.spawn()?;
    let ended = until(Duration::from_secs(10), &format!("{args:?} ends"), || {
        child
            .try_wait()?
            .ok_or_else(|| anyhow::anyhow!("still running"))
    });
    let _ = child.kill();
    Ok((ended?.success(), fs::read_to_string(&log)?))
}

fn refused(work: &Work, args: &[&str], words: &[&str]) -> Result<()> {
    let (good, text) = run(work, args)?;
    ensure!(!good, "{args:?} was not refused: {text}");
    for word in words {
        ensure!(
            text.contains(word),
            "{args:?} has to name {word:?}; it said: {text}"
        );
    }
    ensure!(!text.contains("panicked"), "{args:?} panicked: {text}");
    Ok(())
}

#[test]
fn every_error_of_a_bad_configuration_is_named_at_once() {
    Work::scenario("config-bad", |work| {
        let file = work.path("bad.toml");
        let config = file.display().to_string();
        fs::write(
            &file,
            "zookeeper_listen = \"nowhere\"\nprotect_threshold = 400\nphase = \"sideways\"\n\
             legacy_etcd = \"ftp://127.0.0.1:1\"\n[[layout]]\nuse = \"no-such-layout\"\n",
        )?;
        let words = [
            "zookeeper-listen",
            "nowhere",
            "protect-threshold",
            "sideways",
            "ftp",
            "data-dir",
            "no-such-layout",
        ];
        refused(work, &["check", "--config", &config], &words)?;
        refused(work, &["serve", "--config", &config], &words)?;

        fs::write(&file, "colour = \"blue\"\n")?;
        refused(work, &["check", "--config", &config], &["colour"])?;
        fs::write(&file, "this is no TOML [")?;
        refused(work, &["check", "--config", &config], &["bad.toml"])?;
        refused(
            work,
            &["check", "--config", "/nonexistent/file.toml"],
            &["/nonexistent/file.toml"],
        )
    });
}

#[test]
fn a_good_configuration_passes_the_check() {
    Work::scenario("config-good", |work| {
        let file = work.path("good.toml");
        fs::write(&file, causeway_compat_tests::Settings::default().toml())?;
        let (good, text) = run(work, &["check", "--config", &file.display().to_string()])?;
        ensure!(good, "{text}");
        Ok(())
    });
}

#[test]
fn flags_that_do_not_fit_together_are_refused() {
    Work::scenario("config-flags", |work| {
        let any = [
            "--zookeeper-listen",
            "127.0.0.1:0",
            "--etcd-listen",
            "127.0.0.1:0",
            "--admin-listen",
            "127.0.0.1:0",
        ];
        let serve = |more: &[&'static str]| [&["serve"][..], &any[..], more].concat();
        refused(
            work,
            &serve(&["--legacy-etcd", "http://127.0.0.1:1"]),
            &["data-dir"],
        )?;
        refused(work, &serve(&["--phase", "merge-new"]), &["legacy"])?;
        refused(
            work,
            &serve(&["--legacy-zookeeper", "no port at all"]),
            &["legacy-zookeeper"],
        )?;
        refused(
            work,
            &serve(&["--protect-threshold", "0"]),
            &["protect-threshold"],
        )?;
        refused(work, &["serve", "--no-such-flag"], &["--no-such-flag"])
    });
}

#[test]
fn a_port_in_use_is_named() {
    Work::scenario("config-port", |work| {
        let taken = TcpListener::bind("127.0.0.1:0")?;
        let address = taken.local_addr()?.to_string();
        refused(
            work,
            &[
                "serve",
                "--zookeeper-listen",
                &address,
                "--etcd-listen",
                "127.0.0.1:0",
                "--admin-listen",
                "127.0.0.1:0",
            ],
            &[&address, "zookeeper"],
        )
    });
}

#[test]
fn every_setting_is_an_environment_variable_too() {
    Work::scenario("config-environment", |work| {
        let ports = work.path("ports.json");
        let mut command = Command::new(binary()?);
        command
            .arg("serve")
            .env("CAUSEWAY_ZOOKEEPER_LISTEN", "127.0.0.1:0")
            .env("CAUSEWAY_ETCD_LISTEN", "127.0.0.1:0")
            .env("CAUSEWAY_ADMIN_LISTEN", "127.0.0.1:0")
            .env("CAUSEWAY_PORTS_FILE", &ports)
            .current_dir(work.dir());
        let program = Program::spawn(work, "gateway", &mut command)?;
        let port = until(
            Duration::from_secs(20),
            "it listens where the environment says",
            || {
                let value: serde_json::Value = serde_json::from_str(&fs::read_to_string(&ports)?)?;
                match value["zookeeper"].as_u64() {
                    Some(port) => Ok(port as u16),
                    None => bail!("no port yet: {value}"),
                }
            },
        )?;
        ensure!(port != 2181, "a free port, not the default");
        connect(port)?;
        drop(program);
        Ok(())
    });
}
