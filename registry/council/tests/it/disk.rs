//! A disk in memory that loses what was not synced, can be full, and can stop at a chosen sync.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use redb::StorageBackend;

/// Outlives the processes that use it.
#[derive(Clone, Default, Debug)]
pub(crate) struct Disk {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// What a crash leaves.
    durable: Vec<u8>,
    /// Counts openings: a process that crashed must not write into the next one's disk.
    opened: u64,
    full: bool,
    syncs: u64,
    /// Stop at this sync, before or after it reached the disk.
    stop: Option<(u64, bool)>,
    /// Called once when it stops.
    stopped: Option<Box<dyn FnOnce() + Send>>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("syncs", &self.syncs)
            .finish_non_exhaustive()
    }
}

/// The disk as one process sees it.
#[derive(Debug)]
pub(crate) struct Opened {
    disk: Disk,
    number: u64,
    present: Mutex<Vec<u8>>,
}

impl Disk {
    /// Opens what the last sync left.
    pub(crate) fn open(&self) -> Opened {
        let mut state = self.state.lock();
        state.opened += 1;
        state.stop = None;
        state.stopped = None;
        Opened {
            disk: self.clone(),
            number: state.opened,
            present: Mutex::new(state.durable.clone()),
        }
    }

    /// What was not synced is lost, and the process that had it open can do nothing more.
    pub(crate) fn crash(&self) {
        self.state.lock().opened += 1;
    }

    /// No write succeeds from now on.
    pub(crate) fn fill(&self) {
        self.state.lock().full = true;
    }

    /// There is space again.
    pub(crate) fn free(&self) {
        self.state.lock().full = false;
    }

    /// Crashes at the `nth` sync from now on: `after` it reached the disk, or before. `stopped` runs at
    /// that moment, so that nothing that follows can leave the member.
    pub(crate) fn crash_at(&self, nth: u64, after: bool, stopped: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        state.stop = Some((state.syncs + nth, after));
        state.stopped = Some(Box::new(stopped));
    }
}

impl Opened {
    fn check(&self, writing: bool) -> io::Result<()> {
        let state = self.disk.state.lock();
        if state.opened != self.number {
            return Err(io::Error::other("the process is gone"));
        }
        if writing && state.full {
            return Err(io::Error::from_raw_os_error(28));
        }
        Ok(())
    }
}

impl StorageBackend for Opened {
    fn len(&self) -> io::Result<u64> {
        Ok(self.present.lock().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.check(false)?;
        let present = self.present.lock();
        let from = usize::try_from(offset).map_err(io::Error::other)?;
        let bytes = present
            .get(from..from + out.len())
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check(true)?;
        let len = usize::try_from(len).map_err(io::Error::other)?;
        self.present.lock().resize(len, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check(true)?;
        let stopped = {
            let mut state = self.disk.state.lock();
            state.syncs += 1;
            let stop = state.stop.filter(|(at, _)| *at == state.syncs);
            if !matches!(stop, Some((_, false))) {
                state.durable.clone_from(&self.present.lock());
            }
            if stop.is_none() {
                return Ok(());
            }
            state.opened += 1;
            state.stopped.take()
        };
        if let Some(stopped) = stopped {
            stopped();
        }
        Err(io::Error::other("the process is gone"))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check(true)?;
        let mut present = self.present.lock();
        let from = usize::try_from(offset).map_err(io::Error::other)?;
        let place = present
            .get_mut(from..from + data.len())
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        place.copy_from_slice(data);
        Ok(())
    }
}
