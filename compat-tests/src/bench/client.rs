//! Client libraries, and how those of one language are built.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use super::{Protocol, Scenario};
use crate::applications;
use crate::clients::output;
use crate::target::ZooKeeperRelease;

/// The clients that are built together: one file in [`super::families`] each.
pub trait Family: Sync {
    /// Name of its folder below `compat-tests/clients` and below the built things.
    fn name(&self) -> &'static str;

    /// The libraries.
    fn clients(&self) -> &'static [Client];

    /// Builds what the programs need into `built`, which exists and is theirs alone. Called only when a file of the
    /// family's folder has changed since.
    ///
    /// # Errors
    /// A missing tool, named with the package that has it, or a build that fails, with its output.
    fn build(&self, sources: &Path, built: &Path) -> Result<()>;

    /// The version of each library as built: from a lock file, or as the library says.
    ///
    /// # Errors
    /// A library without version.
    fn versions(&self, sources: &Path, built: &Path) -> Result<BTreeMap<String, String>>;

    /// The program of `client`; the runner adds scenario, address and prefix.
    fn command(&self, sources: &Path, built: &Path, client: &Client) -> Command;
}

/// One client library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// Its name in results and on the command line.
    pub name: &'static str,
    /// What it speaks.
    pub protocol: Protocol,
    /// The folder with a file for each scenario that it plays, below the family's folder.
    pub folder: &'static str,
    /// Files of that folder that are no scenario, without their ending.
    pub support: &'static [&'static str],
}

/// A client with its family.
#[derive(Clone, Copy)]
pub struct Player {
    /// Who builds it.
    pub family: &'static dyn Family,
    /// Which one.
    pub client: &'static Client,
}

/// Every client of every family.
pub fn players() -> Vec<Player> {
    let of = |family: &'static dyn Family| {
        family
            .clients()
            .iter()
            .map(move |client| Player { family, client })
    };
    super::families::all().into_iter().flat_map(of).collect()
}

impl Player {
    /// The scenarios that it has a file for.
    ///
    /// # Errors
    /// A file that is named like no scenario and is not known as support: it would silently never run.
    pub fn plays(&self, scenarios: &[Scenario]) -> Result<Vec<Scenario>> {
        let folder = sources(self.family).join(self.client.folder);
        let mut found = Vec::new();
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            let stem = path
                .file_stem()
                .and_then(|stem| stem.to_str())
                .unwrap_or_default();
            if path.is_dir() || self.client.support.contains(&stem) {
                continue;
            }
            let scenario = scenarios
                .iter()
                .find(|s| s.protocol == self.client.protocol && plain(&s.name) == plain(stem));
            match scenario {
                Some(scenario) => found.push(scenario.clone()),
                None => bail!(
                    "{} is named like no scenario of {}",
                    path.display(),
                    self.client.protocol
                ),
            }
        }
        ensure!(!found.is_empty(), "{} plays no scenario", self.client.name);
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Its program.
    pub fn command(&self) -> Command {
        self.family
            .command(&sources(self.family), &built(self.family), self.client)
    }
}

/// A name without case and signs: `WatchData`, `watch_data` and `watch-data` are one.
fn plain(name: &str) -> String {
    name.chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|letter| letter.to_ascii_lowercase())
        .collect()
}

/// The folder of a family's programs.
pub fn sources(family: &dyn Family) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("clients")
        .join(family.name())
}

/// The folder of what is built of them.
pub fn built(family: &dyn Family) -> PathBuf {
    crate::artefacts().join(family.name())
}

/// Builds a family unless its files are as they were at the last build; says whether it had to.
///
/// # Errors
/// As [`Family::build`].
pub fn prepare(family: &dyn Family) -> Result<bool> {
    let (sources, built) = (sources(family), built(family));
    once(&sources, &built, || family.build(&sources, &built))
        .with_context(|| format!("build the clients in {}", sources.display()))
}

/// Fetches the servers that no package of the system has; says whether it had to. (etcd is in the Go clients' program.)
///
/// # Errors
/// Maven is missing or fails.
pub fn prepare_servers() -> Result<bool> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("servers/zookeeper");
    let mut fetched = false;
    for release in ["3.9"].into_iter().chain(ZooKeeperRelease::OLD) {
        let built = crate::artefacts::zookeeper_jars(release);
        fetched |= once(&sources, &built, || {
            let mut folder = std::ffi::OsString::from("-Dcompat.folder=");
            folder.push(crate::artefacts());
            let mut maven = Command::new("mvn");
            maven
                .args(["-q", "-B", "-f"])
                .arg(sources.join("pom.xml"))
                .arg(folder)
                .arg("package");
            if ZooKeeperRelease::OLD.contains(&release) {
                maven.arg(format!("-P{release}"));
            }
            tool(&mut maven, "maven").map(drop)
        })
        .with_context(|| format!("fetch ZooKeeper {release}"))?;
    }
    Ok(fetched)
}

