//! The programs that play the applications: kazoo scripts and etcdctl, unmodified clients both.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use base64::Engine as _;
use serde_json::Value;

use crate::process::{Work, signal_group, watchdog};
use crate::wait::until;

/// How long a client program may take for one step before the test gives up on it.
pub const STEP: Duration = Duration::from_secs(20);

/// A running client program that speaks in lines.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    seen: Vec<String>,
    ended: bool,
}

impl Program {
    /// Starts `command`; its standard error goes to a log in the scenario's folder.
    pub fn spawn(work: &Work, name: &str, command: &mut Command) -> Result<Program> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(work.path(&format!("client-{name}.log")))?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {name}: {:?}", command.get_program()))?;
        watchdog("add", child.id());
        let stdout = child.stdout.take().context("stdout")?;
        let stdin = child.stdin.take();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Program {
            name: name.to_string(),
            child,
            stdin,
            lines,
            seen: Vec::new(),
            ended: false,
        })
    }

    /// Waits for the next line that starts with `prefix`, skipping others; gives the rest of that line.
    pub fn expect(&mut self, prefix: &str, limit: Duration) -> Result<String> {
        self.expect_that(limit, &format!("a line {prefix:?}"), |line| {
            line.strip_prefix(prefix)
                .map(|rest| rest.trim().to_string())
        })
    }

    /// Waits for the next line that `pick` takes, skipping others.
    pub fn expect_that<T>(
        &mut self,
        limit: Duration,
        what: &str,
        mut pick: impl FnMut(&str) -> Option<T>,
    ) -> Result<T> {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    let picked = pick(&line);
                    self.seen.push(line);
                    if let Some(value) = picked {
                        return Ok(value);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    bail!(
                        "{}: not within {limit:?}: {what}; it said {:?}",
                        self.name,
                        self.tail()
                    )
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!(
                        "{}: ended before {what}; it said {:?}",
                        self.name,
                        self.tail()
                    )
                }
            }
        }
    }

    /// Every line that is there now, without waiting.
    pub fn drain(&mut self) -> Vec<String> {
        let fresh: Vec<String> = self.lines.try_iter().collect();
        self.seen.extend(fresh.iter().cloned());
        fresh
    }

    /// Sends a line to its standard input.
    pub fn say(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("its input is closed")?;
        writeln!(stdin, "{line}")?;
        stdin.flush()?;
        Ok(())
    }

    /// `kill -9`: the application is gone without a word to the store.
    pub fn kill(&mut self) {
        if !self.ended {
            signal_group("KILL", self.child.id());
            let _ = self.child.wait();
            watchdog("del", self.child.id());
            self.ended = true;
        }
    }

    /// SIGTERM: the application is asked to stop, as by its platform. See [`Program::finish`].
    pub fn terminate(&self) {
        signal_group("TERM", self.child.id());
    }

    /// Waits for the program to end by itself.
    pub fn finish(&mut self, limit: Duration) -> Result<ExitStatus> {
        let name = self.name.clone();
        self.stdin = None;
        let status = until(limit, &format!("{name} ends"), || {
            self.child
                .try_wait()?
                .ok_or_else(|| anyhow!("still running"))
        })?;
        watchdog("del", self.child.id());
        self.ended = true;
        Ok(status)
    }

    fn tail(&self) -> &[String] {
        &self.seen[self.seen.len().saturating_sub(8)..]
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs `command` to its end and gives its standard output; a failure shows both outputs.
pub fn output(command: &mut Command) -> Result<String> {
    let got = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{command:?}"))?;
    let stdout = String::from_utf8_lossy(&got.stdout).into_owned();
    ensure!(
        got.status.success(),
        "{command:?}: {}\n{stdout}{}",
        got.status,
        String::from_utf8_lossy(&got.stderr)
    );
    Ok(stdout)
}

/// One child of a directory as kazoo shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The session that owns the node; 0 for a persistent one.
    pub owner: u64,
    /// The value, as text.
    pub value: String,
}

/// kazoo against one address (a comma-separated list is a connect string of several servers).
#[derive(Debug, Clone)]
pub struct Kazoo {
    hosts: String,
    /// The session timeout that its programs ask for.
    pub timeout: Duration,
}

impl Kazoo {
    /// kazoo against `hosts`, with a session timeout of 4 s, the smallest that a default server grants.
    pub fn new(hosts: &str) -> Kazoo {
        Kazoo {
            hosts: hosts.to_string(),
            timeout: Duration::from_secs(4),
        }
    }

    fn command(&self, script: &str) -> Command {
        let mut command = Command::new(python());
        command
            .arg(clients_dir().join("python/application").join(script))
            .args([
                "--hosts",
                &self.hosts,
                "--timeout",
                &self.timeout.as_secs().to_string(),
            ]);
        command
    }

