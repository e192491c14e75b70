//! Operations that the machine answers: the embedded store, and registrations after the take-over.

use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use causeway_engine::core::{Command, Core};
use causeway_engine::watch::{WatchKind, WatchTable, WatcherId};
use causeway_engine::znode_tree::{AuthId, Node, TreeCommand, TreeError};
use causeway_wire::zk::multi::MultiKind;
use causeway_wire::zk::record::Record;
use causeway_wire::zk::reply::{
    ClientInfo, ErrorResponse, GetAclResponse, GetAllChildrenNumberResponse, GetChildren2Response,
    GetChildrenResponse, GetDataResponse, GetEphemeralsResponse, SaslResponse, StatResponse,
    SyncResponse, WhoAmIResponse,
};
use causeway_wire::zk::request::{AuthRequest, ReadRequest, SetWatches2Request, SetWatchesRequest};
use causeway_wire::zk::{
    ErrorCode, MultiOp, MultiRequest, MultiResponse, MultiResult, Reply, Request, SlotId,
};

use super::Front;
use super::config_node;
use super::conn::{Client, IntoWatcher};
use super::socket::Ended;
use super::translate::{self, Answer, error_code, stat};

/// Answers a request from the machine.
pub(super) fn serve(client: &mut Client, slot: SlotId, request: Request) -> Result<(), Ended> {
    match &request {
        Request::Create(_)
        | Request::Create2(_)
        | Request::CreateContainer(_)
        | Request::CreateTtl(_)
        | Request::Delete(_)
        | Request::SetData(_)
        | Request::SetAcl(_)
        | Request::Multi(_) => write(client, slot, &request),
        Request::Exists(_)
        | Request::GetData(_)
        | Request::GetAcl(_)
        | Request::GetChildren(_)
        | Request::GetChildren2(_)
        | Request::Sync(_)
        | Request::Ping
        | Request::GetEphemerals(_)
        | Request::GetAllChildrenNumber(_)
        | Request::CheckWatches(_)
        | Request::RemoveWatches(_)
        | Request::AddWatch(_)
        | Request::WhoAmI => read(client, slot, &request)?,
        Request::MultiRead(multi) if multi.kind() == MultiKind::Write => {
            refuse_multi_read(client, slot)
        }
        Request::MultiRead(_) => read(client, slot, &request)?,
        Request::SetWatches(w) => set_watches(client, slot, &all_lists(w))?,
        Request::SetWatches2(w) => set_watches(client, slot, w)?,
        Request::Auth(auth) => add_auth(client, slot, auth),
        Request::CloseSession => close_session(client, slot),
        // ZooKeeper takes the bytes as they are for the path, so that a client's record never is one.
        Request::DeleteContainer(_) => refuse(client, slot, ErrorCode::BadArguments),
        Request::Reconfig(_) => refuse(client, slot, ErrorCode::ReconfigDisabled),
        // ZooKeeper without SASL: no token, which no mechanism takes for a success.
        Request::Sasl(_) => {
            client
                .replies
                .fill(slot, 0, Ok(Reply::Sasl(SaslResponse { token: None })))
        }
        // ZooKeeper: UnimplementedRequestProcessor answers and closes.
        Request::Check(_) | Request::Unknown { .. } => {
            client.replies.fill(slot, -1, Err(ErrorCode::Unimplemented));
            client.replies.wire.close_after(slot);
        }
    }
    Ok(())
}

/// A write: its events are queued before its reply.
pub(super) fn write(client: &mut Client, slot: SlotId, request: &Request) {
    let write = match client.write(request) {
        Ok(Some(write)) => write,
        Ok(None) => return client.answer(slot, Err(ErrorCode::SystemError)),
        Err(code) => return refuse(client, slot, code),
    };
    let command = Command::Tree {
        peer: client.peer.clone(),
        session: client.session,
        op: write.op,
    };
    apply(client, slot, command, |reply| {
        translate::written(&write.shape, reply)
    });
}

/// Refuses a write that is not for the tree to judge. ZooKeeper: it takes a number as well
/// (`PrepRequestProcessor.pRequestHelper`), so here it is one that does nothing.
pub(super) fn refuse(client: &mut Client, slot: SlotId, code: ErrorCode) {
    let command = Command::Tree {
        peer: client.peer.clone(),
        session: client.session,
        op: TreeCommand::Multi {
            ops: Vec::new(),
            session: client.session,
            auth: Vec::new(),
        },
    };
    apply(client, slot, command, |_| Err(code));
}

