use std::net::TcpStream;

use causeway_backend::testing::{RealEtcd, RealZookeeper};

#[tokio::test]
async fn etcd_dies_and_comes_back_on_its_port() {
    let mut etcd = RealEtcd::start().await;
    let address = etcd.address();
    assert!(TcpStream::connect(&address).is_ok());
    etcd.kill();
    assert!(TcpStream::connect(&address).is_err());
    etcd.restart().await;
    assert_eq!(etcd.address(), address);
    drop(etcd);
    assert!(TcpStream::connect(&address).is_err());
}

#[tokio::test]
async fn zookeeper_dies_and_comes_back_on_its_port() {
    let mut zookeeper = RealZookeeper::start().await;
    let address = zookeeper.address();
    let text = zookeeper.four_letter_word("srvr").unwrap_or_default();
    assert!(text.contains("Mode: standalone"), "{text}");
    zookeeper.kill();
    assert!(TcpStream::connect(&address).is_err());
    zookeeper.restart().await;
    drop(zookeeper);
    assert!(TcpStream::connect(&address).is_err());
}
