use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use causeway_registry::api::native_key;
use causeway_registry::{NodeConfig, RecordBody};
use hickory_resolver::Resolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_server::proto::op::{Message, Query};
use hickory_server::proto::rr::{RData, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::standalone::Registry;

/// A member with its DNS port.
struct Member {
    registry: Arc<Registry>,
    address: SocketAddr,
    _stop: watch::Sender<bool>,
}

async fn member() -> Member {
    let registry = Registry::start(NodeConfig::new(1, 1_700_000_000_000));
    let (address, _stop) = serve(registry.clone()).await;
    Member {
        registry,
        address,
        _stop,
    }
}

async fn serve(access: Arc<dyn RegistryAccess>) -> (SocketAddr, watch::Sender<bool>) {
    let (stop, stopped) = watch::channel(false);
    let (udp, tcp) = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = tcp.local_addr().unwrap();
    assert_eq!(address, udp.local_addr().unwrap());
    let dns = Dns::new(access, &DnsConfig::default()).unwrap();
    tokio::spawn(dns.serve(udp, tcp, stopped));
    (address, stop)
}

impl Member {
    fn put(&self, service: &str, instance: &str, endpoints: &[(&str, &str, u16)]) {
        let body = RecordBody {
            namespace: "default".into(),
            service: service.into(),
            instance: instance.into(),
            endpoints: endpoints
                .iter()
                .map(|(scheme, host, port)| Endpoint {
                    scheme: (*scheme).into(),
                    host: (*host).into(),
                    port: *port,
                })
                .collect(),
            ..RecordBody::default()
        };
        let key = native_key("default", service, instance);
        self.registry.register(key, body, None).unwrap();
    }

    fn remove(&self, service: &str, instance: &str) {
        let key = native_key("default", service, instance);
        self.registry.deregister(&key).unwrap();
    }

    /// A resolver library, as applications have one.
    fn resolver(&self) -> Resolver<TokioRuntimeProvider> {
        let (mut udp, mut tcp) = (ConnectionConfig::udp(), ConnectionConfig::tcp());
        udp.port = self.address.port();
        tcp.port = self.address.port();
        let server = NameServerConfig::new(self.address.ip(), true, vec![udp, tcp]);
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
        let mut options = ResolverOpts::default();
        options.cache_size = 0;
        options.timeout = Duration::from_secs(5);
        Resolver::builder_with_config(config, TokioRuntimeProvider::default())
            .with_options(options)
            .build()
            .unwrap()
    }

    fn question(name: &str, kind: RecordType, takes: Option<u16>) -> Vec<u8> {
        let mut message = Message::query();
        message.metadata.id = 77;
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        if let Some(takes) = takes {
            let mut edns = Edns::new();
            edns.set_max_payload(takes);
            message.edns = Some(edns);
        }
        message.to_vec().unwrap()
    }

    /// The answer as it comes, over UDP, and its bytes.
    async fn udp(&self, name: &str, kind: RecordType, takes: Option<u16>) -> (Message, usize) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let question = Member::question(name, kind, takes);
        socket.send_to(&question, self.address).await.unwrap();
        let mut bytes = vec![0; 65_536];
        let got = tokio::time::timeout(Duration::from_secs(5), socket.recv(&mut bytes));
        let length = got.await.expect("no answer").unwrap();
        (Message::from_vec(&bytes[..length]).unwrap(), length)
    }

    async fn tcp(&self, name: &str, kind: RecordType) -> (Message, usize) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let question = Member::question(name, kind, None);
        let length = u16::try_from(question.len()).unwrap();
        stream.write_u16(length).await.unwrap();
        stream.write_all(&question).await.unwrap();
        let length = usize::from(stream.read_u16().await.unwrap());
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).await.unwrap();
        (Message::from_vec(&bytes).unwrap(), length)
    }
}

fn addresses(message: &Message) -> Vec<IpAddr> {
    message
        .answers
        .iter()
        .filter_map(|record| match &record.data {
            RData::A(a) => Some(IpAddr::V4(a.0)),
            RData::AAAA(a) => Some(IpAddr::V6(a.0)),
            _ => None,
        })
        .collect()
}

