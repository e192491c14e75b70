//! After the take-over: which part of an operation is the view's and which the ensemble's.

use std::collections::BTreeSet;

use bytes::Bytes;
use causeway_backend_zookeeper::upstream::Answer as LegacyAnswer;
use causeway_engine::core::{Command, Core, LegacyMeta};
use causeway_engine::layout::LayoutSet;
use causeway_engine::path::{self, Protocol};
use causeway_engine::phase::LegacyCopy;
use causeway_engine::route::{self, Kind, Mode, Plan, Touches};
use causeway_engine::znode_tree::{self as tree, AuthId, CreateMode, TreeCommand, perms};
use causeway_registry::{RecordKey, StoreKind};
use causeway_wire::zk::record::Record;
use causeway_wire::zk::reply::{GetChildren2Response, GetChildrenResponse, GetDataResponse, StatResponse};
use causeway_wire::zk::request::{ReadRequest, SetWatches2Request};
use causeway_wire::zk::{
    ErrorCode, MultiOp, MultiRequest, MultiResponse, MultiResult, OpCode, Reply, Request, SlotId, Stat,
};

use super::conn::{Client, Ended, IntoWatcher};
use super::general::{Answered, Asked, Incident, Then, is_list};
use super::local::{self, Reader};
use super::translate::{self, Shape, Write};
use super::config_node;

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// A registration, or what belongs to one: the view's.
    Owned,
    /// The ensemble's.
    General,
    /// The ensemble's, with registrations somewhere below it.
    Mixed,
}

fn class(layouts: &LayoutSet, path: &str) -> Class {
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
        Request::Exists(r) | Request::GetData(r) | Request::GetChildren(r) | Request::GetChildren2(r) => {
            match class(layouts, &r.path) {
                Class::Owned => return local::serve(client, slot, request),
                Class::General => ask(client, slot, request.clone(), request, Then::Pass),
                Class::Mixed => ask(client, slot, request.clone(), request, Then::Union),
            }
        }
        Request::GetAcl(r) | Request::Sync(r) | Request::GetAllChildrenNumber(r) => match class(layouts, &r.path) {
            Class::Owned => return local::serve(client, slot, request),
            Class::General => ask(client, slot, request.clone(), request, Then::Pass),
            Class::Mixed => ask(client, slot, request.clone(), request, Then::Union),
        },
        Request::CheckWatches(r) | Request::RemoveWatches(r) => match class(layouts, &r.path) {
            Class::Owned => return local::serve(client, slot, request),
            Class::General => ask(client, slot, request.clone(), request, Then::Pass),
            Class::Mixed => ask(client, slot, request.clone(), request, Then::Union),
        },
        Request::AddWatch(r) => match class(layouts, &r.path) {
            Class::Owned => return local::serve(client, slot, request),
            Class::General => ask(client, slot, request.clone(), request, Then::Pass),
            Class::Mixed => ask(client, slot, request.clone(), request, Then::Union),
        },
        Request::MultiRead(multi) => return multi_read(client, layouts, slot, multi),
        Request::GetEphemerals(_) => {
            let id = client.session;
            let has_legacy =
                client.front.gateway.with(|core| core.sessions().get(id).is_some_and(|s| s.legacy.is_some())).0;
            if !has_legacy {
                return local::serve(client, slot, request);
            }
            ask(client, slot, request.clone(), request, Then::Union);
        }
        Request::SetWatches(w) => {
            let all = SetWatches2Request {
                relative_zxid: w.relative_zxid,
                data_watches: w.data_watches.clone(),
                exist_watches: w.exist_watches.clone(),
                child_watches: w.child_watches.clone(),
                ..SetWatches2Request::default()
            };
            return set_watches(client, layouts, slot, request.op(), &all);
        }
        Request::SetWatches2(w) => return set_watches(client, layouts, slot, request.op(), w),
        Request::Auth(auth) => {
            // What is refused here is not shown there.
            if translate::identity(auth, client.address.ip()).is_ok() {
                if let Some(general) = &mut client.general {
                    general.authenticate(auth);
                }
            }
            return local::serve(client, slot, request);
        }
        Request::CloseSession => {
            if client.general.as_ref().is_some_and(super::general::General::is_attached) {
                ask(client, slot, Request::CloseSession, request, Then::Close);
            } else {
                return local::serve(client, slot, request);
            }
        }
        Request::Ping
        | Request::WhoAmI
        | Request::DeleteContainer(_)
        | Request::Reconfig(_)
        | Request::Sasl(_)
        | Request::Check(_)
        | Request::Unknown { .. } => return local::serve(client, slot, request),
    }
    Ok(())
}

