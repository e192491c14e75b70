//! The gateway's binary as a server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::Value;

use super::net::http;
use super::node::{Node, Place};
use super::{START, Target};
use crate::artefacts::beside;
use crate::process::{Server, Work};
use crate::settings::Settings;
use crate::wait::until;

/// The gateway's binary as a server.
#[derive(Debug)]
pub struct Gateway {
    server: Server,
    command: Vec<String>,
    ports_file: PathBuf,
    log: PathBuf,
    ports: Ports,
    // After the server: dropped in this order, and the folder may be a mount.
    place: Place,
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
        let place = Place::plain(work.path(&format!("{name}-data")))?;
        Self::start_in(work, name, settings, place)
    }

    /// Like [`Gateway::start_unready`], with its data in `place`.
    pub(super) fn start_in(
        work: &Work,
        name: &str,
        settings: &Settings,
        place: Place,
    ) -> Result<Gateway> {
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
        let data = place.data().display().to_string();
        option("--data-dir", (!settings.in_memory).then_some(data));
        let log = work.path(&format!("{name}.log"));
        let server = Self::spawn(&command, Ports::default(), &ports_file, &log, &place)?;
        Ok(Gateway {
            server,
            command,
            ports_file,
            log,
            ports: Ports::default(),
            place,
        })
    }

    fn spawn(
        command: &[String],
        ports: Ports,
        ports_file: &Path,
        log: &Path,
        place: &Place,
    ) -> Result<Server> {
        let _ = fs::remove_file(ports_file);
        Server::spawn(
            "gateway",
            Command::new(binary()?)
                .envs(place.environment())
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

    /// What the binary says of itself.
    pub fn version(&self) -> Result<String> {
        version()
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
        self.launch()?;
        self.wait_ready()
    }
}

impl Node for Gateway {
    fn label(&self) -> String {
        "the gateway".to_string()
    }

    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    fn launch(&mut self) -> Result<()> {
        self.server = Self::spawn(
            &self.command,
            self.ports,
            &self.ports_file,
            &self.log,
            &self.place,
        )?;
        Ok(())
    }

    fn ready(&mut self) -> Result<()> {
        self.wait_ready()
    }

    fn place(&self) -> Result<&Place> {
        Ok(&self.place)
    }
}

/// What the binary says of itself.
pub fn version() -> Result<String> {
    Ok(
        crate::clients::output(Command::new(binary()?).arg("--version"))?
            .trim()
            .to_string(),
    )
}

/// The binary under test: `CAUSEWAY_BIN`, else the one beside the test's own target folder.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("CAUSEWAY_BIN") {
        return Ok(path.into());
    }
    beside("causeway")
}
