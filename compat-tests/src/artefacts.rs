//! Where what is built or fetched for the bench lies.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The folder of everything that is built or kept for the bench: `CAUSEWAY_COMPAT`, else `target/compat` of the
/// checkout.
pub fn artefacts() -> PathBuf {
    std::env::var_os("CAUSEWAY_COMPAT").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/compat"),
        Into::into,
    )
}

/// The jars of a release of ZooKeeper (`3.9`): servers, and of 3.9 the command line.
pub fn zookeeper_jars(release: &str) -> PathBuf {
    artefacts().join(format!("zookeeper-{release}"))
}

/// The Go program: clients, and the real etcd and etcdctl.
pub fn go_program() -> PathBuf {
    artefacts().join("go/compat-go")
}

/// The Go program of the applications on etcd.
pub fn go_applications() -> PathBuf {
    artefacts().join("go/compat-apps")
}

/// A program of this workspace that the same build made: the one beside the running one.
///
/// # Errors
/// It is not there.
pub fn beside(name: &str) -> Result<PathBuf> {
    // target/debug/deps/it-… -> target/debug/causeway; target/debug/causeway-demo -> the same.
    let own = std::env::current_exe()?;
    own.ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .with_context(|| {
            format!(
                "no {name} beside {}: build it with `cargo build --workspace --all-targets`",
                own.display()
            )
        })
}