fn ask(client: &mut Client, slot: SlotId, outward: Request, request: Request, then: Then) {
    let gateway = client.front.gateway.clone();
    if let Some(general) = &mut client.general {
        general.ask(&gateway, outward, Asked { slot, request, then });
    }
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

fn write(client: &mut Client, layouts: &LayoutSet, slot: SlotId, request: Request) {
    let touches = touches(layouts, &request);
    let phase = client.front.gateway.with(|core| core.phase().phase()).0;
    match route::plan(Mode::TakenOver, phase, touches, Kind::Write) {
        Plan::Legacy => ask(client, slot, request.clone(), request, Then::Pass),
        Plan::LegacyThenLocal => record(client, layouts, slot, request),
        Plan::RefuseMixed => refuse_mixed(client, layouts, slot, &request),
        Plan::Local | Plan::LocalThenLegacy | Plan::LegacyThenCopy | Plan::Union => {
            make_parents(client, layouts, &request);
            local::write(client, slot, &request);
        }
    }
}

/// A transaction over both classes has no single store any more.
fn refuse_mixed(client: &mut Client, layouts: &LayoutSet, slot: SlotId, request: &Request) {
    let paths = translate::paths(request);
    let at = paths.iter().position(|p| class(layouts, p) != Class::Owned).unwrap_or(0);
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
                    MultiOp::Create(_) | MultiOp::Create2(_) | MultiOp::CreateContainer(_) | MultiOp::CreateTtl(_)
                )
            })
            .map(translate::multi_path)
            .collect(),
        _ => return,
    };
    let gateway = client.front.gateway.clone();
    for created in created.into_iter().filter(|p| tree::validate_path(p).is_ok()) {
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
            gateway.apply(Command::Tree { peer: String::new(), session: 0, op });
        }
    }
}

/// A registration in a phase in which the ensemble acknowledges: its refusal is the answer.
fn record(client: &mut Client, layouts: &LayoutSet, slot: SlotId, request: Request) {
    let write = match translate::write(&request, client.session, &client.auth) {
        Ok(Some(write)) => write,
        Ok(None) => return client.answer(slot, Err(ErrorCode::SystemError)),
        Err(code) => return client.answer(slot, Err(code)),
    };
    let now_ms = client.front.gateway.now_ms();
    let (peer, session) = (client.peer.clone(), client.session);
    let mut outward = request.clone();
    let judged = client
        .front
        .gateway
        .with(|core| {
            if core.would_refuse(&peer, session, &write.op, now_ms).is_some() {
                return Err(None);
            }
            versions(core, layouts, &mut outward).map_err(Some)
        })
        .0;
    match judged {
        Ok(()) => ask(client, slot, outward, request, Then::Record(write)),
        Err(None) => client.answer(slot, translate::refused(&write.shape)),
        Err(Some(at)) => {
            let answer = match &write.shape {
                Shape::Multi(shapes) => {
                    Ok(Reply::Multi(MultiResponse::failure(shapes.len(), at, ErrorCode::BadVersion)))
                }
                _ => Err(ErrorCode::BadVersion),
            };
            client.answer(slot, answer);
        }
    }
}

