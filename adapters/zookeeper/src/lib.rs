//! ZooKeeper behind Causeway.

mod raw;
mod servers;
pub mod upstream;

pub use servers::Servers;
