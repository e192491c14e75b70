//! What an answer of the ensemble to a client's write says about registrations.

use bytes::Bytes;
use causeway_engine::core::{Core, LegacyEntry, LegacyEvent, LegacyMeta};
use causeway_engine::layout::LayoutSet;
use causeway_engine::path::Protocol;
use causeway_engine::znode_tree::{Acl, AuthId, Stat, resolve_acl};
use causeway_wire::zk::{self, MultiOp, MultiResult, OpCode, Reply, Request};

use super::translate;

/// Flags of a container: nobody owns it, whatever the request's own flags say.
const CONTAINER: i32 = 4;

/// Who wrote, and what it takes to fill in what the answer does not tell.
pub(super) struct Seen<'a> {
    pub(super) session: i64,
    pub(super) auth: &'a [AuthId],
    pub(super) layouts: &'a LayoutSet,
    pub(super) now_ms: i64,
}

impl Seen<'_> {
    /// What a successful answer means for owned paths, in order.
    pub(super) fn events(
        &self,
        core: &Core,
        request: &Request,
        op: OpCode,
        body: Bytes,
        zxid: i64,
    ) -> Vec<LegacyEvent> {
        // An answer that cannot be read is the feed's to tell.
        let Ok(reply) = Reply::decode(op, body) else {
            return Vec::new();
        };
        let mut out = Vec::new();
        match (request, reply) {
            (Request::Create(c), Reply::Create(r)) => {
                out.extend(self.created(&r.path, &c.data, &c.acl, c.flags, None, zxid));
            }
            (Request::Create2(c), Reply::Create2(r)) => {
                out.extend(self.created(&r.path, &c.data, &c.acl, c.flags, Some(&r.stat), zxid));
            }
            (Request::CreateContainer(c), Reply::Create2(r)) => {
                out.extend(self.created(&r.path, &c.data, &c.acl, CONTAINER, Some(&r.stat), zxid));
            }
            (Request::CreateTtl(c), Reply::Create2(r)) => {
                out.extend(self.created(&r.path, &c.data, &c.acl, c.flags, Some(&r.stat), zxid));
            }
            (Request::Delete(d), Reply::Empty(())) => out.extend(self.deleted(&d.path, zxid)),
            (Request::SetData(s), Reply::Stat(r)) => {
                out.extend(self.changed(core, &s.path, s.data.clone(), &r.stat, zxid));
            }
            (Request::SetAcl(s), Reply::Stat(r)) => {
                out.extend(self.acl_set(core, &s.path, &s.acl, &r.stat))
            }
            (Request::Multi(multi), Reply::Multi(answer)) => {
                for (op, result) in multi.ops.iter().zip(&answer.results) {
                    out.extend(self.multi(core, op, result, zxid));
                }
            }
            _ => {}
        }
        out
    }

    fn multi(
        &self,
        core: &Core,
        op: &MultiOp,
        result: &MultiResult,
        zxid: i64,
    ) -> Option<LegacyEvent> {
        let (path, stat) = match result {
            MultiResult::Create(r) => (Some(r.path.as_str()), None),
            MultiResult::Create2(r) => (Some(r.path.as_str()), Some(&r.stat)),
            MultiResult::SetData(stat) => (None, Some(stat)),
            _ => (None, None),
        };
        match (op, path) {
            (MultiOp::Create(c) | MultiOp::Create2(c), Some(path)) => {
                self.created(path, &c.data, &c.acl, c.flags, stat, zxid)
            }
            (MultiOp::CreateContainer(c), Some(path)) => {
                self.created(path, &c.data, &c.acl, CONTAINER, stat, zxid)
            }
            (MultiOp::CreateTtl(c), Some(path)) => {
                self.created(path, &c.data, &c.acl, c.flags, stat, zxid)
            }
            (MultiOp::SetData(s), None) => self.changed(core, &s.path, s.data.clone(), stat?, zxid),
            (MultiOp::Delete(d), None) if *result == MultiResult::Delete => {
                self.deleted(&d.path, zxid)
            }
            _ => None,
        }
    }

    fn created(
        &self,
        path: &str,
        data: &Option<Bytes>,
        acl: &[zk::request::Acl],
        flags: i32,
        stat: Option<&zk::Stat>,
        zxid: i64,
    ) -> Option<LegacyEvent> {
        let owner = if matches!(flags, 1 | 3) {
            self.session
        } else {
            0
        };
        let stat = stat.map_or_else(
            || Stat {
                czxid: zxid,
                mzxid: zxid,
                pzxid: zxid,
                ctime: self.now_ms,
                mtime: self.now_ms,
                ephemeral_owner: owner,
                data_length: data
                    .as_ref()
                    .map_or(0, |d| i32::try_from(d.len()).unwrap_or(i32::MAX)),
                ..Stat::default()
            },
            translate::tree_stat,
        );
        let acl = translate::acls(acl);
        let acl = resolve_acl(&acl, self.auth).unwrap_or(acl);
        self.put(path, data.clone(), owner, stat, acl, zxid)
    }

    fn changed(
        &self,
        core: &Core,
        path: &str,
        data: Option<Bytes>,
        stat: &zk::Stat,
        zxid: i64,
    ) -> Option<LegacyEvent> {
        let acl = core
            .tree()
            .node(path)
            .map(|n| n.acl().to_vec())
            .unwrap_or_default();
        self.put(
            path,
            data,
            stat.ephemeral_owner,
            translate::tree_stat(stat),
            acl,
            zxid,
        )
    }

    /// The node's content stays: its ACL and Stat alone are new.
    fn acl_set(
        &self,
        core: &Core,
        path: &str,
        acl: &[zk::request::Acl],
        stat: &zk::Stat,
    ) -> Option<LegacyEvent> {
        let data = core.tree().node(path)?.data().cloned();
        let acl = translate::acls(acl);
        let acl = resolve_acl(&acl, self.auth).unwrap_or(acl);
        self.put(
            path,
            data,
            stat.ephemeral_owner,
            translate::tree_stat(stat),
            acl,
            stat.mzxid,
        )
    }

    fn put(
        &self,
        path: &str,
        value: Option<Bytes>,
        owner: i64,
        stat: Stat,
        acl: Vec<Acl>,
        mark: i64,
    ) -> Option<LegacyEvent> {
        self.owns(path).then(|| {
            LegacyEvent::Put(LegacyEntry {
                key: Bytes::copy_from_slice(path.as_bytes()),
                value,
                owner,
                mark,
                meta: LegacyMeta::Znode { stat, acl },
            })
        })
    }

    fn deleted(&self, path: &str, mark: i64) -> Option<LegacyEvent> {
        self.owns(path).then(|| LegacyEvent::Delete {
            key: Bytes::copy_from_slice(path.as_bytes()),
            mark,
        })
    }

    fn owns(&self, path: &str) -> bool {
        self.layouts.is_owned(Protocol::Zookeeper, path.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use causeway_engine::layout::LayoutSet;
    use causeway_wire::zk::reply::{Create2Response, CreateResponse};
    use causeway_wire::zk::request::{CreateRequest, DeleteRequest};
    use causeway_wire::zk::{MultiRequest, MultiResponse};

    use super::*;

    const SESSION: i64 = 0x1000_0000_0000_0007;

    fn create(path: &str, flags: i32) -> CreateRequest {
        let acl = vec![zk::request::Acl {
            perms: 31,
            scheme: "world".into(),
            id: "anyone".into(),
        }];
        CreateRequest {
            path: path.into(),
            data: Some(Bytes::from_static(b"v")),
            acl,
            flags,
        }
    }

    fn check(request: Request, op: OpCode, reply: Reply, want: &[(&str, Option<(i64, i64)>)]) {
        let layouts = LayoutSet::builtin_default();
        let settings = causeway_engine::core::Settings {
            zookeeper: causeway_engine::core::Store::Legacy,
            etcd: causeway_engine::core::Store::Embedded,
            layouts: layouts.clone(),
            bridges: Vec::new(),
            protection: causeway_engine::protection::Settings::default(),
            phase: causeway_engine::phase::Phase::Mirror,
            gate_time_ms: 1,
            tolerated_difference_ms: 1,
        };
        let core = Core::new(settings, 1, 1_796_000_000_000);
        let seen = Seen {
            session: SESSION,
            auth: &[],
            layouts: &layouts,
            now_ms: 5,
        };
        let got: Vec<(String, Option<(i64, i64)>)> = seen
            .events(&core, &request, op, reply.encode(), 77)
            .into_iter()
            .map(|event| match event {
                LegacyEvent::Put(e) => (
                    String::from_utf8_lossy(&e.key).into_owned(),
                    Some((e.owner, e.mark)),
                ),
                LegacyEvent::Delete { key, .. } => {
                    (String::from_utf8_lossy(&key).into_owned(), None)
                }
                other => panic!("{other:?}"),
            })
            .collect();
        let want: Vec<(String, Option<(i64, i64)>)> =
            want.iter().map(|(p, w)| ((*p).to_owned(), *w)).collect();
        assert_eq!(got, want, "{request:?}");
    }

    #[test]
    fn answers_become_entries_of_owned_paths_alone() {
        let path = |p: &str| Reply::Create(CreateResponse { path: p.into() });
        let with_stat = |p: &str| {
            Reply::Create2(Create2Response {
                path: p.into(),
                stat: zk::Stat {
                    czxid: 77,
                    ..zk::Stat::default()
                },
            })
        };
        let owned = "/dubbo/com.acme.Orders/providers/x";
        check(
            Request::Create(create(owned, 1)),
            OpCode::Create,
            path(owned),
            &[(owned, Some((SESSION, 77)))],
        );
        check(
            Request::Create(create("/locks/x", 1)),
            OpCode::Create,
            path("/locks/x"),
            &[],
        );
        // The name is the one that the ensemble gave.
        let named = "/dubbo/com.acme.Orders/providers/x0000000001";
        check(
            Request::Create2(create(owned, 3)),
            OpCode::Create2,
            with_stat(named),
            &[(named, Some((SESSION, 77)))],
        );
        let delete = DeleteRequest {
            path: owned.into(),
            version: -1,
        };
        check(
            Request::Delete(delete.clone()),
            OpCode::Delete,
            Reply::Empty(()),
            &[(owned, None)],
        );
        let multi = MultiRequest {
            ops: vec![
                MultiOp::Delete(delete),
                MultiOp::Create(create("/locks/x", 0)),
                MultiOp::Create(create(owned, 0)),
            ],
        };
        let results = vec![
            MultiResult::Delete,
            MultiResult::Create(CreateResponse {
                path: "/locks/x".into(),
            }),
            MultiResult::Create(CreateResponse { path: owned.into() }),
        ];
        let yes = Reply::Multi(MultiResponse { results });
        check(
            Request::Multi(multi.clone()),
            OpCode::Multi,
            yes,
            &[(owned, None), (owned, Some((0, 77)))],
        );
        let no = Reply::Multi(MultiResponse::failure(3, 1, zk::ErrorCode::NodeExists));
        check(Request::Multi(multi), OpCode::Multi, no, &[]);
    }
}