/// Versions that the client gives are the view's: they are checked here and become the ensemble's, or any
/// where that is not known. `Err` is the place of the one that differs.
fn versions(core: &Core, layouts: &LayoutSet, request: &mut Request) -> Result<(), usize> {
    let translate = |path: &str, version: &mut i32, at: usize| {
        if *version == -1 || class(layouts, path) != Class::Owned {
            return Ok(());
        }
        let Some(node) = core.tree().node(path) else { return Ok(()) };
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
            if core.tree().node(&r.path).is_some_and(|n| n.stat().aversion != r.version) {
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

fn multi_read(client: &mut Client, layouts: &LayoutSet, slot: SlotId, multi: &MultiRequest) -> Result<(), Ended> {
    let request = Request::MultiRead(multi.clone());
    if multi.ops.iter().all(|op| class(layouts, translate::multi_path(op)) == Class::Owned) {
        return local::serve(client, slot, request);
    }
    let mut outward = multi.clone();
    for op in &mut outward.ops {
        if let MultiOp::GetData(r) | MultiOp::GetChildren(r) = op {
            // The ensemble's copies of registrations are not what the client watches.
            r.watch &= class(layouts, &r.path) != Class::Owned;
        }
    }
    ask(client, slot, Request::MultiRead(outward), request, Then::MultiRead);
    Ok(())
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
            paths.iter().filter(|p| wanted(class(layouts, p))).cloned().collect()
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
        // A number of ours says nothing to the ensemble: with 0 every watch fires that may have missed something.
        outward.relative_zxid = 0;
    }
    let outward = if op == OpCode::SetWatches as i32 {
        Request::SetWatches(causeway_wire::zk::request::SetWatchesRequest {
            relative_zxid: outward.relative_zxid,
            data_watches: outward.data_watches,
            exist_watches: outward.exist_watches,
            child_watches: outward.child_watches,
        })
    } else {
        Request::SetWatches2(outward)
    };
    ask(client, slot, outward, Request::SetWatches2(w.clone()), Then::SetWatches(Box::new(local)));
    Ok(())
}

/// Takes what happened on the way to the ensemble.
pub(super) fn take(client: &mut Client, incident: Incident) -> Result<(), Ended> {
    match incident {
        Incident::Event(notification) => {
            let front = client.front.clone();
            let layouts = &front.gateway.config.layouts;
            let Some(general) = &mut client.general else { return Ok(()) };
            general.last_event = notification.number;
            let ready = general.ready();
            if let Some(event) = general.chroot.event(notification.event) {
                // Copies of registrations in the ensemble change after the view did.
                if class(layouts, &event.path) != Class::Owned {
                    client.replies.event(&event.path, event.encode());
                }
            }
            for answered in ready {
                finish(client, answered)?;
            }
            Ok(())
        }
        Incident::Answered(Ok(answered)) => {
            let general = client.general.as_mut().ok_or(Ended)?;
            match general.in_order(answered) {
                Some(answered) => finish(client, answered),
                None => Ok(()),
            }
        }
        Incident::Attached(Ok(upstream)) => {
            client.general.as_mut().ok_or(Ended)?.attached(upstream);
            Ok(())
        }
        Incident::Attached(Err(error)) => {
            let asked = client.general.as_mut().and_then(super::general::General::give_up);
            match asked {
                Some(asked) => without_ensemble(client, asked, &error),
                None => Ok(()),
            }
        }
        Incident::Answered(Err(error)) => {
            // The connection, not an error code: clients would take a code for the last word.
            tracing::debug!(peer = client.peer, %error, "the ensemble did not answer: the client's connection is closed");
            Err(Ended)
        }
        Incident::Lost(error) => {
            let missed = client.general.as_mut().is_some_and(super::general::General::lose);
            // After its close the ensemble hangs up.
            if missed && !client.replies.wire.is_closing() {
                tracing::debug!(peer = client.peer, %error, "the ensemble is lost: the client's connection is closed");
                return Err(Ended);
            }
            Ok(())
        }
    }
}

/// The ensemble cannot be reached: the lists of directories of both are shown as last seen, the session can
/// be closed, and anything else closes the connection.
fn without_ensemble(
    client: &mut Client,
    asked: Asked,
    error: &causeway_backend::BackendError,
) -> Result<(), Ended> {
    let last = match (&asked.then, &asked.request) {
        (Then::Union, Request::GetChildren(r) | Request::GetChildren2(r) | Request::Exists(r) | Request::GetData(r)) => {
            client.front.last_seen.get(&r.path).map(|l| (r.path.clone(), l.clone()))
        }
        (Then::Close, _) => {
            return local::serve(client, asked.slot, Request::CloseSession);
        }
        _ => None,
    };
    let Some((path, (names, stat))) = last else {
        tracing::debug!(peer = client.peer, %error, "the ensemble cannot be asked: the client's connection is closed");
        return Err(Ended);
    };
    tracing::debug!(peer = client.peer, path, %error, "a directory is listed as last seen in the ensemble");
    let reply = match &asked.request {
        Request::GetChildren(_) => Reply::GetChildren(GetChildrenResponse { children: names.clone() }),
        Request::GetChildren2(_) => Reply::GetChildren2(GetChildren2Response { children: names.clone(), stat }),
        Request::GetData(_) => Reply::GetData(GetDataResponse { data: Some(Bytes::new()), stat }),
        _ => Reply::Stat(StatResponse { stat }),
    };
    union(client, asked, Ok(reply), Some(names))
}

/// Makes the client's answer of the ensemble's.
fn finish(client: &mut Client, answered: Answered) -> Result<(), Ended> {
    let Answered { asked, answer, names } = answered;
    let chroot = client.general.as_ref().map(|g| g.chroot.clone()).ok_or(Ended)?;
    let op = OpCode::try_from(asked.request.op()).map_err(|_| Ended)?;
    let decode = |op: OpCode, answer: &LegacyAnswer| -> Result<Result<Reply, i32>, Ended> {
        if answer.header.err != 0 {
            return Ok(Err(answer.header.err));
        }
        let body = chroot.reply(op, answer.body.clone()).map_err(|_| Ended)?;
        Reply::decode(op, body).map(Ok).map_err(|_| Ended)
    };
    let reply = decode(op, &answer)?;
    match asked.then {
        Then::Pass => {
            if reply.is_ok() && makes_ephemeral(&asked.request, reply.as_ref().ok()) {
                bind(client);
            }
            let reply = reply.map(|reply| as_client_knows(client, reply));
            fill(client, asked.slot, reply);
            Ok(())
        }
        Then::Union => {
            let names = match names {
                Some(answer) => match decode(OpCode::GetChildren, &answer)? {
                    Ok(Reply::GetChildren(r)) => Some(r.children),
                    _ => Some(Vec::new()),
                },
                None => None,
            };
            let reply = reply.map(|reply| as_client_knows(client, reply));
            union(client, asked, reply, names)
        }
        Then::MultiRead => {
            let reply = reply.map(|reply| as_client_knows(client, reply));
            finish_multi_read(client, asked.slot, &asked.request, reply)
        }
        Then::Record(write) => {
            finish_record(client, asked.slot, write, reply, answer.header.zxid, &asked.request);
            Ok(())
        }
        Then::SetWatches(local) => match reply {
            Ok(_) => local::set_watches(client, asked.slot, &local),
            Err(code) => {
                fill(client, asked.slot, Err(code));
                Ok(())
            }
        },
        // Whatever the ensemble made of it: the client is done.
        Then::Close => local::serve(client, asked.slot, Request::CloseSession),
    }
}

/// Queues a reply with our number, behind the events so far.
fn fill(client: &mut Client, slot: SlotId, reply: Result<Reply, i32>) {
    let (err, body) = match reply {
        Ok(reply) => (0, reply.encode()),
        Err(code) => (code, Bytes::new()),
    };
    let replies = &mut client.replies;
    let ((), after) = client.front.gateway.with(|core| {
        replies.drain();
        replies.fill_raw(slot, core.last_zxid(), err, body);
    });
    replies.depends_on(after);
}

/// Owners in the ensemble are the sessions there; the client knows its own.
fn as_client_knows(client: &Client, mut reply: Reply) -> Reply {
    let needed = translate::stats(&mut reply).iter().any(|s| s.ephemeral_owner != 0);
    if needed {
        client.front.gateway.with(|core| {
            for stat in translate::stats(&mut reply) {
                if let Some(session) = core.sessions().by_legacy_owner(stat.ephemeral_owner) {
                    stat.ephemeral_owner = session.id;
                }
            }
        });
    }
    reply
}

fn makes_ephemeral(request: &Request, reply: Option<&Reply>) -> bool {
    let ephemeral = |flags: i32| matches!(flags, 1 | 3);
    match request {
        Request::Create(c) | Request::Create2(c) => ephemeral(c.flags),
        Request::Multi(multi) => {
            let refused = matches!(reply, Some(Reply::Multi(r)) if r.results.iter().any(|r| matches!(r, MultiResult::Error(_))));
            !refused
                && multi
                    .ops
                    .iter()
                    .any(|op| matches!(op, MultiOp::Create(c) | MultiOp::Create2(c) if ephemeral(c.flags)))
        }
        _ => false,
    }
}

/// The session lives as the ensemble says from now on: it holds an ephemeral there.
fn bind(client: &mut Client) {
    let id = client.session;
    let bound = client.front.gateway.with(|core| core.sessions().get(id).is_some_and(|s| s.bound)).0;
    if !bound {
        let done = client.front.gateway.apply(Command::Bound { id });
        client.replies.depends_on(done.after);
    }
    if let Some(general) = &mut client.general {
        general.bound = true;
    }
}

/// The ensemble has judged a write to registrations.
fn finish_record(
    client: &mut Client,
    slot: SlotId,
    write: Write,
    reply: Result<Reply, i32>,
    mark: i64,
    request: &Request,
) {
    let reply = match reply {
        Ok(reply) => reply,
        Err(code) => return fill(client, slot, Err(code)),
    };
    let front = client.front.clone();
    let layouts = &front.gateway.config.layouts;
    let owned = |path: &str| class(layouts, path) == Class::Owned;
    let paths: Vec<bool> = translate::paths(request).into_iter().map(owned).collect();
    let Some(op) = translate::acknowledged(write.op, &reply, owned) else {
        // A multi that it refused, slot by slot.
        return fill(client, slot, Ok(reply));
    };
    if paths.contains(&false) && makes_ephemeral(request, Some(&reply)) {
        bind(client);
    }
    let theirs = as_client_knows(client, reply);
    let command = Command::TreeAcknowledged { peer: client.peer.clone(), session: client.session, op, mark };
    local::apply(client, slot, command, |ours| match (write.shape, theirs) {
        (Shape::Multi(shapes), Reply::Multi(theirs)) => {
            let owned_shapes: Vec<Shape> =
                shapes.into_iter().zip(&paths).filter(|(_, owned)| **owned).map(|(shape, _)| shape).collect();
            let mut ours = match translate::written(&Shape::Multi(owned_shapes), ours)? {
                Reply::Multi(ours) => ours.results.into_iter(),
                _ => return Err(ErrorCode::SystemError),
            };
            let results = theirs
                .results
                .into_iter()
                .zip(&paths)
                .map(|(theirs, owned)| if *owned { ours.next().unwrap_or(theirs) } else { theirs })
                .collect();
            Ok(Reply::Multi(MultiResponse { results }))
        }
        (shape, _) => translate::written(&shape, ours),
    });
}

/// Our part of a directory: names of registrations, and of directories that lead to some.
fn our_names(core: &Core, layouts: &LayoutSet, dir: &str) -> BTreeSet<String> {
    let Some(node) = core.tree().node(dir) else { return BTreeSet::new() };
    let shown = |name: &str| {
        let path = path::child(dir, name);
        match class(layouts, &path) {
            Class::Owned => true,
            Class::Mixed => !our_names(core, layouts, &path).is_empty(),
            Class::General => false,
        }
    };
    node.children().iter().filter(|n| shown(n)).map(ToString::to_string).collect()
}

/// One answer out of both. Names of registrations are the view's alone, whatever copies the ensemble has.
fn union(
    client: &mut Client,
    asked: Asked,
    theirs: Result<Reply, i32>,
    their_names: Option<Vec<String>>,
) -> Result<(), Ended> {
    let front = client.front.clone();
    let layouts = &front.gateway.config.layouts;
    let watcher = client.conn.into_watcher();
    let session = client.session;
    let reader = Reader { watcher, session, auth: &client.auth, config: &front.gateway.config };
    let replies = &mut client.replies;
    let (outcome, after) = front.gateway.with(|core| {
        replies.drain();
        let reply = match &asked.request {
            Request::Exists(r) | Request::GetData(r) | Request::GetChildren(r) | Request::GetChildren2(r) => {
                let seen = Directory { layouts, dir: &r.path };
                let answer = seen.answer(core, &asked.request, theirs, their_names, |names, stat| {
                    front.remember(&r.path, names, stat);
                });
                seen.arm(core, watcher, r, &asked.request, &answer);
                answer
            }
            Request::GetAcl(_) if matches!(theirs, Err(code) if code == ErrorCode::NoNode.number()) => {
                reader.read(core, &asked.request)?.map_err(ErrorCode::number)
            }
            Request::GetAllChildrenNumber(r) => theirs.map(|reply| match reply {
                // Registrations have left the ensemble, or leave it.
                Reply::GetAllChildrenNumber(mut n)
                    if matches!(core.phase().phase().legacy_copy(), LegacyCopy::Withdrawn | LegacyCopy::Untouched) =>
                {
                    let ours = core.tree().descendants(&r.path).len();
                    n.total_number = n.total_number.saturating_add(i32::try_from(ours).unwrap_or(i32::MAX));
                    Reply::GetAllChildrenNumber(n)
                }
                other => other,
            }),
            Request::GetEphemerals(r) => theirs.map(|reply| match reply {
                Reply::GetEphemerals(mut e) => {
                    e.ephemerals.retain(|p| class(layouts, p) != Class::Owned);
                    let ours = core.tree().get_ephemerals(session, &r.prefix_path);
                    e.ephemerals.extend(ours.iter().map(ToString::to_string));
                    Reply::GetEphemerals(e)
                }
                other => other,
            }),
            Request::CheckWatches(_) | Request::RemoveWatches(_) | Request::AddWatch(_) => {
                let ours = reader.read(core, &asked.request)?;
                match (ours, theirs) {
                    (Ok(reply), _) => Ok(reply),
                    (Err(_), theirs) => theirs,
                }
            }
            _ => theirs,
        };
        let (err, body) = match reply {
            Ok(reply) => (0, reply.encode()),
            Err(code) => (code, Bytes::new()),
        };
        replies.fill_raw(asked.slot, core.last_zxid(), err, body);
        Ok(())
    });
    replies.depends_on(after);
    outcome
}

/// A directory of both classes.
struct Directory<'a> {
    layouts: &'a LayoutSet,
    dir: &'a str,
}

impl Directory<'_> {
    fn answer(
        &self,
        core: &Core,
        request: &Request,
        theirs: Result<Reply, i32>,
        their_names: Option<Vec<String>>,
        remember: impl FnOnce(Vec<String>, Stat),
    ) -> Result<Reply, i32> {
        let ours = our_names(core, self.layouts, self.dir);
        let here = core.tree().node(self.dir).map(|n| n.stat());
        let theirs = match theirs {
            // It is only here: made by its children.
            Err(code) if code == ErrorCode::NoNode.number() && !ours.is_empty() => {
                let stat = here.as_ref().map(translate::stat).unwrap_or_default();
                match request {
                    Request::GetChildren(_) => Reply::GetChildren(GetChildrenResponse::default()),
                    Request::GetChildren2(_) => {
                        Reply::GetChildren2(GetChildren2Response { children: Vec::new(), stat })
                    }
                    Request::GetData(_) => Reply::GetData(GetDataResponse { data: Some(Bytes::new()), stat }),
                    _ => Reply::Stat(StatResponse { stat }),
                }
            }
            Err(code) => return Err(code),
            Ok(reply) => reply,
        };
        let their_names = match &theirs {
            Reply::GetChildren(r) => r.children.clone(),
            Reply::GetChildren2(r) => r.children.clone(),
            _ => their_names.unwrap_or_default(),
        };
        let names = self.merge(their_names.clone(), ours);
        let mut stat = match &theirs {
            Reply::GetChildren2(r) => r.stat,
            Reply::GetData(r) => r.stat,
            Reply::Stat(r) => r.stat,
            _ => Stat::default(),
        };
        if !is_list(request) || matches!(request, Request::GetChildren2(_)) {
            remember(their_names, stat);
        }
        stat.num_children = i32::try_from(names.len()).unwrap_or(i32::MAX);
        if let Some(here) = here {
            stat.cversion = stat.cversion.wrapping_add(here.cversion.max(0));
            stat.pzxid = stat.pzxid.max(here.pzxid);
        }
        Ok(match theirs {
            Reply::GetChildren(_) => Reply::GetChildren(GetChildrenResponse { children: names }),
            Reply::GetChildren2(_) => Reply::GetChildren2(GetChildren2Response { children: names, stat }),
            Reply::GetData(r) => Reply::GetData(GetDataResponse { data: r.data, stat }),
            _ => Reply::Stat(StatResponse { stat }),
        })
    }

    fn merge(&self, theirs: Vec<String>, ours: BTreeSet<String>) -> Vec<String> {
        let general = theirs
            .into_iter()
            .filter(|name| class(self.layouts, &path::child(self.dir, name)) != Class::Owned);
        let mut all = ours;
        all.extend(general);
        all.into_iter().collect()
    }

    /// The view's part of the watch; the ensemble's was armed with its answer.
    fn arm(
        &self,
        core: &mut Core,
        watcher: causeway_engine::watch::WatcherId,
        r: &ReadRequest,
        request: &Request,
        answer: &Result<Reply, i32>,
    ) {
        match (request, answer) {
            _ if !r.watch => {}
            (Request::GetChildren(_) | Request::GetChildren2(_), Ok(_)) => core.tree_watches().add_child(watcher, self.dir),
            (Request::Exists(_), Err(code)) if *code == ErrorCode::NoNode.number() => {
                core.tree_watches().add_exist(watcher, self.dir);
            }
            _ => {}
        }
    }
}

