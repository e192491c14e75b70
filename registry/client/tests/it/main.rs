//! The client against real members on real sockets.

mod fake;
mod processes;

use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use causeway_registry::api::{ClientSettings, native_key};
use causeway_registry::{Endpoint, LeaseId, NodeConfig, RecordBody};
use causeway_registry_client::{Client, ClientConfig, Error, Instance, RegistrationState, Service};
use causeway_registry_node::{Grpc, Limits, NativeApi, Registry, RegistryAccess};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::Instant;

/// A member in a runtime of its own, so that killing it breaks its connections, too.
struct Member {
    registry: Arc<Registry>,
    api: Arc<NativeApi>,
    grpc: Grpc,
    address: SocketAddr,
    runtime: Option<Runtime>,
    _stop: watch::Sender<bool>,
}

impl Member {
    async fn start() -> Self {
        Member::start_at("127.0.0.1:0".parse().unwrap()).await
    }

    /// An empty member; each is another life.
    async fn start_at(address: SocketAddr) -> Self {
        static INCARNATION: AtomicU64 = AtomicU64::new(1_700_000_000_000);
        let config = NodeConfig::new(1, INCARNATION.fetch_add(1, Ordering::Relaxed));
        let runtime = runtime();
        let (registry, api, grpc) = {
            let _inside = runtime.enter();
            let registry = Registry::start(config);
            let api = api(registry.clone());
            (registry, api.clone(), Grpc::new(api))
        };
        let (sender, bound) = tokio::sync::oneshot::channel();
        let (_stop, stopped) = watch::channel(false);
        let server = grpc.clone();
        runtime.spawn(async move {
            let listener = listen(address).await;
            sender.send(listener.local_addr().unwrap()).unwrap();
            server.serve(listener, stopped).await;
        });
        let address = within(Duration::from_secs(10), bound).await.unwrap();
        Member {
            registry,
            api,
            grpc,
            address,
            runtime: Some(runtime),
            _stop,
        }
    }

    fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Registers without a client. `lease` runs out after 300 ms unless it is renewed.
    fn add(&self, service: &str, instance: &str, lease: Option<LeaseId>) {
        if let Some(lease) = lease
            && self.registry.lease(lease).is_none()
        {
            self.registry.open_lease(lease, 300).unwrap();
        }
        let body = RecordBody {
            namespace: "default".into(),
            service: service.into(),
            instance: instance.into(),
            endpoints: vec![Endpoint {
                scheme: "http".into(),
                host: instance.into(),
                port: 80,
            }],
            ..RecordBody::default()
        };
        self.registry
            .register(native_key("default", service, instance), body, lease)
            .unwrap();
    }

    fn names(&self, service: &str) -> BTreeSet<String> {
        let records = self.registry.by_service("default", service);
        records
            .into_iter()
            .map(|record| record.body.instance.clone())
            .collect()
    }

