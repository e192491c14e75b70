//! Answers and events of the ensemble, made the client's.

use bytes::Bytes;
use causeway_backend::BackendError;
use causeway_backend_zookeeper::upstream::Answer as LegacyAnswer;
use causeway_engine::core::Command;
use causeway_wire::zk::record::Record;
use causeway_wire::zk::reply::{
    GetChildren2Response, GetChildrenResponse, GetDataResponse, StatResponse,
};
use causeway_wire::zk::{
    ErrorCode, EventType, MultiOp, MultiResponse, MultiResult, OpCode, Reply, Request, SlotId,
};

use super::conn::Client;
use super::general::{Answered, Asked, General, Incident, Then};
use super::socket::Ended;
use super::taken_over::{Class, class};
use super::translate::{self, Shape, Write};
use super::{local, union};

/// Takes what happened on the way to the ensemble.
pub(super) fn take(client: &mut Client, incident: Incident) -> Result<(), Ended> {
    if client.replies.wire.is_closing() {
        // The last reply is on its way, and nothing comes after it.
        client.general = None;
        return Ok(());
    }
    match incident {
        Incident::Event(notification) => {
            let front = client.front.clone();
            let layouts = &front.gateway.config.layouts;
            let Some(general) = &mut client.general else {
                return Ok(());
            };
            general.last_event = notification.number;
            let ready = general.ready();
            if let Some(event) = general.chroot.event(notification.event) {
                let concerns = match class(layouts, &event.path) {
                    // Copies of registrations in the ensemble change after the view did.
                    Class::Owned => false,
                    Class::General => true,
                    Class::Mixed => {
                        event.kind != EventType::NodeChildrenChanged as i32
                            || union::takes_event(client, &event.path)
                    }
                };
                if concerns {
                    client.replies.event(&event.path, event.encode());
                }
            }
            for answered in ready {
                finish(client, answered)?;
            }
            Ok(())
        }
        Incident::Answered(answered) => match *answered {
            Ok(answered) => match client.general.as_mut().ok_or(Ended)?.in_order(answered) {
                Some(answered) => finish(client, answered),
                None => Ok(()),
            },
            Err(error) => {
                if let Some(slot) = client.general.as_mut().and_then(General::take_closing) {
                    return local::serve(client, slot, Request::CloseSession);
                }
                // The connection, not an error code: clients would take a code for the last word.
                tracing::debug!(peer = client.peer, %error, "the ensemble did not answer: the client's connection is closed");
                Err(Ended)
            }
        },
        Incident::Attached(Ok(upstream)) => {
            client.general.as_mut().ok_or(Ended)?.attached(upstream)
        }
        Incident::Attached(Err(error)) => {
            let asked = client.general.as_mut().and_then(General::give_up);
            match asked {
                Some(asked) => without_ensemble(client, asked, &error),
                None => Ok(()),
            }
        }
        // Everything has come; its events are still on their way through here.
        Incident::Lost(_)
            if client
                .general
                .as_ref()
                .is_some_and(General::is_closed_there) =>
        {
            Ok(())
        }
        Incident::Lost(error) => {
            // The ensemble hangs up after its close, whose answer may wait for the last events.
            if let Some(slot) = client.general.as_mut().and_then(General::take_closing) {
                return local::serve(client, slot, Request::CloseSession);
            }
            let missed = client.general.as_mut().is_some_and(General::lose);
            if missed {
                tracing::debug!(peer = client.peer, %error, "the ensemble is lost: the client's connection is closed");
                return Err(Ended);
            }
            Ok(())
        }
    }
}

/// The ensemble cannot be reached: the lists of directories of both are shown as last seen, the session can
/// be closed, and anything else closes the connection.
fn without_ensemble(client: &mut Client, asked: Asked, error: &BackendError) -> Result<(), Ended> {
    let last = match (&asked.then, &asked.request) {
        (
            Then::Union,
            Request::GetChildren(r)
            | Request::GetChildren2(r)
            | Request::Exists(r)
            | Request::GetData(r),
        ) => client
            .front
            .last_seen
            .get(&r.path)
            .map(|l| (r.path.clone(), l.clone())),
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
        Request::GetChildren(_) => Reply::GetChildren(GetChildrenResponse {
            children: names.clone(),
        }),
        Request::GetChildren2(_) => Reply::GetChildren2(GetChildren2Response {
            children: names.clone(),
            stat,
        }),
        Request::GetData(_) => Reply::GetData(GetDataResponse {
            data: Some(Bytes::new()),
            stat,
        }),
        _ => Reply::Stat(StatResponse { stat }),
    };
    union::finish(client, asked, Ok(reply), Some(names))
}

