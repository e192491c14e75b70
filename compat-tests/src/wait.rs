//! Waiting with a bound: the only way anything here waits.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

const POLL: Duration = Duration::from_millis(50);

/// Calls `probe` until it gives a value, and fails after `limit` with the last thing it said.
///
/// `probe` answers `Ok(value)` when done and `Err(reason)` when not yet; the reason is what the failure shows.
pub fn until<T>(limit: Duration, what: &str, mut probe: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        match probe() {
            Ok(value) => return Ok(value),
            Err(reason) if start.elapsed() >= limit => {
                return Err(anyhow!("not within {limit:?}: {what}: {reason:#}"));
            }
            Err(_) => std::thread::sleep(POLL),
        }
    }
}

/// Checks that `probe` goes on saying yes for the whole of `span`: for what must *not* happen.
pub fn stays(span: Duration, what: &str, mut probe: impl FnMut() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < span {
        probe().map_err(|reason| {
            anyhow!(
                "no longer so after {:?}: {what}: {reason:#}",
                start.elapsed()
            )
        })?;
        std::thread::sleep(POLL * 4);
    }
    Ok(())
}
