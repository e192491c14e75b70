//! The etcd port.

use std::sync::Arc;

use tokio::net::TcpListener;

use crate::gateway::Gateway;
use crate::legacy::Legacy;

/// Serves etcd clients until the gateway stops.
pub async fn serve(gateway: Arc<Gateway>, legacy: Arc<Legacy>, listener: TcpListener) {
    let _ = (gateway, legacy, listener);
}
