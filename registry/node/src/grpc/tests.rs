use std::collections::BTreeSet;
use std::net::SocketAddr;

use causeway_registry::api::{ClientSettings, native_key};
use causeway_registry::{LeaseId, NodeConfig, RecordBody, Stamp};
use causeway_registry_proto::client::RegistryClient;
use causeway_registry_proto::digest::digest;
use causeway_registry_proto::v1::{client_message, server_message};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::transport::Channel;

use super::*;
use crate::access::RegistryAccess;
use crate::operations::Limits;
use crate::standalone::Registry;
use client_message::What as Ask;
use server_message::What as Told;

/// A member on a port of its own.
struct Member {
    registry: Arc<Registry>,
    api: Arc<NativeApi>,
    grpc: Grpc,
    address: SocketAddr,
    stop: watch::Sender<bool>,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn member() -> Member {
    member_with(STUCK).await
}

async fn member_with(stuck: Duration) -> Member {
    let registry = Registry::start(NodeConfig::new(1, 1_700_000_000_000));
    let limits = Limits {
        min_ttl_ms: 100,
        ..Limits::default()
    };
    let settings = ClientSettings {
        heartbeat_interval_ms: 100,
        ..ClientSettings::default()
    };
    let api = NativeApi::new(registry.clone(), limits, settings);
    let grpc = Grpc::with_patience(api.clone(), stuck);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = watch::channel(false);
    let server = tokio::spawn(grpc.clone().serve(listener, stopped));
    Member {
        registry,
        api,
        grpc,
        address,
        stop,
        server,
    }
}

impl Member {
    async fn client(&self) -> RegistryClient<Channel> {
        let url = format!("http://{}", self.address);
        RegistryClient::connect(url).await.unwrap()
    }

    async fn stream(&self, token: u64, ttl_ms: u64) -> Talk {
        let mut client = self.client().await;
        let (say, said) = mpsc::channel(4_096);
        let opened = client.open(ReceiverStream::new(said)).await.unwrap();
        let mut talk = Talk {
            say,
            told: opened.into_inner(),
            token: 0,
        };
        talk.ask(1, Ask::Hello(v1::Hello { token, ttl_ms })).await;
        match talk.next().await {
            (1, Told::Welcome(welcome)) => talk.token = welcome.token,
            other => panic!("{other:?}"),
        }
        talk
    }

    fn names(&self, service: &str) -> BTreeSet<String> {
        let records = self.registry.by_service("default", service);
        records.iter().map(|r| r.body.instance.clone()).collect()
    }

    fn put(&self, service: &str, instance: &str) {
        let body = RecordBody {
            namespace: "default".into(),
            service: service.into(),
            instance: instance.into(),
            ..RecordBody::default()
        };
        let key = native_key("default", service, instance);
        self.registry.register(key, body, None).unwrap();
    }
}

/// A client's end of a stream.
struct Talk {
    say: mpsc::Sender<v1::ClientMessage>,
    told: Streaming<v1::ServerMessage>,
    token: u64,
}

fn at(service: &str, instance: &str) -> Option<v1::InstanceRef> {
    Some(v1::InstanceRef {
        namespace: String::new(),
        service: service.into(),
        instance: instance.into(),
    })
}

fn registration(service: &str, instance: &str) -> v1::Registration {
    v1::Registration {
        at: at(service, instance),
        ..v1::Registration::default()
    }
}

fn watch_of(service: &str, revision: Option<v1::Revision>) -> v1::WatchRequest {
    v1::WatchRequest {
        namespace: String::new(),
        service: service.into(),
        revision,
    }
}

impl Talk {
    async fn ask(&self, id: u64, what: Ask) {
        let message = v1::ClientMessage {
            id,
            what: Some(what),
        };
        self.say.send(message).await.unwrap();
    }

    async fn try_next(&mut self) -> Result<Option<(u64, Told)>, Status> {
        let message = tokio::time::timeout(Duration::from_secs(10), self.told.message());
        let message = message.await.expect("nothing in time")?;
        Ok(message.map(|message| (message.id, message.what.unwrap())))
    }

    async fn next(&mut self) -> (u64, Told) {
        self.try_next().await.unwrap().expect("the stream ended")
    }

