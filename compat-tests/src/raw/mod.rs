//! Clients that show the bytes of a server and add nothing of their own: no retries, no defaults, no caches.
//!
//! Written from the protocols' public definitions and from nothing of Causeway's, so that a mistake in
//! Causeway's codec cannot hide in the bench's.

pub mod etcd;
pub mod etcd_json;
pub mod zookeeper;
