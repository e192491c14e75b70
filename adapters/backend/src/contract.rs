//! The behaviour that every backend must have, written once and run over each.
//!
//! A test gives a [`Harness`] over one store and calls [`run`]; each case works below a root of
//! its own, so that they run side by side. A failure panics with the case and what was seen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt, join_all};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    Backend, BackendName, Certainty, Entry, ErrorKind, Event, EventStream, Expect, HealthState,
    Lease, LeaseId, Owner, Registration, Revision, Scope, Subtree, keep_alive,
};

/// One store, and what the suite must know about it.
#[async_trait]
pub trait Harness: Send + Sync {
    /// A fresh handle on the store; several see each other's entries.
    async fn backend(&self) -> Arc<dyn Backend>;

    /// What this kind of store can and cannot do.
    fn traits(&self) -> Traits;

    /// Cuts the store off from all handles; only called when [`Traits::can_be_cut_off`].
    async fn cut_off(&self);

    /// Joins it again, with the entries that it had.
    async fn join_again(&self);
}

/// What a kind of store can and cannot do.
#[derive(Debug, Clone, Copy)]
pub struct Traits {
    /// The ttl to ask for.
    pub ttl: Duration,
    /// How long after its end a lease's entries may still be there.
    pub slack: Duration,
    /// Whether any bytes make a key; otherwise only what makes a znode path.
    pub any_bytes_as_key: bool,
    /// Whether a lease gets the id that was asked for.
    pub honours_lease_ids: bool,
    /// Whether the harness can cut the store off.
    pub can_be_cut_off: bool,
}

/// Runs every case.
///
/// # Panics
/// When the backend breaks the contract.
pub async fn run(harness: &dyn Harness) {
    type Case = for<'a> fn(&'a Context<'a>) -> BoxFuture<'a, ()>;
    let cases: &[(&str, Case)] = &[
        ("registers", |context| registers(context).boxed()),
        ("keeps-bytes", |context| keeps_bytes(context).boxed()),
        ("lists-scopes", |context| lists_scopes(context).boxed()),
        ("expects", |context| expects(context).boxed()),
        ("races", |context| races(context).boxed()),
        ("expires", |context| expires(context).boxed()),
        ("keeps-alive", |context| keeps_alive(context).boxed()),
        ("closes", |context| closes(context).boxed()),
        ("changes-owner", |context| changes_owner(context).boxed()),
        ("lease-ids", |context| lease_ids(context).boxed()),
        ("watches", |context| watches(context).boxed()),
        ("watches-nothing", |context| {
            watches_nothing(context).boxed()
        }),
        ("watches-under-load", |context| {
            watches_under_load(context).boxed()
        }),
        ("two-handles", |context| two_handles(context).boxed()),
        ("health", |context| healthy(context).boxed()),
    ];
    let contexts: Vec<Context<'_>> = cases
        .iter()
        .map(|(name, _)| Context {
            harness,
            root: format!("/contract-{name}"),
        })
        .collect();
    join_all(
        cases
            .iter()
            .zip(&contexts)
            .map(|((_, case), context)| case(context)),
    )
    .await;
    if harness.traits().can_be_cut_off {
        outage(&Context {
            harness,
            root: "/contract-outage".to_owned(),
        })
        .await;
    }
}

/// Longest wait for anything that must happen; only a broken backend or machine reaches it.
const PATIENCE: Duration = Duration::from_secs(30);

struct Context<'a> {
    harness: &'a dyn Harness,
    root: String,
}

