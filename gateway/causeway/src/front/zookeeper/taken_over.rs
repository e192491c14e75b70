//! After the take-over: which part of an operation is the view's and which the ensemble's.

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
use super::translate::{self, Shape};
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
            // What is refused here is not shown there.
            if translate::identity(auth, client.address.ip()).is_ok()
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
    let write = match translate::write(&request, client.session, &client.auth) {
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
    let judged = client
        .front
        .gateway
        .with(|core| {
            if core
                .tree_refusal(&peer, session, &write.op, now_ms)
                .is_some()
            {
                return Err(None);
            }
            versions(core, layouts, &mut outward).map_err(Some)
        })
        .0;
    match judged {
        Ok(()) => return ask(client, slot, outward, request, Then::Record(write)),
        Err(None) => client.answer(slot, translate::refused(&write.shape)),
        Err(Some(at)) => {
            let answer = match &write.shape {
                Shape::Multi(shapes) => Ok(Reply::Multi(MultiResponse::failure(
                    shapes.len(),
                    at,
                    ErrorCode::BadVersion,
                ))),
                _ => Err(ErrorCode::BadVersion),
            };
            client.answer(slot, answer);
        }
    }
    Ok(())
}

/// Versions that the client gives are the view's: they are checked here and become the ensemble's, or any
/// where that is not known. `Err` is the place of the one that differs.
fn versions(core: &Core, layouts: &LayoutSet, request: &mut Request) -> Result<(), usize> {
    let translate = |path: &str, version: &mut i32, at: usize| {
        if *version == -1 || class(layouts, path) != Class::Owned {
            return Ok(());
        }
        let Some(node) = core.tree().node(path) else {
            return Ok(());
        };
        if node.stat().version != *version {
            return Err(at);
        }
        let key = RecordKey::new(StoreKind::Zookeeper, path.as_bytes().to_vec());
        *version = match core.legacy_entry(&key).map(|entry| &entry.meta) {
            Some(LegacyMeta::Znode { stat, .. }) => stat.version,
            Some(LegacyMeta::Pair { .. }) | None => -1,
        };
        Ok(())
    };
    match request {
        Request::Delete(r) => translate(&r.path, &mut r.version, 0),
        Request::SetData(r) => translate(&r.path, &mut r.version, 0),
        // Versions of ACLs are not kept apart: the view has judged.
        Request::SetAcl(r) if r.version != -1 => {
            if core
                .tree()
                .node(&r.path)
                .is_some_and(|n| n.stat().aversion != r.version)
            {
                return Err(0);
            }
            r.version = -1;
            Ok(())
        }
        Request::Multi(multi) => {
            let mut ops = multi.ops.iter_mut().enumerate();
            ops.try_for_each(|(at, op)| match op {
                MultiOp::Delete(r) => translate(&r.path, &mut r.version, at),
                MultiOp::SetData(r) => translate(&r.path, &mut r.version, at),
                MultiOp::Check(r) => translate(&r.path, &mut r.version, at),
                _ => Ok(()),
            })
        }
        _ => Ok(()),
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
