use super::claim::{Condition, Facts, Scope};
use super::codec::{self, Codec};
use super::*;
use crate::path::Protocol::{self, Etcd, Zookeeper};

const LEASE: i64 = 7_587_886_422_117_001_234;

/// The built-in layouts with those of them configured that have no root of their own.
const CONFIGURED: &str = r#"
[[layout]]
use = "curator"
roots = ["/discovery/prod"]

[[layout]]
use = "grpc-endpoints"
targets = ["orders", "billing/v2"]
namespace = "rpc"

[[layout]]
use = "go-zero"
services = ["orders.rpc", "prod/stock.rpc"]
"#;

fn configured() -> LayoutSet {
    load(CONFIGURED)
}

fn load(text: &str) -> LayoutSet {
    match LayoutSet::load_toml(text, None) {
        Ok(set) => set,
        Err(errors) => panic!("{errors:?}"),
    }
}

fn faults(text: &str) -> Vec<String> {
    match LayoutSet::load_toml(text, None) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    }
}

/// A record on one line: `id|endpoints|status|metadata` of an instance, `role: error` else.
fn shown(classified: &Classified) -> String {
    match classified {
        Classified::General => "general".to_owned(),
        Classified::Companion {
            layout,
            service,
            role,
            decode_error,
        } => {
            let service = service.as_deref().unwrap_or("-");
            match decode_error {
                None => format!("{layout} {service} {role:?}"),
                Some(error) => format!("{layout} {service} {role:?}: {error}"),
            }
        }
        Classified::Instance(i) => {
            let endpoints: Vec<String> = i
                .endpoints
                .iter()
                .map(|e| {
                    let scheme = e
                        .scheme
                        .as_ref()
                        .map_or(String::new(), |s| format!("{s}://"));
                    let port = e.port.map_or(String::new(), |p| p.to_string());
                    format!(
                        "{scheme}{} {port}{}",
                        e.host,
                        if e.tls { " tls" } else { "" }
                    )
                })
                .collect();
            let weight = i.weight.map_or(String::new(), |w| format!(" w={w}"));
            let metadata: Vec<String> = i
                .metadata
                .iter()
                .map(|(name, value)| format!("{name}={}", value.as_str()))
                .collect();
            format!(
                "{} {} [{}] {}{weight} {{{}}}",
                i.layout,
                i.service,
                endpoints.join(", "),
                i.status.as_word(),
                metadata.join(", ")
            )
        }
    }
}

#[test]
fn builtin_layouts_load_and_own_their_roots() {
    let set = LayoutSet::builtin_default();
    let ids: Vec<&str> = set.layouts().map(|layout| layout.id().as_str()).collect();
    assert_eq!(
        ids,
        [
            "spring-zk",
            "dubbo-app-zk",
            "dubbo-iface-zk",
            "curator",
            "dianrong",
            "go-zero",
            "grpc-endpoints",
            "kitex",
            "kratos",
            "kratos-zk",
        ]
    );
    let text = |roots: Vec<Vec<u8>>| -> Vec<String> {
        roots
            .into_iter()
            .map(|root| String::from_utf8_lossy(&root).into_owned())
            .collect()
    };
    assert_eq!(
        text(set.owned_roots(Zookeeper)),
        ["/com/dianrong/cfg", "/dubbo", "/microservices", "/services"]
    );
    assert_eq!(
        text(set.owned_roots(Etcd)),
        ["/microservices/", "kitex/registry-etcd/"]
    );
    let idle: Vec<&str> = set
        .layouts()
        .filter(|layout| !layout.is_active())
        .map(|layout| layout.id().as_str())
        .collect();
    assert_eq!(idle, ["curator", "go-zero", "grpc-endpoints"]);

    let some = ["kratos".to_owned(), "dubbo-iface-zk".to_owned()];
    let set = LayoutSet::load(&[], &[], Some(&some)).expect("a selection of built-in layouts");
    assert_eq!(text(set.owned_roots(Zookeeper)), ["/dubbo"]);
    let unknown = ["eureka".to_owned()];
    let errors = LayoutSet::load(&[], &[], Some(&unknown)).expect_err("no such layout");
    assert!(errors.iter().any(|e| e.layout == "eureka"), "{errors:?}");

    let set = configured();
    assert_eq!(
        text(set.owned_roots(Etcd)),
        [
            "/microservices/",
            "billing/v2/",
            "kitex/registry-etcd/",
            "orders.rpc/",
            "orders/",
            "prod/stock.rpc/"
        ]
    );
}

#[test]
fn class_follows_from_the_path_alone() {
    let set = configured();
    let check = |protocol: Protocol, key: &str, want: &str| {
        let got = match set.class(protocol, key.as_bytes()) {
            Class::General => "general".to_owned(),
            Class::Owned { layout, service } => {
                format!("{layout} {}", service.as_deref().unwrap_or("-"))
            }
        };
        assert_eq!(got, want, "{protocol} {key}");
        assert_eq!(
            set.is_owned(protocol, key.as_bytes()),
            want != "general",
            "{protocol} {key}"
        );
        // Whatever the value and the node, the class is the same.
        for (value, node) in [
            (&b""[..], NodeKind::Persistent),
            (b"\xff{", NodeKind::Ephemeral),
        ] {
            let classified = set.classify(protocol, key.as_bytes(), value, node, None);
            assert_eq!(
                classified == Classified::General,
                want == "general",
                "{protocol} {key}"
            );
        }
    };
    check(Zookeeper, "/", "general");
    check(Zookeeper, "/dubbo", "dubbo-iface-zk -");
    check(Zookeeper, "/dubbo-admin", "general");
    check(
        Zookeeper,
        "/dubbo/com.acme.Orders",
        "dubbo-iface-zk dubbo/com.acme.Orders",
    );
    check(
        Zookeeper,
        "/dubbo/com.acme.Orders/providers",
        "dubbo-iface-zk dubbo/com.acme.Orders",
    );
    check(
        Zookeeper,
        "/dubbo/com.acme.Orders/providers/x/y",
        "dubbo-iface-zk dubbo/com.acme.Orders",
    );
    check(
        Zookeeper,
        "/dubbo/a%2Fb/routers",
        "dubbo-iface-zk dubbo/a/b",
    );
    // An application's revision document, which is no interface.
    check(Zookeeper, "/dubbo/orders-app/5f1c0a", "dubbo-iface-zk -");
    check(
        Zookeeper,
        "/dubbo/config/dubbo/dubbo.properties",
        "dubbo-iface-zk -",
    );
    check(
        Zookeeper,
        "/dubbo/mapping/com.acme.Orders",
        "dubbo-iface-zk -",
    );
    check(Zookeeper, "/dubbo/metadata", "dubbo-iface-zk -");
    check(Zookeeper, "/services", "spring-zk -");
    check(Zookeeper, "/services/billing", "spring-zk services/billing");
    check(
        Zookeeper,
        "/services/billing/1/locks/x",
        "spring-zk services/billing",
    );
    check(Zookeeper, "/discovery", "general");
    check(
        Zookeeper,
        "/discovery/prod/orders/1",
        "curator discovery/prod/orders",
    );
    check(Zookeeper, "/discovery/production/orders/1", "general");
    check(Zookeeper, "/com/dianrong", "general");
    check(Zookeeper, "/com/dianrong/cfg/1.0.0", "dianrong -");
    check(Zookeeper, "/com/dianrong/cfg/1.0.0/config/x", "dianrong -");
    check(
        Zookeeper,
        "/com/dianrong/cfg/1.0.0/rpcservice/Product-Svc-SG1",
        "dianrong com/dianrong/cfg/Product-Svc",
    );
    check(Zookeeper, "/orders/1", "general");
    check(Zookeeper, "/zookeeper/config", "general");
    check(Etcd, "orders", "general");
    check(Etcd, "orders/", "grpc-endpoints rpc/orders");
    check(Etcd, "orders/10.20.3.7:9000", "grpc-endpoints rpc/orders");
    check(Etcd, "orders/a/b", "grpc-endpoints rpc/orders");
    check(Etcd, "orders2/a", "general");
    check(Etcd, "/orders/a", "general");
    check(Etcd, "billing/v2/1", "grpc-endpoints rpc/billing/v2");
    check(Etcd, "billing/v1/1", "general");
    check(Etcd, "orders.rpc/1", "go-zero go-zero/orders.rpc");
    check(Etcd, "prod/stock.rpc/1", "go-zero go-zero/prod/stock.rpc");
    check(
        Etcd,
        "/microservices/orders/7c2f",
        "kratos microservices/orders",
    );
    check(Etcd, "/microservices", "general");
    check(Etcd, "microservices/orders/7c2f", "general");
    check(Etcd, "/dubbo/com.acme.Orders/providers/x", "general");
    check(Etcd, "", "general");
    // Bytes that are no text are owned all the same.
    assert_eq!(
        set.class(Etcd, b"orders/\xff"),
        Class::Owned {
            layout: LayoutId::from("grpc-endpoints"),
            service: Some("rpc/orders".into())
        }
    );
}