    async fn register(&mut self, service: &str, instance: &str) -> Stamp {
        self.ask(7, Ask::Register(registration(service, instance)))
            .await;
        match self.next().await {
            (7, Told::Registered(reply)) => reply.stamp.unwrap().try_into().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    async fn ping(&mut self, digest: u64) -> v1::Pong {
        let token = self.token;
        self.ask(0, Ask::Ping(v1::Ping { token, digest })).await;
        match self.next().await {
            (0, Told::Pong(pong)) => pong,
            other => panic!("{other:?}"),
        }
    }

    async fn update(&mut self) -> v1::ServiceUpdate {
        match self.next().await {
            (0, Told::Update(update)) => update,
            other => panic!("{other:?}"),
        }
    }

    /// Watches, and returns the first update.
    async fn watch(&mut self, service: &str) -> v1::ServiceUpdate {
        self.ask(9, Ask::Watch(watch_of(service, None))).await;
        assert!(matches!(self.next().await, (9, Told::Watching(_))));
        self.update().await
    }

    async fn is_silent_for(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.told.message())
            .await
            .is_err()
    }
}

fn part(service: &str, instance: &str, stamp: Stamp) -> u64 {
    digest(&native_key("default", service, instance), stamp)
}

async fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn one_ping_renews_all_that_a_stream_registered() {
    let member = member().await;
    let mut talk = member.stream(0, 300).await;
    assert_eq!(member.registry.summary().leases, 0, "nothing to renew yet");
    let mut sum = 0u64;
    for n in 0..50 {
        let name = format!("i{n}");
        let stamp = talk.register("cart", &name).await;
        sum = sum.wrapping_add(part("cart", &name, stamp));
    }
    assert_eq!(member.registry.summary().leases, 1);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1_200) {
        let pong = talk.ping(sum).await;
        assert_eq!((pong.resend, pong.token), (false, talk.token));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(member.names("cart").len(), 50);
    // The stream breaks: its registrations live on for their time.
    drop(talk);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(member.names("cart").len(), 50);
    until("they run out", || member.names("cart").is_empty()).await;
    until("nothing is left", || member.grpc.streams() == 0).await;
}

#[tokio::test]
async fn a_member_that_has_something_else_asks_for_everything() {
    let member = member().await;
    let mut talk = member.stream(0, 60_000).await;
    let a = talk.register("cart", "a").await;
    let b = talk.register("cart", "b").await;
    let both = part("cart", "a", a).wrapping_add(part("cart", "b", b));
    assert!(!talk.ping(both).await.resend);

    // Somebody takes one away.
    member
        .registry
        .deregister(&native_key("default", "cart", "a"))
        .unwrap();
    let mut resend = false;
    // The change comes to the stream a moment later.
    for _ in 0..100 {
        resend |= talk.ping(both).await.resend;
        if resend {
            break;
        }
    }
    assert!(resend);
    // The client never wanted `b`, and wants `a` and `c`.
    let a = talk.register("cart", "a").await;
    let c = talk.register("cart", "c").await;
    talk.ask(0, Ask::Complete(v1::Complete {})).await;
    let now = part("cart", "a", a).wrapping_add(part("cart", "c", c));
    assert!(!talk.ping(now).await.resend);
    assert_eq!(
        member.names("cart"),
        BTreeSet::from(["a".into(), "c".into()])
    );
}

#[tokio::test]
async fn a_stream_goes_on_where_another_one_broke() {
    let member = member().await;
    let mut first = member.stream(0, 60_000).await;
    let stamp = first.register("cart", "a").await;
    let token = first.token;
    drop(first);
    let mut second = member.stream(token, 60_000).await;
    assert_eq!(second.token, token);
    assert!(!second.ping(part("cart", "a", stamp)).await.resend);
    assert_eq!(member.registry.summary().leases, 1);
    // A token of nobody, or of a single instance's lease, is no way in.
    for token in [1, 5 << 60, u64::MAX] {
        let stranger = member.stream(token, 60_000).await;
        assert_ne!(stranger.token, token);
    }
}

#[tokio::test]
async fn a_lease_that_is_over_gets_a_successor() {
    let member = member().await;
    let mut talk = member.stream(0, 300).await;
    let stamp = talk.register("cart", "a").await;
    until("it runs out", || member.names("cart").is_empty()).await;
    let pong = talk.ping(part("cart", "a", stamp)).await;
    assert!(pong.resend);
    assert_ne!(pong.token, talk.token);
    talk.token = pong.token;
    let stamp = talk.register("cart", "a").await;
    talk.ask(0, Ask::Complete(v1::Complete {})).await;
    assert!(!talk.ping(part("cart", "a", stamp)).await.resend);
    assert_eq!(member.names("cart").len(), 1);
}

#[tokio::test]
async fn a_late_removal_leaves_what_somebody_else_registered() {
    let member = member().await;
    let mut old = member.stream(0, 60_000).await;
    let seen = old.register("cart", "a").await;
    let mut new = member.stream(0, 60_000).await;
    new.register("cart", "a").await;
    let removal = |claim: Option<Stamp>| {
        Ask::Deregister(v1::Deregistration {
            at: at("cart", "a"),
            claim: claim.map(Into::into),
        })
    };
    old.ask(3, removal(Some(seen))).await;
    assert!(
        matches!(old.next().await, (3, Told::Deregistered(reply)) if !reply.existed),
        "it belongs to the new stream"
    );
    assert_eq!(member.names("cart").len(), 1);
    new.ask(3, removal(None)).await;
    assert!(matches!(new.next().await, (3, Told::Deregistered(reply)) if reply.existed));
    assert!(member.names("cart").is_empty());
}

#[tokio::test]
async fn a_watch_gives_everything_then_changes() {
    let member = member().await;
    member.put("cart", "a");
    let mut talk = member.stream(0, 60_000).await;
    let first = talk.watch("cart").await;
    assert!(first.full);
    assert_eq!(first.changed.len(), 1);
    assert_eq!(first.changed[0].instance, "a");
    // Another service is not its business, nor is a renewal; a missing service is one of its own.
    member.put("till", "x");
    member.put("cart", "a");
    assert!(talk.is_silent_for(Duration::from_millis(200)).await);
    assert!(talk.watch("none").await.full);

    member.put("cart", "b");
    let second = talk.update().await;
    assert!(!second.full);
    assert_eq!(second.changed[0].instance, "b");
    let key = native_key("default", "cart", "a");
    member.registry.deregister(&key).unwrap();
    let third = talk.update().await;
    assert_eq!(
        (
            third.removed[0].instance.as_str(),
            third.removed[0].explicit
        ),
        ("a", true)
    );

    // Whoever comes back is told what it missed; with nothing missed, nothing.
    let mut again = member.stream(0, 60_000).await;
    again
        .ask(2, Ask::Watch(watch_of("cart", first.revision)))
        .await;
    assert!(matches!(again.next().await, (2, Told::Watching(_))));
    let missed = again.update().await;
    assert_eq!((missed.changed.len(), missed.removed.len()), (1, 1));
    assert_eq!(missed.revision, third.revision);
    assert!(again.is_silent_for(Duration::from_millis(100)).await);

    let left = v1::Watching {
        namespace: String::new(),
        service: "cart".into(),
    };
    talk.ask(4, Ask::Unwatch(left)).await;
    assert!(matches!(talk.next().await, (4, Told::Watching(_))));
    member.put("cart", "c");
    assert!(talk.is_silent_for(Duration::from_millis(200)).await);
}

#[tokio::test]
async fn a_reader_that_takes_nothing_gets_the_newest_and_is_closed() {
    let member = member_with(Duration::from_secs(2)).await;
    let mut slow = member.stream(0, 60_000).await;
    let mut quick = member.stream(0, 60_000).await;
    slow.ask(9, Ask::Watch(watch_of("cart", None))).await;
    quick.watch("cart").await;
    // More than any window between the two holds, over and over the same 200 instances.
    let fill = "x".repeat(4_000);
    let start = Instant::now();
    let mut round = 0u64;
    while start.elapsed() < Duration::from_secs(5) && member.grpc.streams() == 2 {
        for n in 0..200 {
            let body = RecordBody {
                namespace: "default".into(),
                service: "cart".into(),
                instance: format!("i{n}"),
                attributes: [("fill".into(), format!("{round}{fill}"))].into(),
                ..RecordBody::default()
            };
            let key = native_key("default", "cart", &format!("i{n}"));
            member.registry.register(key, body, None).unwrap();
        }
        round += 1;
        // The quick one reads on.
        while !quick.is_silent_for(Duration::from_millis(5)).await {}
    }
    assert_eq!(member.grpc.streams(), 1, "the slow one is closed");
    assert!(start.elapsed() >= Duration::from_secs(2));
    // What had left before is there, and far less than what was made.
    let mut got = 0;
    let end = loop {
        match slow.try_next().await {
            Ok(Some(_)) => got += 1,
            other => break other,
        }
    };
    assert!(end.is_err(), "{end:?}");
    assert!(got < 10, "{got} messages of {round} rounds");
    assert!(!quick.is_silent_for(Duration::from_millis(1)).await || quick.ping(0).await.token != 0);
}

#[tokio::test]
async fn settings_are_pushed_and_leases_grow_with_the_heartbeat() {
    let member = member().await;
    let mut talk = member.stream(0, 300).await;
    talk.register("cart", "a").await;
    let lease = LeaseId::native(i64::try_from(talk.token).unwrap());
    assert_eq!(member.registry.lease(lease).unwrap().ttl_ms, 300);
    let settings = ClientSettings {
        heartbeat_interval_ms: 1_000,
        cache_services: 5,
        refresh_interval_ms: 9_000,
    };
    member.api.set_settings(settings).unwrap();
    match talk.next().await {
        (0, Told::Settings(pushed)) => assert_eq!(ClientSettings::from(pushed), settings),
        other => panic!("{other:?}"),
    }
    assert_eq!(member.registry.lease(lease).unwrap().ttl_ms, 3_000);
    // The same again is no news; nonsense is refused with all that is wrong.
    member.api.set_settings(settings).unwrap();
    let nonsense = ClientSettings {
        heartbeat_interval_ms: 1,
        cache_services: 0,
        refresh_interval_ms: 1,
    };
    assert_eq!(member.api.set_settings(nonsense).unwrap_err().len(), 3);
    assert!(talk.is_silent_for(Duration::from_millis(100)).await);
}

#[tokio::test]
async fn clients_are_told_to_move_and_the_port_ends() {
    let member = member().await;
    let mut talk = member.stream(0, 60_000).await;
    talk.register("cart", "a").await;
    assert_eq!(member.grpc.shed(5), 1);
    assert!(matches!(talk.next().await, (0, Told::Move(_))));
    // It may stay as long as it likes.
    talk.register("cart", "b").await;
    member.stop.send(true).unwrap();
    assert!(matches!(talk.next().await, (0, Told::Move(_))));
    assert!(talk.try_next().await.unwrap().is_none());
    until("the port is closed", || member.server.is_finished()).await;
    assert_eq!(member.names("cart").len(), 2, "its registrations live on");
}

#[tokio::test]
async fn streams_end_with_the_registry_and_bad_ones_are_told_why() {
    let member = member().await;
    let mut client = member.client().await;
    let (say, said) = mpsc::channel(4);
    let mut told = client
        .open(ReceiverStream::new(said))
        .await
        .unwrap()
        .into_inner();
    let early = Ask::Register(registration("cart", "a"));
    say.send(v1::ClientMessage {
        id: 1,
        what: Some(early),
    })
    .await
    .unwrap();
    let error = told.message().await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("Hello"), "{error}");

