//! create2 before an ensemble that does not have it, which is one before ZooKeeper 3.5: a create, and an exists of
//! what it made. Curator and others make every node with create2.

use bytes::Bytes;
use causeway_wire::zk::record::{Record, RecordError};
use causeway_wire::zk::reply::{Create2Response, CreateResponse, StatResponse};
use causeway_wire::zk::request::{CreateRequest, ReadRequest};
use causeway_wire::zk::{OpCode, Reply, ReplyHeader, Request, Stat};

/// The path that a create has answered.
pub(super) fn path(created: Bytes) -> Result<String, RecordError> {
    CreateResponse::decode(created).map(|response| response.path)
}

/// The request for the Stat of the node.
pub(super) fn exists(path: &str) -> Request {
    Request::Exists(ReadRequest {
        path: path.to_owned(),
        watch: false,
    })
}

/// The body of create2's answer: the node as it was made, whatever was done to it since. `created` is the header of
/// create's answer, `exists` the answer to [`exists`], which is asked for the node's time alone: without an answer,
/// or with one about another node of that path, the time is 0.
pub(super) fn answer(
    path: String,
    created: &ReplyHeader,
    exists: Option<(&ReplyHeader, Bytes)>,
    request: &CreateRequest,
    owner: i64,
) -> Result<Bytes, RecordError> {
    let found = match exists {
        Some((header, body)) if header.err == 0 => Some(StatResponse::decode(body)?.stat),
        _ => None,
    };
    let ctime = found
        .filter(|stat| stat.czxid == created.zxid)
        .map_or(0, |stat| stat.ctime);
    let stat = Stat {
        czxid: created.zxid,
        mzxid: created.zxid,
        pzxid: created.zxid,
        ctime,
        mtime: ctime,
        ephemeral_owner: if matches!(request.flags, 1 | 3) {
            owner
        } else {
            0
        },
        data_length: request
            .data
            .as_ref()
            .map_or(0, |data| i32::try_from(data.len()).unwrap_or(i32::MAX)),
        ..Stat::default()
    };
    Ok(Reply::Create2(Create2Response { path, stat }).encode())
}

/// The operation that such an ensemble is asked for create2.
pub(super) const INSTEAD: OpCode = OpCode::Create;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_shown_as_it_was_made() {
        let header = |err| ReplyHeader {
            xid: 1,
            zxid: 7,
            err,
        };
        let request = CreateRequest {
            path: "/a".into(),
            data: Some(Bytes::from_static(b"abc")),
            acl: Vec::new(),
            flags: 1,
        };
        let found = |czxid| {
            let stat = Stat {
                czxid,
                mzxid: 9,
                ctime: 1000,
                mtime: 2000,
                version: 2,
                data_length: 8,
                ephemeral_owner: 6,
                ..Stat::default()
            };
            let mut body = bytes::BytesMut::new();
            StatResponse { stat }.write(&mut body);
            body.freeze()
        };
        let check = |exists: Option<(ReplyHeader, Bytes)>, ctime: i64| {
            let exists = exists.as_ref().map(|(header, body)| (header, body.clone()));
            let body = answer("/a".into(), &header(0), exists, &request, 5).expect("an answer");
            let answer = Create2Response::decode(body).expect("create2's record");
            let stat = Stat {
                czxid: 7,
                mzxid: 7,
                pzxid: 7,
                ctime,
                mtime: ctime,
                ephemeral_owner: 5,
                data_length: 3,
                ..Stat::default()
            };
            assert_eq!((answer.path.as_str(), answer.stat), ("/a", stat));
        };
        // Written to since; made by somebody else since; gone; never answered.
        check(Some((header(0), found(7))), 1000);
        check(Some((header(0), found(8))), 0);
        check(Some((header(-101), Bytes::new())), 0);
        check(None, 0);
    }
}
