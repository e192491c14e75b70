//! Real ZooKeeper servers: one alone, or several as an ensemble.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::net::four_letters;
use super::node::{Node, Place, freeze};
use super::{Options, START, artefacts};
use crate::clients::Kazoo;
use crate::process::{Server, Work, free_port};
use crate::wait::until;

/// Debian's jar names its dependencies in its manifest.
pub const ZOOKEEPER_CLASSPATH: &str = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar";

/// Where a ZooKeeper comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZooKeeperRelease {
    /// 3.8, as Debian packages it.
    V3_8,
    /// 3.9, from Maven; see `compat-tests/servers/zookeeper/pom.xml`.
    V3_9,
}

impl ZooKeeperRelease {
    /// Its class path, with a logger that prints warnings; an error says what makes the missing files.
    fn classpath(self) -> Result<String> {
        match self {
            ZooKeeperRelease::V3_8 => {
                let jar = "/usr/share/java/zookeeper.jar";
                ensure!(
                    Path::new(jar).is_file(),
                    "{jar} is missing: apt-get install zookeeper"
                );
                Ok(format!("{jar}:/usr/share/java/slf4j-simple.jar"))
            }
            ZooKeeperRelease::V3_9 => {
                let jars = artefacts().join("zookeeper-3.9");
                let server = |entry: std::io::Result<fs::DirEntry>| {
                    let name = entry.map(|entry| entry.file_name()).unwrap_or_default();
                    name.to_string_lossy().starts_with("zookeeper-3.9")
                };
                ensure!(
                    fs::read_dir(&jars).is_ok_and(|mut jars| jars.any(server)),
                    "ZooKeeper 3.9 is not in {}: run target/debug/causeway-compat prepare",
                    jars.display()
                );
                Ok(format!("{}/*", jars.display()))
            }
        }
    }
}

/// What a server of the bench is started with; the tests of the gateway itself have settings of their own.
#[derive(Debug, Clone)]
struct Profile {
    classpath: String,
    java: Vec<String>,
    tick_ms: u32,
}

/// One thread of garbage collection, and only the quick compiler, so that it starts fast.
const QUICK_START: &[&str] = &["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"];
/// For measurements: compiled as well as Java can.
const FULL_SPEED: &[&str] = &["-Xmx512m"];
/// Java properties that have no line in a configuration file, or that 3.8 and 3.9 spell differently there.
const BENCH_PROPERTIES: &[&str] = &[
    "-Dzookeeper.extendedTypesEnabled=true",
    "-Dznode.container.checkIntervalMs=1000",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
];
/// Log files begin with this size; the default of 64 MB is the size of a small disk.
const SMALL_LOG_FILES: &str = "-Dzookeeper.preAllocSize=256";
const DISK_MB: u32 = 32;

impl Profile {
    fn own_tests(java: &[&str]) -> Profile {
        Profile {
            classpath: ZOOKEEPER_CLASSPATH.to_string(),
            java: java.iter().map(ToString::to_string).collect(),
            // Grants sessions of 2 s to 20 s and expires them within a second of their time.
            tick_ms: 1000,
        }
    }

    fn bench(release: ZooKeeperRelease, small_disk: bool) -> Result<Profile> {
        let mut java = [QUICK_START, BENCH_PROPERTIES].concat();
        if small_disk {
            java.push(SMALL_LOG_FILES);
        }
        Ok(Profile {
            classpath: release.classpath()?,
            java: java.iter().map(ToString::to_string).collect(),
            tick_ms: 2000,
        })
    }
}

/// One real ZooKeeper server.
#[derive(Debug)]
pub struct ZooKeeper {
    server: Server,
    name: String,
    dir: PathBuf,
    port: u16,
    profile: Profile,
    /// Its number in an ensemble.
    id: Option<usize>,
    // After the server: dropped in this order, and the folder may be a mount.
    place: Place,
}

impl ZooKeeper {
    /// Starts Debian's on a free port with an empty tree, and waits until it answers.
    pub fn start(work: &Work, name: &str) -> Result<ZooKeeper> {
        Self::start_own(work, name, QUICK_START)
    }

    /// Like [`ZooKeeper::start`], for measurements.
    pub fn start_at_full_speed(work: &Work, name: &str) -> Result<ZooKeeper> {
        Self::start_own(work, name, FULL_SPEED)
    }

    fn start_own(work: &Work, name: &str, java: &[&str]) -> Result<ZooKeeper> {
        let place = Place::plain(work.path(name).join("data"))?;
        let mut zookeeper = Self::start_in(
            work,
            name,
            Profile::own_tests(java),
            place,
            free_port()?,
            None,
        )?;
        zookeeper.ready()?;
        Ok(zookeeper)
    }