    /// Registers each `(path, value)` as an ephemeral node, every one under a session of its own, and holds
    /// them until it is killed or told `deregister` or `close`. Returns when all are registered.
    pub fn register(&self, work: &Work, name: &str, nodes: &[(String, String)]) -> Result<Held> {
        let mut command = self.command("register.py");
        for (path, value) in nodes {
            command.arg("--node").arg(path).arg(value);
        }
        let mut program = Program::spawn(work, name, &mut command)?;
        let mut sessions = BTreeMap::new();
        for _ in nodes {
            let line = program.expect("registered", STEP)?;
            let (session, path) = line.split_once(' ').context("registered SESSION PATH")?;
            sessions.insert(path.to_string(), hex(session)?);
        }
        Ok(Held { program, sessions })
    }

    /// The children of `dir` with owner and value; an absent directory has none.
    pub fn discover(&self, dir: &str) -> Result<BTreeMap<String, Node>> {
        let mut children = BTreeMap::new();
        let text = output(self.command("discover.py").args(["--dir", dir]))?;
        let mut complete = false;
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("child ") {
                let mut parts = rest.splitn(3, ' ');
                let (Some(name), Some(owner), value) = (parts.next(), parts.next(), parts.next())
                else {
                    bail!("child NAME OWNER VALUE, not {line:?}")
                };
                let value = value.unwrap_or_default().to_string();
                children.insert(
                    name.to_string(),
                    Node {
                        owner: hex(owner)?,
                        value,
                    },
                );
            }
            complete |= line.starts_with("end ");
        }
        ensure!(complete, "discover.py did not finish: {text}");
        Ok(children)
    }

    /// The names of the children of `dir`.
    pub fn names(&self, dir: &str) -> Result<Vec<String>> {
        Ok(self.discover(dir)?.into_keys().collect())
    }

    /// What `contend.py` says of several clients that write at once below `dir`.
    pub fn contend(&self, what: &str, dir: &str, rounds: u32) -> Result<String> {
        let rounds = rounds.to_string();
        output(
            self.command("contend.py")
                .args([what, "--dir", dir, "--rounds", &rounds]),
        )
    }

    /// The czxid of a node.
    pub fn czxid(&self, path: &str) -> Result<u64> {
        let text = output(self.command("stat.py").args(["--path", path]))?;
        let line = text.lines().find_map(|line| line.strip_prefix("czxid "));
        hex(line.with_context(|| format!("stat.py printed {text:?}"))?)
    }

    /// Watches the children of `dir`: a line `children a,b,c` at the start and after each change, and
    /// `state …` when the connection changes. Returns after the first list.
    pub fn watch(&self, work: &Work, name: &str, dir: &str) -> Result<Program> {
        let mut program =
            Program::spawn(work, name, self.command("watch.py").args(["--dir", dir]))?;
        program.expect("watching", STEP)?;
        Ok(program)
    }

    /// Runs the self-checking script of everyday operations under `root`; gives the names of its steps.
    pub fn everyday(&self, root: &str) -> Result<Vec<String>> {
        let text = output(self.command("everyday.py").args(["--root", root]))?;
        ensure!(
            text.lines().any(|line| line == "done"),
            "everyday.py did not finish: {text}"
        );
        Ok(text
            .lines()
            .filter_map(|l| l.strip_prefix("ok ").map(str::to_string))
            .collect())
    }
}

/// Instances held by a kazoo program.
#[derive(Debug)]
pub struct Held {
    /// The program; dropping it kills it.
    pub program: Program,
    /// The session id of each path, as the client was told at connect.
    pub sessions: BTreeMap<String, u64>,
}

impl Held {
    /// Tells the program to delete its nodes and close its sessions, and waits for it to end.
    pub fn deregister(mut self) -> Result<()> {
        self.program.say("deregister")?;
        self.program.expect("deregistered", STEP)?;
        ensure!(self.program.finish(STEP)?.success(), "deregister failed");
        Ok(())
    }

    /// Tells the program to close its sessions without deleting, and waits for it to end.
    pub fn close(mut self) -> Result<()> {
        self.program.say("close")?;
        self.program.expect("closed", STEP)?;
        ensure!(self.program.finish(STEP)?.success(), "close failed");
        Ok(())
    }

    /// `kill -9` of the application.
    pub fn kill(mut self) {
        self.program.kill();
    }
}

/// One pair as etcdctl shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The lease that holds it; 0 for none.
    pub lease: i64,
    /// The value, as text.
    pub value: String,
    /// The revision of its last change.
    pub mod_revision: i64,
}

/// etcdctl against one endpoint.
#[derive(Debug, Clone)]
pub struct Etcdctl {
    endpoint: String,
}

