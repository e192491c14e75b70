//! Reading single nodes and whole subtrees.

use std::collections::BTreeMap;

use bytes::Bytes;
use causeway_backend::{
    Acl, BackendError, BackendName, Entry, LeaseId, Meta, Owner, Revision, Scope, ZookeeperMeta,
};
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use zookeeper_client::{Client, Error, Stat};

use crate::names::{child, reaches_below, roots};
use crate::session::Sessions;

/// Requests in flight while listing.
const IN_FLIGHT: usize = 256;

/// A node as an entry; `None` when there is none.
pub(crate) async fn node(
    sessions: &Sessions,
    name: &BackendName,
    client: &Client,
    path: &str,
) -> Result<Option<Entry>, BackendError> {
    match sessions.bounded(client.get_data(path)).await? {
        Ok((value, stat)) => {
            let acl = acl(sessions, client, path).await?;
            Ok(Some(entry(name, path, value, &stat, acl)))
        }
        Err(Error::NoNode) => Ok(None),
        Err(error) => Err(sessions.error(&error)),
    }
}

/// Everything in the scope, and the highest zxid seen on the way. Not at one moment: nodes are
/// read one after the other.
pub(crate) async fn scope(
    sessions: &Sessions,
    name: &BackendName,
    client: &Client,
    scope: &Scope,
) -> Result<(BTreeMap<Bytes, Entry>, i64), BackendError> {
    let roots = roots(scope);
    // Reads on one session may lag behind writes on another; a sync ends that.
    join_all(roots.iter().map(|root| sessions.call(client.sync(root))))
        .await
        .into_iter()
        .collect::<Result<(), _>>()?;
    let mut entries = BTreeMap::new();
    let mut highest = 0;
    let mut waiting = roots;
    let mut reads = FuturesUnordered::new();
    loop {
        while reads.len() < IN_FLIGHT
            && let Some(path) = waiting.pop()
        {
            reads.push(one(sessions, name, client, scope, path));
        }
        let Some(read) = reads.next().await else {
            break;
        };
        let Some(found) = read? else { continue };
        highest = highest.max(found.zxid);
        waiting.extend(found.children);
        if let Some(entry) = found.entry {
            entries.insert(entry.key.clone(), entry);
        }
    }
    Ok((entries, highest))
}

pub(crate) fn entry(
    name: &BackendName,
    path: &str,
    value: Vec<u8>,
    stat: &Stat,
    acl: Option<Vec<Acl>>,
) -> Entry {
    Entry {
        key: Bytes::copy_from_slice(path.as_bytes()),
        value: value.into(),
        owner: owner(stat),
        revision: Revision::from_i64(name.clone(), stat.mzxid),
        meta: Meta::Zookeeper(ZookeeperMeta {
            czxid: stat.czxid,
            mzxid: stat.mzxid,
            pzxid: stat.pzxid,
            ctime: stat.ctime,
            mtime: stat.mtime,
            version: stat.version,
            cversion: stat.cversion,
            aversion: stat.aversion,
            ephemeral_owner: stat.ephemeral_owner,
            num_children: stat.num_children,
            acl,
        }),
    }
}

/// Who owns a node. ZooKeeper puts markers of containers and TTL nodes where the owner stands
/// (`EphemeralType`): the least number for a container, a first byte of 0xff for a TTL.
pub(crate) fn owner(stat: &Stat) -> Owner {
    match stat.ephemeral_owner {
        0 | i64::MIN => Owner::Persistent,
        owner if owner.to_be_bytes().first() == Some(&0xff) => Owner::Persistent,
        owner => Owner::Lease(LeaseId(owner)),
    }
}

/// A node's ACL, where they are read at all and this gateway may read this one.
pub(crate) async fn acl(
    sessions: &Sessions,
    client: &Client,
    path: &str,
) -> Result<Option<Vec<Acl>>, BackendError> {
    if !sessions.options.read_acls {
        return Ok(None);
    }
    match sessions.bounded(client.get_acl(path)).await? {
        Ok((list, _)) => Ok(Some(list.iter().map(line).collect())),
        Err(Error::NoAuth | Error::NoNode) => Ok(None),
        Err(error) => Err(sessions.error(&error)),
    }
}

struct Found {
    /// `None` for a node above the scope.
    entry: Option<Entry>,
    children: Vec<String>,
    zxid: i64,
}

async fn one(
    sessions: &Sessions,
    name: &BackendName,
    client: &Client,
    scope: &Scope,
    path: String,
) -> Result<Option<Found>, BackendError> {
    let (value, stat) = match sessions.bounded(client.get_data(&path)).await? {
        Ok(found) => found,
        // It went while its siblings were read.
        Err(Error::NoNode) => return Ok(None),
        Err(error) => return Err(sessions.error(&error).context(path)),
    };
    let mut zxid = stat.mzxid.max(stat.pzxid);
    let mut children = Vec::new();
    if stat.num_children > 0 && reaches_below(scope, &path) {
        match sessions.bounded(client.get_children(&path)).await? {
            Ok((names, stat)) => {
                zxid = zxid.max(stat.pzxid);
                children = names.iter().map(|name| child(&path, name)).collect();
            }
            Err(Error::NoNode) => return Ok(None),
            Err(error) => return Err(sessions.error(&error).context(path)),
        }
    }
    children.retain(|path| scope.contains(path.as_bytes()) || reaches_below(scope, path));
    let entry = match scope.contains(path.as_bytes()) {
        true => {
            let acl = acl(sessions, client, &path).await?;
            Some(entry(name, &path, value, &stat, acl))
        }
        false => None,
    };
    Ok(Some(Found {
        entry,
        children,
        zxid,
    }))
}

fn line(acl: &zookeeper_client::Acl) -> Acl {
    use zookeeper_client::Permission;
    let permissions = [
        (Permission::READ, 1),
        (Permission::WRITE, 2),
        (Permission::CREATE, 4),
        (Permission::DELETE, 8),
        (Permission::ADMIN, 16),
    ]
    .into_iter()
    .filter(|(permission, _)| acl.permission().has(*permission))
    .map(|(_, bit)| bit)
    .sum();
    Acl {
        permissions,
        scheme: acl.scheme().to_owned(),
        id: acl.id().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_in_the_owner_field_are_no_owners() {
        let cases: &[(i64, Owner)] = &[
            (0, Owner::Persistent),
            (i64::MIN, Owner::Persistent),
            (0xff00_0000_0000_2710_u64 as i64, Owner::Persistent),
            (
                0x1000_0000_0000_0001,
                Owner::Lease(LeaseId(0x1000_0000_0000_0001)),
            ),
            // The id of a server above 127 makes its sessions negative.
            (
                0xc800_0000_0000_0001_u64 as i64,
                Owner::Lease(LeaseId(0xc800_0000_0000_0001_u64 as i64)),
            ),
        ];
        for (value, expected) in cases {
            let stat = Stat {
                czxid: 1,
                mzxid: 1,
                pzxid: 1,
                ctime: 0,
                mtime: 0,
                version: 0,
                cversion: 0,
                aversion: 0,
                ephemeral_owner: *value,
                data_length: 0,
                num_children: 0,
            };
            assert_eq!(owner(&stat), *expected, "{value:x}");
        }
    }
}