    /// Starts `size` servers of a release that serve together; one serves alone.
    pub(super) fn start_ensemble(
        work: &Work,
        name: &str,
        release: ZooKeeperRelease,
        size: usize,
        options: &Options,
    ) -> Result<Vec<ZooKeeper>> {
        let profile = Profile::bench(release, options.small_disk)?;
        let mut ports = Vec::new();
        for _ in 0..size {
            ports.push([free_port()?, free_port()?, free_port()?]);
        }
        let mut servers = String::new();
        for (index, [_, peer, election]) in ports.iter().enumerate() {
            let _ = writeln!(servers, "server.{}=127.0.0.1:{peer}:{election}", index + 1);
        }
        let mut members = Vec::new();
        for (index, [client, ..]) in ports.into_iter().enumerate() {
            let ensemble = (size > 1).then_some((index + 1, servers.as_str()));
            let own_name = match ensemble {
                Some((id, _)) => format!("{name}-{id}"),
                None => name.to_string(),
            };
            let place = Place::new(work.path(&own_name).join("data"), options, DISK_MB)?;
            members.push(Self::start_in(
                work,
                &own_name,
                profile.clone(),
                place,
                client,
                ensemble,
            )?);
        }
        for member in &mut members {
            member.ready()?;
        }
        Ok(members)
    }

    fn start_in(
        work: &Work,
        name: &str,
        profile: Profile,
        place: Place,
        port: u16,
        ensemble: Option<(usize, &str)>,
    ) -> Result<ZooKeeper> {
        let dir = work.path(name);
        // maxClientCnxns=0: a gateway with many clients is one address to the ensemble.
        let mut config = format!(
            "tickTime={}\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n\
             4lw.commands.whitelist=*\nforceSync=no\n",
            profile.tick_ms,
            place.data().display()
        );
        if let Some((_, servers)) = ensemble {
            let _ = write!(config, "initLimit=10\nsyncLimit=5\n{servers}");
        }
        fs::write(dir.join("zoo.cfg"), config)?;
        let id = ensemble.map(|(id, _)| id);
        Ok(ZooKeeper {
            server: Self::spawn(name, &dir, &profile, id, &place)?,
            name: name.to_string(),
            dir,
            port,
            profile,
            id,
            place,
        })
    }

    fn spawn(
        name: &str,
        dir: &Path,
        profile: &Profile,
        id: Option<usize>,
        place: &Place,
    ) -> Result<Server> {
        if let Some(id) = id {
            // An emptied member is still the same member.
            fs::write(place.data().join("myid"), id.to_string()).context("myid")?;
        }
        Server::spawn(
            name,
            Command::new("java")
                .envs(place.environment())
                .args(&profile.java)
                .args([
                    "-Dzookeeper.admin.enableServer=false",
                    "-cp",
                    &profile.classpath,
                ])
                .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
                .arg(dir.join("zoo.cfg"))
                .current_dir(dir),
            dir.with_extension("log"),
        )
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

    /// The release, as the server says it.
    pub fn version(&self) -> Result<String> {
        let text = self.four_letters("srvr")?;
        // "Zookeeper version: 3.9.5-293c895a, built on 2026-02-11 20:18 UTC"
        let version = text
            .lines()
            .find_map(|line| line.strip_prefix("Zookeeper version: "))
            .and_then(|rest| rest.split(['-', ',']).next())
            .with_context(|| format!("srvr says {text:?}"))?;
        Ok(version.to_string())
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
        self.launch()?;
        self.ready()
    }

    /// Starts it again on the same port with an empty tree, as after a botched restore.
    pub fn wipe(&mut self) -> Result<()> {
        self.kill();
        self.place.empty()?;
        self.restart()
    }
}

impl Node for ZooKeeper {
    fn label(&self) -> String {
        self.name.clone()
    }

    fn alive(&mut self) -> bool {
        self.server.check_alive().is_ok()
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    fn launch(&mut self) -> Result<()> {
        self.server = Self::spawn(&self.name, &self.dir, &self.profile, self.id, &self.place)?;
        Ok(())
    }

    fn ready(&mut self) -> Result<()> {
        let port = self.port;
        until(START, &format!("{} serves", self.name), || {
            self.server.check_alive()?;
            // "ruok" is answered even before a quorum is found.
            let answer = four_letters(port, "srvr")?;
            ensure!(answer.contains("\nMode: "), "it says {answer:?}");
            Ok(())
        })
    }

    fn freeze(&mut self, frozen: bool) -> Result<()> {
        freeze(&self.server, frozen)
    }

    fn place(&self) -> Result<&Place> {
        Ok(&self.place)
    }
}
