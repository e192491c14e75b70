//! The crate `zookeeper-client`, a file a scenario.

mod acl;
mod chroot;
mod connect;
mod container_ttl;
mod data;
mod discovery;
mod election;
mod lock;
mod multi;
mod reattach;
mod restart;
mod session_expiry;
mod support;
mod watch_children;
mod watch_data;
mod watch_exists;
mod watch_persistent;

use crate::common::Place;

/// Plays a scenario; false when there is none of that name.
pub(crate) async fn play(scenario: &str, place: Place) -> bool {
    match scenario {
        "acl" => acl::play(place).await,
        "chroot" => chroot::play(place).await,
        "connect" => connect::play(place).await,
        "container-ttl" => container_ttl::play(place).await,
        "data" => data::play(place).await,
        "discovery" => discovery::play(place).await,
        "election" => election::play(place).await,
        "lock" => lock::play(place).await,
        "multi" => multi::play(place).await,
        "reattach" => reattach::play(place).await,
        "restart" => restart::play(place).await,
        "session-expiry" => session_expiry::play(place).await,
        "watch-children" => watch_children::play(place).await,
        "watch-data" => watch_data::play(place).await,
        "watch-exists" => watch_exists::play(place).await,
        "watch-persistent" => watch_persistent::play(place).await,
        _ => return false,
    }
    true
}
