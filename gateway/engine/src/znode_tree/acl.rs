//! ACLs: who may do what with a znode.
//!
//! ZooKeeper: `ZooKeeperServer.checkACL`, `PrepRequestProcessor.fixupACL` and the providers of the
//! schemes `world`, `auth`, `digest`, `ip` and `x509`.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use sha1::{Digest as _, Sha1};

use super::TreeError;
use super::x500::is_distinguished_name;

/// Permission bits of an [`Acl`], under ZooKeeper's names (`ZooDefs.Perms`).
pub mod perms {
    /// Read data and list children.
    pub const READ: u32 = 1;
    /// Set data.
    pub const WRITE: u32 = 1 << 1;
    /// Create children.
    pub const CREATE: u32 = 1 << 2;
    /// Delete children.
    pub const DELETE: u32 = 1 << 3;
    /// Set the ACL.
    pub const ADMIN: u32 = 1 << 4;
    /// All of the above.
    pub const ALL: u32 = READ | WRITE | CREATE | DELETE | ADMIN;
}

/// One entry of a znode's ACL: the permissions of everybody that `scheme:id` matches.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Acl {
    /// Bits of [`perms`]; unknown bits are stored as given, as ZooKeeper does.
    pub perms: u32,
    /// `world`, `auth`, `digest`, `ip`, ….
    pub scheme: String,
    /// What the scheme compares with, such as `user:base64(sha1(user:password))`.
    pub id: String,
}

impl Acl {
    /// An entry for everybody (`world:anyone`).
    pub fn world(perms: u32) -> Self {
        Acl {
            perms,
            scheme: "world".into(),
            id: "anyone".into(),
        }
    }

    fn is_world(&self) -> bool {
        self.scheme == "world" && self.id == "anyone"
    }
}

/// An identity that a connection has proved, or its address (scheme `ip`).
///
/// Scheme `super` passes every check. It is never given for what a client says, but for the
/// gateway's own writes, such as those to `/zookeeper/config`, and to the certificate that an operator named.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AuthId {
    /// Scheme that proved it.
    pub scheme: String,
    /// The identity in that scheme.
    pub id: String,
}

impl AuthId {
    /// The identity that every ACL lets pass.
    pub fn superuser() -> Self {
        AuthId {
            scheme: "super".into(),
            id: String::new(),
        }
    }

    /// The identity of somebody who proved `user` and `password` in scheme `digest`.
    pub fn digest(user: &str, password: &str) -> Self {
        AuthId {
            scheme: "digest".into(),
            id: digest_id(user, password),
        }
    }

    /// The identity of somebody who showed a certificate with this name, in Java's words
    /// (ZooKeeper: `X509AuthenticationProvider.getClientId`).
    pub fn x509(subject: String) -> Self {
        AuthId {
            scheme: "x509".into(),
            id: subject,
        }
    }

    /// The identity that a peer address gives to its connection.
    pub fn ip(address: IpAddr) -> Self {
        AuthId {
            scheme: "ip".into(),
            id: address.to_canonical().to_string(),
        }
    }
}

/// An ACL shared by all the nodes that have an equal one.
pub type AclRef = Arc<[Acl]>;

/// `user:base64(sha1("user:password"))`, the id of scheme `digest`
/// (ZooKeeper: `DigestAuthenticationProvider.generateDigest`).
pub fn digest_id(user: &str, password: &str) -> String {
    let mut hash = Sha1::new();
    hash.update(user.as_bytes());
    hash.update(b":");
    hash.update(password.as_bytes());
    format!("{user}:{}", BASE64.encode(hash.finalize()))
}

/// Whether somebody with the identities `auth` has one of the permissions `wanted`.
/// An empty ACL lets everybody pass.
pub fn permits(acl: &[Acl], wanted: u32, auth: &[AuthId]) -> bool {
    if acl.is_empty() {
        return true;
    }
    // The open ACL is nearly every ACL: settled before anything is compared.
    if acl.iter().any(|a| a.perms & wanted != 0 && a.is_world()) {
        return true;
    }
    auth.iter().any(|who| {
        who.scheme == "super"
            || acl
                .iter()
                .any(|a| a.perms & wanted != 0 && a.scheme == who.scheme && matches(a, who))
    })
}

