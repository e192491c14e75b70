//! Real ZooKeeper servers: one alone, or several as an ensemble.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::net::four_letters;
use super::node::{Node, Place};
use super::{Options, START};
use crate::artefacts::zookeeper_jars;
use crate::clients::Kazoo;
use crate::files::names;
use crate::process::{Server, Work, free_port};
use crate::wait::until;

/// Debian's jar names its dependencies in its manifest.
pub const ZOOKEEPER_CLASSPATH: &str = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar";

/// Where a ZooKeeper comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZooKeeperRelease {
    /// 3.8, as Debian packages it.
    V3_8,
    /// From Maven, as `compat-tests/servers/zookeeper/pom.xml` names it: `3.4`, `3.9`.
    Maven(&'static str),
}

impl ZooKeeperRelease {
    /// The release that Causeway's port is held against.
    pub const V3_9: ZooKeeperRelease = ZooKeeperRelease::Maven("3.9");

    /// Releases that only stand behind the gateway, from before create2 on.
    pub const OLD: [&'static str; 4] = ["3.4", "3.5", "3.6", "3.7"];

    /// Its class path, with a logger that prints warnings; an error says what makes the missing files.
    pub fn classpath(self) -> Result<String> {
        match self {
            ZooKeeperRelease::V3_8 => {
                let jar = "/usr/share/java/zookeeper.jar";
                ensure!(
                    Path::new(jar).is_file(),
                    "{jar} is missing: apt-get install zookeeper"
                );
                Ok(format!("{jar}:/usr/share/java/slf4j-simple.jar"))
            }
            ZooKeeperRelease::Maven(release) => {
                let jars = zookeeper_jars(release);
                let server = format!("zookeeper-{release}");
                let fetched = names(&jars, "jar").unwrap_or_default();
                ensure!(
                    fetched.iter().any(|jar| jar.starts_with(&server)),
                    "ZooKeeper {release} is not in {}: run target/debug/causeway-compat prepare",
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
    /// Whether each write is forced to disk.
    forced: bool,
}

/// One thread of garbage collection, and only the quick compiler, so that it starts fast.
const QUICK_START: &[&str] = &["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"];
/// For measurements: the compiler and collector that Java chooses, and the heap of ZooKeeper's own start script.
const PRODUCTION: &[&str] = &["-Xmx1000m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"];
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
            forced: false,
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
            forced: false,
        })
    }

    fn production() -> Result<Profile> {
        Ok(Profile {
            classpath: ZooKeeperRelease::V3_9.classpath()?,
            java: PRODUCTION.iter().map(ToString::to_string).collect(),
            tick_ms: 2000,
            forced: true,
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
        Self::start_alone(work, name, Profile::own_tests(QUICK_START))
    }

    /// Starts 3.9 as a production server is, for measurements.
    pub fn start_for_measurement(work: &Work, name: &str) -> Result<ZooKeeper> {
        Self::start_alone(work, name, Profile::production()?)
    }

    /// Like [`ZooKeeper::start`], of another release.
    pub fn start_release(work: &Work, name: &str, release: ZooKeeperRelease) -> Result<ZooKeeper> {
        let one = Self::start_ensemble(work, name, release, 1, &Options::default())?;
        one.into_iter().next().context("one server")
    }

    fn start_alone(work: &Work, name: &str, profile: Profile) -> Result<ZooKeeper> {
        let place = Place::plain(work.path(name).join("data"))?;
        let mut zookeeper = Self::start_in(work, name, profile, place, free_port()?, None)?;
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
             4lw.commands.whitelist=*\nforceSync={}\n",
            profile.tick_ms,
            place.data().display(),
            if profile.forced { "yes" } else { "no" }
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

    fn server(&mut self) -> &mut Server {
        &mut self.server
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

    fn place(&self) -> Result<&Place> {
        Ok(&self.place)
    }
}