const CART: &str = "cart.default.svc.causeway.";

#[tokio::test]
async fn a_resolver_finds_instances_by_address_and_by_service() {
    let member = member().await;
    member.put(
        "cart",
        "a",
        &[("http", "10.0.0.1", 80), ("grpc", "10.0.0.1", 81)],
    );
    member.put("cart", "b", &[("http", "2001:db8::1", 80)]);
    member.put("cart", "c", &[("http", "c.example.com", 80)]);
    member.put("com.example.Till", "a", &[("", "10.0.0.2", 90)]);
    let resolver = member.resolver();
    let ips: BTreeSet<IpAddr> = resolver.lookup_ip(CART).await.unwrap().iter().collect();
    let want: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
    assert_eq!(ips, BTreeSet::from(want));

    let srv = resolver
        .lookup(format!("_http._tcp.{CART}"), RecordType::SRV)
        .await
        .unwrap();
    let mut found = BTreeSet::new();
    for record in srv.answers() {
        let RData::SRV(srv) = &record.data else {
            panic!("{record}");
        };
        assert_eq!(srv.port, 80);
        assert!(record.ttl <= 5);
        found.insert(srv.target.to_string());
    }
    let want = [
        "10-0-0-1.addr.causeway.",
        "2001-db8-0-0-0-0-0-1.addr.causeway.",
        "c.example.com.",
    ];
    assert_eq!(found, want.map(String::from).into());
    // Targets resolve, and come along.
    let target = resolver.lookup_ip("10-0-0-1.addr.causeway.").await.unwrap();
    assert_eq!(target.iter().collect::<Vec<_>>(), [want_ip("10.0.0.1")]);
    let (answer, _) = member.udp(CART, RecordType::SRV, Some(1_232)).await;
    assert_eq!((answer.answers.len(), answer.additionals.len()), (4, 2));
    assert!(answer.metadata.authoritative && !answer.metadata.recursion_available);

    // Dots in a service, and any case.
    let till = resolver
        .lookup_ip("COM.Example.tILL.default.svc.causeway.")
        .await
        .unwrap();
    assert_eq!(till.iter().collect::<Vec<_>>(), [want_ip("10.0.0.2")]);

    // What changes shows at once.
    member.put("cart", "d", &[("http", "10.0.0.4", 80)]);
    member.remove("cart", "a");
    let ips: BTreeSet<IpAddr> = resolver.lookup_ip(CART).await.unwrap().iter().collect();
    assert!(ips.contains(&want_ip("10.0.0.4")) && !ips.contains(&want_ip("10.0.0.1")));
}

fn want_ip(ip: &str) -> IpAddr {
    ip.parse().unwrap()
}

#[tokio::test]
async fn answers_keep_to_their_size() {
    let member = member().await;
    for n in 0..40 {
        member.put("cart", &format!("i{n}"), &[("", &format!("10.0.1.{n}"), 1)]);
    }
    // 40 addresses do not fit without EDNS.
    let (answer, bytes) = member.udp(CART, RecordType::A, None).await;
    assert!(bytes <= 512, "{bytes}");
    assert!(answer.metadata.truncation);
    assert!(!answer.answers.is_empty());
    assert!(answer.edns.is_none(), "nobody asked for it");
    // What a client says that is less than every client takes does not count.
    let (answer, bytes) = member.udp(CART, RecordType::A, Some(100)).await;
    assert!(bytes <= 512 && answer.metadata.truncation);
    let (answer, bytes) = member.udp(CART, RecordType::A, Some(1_232)).await;
    assert!(bytes <= 1_232 && !answer.metadata.truncation, "{bytes}");
    assert_eq!(answer.answers.len(), 40);
    assert_eq!(answer.edns.unwrap().max_payload(), 1_232);

    for n in 0..400 {
        member.put(
            "large",
            &format!("i{n}"),
            &[("", &format!("10.1.{}.{}", n / 200, n % 200), 1)],
        );
    }
    let large = "large.default.svc.causeway.";
    let (answer, bytes) = member.udp(large, RecordType::A, Some(65_000)).await;
    assert!(bytes <= 1_232 && answer.metadata.truncation, "{bytes}");
    let (answer, _) = member.tcp(large, RecordType::A).await;
    assert!(!answer.metadata.truncation);
    let all: BTreeSet<IpAddr> = addresses(&answer).into_iter().collect();
    assert_eq!(all.len(), 400);
    // A resolver comes back by TCP by itself.
    let ips = member.resolver().lookup_ip(large).await.unwrap();
    assert_eq!(ips.iter().collect::<BTreeSet<_>>().len(), 400);
}

