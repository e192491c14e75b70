//! Real etcd servers: one alone, several as a cluster, and etcd's own proxy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::net::http;
use super::node::{Node, Place};
use super::{Options, START};
use crate::artefacts::go_program;
use crate::clients::{Etcdctl, output};
use crate::process::{Server, Work, free_port};
use crate::wait::until;

/// Where an etcd comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EtcdRelease {
    /// 3.4, as Debian packages it.
    V3_4,
    /// 3.7, built from its Go module into the bench's Go program.
    V3_7,
}

impl EtcdRelease {
    /// One of its programs, to go on with its own arguments; an error says what makes a missing one.
    fn program(self, name: &str) -> Result<Command> {
        match self {
            EtcdRelease::V3_4 => {
                let mut command = Command::new(name);
                command.env("ETCDCTL_API", "3");
                Ok(command)
            }
            EtcdRelease::V3_7 => {
                let program = go_program();
                ensure!(
                    program.is_file(),
                    "etcd 3.7 is not in {}: run target/debug/causeway-compat prepare go",
                    program.display()
                );
                let mut command = Command::new(program);
                command.arg(name);
                Ok(command)
            }
        }
    }
}

impl EtcdRelease {
    /// The release's client on an endpoint.
    pub fn etcdctl(self, endpoint: &str) -> Result<Command> {
        let mut client = self.program("etcdctl")?;
        client.args(["--endpoints", endpoint, "--command-timeout", "20s"]);
        Ok(client)
    }

    /// The release's tool for database files, for `snapshot COMMAND`; before 3.5 it is the client.
    pub fn snapshots(self, command: &str) -> Result<Command> {
        let mut tool = self.program(match self {
            EtcdRelease::V3_4 => "etcdctl",
            EtcdRelease::V3_7 => "etcdutl",
        })?;
        tool.args(["snapshot", command]);
        Ok(tool)
    }
}

const GO_CLOCK: &str = "etcd is a Go program: it asks the kernel for the time without libc, so libfaketime cannot step its clock";
/// etcd sets aside two log segments of 64 MB at the start.
const DISK_MB: u32 = 192;

/// One real etcd server.
#[derive(Debug)]
pub struct Etcd {
    server: Server,
    release: EtcdRelease,
    name: String,
    log: PathBuf,
    client_port: u16,
    peer_port: u16,
    /// `name=URL` of every member.
    cluster: String,
    // After the server: dropped in this order, and the folder may be a mount.
    place: Place,
}

impl Etcd {
    /// Starts Debian's on free ports with an empty store, and waits until it answers.
    pub fn start(work: &Work, name: &str) -> Result<Etcd> {
        Self::start_release(work, name, EtcdRelease::V3_4)
    }

    /// The same for a release of one's choice.
    pub fn start_release(work: &Work, name: &str, release: EtcdRelease) -> Result<Etcd> {
        let mut cluster = Self::start_cluster(work, name, release, 1, &Options::default())?;
        cluster.pop().context("a member")
    }

    /// Starts `size` servers of a release that serve together; one serves alone.
    pub(super) fn start_cluster(
        work: &Work,
        name: &str,
        release: EtcdRelease,
        size: usize,
        options: &Options,
    ) -> Result<Vec<Etcd>> {
        ensure!(!options.clock, GO_CLOCK);
        let mut ports = Vec::new();
        for index in 0..size {
            let own_name = if size > 1 {
                format!("{name}-{}", index + 1)
            } else {
                name.to_string()
            };
            ports.push((own_name, free_port()?, free_port()?));
        }
        let cluster = ports
            .iter()
            .map(|(name, _, peer)| format!("{name}=http://127.0.0.1:{peer}"))
            .collect::<Vec<_>>()
            .join(",");
        let mut members = Vec::new();
        for (name, client_port, peer_port) in ports {
            let place = Place::new(work.path(&name).join("data"), options, DISK_MB)?
                .without_clock(GO_CLOCK);
            let ports = (client_port, peer_port);
            members.push(Self::on(
                place,
                work,
                release,
                name,
                ports,
                cluster.clone(),
            )?);
        }
        for member in &mut members {
            member.ready()?;
        }
        Ok(members)
    }

    fn on(
        place: Place,
        work: &Work,
        release: EtcdRelease,
        name: String,
        (client_port, peer_port): (u16, u16),
        cluster: String,
    ) -> Result<Etcd> {
        let log = work.path(&format!("{name}.log"));
        let server = spawn(
            release,
            &name,
            &log,
            client_port,
            peer_port,
            &cluster,
            &place,
        )?;
        Ok(Etcd {
            server,
            release,
            name,
            log,
            client_port,
            peer_port,
            cluster,
            place,
        })
    }

