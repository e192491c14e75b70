//! The bodies of multi and multiRead, which are not plain records: each item has a header, and a header with
//! `done` ends the list.

use bytes::BytesMut;

use crate::zk::error_code::ErrorCode;
use crate::zk::op_code::OpCode;
use crate::zk::record::{Reader, Record, RecordError, records};
use crate::zk::reply::{Create2Response, CreateResponse, GetChildrenResponse, GetDataResponse};
use crate::zk::request::{
    CheckVersionRequest, CreateRequest, CreateTtlRequest, DeleteRequest, ReadRequest,
    SetDataRequest,
};
use crate::zk::stat::Stat;

/// Most operations that one multi may hold: more than fit into a frame of the default size.
pub const MAX_MULTI_OPS: usize = 65_536;

records! {
    /// In front of each item.
    #[derive(Copy)]
    struct MultiHeader {
        op: i32,
        done: bool,
        err: i32,
    }
}

const END: MultiHeader = MultiHeader {
    op: -1,
    done: true,
    err: -1,
};

/// What a multi does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MultiKind {
    /// No operation at all.
    Empty,
    /// Only operations of multi.
    Write,
    /// Only operations of multiRead.
    Read,
    /// Both: refused as a whole, nothing is applied.
    Mixed,
}

/// The body of multi and of multiRead. ZooKeeper decodes both alike (`MultiOperationRecord`); [`MultiRequest::kind`]
/// tells what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MultiRequest {
    /// The operations in order.
    pub ops: Vec<MultiOp>,
}

impl MultiRequest {
    /// Whether it reads, writes, or mixes both.
    pub fn kind(&self) -> MultiKind {
        let reads = self.ops.iter().filter(|op| op.is_read()).count();
        match reads {
            _ if self.ops.is_empty() => MultiKind::Empty,
            0 => MultiKind::Write,
            reads if reads == self.ops.len() => MultiKind::Read,
            _ => MultiKind::Mixed,
        }
    }
}

impl Record for MultiRequest {
    const MIN_LEN: usize = MultiHeader::MIN_LEN;

    fn read(reader: &mut Reader) -> Result<Self, RecordError> {
        let mut ops = Vec::new();
        loop {
            let header = MultiHeader::read(reader)?;
            if header.done {
                return Ok(Self { ops });
            }
            if ops.len() == MAX_MULTI_OPS {
                return Err(RecordError::TooManyMultiOps(MAX_MULTI_OPS));
            }
            ops.push(MultiOp::read(header.op, reader)?);
        }
    }

    fn write(&self, out: &mut BytesMut) {
        for op in &self.ops {
            MultiHeader {
                op: op.op() as i32,
                done: false,
                err: -1,
            }
            .write(out);
            op.write(out);
        }
        END.write(out);
    }
}

