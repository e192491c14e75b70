//! A disk so small that it can be filled.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// The file that takes the room.
pub(super) const FILLER: &str = "bench-filler";

/// A tmpfs on a folder. Unmounted when dropped, so whatever writes there has to be dropped first; should this
/// process be killed instead, the mount stays until the next boot, and its size bounds what that costs.
#[derive(Debug)]
pub(super) struct SmallDisk {
    dir: PathBuf,
    owner: u32,
}

impl SmallDisk {
    /// Mounts one of `megabytes` on `dir`.
    pub(super) fn mount(dir: &Path, megabytes: u32) -> Result<SmallDisk> {
        let owner = fs::metadata(dir)?.uid();
        let options = format!("size={megabytes}m,mode=700,uid={owner}");
        let got = as_root(owner, "mount")
            .args(["-t", "tmpfs", "-o", &options, "causeway-bench"])
            .arg(dir)
            .output()
            .context("mount")?;
        ensure!(
            got.status.success(),
            "a small disk is a tmpfs, and mounting one needs root, or sudo without a password: {}",
            String::from_utf8_lossy(&got.stderr).trim()
        );
        Ok(SmallDisk {
            dir: dir.to_path_buf(),
            owner,
        })
    }

    /// Takes every byte that is left.
    pub(super) fn fill(&self) -> Result<()> {
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(self.filler())?;
        // Ever smaller pieces: a large one fails while there is still room for a server's record.
        for size in [1 << 20, 4096, 1] {
            let piece = vec![0; size];
            loop {
                match file.write_all(&piece) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(error).context("fill the disk"),
                }
            }
        }
        Ok(())
    }

    /// Gives back what [`SmallDisk::fill`] took.
    pub(super) fn free(&self) -> Result<()> {
        fs::remove_file(self.filler()).context("the disk was not filled")
    }

    fn filler(&self) -> PathBuf {
        self.dir.join(FILLER)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a log file that is still open must not keep the mount in every later listing.
        let _ = as_root(self.owner, "umount")
            .arg("-l")
            .arg(&self.dir)
            .output();
    }
}

/// The program as root; `user` is who runs this process.
fn as_root(user: u32, program: &str) -> Command {
    if user == 0 {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    command.args(["-n", program]);
    command
}
