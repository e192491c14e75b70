//! Who calls, and whether that is enough: what a call shows goes to the machine, which decides in the same moment in
//! which it answers or changes something.

use causeway_engine::core::{Command, Core};
use causeway_engine::key_auth::{AuthError, Credentials, Demand};
use causeway_engine::key_space::KeyCommand;
use causeway_wire::etcd::json::has_method;
use hyper::http::{HeaderMap, Request as HttpRequest};
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::Front;
use super::connection::Caller;
use super::translate::auth_status;
use crate::gateway::Done;

/// Where a token stands: under gRPC, and where the JSON gateway of etcd puts it (etcd: rpctypes/metadatafields.go).
const TOKEN: [&str; 2] = ["token", "authorization"];

/// gRPC-gateway's mark. etcd's would show its own certificate with such a call (auth/store.go, AuthInfoFromTLS).
const OF_GATEWAY: &str = "grpcgateway-accept";

/// What a call shows of its caller.
#[derive(Clone, Copy)]
pub(super) struct Shown<'a> {
    headers: &'a HeaderMap,
    pub(super) caller: &'a Caller,
}

impl<'a> Shown<'a> {
    pub(super) fn new(metadata: &'a MetadataMap, caller: &'a Caller) -> Self {
        Self::over(metadata.as_ref(), caller)
    }

    pub(super) fn over(headers: &'a HeaderMap, caller: &'a Caller) -> Self {
        Shown { headers, caller }
    }

    fn credentials(self) -> Credentials<'a> {
        let token = TOKEN.iter().find_map(|name| self.headers.get(*name));
        let certificate = self.caller.certificate.as_deref();
        Credentials {
            // What is no text is nobody's token.
            token: token.map(|token| token.to_str().unwrap_or("")),
            certificate: certificate.filter(|_| !self.headers.contains_key(OF_GATEWAY)),
        }
    }
}

/// What a call asks for by its name alone. All others look at what is in the request.
pub(super) fn admission(path: &str) -> Option<Demand<'static>> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    // What nobody serves is refused for that.
    if has_method(service, method) != Some(true) {
        return None;
    }
    match (service, method) {
        // To lower an alarm takes more.
        ("etcdserverpb.Maintenance", "Status" | "Alarm") => Some(Demand::BeKnown),
        ("etcdserverpb.Maintenance", _) => Some(Demand::BeRoot),
        ("etcdserverpb.Cluster", "MemberList") => Some(Demand::BeKnown),
        ("etcdserverpb.Cluster", _) => Some(Demand::BeRoot),
        _ => None,
    }
}

/// Whether the caller may do this in the machine as it is now.
pub(super) fn may(
    core: &mut Core,
    shown: Shown<'_>,
    demand: Demand<'_>,
    now_ms: impl FnOnce() -> i64,
) -> Result<(), AuthError> {
    if !core.asks_who_calls() {
        return Ok(());
    }
    core.permit(demand, shown.credentials(), now_ms())
}

impl Front {
    /// Refuses a call that its caller may not make whatever is in it.
    pub(super) fn admit<B>(&self, request: &HttpRequest<B>, caller: &Caller) -> Result<(), Status> {
        let Some(demand) = admission(request.uri().path()) else {
            return Ok(());
        };
        self.demand(Shown::over(request.headers(), caller), demand)
    }

    pub(super) fn demand(&self, shown: Shown<'_>, demand: Demand<'_>) -> Result<(), Status> {
        let now_ms = || self.gateway.now_ms();
        let looked = self.gateway.with(|core| may(core, shown, demand, now_ms));
        looked.0.map_err(auth_status)
    }

    /// Writes to the machine what the caller may write.
    pub(super) fn write(&self, shown: Shown<'_>, op: KeyCommand) -> Result<Done, Status> {
        let peer = shown.caller.peer.clone();
        let done =
            self.gateway.apply_if(
                Command::Keys { peer, op },
                |core, command, now_ms| match command {
                    Command::Keys { op, .. } => may(core, shown, Demand::Write(op), || now_ms),
                    _ => Ok(()),
                },
            );
        done.map_err(auth_status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_their_names_tell_apart() {
        for (path, want) in [
            ("/etcdserverpb.Maintenance/Status", "Some(BeKnown)"),
            ("/etcdserverpb.Maintenance/Alarm", "Some(BeKnown)"),
            ("/etcdserverpb.Maintenance/Snapshot", "Some(BeRoot)"),
            ("/etcdserverpb.Maintenance/HashKV", "Some(BeRoot)"),
            ("/etcdserverpb.Cluster/MemberList", "Some(BeKnown)"),
            ("/etcdserverpb.Cluster/MemberAdd", "Some(BeRoot)"),
            ("/etcdserverpb.KV/Range", "None"),
            ("/etcdserverpb.Auth/UserAdd", "None"),
            ("/grpc.health.v1.Health/Check", "None"),
            ("/etcdserverpb.Maintenance/Nope", "None"),
            ("nonsense", "None"),
        ] {
            assert_eq!(format!("{:?}", admission(path)), want, "{path}");
        }
    }

    #[test]
    fn tokens_and_names_are_where_etcd_looks() {
        let check = |headers: &[(&'static str, &'static str)], certificate: Option<&str>, want| {
            let mut metadata = MetadataMap::new();
            for (name, value) in headers {
                metadata.insert(*name, value.parse().expect("ascii"));
            }
            let mut caller = Caller::nobody();
            caller.certificate = certificate.map(str::to_owned);
            let shown = Shown::new(&metadata, &caller).credentials();
            assert_eq!((shown.token, shown.certificate), want, "{headers:?}");
        };
        check(&[], None, (None, None));
        check(&[("token", "t.1")], None, (Some("t.1"), None));
        check(&[("authorization", "a.1")], None, (Some("a.1"), None));
        let both = [("authorization", "a.1"), ("token", "t.1")];
        check(&both, Some("cn"), (Some("t.1"), Some("cn")));
        check(&[], Some("cn"), (None, Some("cn")));
        check(&[("grpcgateway-accept", "*/*")], Some("cn"), (None, None));
    }
}
