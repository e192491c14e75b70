//! The last good list of each service, on disk.

use std::io;
use std::path::{Path, PathBuf};

use causeway_registry::api::Instance;
use serde::{Deserialize, Serialize};

/// How large a file is still read.
const MAX_FILE: u64 = 256 << 20;

#[derive(Serialize, Deserialize)]
struct Saved {
    namespace: String,
    service: String,
    instances: Vec<Instance>,
}

/// Where a service's list is kept.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    file: PathBuf,
    namespace: String,
    service: String,
}

impl Disk {
    pub(crate) fn new(dir: &Path, namespace: &str, service: &str) -> Self {
        Disk {
            file: dir.join(format!("{}@{}.json", escape(service), escape(namespace))),
            namespace: namespace.into(),
            service: service.into(),
        }
    }

    /// The list saved last; None when there is none that can be read.
    pub(crate) async fn load(&self) -> Option<Vec<Instance>> {
        let length = tokio::fs::metadata(&self.file).await.ok()?.len();
        if length > MAX_FILE {
            return None;
        }
        let bytes = tokio::fs::read(&self.file).await.ok()?;
        let saved: Saved = match serde_json::from_slice(&bytes) {
            Ok(saved) => saved,
            Err(error) => {
                tracing::warn!(file = %self.file.display(), %error, "a saved list cannot be read");
                return None;
            }
        };
        (saved.namespace == self.namespace && saved.service == self.service)
            .then_some(saved.instances)
    }

    /// Replaces the list whole: a reader finds the old one or the new one. Once begun it is carried
    /// out, even if the caller is dropped.
    pub(crate) async fn save(&self, instances: Vec<Instance>) -> io::Result<()> {
        let file = self.file.clone();
        let saved = Saved {
            namespace: self.namespace.clone(),
            service: self.service.clone(),
            instances,
        };
        let write = move || {
            if let Some(dir) = file.parent() {
                std::fs::create_dir_all(dir)?;
            }
            // Processes may share the folder.
            let part = file.with_extension(format!("part-{}", std::process::id()));
            std::fs::write(&part, serde_json::to_vec(&saved)?)?;
            std::fs::rename(&part, &file)
        };
        tokio::task::spawn_blocking(write).await?
    }
}

/// A name that is a file name everywhere. Long ones are cut; the file says whose it is.
fn escape(name: &str) -> String {
    let mut out = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => out.push(byte.into()),
            b'.' if !out.is_empty() => out.push('.'),
            byte => out.push_str(&format!("%{byte:02x}")),
        }
    }
    out.truncate(100);
    out
}
