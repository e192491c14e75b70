//! After the take-over: which part of an operation is the view's and which the ensemble's.

use std::collections::HashMap;

use bytes::Bytes;
use causeway_engine::core::{Command, Core, LegacyMeta};
use causeway_engine::layout::LayoutSet;
use causeway_engine::path::{self, Protocol};
use causeway_engine::route::{self, Kind, Mode, Plan, Touches};
use causeway_engine::znode_tree::{self as tree, AuthId, CreateMode, TreeCommand, perms};
use causeway_registry::{RecordKey, StoreKind};
use causeway_wire::zk::multi::MultiKind;
use causeway_wire::zk::request::{
    AddWatchRequest, PathRequest, ReadRequest, SetWatches2Request, SetWatchesRequest,
    WatchesRequest,
};
use causeway_wire::zk::{
    ErrorCode, MultiOp, MultiRequest, MultiResponse, OpCode, Reply, Request, SlotId,
};

use super::conn::Client;
use super::general::{Asked, General, Then};
use super::socket::Ended;
use super::translate;
use super::{config_node, local};

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// A registration, or what belongs to one: the view's.
    Owned,
    /// The ensemble's.
    General,
    /// The ensemble's, with registrations somewhere below it.
    Mixed,
}

/// The class of a path, from the configuration alone.
pub(super) fn class(layouts: &LayoutSet, path: &str) -> Class {
    let key = path.as_bytes();
    if path == config_node::PATH || layouts.is_owned(Protocol::Zookeeper, key) {
        Class::Owned
    } else if layouts.owns_descendants_of(Protocol::Zookeeper, key) {
        Class::Mixed
    } else {
        Class::General
    }
}

/// Serves a request.
pub(super) fn serve(client: &mut Client, slot: SlotId, request: Request) -> Result<(), Ended> {
    let front = client.front.clone();
    let layouts = &front.gateway.config.layouts;
    match &request {
        Request::Create(_)
        | Request::Create2(_)
        | Request::CreateContainer(_)
        | Request::CreateTtl(_)
        | Request::Delete(_)
        | Request::SetData(_)
        | Request::SetAcl(_)
        | Request::Multi(_) => write(client, layouts, slot, request),
        Request::Exists(ReadRequest { path, .. })
        | Request::GetData(ReadRequest { path, .. })
        | Request::GetChildren(ReadRequest { path, .. })
        | Request::GetChildren2(ReadRequest { path, .. })
        | Request::GetAcl(PathRequest { path })
        | Request::Sync(PathRequest { path })
        | Request::GetAllChildrenNumber(PathRequest { path })
        | Request::CheckWatches(WatchesRequest { path, .. })
        | Request::RemoveWatches(WatchesRequest { path, .. })
        | Request::AddWatch(AddWatchRequest { path, .. }) => match class(layouts, path) {
            Class::Owned => local::serve(client, slot, request),
            Class::General => ask(client, slot, request.clone(), request, Then::Pass),
            Class::Mixed => ask(client, slot, request.clone(), request, Then::Union),
        },
        Request::MultiRead(multi) => multi_read(client, layouts, slot, multi),
        Request::GetEphemerals(_) => {
            let known = |core: &mut Core| {
                core.sessions()
                    .get(client.session)
                    .is_some_and(|s| s.legacy.is_some())
            };
            if front.gateway.with(known).0 {
                ask(client, slot, request.clone(), request, Then::Union)
            } else {
                local::serve(client, slot, request)
            }
        }
        Request::SetWatches(w) => {
            set_watches(client, layouts, slot, request.op(), &local::all_lists(w))
        }
        Request::SetWatches2(w) => set_watches(client, layouts, slot, request.op(), w),
        Request::Auth(auth) => {
            // What is refused here is not shown there, and a certificate cannot be.
            if translate::identity(auth, client.address.ip(), &[]).is_ok()
                && let Some(general) = &mut client.general
            {
                general.authenticate(auth);
            }
            local::serve(client, slot, request)
        }
        Request::CloseSession if client.general.as_ref().is_some_and(General::is_attached) => {
            ask(client, slot, Request::CloseSession, request, Then::Close)
        }
        Request::CloseSession
        | Request::Ping
        | Request::WhoAmI
        | Request::DeleteContainer(_)
        | Request::Reconfig(_)
        | Request::Sasl(_)
        | Request::Check(_)
        | Request::Unknown { .. } => local::serve(client, slot, request),
    }
}

