//! Clients that show the bytes of a server and add nothing of their own: no retries, no defaults, no caches.

pub mod etcd;