/// Applies a command and queues what `answer` makes of its reply.
pub(super) fn apply(
    client: &mut Client,
    slot: SlotId,
    command: Command,
    answer: impl FnOnce(causeway_engine::core::Reply) -> Answer,
) {
    let replies = &mut client.replies;
    client.front.gateway.apply_and(command, |_, done| {
        replies.drain();
        replies.shown(done.number);
        replies.fill(slot, done.number, answer(done.reply));
        replies.depends_on(done.after);
    });
}

fn read(client: &mut Client, slot: SlotId, request: &Request) -> Result<(), Ended> {
    let reader = Reader {
        watcher: client.conn.into_watcher(),
        session: client.session,
        auth: &client.auth,
        front: &client.front,
    };
    let replies = &mut client.replies;
    let listings = &client.front.listings;
    let (outcome, after) = client.front.gateway.with(|core| {
        // Before the watch is armed: what was handed over so far fired older watches.
        replies.drain();
        let made = match request {
            Request::GetChildren(r) => {
                reader.listing(core, r, |node| listings.lock().names_only(&r.path, node))?
            }
            Request::GetChildren2(r) => {
                reader.listing(core, r, |node| listings.lock().with_stat(&r.path, node))?
            }
            _ => {
                let answer = reader.read(core, request)?;
                replies.fill(slot, core.last_zxid(), answer);
                return Ok(());
            }
        };
        let (err, body) = match made {
            Ok(body) => (0, body),
            Err(code) => (code.number(), Bytes::new()),
        };
        replies.fill_raw(slot, core.last_zxid(), err, body);
        Ok(())
    });
    replies.depends_on(after);
    outcome
}

/// ZooKeeper: a multiRead of writes fails at the first of them, with the list of results begun already
/// (`FinalRequestProcessor`, multiRead): the only refusal with a body.
fn refuse_multi_read(client: &mut Client, slot: SlotId) {
    let replies = &mut client.replies;
    let ((), after) = client.front.gateway.with(|core| {
        replies.drain();
        let (err, none) = (ErrorCode::MarshallingError, MultiResponse::default());
        replies.fill_raw(slot, core.last_zxid(), err.number(), none.encode());
    });
    replies.depends_on(after);
}

/// Who reads.
pub(super) struct Reader<'c> {
    pub(super) watcher: WatcherId,
    pub(super) session: i64,
    pub(super) auth: &'c [AuthId],
    pub(super) front: &'c Front,
}

