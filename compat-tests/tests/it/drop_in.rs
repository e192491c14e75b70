//! What an application does, and must be able to do unchanged against a real store or the gateway.

use std::time::Duration;

use anyhow::{Result, ensure};
use causeway_compat_tests::clients::{STEP, zk_cli};
use causeway_compat_tests::settings::{curator, grpc};
use causeway_compat_tests::{Target, Work, until};

/// A registration that is removed by its owner is gone for every watcher within this time.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(2);
/// Session timeout and lease of the clients here.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(4);
/// A killed client is gone within its timeout plus this.
pub(crate) const SLACK: Duration = Duration::from_secs(5);

/// kazoo registers, discovers, watches, deregisters and dies, in service `service`.
pub(crate) fn zookeeper(work: &Work, target: &Target, service: &str) -> Result<()> {
    let kazoo = target.kazoo();
    let dir = format!("/discovery/{service}");
    let mut watcher = kazoo.watch(work, &format!("{service}-watch"), &dir)?;
    let one = curator(service, "one", "10.20.3.7", 20880);
    let two = curator(service, "two", "10.20.3.8", 20880);
    let three = curator(service, "three", "10.20.3.9", 20880);

    let first = kazoo.register(work, &format!("{service}-one"), std::slice::from_ref(&one))?;
    watcher.expect("children one", STEP)?;
    let second = kazoo.register(work, &format!("{service}-two"), std::slice::from_ref(&two))?;
    watcher.expect("children one,two", STEP)?;
    let third = kazoo.register(
        work,
        &format!("{service}-three"),
        std::slice::from_ref(&three),
    )?;
    watcher.expect("children one,three,two", STEP)?;

    let found = kazoo.discover(&dir)?;
    ensure!(found.len() == 3, "three instances: {found:?}");
    ensure!(
        found["one"].value == one.1,
        "the value comes back byte for byte: {found:?}"
    );
    ensure!(
        found["one"].owner == first.sessions[&one.0],
        "the owner is the session: {found:?}"
    );
    ensure!(
        found["two"].owner == second.sessions[&two.0],
        "each has its own: {found:?}"
    );
    ensure!(
        found["one"].owner != found["two"].owner,
        "two sessions: {found:?}"
    );

    first.deregister()?;
    watcher.expect("children three,two", AT_ONCE)?;
    second.close()?;
    watcher.expect_that(AT_ONCE, "children three", |line| {
        (line == "children three").then_some(())
    })?;
    // With one instance left a removal by expiry would be held for minutes: let there be two to spare.
    let spare = kazoo.register(work, &format!("{service}-spare"), &[one, two])?;
    watcher.expect("children one,three,two", STEP)?;
    third.kill();
    watcher.expect_that(TIMEOUT + SLACK, "children one,two", |line| {
        (line == "children one,two").then_some(())
    })?;
    spare.deregister()?;
    watcher.expect_that(AT_ONCE, "an empty list", |line| {
        (line.trim_end() == "children").then_some(())
    })?;
    Ok(())
}

/// etcdctl registers, discovers, watches, revokes and dies.
pub(crate) fn etcd(work: &Work, target: &Target, label: &str) -> Result<()> {
    let etcdctl = target.etcdctl();
    let prefix = "orders-grpc/";
    let mut watcher = etcdctl.watch(work, &format!("{label}-etcd-watch"), prefix)?;
    let (one, two, three) = (
        grpc("10.20.3.7", 9000),
        grpc("10.20.3.8", 9000),
        grpc("10.20.3.9", 9000),
    );

    let first = etcdctl.register(
        work,
        &format!("{label}-e1"),
        TIMEOUT,
        std::slice::from_ref(&one),
    )?;
    watcher.expect(&one.0, STEP)?;
    watcher.expect(&one.1, STEP)?;
    let second = etcdctl.register(
        work,
        &format!("{label}-e2"),
        TIMEOUT,
        &[two.clone(), three.clone()],
    )?;
    watcher.expect(&two.0, STEP)?;
    watcher.expect(&three.0, STEP)?;

    let found = etcdctl.get(prefix)?;
    ensure!(found.len() == 3, "three instances: {found:?}");
    ensure!(
        found[&one.0].value == one.1,
        "the value comes back byte for byte: {found:?}"
    );
    ensure!(
        found[&one.0].lease == first.number()?,
        "the lease is the client's: {found:?}"
    );
    ensure!(
        etcdctl.lease_keys(&second.id)? == [two.0.clone(), three.0.clone()],
        "the lease knows its keys"
    );
    ensure!(
        found[&three.0].mod_revision > found[&two.0].mod_revision,
        "revisions rise with each put: {found:?}"
    );

    let spare = etcdctl.register(
        work,
        &format!("{label}-e3"),
        TIMEOUT,
        &[grpc("10.20.3.10", 9000), grpc("10.20.3.11", 9000)],
    )?;
    first.kill();
    watcher.expect("DELETE", TIMEOUT + SLACK)?;
    watcher.expect(&one.0, STEP)?;
    second.revoke()?;
    watcher.expect("DELETE", AT_ONCE)?;
    watcher.expect("DELETE", AT_ONCE)?;
    ensure!(
        etcdctl.keys(prefix)?.len() == 2,
        "the spare ones stay: {:?}",
        etcdctl.keys(prefix)?
    );
    spare.revoke()?;
    until(AT_ONCE, "nothing is left", || {
        let keys = etcdctl.keys(prefix)?;
        ensure!(keys.is_empty(), "{keys:?}");
        Ok(())
    })
}