    let mut talk = member.stream(0, 60_000).await;
    talk.ask(5, Ask::Register(registration("", "a"))).await;
    match talk.next().await {
        (5, Told::Failure(failure)) => {
            assert_eq!(failure.code, "bad_request");
            assert!(failure.message.contains("service"), "{}", failure.message);
        }
        other => panic!("{other:?}"),
    }
    member.registry.stop();
    assert!(talk.try_next().await.unwrap().is_none());
}

#[tokio::test]
async fn tools_call_without_a_stream() {
    let member = member().await;
    let mut client = member.client().await;
    let mut updates = client
        .watch(watch_of("cart", None))
        .await
        .unwrap()
        .into_inner();
    assert!(updates.message().await.unwrap().unwrap().full);

    let request = v1::RegisterRequest {
        registration: Some(v1::Registration {
            endpoints: vec![v1::Endpoint {
                scheme: "http".into(),
                host: "10.0.0.1".into(),
                port: 80,
            }],
            ..registration("cart", "a")
        }),
        ttl_ms: 60_000,
    };
    let made = client.register(request.clone()).await.unwrap().into_inner();
    assert!(made.created);
    let again = client.register(request).await.unwrap().into_inner();
    assert_eq!((again.created, again.stamp), (false, made.stamp));
    let beat = client.heartbeat(at("cart", "a").unwrap()).await.unwrap();
    assert_eq!(beat.into_inner().ttl_ms, 60_000);

    let wanted = v1::DiscoverRequest {
        namespace: String::new(),
        service: "cart".into(),
    };
    let list = client.discover(wanted).await.unwrap().into_inner();
    assert!(list.full);
    assert_eq!(list.changed[0].endpoints[0].port, 80);
    let pushed = updates.message().await.unwrap().unwrap();
    assert_eq!(pushed.changed, list.changed);

    let services = client
        .list_services(v1::ListServicesRequest::default())
        .await
        .unwrap()
        .into_inner()
        .services;
    assert_eq!((services.len(), services[0].live), (1, 1));
    let summary = client.summary(v1::SummaryRequest {}).await.unwrap();
    let summary = summary.into_inner();
    assert_eq!((summary.instances, summary.leases), (1, 1));

    client.deregister(at("cart", "a").unwrap()).await.unwrap();
    let gone = client
        .deregister(at("cart", "a").unwrap())
        .await
        .unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
    assert_eq!(updates.message().await.unwrap().unwrap().removed.len(), 1);
    let unknown = client.heartbeat(at("cart", "a").unwrap()).await;
    assert_eq!(unknown.unwrap_err().code(), Code::NotFound);
    let bad = client.heartbeat(v1::InstanceRef::default()).await;
    assert_eq!(bad.unwrap_err().code(), Code::InvalidArgument);

    let channel = Channel::from_shared(format!("http://{}", member.address)).unwrap();
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel.connect_lazy());
    let check = health.check(tonic_health::pb::HealthCheckRequest::default());
    assert_eq!(check.await.unwrap().into_inner().status, 1);
}