    fn has(&self, service: &str, instance: &str) -> bool {
        self.names(service).contains(instance)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

/// The native API with times for tests.
fn api(registry: Arc<Registry>) -> Arc<NativeApi> {
    let limits = Limits {
        min_ttl_ms: 100,
        ..Limits::default()
    };
    let settings = ClientSettings {
        heartbeat_interval_ms: 200,
        ..ClientSettings::default()
    };
    NativeApi::new(registry, limits, settings)
}

/// The port of a member that was just killed is free in a moment.
async fn listen(address: SocketAddr) -> TcpListener {
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn within<T>(time: Duration, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(time, future)
        .await
        .expect("not in time")
}

/// Waits until it is so, for ten seconds at most.
async fn until(what: &'static str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{what}: not within 10 s"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn config(members: &[&Member]) -> ClientConfig {
    let mut config = ClientConfig::new(members.iter().map(|member| member.address.to_string()));
    config.request_timeout = Duration::from_millis(500);
    config.ttl = Some(Duration::from_millis(1_000));
    config
}

fn client(members: &[&Member]) -> Client {
    Client::new(config(members)).unwrap()
}

fn shown(service: &Service) -> BTreeSet<String> {
    service
        .instances()
        .into_iter()
        .map(|instance| instance.instance)
        .collect()
}

fn set(names: impl IntoIterator<Item = impl Into<String>>) -> BTreeSet<String> {
    names.into_iter().map(Into::into).collect()
}

fn me() -> Instance {
    Instance::new("me:80")
        .endpoint("http", "me", 80)
        .attribute("zone", "a")
}

#[tokio::test]
async fn an_instance_stays_registered_until_it_leaves() {
    let member = Member::start().await;
    let client = client(&[&member]);
    let mut watcher = client.service("cart").await.unwrap();
    assert_eq!(shown(&watcher), BTreeSet::new());

    let registration = client.register("cart", me()).await.unwrap();
    let snapshot = within(Duration::from_secs(5), watcher.changed()).await;
    assert_eq!(snapshot.instances.len(), 1);
    assert_eq!(snapshot.instances[0].attributes["zone"], "a");
    assert_eq!(snapshot.instances[0].endpoints[0].host, "me");

    // Longer than its time to live.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert!(member.has("cart", "me:80"));
    assert_eq!(registration.state(), RegistrationState::Registered);

    registration.deregister().await.unwrap();
    assert!(!member.has("cart", "me:80"));
    until("the watcher sees it", || watcher.instances().is_empty()).await;
    // The last instance of a service, and gone all the same: its owner said so.
    assert!(!watcher.snapshot().protected);
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    assert!(
        !member.has("cart", "me:80"),
        "no late renewal brings it back"
    );

    let dropped = client.register("cart", me()).await.unwrap();
    drop(dropped);
    assert!(member.has("cart", "me:80"));
    until("the next heartbeat lacks it", || {
        !member.has("cart", "me:80")
    })
    .await;
}

#[tokio::test]
async fn a_registration_that_was_lost_is_made_again() {
    let member = Member::start().await;
    let client = client(&[&member]);
    let registration = client.register("cart", me()).await.unwrap();
    member
        .registry
        .deregister(&native_key("default", "cart", "me:80"))
        .unwrap();
    assert!(!member.has("cart", "me:80"));
    until("it is back", || member.has("cart", "me:80")).await;
    registration.deregister().await.unwrap();
}

#[tokio::test]
async fn another_member_is_used_when_one_is_gone() {
    let members = [Member::start().await, Member::start().await];
    let client = client(&[&members[0], &members[1]]);
    let mut registration = client.register("cart", me()).await.unwrap();
    let service = client.service("cart").await.unwrap();
    until("listed", || shown(&service) == set(["me:80"])).await;
    let [mut used, mut other] = members;
    if other.has("cart", "me:80") {
        std::mem::swap(&mut used, &mut other);
    }
    assert!(used.has("cart", "me:80") && !other.has("cart", "me:80"));

    used.kill();
    until("registered at the other", || other.has("cart", "me:80")).await;
    other.add("cart", "other:80", None);
    until("followed at the other", || {
        shown(&service) == set(["me:80", "other:80"])
    })
    .await;
    assert!(!service.snapshot().stale);

    // With no member left the list stands, and says what it is.
    other.kill();
    until("stale", || service.snapshot().stale).await;
    assert_eq!(shown(&service), set(["me:80", "other:80"]));
    within(Duration::from_secs(10), async {
        while registration.state() == RegistrationState::Registered {
            registration.state_changed().await;
        }
    })
    .await;
    assert!(registration.deregister().await.is_err());
}

#[tokio::test]
async fn clients_go_where_they_are_sent_and_obey_what_they_are_asked() {
    let members = [Member::start().await, Member::start().await];
    let client = client(&[&members[0], &members[1]]);
    let registration = client.register("cart", me()).await.unwrap();
    for name in ["s1", "s2", "s3"] {
        client.service(name).await.unwrap();
    }
    let [mut used, mut other] = members;
    if other.has("cart", "me:80") {
        std::mem::swap(&mut used, &mut other);
    }
    let asked = ClientSettings {
        heartbeat_interval_ms: 150,
        cache_services: 2,
        refresh_interval_ms: 5_000,
    };
    used.api.set_settings(asked).unwrap();
    until("obeyed", || client.settings() == asked).await;
    until("fewer services", || client.cached_services() == 2).await;

    assert_eq!(used.grpc.shed(10), 1);
    until("registered at the other", || other.has("cart", "me:80")).await;
    until("the stream has moved", || {
        (used.grpc.streams(), other.grpc.streams()) == (0, 1)
    })
    .await;
    registration.deregister().await.unwrap();
}

#[tokio::test]
async fn a_member_that_returns_empty_takes_nothing_away() {
    let mut member = Member::start().await;
    let client = client(&[&member]);
    let names = set((0..10).map(|n| format!("i{n}")));
    names.iter().for_each(|name| member.add("cart", name, None));
    let service = client.service("cart").await.unwrap();
    assert_eq!(shown(&service), names);
    let registration = client.register("cart", me()).await.unwrap();
    until("seen", || shown(&service).len() == 11).await;

    member.kill();
    let member = Member::start_at(member.address).await;
    until("registered again", || member.has("cart", "me:80")).await;
    until("protected", || service.snapshot().protected).await;
    until("me is listed again", || {
        !service.snapshot().held.contains("me:80")
    })
    .await;
    assert_eq!(shown(&service).len(), 11);
    assert_eq!(service.snapshot().held, names);

    names.iter().for_each(|name| member.add("cart", name, None));
    until("whole again", || !service.snapshot().protected).await;
    assert_eq!(service.snapshot().held, BTreeSet::new());
    registration.deregister().await.unwrap();
}

#[tokio::test]
async fn a_mass_expiry_is_held_and_a_small_one_is_not() {
    let member = Member::start().await;
    let client = client(&[&member]);
    for (service, dying, left) in [("small", 4, 6), ("large", 5, 10)] {
        for n in 0..10 {
            let lease =
                (n < dying).then(|| LeaseId::native(if service == "small" { 1 } else { 2 }));
            member.add(service, &format!("i{n}"), lease);
        }
        let view = client.service(service).await.unwrap();
        until("expired at the member", || {
            member.names(service).len() == 10 - dying
        })
        .await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(shown(&view).len(), left, "{service}");
        assert_eq!(view.snapshot().protected, left == 10, "{service}");
        // Removals by owners pass at once.
        for n in 5..10 {
            let key = native_key("default", service, &format!("i{n}"));
            member.registry.deregister(&key).unwrap();
        }
        until("deregistered", || shown(&view).len() == left - 5).await;
    }
}

#[tokio::test]
async fn the_last_good_list_is_kept_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let mut member = Member::start().await;
    member.add("cart/x", "a", None);
    member.add("cart/x", "b", None);
    let mut with_disk = config(&[&member]);
    with_disk.snapshot_dir = Some(folder.path().join("lists"));
    let client = Client::new(with_disk.clone()).unwrap();
    let service = client.service("cart/x").await.unwrap();
    assert_eq!(shown(&service), set(["a", "b"]));
    let lists = || {
        std::fs::read_dir(folder.path().join("lists"))
            .into_iter()
            .flatten()
            .flatten()
    };
    until("saved", || {
        lists().any(|f| f.path().extension().is_some_and(|e| e == "json"))
    })
    .await;
    drop((client, service));
    member.kill();

    let client = Client::new(with_disk).unwrap();
    let start = Instant::now();
    let service = client.service("cart/x").await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(shown(&service), set(["a", "b"]));
    assert!(service.snapshot().stale);
    // Another service has no list.
    assert!(matches!(
        client.service("till").await,
        Err(Error::Unreachable(_))
    ));

    let member = Member::start_at(member.address).await;
    member.add("cart/x", "a", None);
    member.add("cart/x", "b", None);
    member.add("cart/x", "c", None);
    until("fresh", || shown(&service) == set(["a", "b", "c"])).await;
    assert!(!service.snapshot().stale);
}

#[tokio::test]
async fn the_services_used_last_stay_watched() {
    let member = Member::start().await;
    let mut small = config(&[&member]);
    small.cached_services = NonZeroUsize::new(2);
    let client = Client::new(small).unwrap();
    let first = client.service("s0").await.unwrap();
    for name in ["s1", "s2", "s3"] {
        client.service(name).await.unwrap();
    }
    assert_eq!(client.cached_services(), 2);
    // Whoever holds a handle goes on seeing, also without the client.
    drop(client);
    member.add("s0", "a", None);
    until("seen", || shown(&first) == set(["a"])).await;
}

#[tokio::test]
async fn picks_are_fair() {
    let member = Member::start().await;
    let client = client(&[&member]);
    let empty = client.service("none").await.unwrap();
    assert_eq!(
        (empty.pick_random(), empty.pick_round_robin()),
        (None, None)
    );
    (0..5).for_each(|n| member.add("cart", &format!("i{n}"), None));
    let service = client.service("cart").await.unwrap();
    let other = client.service("cart").await.unwrap();
    let mut turns = Vec::new();
    for n in 0..10 {
        let handle = if n % 2 == 0 { &service } else { &other };
        turns.push(handle.pick_round_robin().unwrap().instance);
    }
    assert_eq!(set(turns[..5].to_vec()).len(), 5, "{turns:?}");
    assert_eq!(turns[..5], turns[5..]);
    // Missing one of five in 200 draws: one in 10^19.
    let drawn = (0..200).map(|_| service.pick_random().unwrap().instance);
    assert_eq!(set(drawn).len(), 5);
}

#[tokio::test]
async fn a_member_that_accepts_and_says_nothing_is_left() {
    let hole = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hole_address = hole.local_addr().unwrap();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((socket, _)) = hole.accept().await {
            open.push(socket);
        }
    });
    let member = Member::start().await;
    member.add("cart", "a", None);
    let mut config = config(&[&member]);
    config.members.insert(0, hole_address.to_string());
    let both = Client::new(config.clone()).unwrap();
    let service = within(Duration::from_secs(5), both.service("cart"))
        .await
        .unwrap();
    assert_eq!(shown(&service), set(["a"]));
    let registration = both.register("cart", me()).await.unwrap();
    registration.deregister().await.unwrap();

