//! A whole registry cluster in one thread and in virtual time.
//!
//! Members are the real [`causeway_registry::Node`] and [`causeway_registry::Replicator`]; around them are models: a
//! network with streams that break, processes that are killed and stopped, folders, clocks, the council, and clients. A
//! seed decides everything, so a run can be repeated; named checks look on at every step.
//!
//! [`World::run`] plays one [`Setup`]; `registry-simulation` runs seeds from the command line.
//!
//! It opens no socket, reads no clock, and draws no random number but its own.

pub mod check;
pub mod client;
pub mod council;
pub mod network;
pub mod process;
pub mod random;
pub mod setup;
pub mod trace;
pub mod world;

pub use check::{Failure, Invariant};
pub use setup::{Setup, Weather};
pub use world::{Report, World};
