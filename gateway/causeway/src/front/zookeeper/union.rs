//! Directories that hold registrations and general nodes: one answer out of both.

use std::collections::BTreeSet;

use bytes::Bytes;
use causeway_engine::core::Core;
use causeway_engine::layout::LayoutSet;
use causeway_engine::path;
use causeway_engine::phase::LegacyCopy;
use causeway_engine::watch::{WatchKind, WatcherId};
use causeway_wire::zk::reply::{
    GetChildren2Response, GetChildrenResponse, GetDataResponse, StatResponse,
};
use causeway_wire::zk::request::ReadRequest;
use causeway_wire::zk::{
    ErrorCode, MultiOp, MultiRequest, MultiResult, Reply, Request, SlotId, Stat,
};

use super::answers::fill;
use super::conn::{Client, IntoWatcher};
use super::general::{Asked, is_list};
use super::local::Reader;
use super::socket::Ended;
use super::taken_over::{Class, class};
use super::translate;

/// One answer out of both. Names of registrations are the view's alone, whatever copies the ensemble has.
pub(super) fn finish(
    client: &mut Client,
    asked: Asked,
    theirs: Result<Reply, i32>,
    their_names: Option<Vec<String>>,
) -> Result<(), Ended> {
    let front = client.front.clone();
    let layouts = &front.gateway.config.layouts;
    let watcher = client.conn.into_watcher();
    let session = client.session;
    let reader = Reader {
        watcher,
        session,
        auth: &client.auth,
        front: &front,
    };
    let replies = &mut client.replies;
    let (outcome, after) = front.gateway.with(|core| {
        replies.drain();
        let number = replies.number(core);
        let reply = match &asked.request {
            Request::Exists(r) | Request::GetData(r) | Request::GetChildren(r) | Request::GetChildren2(r) => {
                let seen = Directory { layouts, dir: &r.path };
                let answer = seen.answer(core, &asked.request, theirs, their_names, |names, stat| {
                    let pzxid = stat.pzxid;
                    front.remember(&r.path, names, stat);
                    front.pzxid_of_both(&r.path, pzxid, number)
                });
                if r.watch && answer.is_ok() && is_list(&asked.request) {
                    replies.both.insert(r.path.clone());
                }
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
                if let Request::RemoveWatches(r) = &asked.request
                    && matches!(translate::watch_kind(r.kind), Ok(WatchKind::Children | WatchKind::Any))
                {
                    replies.both.remove(&r.path);
                }
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
        replies.fill_raw(asked.slot, number, err, body);
        Ok(())
    });
    replies.depends_on(after);
    outcome
}

/// The list of a directory of both classes has changed in the ensemble: whether the client is told. Its one-shot watch
/// is armed in both places and fires once; what stays armed in the other is void.
pub(super) fn takes_event(client: &mut Client, path: &str) -> bool {
    let (watcher, replies) = (client.conn.into_watcher(), &mut client.replies);
    let watched = |core: &mut Core| {
        replies.drain();
        let watches = core.tree_watches();
        let once = replies.both.remove(path);
        if once {
            watches.remove(watcher, path, WatchKind::Children);
        }
        once || watches.check(watcher, path, WatchKind::Persistent)
    };
    client.front.gateway.with(watched).0
}

/// Our part of a directory: names of registrations, and of directories that lead to some.
fn our_names(core: &Core, layouts: &LayoutSet, dir: &str) -> BTreeSet<String> {
    let Some(node) = core.tree().node(dir) else {
        return BTreeSet::new();
    };
    let shown = |name: &str| {
        let path = path::child(dir, name);
        match class(layouts, &path) {
            Class::Owned => true,
            Class::Mixed => !our_names(core, layouts, &path).is_empty(),
            Class::General => false,
        }
    };
    node.children()
        .iter()
        .filter(|n| shown(n))
        .map(ToString::to_string)
        .collect()
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
        remember: impl FnOnce(Vec<String>, Stat) -> i64,
    ) -> Result<Reply, i32> {
        let ours = our_names(core, self.layouts, self.dir);
        let here = core.tree().node(self.dir).map(|n| n.stat());
        let theirs = match theirs {
            // It is only here: made by its children.
            Err(code) if code == ErrorCode::NoNode.number() && !ours.is_empty() => {
                let stat = here.as_ref().map(translate::stat).unwrap_or_default();
                match request {
                    Request::GetChildren(_) => Reply::GetChildren(GetChildrenResponse::default()),
                    Request::GetChildren2(_) => Reply::GetChildren2(GetChildren2Response {
                        children: Vec::new(),
                        stat,
                    }),
                    Request::GetData(_) => Reply::GetData(GetDataResponse {
                        data: Some(Bytes::new()),
                        stat,
                    }),
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
            stat.pzxid = remember(their_names, stat);
        }
        stat.num_children = i32::try_from(names.len()).unwrap_or(i32::MAX);
        if let Some(here) = here {
            stat.cversion = stat.cversion.wrapping_add(here.cversion.max(0));
            stat.pzxid = stat.pzxid.max(here.pzxid);
        }
        Ok(match theirs {
            Reply::GetChildren(_) => Reply::GetChildren(GetChildrenResponse { children: names }),
            Reply::GetChildren2(_) => Reply::GetChildren2(GetChildren2Response {
                children: names,
                stat,
            }),
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
        watcher: WatcherId,
        r: &ReadRequest,
        request: &Request,
        answer: &Result<Reply, i32>,
    ) {
        match (request, answer) {
            _ if !r.watch => {}
            (Request::GetChildren(_) | Request::GetChildren2(_), Ok(_)) => {
                core.tree_watches().add_child(watcher, self.dir)
            }
            (Request::Exists(_), Err(code)) if *code == ErrorCode::NoNode.number() => {
                core.tree_watches().add_exist(watcher, self.dir);
            }
            _ => {}
        }
    }
}

/// A multiRead: what it reads of registrations, and of directories that hold some, is the view's.
pub(super) fn finish_multi_read(
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
        front: &front,
    };
    let replies = &mut client.replies;
    let (outcome, after) = front.gateway.with(|core| {
        replies.drain();
        // The view's part as one request.
        let of_view = |op: &&MultiOp| class(layouts, translate::multi_path(op)) == Class::Owned;
        let ops = multi.ops.iter().filter(of_view).cloned().collect();
        let ours = reader.read(core, &Request::MultiRead(MultiRequest { ops }))?;
        let mut ours = match ours {
            Ok(Reply::Multi(ours)) => ours.results.into_iter(),
            _ => Vec::new().into_iter(),
        };
        for (op, result) in multi.ops.iter().zip(&mut theirs.results) {
            match (class(layouts, translate::multi_path(op)), op) {
                (Class::Owned, _) => {
                    if let Some(ours) = ours.next() {
                        *result = ours;
                    }
                }
                (Class::Mixed, MultiOp::GetChildren(r)) => {
                    let seen = Directory {
                        layouts,
                        dir: &r.path,
                    };
                    let list = Request::GetChildren(r.clone());
                    let theirs = match result.clone() {
                        MultiResult::GetChildren(r) => Ok(Reply::GetChildren(r)),
                        MultiResult::Error(code) => Err(code),
                        _ => continue,
                    };
                    let answer = seen.answer(core, &list, theirs, None, |_, stat| stat.pzxid);
                    *result = match answer {
                        Ok(Reply::GetChildren(r)) => MultiResult::GetChildren(r),
                        Ok(_) => continue,
                        Err(code) => MultiResult::Error(code),
                    };
                }
                _ => {}
            }
        }
        let number = replies.number(core);
        replies.fill(slot, number, Ok(Reply::Multi(theirs)));
        Ok(())
    });
    replies.depends_on(after);
    outcome
}