impl Reader<'_> {
    /// The answer to a request that changes nothing but watches.
    pub(super) fn read(&self, core: &mut Core, request: &Request) -> Result<Answer, Ended> {
        let answer = match request {
            Request::Exists(r) => return self.exists(core, r),
            Request::GetData(r) => {
                let found = self.get_data(core, &r.path);
                self.watch_if(core, r, found.is_ok(), WatchTable::add_data)?;
                found.map(Reply::GetData)
            }
            Request::GetChildren(r) => {
                let found = self.get_children(core, &r.path);
                self.watch_if(core, r, found.is_ok(), WatchTable::add_child)?;
                found.map(Reply::GetChildren)
            }
            Request::GetChildren2(r) => {
                let found = core
                    .tree()
                    .get_children(&r.path, self.auth)
                    .map(|(names, s)| GetChildren2Response {
                        children: names.iter().map(ToString::to_string).collect(),
                        stat: stat(&s),
                    });
                self.watch_if(core, r, found.is_ok(), WatchTable::add_child)?;
                found.map(Reply::GetChildren2).map_err(error_code)
            }
            Request::GetAcl(r) => core
                .tree()
                .get_acl(&r.path, self.auth)
                .map(|(acl, s)| {
                    Reply::GetAcl(GetAclResponse {
                        acl: translate::wire_acls(&acl),
                        stat: stat(&s),
                    })
                })
                .map_err(error_code),
            Request::MultiRead(multi) => self.multi_read(core, multi),
            // ZooKeeper: the path need not exist (FinalRequestProcessor, sync).
            Request::Sync(r) => Ok(Reply::Sync(SyncResponse {
                path: r.path.clone(),
            })),
            Request::GetEphemerals(r) => {
                let paths = core.tree().get_ephemerals(self.session, &r.prefix_path);
                let ephemerals = paths.iter().map(ToString::to_string).collect();
                Ok(Reply::GetEphemerals(GetEphemeralsResponse { ephemerals }))
            }
            Request::GetAllChildrenNumber(r) => core
                .tree()
                .all_children_number(&r.path, self.auth)
                .map(|total_number| {
                    Reply::GetAllChildrenNumber(GetAllChildrenNumberResponse { total_number })
                })
                .map_err(error_code),
            Request::CheckWatches(r) => translate::watch_kind(r.kind).and_then(|kind| {
                if core.tree_watches().check(self.watcher, &r.path, kind) {
                    Ok(Reply::Empty(()))
                } else {
                    Err(ErrorCode::NoWatcher)
                }
            }),
            Request::RemoveWatches(r) => translate::watch_kind(r.kind).and_then(|kind| {
                if core.tree_watches().remove(self.watcher, &r.path, kind) {
                    Ok(Reply::Empty(()))
                } else {
                    Err(ErrorCode::NoWatcher)
                }
            }),
            Request::AddWatch(r) => match r.mode {
                0 | 1 => {
                    self.may_watch(core, &r.path)?;
                    let watches = core.tree_watches();
                    if r.mode == 0 {
                        watches.add_persistent(self.watcher, &r.path);
                    } else {
                        watches.add_recursive(self.watcher, &r.path);
                    }
                    Ok(Reply::AddWatch(ErrorResponse { err: 0 }))
                }
                // ZooKeeper: a mode that is none is a request that cannot be read.
                _ => Err(ErrorCode::MarshallingError),
            },
            Request::WhoAmI => {
                let info = |id: &AuthId| ClientInfo {
                    auth_scheme: id.scheme.clone(),
                    user: translate::user_of(id),
                };
                Ok(Reply::WhoAmI(WhoAmIResponse {
                    client_info: self.auth.iter().map(info).collect(),
                }))
            }
            _ => Ok(Reply::Empty(())),
        };
        Ok(answer)
    }

    /// The children of a node as bytes, which `made` has.
    fn listing(
        &self,
        core: &mut Core,
        r: &ReadRequest,
        made: impl FnOnce(&Node) -> Bytes,
    ) -> Result<Result<Bytes, ErrorCode>, Ended> {
        let node = core.tree().readable(&r.path, self.auth);
        let found = node.map(made).map_err(error_code);
        self.watch_if(core, r, found.is_ok(), WatchTable::add_child)?;
        Ok(found)
    }

    fn exists(&self, core: &mut Core, r: &ReadRequest) -> Result<Answer, Ended> {
        // ZooKeeper: exists alone looks for a NUL (FinalRequestProcessor).
        if r.path.contains('\0') {
            return Ok(Err(ErrorCode::BadArguments));
        }
        let found = core.tree().exists(&r.path, self.auth);
        if r.watch && matches!(found, Ok(_) | Err(TreeError::NoNode)) {
            self.may_watch(core, &r.path)?;
            core.tree_watches().add_exist(self.watcher, &r.path);
        }
        Ok(found.map_err(error_code).map(|s| {
            let mut stat = stat(&s);
            if r.path == config_node::PATH {
                config_node::resize(&self.front.gateway.config, &mut stat);
            }
            Reply::Stat(StatResponse { stat })
        }))
    }

    fn get_data(&self, core: &Core, path: &str) -> Result<GetDataResponse, ErrorCode> {
        let (data, s) = core.tree().get_data(path, self.auth).map_err(error_code)?;
        let mut found = GetDataResponse {
            data,
            stat: stat(&s),
        };
        if path == config_node::PATH {
            found.data = Some(config_node::data(&self.front.gateway.config));
            config_node::resize(&self.front.gateway.config, &mut found.stat);
        }
        Ok(found)
    }

    fn get_children(&self, core: &Core, path: &str) -> Result<GetChildrenResponse, ErrorCode> {
        let (names, _) = core
            .tree()
            .get_children(path, self.auth)
            .map_err(error_code)?;
        Ok(GetChildrenResponse {
            children: names.iter().map(ToString::to_string).collect(),
        })
    }

    /// ZooKeeper: each read stands for itself, and none sets a watch (`FinalRequestProcessor`, multiRead; `Op.getData`).
    fn multi_read(&self, core: &Core, multi: &MultiRequest) -> Answer {
        let read = |op: &MultiOp| match op {
            MultiOp::GetData(r) => Ok(self
                .get_data(core, &r.path)
                .map_or_else(MultiResult::failed, MultiResult::GetData)),
            MultiOp::GetChildren(r) => Ok(self
                .get_children(core, &r.path)
                .map_or_else(MultiResult::failed, MultiResult::GetChildren)),
            _ => Err(ErrorCode::MarshallingError),
        };
        let results = multi.ops.iter().map(read).collect::<Result<_, _>>()?;
        Ok(Reply::Multi(MultiResponse { results }))
    }

    fn watch_if(
        &self,
        core: &mut Core,
        r: &ReadRequest,
        found: bool,
        add: fn(&mut WatchTable, WatcherId, &str),
    ) -> Result<(), Ended> {
        if r.watch && found {
            self.may_watch(core, &r.path)?;
            add(core.tree_watches(), self.watcher, &r.path);
        }
        Ok(())
    }

    fn may_watch(&self, core: &mut Core, path: &str) -> Result<(), Ended> {
        let watched = core
            .tree_watches()
            .check(self.watcher, path, WatchKind::Any);
        may_watch(core, self.front, self.watcher, usize::from(!watched))
    }
}

