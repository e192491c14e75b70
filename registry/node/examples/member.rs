//! A member that lives alone, without a gateway, with its HTTP and its gRPC port:
//! `cargo run -p causeway-registry-node --example member -- 127.0.0.1:8500 127.0.0.1:8501`

use std::time::{SystemTime, UNIX_EPOCH};

use causeway_registry::NodeConfig;
use causeway_registry::api::ClientSettings;
use causeway_registry_node::{Grpc, Limits, NativeApi, Registry, router_of};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut address = |default: &str| arguments.next().unwrap_or_else(|| default.into());
    // The wall clock only numbers this life of the member.
    #[allow(clippy::disallowed_methods)]
    let wall = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
    let registry = Registry::start(NodeConfig::new(1, u64::try_from(wall)?));
    let api = NativeApi::new(registry, Limits::default(), ClientSettings::default());

    let http = TcpListener::bind(address("127.0.0.1:8500")).await?;
    let grpc = TcpListener::bind(address("127.0.0.1:8501")).await?;
    println!(
        "HTTP on {}, gRPC on {}",
        http.local_addr()?,
        grpc.local_addr()?
    );

    let (stop, stopped) = tokio::sync::watch::channel(false);
    let port = tokio::spawn(Grpc::new(api.clone()).serve(grpc, stopped));
    let ended = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    axum::serve(http, router_of(api))
        .with_graceful_shutdown(ended)
        .await?;
    stop.send_replace(true);
    port.await?;
    Ok(())
}