    config.members.truncate(1);
    let none = Client::new(config).unwrap();
    let start = Instant::now();
    assert!(matches!(
        none.register("cart", me()).await,
        Err(Error::Unreachable(_))
    ));
    assert!(matches!(
        none.service("cart").await,
        Err(Error::Unreachable(_))
    ));
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn refusals_and_bad_settings_are_told() {
    let member = Member::start().await;
    let client = client(&[&member]);
    let refused = client.register("cart", Instance::new("")).await.err();
    assert!(
        matches!(&refused, Some(Error::Refused { code, message })
            if code == "bad_request" && message.contains("instance")),
        "{refused:?}"
    );
    assert!(matches!(
        client.service("").await,
        Err(Error::Refused { .. })
    ));

    type Change = fn(&mut ClientConfig);
    let cases: [(&str, Change); 5] = [
        ("members", |config| config.members.clear()),
        ("https", |config| {
            config.members = vec!["https://localhost:1".into()]
        }),
        ("member", |config| config.members = vec!["host:port".into()]),
        ("member", |config| config.members = vec![String::new()]),
        ("protect_threshold", |config| config.protect_threshold = 101),
    ];
    for (named, change) in cases {
        let mut config = ClientConfig::new(["127.0.0.1:1"]);
        change(&mut config);
        match Client::new(config).err() {
            Some(Error::Config(message)) => assert!(message.contains(named), "{message}"),
            other => panic!("{named}: {other:?}"),
        }
    }
}
