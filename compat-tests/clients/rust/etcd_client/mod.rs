//! The crate `etcd-client`, a file a scenario.

mod auth;
mod compaction;
mod connect;
mod discovery;
mod election;
mod kv;
mod lease;
mod lease_expiry;
mod lock;
mod reconnect;
mod restart;
mod support;
mod txn;
mod watch;

use crate::common::Place;

/// Plays a scenario; false when there is none of that name.
pub(crate) async fn play(scenario: &str, place: Place) -> bool {
    match scenario {
        "auth" => auth::play(place).await,
        "compaction" => compaction::play(place).await,
        "connect" => connect::play(place).await,
        "discovery" => discovery::play(place).await,
        "election" => election::play(place).await,
        "kv" => kv::play(place).await,
        "lease" => lease::play(place).await,
        "lease-expiry" => lease_expiry::play(place).await,
        "lock" => lock::play(place).await,
        "reconnect" => reconnect::play(place).await,
        "restart" => restart::play(place).await,
        "txn" => txn::play(place).await,
        "watch" => watch::play(place).await,
        _ => return false,
    }
    true
}