const DUBBO: &str = "/dubbo/com.acme.Orders/providers/dubbo%3A%2F%2F10.20.3.7%3A20880%2Fcom.acme.Orders%3Fapplication%3Dorders-app%26group%3Dblue%26interface%3Dcom.acme.Orders%26methods%3Dget%2Cput%26timestamp%3D1754900000123%26version%3D1.2.0%26weight%3D50";
const SPRING: &str = r#"{"name":"billing","id":"6a1e","address":"10.20.3.9","port":8080,"sslPort":null,"payload":{"@class":"org.springframework.cloud.zookeeper.discovery.ZookeeperInstance","id":"application-1","name":"billing","metadata":{"instance_status":"UP","zone":"a"}},"registrationTimeUTC":1754900000123,"serviceType":"DYNAMIC","uriSpec":{"parts":[]}}"#;
const DUBBO_APP: &str = r#"{"name":"orders-app","id":"10.20.3.7:20880","address":"10.20.3.7","port":20880,"payload":{"@class":"org.apache.dubbo.registry.zookeeper.ZookeeperInstance","id":"10.20.3.7:20880","name":"orders-app","metadata":{"dubbo.metadata.revision":"5f1c0a"}},"registrationTimeUTC":1754900000123}"#;
const CURATOR: &str = r#"{"name":"orders","id":"1","address":"10.20.3.7","port":9990,"sslPort":9991,"payload":null,"registrationTimeUTC":1754900000123,"serviceType":"DYNAMIC","uriSpec":null}"#;
const KRATOS: &str = r#"{"id":"7c2f","name":"orders","version":"v1.4.0","metadata":{"weight":"20"},"endpoints":["http://10.20.3.7:8000?isSecure=false","grpc://10.20.3.7:9000?isSecure=true"]}"#;

#[test]
fn records_of_zookeeper() {
    let set = configured();
    let check = |key: &str, value: &str, node: NodeKind, want: &str| {
        let got = set.classify(Zookeeper, key.as_bytes(), value.as_bytes(), node, None);
        assert_eq!(shown(&got), want, "{key} {value}");
    };
    let e = NodeKind::Ephemeral;
    let p = NodeKind::Persistent;
    let c = NodeKind::Container;
    // Dubbo, interface level: the data is noise.
    let orders = "dubbo-iface-zk dubbo/com.acme.Orders:1.2.0@blue [dubbo://10.20.3.7 20880] UP w=50 {application=orders-app, interface=com.acme.Orders, methods=get,put}";
    check(DUBBO, "10.20.3.7", e, orders);
    check(DUBBO, "", p, orders);
    check(
        "/dubbo/com.acme.Orders/providers/tri%3A%2F%2F%5Bfd00%3A%3A7%5D%3A50051%2Fcom.acme.Orders",
        "",
        e,
        "dubbo-iface-zk dubbo/com.acme.Orders [tri://fd00::7 50051] UP w=100 {}",
    );
    check(
        "/dubbo/com.acme.Orders",
        "10.20.3.7",
        p,
        "dubbo-iface-zk dubbo/com.acme.Orders Directory",
    );
    check(
        "/dubbo/com.acme.Orders/providers",
        "",
        c,
        "dubbo-iface-zk dubbo/com.acme.Orders Directory",
    );
    check(
        "/dubbo/com.acme.Orders/consumers/consumer%3A%2F%2F10.1.1.1%2Fcom.acme.Orders",
        "",
        e,
        "dubbo-iface-zk dubbo/com.acme.Orders Consumer",
    );
    check(
        "/dubbo/com.acme.Orders/configurators/override%3A%2F%2F0.0.0.0%2Fx",
        "",
        p,
        "dubbo-iface-zk dubbo/com.acme.Orders Config",
    );
    check(
        "/dubbo/mapping/com.acme.Orders",
        "orders-app",
        p,
        "dubbo-iface-zk - Mapping",
    );
    check(
        "/dubbo/config/dubbo/dubbo.properties",
        "a=b",
        p,
        "dubbo-iface-zk - Config",
    );
    check(
        "/dubbo/metadata/orders-app/5f1c0a",
        "{}",
        p,
        "dubbo-iface-zk - Metadata",
    );
    check(
        "/dubbo/orders-app/5f1c0a",
        "{}",
        p,
        "dubbo-iface-zk - Other",
    );
    let stray = "dubbo-iface-zk dubbo/com.acme.Orders Stray";
    for (name, why) in [
        (
            "dubbo%3A%2F%2F10.20.3.7%2Fcom.acme.Orders",
            "the claim url.port > 0 does not hold",
        ),
        ("nonsense", "not a URL: no scheme"),
        ("dubbo%3A%2", "a percent sign without two hex digits"),
        (
            "dubbo%253A%252F%252F10.20.3.7%253A20880%252Fx",
            "the name is encoded more than once",
        ),
        (
            "dubbo%25253A%25252F%25252F10.20.3.7%25253A20880",
            "the name is encoded more than once",
        ),
        ("dubbo%3A%2F%2F%FF%3A1", "the decoded name is not UTF-8"),
        (
            "dubbo%3A%2F%2F10.20.3.7%3A99999%2Fx",
            "not a URL: no port number",
        ),
    ] {
        let key = format!("/dubbo/com.acme.Orders/providers/{name}");
        check(&key, "", e, &format!("{stray}: {why}"));
    }
    // Two frameworks under one root, told apart by the payload's class.
    check(
        "/services/billing",
        "",
        c,
        "spring-zk services/billing Directory",
    );
    check(
        "/services/billing/6a1e",
        SPRING,
        e,
        "spring-zk services/billing [10.20.3.9 8080] UP {instance_status=UP, zone=a}",
    );
    check(
        "/services/billing/6a1e",
        &SPRING.replace("\"UP\"", "\"OUT_OF_SERVICE\""),
        e,
        "spring-zk services/billing [10.20.3.9 8080] OUT_OF_SERVICE {instance_status=OUT_OF_SERVICE, zone=a}",
    );
    check(
        "/services/orders-app/10.20.3.7:20880",
        DUBBO_APP,
        e,
        "dubbo-app-zk services/orders-app [10.20.3.7 20880] UP {dubbo.metadata.revision=5f1c0a}",
    );
    check(
        "/services/billing/6a1e",
        SPRING,
        p,
        "spring-zk services/billing Stray: the node is not ephemeral",
    );
    check(
        "/services/other/6a1e",
        SPRING,
        e,
        "spring-zk services/other Stray: the claim $.name == service does not hold",
    );
    check(
        "/services/billing/6a1e",
        "",
        e,
        "spring-zk services/billing Stray: the value is empty (not yet written)",
    );
    check(
        "/services/billing/6a1e/more",
        "",
        p,
        "spring-zk services/billing Other",
    );
    check(
        "/services/billing/_c_6a1e0c9a-2f6b-4a55-9d0e-7b3f9e0a1c22-lock-0000000003",
        "",
        e,
        "spring-zk services/billing Lock",
    );
    check(
        "/services/billing/lock/latch-0000000003",
        "10.1.1.1",
        e,
        "spring-zk services/billing Lock",
    );
    // Curator with any payload: persistent ones exist as well.
    check(
        "/discovery/prod/orders/1",
        CURATOR,
        e,
        "curator discovery/prod/orders [10.20.3.7 9990, 10.20.3.7 9991 tls] UP {}",
    );
    check(
        "/discovery/prod/orders/1",
        CURATOR,
        p,
        "curator discovery/prod/orders [10.20.3.7 9990, 10.20.3.7 9991 tls] UP {}",
    );
    check(
        "/discovery/prod/orders/1",
        &CURATOR.replace("9990", "null").replace(
            "\"uriSpec\":null",
            "\"uriSpec\":{\"parts\":[]},\"enabled\":false",
        ),
        e,
        "curator discovery/prod/orders [10.20.3.7 9991 tls] OUT_OF_SERVICE {curator.uriSpec={\"parts\":[]}}",
    );
    check(
        "/discovery/prod/orders/1",
        &CURATOR.replace("\"payload\":null", "\"payload\":\"blue\""),
        e,
        "curator discovery/prod/orders [10.20.3.7 9990, 10.20.3.7 9991 tls] UP {=blue}",
    );
    check(
        "/discovery/prod/orders/2",
        CURATOR,
        e,
        "curator discovery/prod/orders Stray: the claim $.id == id does not hold",
    );
    check(
        "/discovery/prod/orders/1",
        &CURATOR.replace("\"10.20.3.7\"", "null"),
        e,
        "curator discovery/prod/orders Stray: no usable host",
    );
    check(
        "/discovery/prod/orders/1",
        &CURATOR.replace("9990", "99900"),
        e,
        "curator discovery/prod/orders Stray: no usable port",
    );
    // Dianrong: the name cannot be read back to an address.
    let product = "/com/dianrong/cfg/1.0.0/rpcservice/Product-Service-SG1/PROVIDER1921681010-8080";
    check(
        product,
        "http://192.168.10.10:8080",
        e,
        "dianrong com/dianrong/cfg/Product-Service@SG1 [http://192.168.10.10 8080] UP {}",
    );
    check(
        product,
        "http://192.168.10.11:8080",
        e,
        "dianrong com/dianrong/cfg/Product-Service Stray: the claim digits(url.host) == digits does not hold",
    );
    check(
        product,
        "http://192.168.10.10:8081",
        e,
        "dianrong com/dianrong/cfg/Product-Service Stray: the claim url.port == port does not hold",
    );
    check(
        "/com/dianrong/cfg/1.0.0/rpcservice/A-G/x",
        "",
        p,
        "dianrong com/dianrong/cfg/A Other",
    );
    check(
        "/com/dianrong/cfg/1.0.0/settings/x",
        "",
        p,
        "dianrong - Other",
    );
    check(
        "/microservices/orders/7c2f",
        KRATOS,
        e,
        "kratos-zk microservices/orders [http://10.20.3.7 8000, grpc://10.20.3.7 9000 tls] UP w=20 {weight=20, kratos.version=v1.4.0}",
    );
    check("/locks/_c_x", "", e, "general");
}

