//! What clients can be pointed at: a real ZooKeeper, a real etcd, or the gateway.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde_json::Value;

use crate::clients::{Etcdctl, Kazoo};
use crate::process::{Server, Work, free_port};
use crate::settings::Settings;
use crate::wait::until;

/// Debian's jar names its dependencies in its manifest.
pub const ZOOKEEPER_CLASSPATH: &str = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar";

const START: Duration = Duration::from_secs(30);

/// Where clients connect: one address per protocol.
#[derive(Debug, Clone)]
pub struct Target {
    /// `host:port` that answers ZooKeeper's protocol.
    pub zookeeper: String,
    /// `host:port` that answers etcd's.
    pub etcd: String,
}

impl Target {
    /// kazoo against this target.
    pub fn kazoo(&self) -> Kazoo {
        Kazoo::new(&self.zookeeper)
    }

    /// etcdctl against this target.
    pub fn etcdctl(&self) -> Etcdctl {
        Etcdctl::new(&self.etcd)
    }
}

/// A real single-node etcd.
#[derive(Debug)]
pub struct Etcd {
    server: Server,
    name: String,
    dir: PathBuf,
    client_port: u16,
    peer_port: u16,
}

impl Etcd {
    /// Starts it on free ports with an empty store, and waits until it answers.
    pub fn start(work: &Work, name: &str) -> Result<Etcd> {
        let dir = work.path(name);
        fs::create_dir_all(&dir)?;
        let (client_port, peer_port) = (free_port()?, free_port()?);
        let server = Self::spawn(name, &dir, client_port, peer_port)?;
        let mut etcd = Etcd {
            server,
            name: name.to_string(),
            dir,
            client_port,
            peer_port,
        };
        etcd.ready()?;
        Ok(etcd)
    }

    fn spawn(name: &str, dir: &Path, client_port: u16, peer_port: u16) -> Result<Server> {
        let client = format!("http://127.0.0.1:{client_port}");
        let peer = format!("http://127.0.0.1:{peer_port}");
        Server::spawn(
            name,
            Command::new("etcd")
                .args(["--name", "legacy", "--log-level", "warn", "--logger", "zap"])
                .args(["--data-dir", &dir.join("data").to_string_lossy()])
                .args([
                    "--listen-client-urls",
                    &client,
                    "--advertise-client-urls",
                    &client,
                ])
                .args([
                    "--listen-peer-urls",
                    &peer,
                    "--initial-advertise-peer-urls",
                    &peer,
                ])
                .args(["--initial-cluster", &format!("legacy={peer}")])
                // The tests' disks are not what is under test.
                .arg("--unsafe-no-fsync"),
            dir.with_extension("log"),
        )
    }

    fn ready(&mut self) -> Result<()> {
        let port = self.client_port;
        until(START, "etcd answers", || {
            self.server.check_alive()?;
            let (status, body) = http(port, "GET", "/health", "")?;
            ensure!(status == 200 && body.contains("true"), "{status} {body}");
            Ok(())
        })
    }

    /// `host:port` for clients.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.client_port)
    }

    /// The URL that a configuration names.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// etcdctl straight at it.
    pub fn etcdctl(&self) -> Etcdctl {
        Etcdctl::new(&self.address())
    }

    /// The server process.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Starts it again on the same ports, with the data it had.
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        self.server = Self::spawn(&self.name, &self.dir, self.client_port, self.peer_port)?;
        self.ready()
    }

    /// Starts it again on the same ports with an empty store, as after a botched restore.
    pub fn wipe(&mut self) -> Result<()> {
        self.kill();
        fs::remove_dir_all(self.dir.join("data"))?;
        self.restart()
    }
}

/// A real standalone ZooKeeper.
#[derive(Debug)]
pub struct ZooKeeper {
    server: Server,
    name: String,
    dir: PathBuf,
    port: u16,
    options: &'static [&'static str],
}

/// For tests: one thread of garbage collection, and only the quick compiler, so that it starts fast.
const QUICK_START: &[&str] = &["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"];
/// For measurements: compiled as well as Java can.
const FULL_SPEED: &[&str] = &["-Xmx512m"];

impl ZooKeeper {
    /// Starts it on a free port with an empty tree, and waits until it answers.
    pub fn start(work: &Work, name: &str) -> Result<ZooKeeper> {
        Self::start_with(work, name, QUICK_START)
    }

    /// Like [`ZooKeeper::start`], for measurements.
    pub fn start_at_full_speed(work: &Work, name: &str) -> Result<ZooKeeper> {
        Self::start_with(work, name, FULL_SPEED)
    }

