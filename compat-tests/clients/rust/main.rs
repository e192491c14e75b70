//! `compat-rust CLIENT SCENARIO ADDRESS PREFIX`: one client library, one scenario, one target.
#![allow(
    clippy::disallowed_methods,
    reason = "drives real clients in real time: waiting and reading the clock is what it does"
)]

mod common;
mod etcd_client;
mod zookeeper_client;

use common::{Place, say};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [client, scenario, address, prefix] = arguments.as_slice() else {
        eprintln!("usage: compat-rust CLIENT SCENARIO ADDRESS PREFIX");
        std::process::exit(64);
    };
    common::limit(if scenario == "restart" { 115 } else { 57 });
    let place = Place {
        address: address.clone(),
        prefix: prefix.clone(),
        link: std::env::var("COMPAT_LINK").unwrap_or_default(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let known = runtime.block_on(async {
        match client.as_str() {
            "etcd-client" => etcd_client::play(scenario, place).await,
            "zookeeper-client" => zookeeper_client::play(scenario, place).await,
            _ => false,
        }
    });
    if !known {
        eprintln!("{client} has no scenario {scenario}");
        std::process::exit(64);
    }
    say("done");
    // Without waiting for what the libraries still do in the background.
    std::process::exit(0);
}
