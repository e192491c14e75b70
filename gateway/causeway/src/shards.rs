//! The threads of a port. Each runs its connections alone, as ZooKeeper's selector threads do (`NIOServerCnxnFactory`):
//! a request is read, answered and written without waking a second thread, which would cost more than all the rest.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::gateway::{Gateway, stopped};
use crate::mailbox::Herald;

/// The threads.
#[derive(Debug)]
pub struct Shards {
    threads: Vec<Shard>,
    ended: Mutex<Vec<oneshot::Receiver<()>>>,
    next: AtomicUsize,
}

#[derive(Debug, Clone)]
struct Shard {
    handle: Handle,
    connections: TaskTracker,
}

impl Shards {
    /// Starts one for each processor. When the gateway stops, connections have `linger` to end; then the threads end,
    /// and what is left of the connections with them.
    pub fn start(gateway: &Arc<Gateway>, port: &str, linger: Duration) -> io::Result<Shards> {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        let (mut threads, mut ended) = (Vec::new(), Vec::new());
        for number in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let shard = Shard {
                handle: runtime.handle().clone(),
                connections: TaskTracker::new(),
            };
            threads.push(shard.clone());
            let (end, at_end) = oneshot::channel::<()>();
            ended.push(at_end);
            let gateway = gateway.clone();
            std::thread::Builder::new()
                .name(format!("{port}-{number}"))
                .spawn(move || {
                    let mut stopping = gateway.stopping();
                    runtime.spawn(Herald::of_this_thread().run(gateway));
                    runtime.block_on(async {
                        stopped(&mut stopping).await;
                        shard.connections.close();
                        let _ = tokio::time::timeout(linger, shard.connections.wait()).await;
                    });
                    // Ends the connections: whatever they wait for, it is not worth waiting for.
                    drop(runtime);
                    drop(end);
                })?;
        }
        Ok(Shards {
            threads,
            ended: Mutex::new(ended),
            next: AtomicUsize::new(0),
        })
    }

    /// How many threads.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// Serves a connection on the thread whose turn it is; `serve` is told its number.
    pub fn serve<S>(
        &self,
        stream: TcpStream,
        serve: impl FnOnce(TcpStream, usize) -> S + Send + 'static,
    ) -> io::Result<()>
    where
        S: Future<Output = ()> + Send,
    {
        // It was accepted with another thread's poll and has to leave that one.
        let stream = stream.into_std()?;
        let number = self.next.fetch_add(1, Ordering::Relaxed) % self.threads.len().max(1);
        if let Some(shard) = self.threads.get(number) {
            let connection = async move {
                if let Ok(stream) = TcpStream::from_std(stream) {
                    serve(stream, number).await;
                }
            };
            shard.connections.spawn_on(connection, &shard.handle);
        }
        Ok(())
    }

    /// Waits for the end of all of them.
    pub async fn ended(&self) {
        let ended = std::mem::take(&mut *self.ended.lock());
        for ended in ended {
            // The thread says it by dropping its end.
            let _ = ended.await;
        }
    }
}
