//! Users of the etcd protocol in the machine: their changes, and who may do what at this moment.

use super::{Core, Effects, Reply, Store};
use crate::key_auth::{AuthCommand, AuthError, AuthStore, Credentials, Demand};

impl Core {
    /// Users and roles.
    pub fn auth(&self) -> &AuthStore {
        &self.st.auth
    }

    /// Whether it matters who calls: authentication is on. With a legacy etcd users are that cluster's matter.
    pub fn asks_who_calls(&self) -> bool {
        self.st.auth.is_enabled() && self.settings.etcd == Store::Embedded
    }

    /// Whether the caller may do something now.
    pub fn permit(
        &mut self,
        demand: Demand<'_>,
        shown: Credentials<'_>,
        now_ms: i64,
    ) -> Result<(), AuthError> {
        if !self.asks_who_calls() {
            return Ok(());
        }
        // etcd looks at the form of a request before it asks who sent it (v3rpc/key.go).
        if let Demand::Write(command) = demand
            && self.st.keys.check_shape(command).is_err()
        {
            return Ok(());
        }
        let who = self.st.auth.identify(&mut self.tokens, shown, now_ms)?;
        self.st.auth.permit(&who, demand, &self.st.keys)
    }

    /// Gives a user a token, whose password was compared at `revision` of the users; `false` when they have changed
    /// since, so that it has to be compared again. Tokens are in no log: a restart voids them.
    pub fn issue_token(
        &mut self,
        user: &str,
        revision: u64,
        token: String,
        now_ms: i64,
    ) -> Result<bool, AuthError> {
        let (_, now) = self.st.auth.password_of(user)?;
        if now != revision {
            return Ok(false);
        }
        self.tokens.issue(token, user, now_ms);
        Ok(true)
    }

    pub(super) fn change_auth(&mut self, command: &AuthCommand, fx: &mut Effects) {
        let was_on = self.st.auth.is_enabled();
        let done = self.st.auth.apply(command);
        match command {
            AuthCommand::Disable if was_on => self.tokens.clear(),
            AuthCommand::UserDelete { name } | AuthCommand::UserChangePassword { name, .. }
                if done.is_ok() =>
            {
                self.tokens.drop_user(name);
            }
            _ => {}
        }
        fx.number = self.st.keys.revision();
        fx.reply = Some(Reply::Auth(done));
    }
}
