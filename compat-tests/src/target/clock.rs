//! A wall clock that can be stepped, by the library of the package `faketime`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::{Context as _, Result};

/// The clock of one server: a file with its distance from the real one.
#[derive(Debug)]
pub(super) struct Clock {
    library: PathBuf,
    file: PathBuf,
    offset: AtomicI64,
}

impl Clock {
    /// A clock that is right; `file` is where its distance from the real one is written.
    pub(super) fn new(file: &Path) -> Result<Clock> {
        let clock = Clock {
            library: library()?,
            file: file.to_path_buf(),
            offset: AtomicI64::new(0),
        };
        clock.write()?;
        Ok(clock)
    }

    /// Moves it by `seconds`; the next look at it shows that.
    pub(super) fn step(&self, seconds: i64) -> Result<()> {
        self.offset.fetch_add(seconds, Ordering::Relaxed);
        self.write()
    }

    /// What makes a program use it.
    pub(super) fn environment(&self) -> Vec<(OsString, OsString)> {
        [
            ("LD_PRELOAD", self.library.clone().into_os_string()),
            (
                "FAKETIME_TIMESTAMP_FILE",
                self.file.clone().into_os_string(),
            ),
            ("FAKETIME_NO_CACHE", "1".into()),
            // A step of the wall clock leaves the monotonic one alone, as settimeofday does.
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            // Its mend for waits on the monotonic clock makes each wait of a JVM a long one: 15 s until it serves.
            ("FAKETIME_FORCE_MONOTONIC_FIX", "0".into()),
        ]
        .map(|(name, value)| (name.into(), value))
        .into()
    }

    fn write(&self) -> Result<()> {
        let offset = self.offset.load(Ordering::Relaxed);
        // In one piece: the library reads the file at every look at the clock.
        let fresh = self.file.with_extension("fresh");
        fs::write(&fresh, format!("{offset:+}\n"))?;
        fs::rename(&fresh, &self.file).context("clock file")
    }
}

/// Debian's place for it: `/usr/lib/<architecture>/faketime/`.
fn library() -> Result<PathBuf> {
    let folders = fs::read_dir("/usr/lib").context("/usr/lib")?;
    folders
        .filter_map(|folder| Some(folder.ok()?.path().join("faketime/libfaketimeMT.so.1")))
        .find(|path| path.is_file())
        .context("a clock to step needs libfaketime: apt-get install faketime")
}
