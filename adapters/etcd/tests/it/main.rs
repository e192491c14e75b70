//! Against a real etcd.

mod contract;
