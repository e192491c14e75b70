//! Paths between a client and an ensemble whose servers are configured with a chroot.
//!
//! ZooKeeper's servers know no chroot: a client puts it in front of its paths. Clients here do not know of
//! it, so that is done for them. `/zookeeper/config` is the same for every chroot, as in the Java client.

use bytes::{Bytes, BytesMut};
use causeway_wire::zk::record::RecordError;
use causeway_wire::zk::{MultiOp, MultiResult, OpCode, Reply, Request, WatcherEvent};

use super::config_node;

/// The prefix, empty or without a slash at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chroot(String);

impl Chroot {
    pub(super) fn new(prefix: &str) -> Self {
        Chroot(prefix.trim_end_matches('/').to_owned())
    }

    /// Whether paths are the same on both sides.
    pub(super) fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    /// A client's path as the ensemble has it. What is no path is left to the ensemble to refuse.
    pub(super) fn outward(&self, path: &str) -> String {
        match path {
            _ if self.is_none() || path == config_node::PATH || !path.starts_with('/') => {
                path.to_owned()
            }
            "/" => self.0.clone(),
            _ => format!("{}{path}", self.0),
        }
    }

    /// An ensemble's path as the client has it.
    pub(super) fn inward(&self, path: &str) -> String {
        match path.strip_prefix(self.0.as_str()) {
            Some("") => "/".to_owned(),
            Some(rest) if rest.starts_with('/') => rest.to_owned(),
            _ => path.to_owned(),
        }
    }

    /// The body of a request for the ensemble.
    pub(super) fn request(&self, mut request: Request) -> Bytes {
        if !self.is_none() {
            self.visit(&mut request);
        }
        let mut out = BytesMut::new();
        request.write(&mut out);
        out.freeze()
    }

    fn visit(&self, request: &mut Request) {
        let go = |path: &mut String| *path = self.outward(path);
        let all = |paths: &mut Vec<String>| paths.iter_mut().for_each(go);
        match request {
            Request::Create(r) | Request::Create2(r) | Request::CreateContainer(r) => {
                go(&mut r.path)
            }
            Request::CreateTtl(r) => go(&mut r.path),
            Request::Delete(r) => go(&mut r.path),
            Request::DeleteContainer(r) => go(&mut r.path),
            Request::Exists(r)
            | Request::GetData(r)
            | Request::GetChildren(r)
            | Request::GetChildren2(r) => {
                go(&mut r.path);
            }
            Request::SetData(r) => go(&mut r.path),
            Request::GetAcl(r) | Request::Sync(r) | Request::GetAllChildrenNumber(r) => {
                go(&mut r.path)
            }
            Request::SetAcl(r) => go(&mut r.path),
            Request::Check(r) => go(&mut r.path),
            Request::Multi(r) | Request::MultiRead(r) => {
                for op in &mut r.ops {
                    match op {
                        MultiOp::Create(c) | MultiOp::Create2(c) | MultiOp::CreateContainer(c) => {
                            go(&mut c.path)
                        }
                        MultiOp::CreateTtl(c) => go(&mut c.path),
                        MultiOp::Delete(d) => go(&mut d.path),
                        MultiOp::SetData(s) => go(&mut s.path),
                        MultiOp::Check(c) => go(&mut c.path),
                        MultiOp::GetData(g) | MultiOp::GetChildren(g) => go(&mut g.path),
                    }
                }
            }
            Request::CheckWatches(r) | Request::RemoveWatches(r) => go(&mut r.path),
            Request::SetWatches(r) => {
                all(&mut r.data_watches);
                all(&mut r.exist_watches);
                all(&mut r.child_watches);
            }
            Request::SetWatches2(r) => {
                all(&mut r.data_watches);
                all(&mut r.exist_watches);
                all(&mut r.child_watches);
                all(&mut r.persistent_watches);
                all(&mut r.persistent_recursive_watches);
            }
            // A blank prefix asks for all of the session's ephemerals, which all lie below the chroot.
            Request::GetEphemerals(r) if !r.prefix_path.trim().is_empty() => go(&mut r.prefix_path),
            Request::AddWatch(r) => go(&mut r.path),
            Request::GetEphemerals(_)
            | Request::Reconfig(_)
            | Request::Auth(_)
            | Request::Sasl(_)
            | Request::Ping
            | Request::CloseSession
            | Request::WhoAmI
            | Request::Unknown { .. } => {}
        }
    }