    fn start_with(work: &Work, name: &str, options: &'static [&'static str]) -> Result<ZooKeeper> {
        let dir = work.path(name);
        fs::create_dir_all(&dir)?;
        let port = free_port()?;
        // maxClientCnxns=0: a gateway with many clients is one address to the ensemble.
        // tickTime=1000 grants sessions of 2 s to 20 s and expires them within a second of their time.
        fs::write(
            dir.join("zoo.cfg"),
            format!(
                "tickTime=1000\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n\
                 admin.enableServer=false\n4lw.commands.whitelist=*\nforceSync=no\n",
                dir.join("data").display()
            ),
        )?;
        let server = Self::spawn(name, &dir, options)?;
        let mut zookeeper = ZooKeeper {
            server,
            name: name.to_string(),
            dir,
            port,
            options,
        };
        zookeeper.ready()?;
        Ok(zookeeper)
    }

    fn spawn(name: &str, dir: &Path, options: &[&str]) -> Result<Server> {
        Server::spawn(
            name,
            Command::new("java")
                .args(options)
                .args([
                    "-Dzookeeper.admin.enableServer=false",
                    "-cp",
                    ZOOKEEPER_CLASSPATH,
                ])
                .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
                .arg(dir.join("zoo.cfg"))
                .current_dir(dir),
            dir.with_extension("log"),
        )
    }

    fn ready(&mut self) -> Result<()> {
        let port = self.port;
        until(START, "ZooKeeper answers", || {
            self.server.check_alive()?;
            let answer = four_letters(port, "ruok")?;
            ensure!(answer == "imok", "it says {answer:?}");
            Ok(())
        })
    }

    /// `host:port` for clients.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// kazoo straight at it.
    pub fn kazoo(&self) -> Kazoo {
        Kazoo::new(&self.address())
    }

    /// The answer to a four-letter word.
    pub fn four_letters(&self, word: &str) -> Result<String> {
        four_letters(self.port, word)
    }

    /// The server process.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Starts it again on the same port, with the tree it had.
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        self.server = Self::spawn(&self.name, &self.dir, self.options)?;
        self.ready()
    }

    /// Starts it again on the same port with an empty tree, as after a botched restore.
    pub fn wipe(&mut self) -> Result<()> {
        self.kill();
        fs::remove_dir_all(self.dir.join("data"))?;
        self.restart()
    }
}

/// The two real stores of a scenario.
#[derive(Debug)]
pub struct Legacy {
    /// The real ZooKeeper.
    pub zookeeper: ZooKeeper,
    /// The real etcd.
    pub etcd: Etcd,
}

impl Legacy {
    /// Starts both.
    pub fn start(work: &Work) -> Result<Legacy> {
        Ok(Legacy {
            zookeeper: ZooKeeper::start(work, "zookeeper")?,
            etcd: Etcd::start(work, "etcd")?,
        })
    }

    /// Both as what clients are pointed at.
    pub fn target(&self) -> Target {
        Target {
            zookeeper: self.zookeeper.address(),
            etcd: self.etcd.address(),
        }
    }

    /// Settings of a gateway in front of both, in `phase`.
    pub fn settings(&self, phase: &str) -> Settings {
        Settings {
            legacy_zookeeper: Some(self.zookeeper.address()),
            legacy_etcd: Some(self.etcd.url()),
            phase: Some(phase.to_string()),
            ..Settings::default()
        }
    }
}

/// The gateway's binary as a server.
#[derive(Debug)]
pub struct Gateway {
    server: Server,
    command: Vec<String>,
    ports_file: PathBuf,
    log: PathBuf,
    ports: Ports,
}

#[derive(Debug, Clone, Copy, Default)]
struct Ports {
    zookeeper: u16,
    etcd: u16,
    admin: u16,
}

impl Gateway {
    /// Starts it on free ports with `settings`, and waits until it is ready.
    pub fn start(work: &Work, name: &str, settings: &Settings) -> Result<Gateway> {
        let mut gateway = Self::start_unready(work, name, settings)?;
        gateway.wait_ready()?;
        Ok(gateway)
    }

    /// Starts the process on free ports and waits for nothing: call [`Gateway::wait_ready`] before its ports
    /// are asked for.
    pub fn start_unready(work: &Work, name: &str, settings: &Settings) -> Result<Gateway> {
        let config = work.path(&format!("{name}.toml"));
        fs::write(&config, settings.toml())?;
        let ports_file = work.path(&format!("{name}.ports.json"));
        let mut command = vec![
            "serve".to_string(),
            "--config".to_string(),
            config.display().to_string(),
            "--ports-file".to_string(),
            ports_file.display().to_string(),
        ];
        let mut option = |flag: &str, value: Option<String>| {
            if let Some(value) = value {
                command.extend([flag.to_string(), value]);
            }
        };
        option("--legacy-zookeeper", settings.legacy_zookeeper.clone());
        option("--legacy-etcd", settings.legacy_etcd.clone());
        option("--phase", settings.phase.clone());
        option(
            "--data-dir",
            Some(work.path(&format!("{name}-data")).display().to_string()),
        );
        let log = work.path(&format!("{name}.log"));
        let server = Self::spawn(&command, Ports::default(), &ports_file, &log)?;
        Ok(Gateway {
            server,
            command,
            ports_file,
            log,
            ports: Ports::default(),
        })
    }

