//! Against a real ZooKeeper.

mod backend;
mod contract;
mod upstream;