#[test]
fn records_of_etcd() {
    let set = configured();
    let check = |key: &str, value: &str, lease: i64, want: &str| {
        let node = if lease == 0 {
            NodeKind::Unleased
        } else {
            NodeKind::Leased
        };
        let got = set.classify(Etcd, key.as_bytes(), value.as_bytes(), node, Some(lease));
        assert_eq!(shown(&got), want, "{key} {value}");
    };
    let rpc = |value: &str| format!("grpc-endpoints rpc/orders [{value}");
    for (addr, metadata, want) in [
        (
            "10.20.3.7:9000",
            r#"{"weight":3,"zone":"a"}"#,
            "10.20.3.7 9000] UP {weight=3, zone=a}",
        ),
        ("10.20.3.7:9000", "null", "10.20.3.7 9000] UP {}"),
        ("[fd00::7]:9000", "\"blue\"", "fd00::7 9000] UP {=blue}"),
        (
            "orders.prod:9000",
            "[1, 2]",
            "orders.prod 9000] UP {=[1,2]}",
        ),
    ] {
        let value = format!(r#"{{"Op":0,"Addr":"{addr}","Metadata":{metadata}}}"#);
        check("orders/10.20.3.7:9000", &value, LEASE, &rpc(want));
        check("orders/a/b", &value, 0, &rpc(want));
    }
    let stray = "grpc-endpoints rpc/orders Stray";
    for (value, why) in [
        (
            r#"{"Op":1,"Addr":"10.20.3.7:9000"}"#,
            "the claim $.Op == 0 does not hold",
        ),
        (
            r#"{"Op":0,"Addr":""}"#,
            "the claim $.Addr != '' does not hold",
        ),
        (r#"{"Op":0}"#, "the claim $.Addr != '' does not hold"),
        (
            r#"{"Op":0,"Addr":"unix:///run/x"}"#,
            "not host:port: an IPv6 address without brackets",
        ),
        (
            r#"{"Op":0,"Addr":"fd00::7:9000"}"#,
            "not host:port: an IPv6 address without brackets",
        ),
        (
            "10.20.3.7:9000",
            "not JSON: trailing characters at line 1 column 6",
        ),
        ("", "the value is empty (not yet written)"),
    ] {
        let why = if value.contains("unix") {
            "not host:port: no port number"
        } else {
            why
        };
        check("orders/x", value, LEASE, &format!("{stray}: {why}"));
    }
    check("orders/", "", 0, "grpc-endpoints rpc/orders Directory");
    // Which of several prefixes of one layout: the innermost.
    check(
        "billing/v2/x",
        r#"{"Op":0,"Addr":"h:1"}"#,
        0,
        "grpc-endpoints rpc/billing/v2 [h 1] UP {}",
    );

    check(
        "orders.rpc/7587886422117001234",
        "10.20.3.7:8080",
        LEASE,
        "go-zero go-zero/orders.rpc [10.20.3.7 8080] UP {}",
    );
    check(
        "orders.rpc/42",
        "10.20.3.7:8080",
        LEASE,
        "go-zero go-zero/orders.rpc [10.20.3.7 8080] UP {}",
    );
    // An election beside it holds an address too; its name is the lease in hex.
    check(
        "orders.rpc/694d967fa24b2812",
        "10.20.3.7:8080",
        LEASE,
        "go-zero go-zero/orders.rpc Lock",
    );
    check(
        "orders.rpc/42",
        "10.20.3.7:8080",
        0,
        "go-zero go-zero/orders.rpc Stray: the key is not leased",
    );
    check(
        "orders.rpc/42",
        "10.20.3.7",
        LEASE,
        "go-zero go-zero/orders.rpc Stray: not host:port: no colon",
    );
    check(
        "orders.rpc/42/43",
        "10.20.3.7:1",
        LEASE,
        "go-zero go-zero/orders.rpc Other",
    );
    check(
        "prod/stock.rpc/42",
        "10.20.3.7:1",
        LEASE,
        "go-zero go-zero/prod/stock.rpc [10.20.3.7 1] UP {}",
    );

    check(
        "/microservices/orders/7c2f",
        KRATOS,
        LEASE,
        "kratos microservices/orders [http://10.20.3.7 8000, grpc://10.20.3.7 9000 tls] UP w=20 {weight=20, kratos.version=v1.4.0}",
    );
    check(
        "/microservices/orders/7c2f",
        &KRATOS.replace("\"http://10.20.3.7:8000?isSecure=false\"", "7"),
        LEASE,
        "kratos microservices/orders Stray: no usable endpoints",
    );
    check(
        "/microservices/orders/7c2f",
        "{",
        LEASE,
        "kratos microservices/orders Stray: not JSON: EOF while parsing an object at line 1 column 1",
    );
    check(
        "/microservices/other/7c2f",
        KRATOS,
        LEASE,
        "kratos microservices/other Stray: the claim $.name == service does not hold",
    );
    let kitex = r#"{"network":"tcp","address":"10.20.3.7:8888","weight":0,"tags":{"zone":"a"}}"#;
    check(
        "kitex/registry-etcd/orders/10.20.3.7:8888",
        kitex,
        LEASE,
        "kitex kitex/registry-etcd/orders [tcp://10.20.3.7 8888] UP w=0 {zone=a}",
    );
    check(
        "kitex/registry-etcd/orders/10.20.3.8:8888",
        kitex,
        LEASE,
        "kitex kitex/registry-etcd/orders Stray: the claim $.address == id does not hold",
    );
    check("kitex/registry-etcd", kitex, LEASE, "general");
    check("orders", "{}", LEASE, "general");

    let bytes = set.classify(Etcd, b"orders/\xff", b"{}", NodeKind::Leased, Some(LEASE));
    assert_eq!(
        shown(&bytes),
        "grpc-endpoints rpc/orders Other: the key is not UTF-8"
    );
    let bytes = set.classify(
        Etcd,
        b"orders.rpc/1",
        b"\xff:1",
        NodeKind::Leased,
        Some(LEASE),
    );
    assert_eq!(
        shown(&bytes),
        "go-zero go-zero/orders.rpc Stray: the value is not UTF-8"
    );
    let deep = "[".repeat(100_000);
    assert!(
        shown(&set.classify(Etcd, b"orders/x", deep.as_bytes(), NodeKind::Leased, None))
            .contains("not JSON")
    );
}

#[test]
fn identity_and_ids() {
    let set = configured();
    let instance = |protocol: Protocol, key: &str, value: &str| match set.classify(
        protocol,
        key.as_bytes(),
        value.as_bytes(),
        if protocol == Zookeeper {
            NodeKind::Ephemeral
        } else {
            NodeKind::Leased
        },
        Some(LEASE),
    ) {
        Classified::Instance(instance) => instance,
        other => panic!("{key}: {}", shown(&other)),
    };
    let dubbo = instance(Zookeeper, DUBBO, "");
    assert_eq!(
        dubbo.identity,
        "dubbo|com.acme.Orders|blue|1.2.0|10.20.3.7|20880|dubbo"
    );
    assert_eq!(dubbo.instance_id, DUBBO);
    assert_eq!(dubbo.scope, "dubbo/com.acme.Orders");
    assert_eq!(dubbo.registered_at_ms, Some(1_754_900_000_123));
    // Java and Go spell equal URLs differently; they are one instance.
    let go = DUBBO
        .replace("%3D1.2.0", "%3D1.2.0%26side%3Dprovider%26x%3D%2A~")
        .replace("1754900000123", "1754900009999");
    assert_eq!(instance(Zookeeper, &go, "").identity, dubbo.identity);
    let kratos = instance(Etcd, "/microservices/orders/7c2f", KRATOS);
    assert_eq!(
        kratos.identity,
        "microservices|orders|||10.20.3.7|8000|http"
    );
    // One instance through two stores.
    assert_eq!(
        instance(Zookeeper, "/microservices/orders/7c2f", KRATOS).identity,
        kratos.identity
    );
    let six =
        |addr: &str| instance(Etcd, "orders/x", &format!(r#"{{"Op":0,"Addr":"{addr}"}}"#)).identity;
    assert_eq!(six("[FD00::0:7]:1"), "rpc|orders|||fd00::7|1|");
    assert_eq!(six("Orders.Prod:1"), six("orders.prod:1"));
    assert_ne!(six("a|b:1"), six("a:1"));
    let debug = format!(
        "{:?}",
        instance(
            Zookeeper,
            &DUBBO.replace("%26weight", "%26token%3Dhush%26weight"),
            ""
        )
    );
    assert!(!debug.contains("hush") && debug.contains("***"), "{debug}");
    assert_eq!(scope_key("n", "a:b@c%"), "n/a%3Ab%40c%25");
}

#[test]
fn mixed_directories_and_ranges() {
    let set = configured();
    let mixed: Vec<String> = set
        .mixed_dirs()
        .iter()
        .map(|dir| String::from_utf8_lossy(dir).into_owned())
        .collect();
    assert_eq!(mixed, ["/", "/com", "/com/dianrong", "/discovery"]);
    for (dir, want) in [
        ("/", true),
        ("/com", true),
        ("/com/dianrong", true),
        ("/com/dianrong/cfg", false),
        ("/comm", false),
        ("/dubbo", false),
        ("/discovery", true),
        ("/discovery/test", false),
    ] {
        assert_eq!(
            set.owns_descendants_of(Zookeeper, dir.as_bytes()),
            want,
            "{dir}"
        );
    }
    for (prefix, want) in [
        ("", true),
        ("ord", true),
        ("orders", true),
        ("orders/", false),
        ("x", false),
        ("prod/", true),
    ] {
        assert_eq!(
            set.owns_descendants_of(Etcd, prefix.as_bytes()),
            want,
            "{prefix}"
        );
    }
    let names: Vec<String> = set
        .owned_children_of(b"/")
        .iter()
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect();
    assert_eq!(
        names,
        ["com", "discovery", "dubbo", "microservices", "services"]
    );
    assert_eq!(set.owned_children_of(b"/com").len(), 1);

    let check = |start: &str, end: &str, want: &str| {
        let got = match set.range_class(start.as_bytes(), end.as_bytes()) {
            RangeClass::General => "general".to_owned(),
            RangeClass::Owned => "owned".to_owned(),
            RangeClass::Mixed(parts) => parts
                .iter()
                .map(|(a, b)| {
                    format!(
                        "{}..{}",
                        String::from_utf8_lossy(a),
                        String::from_utf8_lossy(b)
                    )
                })
                .collect::<Vec<_>>()
                .join(" "),
        };
        assert_eq!(got, want, "{start}..{end}");
    };
    check("orders/1", "", "owned");
    check("orders", "", "general");
    check("orders/", "orders0", "owned");
    check("orders/a", "orders/b", "owned");
    check("orders/b", "orders/a", "owned");
    check("orders/b", "orders/b", "owned");
    check("zoo", "orders/b", "general");
    check(
        "orders",
        "ordert",
        "orders.rpc/..orders.rpc0 orders/..orders0",
    );
    check("/microservices/orders", "/microservices/ordert", "owned");
    check(
        "/microservices",
        "/microservicet",
        "/microservices/../microservices0",
    );
    check("x", "y", "general");
    check("b", "a", "general");
    check("orders/b", "p", "orders/b..orders0");
    check(
        "orders/",
        "\0",
        "orders/..orders0 prod/stock.rpc/..prod/stock.rpc0",
    );
    check(
        "\0",
        "\0",
        "/microservices/../microservices0 billing/v2/..billing/v20 kitex/registry-etcd/..kitex/registry-etcd0 orders.rpc/..orders.rpc0 orders/..orders0 prod/stock.rpc/..prod/stock.rpc0",
    );
}

#[test]
fn directories_of_services() {
    let set = configured();
    let check = |protocol: Protocol, key: &str, want: &str| {
        let dir = set.service_dir(protocol, key.as_bytes());
        assert_eq!(
            dir.map(|d| String::from_utf8_lossy(&d).into_owned())
                .unwrap_or_default(),
            want,
            "{key}"
        );
    };
    check(Zookeeper, DUBBO, "/dubbo/com.acme.Orders");
    check(Zookeeper, "/dubbo", "");
    check(Zookeeper, "/dubbo/mapping/x", "");
    check(Zookeeper, "/services/a/b/c", "/services/a");
    check(
        Zookeeper,
        "/com/dianrong/cfg/1.0.0/rpcservice/A-G/P",
        "/com/dianrong/cfg/1.0.0/rpcservice/A-G",
    );
    check(Etcd, "billing/v2/x", "billing/v2/");
    check(Etcd, "/microservices/orders/7c2f", "/microservices/orders/");

    let dirs = |scope: &str| -> Vec<String> {
        let dirs = set.dirs_of_service(scope);
        dirs.iter()
            .map(|d| format!("{} {}", d.protocol, String::from_utf8_lossy(&d.dir)))
            .collect()
    };
    assert_eq!(
        dirs("microservices/orders"),
        [
            "zookeeper /microservices/orders",
            "etcd /microservices/orders/"
        ]
    );
    assert_eq!(dirs("services/billing"), ["zookeeper /services/billing"]);
    assert_eq!(dirs("rpc/billing/v2"), ["etcd billing/v2/"]);
    assert_eq!(dirs("dubbo/a/b"), ["zookeeper /dubbo/a%2Fb"]);
    assert!(dirs("dubbo/config").is_empty());
    assert!(dirs("com/dianrong/cfg/A").is_empty());
    assert!(dirs("nowhere/x").is_empty());
}

#[test]
fn suggestions() {
    let set = LayoutSet::builtin_default();
    let check = |protocol: Protocol, key: &str, value: &str, want: &str| {
        let (node, lease) = match protocol {
            Zookeeper => (NodeKind::Ephemeral, None),
            Etcd => (NodeKind::Leased, Some(LEASE)),
        };
        let got = match set.suggest(protocol, key.as_bytes(), value.as_bytes(), node, lease) {
            None => String::new(),
            Some(Suggestion::Fits { layout, setting }) => format!("{layout}: {setting}"),
            Some(Suggestion::NotRegistration(what)) => format!("not: {what}"),
        };
        assert_eq!(got, want, "{key}");
    };
    check(
        Zookeeper,
        "/discovery/prod/orders/1",
        CURATOR,
        r#"curator: use = "curator", roots = ["/discovery/prod"]"#,
    );
    check(
        Zookeeper,
        "/orders/1",
        CURATOR,
        r#"curator: use = "curator", roots = ["/"], services = ["orders"]"#,
    );
    check(
        Zookeeper,
        "/apps/billing/6a1e",
        SPRING,
        r#"spring-zk: use = "spring-zk", roots = ["/apps"]"#,
    );
    check(
        Zookeeper,
        "/apps/orders-app/10.20.3.7:20880",
        DUBBO_APP,
        r#"dubbo-app-zk: use = "dubbo-app-zk", roots = ["/apps"]"#,
    );
    check(
        Zookeeper,
        &DUBBO.replace("/dubbo/", "/shop/"),
        "",
        r#"dubbo-iface-zk: use = "dubbo-iface-zk", roots = ["/shop"]"#,
    );
    check(
        Zookeeper,
        "/ms/orders/7c2f",
        KRATOS,
        r#"kratos-zk: use = "kratos-zk", roots = ["/ms"]"#,
    );
    check(Zookeeper, "/x/y", "10.1.1.1:80", "");
    check(Zookeeper, "/x", "", "");
    check(
        Etcd,
        "orders/10.20.3.7:9000",
        r#"{"Op":0,"Addr":"10.20.3.7:9000"}"#,
        r#"grpc-endpoints: use = "grpc-endpoints", targets = ["orders"]"#,
    );
    check(
        Etcd,
        "/a/b/x",
        r#"{"Op":0,"Addr":"10.20.3.7:9000"}"#,
        r#"grpc-endpoints: use = "grpc-endpoints", targets = ["/a/b"]"#,
    );
    check(
        Etcd,
        "orders.rpc/7587886422117001234",
        "10.20.3.7:8080",
        r#"go-zero: use = "go-zero", services = ["orders.rpc"]"#,
    );
    check(Etcd, "orders.rpc/42", "10.20.3.7:8080", "");
    check(
        Etcd,
        "/apps/orders/7c2f",
        KRATOS,
        r#"kratos: use = "kratos", roots = ["/apps"]"#,
    );
    check(Etcd, "x", "10.20.3.7:8080", "");
    // Owned already.
    check(Etcd, "/microservices/orders/7c2f", KRATOS, "");
    // Known uses that are no registrations, though some look like one.
    let lock = "not: a lock, an election or a queue (Curator recipes)";
    check(
        Zookeeper,
        "/app/leader/_c_6a1e0c9a-2f6b-4a55-9d0e-7b3f9e0a1c22-latch-0000000003",
        "10.1.1.1",
        lock,
    );
    check(Zookeeper, "/app/q/qn-0000000007", "", lock);
    check(
        Zookeeper,
        "/app/sem/leases/x",
        "",
        "not: a lock or a semaphore",
    );
    check(
        Zookeeper,
        "/kafka/brokers/ids/1",
        "{}",
        "not: Kafka's broker state",
    );
    check(Zookeeper, "/controller", "{}", "not: Kafka's broker state");
    check(Zookeeper, "/hbase/rs/x", "", "not: HBase's state");
    check(
        Zookeeper,
        "/hadoop-ha/ns/ActiveStandbyElectorLock",
        "",
        "not: a Hadoop fail-over lock",
    );
    check(
        Zookeeper,
        "/loadbalance/brokers/10.1.1.1:8080",
        "{}",
        "not: Pulsar's or BookKeeper's state",
    );
    check(
        Zookeeper,
        "/clickhouse/tables/1/replicas/r/is_active",
        "",
        "not: ClickHouse's replication state",
    );
    check(
        Zookeeper,
        "/service/pg/leader",
        "n1",
        "not: Patroni's cluster state",
    );
    check(
        Etcd,
        "/service/pg/members/n1",
        "{}",
        "not: Patroni's cluster state",
    );
    check(
        Etcd,
        "election/694d967fa24b2812",
        "10.20.3.7:8080",
        "not: a lock or an election (etcd concurrency)",
    );
    check(
        Etcd,
        "/vitess/zone1/keyspaces/k/locks/7587886422117001234",
        "{}",
        "not: a lock (Vitess topology)",
    );
    // Without an owner it is configuration, not a registration.
    assert_eq!(
        set.suggest(
            Zookeeper,
            b"/discovery/prod/orders/1",
            CURATOR.as_bytes(),
            NodeKind::Persistent,
            None
        ),
        None
    );

    let quiet =
        load("[[pass]]\nprefix = \"/discovery\"\nstore = \"zookeeper\"\nnote = \"kept by hand\"\n");
    assert_eq!(
        quiet.suggest(
            Zookeeper,
            b"/discovery/prod/orders/1",
            CURATOR.as_bytes(),
            NodeKind::Ephemeral,
            None
        ),
        Some(Suggestion::NotRegistration("kept by hand".into()))
    );
}

#[test]
fn names_of_locks() {
    for (name, want) in [
        (
            "_c_6a1e0c9a-2f6b-4a55-9d0e-7b3f9e0a1c22-lock-0000000001",
            true,
        ),
        ("lock-0000000001", true),
        ("x-lock-0000000001", true),
        ("lock--000000001", true),
        ("lock-1000000001", true),
        ("latch-0000000001", true),
        ("qn-0000000001", true),
        ("lease-0000000001", true),
        ("n_0000000001", true),
        ("__READ__0000000001", true),
        ("0f0f__lock__0000000001", true),
        ("singleton_candidate_0000000001", true),
        ("lock-1", false),
        ("member_0000000042", false),
        ("_c_short-lock", false),
        ("orders", false),
        ("", false),
        ("\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}", false),
        ("10.20.3.7:8080", false),
    ] {
        assert_eq!(looks_like_lock(name), want, "{name}");
    }
}

#[test]
fn keys_for_logs_hold_no_secrets() {
    for (key, want) in [
        ("/services/billing/6a1e", "/services/billing/6a1e"),
        (
            "/dubbo/com.acme.Orders/providers/dubbo%3A%2F%2Fjoe%3Apw%4010.20.3.7%3A20880%2Fcom.acme.Orders%3Ftoken%3Dhush%26group%3Da",
            "/dubbo/com.acme.Orders/providers/dubbo://***@10.20.3.7:20880/com.acme.Orders?token=***&group=a",
        ),
        (
            "/dubbo/i/providers/dubbo%253A%252F%252Fjoe%253Apw%254010.20.3.7%253A1",
            "/dubbo/i/providers/dubbo://***@10.20.3.7:1",
        ),
        (
            "/dubbo/i/providers/dubbo%3A%2F%2Fjoe%3Apw%40%zz",
            "/dubbo/i/providers/<unreadable url>",
        ),
        (
            "/x/dubbo://joe:pw@h:1/p?Password=1",
            "/x/dubbo://***@h:1/p?Password=***",
        ),
        (
            "/x/a%3A%2F%2Fh%3A1%3Fregistry%3Dzk%3A%2F%2Fu%3Ap%40h",
            "/x/a://h:1?registry=***",
        ),
        ("orders/1\n2", "orders/1\\n2"),
        ("", ""),
    ] {
        assert_eq!(redact(key.as_bytes()), want);
    }
    assert_eq!(redact(b"a/\xff"), "a/\u{fffd}");
}

#[test]
fn codec_vectors() {
    let text = " *~/:?&=%$,+";
    let java = "+*%7E%2F%3A%3F%26%3D%25%24%2C%2B";
    let go = "+%2A~%2F%3A%3F%26%3D%25%24%2C%2B";
    assert_eq!(codec::form_encode_java(text), java);
    assert_eq!(codec::form_encode_go(text), go);
    for raw in [java, go, &java.to_lowercase()] {
        assert_eq!(codec::form_decode(raw).as_deref(), Ok(text), "{raw}");
    }

    let mut motan = vec![0xac, 0xed, 0x00, 0x05, 0x74, 0x00, 0x52];
    let url = "motan://10.20.3.9:8002/com.acme.Stock?group=acme-rpc&nodeType=service&version=1.0&";
    motan.extend_from_slice(url.as_bytes());
    assert_eq!(codec::java_string(&motan).as_deref(), Ok(url));
    assert_eq!(codec::java_string(url.as_bytes()).as_deref(), Ok(url));
    let long = "x".repeat(70_000);
    let mut stream = vec![0xac, 0xed, 0x00, 0x05, 0x7c];
    stream.extend_from_slice(&70_000u64.to_be_bytes());
    stream.extend_from_slice(long.as_bytes());
    assert_eq!(codec::java_string(&stream).as_deref(), Ok(long.as_str()));
    // NUL and a supplementary character in modified UTF-8.
    let odd = [
        0xac, 0xed, 0, 5, 0x74, 0, 8, 0xc0, 0x80, 0xed, 0xa0, 0xbd, 0xed, 0xb8, 0x80,
    ];
    assert_eq!(codec::java_string(&odd).as_deref(), Ok("\0\u{1f600}"));
    for cut in 2..motan.len() {
        assert!(
            codec::java_string(motan.get(..cut).unwrap_or_default()).is_err(),
            "{cut}"
        );
    }

    assert_eq!(
        codec::java_hash("/dubbo/com.acme.Orders/providers"),
        -960_239_425
    );

    assert!(Codec::LeaseDec.accepts("7587886422117001234"));
    assert!(!Codec::LeaseDec.accepts("694d967fa24b2812") && !Codec::LeaseDec.accepts("007"));
    assert!(Codec::LeaseHex.accepts("694d967fa24b2812") && !Codec::LeaseHex.accepts("694D"));
    assert_eq!(format!("{LEASE:x}"), "694d967fa24b2812");

    let body = "eyJob3N0IjoiMTAuMjAuMy40IiwicG9ydCI6OTA5MCwibmFtZSI6ImktMGExYiJ9";
    let json = r#"{"host":"10.20.3.4","port":9090,"name":"i-0a1b"}"#;
    assert_eq!(
        Codec::B64Len.decode(&format!("64_{body}")).as_deref(),
        Ok(json)
    );
    assert_eq!(
        Codec::B64Len.decode(&format!("63_{body}")),
        Err(DecodeError::Base64)
    );
    assert_eq!(Codec::B64Len.encode(json), Some(format!("64_{body}")));
    for (raw, want) in [
        ("0000000007", true),
        ("-000000001", true),
        ("-2147483648", true),
        ("7", false),
        ("00000000007", false),
        ("-00000000007", false),
    ] {
        assert_eq!(Codec::Seq10.accepts(raw), want, "{raw}");
    }

    assert_eq!(
        Codec::LabelsReversed
            .decode("local/acme/prod/orders")
            .as_deref(),
        Ok("orders.prod.acme.local")
    );
    assert_eq!(
        Codec::LabelsReversed
            .encode("orders.prod.acme.local")
            .as_deref(),
        Some("local/acme/prod/orders")
    );

    for (text, want) in [
        ("10.20.3.7:8080", Some(("10.20.3.7", 8080))),
        ("[fd00::7]:80", Some(("fd00::7", 80))),
        ("fd00::7:80", None),
        (":80", None),
        ("h:0", None),
        ("h:65536", None),
        ("h:+80", None),
        ("h", None),
        ("[h:80", None),
        ("a b:80", None),
    ] {
        let got = codec::host_port(text).ok();
        assert_eq!(
            got,
            want.map(|(host, port)| (host.to_owned(), port)),
            "{text}"
        );
        if let Some((host, port)) = got {
            assert_eq!(join_host_port(&host, port), text);
        }
    }
    for (text, want) in [
        ("10.20.3.7:8080:1000", Some((Some(8080), Some(1000)))),
        ("10.20.3.7:0", Some((None, None))),
        ("10.20.3.7", Some((None, None))),
        ("10.20.3.7:x", None),
    ] {
        assert_eq!(
            codec::host_port_weight(text)
                .ok()
                .map(|(_, port, weight)| (port, weight)),
            want,
            "{text}"
        );
    }
}

/// Layouts of a user's own, after the six forms in which such descriptions are written.
const OWN: &str = r#"
[[layout]]
id = "serverset"
store = "zookeeper"
roots = ["/svc/prod"]
template = "{root}/{service}/member_{n:seq10}"
value = "json"
node = "ephemeral_sequential"
update = "recreate"
read = "lenient"
parents = "persistent"
siblings = { "vector_*" = "weight_vector", "singleton_candidate_*" = "pass" }
map = { instance_id = "$name", host = "$.serviceEndpoint.host", port = "$.serviceEndpoint.port", extra_endpoints = "$.additionalEndpoints", status = "$.status", shard = "$.shard", metadata = "$.metadata" }

[[layout]]
id = "dubbo-etcd"
store = "etcd"
template = "/{root=dubbo}/{service:urlenc-java}/{category=providers|consumers|configurators|routers}/{url:urlenc-java}"
value = "utf8"
lease = "required"
roles = { providers = "instance", consumers = "consumer", configurators = "config", routers = "config" }
claim = ["category == providers", "url.port > 0", "value.text == kv.lease"]
map = { host = "url.host", port = "url.port", scheme = "url.scheme", metadata = "params" }

[[layout]]
id = "motan"
store = "zookeeper"
template = "/{root=motan}/{group}/{service}/{category=server|unavailableServer|client}/{addr:hostport}"
value = "java-string"
write = "as-read"
roles = { server = "instance", unavailableServer = "unavailable", client = "consumer" }
map = { instance_id = "addr", host = "url.host", port = "url.port", scheme = "url.scheme", group = "group", version = "param:version" }

[[layout]]
id = "nerve"
store = "zookeeper"
template = "{root}/{service}/base64_{json:b64len}_{seq:seq10}"
roots = ["/nerve/services"]
value = "none"
map = { host = "$.host", port = "$.port", weight = "$.weight" }

[[layout]]
id = "sofa"
store = "zookeeper"
template = "/{root=sofa-rpc}/{service}/{category=providers|consumers|configs|overrides}/{url:urlenc-java}"
value = "byte-flag"
roles = { providers = "instance", consumers = "consumer", configs = "config", overrides = "config" }
map = { host = "url.host", port = "url.port", scheme = "url.scheme", weight = "param:weight", enabled = "value.flag" }

[[layout]]
id = "rpcx"
store = "etcd"
roots = ["rpcx_base"]
template = "{root}/{service}/{net}@{addr:hostport}"
value = "query"
map = { hostport = "addr", scheme = "net", weight = "param:weight", status = "param:state?active", metadata = "params" }

[[layout]]
id = "kitex-zk"
store = "zookeeper"
template = "/{service}/{addr:hostport}"
services = ["stock"]
value = "json"
map = { hostport = "addr", weight = "$.Weight", metadata = "$.Tags" }

[[layout]]
id = "skydns"
store = "etcd"
template = "/{root=skydns}/{*service:labels-reversed}/{leaf}"
value = "json"
map = { host = "$.host", port = "$.port", weight = "$.weight" }

[[layout]]
id = "armeria"
store = "zookeeper"
template = "{root}/{service}/{host}_{port~[0-9]+}"
roots = ["/armeria"]
value = "hostport-weight"
map = { host = "value.host", port = "value.port", weight = "value.weight" }
"#;

#[test]
fn layouts_of_a_users_own() {
    let set = load(OWN);
    let check = |protocol: Protocol, key: &str, value: &[u8], want: &str| {
        let node = match protocol {
            Zookeeper => NodeKind::Ephemeral,
            Etcd => NodeKind::Leased,
        };
        let got = set.classify(protocol, key.as_bytes(), value, node, Some(LEASE));
        assert_eq!(shown(&got), want, "{key}");
    };
    let member = br#"{"serviceEndpoint":{"host":"10.20.3.7","port":9990},"additionalEndpoints":{"http":{"host":"10.20.3.7","port":8080}},"status":"ALIVE","shard":3,"metadata":{"zone":"a"}}"#;
    check(
        Zookeeper,
        "/svc/prod/orders/member_0000000042",
        member,
        "serverset svc/prod/orders [10.20.3.7 9990, 10.20.3.7 8080] UP {zone=a, shard=3}",
    );
    check(
        Zookeeper,
        "/svc/prod/orders/vector_0000000001",
        b"{}",
        "serverset svc/prod/orders WeightVector",
    );
    check(
        Zookeeper,
        "/svc/prod/orders/singleton_candidate_0000000001",
        b"",
        "serverset svc/prod/orders Pass",
    );
    check(
        Zookeeper,
        "/svc/prod/orders/member_1",
        member,
        "serverset svc/prod/orders Other",
    );

    let provider =
        "/dubbo/com.acme.Orders/providers/dubbo%3A%2F%2F10.20.3.7%3A20880%2Fx%3Fa%3Db%26a%3Dc";
    check(
        Etcd,
        provider,
        b"7587886422117001234",
        "dubbo-etcd dubbo/com.acme.Orders [dubbo://10.20.3.7 20880] UP {a=b, a=c}",
    );
    check(
        Etcd,
        provider,
        b"1",
        "dubbo-etcd dubbo/com.acme.Orders Stray: the claim value.text == kv.lease does not hold",
    );

    let url = "motan://10.20.3.9:8002/com.acme.Stock?group=acme-rpc&version=1.0&";
    let mut java = vec![
        0xac,
        0xed,
        0,
        5,
        0x74,
        0,
        u8::try_from(url.len()).unwrap_or_default(),
    ];
    java.extend_from_slice(url.as_bytes());
    let stock = "motan motan/com.acme.Stock:1.0@acme-rpc [motan://10.20.3.9 8002]";
    check(
        Zookeeper,
        "/motan/acme-rpc/com.acme.Stock/server/10.20.3.9:8002",
        &java,
        &format!("{stock} UP {{}}"),
    );
    check(
        Zookeeper,
        "/motan/acme-rpc/com.acme.Stock/server/10.20.3.9:8002",
        url.as_bytes(),
        &format!("{stock} UP {{}}"),
    );
    check(
        Zookeeper,
        "/motan/acme-rpc/com.acme.Stock/unavailableServer/10.20.3.9:8002",
        url.as_bytes(),
        &format!("{stock} UNAVAILABLE {{}}"),
    );
    check(
        Zookeeper,
        "/motan/acme-rpc/com.acme.Stock/client/10.1.1.1:0",
        b"",
        "motan motan/com.acme.Stock Consumer",
    );
    check(
        Zookeeper,
        "/motan/acme-rpc/command",
        b"x",
        "motan motan/command Other",
    );

    let nerve = "/nerve/services/orders/base64_64_eyJob3N0IjoiMTAuMjAuMy40IiwicG9ydCI6OTA5MCwibmFtZSI6ImktMGExYiJ9_0000000007";
    check(
        Zookeeper,
        nerve,
        b"",
        "nerve nerve/services/orders [10.20.3.4 9090] UP {}",
    );
    check(
        Zookeeper,
        &nerve.replace("_64_", "_63_"),
        b"",
        "nerve nerve/services/orders Stray: not url-safe base64 of the length it states",
    );

    let bolt = "/sofa-rpc/com.acme.Stock/providers/bolt%3A%2F%2F10.20.3.8%3A12200%3Fweight%3D7";
    check(
        Zookeeper,
        bolt,
        &[1],
        "sofa sofa-rpc/com.acme.Stock [bolt://10.20.3.8 12200] UP w=7 {}",
    );
    check(
        Zookeeper,
        bolt,
        &[0],
        "sofa sofa-rpc/com.acme.Stock [bolt://10.20.3.8 12200] OUT_OF_SERVICE w=7 {}",
    );
    check(
        Zookeeper,
        bolt,
        &[2],
        "sofa sofa-rpc/com.acme.Stock Stray: not one byte 0 or 1",
    );

    check(
        Etcd,
        "rpcx_base/Arith/tcp@10.20.3.7:8972",
        b"weight=5&state=inactive&group=a%20b",
        "rpcx rpcx_base/Arith [tcp://10.20.3.7 8972] OUT_OF_SERVICE w=5 {group=a b}",
    );
    check(
        Etcd,
        "rpcx_base/Arith/tcp@10.20.3.7:8972",
        b"",
        "rpcx rpcx_base/Arith Stray: the value is empty (not yet written)",
    );
    check(
        Etcd,
        "rpcx_base/Arith/rpcx_path",
        b"Arith",
        "rpcx rpcx_base/Arith Other",
    );

    check(
        Zookeeper,
        "/stock/10.20.3.7:8888",
        br#"{"Weight":10,"Tags":{"zone":"a"}}"#,
        "kitex-zk kitex-zk/stock [10.20.3.7 8888] UP w=10 {zone=a}",
    );
    check(Zookeeper, "/other/10.20.3.7:8888", b"{}", "general");
    assert_eq!(
        set.suggest(
            Zookeeper,
            b"/other/10.20.3.7:8888",
            br#"{"Weight":10}"#,
            NodeKind::Ephemeral,
            None
        ),
        Some(Suggestion::Fits {
            layout: LayoutId::from("kitex-zk"),
            setting: r#"id = "kitex-zk", services = ["other"]"#.into()
        })
    );

    check(
        Etcd,
        "/skydns/local/acme/prod/orders/x1",
        br#"{"host":"10.20.3.7","port":8080,"weight":20}"#,
        "skydns skydns/orders.prod.acme.local [10.20.3.7 8080] UP w=20 {}",
    );
    check(
        Zookeeper,
        "/armeria/a/h_1",
        b"10.20.3.7:8080:1000",
        "armeria armeria/a [10.20.3.7 8080] UP w=1000 {}",
    );
    check(
        Zookeeper,
        "/armeria/a/h_1",
        b"10.20.3.7",
        "armeria armeria/a [10.20.3.7 ] UP {}",
    );
}

#[test]
fn a_layout_can_be_used_twice_and_shared_roots_need_an_order() {
    let set = load(
        r#"
[[layout]]
use = "curator"
roots = ["/a", "b/"]
namespace = "east"
[[layout]]
use = "curator"
id = "curator-2"
roots = ["/"]
services = ["stock"]
[[layout]]
use = "spring-zk"
roots = ["/services", "/a"]
"#,
    );
    let owner = |key: &str| match set.class(Zookeeper, key.as_bytes()) {
        Class::General => "general".to_owned(),
        Class::Owned { layout, service } => {
            format!("{layout} {}", service.as_deref().unwrap_or("-"))
        }
    };
    assert_eq!(owner("/b/x/1"), "curator east/x");
    assert_eq!(owner("/stock/1"), "curator-2 curator-2/stock");
    // Both own /a; the one asked first names the class, and a record goes to the one that claims it.
    assert_eq!(owner("/a/orders/1"), "spring-zk a/orders");
    match set.classify(
        Zookeeper,
        b"/a/orders/1",
        CURATOR.as_bytes(),
        NodeKind::Ephemeral,
        None,
    ) {
        Classified::Instance(i) => {
            assert_eq!(
                (i.layout.as_str(), i.scope.as_str(), i.service.as_str()),
                ("curator", "a/orders", "east/orders")
            );
        }
        other => panic!("{}", shown(&other)),
    }
}

#[test]
fn faults_are_all_named_with_the_layout() {
    let check = |text: &str, wanted: &[&str]| {
        let got = faults(text);
        assert_eq!(got.len(), wanted.len(), "{text}\n{got:#?}");
        for part in wanted {
            assert!(
                got.iter().any(|fault| fault.contains(part)),
                "{part:?} is not in {got:#?}"
            );
        }
    };
    check("layout = 1", &["unknown key \"layout\""]);
    check("[[layout]\n", &["not TOML"]);
    check("[gateway]\nx = 1", &["unknown key \"gateway\""]);
    check(
        "[[layout]]\nid = \"a\"\nstor = \"etcd\"\nvalue = \"xml\"\nnode = 3\n[[layout]]\nuse = \"b\"\nrooots = []\n",
        &[
            "layout a: unknown key \"stor\"",
            "layout a: value:",
            "layout a: node:",
            "layout b: unknown key \"rooots\"",
        ],
    );
    check(
        "[[layout]]\nuse = \"eureka\"\n[[layout]]\nstore = \"etcd\"\n",
        &[
            "layout eureka: use = \"eureka\" is no built-in layout",
            "layout layout 2: id is missing",
            "layout 2: template is missing",
            "an id is letters",
        ],
    );
    let own = |body: &str| format!("[[layout]]\nid = \"mine\"\nstore = \"zookeeper\"\n{body}\n");
    check(
        &own(
            "template = \"/r/{service}/{id}\"\nvalue = \"json\"\nlease = \"required\"\nclaim = [\"$.a = 1\", \"foo == 1\", \"url.host == id\", \"value.host == id\", \"kv.lease == id\", \"$.a[x == 1\", \"f(id) == 1\", \"'a == 1\"]\nmap = { host = \"$.h\", hots = \"$.h\", port = \"nothing\", weight = \"params\" }",
        ),
        &[
            "lease is for etcd",
            "claim: \"$.a = 1\" has no comparison",
            "\"foo\" names nothing",
            "\"url.host\" needs a {url} capture",
            "\"value.host\" needs a hostport value",
            "\"kv.lease\" needs an etcd layout",
            "\"$.a[x\" is no JSON path",
            "unknown function \"f\"",
            "\"'a == 1\" has no comparison",
            "map: unknown field \"hots\"",
            "map.port: \"nothing\" names nothing",
            "map.weight: \"params\" needs",
        ],
    );
    check(
        &own("template = \"r/{svc:b64}/{id}\"\nmap = { hots = \"$.h\" }"),
        &["starts with \"/\" or {root}", "map: unknown field"],
    );
    for (template, fault) in [
        ("/r/{service:b64}/{id}", "unknown codec \"b64\""),
        ("/r/{service}/{id~[}", "{id}"),
        ("/r/{service}/{id", "a { without its }"),
        ("/r/{service}/id}", "a } without its {"),
        ("/r/{svc}/{id}", "has no {service}"),
        ("/r/{service}/{service}", "appears twice"),
        ("/r//{service}/{id}", "empty segment"),
        ("/r/{service}", "a service and an instance"),
        ("/r/{service}/{id:rest}/x", "rest comes last"),
        ("/r/{service}/x{id:rest}", "must be a whole segment"),
        ("/r/{*service}/{*id}", "one {*name}"),
        ("/r/{root}/{service}/{id}", "{root} comes first"),
        ("/r/{service}/{id=a||b}", "empty word"),
        ("/r/{service}/{1d}", "no usable name"),
        ("/r/{service}/{id!x}", "followed by"),
        ("{root=a|b}/{service}/{id}", "has one default"),
        (
            "/r/{service}/{id:labels-reversed}",
            "labels-reversed is for",
        ),
    ] {
        check(
            &own(&format!(
                "template = '{template}'\nmap = {{ host = \"$name\" }}"
            )),
            &[fault],
        );
    }
    let curator = |body: &str| format!("[[layout]]\nuse = \"curator\"\n{body}\n");
    check(&curator("roots = [\"/\"]"), &["cannot be owned whole"]);
    check(
        &curator("roots = [\"/zookeeper/x\"]"),
        &["belongs to ZooKeeper itself"],
    );
    check(&curator("roots = [\"/a//b\"]"), &["empty segment"]);
    check(&curator("roots = [\"/a\", \"/a\"]"), &["lists /a twice"]);
    check(
        &curator("roots = [\"/a\", \"/a/b\"]"),
        &["inside another root"],
    );
    check(
        &curator("roots = [\"/dubbo/x\"]\npriority = 10"),
        &["overlaps layout curator at /dubbo/x; order them by priority"],
    );
    check(
        &curator("roots = [\"/a\"]\n[[layout]]\nuse = \"curator\"\nroots = [\"/b\"]"),
        &["this id is taken"],
    );
    check(
        &curator("roots = [\"/a\"]\nservices = [\"\", \"x/\", \"a/b\"]"),
        &["\"\" does not fit", "\"x/\" does not fit"],
    );
    check(
        "[[layout]]\nuse = \"dianrong\"\nservices = [\"x\"]",
        &["whole segment after the root"],
    );
    check(
        "[[layout]]\nuse = \"go-zero\"\nroots = [\"x\"]",
        &["the template has no {root}"],
    );
    check(
        "[[layout]]\nuse = \"dubbo-iface-zk\"\nroles = { provider = \"instance\" }",
        &["roles: no closed set"],
    );
    check(
        "[[pass]]\nprefix = \"/dubbo/x\"",
        &["layout dubbo-iface-zk: owns /dubbo, which [[pass]]"],
    );
    check(
        "[[pass]]\nprefix = \"/com\"\nstore = \"zookeeper\"",
        &["layout dianrong: owns /com/dianrong/cfg"],
    );
    check("[[pass]]\nprefix = \"/\"", &["forbids every layout"]);
    check("[[pass]]\nprefx = \"/\"", &["pass 1: unknown field"]);
}

#[test]
fn conditions() {
    let captures = [
        ("id".to_owned(), "007".to_owned()),
        ("digits".to_owned(), "1921681010".to_owned()),
    ];
    let facts = Facts {
        key: "/a/007",
        name: "007",
        captures: &captures,
        json: serde_json::from_str(
            r#"{"n":7,"f":7.0,"h":0.5,"t":true,"s":"x?y","z":null,"a":[{"b c":"d"}],"e":""}"#,
        )
        .ok(),
        lease: Some(LEASE),
        ..Facts::default()
    };
    let scope = Scope {
        captures: &["id", "digits"],
        value: ValueKind::Json,
        protocol: Etcd,
    };
    let check = |text: &str, want: bool| match Condition::parse(text, scope) {
        Ok(condition) => assert_eq!(condition.holds(&facts), want, "{text}"),
        Err(error) => panic!("{text}: {error}"),
    };
    check("$.n == 7", true);
    check("$.f == 7", true);
    check("$.h > 0", false);
    check("$.n > 6", true);
    check("$.n >= 8", false);
    check("$.n < 8", true);
    check("$.n <= 6", false);
    check("$.n == id", true);
    check("$.s == id", false);
    check("$name == id", true);
    check("$key == '/a/007'", true);
    check("$.t == true", true);
    check("$.s == 'x?y'", true);
    check("$.a[0]['b c'] == d", true);
    check("$.a[1]['b c'] == d", false);
    check("$.e == ''", true);
    check("$.e != ''", false);
    check("$.z == ''", false);
    check("$.z != ''", false);
    check("$.missing != x", false);
    check("$.missing?x == x", true);
    check("$.missing?'x y' == 'x y'", true);
    check("kv.lease == 7587886422117001234", true);
    check("hex(kv.lease) == 694d967fa24b2812", true);
    check("digits('192.168.10.10') == digits", true);
    check("lower('ABC') == abc", true);
    check(
        "javahash('/dubbo/com.acme.Orders/providers') == -960239425",
        true,
    );
    check("id > 6", true);
    check("$.s > 6", false);
}

#[test]
fn no_input_panics() {
    let mut sets = vec![configured(), load(OWN)];
    sets.push(LayoutSet::builtin_default());
    let pieces: [&[u8]; 20] = [
        b"/",
        b"//",
        b"dubbo",
        b"services",
        b"orders",
        b"orders.rpc",
        b"%",
        b"%3A%2F%2F",
        b"%25",
        b"\xff",
        b"\0",
        b"{",
        b"[",
        b"\"",
        b":",
        b"-",
        b"_",
        b"member_0000000001",
        b"providers",
        "\u{e9}\u{1f600}".as_bytes(),
    ];
    // A linear congruential generator: the same words on every run.
    let mut state = 1u64;
    let mut next = |limit: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap_or_default() % limit
    };
    for _ in 0..800 {
        let mut word = |start: &[u8]| {
            let mut bytes = start.to_vec();
            for _ in 0..next(8) {
                bytes
                    .extend_from_slice(pieces.get(next(pieces.len())).copied().unwrap_or_default());
            }
            bytes
        };
        let starts: [&[u8]; 6] = [
            b"/",
            b"/dubbo/x/providers/",
            b"orders/",
            b"/microservices/",
            b"/svc/prod/",
            b"",
        ];
        for start in starts {
            let (key, value) = (word(start), word(b""));
            let _ = redact(&key);
            for set in &sets {
                for protocol in [Zookeeper, Etcd] {
                    let class = set.class(protocol, &key);
                    let record = set.classify(protocol, &key, &value, NodeKind::Leased, Some(1));
                    assert_eq!(class == Class::General, record == Classified::General);
                    let _ = set.suggest(protocol, &key, &value, NodeKind::Leased, Some(1));
                    let _ = set.service_dir(protocol, &key);
                    let _ = set.owns_descendants_of(protocol, &key);
                    let _ = set.range_class(&key, &value);
                }
            }
        }
    }
}