/// Builds the applications of service frameworks; says whether it had to.
///
/// # Errors
/// Maven is missing or fails.
pub fn prepare_applications() -> Result<bool> {
    let (sources, built) = (applications::sources(), applications::built());
    once(&sources, &built, || {
        // Maven takes away neither the jars of older versions nor the classes of files that are gone.
        fs::remove_dir_all(&built)?;
        fs::create_dir_all(&built)?;
        let mut maven = Command::new("mvn");
        maven
            .args(["-q", "-B", "process-classes"])
            .arg(format!("-Dcompat.out={}", built.display()))
            .current_dir(&sources);
        tool(&mut maven, "maven and openjdk-17-jdk-headless").map(drop)
    })
    .context("build the applications")
}

/// Runs `build` into the folder `built` unless `sources` are as they were when it last came to its end. Another process that
/// builds there is waited for.
fn once(sources: &Path, built: &Path, build: impl FnOnce() -> Result<()>) -> Result<bool> {
    let beside = |ending: &str| {
        let mut path = built.as_os_str().to_os_string();
        path.push(ending);
        PathBuf::from(path)
    };
    if let Some(folder) = built.parent() {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let lock = fs::File::create(beside(".lock"))?;
    lock.lock()?;
    let stamp = beside(".stamp");
    let digest = format!("{:016x}", digest(sources)?);
    if built.is_dir() && fs::read_to_string(&stamp).is_ok_and(|found| found == digest) {
        return Ok(false);
    }
    let _ = fs::remove_file(&stamp);
    fs::create_dir_all(built).with_context(|| built.display().to_string())?;
    build()?;
    fs::write(&stamp, digest)?;
    Ok(true)
}

/// Runs a build command; its output is shown only when it fails.
///
/// # Errors
/// The command is missing (the error names `package`) or fails.
pub fn tool(command: &mut Command, package: &str) -> Result<String> {
    output(command).map_err(|error| match error.downcast_ref::<std::io::Error>() {
        Some(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
            let program = command.get_program().to_string_lossy();
            anyhow!("{program} is missing: install {package}")
        }
        _ => error,
    })
}

/// Of names and contents of all files below `folder`, wherever that lies: several checkouts may share what is built.
fn digest(folder: &Path) -> Result<u64> {
    let root = folder;
    let mut hasher = DefaultHasher::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let mut paths = fs::read_dir(&folder)
            .with_context(|| folder.display().to_string())?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<Vec<_>>>()?;
        paths.sort();
        for path in paths {
            if path.is_dir() {
                // What a tool leaves beside the sources is no source.
                if !matches!(
                    path.file_name().and_then(|name| name.to_str()),
                    Some("__pycache__" | "node_modules" | "target")
                ) {
                    folders.push(path);
                }
            } else {
                path.strip_prefix(root).unwrap_or(&path).hash(&mut hasher);
                fs::read(&path)?.hash(&mut hasher);
            }
        }
    }
    Ok(hasher.finish())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn file_names_of_every_language_are_one_scenario() {
        for name in ["watch-data", "WatchData", "watch_data", "watchdata"] {
            assert_eq!(plain(name), "watchdata");
        }
    }

    #[test]
    fn every_client_plays_what_it_has_files_for() {
        let scenarios = super::super::scenario::all().expect("scenarios");
        for player in players() {
            player.plays(&scenarios).expect(player.client.name);
        }
    }

    #[test]
    fn a_change_of_a_file_is_a_new_build() {
        let folder = tempfile::tempdir().expect("folder");
        let file = folder.path().join("a.txt");
        fs::write(&file, "one").expect("write");
        let before = digest(folder.path()).expect("digest");
        assert_eq!(before, digest(folder.path()).expect("digest"));
        fs::write(&file, "two").expect("write");
        assert_ne!(before, digest(folder.path()).expect("digest"));
        let elsewhere = tempfile::tempdir().expect("folder");
        fs::write(elsewhere.path().join("a.txt"), "one").expect("write");
        assert_eq!(before, digest(elsewhere.path()).expect("digest"));
    }

    #[test]
    fn one_builds_and_the_others_wait() {
        let folder = tempfile::tempdir().expect("folder");
        let (sources, built) = (folder.path().join("sources"), folder.path().join("built"));
        fs::create_dir(&sources).expect("sources");
        let builds = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    once(&sources, &built, || {
                        // Fails when another is at it.
                        fs::create_dir(built.join("at-it"))?;
                        std::thread::sleep(std::time::Duration::from_millis(20));
                        fs::remove_dir(built.join("at-it"))?;
                        builds.fetch_add(1, Ordering::SeqCst);
                        Ok(())
                    })
                    .expect("built");
                });
            }
        });
        assert_eq!(builds.into_inner(), 1);
    }

    #[test]
    fn a_missing_tool_is_named_with_its_package() {
        let error = tool(&mut Command::new("no-such-tool"), "some-package").expect_err("missing");
        assert!(
            error.to_string().contains("install some-package"),
            "{error}"
        );
    }
}
