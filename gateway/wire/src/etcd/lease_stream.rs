//! The state of one LeaseKeepAlive stream.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::etcd::ServerIds;
use crate::etcd::error::EtcdError;
use crate::etcd::frame::put_message;
use crate::etcd::messages::etcdserverpb::{
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, ResponseHeader,
};

/// Names one keep-alive of a stream until it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeepAliveId(u64);

/// What to do with the response stream.
#[derive(Debug, Clone, PartialEq)]
pub enum LeaseOutput {
    /// Send this.
    Response(LeaseKeepAliveResponse),
    /// End the stream with this status.
    Fail(EtcdError),
    /// End the stream without error.
    End,
}

/// The state of one LeaseKeepAlive stream. Clients send the keep-alives of all their leases on one stream, so a
/// missing lease is answered with TTL 0 and the stream stays open (etcd: `v3rpc/lease.go`).
///
/// **Inputs**: [`handle_request`](Self::handle_request) for each message; then [`renewed`](Self::renewed),
/// [`missing`](Self::missing) or [`failed`](Self::failed), in any order; [`half_close`](Self::half_close) when the
/// client sends no more.
///
/// **Outputs**: [`poll_output`](Self::poll_output) until it gives `None`; answers go out in the order of requests. All that
/// wait are taken in one piece with [`poll_frames`](Self::poll_frames) before it.
#[derive(Debug)]
pub struct LeaseStream {
    ids: ServerIds,
    max_pending: usize,
    pending: VecDeque<KeepAlive>,
    first: u64,
    half_closed: bool,
    ended: bool,
}

#[derive(Debug)]
struct KeepAlive {
    lease: i64,
    /// Taken before the renewal: a client must not see a renewal at a revision at which the lease was revoked.
    header: ResponseHeader,
    answer: Option<Result<i64, EtcdError>>,
}

impl KeepAlive {
    fn response(&self, ttl: i64) -> LeaseKeepAliveResponse {
        LeaseKeepAliveResponse {
            header: Some(self.header),
            id: self.lease,
            ttl,
        }
    }
}

impl LeaseStream {
    /// A stream with at most `max_pending` unanswered keep-alives.
    pub fn new(ids: ServerIds, max_pending: usize) -> Self {
        Self {
            ids,
            max_pending,
            pending: VecDeque::new(),
            first: 0,
            half_closed: false,
            ended: false,
        }
    }

    /// A message of the client, and the revision at this moment. Renew `request.id` and answer under the id given.
    pub fn handle_request(
        &mut self,
        request: &LeaseKeepAliveRequest,
        revision: i64,
    ) -> KeepAliveId {
        let id = self.first + self.pending.len() as u64;
        self.pending.push_back(KeepAlive {
            lease: request.id,
            header: self.ids.header(revision),
            answer: None,
        });
        KeepAliveId(id)
    }

    /// Whether to read on.
    pub fn has_room(&self) -> bool {
        self.pending.len() < self.max_pending
    }

    /// The lease lives; `ttl` seconds from now.
    pub fn renewed(&mut self, id: KeepAliveId, ttl: i64) {
        self.answer(id, Ok(ttl));
    }

    /// The lease is unknown, expired or revoked.
    pub fn missing(&mut self, id: KeepAliveId) {
        self.answer(id, Ok(0));
    }

    /// Nobody could say; the stream ends with this status after the answers before it.
    pub fn failed(&mut self, id: KeepAliveId, error: EtcdError) {
        self.answer(id, Err(error));
    }

    /// The client sends no more; the stream ends once all is answered.
    pub fn half_close(&mut self) {
        self.half_closed = true;
    }