macro_rules! multi_ops {
    ($($(#[$meta:meta])* $name:ident($record:ty) by $read:path,)+) => {
        /// One operation of a multi.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum MultiOp {
            $($(#[$meta])* $name($record),)+
        }

        impl MultiOp {
            /// Which operation it is.
            pub fn op(&self) -> OpCode {
                match self {
                    $(MultiOp::$name(_) => OpCode::$name,)+
                }
            }

            fn read(op: i32, reader: &mut Reader) -> Result<Self, RecordError> {
                match OpCode::try_from(op) {
                    $(Ok(OpCode::$name) => Ok(MultiOp::$name($read(reader)?)),)+
                    _ => Err(RecordError::BadMultiOp(op)),
                }
            }

            fn write(&self, out: &mut BytesMut) {
                match self {
                    $(MultiOp::$name(record) => record.write(out),)+
                }
            }
        }
    };
}

multi_ops! {
    /// Create a node.
    Create(CreateRequest) by read_create,
    /// Create a node, Stat in the result.
    Create2(CreateRequest) by read_create,
    /// Create a container, Stat in the result; so does a create with the flags of a container.
    CreateContainer(CreateRequest) by read_create,
    /// Create a node with a time to live, Stat in the result. With flags that have none it is a create.
    CreateTtl(CreateTtlRequest) by Record::read,
    /// Delete a node.
    Delete(DeleteRequest) by Record::read,
    /// Replace the data.
    SetData(SetDataRequest) by Record::read,
    /// Fail all unless the version matches.
    Check(CheckVersionRequest) by Record::read,
    /// Data and Stat; multiRead only. Its watch is not set (ZooKeeper: `Op.GetData` has none).
    GetData(ReadRequest) by Record::read,
    /// Names of the children; multiRead only. Its watch is not set (ZooKeeper: `Op.GetChildren` has none).
    GetChildren(ReadRequest) by Record::read,
}

/// A create whose kind of node cannot be told, or whose ACL is null, makes the whole multi unreadable (ZooKeeper:
/// `MultiOperationRecord.deserialize` builds `CreateOptions`, which has no time to live and wants a list).
fn read_create(reader: &mut Reader) -> Result<CreateRequest, RecordError> {
    let path = Record::read(reader)?;
    let data = Record::read(reader)?;
    if reader.clone().i32()? == -1 {
        return Err(RecordError::NullAcl);
    }
    let acl = Record::read(reader)?;
    let flags = Record::read(reader)?;
    if !(0..=4).contains(&flags) {
        return Err(RecordError::BadCreateFlags(flags));
    }
    Ok(CreateRequest {
        path,
        data,
        acl,
        flags,
    })
}

impl MultiOp {
    /// Whether it belongs into a multiRead.
    pub fn is_read(&self) -> bool {
        matches!(self, MultiOp::GetData(_) | MultiOp::GetChildren(_))
    }
}

/// The answer to multi and multiRead. A failed multi has header err 0 and an error in every slot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MultiResponse {
    /// A result per operation.
    pub results: Vec<MultiResult>,
}

impl MultiResponse {
    /// The answer to a multi of `count` operations of which number `failed` failed: 0 before it, its code, and
    /// [`ErrorCode::RuntimeInconsistency`] after it (ZooKeeper: `DataTree.processTxn`, multi).
    pub fn failure(count: usize, failed: usize, code: ErrorCode) -> Self {
        let code_of = |at: usize| match at.cmp(&failed) {
            std::cmp::Ordering::Less => ErrorCode::Ok,
            std::cmp::Ordering::Equal => code,
            std::cmp::Ordering::Greater => ErrorCode::RuntimeInconsistency,
        };
        Self {
            results: (0..count)
                .map(|at| MultiResult::Error(code_of(at).number()))
                .collect(),
        }
    }
}

/// The result of one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MultiResult {
    /// create: the path.
    Create(CreateResponse),
    /// create2, createContainer, createTTL: path and Stat, all under the number of create2.
    Create2(Create2Response),
    /// delete.
    Delete,
    /// setData: the new Stat.
    SetData(Stat),
    /// check.
    Check,
    /// getData.
    GetData(GetDataResponse),
    /// getChildren.
    GetChildren(GetChildrenResponse),
    /// A slot of a failed multi, or a failed read of a multiRead. A plain number, so that codes of other servers
    /// pass through.
    Error(i32),
}

impl MultiResult {
    /// A read that failed.
    pub fn failed(code: ErrorCode) -> Self {
        MultiResult::Error(code.number())
    }
}

impl Record for MultiResponse {
    const MIN_LEN: usize = MultiHeader::MIN_LEN;

    fn read(reader: &mut Reader) -> Result<Self, RecordError> {
        let mut results = Vec::new();
        loop {
            let header = MultiHeader::read(reader)?;
            if header.done {
                return Ok(Self { results });
            }
            if results.len() == MAX_MULTI_OPS {
                return Err(RecordError::TooManyMultiOps(MAX_MULTI_OPS));
            }
            results.push(match OpCode::try_from(header.op) {
                Ok(OpCode::Create) => MultiResult::Create(Record::read(reader)?),
                Ok(OpCode::Create2 | OpCode::CreateContainer | OpCode::CreateTtl) => {
                    MultiResult::Create2(Record::read(reader)?)
                }
                Ok(OpCode::Delete) => MultiResult::Delete,
                Ok(OpCode::SetData) => MultiResult::SetData(Record::read(reader)?),
                Ok(OpCode::Check) => MultiResult::Check,
                Ok(OpCode::GetData) => MultiResult::GetData(Record::read(reader)?),
                Ok(OpCode::GetChildren) => MultiResult::GetChildren(Record::read(reader)?),
                Ok(OpCode::Error) => MultiResult::Error(reader.i32()?),
                _ => return Err(RecordError::BadMultiOp(header.op)),
            });
        }
    }

    fn write(&self, out: &mut BytesMut) {
        for result in &self.results {
            let (op, err) = match result {
                MultiResult::Create(_) => (OpCode::Create, 0),
                MultiResult::Create2(_) => (OpCode::Create2, 0),
                MultiResult::Delete => (OpCode::Delete, 0),
                MultiResult::SetData(_) => (OpCode::SetData, 0),
                MultiResult::Check => (OpCode::Check, 0),
                MultiResult::GetData(_) => (OpCode::GetData, 0),
                MultiResult::GetChildren(_) => (OpCode::GetChildren, 0),
                MultiResult::Error(code) => (OpCode::Error, *code),
            };
            MultiHeader {
                op: op as i32,
                done: false,
                err,
            }
            .write(out);
            match result {
                MultiResult::Create(record) => record.write(out),
                MultiResult::Create2(record) => record.write(out),
                MultiResult::SetData(record) => record.write(out),
                MultiResult::GetData(record) => record.write(out),
                MultiResult::GetChildren(record) => record.write(out),
                MultiResult::Error(code) => code.write(out),
                MultiResult::Delete | MultiResult::Check => {}
            }
        }
        END.write(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str) -> ReadRequest {
        ReadRequest {
            path: path.into(),
            watch: false,
        }
    }

    fn delete(path: &str) -> MultiOp {
        MultiOp::Delete(DeleteRequest {
            path: path.into(),
            version: -1,
        })
    }

    #[test]
    fn kinds() {
        let get = || MultiOp::GetData(read("/a"));
        let check = |ops: Vec<MultiOp>, want| {
            assert_eq!(MultiRequest { ops: ops.clone() }.kind(), want, "{ops:?}")
        };
        check(vec![], MultiKind::Empty);
        check(vec![delete("/a"), delete("/b")], MultiKind::Write);
        check(
            vec![get(), MultiOp::GetChildren(read("/"))],
            MultiKind::Read,
        );
        check(vec![get(), delete("/a")], MultiKind::Mixed);
    }

    #[test]
    fn bytes_of_a_request() {
        let request = MultiRequest {
            ops: vec![delete("/a")],
        };
        let want = [
            &[0, 0, 0, 2, 0, 0xff, 0xff, 0xff, 0xff][..],
            &[0, 0, 0, 2, b'/', b'a'],
            &[0xff, 0xff, 0xff, 0xff],
            &[0xff, 0xff, 0xff, 0xff, 1, 0xff, 0xff, 0xff, 0xff],
        ]
        .concat();
        assert_eq!(request.encode(), want);
        assert_eq!(MultiRequest::decode(want.into()), Ok(request));
    }

    #[test]
    fn bytes_of_a_failure() {
        let response = MultiResponse::failure(3, 1, ErrorCode::NodeExists);
        let slot = |code: i32| {
            [
                &(-1i32).to_be_bytes()[..],
                &[0],
                &code.to_be_bytes(),
                &code.to_be_bytes(),
            ]
            .concat()
        };
        let end = [0xff, 0xff, 0xff, 0xff, 1, 0xff, 0xff, 0xff, 0xff];
        let want = [slot(0), slot(-110), slot(-2), end.to_vec()].concat();
        assert_eq!(response.encode(), want);
        assert_eq!(MultiResponse::decode(want.into()), Ok(response));
    }

    #[test]
    fn results_round_trip() {
        let stat = Stat {
            version: 3,
            ..Stat::default()
        };
        let response = MultiResponse {
            results: vec![
                MultiResult::Create(CreateResponse { path: "/a".into() }),
                MultiResult::Create2(Create2Response {
                    path: "/b".into(),
                    stat,
                }),
                MultiResult::Delete,
                MultiResult::SetData(stat),
                MultiResult::Check,
                MultiResult::GetData(GetDataResponse { data: None, stat }),
                MultiResult::GetChildren(GetChildrenResponse {
                    children: vec!["x".into()],
                }),
                MultiResult::Error(-101),
                MultiResult::Error(-9999),
            ],
        };
        assert_eq!(MultiResponse::decode(response.encode()), Ok(response));
    }

    #[test]
    fn wrong_bytes() {
        let check =
            |bytes: Vec<u8>, want| assert_eq!(MultiRequest::decode(bytes.into()), Err(want));
        check(vec![], RecordError::Truncated { wanted: 4, left: 0 });
        check(
            vec![0, 0, 0, 2, 0, 0, 0, 0, 0],
            RecordError::Truncated { wanted: 4, left: 0 },
        );
        for op in [3, 9, 12, 14, 22, 9999, -11] {
            let header = [&i32::to_be_bytes(op)[..], &[0, 0xff, 0xff, 0xff, 0xff]].concat();
            check(header, RecordError::BadMultiOp(op));
        }
        let create = |acl: &[u8], flags: i32| {
            let header = [0, 0, 0, 1, 0, 0xff, 0xff, 0xff, 0xff];
            let path_and_data = [0, 0, 0, 1, b'/', 0xff, 0xff, 0xff, 0xff];
            [&header[..], &path_and_data, acl, &flags.to_be_bytes()].concat()
        };
        check(create(&[0xff; 4], 0), RecordError::NullAcl);
        for flags in [-1, 5, 6, 7] {
            check(create(&[0; 4], flags), RecordError::BadCreateFlags(flags));
        }
        let many = MultiRequest {
            ops: vec![delete(""); MAX_MULTI_OPS + 1],
        };
        check(
            many.encode().to_vec(),
            RecordError::TooManyMultiOps(MAX_MULTI_OPS),
        );
    }
}