/// The ACL as a caller without ADMIN sees it: hashes of passwords are replaced by `x`
/// (ZooKeeper: `FinalRequestProcessor`, getACL).
pub(super) fn redacted(acl: &[Acl]) -> Vec<Acl> {
    acl.iter()
        .map(|a| match a.id.split_once(':') {
            Some((user, _)) if a.scheme == "digest" => Acl {
                id: format!("{user}:x"),
                ..a.clone()
            },
            _ => a.clone(),
        })
        .collect()
}

/// The ACL that a create with these identities would store (ZooKeeper: `PrepRequestProcessor.fixupACL`).
pub fn resolve_acl(acl: &[Acl], auth: &[AuthId]) -> Result<Vec<Acl>, TreeError> {
    fix_up(acl, auth).map(Cow::into_owned)
}

/// The list that is stored when a client asks for `acl`: duplicates dropped, `auth` replaced by
/// the caller's own identities, everything unusable refused.
pub(super) fn fix_up<'a>(acl: &'a [Acl], auth: &[AuthId]) -> Result<Cow<'a, [Acl]>, TreeError> {
    if let [only] = acl
        && only.is_world()
    {
        return Ok(Cow::Borrowed(acl));
    }
    let mut fixed: Vec<Acl> = Vec::with_capacity(acl.len());
    for (i, entry) in acl.iter().enumerate() {
        if acl[..i].contains(entry) {
            continue;
        }
        match entry.scheme.as_str() {
            "world" if entry.is_world() => fixed.push(entry.clone()),
            "auth" => {
                let mut mine = auth.iter().filter(|who| is_authenticated(who)).peekable();
                if mine.peek().is_none() {
                    return Err(TreeError::InvalidAcl);
                }
                fixed.extend(mine.map(|who| Acl {
                    perms: entry.perms,
                    scheme: who.scheme.clone(),
                    id: who.id.clone(),
                }));
            }
            "digest" if is_digest_id(&entry.id) => fixed.push(entry.clone()),
            "ip" if parse_network(&entry.id).is_some() => fixed.push(entry.clone()),
            // Whether the scheme is on offer at all is the port's to say.
            "x509" if is_distinguished_name(&entry.id) => fixed.push(entry.clone()),
            _ => return Err(TreeError::InvalidAcl),
        }
    }
    if fixed.is_empty() {
        return Err(TreeError::InvalidAcl);
    }
    Ok(Cow::Owned(fixed))
}

fn matches(entry: &Acl, who: &AuthId) -> bool {
    if entry.scheme != "ip" {
        return entry.id == who.id;
    }
    match (parse_network(&entry.id), who.id.parse::<IpAddr>()) {
        (Some((network, bits)), Ok(address)) => same_network(network, address, bits),
        _ => false,
    }
}

/// Schemes whose identities are proved by the client, so that `auth` may stand for them; an
/// address proves nothing (ZooKeeper: `AuthenticationProvider.isAuthenticated`).
fn is_authenticated(who: &AuthId) -> bool {
    matches!(who.scheme.as_str(), "digest" | "x509" | "sasl")
}

/// Two parts, by the rules of Java's `String.split`, which drops empty parts at the end.
fn is_digest_id(id: &str) -> bool {
    let id = id.trim_end_matches(':');
    !id.is_empty() && id.split(':').count() == 2
}

fn parse_network(expression: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = match expression.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (expression, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        Some(text) => text.parse().ok().filter(|bits| *bits <= most)?,
        None => most,
    };
    Some((address, bits))
}

fn same_network(a: IpAddr, b: IpAddr, bits: u8) -> bool {
    let bits = u32::from(bits);
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let different = u32::from(a) ^ u32::from(b);
            different.leading_zeros() >= bits
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let different = u128::from(a) ^ u128::from(b);
            different.leading_zeros() >= bits
        }
        _ => false,
    }
}
