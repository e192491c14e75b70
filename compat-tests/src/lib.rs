//! Causeway seen from outside: real stores, unmodified clients and the built binary, all as processes.
//!
//! Nothing here links to a crate of Causeway. What a test knows, it learnt from bytes on a socket, from a
//! client program's output, or from the command line of the binary. [`Work`] owns a scenario's folder and
//! processes; [`Etcd`], [`ZooKeeper`] and [`Gateway`] are what a scenario can start, kill and restart;
//! [`clients`] are the programs that play the applications.
#![allow(
    clippy::disallowed_methods,
    reason = "drives real processes in real time: waiting and reading the clock is what it does"
)]

pub mod applications;
pub mod artefacts;
pub mod bench;
pub mod clients;
pub mod differential;
pub mod files;
pub mod link;
pub mod observe;
pub mod process;
pub mod protocol;
pub mod raw;
pub mod record;
pub mod settings;
pub mod target;
pub mod wait;
pub mod workers;

pub use artefacts::artefacts;
pub use clients::{Etcdctl, Kazoo, Program};
pub use process::Work;
pub use settings::Settings;
pub use target::{Etcd, Gateway, Target, ZooKeeper};
pub use wait::until;