    /// The answers that are next, all of them in their gRPC frames. What else there is to do stays for
    /// [`poll_output`](Self::poll_output).
    pub fn poll_frames(&mut self) -> Option<Bytes> {
        let mut frames = BytesMut::new();
        while let Some(Ok(ttl)) = self.pending.front().and_then(|front| front.answer)
            && !self.ended
            && let Some(keep_alive) = self.pending.pop_front()
        {
            self.first += 1;
            put_message(&mut frames, &keep_alive.response(ttl));
        }
        (!frames.is_empty()).then(|| frames.freeze())
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<LeaseOutput> {
        if self.ended {
            return None;
        }
        let Some(front) = self.pending.front() else {
            if self.half_closed {
                self.ended = true;
                return Some(LeaseOutput::End);
            }
            return None;
        };
        let answer = front.answer?;
        let keep_alive = self.pending.pop_front()?;
        self.first += 1;
        Some(match answer {
            Ok(ttl) => LeaseOutput::Response(keep_alive.response(ttl)),
            Err(error) => {
                self.ended = true;
                LeaseOutput::Fail(error)
            }
        })
    }

    fn answer(&mut self, id: KeepAliveId, answer: Result<i64, EtcdError>) {
        let index =
            id.0.checked_sub(self.first)
                .and_then(|index| usize::try_from(index).ok());
        if let Some(keep_alive) = index.and_then(|index| self.pending.get_mut(index)) {
            keep_alive.answer.get_or_insert(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::etcd::frame::only_message;

    fn stream() -> LeaseStream {
        LeaseStream::new(
            ServerIds {
                cluster_id: 1,
                member_id: 2,
                raft_term: 3,
            },
            2,
        )
    }

    fn ttl(id: i64, ttl: i64, revision: i64) -> Option<LeaseOutput> {
        let header = ResponseHeader {
            cluster_id: 1,
            member_id: 2,
            revision,
            raft_term: 3,
        };
        Some(LeaseOutput::Response(LeaseKeepAliveResponse {
            header: Some(header),
            id,
            ttl,
        }))
    }

    #[test]
    fn a_missing_lease_leaves_the_stream_open() {
        let mut stream = stream();
        let live = stream.handle_request(&LeaseKeepAliveRequest { id: 7 }, 10);
        let gone = stream.handle_request(&LeaseKeepAliveRequest { id: 8 }, 10);
        assert!(!stream.has_room());
        stream.missing(gone);
        assert_eq!(stream.poll_output(), None, "order of requests");
        stream.renewed(live, 30);
        assert_eq!(stream.poll_output(), ttl(7, 30, 10));
        assert_eq!(stream.poll_output(), ttl(8, 0, 10));
        assert_eq!(stream.poll_output(), None);
        let again = stream.handle_request(&LeaseKeepAliveRequest { id: 7 }, 11);
        stream.renewed(live, 99);
        stream.renewed(again, 30);
        stream.half_close();
        assert_eq!(stream.poll_output(), ttl(7, 30, 11));
        assert_eq!(stream.poll_output(), Some(LeaseOutput::End));
        assert_eq!(stream.poll_output(), None);
    }

    #[test]
    fn all_answers_up_to_one_that_is_missing_are_one_piece() {
        let mut stream = LeaseStream::new(stream().ids, 10);
        let asked: Vec<KeepAliveId> = (1..=4)
            .map(|id| stream.handle_request(&LeaseKeepAliveRequest { id }, 10))
            .collect();
        stream.renewed(asked[1], 30);
        assert_eq!(stream.poll_frames(), None, "order of requests");
        stream.renewed(asked[0], 30);
        stream.failed(asked[3], EtcdError::NoLeader);
        let mut want = BytesMut::new();
        for id in [1, 2] {
            match ttl(id, 30, 10) {
                Some(LeaseOutput::Response(response)) => put_message(&mut want, &response),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(stream.poll_frames(), Some(want.freeze()));
        assert_eq!((stream.poll_frames(), stream.poll_output()), (None, None));
        stream.missing(asked[2]);
        let missing = stream.poll_frames().expect("an answer");
        let missing = only_message(&missing).map(LeaseKeepAliveResponse::decode);
        let missing = missing.expect("one").expect("a response");
        assert_eq!((missing.id, missing.ttl), (3, 0));
        assert_eq!(stream.poll_frames(), None, "the end is no answer");
        assert_eq!(
            stream.poll_output(),
            Some(LeaseOutput::Fail(EtcdError::NoLeader))
        );
        assert_eq!(stream.poll_frames(), None);
    }

    #[test]
    fn a_failure_ends_the_stream_after_the_answers_before_it() {
        let mut stream = stream();
        let first = stream.handle_request(&LeaseKeepAliveRequest { id: 1 }, 5);
        let second = stream.handle_request(&LeaseKeepAliveRequest { id: 2 }, 5);
        stream.failed(second, EtcdError::NoLeader);
        stream.renewed(first, 9);
        assert_eq!(stream.poll_output(), ttl(1, 9, 5));
        assert_eq!(
            stream.poll_output(),
            Some(LeaseOutput::Fail(EtcdError::NoLeader))
        );
        assert_eq!(stream.poll_output(), None);
    }
}
