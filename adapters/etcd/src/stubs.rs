//! etcd's gRPC clients, generated over the messages of `causeway-wire`, for relaying clients' own
//! requests over a channel of [`crate::channel`].
#![allow(missing_docs, unreachable_pub, clippy::all)]

mod etcdserverpb {
    tonic::include_proto!("etcdserverpb");
}

mod v3lockpb {
    tonic::include_proto!("v3lockpb");
}

mod v3electionpb {
    tonic::include_proto!("v3electionpb");
}

pub use etcdserverpb::auth_client::AuthClient;
pub use etcdserverpb::cluster_client::ClusterClient;
pub use etcdserverpb::kv_client::KvClient;
pub use etcdserverpb::lease_client::LeaseClient;
pub use etcdserverpb::maintenance_client::MaintenanceClient;
pub use etcdserverpb::watch_client::WatchClient;
pub use v3electionpb::election_client::ElectionClient;
pub use v3lockpb::lock_client::LockClient;
