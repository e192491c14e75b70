//! The few lines that an application writes around the crate.

use std::fmt::Debug;
use std::time::Duration;

use ::zookeeper_client::{
    Acls, Client, CreateMode, CreateOptions, Error, EventType, LockClient, LockOptions, LockPrefix,
    OneshotWatcher, OwnedLockClient, WatchedEvent,
};
use anyhow::{Context as _, Result};
use tokio::time::timeout;

use crate::common::{equal, ms, s, within};

pub(crate) const PERSISTENT: CreateOptions<'static> =
    CreateMode::Persistent.with_acls(Acls::anyone_all());
pub(crate) const EPHEMERAL: CreateOptions<'static> =
    CreateMode::Ephemeral.with_acls(Acls::anyone_all());
pub(crate) const SEQUENTIAL: CreateOptions<'static> =
    CreateMode::PersistentSequential.with_acls(Acls::anyone_all());

/// A connected client with a session of 10 s.
pub(crate) async fn connect(address: &str) -> Result<Client> {
    connect_for(address, s(10)).await
}

/// A connected client that asks for this timeout.
pub(crate) async fn connect_for(address: &str, session: Duration) -> Result<Client> {
    let connector = Client::connector()
        .with_session_timeout(session)
        .with_connection_timeout(s(5));
    within(s(10), "connect", connector.connect(address))
        .await?
        .with_context(|| format!("connect to {address}"))
}

/// The call is refused with this error.
pub(crate) fn refused<T: Debug>(
    answer: Result<T, Error>,
    expected: &Error,
    what: &str,
) -> Result<()> {
    equal(
        &answer
            .map(|_| "accepted")
            .map_err(|error| format!("{error:?}")),
        &Err(format!("{expected:?}")),
        what,
    )
}

/// The kind and the path of an event.
pub(crate) fn what(event: &WatchedEvent) -> (EventType, String) {
    (event.event_type, event.path.clone())
}

/// The watcher gets this event. A watcher is spent by its event, so that there is no second one to miss.
pub(crate) async fn fires(
    watcher: OneshotWatcher,
    kind: EventType,
    path: &str,
    limit: Duration,
) -> Result<()> {
    let event = within(limit, "event", watcher.changed()).await?;
    equal(&what(&event), &(kind, path.to_owned()), "event")
}

/// The watcher gets nothing for a second.
pub(crate) async fn silent(watcher: OneshotWatcher) -> Result<()> {
    let seen = timeout(ms(1000), watcher.changed()).await.ok();
    equal(&seen.as_ref().map(what), &None, "event")
}

/// The crate's lock, in Curator's form.
pub(crate) async fn acquire(client: &Client, folder: &str) -> Result<OwnedLockClient, Error> {
    Ok(acquire_bound(client, folder).await?.into_owned())
}

/// The lock, bound to its client. A lock that is dropped deletes its node; one that is forgotten leaves that to the
/// end of the session.
pub(crate) async fn acquire_bound<'a>(
    client: &'a Client,
    folder: &'a str,
) -> Result<LockClient<'a>, Error> {
    let prefix = LockPrefix::new_curator(folder, "lock-")?;
    let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(PERSISTENT)?;
    client.lock(prefix, b"", options).await
}

/// Another client's view: is the node there?
pub(crate) async fn there(client: &Client, path: &str) -> Result<bool> {
    Ok(client.check_stat(path).await?.is_some())
}