fn ask(
    client: &mut Client,
    slot: SlotId,
    outward: Request,
    request: Request,
    then: Then,
) -> Result<(), Ended> {
    let gateway = client.front.gateway.clone();
    let general = client.general.as_mut().ok_or(Ended)?;
    general.ask(
        &gateway,
        outward,
        Asked {
            slot,
            request,
            then,
        },
    )
}

fn touches(layouts: &LayoutSet, request: &Request) -> Touches {
    let (mut owned, mut general) = (false, false);
    for path in translate::paths(request) {
        match class(layouts, path) {
            Class::Owned => owned = true,
            Class::General | Class::Mixed => general = true,
        }
    }
    match (owned, general) {
        (true, true) => Touches::Mixed,
        (false, true) => Touches::General,
        // A multi without operations is nobody's.
        (_, false) => Touches::Owned,
    }
}

fn write(
    client: &mut Client,
    layouts: &LayoutSet,
    slot: SlotId,
    request: Request,
) -> Result<(), Ended> {
    if translate::paths(&request) == [config_node::PATH] {
        local::write(client, slot, &request);
        return Ok(());
    }
    let touches = touches(layouts, &request);
    let phase = client.front.gateway.with(|core| core.phase().phase()).0;
    match route::plan(Mode::TakenOver, phase, touches, Kind::Write) {
        Plan::Legacy => ask(client, slot, request.clone(), request, Then::Pass),
        Plan::LegacyThenLocal => record(client, layouts, slot, request),
        Plan::RefuseMixed => {
            refuse_mixed(client, layouts, slot, &request);
            Ok(())
        }
        Plan::Local | Plan::LocalThenLegacy | Plan::LegacyThenCopy | Plan::Union => {
            make_parents(client, layouts, &request);
            local::write(client, slot, &request);
            Ok(())
        }
    }
}

/// A transaction over both classes has no single store any more.
fn refuse_mixed(client: &mut Client, layouts: &LayoutSet, slot: SlotId, request: &Request) {
    let paths = translate::paths(request);
    let at = paths
        .iter()
        .position(|p| class(layouts, p) != Class::Owned)
        .unwrap_or(0);
    tracing::warn!(
        peer = client.peer,
        general = paths.get(at).copied().unwrap_or_default(),
        "a transaction over registrations and general nodes is refused: they are in different stores in this phase"
    );
    let failure = MultiResponse::failure(paths.len(), at, ErrorCode::BadArguments);
    client.answer(slot, Ok(Reply::Multi(failure)));
}

/// The directories above a layout's subtree are the ensemble's, and the view knows them only as parents:
/// they come with their children.
fn make_parents(client: &mut Client, layouts: &LayoutSet, request: &Request) {
    let created: Vec<&str> = match request {
        Request::Create(c) | Request::Create2(c) | Request::CreateContainer(c) => vec![&c.path],
        Request::CreateTtl(c) => vec![&c.path],
        Request::Multi(multi) => multi
            .ops
            .iter()
            .filter(|op| {
                matches!(
                    op,
                    MultiOp::Create(_)
                        | MultiOp::Create2(_)
                        | MultiOp::CreateContainer(_)
                        | MultiOp::CreateTtl(_)
                )
            })
            .map(translate::multi_path)
            .collect(),
        _ => return,
    };
    let gateway = client.front.gateway.clone();
    for created in created
        .into_iter()
        .filter(|p| tree::validate_path(p).is_ok())
    {
        let mut missing = Vec::new();
        let mut at = created;
        while let Some(parent) = path::parent(at) {
            if class(layouts, parent) == Class::Mixed {
                missing.push(parent.to_owned());
            }
            at = parent;
        }
        for parent in missing.into_iter().rev() {
            if gateway.with(|core| core.tree().contains(&parent)).0 {
                continue;
            }
            let op = TreeCommand::Create {
                path: parent,
                data: Some(Bytes::new()),
                acl: vec![tree::Acl::world(perms::ALL)],
                mode: CreateMode::Persistent,
                session: 0,
                auth: vec![AuthId::superuser()],
            };
            gateway.apply(Command::Tree {
                peer: String::new(),
                session: 0,
                op,
            });
        }
    }
}

/// A registration in a phase in which the ensemble acknowledges: its refusal is the answer.
fn record(
    client: &mut Client,
    layouts: &LayoutSet,
    slot: SlotId,
    request: Request,
) -> Result<(), Ended> {
    let write = match client.write(&request) {
        Ok(Some(write)) => write,
        refused => {
            local::refuse(
                client,
                slot,
                refused.err().unwrap_or(ErrorCode::SystemError),
            );
            return Ok(());
        }
    };
    let now_ms = client.front.gateway.now_ms();
    let (peer, session) = (client.peer.clone(), client.session);
    let mut outward = request.clone();
    let refused = client
        .front
        .gateway
        .with(|core| {
            let refused = core
                .tree_refusal(&peer, session, &write.op, now_ms)
                .is_some();
            if !refused {
                versions(core, layouts, &mut outward);
            }
            refused
        })
        .0;
    if refused {
        client.answer(slot, translate::refused(&write.shape));
        return Ok(());
    }
    ask(client, slot, outward, request, Then::Record(write))
}

