//! Against a real etcd.

mod contract;
mod upstream;
