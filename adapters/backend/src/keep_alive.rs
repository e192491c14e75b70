//! Renewing a lease in the background.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::{Backend, BackendError, ErrorKind, Lease};

/// Renews `lease` at a third of its ttl, sooner after a failure, until the handle is dropped or
/// the lease is gone. Dropping the handle does not close the lease.
pub fn keep_alive(backend: Arc<dyn Backend>, lease: Lease) -> KeepAlive {
    let (gone_tx, gone) = watch::channel(None);
    let task = tokio::spawn(async move {
        let gone = run(backend, lease).await;
        gone_tx.send_replace(Some(gone));
    });
    KeepAlive { task, gone }
}

/// Handle of the renewing task.
#[derive(Debug)]
pub struct KeepAlive {
    task: JoinHandle<()>,
    gone: watch::Receiver<Option<BackendError>>,
}

impl KeepAlive {
    /// Waits until the store says that the lease has ended; gives what it said.
    pub async fn gone(&mut self) -> BackendError {
        match self.gone.wait_for(Option::is_some).await {
            Ok(error) => match error.as_ref() {
                Some(error) => error.clone(),
                None => stopped(),
            },
            Err(_) => stopped(),
        }
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(backend: Arc<dyn Backend>, lease: Lease) -> BackendError {
    let mut ttl = lease.ttl;
    let mut next = Instant::now() + ttl / 3;
    loop {
        tokio::time::sleep_until(next).await;
        let asked = Instant::now();
        match backend.renew(lease.id).await {
            Ok(granted) => {
                ttl = granted;
                next = asked + ttl / 3;
            }
            Err(error) if error.kind() == ErrorKind::LeaseGone => return error,
            Err(_) => {
                let pause = (ttl / 10).clamp(Duration::from_millis(50), Duration::from_secs(1));
                sleep(pause).await;
                next = Instant::now();
            }
        }
    }
}

fn stopped() -> BackendError {
    BackendError::not_applied(
        ErrorKind::Shutdown,
        "the task that renews the lease was stopped",
    )
}
