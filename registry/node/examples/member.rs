//! A member that lives alone, without a gateway:
//! `cargo run -p causeway-registry-node --example member -- 127.0.0.1:8500`

use std::time::{SystemTime, UNIX_EPOCH};

use causeway_registry::NodeConfig;
use causeway_registry_node::{Registry, router};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:8500".into());
    // The wall clock only numbers this life of the member.
    #[allow(clippy::disallowed_methods)]
    let wall = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
    let registry = Registry::start(NodeConfig::new(1, u64::try_from(wall)?));
    let listener = tokio::net::TcpListener::bind(&address).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, router(registry)).await?;
    Ok(())
}