fn finish_multi_read(
    client: &mut Client,
    slot: SlotId,
    request: &Request,
    reply: Result<Reply, i32>,
) -> Result<(), Ended> {
    let (Request::MultiRead(multi), Ok(Reply::Multi(mut theirs))) = (request, reply.clone()) else {
        fill(client, slot, reply);
        return Ok(());
    };
    let front = client.front.clone();
    let layouts = &front.gateway.config.layouts;
    let reader = Reader {
        watcher: client.conn.into_watcher(),
        session: client.session,
        auth: &client.auth,
        config: &front.gateway.config,
    };
    let replies = &mut client.replies;
    let (outcome, after) = front.gateway.with(|core| {
        replies.drain();
        for (op, result) in multi.ops.iter().zip(&mut theirs.results) {
            match (class(layouts, translate::multi_path(op)), op) {
                (Class::Owned, _) => {
                    let one = MultiRequest { ops: vec![op.clone()] };
                    if let Ok(Reply::Multi(ours)) = reader.read(core, &Request::MultiRead(one))? {
                        if let Some(ours) = ours.results.into_iter().next() {
                            *result = ours;
                        }
                    }
                }
                (Class::Mixed, MultiOp::GetChildren(r)) => {
                    let seen = Directory { layouts, dir: &r.path };
                    let list = Request::GetChildren(r.clone());
                    let theirs = match result.clone() {
                        MultiResult::GetChildren(r) => Ok(Reply::GetChildren(r)),
                        MultiResult::Error(code) => Err(code),
                        _ => continue,
                    };
                    let answer = seen.answer(core, &list, theirs, None, |_, _| {});
                    seen.arm(core, reader.watcher, r, &list, &answer);
                    *result = match answer {
                        Ok(Reply::GetChildren(r)) => MultiResult::GetChildren(r),
                        Ok(_) => continue,
                        Err(code) => MultiResult::Error(code),
                    };
                }
                _ => {}
            }
        }
        replies.fill(slot, core.last_zxid(), Ok(Reply::Multi(theirs)));
        Ok(())
    });
    replies.depends_on(after);
    outcome
}