/// A registry that has not caught up, until it is told.
struct Warming {
    registry: Arc<Registry>,
    warming: std::sync::atomic::AtomicBool,
}

mod warming {
    use causeway_registry::{
        CatchUp, Delta, LeaseInfo, Record, RecordKey, Renewed, Revision, ServiceInfo, Summary,
    };
    use tokio::sync::broadcast;

    use super::*;
    use crate::access::AccessError;

    impl RegistryAccess for Warming {
        fn warming(&self) -> bool {
            self.warming.load(std::sync::atomic::Ordering::Relaxed)
        }
        fn open_lease(&self, id: LeaseId, ttl_ms: u64) -> Result<(), AccessError> {
            self.registry.open_lease(id, ttl_ms)
        }
        fn renew(&self, id: LeaseId) -> Renewed {
            self.registry.renew(id)
        }
        fn close_lease(&self, id: LeaseId) -> Result<Vec<Record>, AccessError> {
            self.registry.close_lease(id)
        }
        fn lease(&self, id: LeaseId) -> Option<LeaseInfo> {
            self.registry.lease(id)
        }
        fn ttl_left(&self, id: LeaseId) -> Option<u64> {
            self.registry.ttl_left(id)
        }
        fn register(
            &self,
            key: RecordKey,
            body: RecordBody,
            lease: Option<LeaseId>,
        ) -> Result<Stamp, AccessError> {
            self.registry.register(key, body, lease)
        }
        fn deregister(&self, key: &RecordKey) -> Result<Option<Record>, AccessError> {
            self.registry.deregister(key)
        }
        fn observe_clock(&self, hlc: u64) -> bool {
            self.registry.observe_clock(hlc)
        }
        fn get(&self, key: &RecordKey) -> Option<Record> {
            self.registry.get(key)
        }
        fn by_service(&self, namespace: &str, service: &str) -> Vec<Record> {
            self.registry.by_service(namespace, service)
        }
        fn companions(&self, namespace: &str, service: &str) -> Vec<Record> {
            self.registry.companions(namespace, service)
        }
        fn by_lease(&self, id: LeaseId) -> Vec<Record> {
            self.registry.by_lease(id)
        }
        fn services(&self) -> Vec<ServiceInfo> {
            self.registry.services()
        }
        fn catch_up(&self, namespace: &str, service: &str, since: Option<Revision>) -> CatchUp {
            self.registry.catch_up(namespace, service, since)
        }
        fn snapshot(&self) -> (Revision, Vec<Record>) {
            self.registry.snapshot()
        }
        fn summary(&self) -> Summary {
            self.registry.summary()
        }
        fn subscribe(&self) -> broadcast::Receiver<Arc<Delta>> {
            self.registry.subscribe()
        }
    }
}

