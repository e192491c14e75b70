//! Who calls: etcd's simple tokens (etcd: auth/simple_token.go), and names in certificates.

use std::collections::BTreeMap;

/// How long a token lives without being used, in milliseconds (etcd: `--auth-token-ttl`).
pub const TOKEN_TTL_MS: i64 = 300_000;

/// What a caller shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Credentials<'a> {
    /// A token; it counts before the certificate.
    pub token: Option<&'a str>,
    /// Common name in the caller's certificate; may be empty.
    pub certificate: Option<&'a str>,
}

/// The tokens given out since the start.
#[derive(Debug, Default)]
pub struct Tokens(BTreeMap<String, Token>);

#[derive(Debug)]
struct Token {
    user: String,
    ends_ms: i64,
}

impl Tokens {
    /// A token for a user who proved to be that. What makes it unique comes from outside.
    pub(crate) fn issue(&mut self, token: String, user: &str, now_ms: i64) {
        self.0.retain(|_, token| token.ends_ms > now_ms);
        let user = user.to_owned();
        let ends_ms = now_ms + TOKEN_TTL_MS;
        self.0.insert(token, Token { user, ends_ms });
    }

    /// The user of a token, which lives on from now.
    pub(crate) fn user(&mut self, token: &str, now_ms: i64) -> Option<&str> {
        let token = self.0.get_mut(token)?;
        if token.ends_ms <= now_ms {
            return None;
        }
        token.ends_ms = now_ms + TOKEN_TTL_MS;
        Some(&token.user)
    }

    /// The user is gone or has another password.
    pub(crate) fn drop_user(&mut self, user: &str) {
        self.0.retain(|_, token| token.user != user);
    }

    /// Authentication is off.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
