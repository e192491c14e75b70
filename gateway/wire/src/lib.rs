//! Bytes to requests and replies, and back, for the two protocols that Causeway's clients speak.
//!
//! No socket, no clock, no async runtime: bytes and decoded messages go in, bytes and messages come out.
//! Both directions of every record exist, since the gateway is a server to its clients and a client to the
//! legacy stores.

pub mod etcd;
pub mod zk;