#[tokio::test]
async fn no_empty_list_is_pushed_while_warming() {
    let access = Arc::new(Warming {
        registry: Registry::start(NodeConfig::new(1, 1)),
        warming: true.into(),
    });
    let api = NativeApi::new(access.clone(), Limits::default(), ClientSettings::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (_stop, stopped) = watch::channel(false);
    let server = tokio::spawn(Grpc::new(api).serve(listener, stopped));
    let mut client = RegistryClient::connect(url).await.unwrap();
    let mut updates = client
        .watch(watch_of("cart", None))
        .await
        .unwrap()
        .into_inner();
    let quiet = tokio::time::timeout(Duration::from_millis(700), updates.message());
    assert!(quiet.await.is_err(), "an empty list means nothing yet");
    let wanted = v1::DiscoverRequest {
        namespace: String::new(),
        service: "cart".into(),
    };
    let list = client.discover(wanted).await.unwrap().into_inner();
    assert!(list.warming && list.changed.is_empty());
    access
        .warming
        .store(false, std::sync::atomic::Ordering::Relaxed);
    let first = tokio::time::timeout(Duration::from_secs(5), updates.message());
    let first = first.await.unwrap().unwrap().unwrap();
    assert!(first.full && !first.warming && first.changed.is_empty());
    server.abort();
}