/// Everyday operations on general nodes, among them a lock, a transaction and sequences.
pub(crate) fn zookeeper_general(target: &Target, root: &str) -> Result<()> {
    let steps = target.kazoo().everyday(root)?;
    ensure!(steps.len() == 8, "every step ran: {steps:?}");
    Ok(())
}

/// Everyday operations on general keys.
pub(crate) fn etcd_general(work: &Work, target: &Target, root: &str) -> Result<()> {
    let etcdctl = target.etcdctl();
    let key = |name: &str| format!("{root}/{name}");
    etcdctl.run(&["put", &key("a"), "1"])?;
    etcdctl.run(&["put", &key("b"), "2"])?;
    let found = etcdctl.get(root)?;
    ensure!(
        found[&key("a")].value == "1" && found[&key("b")].lease == 0,
        "{found:?}"
    );

    // A watch from a revision replays what came since.
    let from = found[&key("b")].mod_revision + 1;
    etcdctl.run(&["put", &key("c"), "3"])?;
    etcdctl.run(&["del", &key("a")])?;
    let mut replay = causeway_compat_tests::Program::spawn(
        work,
        &format!("replay{}", root.replace('/', "-")),
        std::process::Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args([
                "--endpoints",
                &target.etcd,
                "watch",
                root,
                "--prefix",
                "--rev",
                &from.to_string(),
            ]),
    )?;
    let lines: Vec<String> = (0..5)
        .map(|_| replay.expect_that(STEP, "a line", |line| Some(line.to_string())))
        .collect::<Result<_>>()?;
    ensure!(
        lines
            == [
                "PUT".to_string(),
                key("c"),
                "3".to_string(),
                "DELETE".to_string(),
                key("a")
            ],
        "the replay is exact: {lines:?}"
    );

    // Compare and set, both ways. etcdctl reads the transaction from its input.
    let txn = |script: &str| -> Result<String> {
        let mut program = causeway_compat_tests::Program::spawn(
            work,
            &format!("txn{}", root.replace('/', "-")),
            std::process::Command::new("etcdctl")
                .env("ETCDCTL_API", "3")
                .args(["--endpoints", &target.etcd, "txn"]),
        )?;
        program.say(script)?;
        let verdict = program.expect_that(STEP, "SUCCESS or FAILURE", |line| {
            matches!(line, "SUCCESS" | "FAILURE").then(|| line.to_string())
        })?;
        ensure!(program.finish(STEP)?.success(), "txn ends well");
        Ok(verdict)
    };
    let set = format!(
        "value(\"{b}\") = \"2\"\n\nput {b} two\n\nput {b} lost\n\n",
        b = key("b")
    );
    ensure!(txn(&set)? == "SUCCESS", "the first compare holds");
    ensure!(txn(&set)? == "FAILURE", "the second does not");
    ensure!(
        etcdctl.get(&key("b"))?[&key("b")].value == "lost",
        "its other branch ran"
    );

    let revision = etcdctl.get(&key("b"))?[&key("b")].mod_revision.to_string();
    etcdctl.run(&["compact", &revision])?;
    let old = etcdctl.run(&["get", &key("b"), "--rev", &from.to_string()]);
    let old = old.map_or_else(
        |error| format!("{error:#}"),
        |text| format!("it answered {text:?}"),
    );
    ensure!(
        old.contains("required revision has been compacted"),
        "compacted: {old}"
    );

    ensure!(etcdctl.run(&["endpoint", "health"]).is_ok(), "health");
    let status = etcdctl.run(&["endpoint", "status", "-w", "json"])?;
    ensure!(status.contains("\"version\""), "status: {status}");
    etcdctl.run(&["del", root, "--prefix"])?;
    Ok(())
}

/// The Java client that comes with ZooKeeper lists and creates.
pub(crate) fn java(target: &Target, root: &str) -> Result<()> {
    zk_cli(&target.zookeeper, &["create", root, "x"])?;
    zk_cli(
        &target.zookeeper,
        &["create", &format!("{root}/child"), "y"],
    )?;
    let listed = zk_cli(&target.zookeeper, &["ls", root])?;
    ensure!(listed.lines().any(|line| line == "[child]"), "ls: {listed}");
    zk_cli(&target.zookeeper, &["deleteall", root])?;
    ensure!(target.kazoo().names(root)?.is_empty(), "deleteall");
    Ok(())
}

/// All of it.
pub(crate) fn all(work: &Work, target: &Target, label: &str) -> Result<()> {
    std::thread::scope(|scope| {
        let etcd = scope.spawn(|| etcd(work, target, label));
        zookeeper(work, target, &format!("orders-{label}"))?;
        etcd.join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    zookeeper_general(target, &format!("/general/{label}"))?;
    etcd_general(work, target, &format!("/general/{label}"))?;
    java(target, &format!("/java-{label}"))
}
