//! What is ZooKeeper's own among the backend's behaviour.

use std::time::Duration;

use causeway_backend::testing::RealZookeeper;
use causeway_backend::{
    Acl, Backend, BackendName, ErrorKind, Event, Expect, Meta, Owner, Registration, Scope, Subtree,
    ZookeeperMeta,
};
use causeway_backend_zookeeper::{Servers, ZookeeperBackend, ZookeeperOptions};
use futures::StreamExt;
use tokio::time::Instant;

fn backend(connect: &str, change: impl FnOnce(&mut ZookeeperOptions)) -> ZookeeperBackend {
    let mut options = ZookeeperOptions::new(Servers::parse(connect).expect("a good address"));
    change(&mut options);
    ZookeeperBackend::new(BackendName::new("zookeeper"), options)
}

fn persistent(key: &str, value: &str) -> Registration {
    Registration {
        key: key.to_owned().into(),
        value: value.to_owned().into(),
        owner: Owner::Persistent,
        expect: Expect::Any,
    }
}

async fn meta(backend: &ZookeeperBackend, key: &str) -> ZookeeperMeta {
    match backend.lookup(key.as_bytes()).await {
        Ok(Some(entry)) => match entry.meta {
            Meta::Zookeeper(meta) => meta,
            other => panic!("{key}: {other:?}"),
        },
        other => panic!("{key}: {other:?}"),
    }
}

#[tokio::test]
async fn keys_lie_below_the_chroot() {
    let server = RealZookeeper::start().await;
    let whole = backend(&server.address(), |_| {});
    let below = backend(&format!("{}/a/b", server.address()), |_| {});
    let error = below
        .register(persistent("/n", "1"))
        .await
        .expect_err("no chroot");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("/a/b"), "{error}");
    whole
        .register(persistent("/a/b/other", "0"))
        .await
        .expect("makes the chroot");
    let revision = below
        .register(persistent("/n/m", "1"))
        .await
        .expect("registers");
    let entry = whole
        .lookup(b"/a/b/n/m")
        .await
        .expect("reads")
        .expect("is there");
    assert_eq!((&entry.value[..], entry.revision), (&b"1"[..], revision));
    let all = below
        .snapshot(&Scope::from(Subtree::root("/")))
        .await
        .expect("lists")
        .entries;
    let keys: Vec<&[u8]> = all.iter().map(|entry| &entry.key[..]).collect();
    assert_eq!(keys, [&b"/"[..], b"/n", b"/n/m", b"/other"]);
    let root = below.lookup(b"/").await.expect("reads");
    assert_eq!(root.as_ref(), all.first());
}

#[tokio::test]
async fn parents_are_made_as_asked_and_acls_are_read_when_asked() {
    let server = RealZookeeper::start().await;
    let plain = backend(&server.address(), |_| {});
    let special = backend(&server.address(), |options| {
        options.container_parents = true;
        options.read_acls = true;
    });
    plain
        .register(persistent("/plain/n", ""))
        .await
        .expect("registers");
    special
        .register(persistent("/special/n", ""))
        .await
        .expect("registers");
    assert_eq!(meta(&plain, "/plain").await.ephemeral_owner, 0);
    assert_eq!(meta(&plain, "/plain").await.acl, None);
    let anyone = Acl {
        permissions: 31,
        scheme: "world".to_owned(),
        id: "anyone".to_owned(),
    };
    assert_eq!(meta(&special, "/special").await.acl, Some(vec![anyone]));
    let lease = special
        .open_lease(None, Duration::from_secs(5))
        .await
        .expect("opens");
    let owned = Registration {
        owner: Owner::Lease(lease.id),
        ..persistent("/special/e", "")
    };
    special.register(owned).await.expect("registers");
    assert_eq!(meta(&plain, "/special/e").await.ephemeral_owner, lease.id.0);
    assert_eq!(meta(&plain, "/special").await.num_children, 2);
}

#[tokio::test]
async fn what_a_znode_cannot_do_is_said_in_words() {
    let server = RealZookeeper::start().await;
    let backend = backend(&server.address(), |_| {});
    for key in ["relative", "/a//b", "/a/", "/a/./b", "/a/\u{0}", ""] {
        let error = backend.register(persistent(key, "")).await.expect_err(key);
        assert_eq!(error.kind(), ErrorKind::InvalidKey, "{key:?}: {error}");
    }
    backend
        .register(persistent("/dir/n", ""))
        .await
        .expect("registers");
    let error = backend
        .deregister(b"/dir", Expect::Any)
        .await
        .expect_err("not empty");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let lease = backend
        .open_lease(None, Duration::from_secs(5))
        .await
        .expect("opens");
    let owner = Owner::Lease(lease.id);
    let owned = |key: &str| Registration {
        owner,
        ..persistent(key, "")
    };
    let error = backend
        .register(owned("/dir"))
        .await
        .expect_err("has children");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    backend.register(owned("/e")).await.expect("registers");
    let error = backend
        .register(persistent("/e/n", ""))
        .await
        .expect_err("below an ephemeral");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let stranger = Owner::Lease(causeway_backend::LeaseId(42));
    let foreign = Registration {
        owner: stranger,
        ..persistent("/f", "")
    };
    let error = backend
        .register(foreign)
        .await
        .expect_err("not a lease of this backend");
    assert_eq!(error.kind(), ErrorKind::LeaseGone, "{error}");
}

#[tokio::test]
async fn a_server_that_falls_silent_is_told_as_lost() {
    let server = RealZookeeper::start().await;
    let backend = backend(&server.address(), |options| {
        options.session_timeout = Duration::from_secs(4);
    });
    backend
        .register(persistent("/n", "1"))
        .await
        .expect("registers");
    let mut events = backend.watch(Scope::from(Subtree::root("/n")));
    let mut next = async || {
        let event = tokio::time::timeout(Duration::from_secs(30), events.next()).await;
        event.expect("in time").expect("endless")
    };
    while !matches!(next().await, Event::SnapshotDone { .. }) {}
    server.pause();
    let started = Instant::now();
    assert!(matches!(next().await, Event::Lost { .. }));
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
    let health = backend.health().await;
    assert!(!health.is_usable(), "{health:?}");
    server.resume();
    assert_eq!(next().await, Event::SnapshotStart);
}