/// Makes the client's answer of the ensemble's.
fn finish(client: &mut Client, answered: Answered) -> Result<(), Ended> {
    client.replies.theirs = answered.answer.header.zxid;
    let done = answer(client, answered);
    client.replies.theirs = 0;
    done
}

fn answer(client: &mut Client, answered: Answered) -> Result<(), Ended> {
    let Answered {
        asked,
        answer,
        names,
    } = answered;
    let chroot = client
        .general
        .as_ref()
        .map(|g| g.chroot.clone())
        .ok_or(Ended)?;
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
            union::finish(client, asked, reply, names)
        }
        Then::MultiRead => {
            let reply = reply.map(|reply| as_client_knows(client, reply));
            union::finish_multi_read(client, asked.slot, &asked.request, reply)
        }
        Then::Record(write) => {
            finish_record(
                client,
                asked.slot,
                write,
                reply,
                answer.header.zxid,
                &asked.request,
            );
            Ok(())
        }
        Then::SetWatches(mut local) => match reply {
            Ok(_) => {
                // Of a directory of both whose watch the ensemble has fired already the client knows.
                let layouts = &client.front.gateway.config.layouts;
                let both = &client.replies.both;
                local
                    .child_watches
                    .retain(|path| class(layouts, path) != Class::Mixed || both.contains(path));
                local::set_watches(client, asked.slot, &local)
            }
            Err(code) => {
                fill(client, asked.slot, Err(code));
                Ok(())
            }
        },
        // Whatever the ensemble made of it: the client is done.
        Then::Close => match client.general.as_mut().and_then(General::take_closing) {
            Some(slot) => local::serve(client, slot, Request::CloseSession),
            None => Ok(()),
        },
    }
}

/// Queues a reply with our number, behind the events so far.
pub(super) fn fill(client: &mut Client, slot: SlotId, reply: Result<Reply, i32>) {
    let (err, body) = match reply {
        Ok(reply) => (0, reply.encode()),
        Err(code) => (code, Bytes::new()),
    };
    let replies = &mut client.replies;
    let ((), after) = client.front.gateway.with(|core| {
        replies.drain();
        let number = replies.number(core);
        replies.fill_raw(slot, number, err, body);
    });
    replies.depends_on(after);
}

/// Owners in the ensemble are the sessions there; the client knows its own.
fn as_client_knows(client: &Client, mut reply: Reply) -> Reply {
    let needed = translate::stats(&mut reply)
        .iter()
        .any(|s| s.ephemeral_owner != 0);
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
                && multi.ops.iter().any(|op| match op {
                    MultiOp::Create(c) | MultiOp::Create2(c) => ephemeral(c.flags),
                    // With such flags it is a create.
                    MultiOp::CreateTtl(c) => ephemeral(c.flags),
                    _ => false,
                })
        }
        _ => false,
    }
}

/// The session lives as the ensemble says from now on: it holds an ephemeral there.
fn bind(client: &mut Client) {
    let id = client.session;
    let bound = client
        .front
        .gateway
        .with(|core| core.sessions().get(id).is_some_and(|s| s.bound))
        .0;
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
    let command = Command::TreeAcknowledged {
        peer: client.peer.clone(),
        session: client.session,
        op,
        mark,
    };
    local::apply(client, slot, command, |ours| match (write.shape, theirs) {
        (Shape::Multi(shapes), Reply::Multi(theirs)) => {
            let owned_shapes: Vec<Shape> = shapes
                .into_iter()
                .zip(&paths)
                .filter(|(_, owned)| **owned)
                .map(|(shape, _)| shape)
                .collect();
            let mut ours = match translate::written(&Shape::Multi(owned_shapes), ours)? {
                Reply::Multi(ours) => ours.results.into_iter(),
                _ => return Err(ErrorCode::SystemError),
            };
            let results = theirs
                .results
                .into_iter()
                .zip(&paths)
                .map(|(theirs, owned)| {
                    if *owned {
                        ours.next().unwrap_or(theirs)
                    } else {
                        theirs
                    }
                })
                .collect();
            Ok(Reply::Multi(MultiResponse { results }))
        }
        (shape, _) => translate::written(&shape, ours),
    });
}
