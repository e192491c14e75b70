use super::*;
use crate::path::Protocol::{Etcd, Zookeeper};

const LAYOUTS: &str = r#"
[[layout]]
use = "curator"
roots = ["/discovery"]

[[layout]]
use = "grpc-endpoints"
targets = ["orders", "billing", "shop/orders"]

[[layout]]
use = "go-zero"
services = ["orders.rpc"]
id = "zero"

[[layout]]
id = "free"
store = "etcd"
template = "/{root=free}/{service}/{id}"
value = "hostport"
map = { host = "value.host", port = "value.port" }
"#;

fn layouts() -> LayoutSet {
    match LayoutSet::load_toml(LAYOUTS, None) {
        Ok(set) => set,
        Err(errors) => panic!("{errors:?}"),
    }
}

fn bridge(set: &LayoutSet, from: &str, to: &str, change: impl FnOnce(&mut BridgeConfig)) -> Bridge {
    let mut config = BridgeConfig {
        from: from.into(),
        to: to.into(),
        ..BridgeConfig::default()
    };
    change(&mut config);
    match Bridge::load(&[config], set) {
        Ok(mut bridges) => bridges.remove(0),
        Err(errors) => panic!("{errors:?}"),
    }
}

fn read(set: &LayoutSet, protocol: Protocol, key: &str, value: &str) -> Instance {
    let (node, lease) = match protocol {
        Zookeeper => (NodeKind::Ephemeral, None),
        Etcd => (NodeKind::Leased, Some(77)),
    };
    match set.classify(protocol, key.as_bytes(), value.as_bytes(), node, lease) {
        Classified::Instance(instance) => *instance,
        other => panic!("{key}: {other:?}"),
    }
}

/// The projected records as lines, with the hash of the name cut out.
fn lines(result: &Result<Projection, Refusal>) -> Vec<String> {
    match result {
        Err(refusal) => vec![format!("refused: {refusal}")],
        Ok(projection) => projection
            .records
            .iter()
            .map(|record| {
                let key = String::from_utf8_lossy(&record.key).into_owned();
                let name = crate::path::name(&key).to_owned();
                assert!(is_projected_name(&name), "{key}");
                let line = format!("{key} {}", String::from_utf8_lossy(&record.value));
                line.replace(&name, "ID")
            })
            .collect(),
    }
}

const CURATOR: &str = r#"{"name":"orders","id":"1","address":"10.20.3.7","port":9990,"sslPort":null,"payload":null,"registrationTimeUTC":1754900000123,"serviceType":"DYNAMIC","uriSpec":null}"#;
const SPRING: &str = r#"{"name":"billing","id":"6a1e","address":"10.20.3.9","port":8080,"sslPort":null,"payload":{"@class":"org.springframework.cloud.zookeeper.discovery.ZookeeperInstance","id":"x","name":"billing","metadata":{"instance_status":"UP","zone":"a"}},"registrationTimeUTC":5,"serviceType":"DYNAMIC","uriSpec":null}"#;
const KRATOS: &str = r#"{"id":"7c2f","name":"orders","version":"v1.4.0","metadata":{"weight":"20"},"endpoints":["http://10.20.3.7:8000?isSecure=false","grpc://10.20.3.7:9000?isSecure=false","grpc://[fd00::7]:9000?isSecure=false"]}"#;
const DUBBO: &str = "/dubbo/com.acme.Orders/providers/tri%3A%2F%2F10.20.3.7%3A50051%2Fcom.acme.Orders%3Fgroup%3Dblue%26version%3D1.0%26zone%3Da";