    /// The body of a successful reply for the client.
    pub(super) fn reply(&self, op: OpCode, body: Bytes) -> Result<Bytes, RecordError> {
        if self.is_none() {
            return Ok(body);
        }
        let go = |path: &mut String| *path = self.inward(path);
        let mut reply = match op {
            OpCode::Create
            | OpCode::Create2
            | OpCode::CreateContainer
            | OpCode::CreateTtl
            | OpCode::Sync
            | OpCode::GetEphemerals
            | OpCode::Multi => Reply::decode(op, body)?,
            _ => return Ok(body),
        };
        match &mut reply {
            Reply::Create(r) => go(&mut r.path),
            Reply::Create2(r) => go(&mut r.path),
            Reply::Sync(r) => go(&mut r.path),
            Reply::GetEphemerals(r) => r.ephemerals.iter_mut().for_each(go),
            Reply::Multi(r) => {
                for result in &mut r.results {
                    match result {
                        MultiResult::Create(c) => go(&mut c.path),
                        MultiResult::Create2(c) => go(&mut c.path),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
        Ok(reply.encode())
    }

    /// An event for the client; `None` when it is none of its business.
    pub(super) fn event(&self, mut event: WatcherEvent) -> Option<WatcherEvent> {
        if event.path == config_node::PATH {
            return None;
        }
        event.path = self.inward(&event.path);
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use causeway_wire::zk::record::Record;
    use causeway_wire::zk::reply::{CreateResponse, SyncResponse};
    use causeway_wire::zk::request::{PathRequest, SetWatchesRequest};

    use super::*;

    #[test]
    fn paths_map_both_ways() {
        let check = |prefix: &str, client: &str, ensemble: &str| {
            let chroot = Chroot::new(prefix);
            assert_eq!(chroot.outward(client), ensemble, "{prefix:?} {client}");
            assert_eq!(chroot.inward(ensemble), client, "{prefix:?} {ensemble}");
        };
        check("", "/", "/");
        check("", "/a/b", "/a/b");
        check("/app", "/", "/app");
        check("/app", "/a", "/app/a");
        check("/app", "/app", "/app/app");
        check("/app/", "/q/", "/app/q/");
        // Only whole segments are a chroot.
        assert_eq!(Chroot::new("/app").inward("/apple"), "/apple");
        assert_eq!(
            Chroot::new("/app").outward("/zookeeper/config"),
            "/zookeeper/config"
        );
        assert_eq!(Chroot::new("/app").outward("nonsense"), "nonsense");
    }

    #[test]
    fn requests_and_replies_are_rewritten() {
        let chroot = Chroot::new("/app");
        let body = chroot.request(Request::Sync(PathRequest { path: "/a".into() }));
        assert_eq!(
            PathRequest::decode(body).map(|r| r.path),
            Ok("/app/a".into())
        );
        let watches = SetWatchesRequest {
            relative_zxid: 7,
            data_watches: vec!["/a".into()],
            exist_watches: vec!["/".into()],
            child_watches: vec!["/c".into()],
        };
        let body = chroot.request(Request::SetWatches(watches));
        let got = SetWatchesRequest::decode(body).expect("whole");
        assert_eq!(
            (got.data_watches, got.exist_watches),
            (vec!["/app/a".to_owned()], vec!["/app".to_owned()])
        );
        let reply = |op, reply: Reply| chroot.reply(op, reply.encode()).expect("decodes");
        let created = CreateResponse {
            path: "/app/a0000000001".into(),
        };
        assert_eq!(
            CreateResponse::decode(reply(OpCode::Create, Reply::Create(created))).map(|r| r.path),
            Ok("/a0000000001".into())
        );
        let synced = SyncResponse {
            path: "/app".into(),
        };
        assert_eq!(
            SyncResponse::decode(reply(OpCode::Sync, Reply::Sync(synced))).map(|r| r.path),
            Ok("/".into())
        );
    }

    #[test]
    fn events_of_the_config_node_stay_here() {
        let event = |path: &str| WatcherEvent {
            kind: 3,
            state: 3,
            path: path.into(),
        };
        assert_eq!(Chroot::new("").event(event("/zookeeper/config")), None);
        assert_eq!(
            Chroot::new("/app").event(event("/app/x")),
            Some(event("/x"))
        );
    }
}