    fn spawn(command: &[String], ports: Ports, ports_file: &Path, log: &Path) -> Result<Server> {
        let _ = fs::remove_file(ports_file);
        Server::spawn(
            "gateway",
            Command::new(binary()?)
                .args(command)
                .arg(format!("--zookeeper-listen=127.0.0.1:{}", ports.zookeeper))
                .arg(format!("--etcd-listen=127.0.0.1:{}", ports.etcd))
                .arg(format!("--admin-listen=127.0.0.1:{}", ports.admin)),
            log.to_path_buf(),
        )
    }

    /// Waits until it listens and says that it is ready.
    pub fn wait_ready(&mut self) -> Result<()> {
        let file = self.ports_file.clone();
        self.ports = until(START, "the gateway listens", || {
            self.server.check_alive()?;
            let text = fs::read_to_string(&file).context("no ports file yet")?;
            let value: Value = serde_json::from_str(&text)?;
            let port = |name: &str| {
                value[name]
                    .as_u64()
                    .and_then(|port| u16::try_from(port).ok())
                    .ok_or_else(|| anyhow!("no port {name} in {text}"))
            };
            Ok(Ports {
                zookeeper: port("zookeeper")?,
                etcd: port("etcd")?,
                admin: port("admin")?,
            })
        })?;
        let admin = self.ports.admin;
        until(START, "the gateway is ready", || {
            self.server.check_alive()?;
            let (status, body) = http(admin, "GET", "/readyz", "")?;
            ensure!(status == 200, "{status} {body}");
            Ok(())
        })
    }

    /// Where clients connect.
    pub fn target(&self) -> Target {
        Target {
            zookeeper: format!("127.0.0.1:{}", self.ports.zookeeper),
            etcd: format!("127.0.0.1:{}", self.ports.etcd),
        }
    }

    /// Port of the admin API.
    pub fn admin_port(&self) -> u16 {
        self.ports.admin
    }

    /// Ports of both protocols and of the admin API, by name.
    pub fn listeners(&self) -> [(&'static str, u16); 3] {
        [
            ("zookeeper", self.ports.zookeeper),
            ("etcd", self.ports.etcd),
            ("admin", self.ports.admin),
        ]
    }

    /// Runs one of the operator's commands against this gateway.
    pub fn causeway(&self, args: &[&str]) -> Result<String> {
        crate::clients::output(
            Command::new(binary()?)
                .args(args)
                .args(["--admin", &format!("http://127.0.0.1:{}", self.ports.admin)]),
        )
    }

    /// Like [`Gateway::causeway`], with `--json`.
    pub fn causeway_json(&self, args: &[&str]) -> Result<Value> {
        let text = self.causeway(&[args, &["--json"]].concat())?;
        serde_json::from_str(&text).with_context(|| format!("{args:?} printed {text}"))
    }

    /// The server process.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// SIGTERM, and waits for the drained end.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.server.terminate(limit)
    }

    /// Starts it again on the same ports and data folder; kills it first when it still runs.
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        self.server = Self::spawn(&self.command, self.ports, &self.ports_file, &self.log)?;
        self.wait_ready()
    }
}

/// The binary under test: `CAUSEWAY_BIN`, else the one beside the test's own target folder.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("CAUSEWAY_BIN") {
        return Ok(path.into());
    }
    // target/debug/deps/it-… -> target/debug/causeway; target/debug/causeway-demo -> the same.
    let own = std::env::current_exe()?;
    for folder in own.ancestors().skip(1).take(2) {
        let path = folder.join("causeway");
        if path.is_file() {
            return Ok(path);
        }
    }
    bail!(
        "no causeway binary beside {}: build it with `cargo build`",
        own.display()
    )
}

/// One HTTP/1.1 request on loopback, with a bound on every wait: status and body.
pub fn http(port: u16, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
    let mut stream = connect(port)?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    let reply = String::from_utf8_lossy(&reply).into_owned();
    let status = reply
        .split_whitespace()
        .nth(1)
        .and_then(|word| word.parse().ok())
        .ok_or_else(|| anyhow!("no HTTP answer: {reply:?}"))?;
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    let chunked = head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked");
    Ok((
        status,
        if chunked {
            unchunk(body)
        } else {
            body.to_string()
        },
    ))
}

/// A TCP connection on loopback whose reads and writes give up after 5 s.
pub fn connect(port: u16) -> Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    Ok(stream)
}

/// The answer to one of ZooKeeper's four-letter words.
pub fn four_letters(port: u16, word: &str) -> Result<String> {
    let mut stream = connect(port)?;
    stream.write_all(word.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn unchunk(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size.trim(), 16) else {
            break;
        };
        let (Some(chunk), Some(next)) = (rest.get(..size), rest.get(size + 2..)) else {
            break;
        };
        if size == 0 {
            break;
        }
        text.push_str(chunk);
        body = next;
    }
    text
}
