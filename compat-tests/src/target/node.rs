//! One server process of a target, as the faults see it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};

use super::Options;
use super::clock::Clock;
use super::disk::{FILLER, SmallDisk};
use crate::process::Server;
use crate::wait::until;

/// A server that can be killed and started again on the same ports.
pub(super) trait Node: std::fmt::Debug + Send {
    /// What messages call it.
    fn label(&self) -> String;
    /// Its process.
    fn server(&mut self) -> &mut Server;
    /// Whether its process lives, hung or not.
    fn alive(&mut self) -> bool {
        self.server().check_alive().is_ok()
    }
    /// `kill -9`; harmless when it is down.
    fn kill(&mut self) {
        self.server().kill();
    }
    /// Starts the process on its ports and data and waits for nothing.
    fn launch(&mut self) -> Result<()>;
    /// Waits until it serves clients.
    fn ready(&mut self) -> Result<()>;
    /// SIGSTOP or SIGCONT, until every thread of the process obeys: after the signal is sent, a busy machine lets
    /// threads run on long enough to answer a client.
    fn freeze(&mut self, frozen: bool) -> Result<()> {
        freeze(self.server(), frozen)
    }
    /// Where its data lies; an error says why it has none.
    fn place(&self) -> Result<&Place>;
    /// Fails when it would not come back from an empty folder, alone or with all other members emptied too, and
    /// says why.
    fn may_be_emptied(&self, _alone: bool) -> Result<()> {
        self.place().map(|_| ())
    }
}

fn freeze(server: &Server, frozen: bool) -> Result<()> {
    server.freeze(frozen);
    let tasks = PathBuf::from(format!("/proc/{}/task", server.pid()));
    until(Duration::from_secs(10), "the signal reaches it", || {
        for task in fs::read_dir(&tasks)? {
            // "42 (name of it) T 1 …"
            let stat = fs::read_to_string(task?.path().join("stat"))?;
            let state = stat.rsplit(") ").next().unwrap_or_default();
            ensure!(state.starts_with('T') == frozen, "a thread is {state:.1}");
        }
        Ok(())
    })
}

/// The data folder of a server, with the disk under it and the clock beside it if the bench made them.
#[derive(Debug)]
pub(super) struct Place {
    data: PathBuf,
    disk: Option<SmallDisk>,
    clock: Result<Clock, &'static str>,
}

const NO_CLOCK: &str = "its clock can be stepped only when it was started for it (Options::clock)";

impl Place {
    /// Makes the folder, on a disk of `disk_mb` when the options ask for a small one.
    pub(super) fn new(data: PathBuf, options: &Options, disk_mb: u32) -> Result<Place> {
        fs::create_dir_all(&data)?;
        let disk = options
            .small_disk
            .then(|| SmallDisk::mount(&data, disk_mb))
            .transpose()?;
        let clock = if options.clock {
            Ok(Clock::new(&data.with_extension("clock"))?)
        } else {
            Err(NO_CLOCK)
        };
        Ok(Place { data, disk, clock })
    }

    /// A folder on the disk that is there, with the clock that is there.
    pub(super) fn plain(data: PathBuf) -> Result<Place> {
        Place::new(data, &Options::default(), 0)
    }

    /// Says that the server cannot be given another clock.
    pub(super) fn without_clock(mut self, reason: &'static str) -> Place {
        self.clock = Err(reason);
        self
    }

    /// The folder.
    pub(super) fn data(&self) -> &Path {
        &self.data
    }

    /// What has to be in the server's environment.
    pub(super) fn environment(&self) -> Vec<(OsString, OsString)> {
        self.clock
            .as_ref()
            .map_or_else(|_| Vec::new(), Clock::environment)
    }

    /// Removes what the server has in the folder; the folder itself may be a mount, and a full one stays full.
    pub(super) fn empty(&self) -> Result<()> {
        for entry in fs::read_dir(&self.data).context("data folder")? {
            let path = entry?.path();
            if path.ends_with(FILLER) {
                continue;
            }
            if path.is_dir() {
                fs::remove_dir_all(&path)?;
            } else {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    pub(super) fn disk(&self) -> Result<&SmallDisk> {
        self.disk.as_ref().ok_or_else(|| {
            anyhow!("its disk can be filled only when it was started on a small one (Options::small_disk)")
        })
    }

    pub(super) fn clock(&self) -> Result<&Clock> {
        self.clock.as_ref().map_err(|reason| anyhow!(*reason))
    }
}
