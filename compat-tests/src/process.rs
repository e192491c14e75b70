//! Child processes that cannot outlive the test, and the folder that a scenario works in.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};

use crate::wait::until;

/// A scenario's own folder. It is removed when all went well; otherwise it stays and its path is printed.
#[derive(Debug)]
pub struct Work {
    dir: PathBuf,
    keep: bool,
}

impl Work {
    /// Runs one scenario in a fresh folder. On an error it prints the tail of every log in the folder,
    /// keeps the folder and panics, so that the test fails with what is needed to read why.
    pub fn scenario(name: &str, body: impl FnOnce(&Work) -> Result<()>) {
        let mut work = Work::new(name).expect("a scenario needs a folder");
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&work)));
        let failure = match outcome {
            Ok(Ok(())) => return,
            Ok(Err(error)) => format!("{error:?}"),
            Err(panic) => panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
                .unwrap_or_else(|| "panic".to_string()),
        };
        work.keep = true;
        eprintln!(
            "scenario {name} failed; its folder stays: {}",
            work.dir.display()
        );
        work.print_logs();
        panic!("{name}: {failure}");
    }

    /// A fresh folder for something that is not a test.
    pub fn new(name: &str) -> Result<Work> {
        let dir = tempfile::Builder::new()
            .prefix(&format!("causeway-{name}-"))
            .tempdir()
            .context("temporary folder")?
            .keep();
        Ok(Work {
            dir,
            keep: std::env::var_os("CAUSEWAY_KEEP").is_some(),
        })
    }

    /// Does `body` in a fresh folder and says, as it does, whether it came out well; otherwise the folder stays and
    /// its path is printed.
    ///
    /// # Errors
    /// The body's own.
    pub fn judged(name: &str, body: impl FnOnce(&Work) -> Result<bool>) -> Result<bool> {
        let mut work = Work::new(name)?;
        let done = body(&work);
        if !matches!(done, Ok(true)) {
            work.leave();
        }
        done
    }

    /// Keeps the folder, and prints where it is: the logs in it say more than what failed in its sight.
    pub fn leave(&mut self) {
        self.keep = true;
        eprintln!("logs of servers and clients: {}", self.dir.display());
    }

    /// The folder itself.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A path inside the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The last lines of every log, on standard error.
    pub fn print_logs(&self) {
        let Ok(entries) = fs::read_dir(&self.dir) else {
            return;
        };
        let mut logs: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
            .collect();
        logs.sort();
        for log in logs {
            let text = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
            let lines: Vec<&str> = text.lines().collect();
            let tail = &lines[lines.len().saturating_sub(30)..];
            if !tail.is_empty() {
                eprintln!(
                    "--- {} (last {} lines)\n{}",
                    log.display(),
                    tail.len(),
                    tail.join("\n")
                );
            }
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if !self.keep {
            // A server killed a moment ago may still be writing: what is left then is a few files in the
            // system's temporary folder, not a failed test.
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// A server process in a process group of its own, with its output in a log file. Dropping it kills the group.
#[derive(Debug)]
pub struct Server {
    name: String,
    child: Child,
    log: PathBuf,
    ended: bool,
}

impl Server {
    /// Starts `command`, its output appended to `log`.
    pub fn spawn(name: &str, command: &mut Command, log: PathBuf) -> Result<Server> {
        let file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .context("log file")?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {name}: {:?}", command.get_program()))?;
        watchdog("add", child.id());
        Ok(Server {
            name: name.to_string(),
            child,
            log,
            ended: false,
        })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it wrote so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Fails when the process has ended.
    pub fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} has ended with {status}", self.name),
        }
    }

    /// `kill -9` of the whole group.
    pub fn kill(&mut self) {
        if !self.ended {
            signal_group("KILL", self.child.id());
            let _ = self.child.wait();
            watchdog("del", self.child.id());
            self.ended = true;
        }
    }

    /// SIGSTOP (`true`) or SIGCONT (`false`): a process that hangs without dying.
    pub fn freeze(&self, frozen: bool) {
        signal_group(if frozen { "STOP" } else { "CONT" }, self.child.id());
    }

    /// SIGTERM, then waits for the end.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        signal_group("TERM", self.child.id());
        self.wait(limit)
    }

    /// Waits for the process to end by itself.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let name = self.name.clone();
        let status = until(limit, &format!("{name} ends"), || {
            self.child
                .try_wait()?
                .ok_or_else(|| anyhow!("still running"))
        })?;
        watchdog("del", self.child.id());
        self.ended = true;
        Ok(status)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal to the process group `pid`.
pub fn signal_group(signal: &str, pid: u32) {
    // The standard library sends no signals and `unsafe` is forbidden here: the shell's own kill does.
    let _ = Command::new("/bin/sh")
        .args(["-c", &format!("kill -s {signal} -- -{pid}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

/// Tells the watchdog about a group. The watchdog is a shell that reads from a pipe; however this process
/// ends, even by `kill -9`, the pipe closes and the shell kills every group that is still on its list.
pub(crate) fn watchdog(verb: &str, pid: u32) {
    static PIPE: OnceLock<Mutex<Option<ChildStdin>>> = OnceLock::new();
    const SCRIPT: &str = r#"pids=
while read -r verb pid; do
  if [ "$verb" = add ]; then pids="$pids $pid"; else
    left=; for p in $pids; do [ "$p" = "$pid" ] || left="$left $p"; done; pids=$left
  fi
done
for p in $pids; do kill -s KILL -- "-$p"; done"#;
    let pipe = PIPE.get_or_init(|| {
        let child = Command::new("/bin/sh")
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        Mutex::new(child.ok().and_then(|mut child| child.stdin.take()))
    });
    if let Ok(mut guard) = pipe.lock()
        && let Some(stdin) = guard.as_mut()
    {
        let _ = writeln!(stdin, "{verb} {pid}");
    }
}

/// A port on loopback that is free now and that this process has not handed out before.
pub fn free_port() -> Result<u16> {
    static GIVEN: Mutex<Vec<u16>> = Mutex::new(Vec::new());
    for _ in 0..100 {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut given = GIVEN.lock().map_err(|_| anyhow!("port list"))?;
        if !given.contains(&port) {
            given.push(port);
            return Ok(port);
        }
    }
    bail!("no free port")
}
