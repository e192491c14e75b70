//! Real servers for tests: started on free ports with folders of their own, killed when dropped,
//! and killed as well when the test process dies.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tempfile::TempDir;

/// A real etcd of one member.
///
/// `ETCD` names another binary than the one on the path.
#[derive(Debug)]
pub struct RealEtcd {
    dir: TempDir,
    port: u16,
    args: Vec<OsString>,
    process: Option<Process>,
}

impl RealEtcd {
    /// Starts one with short elections, so that a lease may be as short as a second.
    ///
    /// # Panics
    /// When there is no etcd or it does not come up; the message says what to do.
    pub async fn start() -> Self {
        Self::start_with(&["--heartbeat-interval=50", "--election-timeout=500"]).await
    }

    /// Starts one with flags of the caller's.
    ///
    /// # Panics
    /// As [`RealEtcd::start`].
    pub async fn start_with(flags: &[&str]) -> Self {
        let dir = temporary_folder();
        let (port, peer_port) = (free_port(), free_port());
        let client = format!("http://127.0.0.1:{port}");
        let peer = format!("http://127.0.0.1:{peer_port}");
        let mut args: Vec<OsString> = [
            "--name=test".to_owned(),
            format!("--data-dir={}", dir.path().join("data").display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=test={peer}"),
        ]
        .into_iter()
        .map(OsString::from)
        .collect();
        args.extend(flags.iter().map(OsString::from));
        let mut server = Self {
            dir,
            port,
            args,
            process: None,
        };
        server.restart().await;
        server
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Kills it with signal 9, if it runs.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again on the same port and data, after killing it if it runs.
    ///
    /// # Panics
    /// As [`RealEtcd::start`].
    pub async fn restart(&mut self) {
        self.kill();
        let binary = std::env::var_os("ETCD").unwrap_or_else(|| "etcd".into());
        let log = self.log();
        let mut process = Process::start(&binary, &self.args, &log, "Debian's package etcd-server");
        process
            .wait_until(&log, "etcd", || {
                http_get(self.port, "/health").is_some_and(|body| body.contains("\"true\""))
            })
            .await;
        self.process = Some(process);
    }

    /// Stops it from running, as a stalled machine would: connections stay open and nothing
    /// answers.
    pub fn pause(&self) {
        if let Some(process) = &self.process {
            process.stop();
        }
    }

    /// Lets it run again.
    pub fn resume(&self) {
        if let Some(process) = &self.process {
            process.signal("CONT");
        }
    }

    /// What it logged so far.
    pub fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }
}

/// A real ZooKeeper of one server, with ticks of half a second (sessions from one second up), no
/// limit of connections per address, and all four-letter words allowed.
///
/// `ZOOKEEPER_CLASSPATH` names other jars than Debian's.
#[derive(Debug)]
pub struct RealZookeeper {
    dir: TempDir,
    port: u16,
    process: Option<Process>,
}

impl RealZookeeper {
    /// Starts one.
    ///
    /// # Panics
    /// When there is no Java or no ZooKeeper, or it does not come up; the message says what to
    /// do.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts one with further lines of configuration, which win over the usual ones.
    ///
    /// # Panics
    /// As [`RealZookeeper::start`].
    pub async fn start_with(lines: &[(&str, &str)]) -> Self {
        let dir = temporary_folder();
        let port = free_port();
        let data = dir.path().join("data").display().to_string();
        let port_line = port.to_string();
        let mut configuration: Vec<(&str, &str)> = vec![
            ("tickTime", "500"),
            ("dataDir", &data),
            ("clientPort", &port_line),
            ("clientPortAddress", "127.0.0.1"),
            ("maxClientCnxns", "0"),
            ("admin.enableServer", "false"),
            ("4lw.commands.whitelist", "*"),
        ];
        for (name, value) in lines {
            configuration.retain(|(known, _)| known != name);
            configuration.push((name, value));
        }
        let text: String = configuration
            .iter()
            .map(|(name, value)| format!("{name}={value}\n"))
            .collect();
        write(&dir.path().join("zoo.cfg"), &text);
        write(
            &dir.path().join("log4j.properties"),
            "log4j.rootLogger=INFO, out\n\
             log4j.appender.out=org.apache.log4j.ConsoleAppender\n\
             log4j.appender.out.layout=org.apache.log4j.PatternLayout\n\
             log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %-5p %c{1} %m%n\n",
        );
        let mut server = Self {
            dir,
            port,
            process: None,
        };
        server.restart().await;
        server
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Kills it with signal 9, if it runs.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again on the same port and data, after killing it if it runs.
    ///
    /// # Panics
    /// As [`RealZookeeper::start`].
    pub async fn restart(&mut self) {
        self.kill();
        let folder = self.dir.path();
        let jars =
            std::env::var_os("ZOOKEEPER_CLASSPATH").unwrap_or_else(|| "/usr/share/java/*".into());
        if jars == "/usr/share/java/*" && !Path::new("/usr/share/java/zookeeper.jar").exists() {
            panic!(
                "this test needs a real ZooKeeper: install Debian's packages zookeeper and \
                 default-jre-headless, or name the jars in ZOOKEEPER_CLASSPATH"
            );
        }
        let mut class_path = jars;
        class_path.push(":");
        class_path.push(folder);
        let args: Vec<OsString> = vec![
            "-Xmx256m".into(),
            "-XX:+UseSerialGC".into(),
            "-XX:TieredStopAtLevel=1".into(),
            "-cp".into(),
            class_path,
            "org.apache.zookeeper.server.quorum.QuorumPeerMain".into(),
            folder.join("zoo.cfg").into(),
        ];
        let log = self.log();
        let hint = "Debian's package default-jre-headless";
        let mut process = Process::start(&"java".into(), &args, &log, hint);
        process
            .wait_until(&log, "ZooKeeper", || {
                four_letter_word(self.port, "srvr").is_some_and(|text| text.contains("Mode:"))
            })
            .await;
        self.process = Some(process);
    }

    /// The answer to a four-letter word such as `dump` or `wchc`; `None` when nothing answers.
    pub fn four_letter_word(&self, word: &str) -> Option<String> {
        four_letter_word(self.port, word)
    }

    /// Stops it from running, as a stalled machine would: connections stay open and nothing
    /// answers.
    pub fn pause(&self) {
        if let Some(process) = &self.process {
            process.stop();
        }
    }

    /// Lets it run again.
    pub fn resume(&self) {
        if let Some(process) = &self.process {
            process.signal("CONT");
        }
    }

    /// What it logged so far.
    pub fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }
}

/// A port of 127.0.0.1 that nothing listens on, outside the range from which the system takes
/// the ports of outgoing connections, so that it stays free until a server takes it.
///
/// # Panics
/// When a thousand ports in a row are taken.
pub fn free_port() -> u16 {
    // Test binaries run side by side: each starts somewhere else and steps over what is taken.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 22_000;
    let start = u16::try_from((std::process::id().wrapping_mul(7919)) % u32::from(COUNT));
    let start = start.unwrap_or(0);
    for _ in 0..1000 {
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let port = FIRST + (start + step) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!(
        "no free port between {FIRST} and {} was found",
        FIRST + COUNT
    );
}

/// A server process. A shell stands between: it waits for its standard input to end, which it
/// does when this process drops it or dies, and then kills the server with signal 9.
#[derive(Debug)]
struct Process {
    shell: Child,
    server: String,
}

impl Process {
    fn start(program: &OsString, args: &[OsString], log: &Path, package: &str) -> Self {
        let shell = Command::new("sh")
            .arg("-c")
            .arg(
                "command -v \"$2\" >/dev/null || { echo missing; exit 1; }\n\
                 log=$1; shift\n\
                 \"$@\" >>\"$log\" 2>&1 </dev/null &\n\
                 echo $!\n\
                 read -r line\n\
                 kill -9 $! 2>/dev/null\n\
                 wait",
            )
            .arg("sh")
            .arg(log)
            .arg(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut shell = match shell {
            Ok(shell) => shell,
            Err(error) => panic!("cannot start sh: {error}"),
        };
        let mut server = String::new();
        if let Some(stdout) = shell.stdout.as_mut() {
            let _ = BufReader::new(stdout).read_line(&mut server);
        }
        let server = server.trim().to_owned();
        if server.is_empty() || server == "missing" {
            panic!(
                "this test needs {}, which is not on the path: install {package}",
                program.display()
            );
        }
        Self { shell, server }
    }

    async fn wait_until(&mut self, log: &Path, name: &str, ready: impl Fn() -> bool) {
        for _ in 0..600 {
            if ready() {
                return;
            }
            if !Path::new("/proc").join(&self.server).join("exe").exists() && !self.signal("0") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let text = std::fs::read_to_string(log).unwrap_or_default();
        panic!(
            "{name} did not come up; the end of its log:\n{}",
            tail(&text, 4000)
        );
    }

    /// Returns when no thread of the server runs any more: the signal alone is only on its way.
    fn stop(&self) {
        self.signal("STOP");
        let tasks = Path::new("/proc").join(&self.server).join("task");
        for _ in 0..100_000 {
            let threads = std::fs::read_dir(&tasks).into_iter().flatten().flatten();
            let stopped = threads
                .filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok())
                // The state follows the name in parentheses.
                .all(|stat| {
                    stat.rsplit(") ")
                        .next()
                        .is_some_and(|rest| rest.starts_with('T'))
                });
            if stopped {
                return;
            }
            std::thread::yield_now();
        }
    }

    fn signal(&self, signal: &str) -> bool {
        Command::new("kill")
            .arg(format!("-{signal}"))
            .arg(&self.server)
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal("9");
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

fn temporary_folder() -> TempDir {
    match tempfile::Builder::new().prefix("causeway-test-").tempdir() {
        Ok(dir) => dir,
        Err(error) => panic!("cannot make a temporary folder: {error}"),
    }
}

fn write(path: &Path, text: &str) {
    if let Err(error) = std::fs::write(path, text) {
        panic!("cannot write {}: {error}", path.display());
    }
}

fn tail(text: &str, length: usize) -> &str {
    let mut start = text.len().saturating_sub(length);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text.get(start..).unwrap_or(text)
}

fn http_get(port: u16, path: &str) -> Option<String> {
    exchange(
        port,
        &format!("GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"),
    )
}

fn four_letter_word(port: u16, word: &str) -> Option<String> {
    exchange(port, word)
}

fn exchange(port: u16, request: &str) -> Option<String> {
    use std::io::{Read, Write};
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let timeout = Duration::from_millis(500);
    let mut stream = TcpStream::connect_timeout(&address, timeout).ok()?;
    stream.set_read_timeout(Some(timeout)).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    // A server may close hard after its answer: what came before counts.
    let _ = stream.read_to_end(&mut answer);
    Some(String::from_utf8_lossy(&answer).into_owned())
}