#[tokio::test]
async fn answers_are_shuffled() {
    let member = member().await;
    for n in 0..20 {
        member.put("cart", &format!("i{n}"), &[("", &format!("10.0.1.{n}"), 1)]);
    }
    let mut first = BTreeSet::new();
    for _ in 0..50 {
        let (answer, _) = member.udp(CART, RecordType::A, Some(1_232)).await;
        first.insert(addresses(&answer)[0]);
    }
    // Fewer than five different ones of twenty in fifty draws: one in 10^24.
    assert!(first.len() >= 5, "{first:?}");
}

#[tokio::test]
async fn a_known_service_is_empty_and_an_unknown_one_is_not_there() {
    let member = member().await;
    let ask = async |name: &str, kind: RecordType| {
        let (answer, _) = member.udp(name, kind, None).await;
        (answer.metadata.response_code, answer.answers.len(), answer)
    };
    let (code, _, answer) = ask(CART, RecordType::A).await;
    assert_eq!(code, ResponseCode::NXDomain);
    assert_eq!(answer.authorities[0].record_type(), RecordType::SOA);
    member.put("cart", "a", &[("http", "10.0.0.1", 80)]);
    let seen = async |name: &str, kind: RecordType, want: (ResponseCode, usize)| {
        for _ in 0..200 {
            let (code, count, _) = ask(name, kind).await;
            if (code, count) == want {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let (code, count, _) = ask(name, kind).await;
        assert_eq!((code, count), want, "{name} {kind}");
    };
    let (ok, unknown) = (ResponseCode::NoError, ResponseCode::NXDomain);
    // The name is learnt from the change, a moment later.
    seen(CART, RecordType::A, (ok, 1)).await;
    seen(CART, RecordType::AAAA, (ok, 0)).await;
    seen(CART, RecordType::TXT, (ok, 0)).await;
    seen(&format!("_grpc._tcp.{CART}"), RecordType::SRV, (ok, 0)).await;
    seen("default.svc.causeway.", RecordType::A, (ok, 0)).await;
    seen("other.svc.causeway.", RecordType::A, (unknown, 0)).await;
    seen("x.cart.default.svc.causeway.", RecordType::A, (unknown, 0)).await;
    seen("causeway.", RecordType::SOA, (ok, 1)).await;
    seen("example.com.", RecordType::A, (ResponseCode::Refused, 0)).await;

    member.remove("cart", "a");
    let (code, count, answer) = ask(CART, RecordType::A).await;
    assert_eq!(
        (code, count),
        (ok, 0),
        "its last instance left, its name stays"
    );
    assert_eq!(answer.authorities[0].record_type(), RecordType::SOA);
    let resolver = member.resolver();
    let error = resolver.lookup_ip(CART).await.unwrap_err();
    assert!(!error.is_nx_domain(), "{error}");
    let error = resolver
        .lookup_ip("none.default.svc.causeway.")
        .await
        .unwrap_err();
    assert!(error.is_nx_domain(), "{error}");
}

#[test]
fn settings_are_checked() {
    let fault = |zone: &str, ttl_s| {
        let zone = zone.into();
        DnsConfig { zone, ttl_s }.fault()
    };
    assert_eq!(DnsConfig::default().fault(), None);
    assert_eq!(fault("registry.example.com", 0), None);
    assert_eq!(fault("causeway.", 6), Some(DnsConfigError::Ttl(6)));
    for zone in [".", "", "a..b", &"x.".repeat(60)] {
        assert_eq!(fault(zone, 1), Some(DnsConfigError::Zone(zone.into())));
    }
}
