//! The front ends: bytes of a protocol to operations and back.

pub mod etcd;
pub mod zookeeper;