/// Versions that the client gives are the view's: they become the ensemble's, which is left to refuse those that
/// differ, in its own order.
fn versions(core: &Core, layouts: &LayoutSet, request: &mut Request) {
    match request {
        // Versions of ACLs are not kept apart: the view has judged.
        Request::SetAcl(r) if r.version != -1 => {
            if let Some(node) = core.tree().node(&r.path) {
                let same = node.stat().aversion == r.version;
                r.version = if same { -1 } else { NO_VERSION };
            }
        }
        _ => Versions::new(|path| {
            if class(layouts, path) != Class::Owned {
                return None;
            }
            let ours = core.tree().node(path)?.stat().version;
            let key = RecordKey::new(StoreKind::Zookeeper, path.as_bytes().to_vec());
            let theirs = match core.legacy_entry(&key).map(|entry| &entry.meta) {
                Some(LegacyMeta::Znode { stat, .. }) => Some(stat.version),
                Some(LegacyMeta::Pair { .. }) | None => None,
            };
            Some(Pair { ours, theirs })
        })
        .translate(request),
    }
}

/// A version that no node has: they begin at 0.
const NO_VERSION: i32 = i32::MIN;

/// The version of a node in the view, and in the ensemble if that is known.
#[derive(Debug, Clone, Copy)]
struct Pair {
    ours: i32,
    theirs: Option<i32>,
}

/// Versions of nodes as the operations of a request come to them.
struct Versions<F> {
    /// `None` for a node whose version is the same on both sides, or that is not there.
    before: F,
    /// What earlier operations made of it.
    now: HashMap<String, Option<Pair>>,
}

impl<F: Fn(&str) -> Option<Pair>> Versions<F> {
    fn new(before: F) -> Self {
        Versions {
            before,
            now: HashMap::new(),
        }
    }

    fn translate(mut self, request: &mut Request) {
        match request {
            Request::Delete(r) => self.expect(&r.path, &mut r.version),
            Request::SetData(r) => self.expect(&r.path, &mut r.version),
            Request::Multi(multi) => {
                for op in &mut multi.ops {
                    self.operation(op);
                }
            }
            _ => {}
        }
    }

    fn operation(&mut self, op: &mut MultiOp) {
        match op {
            MultiOp::Check(r) => self.expect(&r.path, &mut r.version),
            MultiOp::SetData(r) => {
                self.expect(&r.path, &mut r.version);
                let written = self.of(&r.path).map(|pair| Pair {
                    ours: pair.ours.wrapping_add(1),
                    theirs: pair.theirs.map(|version| version.wrapping_add(1)),
                });
                self.now.insert(r.path.clone(), written);
            }
            MultiOp::Delete(r) => {
                self.expect(&r.path, &mut r.version);
                // What is created in its place begins anew on both sides.
                self.now.insert(r.path.clone(), None);
            }
            _ => {}
        }
    }

    /// Any, where the ensemble's is not known.
    fn expect(&self, path: &str, version: &mut i32) {
        if *version == -1 {
            return;
        }
        if let Some(pair) = self.of(path) {
            *version = match pair.theirs {
                _ if pair.ours != *version => NO_VERSION,
                Some(theirs) => theirs,
                None => -1,
            };
        }
    }

    fn of(&self, path: &str) -> Option<Pair> {
        match self.now.get(path) {
            Some(now) => *now,
            None => (self.before)(path),
        }
    }
}

fn multi_read(
    client: &mut Client,
    layouts: &LayoutSet,
    slot: SlotId,
    multi: &MultiRequest,
) -> Result<(), Ended> {
    let request = Request::MultiRead(multi.clone());
    let owned = |op| class(layouts, translate::multi_path(op)) == Class::Owned;
    if multi.kind() == MultiKind::Write || multi.ops.iter().all(owned) {
        return local::serve(client, slot, request);
    }
    ask(client, slot, request.clone(), request, Then::MultiRead)
}