impl Etcdctl {
    /// etcdctl against `endpoint` (host and port).
    pub fn new(endpoint: &str) -> Etcdctl {
        Etcdctl {
            endpoint: endpoint.to_string(),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args([
            "--endpoints",
            &self.endpoint,
            "--dial-timeout",
            "5s",
            "--command-timeout",
            "10s",
        ]);
        command
    }

    /// Any command, to its end.
    pub fn run(&self, args: &[&str]) -> Result<String> {
        output(self.command().args(args))
    }

    /// Every pair under `prefix`.
    pub fn get(&self, prefix: &str) -> Result<BTreeMap<String, Pair>> {
        let text = self.run(&["get", prefix, "--prefix", "-w", "json"])?;
        let reply: Value = serde_json::from_str(&text)?;
        let mut pairs = BTreeMap::new();
        for kv in reply["kvs"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default()
        {
            pairs.insert(
                base64_text(&kv["key"])?,
                Pair {
                    lease: kv["lease"].as_i64().unwrap_or_default(),
                    value: base64_text(&kv["value"])?,
                    mod_revision: kv["mod_revision"].as_i64().unwrap_or_default(),
                },
            );
        }
        Ok(pairs)
    }

    /// The keys under `prefix`.
    pub fn keys(&self, prefix: &str) -> Result<Vec<String>> {
        Ok(self.get(prefix)?.into_keys().collect())
    }

    /// Registers as the naming libraries do: grants a lease, puts the keys with it, keeps it alive in a
    /// process that holds until it is killed.
    pub fn register(
        &self,
        work: &Work,
        name: &str,
        ttl: Duration,
        keys: &[(String, String)],
    ) -> Result<Leased> {
        let text = self.run(&["lease", "grant", &ttl.as_secs().to_string()])?;
        // "lease 694d967fa24b2812 granted with TTL(10s)"
        let id = text
            .split_whitespace()
            .nth(1)
            .context("lease id")?
            .to_string();
        for (key, value) in keys {
            self.run(&["put", key, value, "--lease", &id])?;
        }
        let mut keeper = Program::spawn(
            work,
            name,
            self.command().args(["lease", "keep-alive", &id]),
        )?;
        keeper.expect("lease", STEP)?;
        Ok(Leased {
            etcdctl: self.clone(),
            keeper,
            id,
        })
    }

    /// Watches `prefix`: etcdctl prints the kind, the key and the value on a line each.
    pub fn watch(&self, work: &Work, name: &str, prefix: &str) -> Result<Program> {
        let program = Program::spawn(
            work,
            name,
            self.command().args(["watch", prefix, "--prefix"]),
        )?;
        // etcdctl says nothing when the watch stands. A moment is what an operator at a shell gives it;
        // scenarios that need certainty start from a revision.
        std::thread::sleep(Duration::from_millis(500));
        Ok(program)
    }

    /// The keys attached to a lease, or an error when the lease is gone.
    pub fn lease_keys(&self, id: &str) -> Result<Vec<String>> {
        let text = self.run(&["lease", "timetolive", id, "--keys", "-w", "json"])?;
        let reply: Value = serde_json::from_str(&text)?;
        ensure!(
            reply["ttl"].as_i64().unwrap_or(-1) > 0,
            "lease {id} is gone: {text}"
        );
        let keys = reply["keys"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        // etcd gives them in the order of a hash map.
        let mut keys = keys.iter().map(base64_text).collect::<Result<Vec<_>>>()?;
        keys.sort();
        Ok(keys)
    }
}

/// Keys held by a lease that an etcdctl process keeps alive.
#[derive(Debug)]
pub struct Leased {
    etcdctl: Etcdctl,
    /// The process that renews; dropping it kills it.
    pub keeper: Program,
    /// The lease id, in hexadecimal, as etcdctl shows it.
    pub id: String,
}

impl Leased {
    /// The lease id as a number.
    pub fn number(&self) -> Result<i64> {
        Ok(hex(&self.id)? as i64)
    }

    /// Revokes the lease, as a client does on shutdown.
    pub fn revoke(mut self) -> Result<()> {
        self.etcdctl.run(&["lease", "revoke", &self.id])?;
        self.keeper.kill();
        Ok(())
    }

    /// `kill -9` of the application.
    pub fn kill(mut self) {
        self.keeper.kill();
    }
}

/// Runs a command of the Java command-line client that comes with ZooKeeper.
pub fn zk_cli(server: &str, args: &[&str]) -> Result<String> {
    output(
        Command::new("java")
            .args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .args(["-cp", crate::target::ZOOKEEPER_CLASSPATH])
            .args(["org.apache.zookeeper.ZooKeeperMain", "-server", server])
            .args(args),
    )
}

/// The folder of client programs.
pub fn clients_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

/// The Python that has kazoo: `CAUSEWAY_PYTHON`, else the one that `scripts/bootstrap` made, else `python3`.
pub fn python() -> PathBuf {
    if let Some(python) = std::env::var_os("CAUSEWAY_PYTHON") {
        return python.into();
    }
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache/venv/bin/python");
    if made.exists() {
        made
    } else {
        "python3".into()
    }
}

fn hex(text: &str) -> Result<u64> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16)
        .with_context(|| format!("{text:?} is not hexadecimal"))
}

fn base64_text(value: &Value) -> Result<String> {
    let text = value.as_str().unwrap_or_default();
    Ok(String::from_utf8(
        base64::engine::general_purpose::STANDARD.decode(text)?,
    )?)
}
