//! Members as processes of their own, which are killed and stopped.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use causeway_registry_proto::client::RegistryClient;
use causeway_registry_proto::v1;

use super::*;

const ADDRESS: &str = "CAUSEWAY_TEST_MEMBER";

/// Not a test of its own: what the other ones run as another process. Ends with its standard input.
#[tokio::test]
async fn member_process() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let incarnation = u64::from(std::process::id()) + 1_700_000_000_000;
    let registry = Registry::start(NodeConfig::new(1, incarnation));
    let listener = listen(address.parse().unwrap()).await;
    println!("listening {}", listener.local_addr().unwrap());
    let (_stop, stopped) = watch::channel(false);
    tokio::spawn(Grpc::new(api(registry)).serve(listener, stopped));
    let parent_is_gone = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        let _ = std::io::stdin().read_line(&mut line);
    });
    parent_is_gone.await.unwrap();
}

struct Process {
    child: Child,
    address: SocketAddr,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start(address: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["processes::member_process", "--exact", "--nocapture"])
            .env(ADDRESS, address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // The test harness speaks on the same line.
        let said = lines
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("listening ")?.1.to_owned()));
        let address = said.unwrap().trim().parse().unwrap();
        Process { child, address }
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let done = Command::new("kill").args([name, &id]).status().unwrap();
        assert!(done.success());
    }

    async fn names(&self) -> BTreeSet<String> {
        let mut client = RegistryClient::connect(format!("http://{}", self.address))
            .await
            .unwrap();
        let wanted = v1::DiscoverRequest {
            namespace: String::new(),
            service: "cart".into(),
        };
        let list = client.discover(wanted).await.unwrap().into_inner();
        list.changed.into_iter().map(|i| i.instance).collect()
    }
}

async fn until_it_has(member: &Process, name: &str) {
    let start = Instant::now();
    while !member.names().await.contains(name) {
        assert!(start.elapsed() < Duration::from_secs(10), "{name}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn client_of(members: &[&Process]) -> Client {
    let mut config = ClientConfig::new(members.iter().map(|member| member.address.to_string()));
    config.request_timeout = Duration::from_millis(500);
    Client::new(config).unwrap()
}

/// The member in use first.
async fn in_order(one: Process, two: Process) -> (Process, Process) {
    if one.names().await.contains("me:80") {
        (one, two)
    } else {
        (two, one)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_member_is_left_and_one_that_stands_still_too() {
    let (one, two) = (Process::start("127.0.0.1:0"), Process::start("127.0.0.1:0"));
    let client = client_of(&[&one, &two]);
    let registration = client.register("cart", me()).await.unwrap();
    let service = client.service("cart").await.unwrap();
    until("listed", || shown(&service) == set(["me:80"])).await;

    let (mut used, mut other) = in_order(one, two).await;
    let begun = Instant::now();
    used.signal("-KILL");
    until_it_has(&other, "me:80").await;
    println!("killed: at home elsewhere after {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(5));
    // It comes back at the same address, empty, and is there for the next time.
    let address = used.address.to_string();
    drop(used);
    used = Process::start(&address);

    // It still has the connection, and answers nothing: three heartbeats of 200 ms.
    std::mem::swap(&mut used, &mut other);
    let begun = Instant::now();
    used.signal("-STOP");
    until_it_has(&other, "me:80").await;
    println!("stopped: at home elsewhere after {:?}", begun.elapsed());
    assert!(begun.elapsed() >= Duration::from_millis(400));
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(shown(&service), set(["me:80"]), "never missed here");
    used.signal("-CONT");
    registration.deregister().await.unwrap();
    assert!(!other.names().await.contains("me:80"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_killed_over_and_over_loses_nothing_for_long() {
    let mut member = Process::start("127.0.0.1:0");
    let address = member.address.to_string();
    let client = client_of(&[&member]);
    let mut registrations = Vec::new();
    for n in 0..20 {
        let instance = Instance::new(format!("i{n}"));
        registrations.push(client.register("cart", instance).await.unwrap());
    }
    let service = client.service("cart").await.unwrap();
    until("listed", || shown(&service).len() == 20).await;
    for _ in 0..3 {
        drop(member);
        member = Process::start(&address);
        let start = Instant::now();
        while member.names().await.len() < 20 {
            assert!(start.elapsed() < Duration::from_secs(10));
            // However the lists come in pieces: what the client shows stays whole.
            assert_eq!(shown(&service).len(), 20);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    until("nothing is held", || !service.snapshot().protected).await;
    for registration in registrations {
        registration.deregister().await.unwrap();
    }
    assert!(member.names().await.is_empty());
}
