//! etcd v3.