impl Context<'_> {
    async fn backend(&self) -> Arc<dyn Backend> {
        self.harness.backend().await
    }

    async fn lease(&self, backend: &dyn Backend) -> Lease {
        match backend.open_lease(None, self.harness.traits().ttl).await {
            Ok(lease) => lease,
            Err(error) => panic!("{}: a lease cannot be opened: {error}", self.root),
        }
    }

    /// A key of this case. Names of the suite's own entries start with `e-`: that tells them
    /// from implicit parents, which some stores list.
    fn key(&self, name: &str) -> Bytes {
        Bytes::from(format!("{}/{name}", self.root))
    }

    fn scope(&self) -> Scope {
        Scope::from(Subtree::root(self.root.clone()))
    }

    async fn put(&self, backend: &dyn Backend, name: &str, value: &str, owner: Owner) -> Revision {
        let registration = registration(self.key(name), value, owner, Expect::Any);
        match backend.register(registration).await {
            Ok(revision) => revision,
            Err(error) => panic!("{}: {name} cannot be registered: {error}", self.root),
        }
    }

    async fn get(&self, backend: &dyn Backend, name: &str) -> Option<Entry> {
        match backend.lookup(&self.key(name)).await {
            Ok(entry) => entry,
            Err(error) => panic!("{}: {name} cannot be read: {error}", self.root),
        }
    }

    /// The suite's own entries in this case's scope.
    async fn all(&self, backend: &dyn Backend) -> BTreeMap<Bytes, Entry> {
        match backend.snapshot(&self.scope()).await {
            Ok(snapshot) => own(snapshot.entries),
            Err(error) => panic!("{}: no snapshot: {error}", self.root),
        }
    }

    fn follow(&self, backend: &dyn Backend) -> Follower {
        Follower::new(&self.root, self.scope(), backend)
    }

    /// Waits until the suite's own entries are exactly these.
    async fn settles(&self, backend: &dyn Backend, expected: &[&str], within: Duration) {
        let expected: BTreeSet<Bytes> = expected.iter().map(|name| self.key(name)).collect();
        let deadline = Instant::now() + within;
        loop {
            let found: BTreeSet<Bytes> = self.all(backend).await.into_keys().collect();
            if found == expected {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{}: after {within:?} there is {found:?} and not {expected:?}",
                self.root
            );
            sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn registers(context: &Context<'_>) {
    let backend = context.backend().await;
    let lease = context.lease(&*backend).await;
    let owner = Owner::Lease(lease.id);
    assert_eq!(context.get(&*backend, "e-a").await, None);

    let first = context.put(&*backend, "e-a", "one", owner).await;
    let entry = context.get(&*backend, "e-a").await.expect("registered");
    assert_eq!(first.backend(), backend.name());
    assert_eq!((&entry.value[..], &entry.revision), (&b"one"[..], &first));
    assert_eq!(entry.lease(), Some(lease.id));

    let second = context.put(&*backend, "e-a", "two", owner).await;
    assert!(first < second, "{}: {first} then {second}", context.root);
    let companion = context
        .put(&*backend, "deep/er/e-b", "config", Owner::Persistent)
        .await;
    assert!(
        second < companion,
        "{}: {second} then {companion}",
        context.root
    );

    let all = context.all(&*backend).await;
    assert_eq!(all.len(), 2, "{all:?}");
    let a = &all[&context.key("e-a")];
    assert_eq!(
        (&a.value[..], &a.revision, a.owner),
        (&b"two"[..], &second, owner)
    );
    let b = &all[&context.key("deep/er/e-b")];
    assert_eq!((&b.value[..], b.owner), (&b"config"[..], Owner::Persistent));

    let gone = backend
        .deregister(&context.key("e-a"), Expect::Any)
        .await
        .expect("deregisters");
    let gone = gone.expect("there was an entry");
    assert!(
        second < gone,
        "{}: written at {second}, removed at {gone}",
        context.root
    );
    assert_eq!(context.get(&*backend, "e-a").await, None);
    let again = backend.deregister(&context.key("e-a"), Expect::Any).await;
    assert_eq!(again, Ok(None));
    let third = context.put(&*backend, "e-a", "three", owner).await;
    assert!(
        gone <= third && second < third,
        "{}: {gone} then {third}",
        context.root
    );
}

async fn keeps_bytes(context: &Context<'_>) {
    let backend = context.backend().await;
    let mut keys: Vec<Vec<u8>> = [
        "e-dubbo%3A%2F%2F10.0.0.1%3A20880%2Fcom.acme.Orders%3Fversion%3D1.0",
        "e-a b  c",
        "e-%",
        "e-%25%2525",
        "e-+&=?#[]{}|\\^~`'\"<>;:,@!$()*",
        "e-\u{e9}\u{4e2d}\u{6587}",
        "deep/e-x",
        "deep/e-x/e-y",
    ]
    .iter()
    .map(|name| context.key(name).to_vec())
    .collect();
    if context.harness.traits().any_bytes_as_key {
        for tail in [
            &b"/e-\x00"[..],
            b"/e-\xff\xfe",
            b"/e-a\x00b",
            b"//e-double",
            b"/e-end/",
        ] {
            keys.push([context.root.as_bytes(), tail].concat());
        }
    }
    let all_bytes: Vec<u8> = (0..=255).collect();
    let values: Vec<Vec<u8>> = vec![
        vec![],
        vec![0],
        all_bytes.clone(),
        b"%00 %25\r\n".to_vec(),
        all_bytes.repeat(256),
    ];
    let mut expected = BTreeMap::new();
    for (i, key) in keys.iter().enumerate() {
        let value = Bytes::from(values[i % values.len()].clone());
        let registration = Registration {
            key: Bytes::from(key.clone()),
            value: value.clone(),
            owner: Owner::Persistent,
            expect: Expect::Absent,
        };
        if let Err(error) = backend.register(registration).await {
            panic!("{}: {}: {error}", context.root, key.escape_ascii());
        }
        expected.insert(Bytes::from(key.clone()), value);
    }
    for (key, value) in &expected {
        let entry = backend.lookup(key).await.expect("reads").expect("exists");
        assert_eq!((&entry.key, &entry.value), (key, value));
    }
    let snapshot = backend
        .snapshot(&context.scope())
        .await
        .expect("lists")
        .entries;
    assert!(
        snapshot.is_sorted_by(|a, b| a.key < b.key),
        "{}: not in order of keys",
        context.root
    );
    let found: BTreeMap<Bytes, Bytes> = snapshot
        .into_iter()
        .map(|entry| (entry.key, entry.value))
        .collect();
    for (key, value) in &expected {
        assert_eq!(found.get(key), Some(value), "{}", key.escape_ascii());
    }
}

async fn lists_scopes(context: &Context<'_>) {
    let backend = context.backend().await;
    for name in ["orders/e-1", "orders/e-2", "orders-old/e-3", "bills/e-4"] {
        context.put(&*backend, name, name, Owner::Persistent).await;
    }
    let keys = |entries: Vec<Entry>| own(entries).into_keys().collect::<Vec<_>>();
    let check = async |subtrees: Vec<Subtree>, expected: &[&str]| {
        let expected: Vec<Bytes> = expected.iter().map(|name| context.key(name)).collect();
        let mut union = Vec::new();
        for subtree in &subtrees {
            union.extend(backend.discover(subtree).await.expect("discovers").entries);
        }
        assert_eq!(keys(union), expected, "{subtrees:?}");
        let snapshot = backend
            .snapshot(&Scope::new(subtrees.clone()))
            .await
            .expect("lists");
        let once: BTreeSet<&Bytes> = snapshot.entries.iter().map(|entry| &entry.key).collect();
        assert_eq!(
            once.len(),
            snapshot.entries.len(),
            "an entry came twice: {snapshot:?}"
        );
        assert_eq!(keys(snapshot.entries), expected, "{subtrees:?}");
    };
    let root = |name: &str| Subtree::root(context.key(name));
    let prefix = |name: &str| Subtree::prefix(context.key(name));
    check(vec![root("orders")], &["orders/e-1", "orders/e-2"]).await;
    check(vec![prefix("orders/")], &["orders/e-1", "orders/e-2"]).await;
    check(
        vec![prefix("orders")],
        &["orders-old/e-3", "orders/e-1", "orders/e-2"],
    )
    .await;
    check(vec![prefix("orders/e-2")], &["orders/e-2"]).await;
    check(vec![root("orders/e-2")], &["orders/e-2"]).await;
    check(
        vec![root("bills"), root("orders"), prefix("orders")],
        &["bills/e-4", "orders-old/e-3", "orders/e-1", "orders/e-2"],
    )
    .await;
    check(vec![root("nothing/here"), prefix("none-")], &[]).await;
}

async fn expects(context: &Context<'_>) {
    let backend = context.backend().await;
    let key = context.key("e-a");
    let write = async |value: &str, expect: Expect| {
        backend
            .register(registration(key.clone(), value, Owner::Persistent, expect))
            .await
    };
    let refused = |result: Result<Option<Revision>, crate::BackendError>, what: &str| {
        let error = match result {
            Err(error) => error,
            Ok(_) => panic!("{}: {what} was done", context.root),
        };
        assert_eq!(error.kind(), ErrorKind::Conflict, "{what}: {error}");
        assert_eq!(error.certainty(), Certainty::NotApplied, "{what}: {error}");
        assert!(!error.is_retryable(), "{what}: {error}");
    };

    let nowhere = Revision::from_i64(backend.name().clone(), 1);
    refused(
        write("x", Expect::Revision(nowhere)).await.map(Some),
        "a change of nothing",
    );
    let first = write("one", Expect::Absent).await.expect("creates");
    refused(
        write("x", Expect::Absent).await.map(Some),
        "a second create",
    );
    let second = write("two", Expect::Revision(first.clone()))
        .await
        .expect("changes");
    refused(
        write("x", Expect::Revision(first.clone())).await.map(Some),
        "a stale change",
    );
    let foreign = Revision::new(BackendName::new("another"), second.mark());
    refused(
        write("x", Expect::Revision(foreign.clone()))
            .await
            .map(Some),
        "a foreign mark",
    );

    let remove = async |expect: Expect| backend.deregister(&key, expect).await;
    refused(
        remove(Expect::Revision(first.clone())).await,
        "a stale removal",
    );
    refused(
        remove(Expect::Revision(foreign)).await,
        "a removal at a foreign mark",
    );
    let entry = context.get(&*backend, "e-a").await.expect("stays");
    assert_eq!((&entry.value[..], &entry.revision), (&b"two"[..], &second));
    let gone = remove(Expect::Revision(second.clone()))
        .await
        .expect("removes");
    assert!(gone.is_some());
    assert_eq!(remove(Expect::Revision(second.clone())).await, Ok(None));

    // A new entry under the same key is another one, whatever its store counts from.
    let third = write("three", Expect::Absent).await.expect("creates again");
    refused(
        write("x", Expect::Revision(first)).await.map(Some),
        "a change of the removed entry",
    );
    refused(
        remove(Expect::Revision(second)).await,
        "a removal of the removed entry",
    );
    assert!(
        remove(Expect::Revision(third))
            .await
            .expect("removes")
            .is_some()
    );
}

async fn races(context: &Context<'_>) {
    let backend = context.backend().await;
    let attempts = (0..8).map(|i| {
        let registration = registration(
            context.key("sub/e-a"),
            &i.to_string(),
            Owner::Persistent,
            Expect::Absent,
        );
        backend.register(registration)
    });
    let results = join_all(attempts).await;
    let winners: Vec<usize> = (0..results.len()).filter(|i| results[*i].is_ok()).collect();
    assert_eq!(winners.len(), 1, "{}: {results:?}", context.root);
    let entry = context.get(&*backend, "sub/e-a").await.expect("one won");
    assert_eq!(entry.value, winners[0].to_string());
    for error in results.into_iter().filter_map(Result::err) {
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    }
}

async fn expires(context: &Context<'_>) {
    let backend = context.backend().await;
    let lease = context.lease(&*backend).await;
    let mut follower = context.follow(&*backend);
    follower.synced().await;
    for name in ["e-a", "deep/e-b"] {
        context
            .put(&*backend, name, "owned", Owner::Lease(lease.id))
            .await;
    }
    context
        .put(&*backend, "e-stays", "persistent", Owner::Persistent)
        .await;
    let granted = backend.renew(lease.id).await.expect("renews");
    let renewed = Instant::now();
    sleep(granted / 2).await;
    // A slow machine may come too late to say anything about the first half.
    if renewed.elapsed() < granted.mul_f32(0.9) {
        context
            .settles(&*backend, &["e-a", "deep/e-b", "e-stays"], Duration::ZERO)
            .await;
    }
    let within = granted + context.harness.traits().slack;
    context.settles(&*backend, &["e-stays"], within).await;
    follower.until(|known| known.len() == 1).await;

    let error = backend
        .renew(lease.id)
        .await
        .expect_err("the lease has ended");
    assert_eq!(error.kind(), ErrorKind::LeaseGone, "{error}");
    assert_eq!(error.certainty(), Certainty::NotApplied);
    let late = registration(
        context.key("e-c"),
        "late",
        Owner::Lease(lease.id),
        Expect::Any,
    );
    let error = backend
        .register(late)
        .await
        .expect_err("the lease has ended");
    assert_eq!(error.kind(), ErrorKind::LeaseGone, "{error}");
    assert_eq!(context.get(&*backend, "e-c").await, None);
    assert_eq!(backend.close_lease(lease.id).await, Ok(()));
}

async fn keeps_alive(context: &Context<'_>) {
    let backend = context.backend().await;
    let lease = context.lease(&*backend).await;
    context
        .put(&*backend, "e-a", "kept", Owner::Lease(lease.id))
        .await;
    let created = context.get(&*backend, "e-a").await;
    let mut keeper = keep_alive(backend.clone(), lease);
    let long = lease.ttl * 2 + context.harness.traits().slack;
    assert!(
        timeout(long, keeper.gone()).await.is_err(),
        "{}: the lease went",
        context.root
    );
    assert_eq!(context.get(&*backend, "e-a").await, created);
    backend.close_lease(lease.id).await.expect("closes");
    let gone = timeout(PATIENCE, keeper.gone())
        .await
        .expect("told that the lease is gone");
    assert_eq!(gone.kind(), ErrorKind::LeaseGone, "{gone}");
}

async fn closes(context: &Context<'_>) {
    let backend = context.backend().await;
    let (ours, other) = (
        context.lease(&*backend).await,
        context.lease(&*backend).await,
    );
    assert_ne!(ours.id, other.id);
    let _kept = keep_alive(backend.clone(), other);
    for name in ["e-1", "e-2", "deep/e-3"] {
        context
            .put(&*backend, name, "", Owner::Lease(ours.id))
            .await;
    }
    context
        .put(&*backend, "e-other", "", Owner::Lease(other.id))
        .await;
    context
        .put(&*backend, "e-stays", "", Owner::Persistent)
        .await;
    backend.close_lease(ours.id).await.expect("closes");
    context
        .settles(&*backend, &["e-other", "e-stays"], Duration::ZERO)
        .await;
    backend
        .close_lease(ours.id)
        .await
        .expect("a closed lease is no error");
    let error = backend.renew(ours.id).await.expect_err("closed");
    assert_eq!(error.kind(), ErrorKind::LeaseGone, "{error}");
}

async fn changes_owner(context: &Context<'_>) {
    let backend = context.backend().await;
    let (one, two) = (
        context.lease(&*backend).await,
        context.lease(&*backend).await,
    );
    let _kept = (
        keep_alive(backend.clone(), one),
        keep_alive(backend.clone(), two),
    );
    let owners = [
        Owner::Lease(one.id),
        Owner::Lease(two.id),
        Owner::Persistent,
    ];
    let mut marks = BTreeMap::new();
    for name in ["e-to-two", "e-to-none"] {
        marks.insert(name, context.put(&*backend, name, "first", owners[0]).await);
    }
    context
        .put(&*backend, "e-from-none", "first", owners[2])
        .await;
    let moves = [
        (
            "e-to-two",
            owners[1],
            Expect::Revision(marks["e-to-two"].clone()),
        ),
        ("e-to-none", owners[2], Expect::Any),
        ("e-from-none", owners[1], Expect::Any),
    ];
    for (name, owner, expect) in moves {
        let moved = registration(context.key(name), "moved", owner, expect);
        let revision = backend.register(moved).await.expect("moves");
        let entry = context.get(&*backend, name).await.expect("is there");
        assert_eq!(
            (entry.owner, &entry.value[..]),
            (owner, &b"moved"[..]),
            "{name}"
        );
        assert_eq!(entry.revision, revision, "{name}");
    }
    backend.close_lease(one.id).await.expect("closes");
    let all = ["e-from-none", "e-to-none", "e-to-two"];
    context.settles(&*backend, &all, Duration::ZERO).await;
    backend.close_lease(two.id).await.expect("closes");
    context
        .settles(&*backend, &["e-to-none"], Duration::ZERO)
        .await;
}

async fn lease_ids(context: &Context<'_>) {
    if !context.harness.traits().honours_lease_ids {
        return;
    }
    let backend = context.backend().await;
    let ttl = context.harness.traits().ttl;
    for id in [LeaseId(0x1234_5678_9abc), LeaseId(i64::MAX)] {
        let lease = backend.open_lease(Some(id), ttl).await.expect("opens");
        assert_eq!(lease.id, id);
        let error = backend.open_lease(Some(id), ttl).await.expect_err("taken");
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        backend.close_lease(id).await.expect("closes");
        backend.open_lease(Some(id), ttl).await.expect("free again");
        backend.close_lease(id).await.expect("closes");
    }
}

async fn watches(context: &Context<'_>) {
    let backend = context.backend().await;
    let lease = context.lease(&*backend).await;
    let _kept = keep_alive(backend.clone(), lease);
    let owner = Owner::Lease(lease.id);
    context
        .put(&*backend, "e-before", "old", Owner::Persistent)
        .await;
    let mut follower = context.follow(&*backend);
    follower.synced().await;
    assert_eq!(follower.own(), context.all(&*backend).await);

    // One at a time, so that no step can be folded into the next.
    for value in ["one", "two", "three"] {
        let revision = context.put(&*backend, "e-a", value, owner).await;
        follower
            .until(|known| is(known, &context.key("e-a"), value))
            .await;
        assert_eq!(follower.own()[&context.key("e-a")].revision, revision);
    }
    context.put(&*backend, "deep/er/e-b", "nested", owner).await;
    follower
        .until(|known| is(known, &context.key("deep/er/e-b"), "nested"))
        .await;
    backend
        .deregister(&context.key("e-a"), Expect::Any)
        .await
        .expect("removes");
    follower
        .until(|known| !known.contains_key(&context.key("e-a")))
        .await;
    context.put(&*backend, "e-a", "again", owner).await;
    follower
        .until(|known| is(known, &context.key("e-a"), "again"))
        .await;
    backend.close_lease(lease.id).await.expect("closes");
    follower.until(|known| known.len() == 1).await;
    context
        .put(&*backend, "e-before", "new", Owner::Persistent)
        .await;
    follower
        .until(|known| is(known, &context.key("e-before"), "new"))
        .await;
    assert_eq!(follower.own(), context.all(&*backend).await);
    follower.quiet().await;
}

async fn watches_nothing(context: &Context<'_>) {
    let backend = context.backend().await;
    let far = format!("{}/not/yet/there", context.root);
    let scope = Scope::new([
        Subtree::root(far.clone()),
        Subtree::prefix(format!("{far}-")),
    ]);
    let mut follower = Follower::new(&context.root, scope, &*backend);
    follower.synced().await;
    assert!(follower.own().is_empty());
    context
        .put(&*backend, "not/yet/e-near", "outside", Owner::Persistent)
        .await;
    context
        .put(&*backend, "not/yet/there/e-a", "inside", Owner::Persistent)
        .await;
    context
        .put(
            &*backend,
            "not/yet/there-too/e-b",
            "by prefix",
            Owner::Persistent,
        )
        .await;
    follower.until(|known| known.len() == 2).await;
    let gone = backend
        .deregister(&context.key("not/yet/there/e-a"), Expect::Any)
        .await;
    assert!(gone.expect("removes").is_some());
    follower.until(|known| known.len() == 1).await;
    follower.quiet().await;
}

async fn watches_under_load(context: &Context<'_>) {
    let backend = context.backend().await;
    let lease = context.lease(&*backend).await;
    let _kept = keep_alive(backend.clone(), lease);
    let writer = |i: usize| {
        let backend = backend.clone();
        async move {
            for round in 0..12 {
                let name = format!("s{}/e-{i}", i % 3);
                if round % 4 == 3 {
                    let gone = backend.deregister(&context.key(&name), Expect::Any).await;
                    assert!(gone.expect("removes").is_some());
                } else {
                    let owner = match i % 2 {
                        0 => Owner::Persistent,
                        _ => Owner::Lease(lease.id),
                    };
                    context
                        .put(&*backend, &name, &round.to_string(), owner)
                        .await;
                }
            }
            context
                .put(&*backend, &format!("last/e-{i}"), "done", Owner::Persistent)
                .await;
        }
    };
    const WRITERS: usize = 16;
    let writers = join_all((0..WRITERS).map(writer));
    // Watches begin while writes are under way: before, between and after none may be lost.
    let followers = join_all((0..4_u64).map(|i| {
        let backend = backend.clone();
        async move {
            sleep(Duration::from_millis(i * 15)).await;
            let mut follower = context.follow(&*backend);
            follower
                .until(|known| {
                    let last = context.key("last/");
                    known.keys().filter(|key| key.starts_with(&last)).count() == WRITERS
                        && known.len() == WRITERS
                })
                .await;
            follower
        }
    }));
    let ((), followers) = tokio::join!(async { drop(writers.await) }, followers);
    let truth = context.all(&*backend).await;
    assert_eq!(truth.len(), WRITERS);
    for mut follower in followers {
        assert_eq!(follower.own(), truth, "{}", context.root);
        follower.quiet().await;
    }
}

async fn two_handles(context: &Context<'_>) {
    let (one, two) = (context.backend().await, context.backend().await);
    assert_eq!(one.name(), two.name());
    let lease = context.lease(&*one).await;
    let _kept = keep_alive(one.clone(), lease);
    let mut follower = context.follow(&*two);
    follower.synced().await;
    let revision = context
        .put(&*one, "e-a", "from one", Owner::Lease(lease.id))
        .await;
    follower
        .until(|known| is(known, &context.key("e-a"), "from one"))
        .await;
    let seen = context.get(&*two, "e-a").await.expect("seen by two");
    assert_eq!((&seen.revision, seen.lease()), (&revision, Some(lease.id)));
    assert_eq!(context.get(&*one, "e-a").await, Some(seen.clone()));
    let create = registration(context.key("e-a"), "x", Owner::Persistent, Expect::Absent);
    let error = two.register(create).await.expect_err("exists");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    context
        .put(&*two, "e-b", "from two", Owner::Persistent)
        .await;
    let gone = two
        .deregister(&context.key("e-a"), Expect::Revision(seen.revision))
        .await;
    assert!(gone.expect("removes").is_some());
    follower
        .until(|known| is(known, &context.key("e-b"), "from two") && known.len() == 1)
        .await;
    assert_eq!(context.all(&*one).await, context.all(&*two).await);
}

async fn healthy(context: &Context<'_>) {
    let backend = context.backend().await;
    let health = backend.health().await;
    assert_eq!(health.state, HealthState::Up, "{}", health.detail);
    assert!(!health.servers.is_empty());
    assert!(
        health
            .servers
            .iter()
            .all(|server| server.answering && server.latency.is_some())
    );
}

async fn outage(context: &Context<'_>) {
    let backend = context.backend().await;
    context
        .put(&*backend, "e-stays", "before", Owner::Persistent)
        .await;
    let mut follower = context.follow(&*backend);
    follower.synced().await;
    context.harness.cut_off().await;
    follower.lost().await;
    let health = backend.health().await;
    assert_eq!(health.state, HealthState::Down, "{}", health.detail);
    assert!(!health.is_usable() && !health.detail.is_empty());

    let failures = [
        timeout(PATIENCE, backend.snapshot(&context.scope()))
            .await
            .map(|result| result.err()),
        timeout(PATIENCE, backend.lookup(&context.key("e-stays")))
            .await
            .map(|result| result.err()),
        timeout(
            PATIENCE,
            backend.deregister(&context.key("e-none"), Expect::Any),
        )
        .await
        .map(|result| result.err()),
        timeout(
            PATIENCE,
            backend.register(registration(
                context.key("e-new"),
                "x",
                Owner::Persistent,
                Expect::Absent,
            )),
        )
        .await
        .map(|result| result.err()),
    ];
    for (i, failure) in failures.into_iter().enumerate() {
        let error = failure
            .expect("bounded in time")
            .expect("the store is away");
        assert!(error.is_retryable(), "call {i}: {error}");
        assert_ne!(error.certainty(), Certainty::Applied, "call {i}: {error}");
        if i < 2 {
            assert_eq!(
                error.certainty(),
                Certainty::NotApplied,
                "a read changes nothing: {error}"
            );
        }
    }

    // A handle made while the store is away works once it is back.
    let late = context.backend().await;
    let mut late_follower = context.follow(&*late);
    late_follower.lost().await;
    context.harness.join_again().await;
    follower.synced().await;
    late_follower.synced().await;
    assert!(is(&follower.own(), &context.key("e-stays"), "before"));
    assert_eq!(follower.own(), late_follower.own());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let health = late.health().await;
        if health.state == HealthState::Up {
            break;
        }
        assert!(Instant::now() < deadline, "still {health:?}");
        sleep(Duration::from_millis(100)).await;
    }
    let revision = context
        .put(&*late, "e-after", "after", Owner::Persistent)
        .await;
    for follower in [&mut follower, &mut late_follower] {
        follower
            .until(|known| is(known, &context.key("e-after"), "after"))
            .await;
        assert_eq!(follower.own()[&context.key("e-after")].revision, revision);
    }
    assert_eq!(follower.own(), context.all(&*backend).await);
}

/// Reads a watch, holds every step against the rules of [`Event`], and keeps what is known.
struct Follower {
    name: String,
    scope: Scope,
    stream: EventStream,
    known: BTreeMap<Bytes, Entry>,
    /// Highest mark seen of a key, and whether it came with its removal.
    marks: BTreeMap<Bytes, (Revision, bool)>,
    snapshot: Option<BTreeMap<Bytes, Entry>>,
    synced: bool,
}

impl Follower {
    fn new(name: &str, scope: Scope, backend: &dyn Backend) -> Self {
        Self {
            name: name.to_owned(),
            stream: backend.watch(scope.clone()),
            scope,
            known: BTreeMap::new(),
            marks: BTreeMap::new(),
            snapshot: None,
            synced: false,
        }
    }

    fn own(&self) -> BTreeMap<Bytes, Entry> {
        own(self.known.values().cloned())
    }

    async fn until(&mut self, reached: impl Fn(&BTreeMap<Bytes, Entry>) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !(self.synced && reached(&self.own())) {
            self.step(deadline).await;
        }
    }

    /// Waits for a whole snapshot after what was seen so far.
    async fn synced(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.synced {
            self.step(deadline).await;
        }
    }

    async fn lost(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if matches!(self.step(deadline).await, Event::Lost { .. }) {
                return;
            }
        }
    }

    /// Nothing more comes: what came late would have come twice.
    async fn quiet(&mut self) {
        if let Ok(event) = timeout(Duration::from_millis(300), self.stream.next()).await {
            panic!("{}: nothing changed, yet there came {event:?}", self.name);
        }
    }

    async fn step(&mut self, deadline: Instant) -> Event {
        let left = deadline.saturating_duration_since(Instant::now());
        let event = match timeout(left, self.stream.next()).await {
            Ok(Some(event)) => event,
            Ok(None) => panic!("{}: the watch ended", self.name),
            Err(_) => panic!("{}: nothing comes; known is {:?}", self.name, self.own()),
        };
        self.apply(event.clone());
        event
    }

    fn apply(&mut self, event: Event) {
        let name = &self.name;
        match event {
            Event::SnapshotStart => {
                assert!(
                    !self.synced && self.snapshot.is_none(),
                    "{name}: an unasked snapshot"
                );
                self.snapshot = Some(BTreeMap::new());
            }
            Event::SnapshotDone { revision } => {
                let Some(snapshot) = self.snapshot.take() else {
                    panic!("{name}: a snapshot ended without having begun");
                };
                self.known = snapshot;
                self.synced = true;
                self.marks.retain(|key, _| self.known.contains_key(key));
                drop(revision);
            }
            Event::Put(entry) => {
                assert!(
                    self.scope.contains(&entry.key),
                    "{name}: outside the scope: {entry:?}"
                );
                if let Some((mark, removed)) = self.marks.get(&entry.key) {
                    let fine = if self.snapshot.is_some() || *removed {
                        *mark <= entry.revision
                    } else {
                        *mark < entry.revision
                    };
                    assert!(fine, "{name}: {mark} had been seen before {entry:?}");
                }
                self.marks
                    .insert(entry.key.clone(), (entry.revision.clone(), false));
                match &mut self.snapshot {
                    Some(snapshot) => {
                        if let Some((last, _)) = snapshot.last_key_value() {
                            assert!(*last < entry.key, "{name}: not in the order of keys");
                        }
                        snapshot.insert(entry.key.clone(), entry);
                    }
                    None => {
                        assert!(
                            self.synced,
                            "{name}: a change outside what is known: {entry:?}"
                        );
                        self.known.insert(entry.key.clone(), entry);
                    }
                }
            }
            Event::Delete { key, revision } => {
                assert!(self.synced, "{name}: a removal outside what is known");
                let Some(entry) = self.known.remove(&key) else {
                    panic!("{name}: {} was not there to be removed", key.escape_ascii());
                };
                assert!(
                    entry.revision <= revision,
                    "{name}: {entry:?} removed at {revision}"
                );
                self.marks.insert(key, (revision, true));
            }
            Event::Lost { reason } => {
                assert!(!reason.is_empty(), "{name}: lost without a reason");
                assert!(
                    self.synced || self.snapshot.is_some() || self.known.is_empty(),
                    "{name}: lost twice in a row: {reason}"
                );
                self.synced = false;
                self.snapshot = None;
            }
        }
    }
}

fn registration(key: Bytes, value: &str, owner: Owner, expect: Expect) -> Registration {
    Registration {
        key,
        value: Bytes::copy_from_slice(value.as_bytes()),
        owner,
        expect,
    }
}

fn is(known: &BTreeMap<Bytes, Entry>, key: &Bytes, value: &str) -> bool {
    known.get(key).is_some_and(|entry| entry.value == value)
}

/// The suite's own entries; a name without its mark is an implicit parent.
fn own(entries: impl IntoIterator<Item = Entry>) -> BTreeMap<Bytes, Entry> {
    entries
        .into_iter()
        .filter(|entry| {
            let mut parts = entry.key.split(|byte| *byte == b'/');
            parts
                .next_back()
                .is_some_and(|name| name.starts_with(b"e-"))
        })
        .map(|entry| (entry.key.clone(), entry))
        .collect()
}