#[test]
fn curator_to_grpc() {
    let set = layouts();
    let bridge = bridge(&set, "curator", "grpc-endpoints", |_| {});
    let check = |value: String, want: &str| {
        let instance = read(&set, Zookeeper, "/discovery/orders/1", &value);
        assert!(bridge.covers(&instance));
        assert_eq!(lines(&bridge.project(&set, &instance)), [want], "{value}");
    };
    check(
        CURATOR.into(),
        r#"orders/ID {"Op":0,"Addr":"10.20.3.7:9990","Metadata":null}"#,
    );
    check(
        CURATOR.replace(
            "\"payload\":null",
            r#""payload":{"@class":"com.acme.Meta","zone":"a","n":[1]}"#,
        ),
        r#"orders/ID {"Op":0,"Addr":"10.20.3.7:9990","Metadata":{"@class":"com.acme.Meta","zone":"a","n":[1]}}"#,
    );
    check(
        CURATOR.replace("\"payload\":null", "\"payload\":\"blue\""),
        r#"orders/ID {"Op":0,"Addr":"10.20.3.7:9990","Metadata":"blue"}"#,
    );
    check(
        CURATOR.replace("\"uriSpec\":null", "\"uriSpec\":{\"parts\":[]}"),
        r#"orders/ID {"Op":0,"Addr":"10.20.3.7:9990","Metadata":{"curator.uriSpec":{"parts":[]}}}"#,
    );
    check(
        CURATOR.replace("10.20.3.7", "fd00::7"),
        r#"orders/ID {"Op":0,"Addr":"[fd00::7]:9990","Metadata":null}"#,
    );
    check(
        CURATOR.replace("9990", "null"),
        "refused: an address has no port",
    );
    check(
        CURATOR.replace("\"sslPort\":null", "\"sslPort\":9991"),
        "refused: readers of grpc-endpoints cannot tell that an address speaks TLS",
    );
    check(
        CURATOR.replace("\"uriSpec\":null", "\"enabled\":false"),
        "refused: its status is OUT_OF_SERVICE, which readers of grpc-endpoints cannot see",
    );
    check(
        CURATOR.replace("\"payload\":null", r#""payload":{"causeway":1}"#),
        "refused: its metadata has the reserved name \"causeway\"",
    );
    // An address that grpc's readers could not dial.
    check(
        CURATOR.replace("10.20.3.7", "a/b"),
        "refused: grpc-endpoints would not read it back: not host:port: the host has a character that no host has",
    );
    // A service that the target's configuration does not list.
    let other = read(
        &set,
        Zookeeper,
        "/discovery/stock/1",
        &CURATOR.replace("orders", "stock"),
    );
    assert_eq!(
        lines(&bridge.project(&set, &other)),
        ["refused: grpc-endpoints does not own a service \"stock\""]
    );
}

#[test]
fn spring_to_grpc_and_back() {
    let set = layouts();
    let there = bridge(&set, "spring-zk", "grpc-endpoints", |_| {});
    let billing = read(&set, Zookeeper, "/services/billing/6a1e", SPRING);
    assert_eq!(
        lines(&there.project(&set, &billing)),
        [
            r#"billing/ID {"Op":0,"Addr":"10.20.3.9:8080","Metadata":{"instance_status":"UP","zone":"a"}}"#
        ]
    );

    let back = bridge(&set, "grpc-endpoints", "spring-zk", |_| {});
    let rpc = |metadata: &str| {
        let value = format!(r#"{{"Op":0,"Addr":"10.20.3.7:9000","Metadata":{metadata}}}"#);
        back.project(&set, &read(&set, Etcd, "orders/x", &value))
    };
    let spring = |metadata: &str| {
        format!(
            r#"/services/orders/ID {{"name":"orders","id":"ID","address":"10.20.3.7","port":9000,"sslPort":null,"payload":{{"@class":"org.springframework.cloud.zookeeper.discovery.ZookeeperInstance","id":"ID","name":"orders","metadata":{{{metadata}"instance_status":"UP"}}}},"registrationTimeUTC":0,"serviceType":"DYNAMIC","uriSpec":{{"parts":[{{"value":"scheme","variable":true}},{{"value":"://","variable":false}},{{"value":"address","variable":true}},{{"value":":","variable":false}},{{"value":"port","variable":true}}]}}}}"#
        )
    };
    assert_eq!(lines(&rpc("null")), [spring("")]);
    assert_eq!(lines(&rpc(r#"{"zone":"a"}"#)), [spring(r#""zone":"a","#)]);
    assert_eq!(
        lines(&rpc(r#"{"weight":3,"tags":["x"]}"#)),
        [spring(
            r#""weight":"3","tags":"[\"x\"]","causeway":"{\"json\":[\"weight\",\"tags\"]}","#
        )]
    );
    assert_eq!(
        lines(&rpc("\"blue\"")),
        ["refused: its metadata is no map, and spring-zk has maps only"]
    );
}

#[test]
fn grpc_to_curator() {
    let set = layouts();
    let plain = bridge(&set, "grpc-endpoints", "curator", |_| {});
    let classed = bridge(&set, "grpc-endpoints", "curator", |c| {
        c.payload_class = Some("java.util.HashMap".into())
    });
    let check = |bridge: &Bridge, metadata: &str, want: &str| {
        let value = format!(r#"{{"Op":0,"Addr":"10.20.3.7:9000","Metadata":{metadata}}}"#);
        let instance = read(&set, Etcd, "shop/orders/x", &value);
        let want = match want.starts_with("refused") {
            true => want.to_owned(),
            false => format!(
                r#"/discovery/shop/ID {{"name":"shop","id":"ID","address":"10.20.3.7","port":9000,"sslPort":null,"payload":{want},"registrationTimeUTC":0,"serviceType":"DYNAMIC","uriSpec":null}}"#
            ),
        };
        assert_eq!(
            lines(&bridge.project(&set, &instance)),
            [want],
            "{metadata}"
        );
    };
    // The target's name is no single znode; it needs another.
    check(
        &plain,
        "null",
        "refused: curator does not own a service \"shop/orders\"",
    );
    let plain = self::bridge(&set, "grpc-endpoints", "curator", |c| {
        c.rename = [("shop/orders".to_owned(), "shop".to_owned())]
            .into_iter()
            .collect();
    });
    let classed = {
        let mut config = classed.config.clone();
        config.rename = plain.config.rename.clone();
        Bridge { config, ..classed }
    };
    check(&plain, "null", "null");
    check(&plain, "\"blue\"", "\"blue\"");
    check(
        &plain,
        r#"{"zone":"a"}"#,
        "refused: Curator's readers decode metadata into one Java class; name it by payload_class",
    );
    check(
        &plain,
        r#"{"@class":"com.acme.M","zone":"a"}"#,
        r#"{"@class":"com.acme.M","zone":"a"}"#,
    );
    check(
        &classed,
        r#"{"zone":"a","w":3}"#,
        r#"{"@class":"java.util.HashMap","zone":"a","w":3}"#,
    );
    check(&classed, "{}", "null");
}

#[test]
fn go_zero_and_curator() {
    let set = layouts();
    let there = bridge(&set, "zero", "curator", |c| {
        c.rename = [("orders.rpc".to_owned(), "orders".to_owned())]
            .into_iter()
            .collect();
    });
    let zero = read(&set, Etcd, "orders.rpc/42", "10.20.3.7:8080");
    assert_eq!(
        lines(&there.project(&set, &zero)),
        [
            r#"/discovery/orders/ID {"name":"orders","id":"ID","address":"10.20.3.7","port":8080,"sslPort":null,"payload":null,"registrationTimeUTC":0,"serviceType":"DYNAMIC","uriSpec":null}"#
        ]
    );
    let rename = |c: &mut BridgeConfig| {
        c.rename = [("orders".to_owned(), "orders.rpc".to_owned())]
            .into_iter()
            .collect();
    };
    let back = bridge(&set, "curator", "zero", rename);
    let check = |bridge: &Bridge, value: String, want: &str| {
        let instance = read(&set, Zookeeper, "/discovery/orders/1", &value);
        assert_eq!(lines(&bridge.project(&set, &instance)), [want], "{value}");
    };
    check(&back, CURATOR.into(), "orders.rpc/ID 10.20.3.7:9990");
    let rich = CURATOR.replace("\"payload\":null", r#""payload":{"zone":"a"}"#);
    check(
        &back,
        rich.clone(),
        "refused: zero has no place for its metadata",
    );
    let lossy = bridge(&set, "curator", "zero", |c| {
        rename(c);
        c.accept_loss = [Loss::Metadata].into_iter().collect();
    });
    check(&lossy, rich, "orders.rpc/ID 10.20.3.7:9990");
    // A loss that was accepted never covers the status.
    check(
        &lossy,
        CURATOR.replace("\"uriSpec\":null", "\"enabled\":false"),
        "refused: its status is OUT_OF_SERVICE, which readers of zero cannot see",
    );
    let tls = CURATOR.replace("\"sslPort\":null", "\"sslPort\":9991");
    check(
        &lossy,
        tls.clone(),
        "refused: readers of zero cannot tell that an address speaks TLS",
    );
    let bold = bridge(&set, "curator", "zero", |c| {
        rename(c);
        c.accept_loss = [Loss::Tls].into_iter().collect();
    });
    let both = bold.project(&set, &read(&set, Zookeeper, "/discovery/orders/1", &tls));
    assert_eq!(
        lines(&both),
        [
            "orders.rpc/ID 10.20.3.7:9990",
            "orders.rpc/ID 10.20.3.7:9991"
        ]
    );
}

#[test]
fn kratos_and_the_others() {
    let set = layouts();
    let orders = read(&set, Etcd, "/microservices/orders/7c2f", KRATOS);
    let to = |to: &str, change: &dyn Fn(&mut BridgeConfig)| {
        lines(&bridge(&set, "kratos", to, |c| change(c)).project(&set, &orders))
    };
    // One key for each address that speaks gRPC; the HTTP one is none of its readers' business.
    let metadata = r#"{"weight":"20","kratos.version":"v1.4.0","causeway":{"weight":20}}"#;
    assert_eq!(
        to("grpc-endpoints", &|_| {}),
        [
            format!(r#"orders/ID {{"Op":0,"Addr":"10.20.3.7:9000","Metadata":{metadata}}}"#),
            format!(r#"orders/ID {{"Op":0,"Addr":"[fd00::7]:9000","Metadata":{metadata}}}"#),
        ]
    );
    assert_eq!(
        to("grpc-endpoints", &|c| c.schemes = Some(vec!["amqp".into()])),
        ["refused: no address speaks what readers of grpc-endpoints speak (it has grpc, http)"]
    );
    assert_eq!(
        to("curator", &|c| c.payload_class =
            Some("java.util.HashMap".into())),
        [
            "refused: curator has place for one plain and one TLS port of one host; choose by schemes"
        ]
    );
    assert_eq!(
        to("curator", &|c| {
            c.schemes = Some(vec!["http".into()]);
            c.payload_class = Some("java.util.HashMap".into());
        }),
        [
            r#"/discovery/orders/ID {"name":"orders","id":"ID","address":"10.20.3.7","port":8000,"sslPort":null,"payload":{"@class":"java.util.HashMap","weight":"20","kratos.version":"v1.4.0","causeway":{"weight":20}},"registrationTimeUTC":0,"serviceType":"DYNAMIC","uriSpec":null}"#
        ]
    );
    assert_eq!(
        to("zero", &|c| {
            c.rename = [("orders".to_owned(), "orders.rpc".to_owned())]
                .into_iter()
                .collect();
        }),
        ["refused: zero has no place for its metadata, weight"]
    );
    // The same family on the other store: everything has its place.
    assert_eq!(
        to("kratos-zk", &|_| {}),
        [
            r#"/microservices/orders/ID {"id":"ID","name":"orders","version":"v1.4.0","metadata":{"weight":"20"},"endpoints":["http://10.20.3.7:8000?isSecure=false","grpc://10.20.3.7:9000?isSecure=false","grpc://[fd00::7]:9000?isSecure=false"]}"#
        ]
    );

    let rpc = read(
        &set,
        Etcd,
        "orders/x",
        r#"{"Op":0,"Addr":"10.20.3.7:9000","Metadata":{"n":1}}"#,
    );
    let from_rpc = bridge(&set, "grpc-endpoints", "kratos", |_| {});
    assert_eq!(
        lines(&from_rpc.project(&set, &rpc)),
        ["refused: kratos needs the protocol's name; set schemes"]
    );
    let named = bridge(&set, "grpc-endpoints", "kratos", |c| {
        c.schemes = Some(vec!["grpc".into()])
    });
    assert_eq!(
        lines(&named.project(&set, &rpc)),
        [
            r#"/microservices/orders/ID {"id":"ID","name":"orders","version":"","metadata":{"n":"1","causeway":"{\"json\":[\"n\"]}"},"endpoints":["grpc://10.20.3.7:9000?isSecure=false"]}"#
        ]
    );
}

#[test]
fn dubbo_to_grpc_needs_a_name() {
    let set = layouts();
    let dubbo = read(&set, Zookeeper, DUBBO, "");
    let plain = bridge(&set, "dubbo-iface-zk", "grpc-endpoints", |_| {});
    assert_eq!(
        lines(&plain.project(&set, &dubbo)),
        [
            r#"refused: readers of grpc-endpoints cannot tell groups and versions apart; give "com.acme.Orders:1.0@blue" a name of its own under rename"#
        ]
    );
    let named = bridge(&set, "dubbo-iface-zk", "grpc-endpoints", |c| {
        c.rename = [("com.acme.Orders:1.0@blue".to_owned(), "orders".to_owned())]
            .into_iter()
            .collect();
        c.services = Some(vec!["com.acme.Orders:1.0@blue".into()]);
    });
    assert!(named.covers(&dubbo));
    assert_eq!(
        lines(&named.project(&set, &dubbo)),
        [
            r#"orders/ID {"Op":0,"Addr":"10.20.3.7:50051","Metadata":{"zone":"a","causeway":{"scheme":"tri","weight":100}}}"#
        ]
    );
    let old = read(&set, Zookeeper, &DUBBO.replace("tri%3A", "dubbo%3A"), "");
    assert_eq!(
        lines(&named.project(&set, &old)),
        ["refused: no address speaks what readers of grpc-endpoints speak (it has dubbo)"]
    );
    let twice = read(&set, Zookeeper, &format!("{DUBBO}%26zone%3Db"), "");
    assert_eq!(
        lines(&named.project(&set, &twice)),
        ["refused: a name occurs twice in its metadata"]
    );
    let other = read(&set, Zookeeper, &DUBBO.replace("blue", "green"), "");
    assert!(!named.covers(&other));
}

#[test]
fn names_follow_the_instance_and_never_meet() {
    let set = layouts();
    let bridge = bridge(&set, "curator", "grpc-endpoints", |_| {});
    let mut seen = BTreeSet::new();
    for host in 0..200 {
        for port in [80, 8080] {
            let id = format!("{host}-{port}");
            let value = CURATOR
                .replace("\"id\":\"1\"", &format!("\"id\":\"{id}\""))
                .replace("10.20.3.7", &format!("10.20.3.{host}"))
                .replace("9990", &port.to_string());
            let instance = read(&set, Zookeeper, &format!("/discovery/orders/{id}"), &value);
            let key = |instance: &Instance| match bridge.project(&set, instance) {
                Ok(projection) => projection
                    .records
                    .into_iter()
                    .map(|r| r.key)
                    .collect::<Vec<_>>(),
                Err(refusal) => panic!("{refusal}"),
            };
            let keys = key(&instance);
            // Another registration, and another state, of the same instance has the same name.
            let again = Instance {
                instance_id: "other".into(),
                registered_at_ms: None,
                metadata: vec![("a".into(), MetaValue::Text("b".into()))],
                ..instance.clone()
            };
            assert_eq!(keys, key(&again));
            for key in keys {
                assert!(seen.insert(key));
            }
        }
    }
    assert_eq!(seen.len(), 400);
    let lengths: BTreeSet<usize> = seen.iter().map(Vec::len).collect();
    assert_eq!(lengths.len(), 1, "no name is the beginning of another");
}

#[test]
fn a_projection_is_not_projected_again() {
    let set = layouts();
    let there = bridge(&set, "curator", "grpc-endpoints", |_| {});
    let back = bridge(&set, "grpc-endpoints", "curator", |_| {});
    let orders = read(&set, Zookeeper, "/discovery/orders/1", CURATOR);
    let projection = there.project(&set, &orders).expect("lossless");
    assert_eq!(projection.scope, "grpc-endpoints/orders");
    assert_eq!(
        (projection.layout.as_str(), projection.protocol),
        ("grpc-endpoints", Etcd)
    );
    let record = projection.records.first().expect("one record");
    let key = String::from_utf8_lossy(&record.key).into_owned();
    let copy = read(&set, Etcd, &key, &String::from_utf8_lossy(&record.value));
    assert_eq!(
        back.project(&set, &copy),
        Err(Refusal::new("the instance is a projection itself"))
    );
    for (name, want) in [
        (crate::path::name(&key), true),
        ("cw-", false),
        ("cw-0123", false),
        ("cw-0123456789abcdef0123456789abcdeg", false),
        ("cw-0123456789ABCDEF0123456789abcdef", false),
        ("1", false),
    ] {
        assert_eq!(is_projected_name(name), want, "{name}");
    }
}

#[test]
fn faults_of_bridges_are_all_named() {
    let set = layouts();
    let config = |from: &str, to: &str| BridgeConfig {
        from: from.into(),
        to: to.into(),
        ..BridgeConfig::default()
    };
    let mut with_class = config("curator", "grpc-endpoints");
    with_class.payload_class = Some("x".into());
    let configs = [
        config("eureka", "curator"),
        config("curator", "eureka"),
        config("curator", "curator"),
        config("curator", "dubbo-iface-zk"),
        config("curator", "dubbo-app-zk"),
        config("curator", "dianrong"),
        config("curator", "free"),
        with_class,
    ];
    let errors = Bridge::load(&configs, &set).expect_err("none of them is right");
    let got: Vec<String> = errors
        .iter()
        .map(|e| format!("{}: {}", e.layout, e.fault))
        .collect();
    let wanted = [
        "bridge 1 (eureka to curator): from: \"eureka\" is no layout",
        "bridge 2 (curator to eureka): to: \"eureka\" is no layout",
        "bridge 3 (curator to curator): a layout is not bridged to itself",
        "bridge 4 (curator to dubbo-iface-zk): to: a Dubbo URL needs interface",
        "bridge 5 (curator to dubbo-app-zk): to: Dubbo's callers need mapping",
        "bridge 6 (curator to dianrong): to: its names drop the dots",
        "bridge 7 (curator to free): to: nothing is known about writing",
        "bridge 8 (curator to grpc-endpoints): payload_class is for",
    ];
    assert_eq!(got.len(), wanted.len(), "{got:#?}");
    for (got, wanted) in got.iter().zip(wanted) {
        assert!(got.starts_with(wanted), "{got} / {wanted}");
    }
    let text = "from = \"curator\"\nto = \"grpc-endpoints\"\naccept_loss = [\"status\"]\n";
    assert!(toml::from_str::<BridgeConfig>(text).is_err());
    let text =
        "from = \"curator\"\nto = \"grpc-endpoints\"\naccept_loss = [\"metadata\", \"tls\"]\n";
    assert!(toml::from_str::<BridgeConfig>(text).is_ok());
}