/// Each watch goes where its path is; on a directory of both, to both.
fn set_watches(
    client: &mut Client,
    layouts: &LayoutSet,
    slot: SlotId,
    op: i32,
    w: &SetWatches2Request,
) -> Result<(), Ended> {
    let ours = |class: Class| class != Class::General;
    let theirs = |class: Class| class != Class::Owned;
    let part = |wanted: &dyn Fn(Class) -> bool| {
        let some = |paths: &[String]| -> Vec<String> {
            paths
                .iter()
                .filter(|p| wanted(class(layouts, p)))
                .cloned()
                .collect()
        };
        SetWatches2Request {
            relative_zxid: w.relative_zxid,
            data_watches: some(&w.data_watches),
            exist_watches: some(&w.exist_watches),
            child_watches: some(&w.child_watches),
            persistent_watches: some(&w.persistent_watches),
            persistent_recursive_watches: some(&w.persistent_recursive_watches),
        }
    };
    let mut local = part(&ours);
    // A directory of both exists in the ensemble, or is asked for there: only its children are the view's too.
    let owned = |p: &String| class(layouts, p) == Class::Owned;
    local.data_watches.retain(owned);
    local.exist_watches.retain(owned);
    let mut outward = part(&theirs);
    let mixed = |p: &&String| class(layouts, p) == Class::Mixed;
    let both = w.child_watches.iter().filter(mixed).cloned();
    client.replies.both.extend(both);
    let nothing = outward.data_watches.is_empty()
        && outward.exist_watches.is_empty()
        && outward.child_watches.is_empty()
        && outward.persistent_watches.is_empty()
        && outward.persistent_recursive_watches.is_empty();
    if nothing {
        return local::set_watches(client, slot, &local);
    }
    let mark = client.front.gateway.with(|core| core.zxid_mark()).0;
    if outward.relative_zxid > mark {
        // A number of ours says nothing to the ensemble.
        outward.relative_zxid = client
            .front
            .numbers
            .theirs(client.session, outward.relative_zxid);
    }
    let outward = if op == OpCode::SetWatches as i32 {
        Request::SetWatches(SetWatchesRequest {
            relative_zxid: outward.relative_zxid,
            data_watches: outward.data_watches,
            exist_watches: outward.exist_watches,
            child_watches: outward.child_watches,
        })
    } else {
        Request::SetWatches2(outward)
    };
    ask(
        client,
        slot,
        outward,
        Request::SetWatches2(w.clone()),
        Then::SetWatches(Box::new(local)),
    )
}

#[cfg(test)]
mod tests {
    use causeway_wire::zk::request::{CheckVersionRequest, DeleteRequest, SetDataRequest};

    use super::*;

    fn check(path: &str, version: i32) -> MultiOp {
        let path = path.into();
        MultiOp::Check(CheckVersionRequest { path, version })
    }

    fn set(path: &str, version: i32) -> MultiOp {
        MultiOp::SetData(SetDataRequest {
            path: path.into(),
            data: None,
            version,
        })
    }

    fn delete(path: &str, version: i32) -> MultiOp {
        let path = path.into();
        MultiOp::Delete(DeleteRequest { path, version })
    }

    #[test]
    fn versions_are_the_ensembles_as_each_operation_comes_to_them() {
        let case = |ops: Vec<MultiOp>, want: &[i32]| {
            let mut request = Request::Multi(MultiRequest { ops });
            let before = |path: &str| match path {
                "/known" => Some(Pair {
                    ours: 2,
                    theirs: Some(7),
                }),
                "/unknown" => Some(Pair {
                    ours: 2,
                    theirs: None,
                }),
                _ => None,
            };
            Versions::new(before).translate(&mut request);
            let Request::Multi(multi) = &request else {
                panic!("still a multi");
            };
            let got: Vec<i32> = multi
                .ops
                .iter()
                .map(|op| match op {
                    MultiOp::Check(r) => r.version,
                    MultiOp::SetData(r) => r.version,
                    MultiOp::Delete(r) => r.version,
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!(got, want, "{multi:?}");
        };
        case(vec![check("/known", 2), check("/known", -1)], &[7, -1]);
        case(vec![set("/unknown", 2), set("/general", 5)], &[-1, 5]);
        // Not the view's: the ensemble refuses it in its turn.
        case(
            vec![delete("/none", 3), check("/known", 7)],
            &[3, NO_VERSION],
        );
        case(vec![set("/unknown", 7)], &[NO_VERSION]);
        // Each sees what those before it did.
        let twice = vec![set("/known", 2), set("/known", -1), check("/known", 4)];
        case(twice, &[7, -1, 9]);
        let anew = vec![delete("/known", 2), set("/known", 0), check("/known", 1)];
        case(anew, &[7, 0, 1]);
    }
}