    /// Starts a server on what a snapshot holds, restored by the release's own tool.
    pub fn restored(
        work: &Work,
        name: &str,
        release: EtcdRelease,
        snapshot: &Path,
    ) -> Result<Etcd> {
        let place = Place::new(work.path(name).join("data"), &Options::default(), DISK_MB)?
            .without_clock(GO_CLOCK);
        let (client_port, peer_port) = (free_port()?, free_port()?);
        let peer = format!("http://127.0.0.1:{peer_port}");
        let cluster = format!("{name}={peer}");
        output(
            release
                .snapshots("restore")?
                .arg(snapshot)
                .arg("--data-dir")
                .arg(place.data().join("etcd"))
                .args(["--name", name, "--initial-cluster", &cluster])
                .args(["--initial-advertise-peer-urls", &peer]),
        )?;
        let ports = (client_port, peer_port);
        let mut etcd = Self::on(place, work, release, name.to_string(), ports, cluster)?;
        etcd.ready()?;
        Ok(etcd)
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

    /// The release, as the server says it.
    pub fn version(&self) -> Result<String> {
        let (status, body) = http(self.client_port, "GET", "/version", "")?;
        ensure!(status == 200, "{status} {body}");
        let reply: Value = serde_json::from_str(&body)?;
        Ok(reply["etcdserver"]
            .as_str()
            .context("etcdserver")?
            .to_string())
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
        self.launch()?;
        self.ready()
    }

    /// Starts it again on the same ports with an empty store, as after a botched restore.
    pub fn wipe(&mut self) -> Result<()> {
        self.kill();
        self.place.empty()?;
        self.restart()
    }
}

fn spawn(
    release: EtcdRelease,
    name: &str,
    log: &Path,
    client_port: u16,
    peer_port: u16,
    cluster: &str,
    place: &Place,
) -> Result<Server> {
    let client = format!("http://127.0.0.1:{client_port}");
    let peer = format!("http://127.0.0.1:{peer_port}");
    Server::spawn(
        name,
        release
            .program("etcd")?
            .args(["--name", name, "--log-level", "warn", "--logger", "zap"])
            .arg("--data-dir")
            .arg(place.data().join("etcd"))
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
            .args(["--initial-cluster", cluster])
            // The tests' disks are not what is under test.
            .arg("--unsafe-no-fsync"),
        log.to_path_buf(),
    )
}

/// Waits until what serves etcd's protocol on `port` says that it is well.
fn healthy(server: &mut Server, name: &str, port: u16) -> Result<()> {
    until(START, &format!("{name} serves"), || {
        server.check_alive()?;
        let (status, body) = http(port, "GET", "/health", "")?;
        ensure!(status == 200 && body.contains("true"), "{status} {body}");
        Ok(())
    })
}

impl Node for Etcd {
    fn label(&self) -> String {
        self.name.clone()
    }

    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    fn launch(&mut self) -> Result<()> {
        self.server = spawn(
            self.release,
            &self.name,
            &self.log,
            self.client_port,
            self.peer_port,
            &self.cluster,
            &self.place,
        )?;
        Ok(())
    }

    fn ready(&mut self) -> Result<()> {
        healthy(&mut self.server, &self.name, self.client_port)
    }

    fn place(&self) -> Result<&Place> {
        Ok(&self.place)
    }

    fn may_be_emptied(&self, alone: bool) -> Result<()> {
        ensure!(
            !alone,
            "a member of an etcd cluster that lost its log has to be removed and added as a new one; the cluster does \
             not take it back as it is"
        );
        Ok(())
    }
}

/// etcd's own proxy before etcd servers.
#[derive(Debug)]
pub struct GrpcProxy {
    server: Server,
    release: EtcdRelease,
    endpoints: String,
    dir: PathBuf,
    port: u16,
}

impl GrpcProxy {
    /// Starts it on a free port, and waits until it answers.
    pub fn start(
        work: &Work,
        name: &str,
        release: EtcdRelease,
        behind: &[Etcd],
    ) -> Result<GrpcProxy> {
        let endpoints = behind.iter().map(Etcd::url).collect::<Vec<_>>().join(",");
        let dir = work.path(name);
        fs::create_dir_all(&dir)?;
        let port = free_port()?;
        let mut proxy = GrpcProxy {
            server: spawn_proxy(release, &endpoints, &dir, port)?,
            release,
            endpoints,
            dir,
            port,
        };
        proxy.ready()?;
        Ok(proxy)
    }

    /// `host:port` for clients.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The proxy's process.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }
}

fn spawn_proxy(release: EtcdRelease, endpoints: &str, dir: &Path, port: u16) -> Result<Server> {
    let address = format!("127.0.0.1:{port}");
    Server::spawn(
        "grpc-proxy",
        release
            .program("etcd")?
            .args(["grpc-proxy", "start", "--endpoints", endpoints])
            .args([
                "--listen-addr",
                &address,
                "--advertise-client-url",
                &address,
            ])
            .arg("--data-dir")
            .arg(dir.join("data")),
        dir.with_extension("log"),
    )
}

impl Node for GrpcProxy {
    fn label(&self) -> String {
        "grpc-proxy".to_string()
    }

    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    fn launch(&mut self) -> Result<()> {
        self.server = spawn_proxy(self.release, &self.endpoints, &self.dir, self.port)?;
        Ok(())
    }

    fn ready(&mut self) -> Result<()> {
        healthy(&mut self.server, "grpc-proxy", self.port)
    }

    fn place(&self) -> Result<&Place> {
        bail!(
            "the proxy keeps nothing on disk and reads no clock; `legacy` before the verb means the etcd behind it"
        )
    }
}
