//! Registers an instance of `cart`, watches the service, and deregisters at the end:
//! `cargo run -p causeway-registry-client --example cart -- 127.0.0.1:8501 10.0.0.1:8080`

use causeway_registry_client::{Client, ClientConfig, Instance};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let member = arguments.next().unwrap_or_else(|| "127.0.0.1:8501".into());
    let address = arguments.next().unwrap_or_else(|| "10.0.0.1:8080".into());
    let (host, port) = address.rsplit_once(':').ok_or("the address is HOST:PORT")?;

    let client = Client::new(ClientConfig::new([member]))?;
    let instance = Instance::new(&address)
        .endpoint("http", host, port.parse()?)
        .attribute("zone", "a");
    let registration = client.register("cart", instance).await?;
    println!("registered {address}; end with Ctrl-C");

    let mut service = client.service("cart").await?;
    loop {
        let snapshot = service.snapshot();
        println!(
            "{} instances, protected: {}",
            snapshot.instances.len(),
            snapshot.protected
        );
        if let Some(instance) = service.pick_round_robin() {
            println!("next: {}", instance.instance);
        }
        tokio::select! {
            _ = service.changed() => {}
            _ = tokio::signal::ctrl_c() => break,
        }
    }
    registration.deregister().await?;
    println!("deregistered");
    Ok(())
}
