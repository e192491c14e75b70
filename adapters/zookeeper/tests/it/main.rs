//! Against a real ZooKeeper.

mod contract;
mod upstream;