/// Whether a connection may watch more paths. ZooKeeper has no such limit; a client beyond it is closed.
fn may_watch(core: &mut Core, front: &Front, watcher: WatcherId, more: usize) -> Result<(), Ended> {
    let limit = &front.board.limits.watches_per_connection;
    if core.tree_watches().paths_of(watcher).len() + more <= limit.max {
        return Ok(());
    }
    let connection = format!("connection {}", watcher.0);
    limit.hit(
        front.gateway.now_ms(),
        &connection,
        "the connection is closed",
    );
    Err(Ended)
}

/// The older request as the newer one, which has two lists more.
pub(super) fn all_lists(w: &SetWatchesRequest) -> SetWatches2Request {
    SetWatches2Request {
        relative_zxid: w.relative_zxid,
        data_watches: w.data_watches.clone(),
        exist_watches: w.exist_watches.clone(),
        child_watches: w.child_watches.clone(),
        ..SetWatches2Request::default()
    }
}

/// What the client missed goes out before the reply.
pub(super) fn set_watches(
    client: &mut Client,
    slot: SlotId,
    w: &SetWatches2Request,
) -> Result<(), Ended> {
    let watcher = client.conn.into_watcher();
    let front = &client.front;
    let replies = &mut client.replies;
    let more = w.data_watches.len()
        + w.exist_watches.len()
        + w.child_watches.len()
        + w.persistent_watches.len()
        + w.persistent_recursive_watches.len();
    let (outcome, after) = front.gateway.with(|core| {
        replies.drain();
        may_watch(core, front, watcher, more)?;
        let missed = core.set_watches(
            watcher,
            w.relative_zxid,
            &w.data_watches,
            &w.exist_watches,
            &w.child_watches,
            &w.persistent_watches,
            &w.persistent_recursive_watches,
        );
        for event in missed {
            replies.both.remove(&*event.path);
            replies.missed(slot, translate::event(&event));
        }
        let number = replies.number(core);
        replies.fill(slot, number, Ok(Reply::Empty(())));
        Ok(())
    });
    replies.depends_on(after);
    outcome
}

/// ZooKeeper: identities belong to the connection; a failure is told and the connection closed
/// (`ZooKeeperServer.processPacket`). The header's zxid is 0.
fn add_auth(client: &mut Client, slot: SlotId, request: &AuthRequest) {
    match translate::identity(request, client.address.ip(), &client.auth) {
        Ok(identity) => {
            if !client.auth.contains(&identity) {
                client.auth.push(identity);
            }
            let auth = client.auth.clone();
            client
                .front
                .gateway
                .with(|core| core.set_auth(client.conn.into_watcher(), auth));
            client.replies.fill(slot, 0, Ok(Reply::Empty(())));
        }
        Err(code) => {
            client.front.board.auth_failures.fetch_add(1, Relaxed);
            tracing::info!(
                peer = client.peer,
                scheme = request.scheme,
                "authentication failed: unknown scheme"
            );
            client.replies.fill(slot, 0, Err(code));
            client.replies.wire.close_after(slot);
        }
    }
}

/// ZooKeeper: the reply leaves before the connection closes (FinalRequestProcessor, closeSession).
fn close_session(client: &mut Client, slot: SlotId) {
    let id = client.session;
    apply(client, slot, Command::CloseSession { id }, |_| {
        Ok(Reply::Empty(()))
    });
    client.replies.wire.close_after(slot);
}
