//! What members say to each other.
//!
//! The shell encodes a [`Message`] with postcard, at most [`MAX_MESSAGE_BYTES`] long, and hands over what it decoded.
//! Every message can be lost, repeated or overtaken: each says by itself from where to where it reaches, and whoever
//! gets it takes only what follows on what it has.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::digest::Cell;
use crate::merge::Entry;
use crate::origin::{Dot, Origin};

/// A member's id.
pub type MemberId = u16;

/// The longest encoding of one message that a shell takes, in bytes. What is sent stays near the budgets of
/// [`super::ReplicationConfig`]; a single large record may go beyond them, and has to fit here.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// How many origins a heartbeat may name. Members are few and each has a handful of lives at most.
pub const MAX_ORIGINS: usize = 1_024;

/// How many segments the records are divided into: the first level of the digest.
pub const SEGMENTS: usize = 256;

/// The highest position in a log that is believed: far beyond what a process can write.
pub const MAX_SEQUENCE: u64 = 1 << 60;

/// One message from one member to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// Each period, to every connected peer.
    Heartbeat(Heartbeat),
    /// The answer to a heartbeat of a life that is not the member's present one.
    Stale(Stale),
    /// Entries of logs: pushed by their writer, or the answer to a pull.
    Batch(Batch),
    /// What the receiver of a batch has now.
    Ack(Ack),
    /// Asks for logs that their writer does not bring.
    Pull(Pull),
    /// Asks for the first level of the digest.
    DigestRequest(DigestRequest),
    /// The first level of the digest.
    DigestReply(DigestReply),
    /// Asks for the second level of some segments.
    PartsRequest(PartsRequest),
    /// The second level of some segments.
    PartsReply(PartsReply),
    /// Asks for a segment, or parts of it.
    SegmentRequest(SegmentRequest),
    /// A piece of a segment.
    SegmentReply(SegmentReply),
}

/// Where a member stands in its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Readiness {
    /// It lacks what others have: not to be shown to clients, nothing to be served.
    Init,
    /// Nobody was there to take records from: it registers and answers, and says that its lists may be incomplete;
    /// no empty list is pushed.
    Warming,
    /// It serves.
    Ready,
}

/// What every member says each period: its size depends on the number of members alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The sender and its life.
    pub origin: Origin,
    /// Counts the sender's periods, so that a late or repeated one is known.
    pub sequence: u64,
    /// The sender's hybrid clock.
    pub hlc: u64,
    /// The sender's wall clock in milliseconds, without what it took over from others.
    pub wall_ms: u64,
    /// Where the sender stands in its start.
    pub readiness: Readiness,
    /// It holds back removals by expiry.
    pub protected: bool,
    /// It is taking over a whole table: what is pushed to it meanwhile would be sent twice.
    pub bootstrapping: bool,
    /// What it has of each origin, in order.
    pub origins: Vec<OriginState>,
    /// Per member, up to which life what it wrote is over and done with; such records are ignored.
    pub past: Vec<(MemberId, u64)>,
    /// The members that it hears, in order.
    pub hears: Vec<MemberId>,
    /// What it carries.
    pub load: Load,
}

/// One origin in a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginState {
    /// Whose log.
    pub origin: Origin,
    /// Everything up to here is known to the sender.
    pub through: u64,
    /// Tombstones up to here may be missing from the sender's log.
    pub floor: u64,
    /// Over the living records whose present value this origin wrote.
    pub live: Cell,
}

/// What a member carries; the coordinator compares them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Client connections.
    pub connections: u32,
    /// Records that it holds.
    pub held: u32,
}

/// Told to a member whose life is over for the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stale {
    /// The life that was heard.
    pub heard: u64,
    /// The highest one that the sender knows of that member.
    pub known: u64,
    /// The sender hears that other life now: two processes have one id.
    pub alive: bool,
    /// The member left the list of members; see [`super::Replicator::set_members`].
    pub forgotten: bool,
}

/// Entries of several logs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The pull that it answers; 0: pushed by the writer of the log.
    pub pull: u32,
    /// One piece per log.
    pub pieces: Vec<Piece>,
    /// More of what was asked for is there.
    pub more: bool,
}

/// Everything that the sender's copy of a log holds above `after` up to `through`. What is missing in between was
/// superseded, and its successor is in this log or another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Whose log.
    pub origin: Origin,
    /// The piece begins above this position: it can be taken by whoever has everything up to it.
    pub after: u64,
    /// The piece ends here.
    pub through: u64,
    /// The entries, by rising position.
    pub entries: Vec<Entry>,
}

/// What the receiver of a batch has now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// Of each log in the batch.
    pub origins: Vec<(Origin, u64)>,
}

/// Asks for logs above positions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pull {
    /// Comes back in the answer; not 0.
    pub id: u32,
    /// Log and position.
    pub after: Vec<(Origin, u64)>,
}

/// Asks for the first level of the digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestRequest {
    /// Comes back in the answer.
    pub exchange: u32,
}

/// What a member has of each origin, and which tombstones it may lack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// Origin, position, floor.
    pub origins: Vec<(Origin, u64, u64)>,
}

/// The first level of the digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestReply {
    /// Of the request.
    pub exchange: u32,
    /// At the moment of the answer.
    pub known: Known,
    /// One cell per segment: 256.
    pub segments: Vec<Cell>,
}

/// Asks for the second level of some segments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartsRequest {
    /// Comes back in the answer.
    pub exchange: u32,
    /// Which segments.
    pub segments: Vec<u8>,
}

/// The second level of some segments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartsReply {
    /// Of the request.
    pub exchange: u32,
    /// Per segment 256 cells, or none for an empty segment.
    pub segments: Vec<(u8, Vec<Cell>)>,
}

/// A set of parts of a segment, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartSet(pub [u64; 4]);

impl PartSet {
    /// Every part.
    pub const ALL: PartSet = PartSet([u64::MAX; 4]);
    /// No part.
    pub const NONE: PartSet = PartSet([0; 4]);

    /// True when the part is in the set.
    pub fn contains(&self, part: u8) -> bool {
        let [word, bit] = [part >> 6, part & 63];
        self.0
            .get(usize::from(word))
            .is_some_and(|bits| bits >> bit & 1 == 1)
    }

    /// Puts a part into the set.
    pub fn insert(&mut self, part: u8) {
        let [word, bit] = [part >> 6, part & 63];
        if let Some(bits) = self.0.get_mut(usize::from(word)) {
            *bits |= 1 << bit;
        }
    }

    /// How many parts.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|bits| bits.count_ones()).sum()
    }

    /// True without a part.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Asks for what a segment holds and the asking member does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentRequest {
    /// Comes back in the answer.
    pub exchange: u32,
    /// Which segment.
    pub segment: u8,
    /// Which parts of it.
    pub parts: PartSet,
    /// Only keys whose hash is above this: where the last answer ended.
    pub after: Option<u64>,
    /// What the asking member has there: hash of the key and of the version, by rising hash of the key.
    pub have: Vec<(u64, u64)>,
}

/// A piece of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentReply {
    /// Of the request.
    pub exchange: u32,
    /// Of the request.
    pub segment: u8,
    /// Of the request.
    pub after: Option<u64>,
    /// At the moment of the answer.
    pub known: Known,
    /// The piece ends with this hash; None: it reaches to the end of the segment.
    pub through: Option<u64>,
    /// What the asking member lacks, or has in another version.
    pub entries: Vec<Entry>,
    /// Keys that the asking member has and the answering one does not hold, by their hash.
    pub absent: Vec<u64>,
}

/// A peer that does not keep the rules. The connection is to be closed; nothing of the message was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    /// The message speaks for another member than the one that the connection belongs to.
    #[error("member {0} speaks for member {1}")]
    WrongSender(MemberId, MemberId),
    /// The message has this member's own id.
    #[error("a peer has this member's own id")]
    OwnId,
    /// A list is longer than it can rightly be.
    #[error("a list of {0} is longer than {1}")]
    TooLong(usize, usize),
    /// Positions, hashes or parts are not in order or outside the piece that they are in.
    #[error("entries are not in order")]
    Disorder,
    /// One position of a log holds two different keys: two processes wrote under one id and incarnation.
    #[error("two writes at position {} of {}.{}", .0.sequence, .0.origin.member, .0.origin.incarnation)]
    DoubleWrite(Dot),
}

impl Message {
    /// Bounds and order of everything that can be judged by itself, so that nothing behind it has to.
    pub(super) fn check(&self) -> Result<(), Violation> {
        match self {
            Message::Heartbeat(heartbeat) => {
                bounded(heartbeat.origins.len(), MAX_ORIGINS)?;
                bounded(heartbeat.past.len(), usize::from(MemberId::MAX) + 1)?;
                bounded(heartbeat.hears.len(), usize::from(MemberId::MAX) + 1)?;
                rising(heartbeat.origins.iter().map(|state| state.origin))?;
                rising(heartbeat.hears.iter())?;
                let believed = |state: &OriginState| {
                    state.floor <= state.through && state.through <= MAX_SEQUENCE
                };
                ordered(heartbeat.origins.iter().all(believed))
            }
            Message::Stale(_) | Message::DigestRequest(_) => Ok(()),
            Message::Batch(batch) => {
                bounded(batch.pieces.len(), MAX_ORIGINS)?;
                rising(batch.pieces.iter().map(|piece| piece.origin))?;
                batch.pieces.iter().try_for_each(Piece::check)
            }
            Message::Ack(ack) => {
                bounded(ack.origins.len(), MAX_ORIGINS)?;
                ordered(ack.origins.iter().all(|(_, at)| *at <= MAX_SEQUENCE))
            }
            Message::Pull(pull) => {
                bounded(pull.after.len(), MAX_ORIGINS)?;
                rising(pull.after.iter().map(|(origin, _)| *origin))
            }
            Message::DigestReply(reply) => {
                ordered(reply.segments.len() == SEGMENTS)?;
                reply.known.check()
            }
            Message::PartsRequest(request) => {
                bounded(request.segments.len(), SEGMENTS)?;
                rising(request.segments.iter())
            }
            Message::PartsReply(reply) => {
                bounded(reply.segments.len(), SEGMENTS)?;
                rising(reply.segments.iter().map(|(segment, _)| *segment))?;
                let whole = |cells: &Vec<Cell>| cells.is_empty() || cells.len() == SEGMENTS;
                ordered(reply.segments.iter().all(|(_, cells)| whole(cells)))
            }
            Message::SegmentRequest(request) => rising(request.have.iter().map(|(hash, _)| *hash)),
            Message::SegmentReply(reply) => {
                rising(reply.absent.iter())?;
                ordered(
                    reply
                        .entries
                        .iter()
                        .all(|entry| entry.dot.sequence <= MAX_SEQUENCE),
                )?;
                reply.known.check()
            }
        }
    }
}

impl Piece {
    fn check(&self) -> Result<(), Violation> {
        ordered(self.after <= self.through && self.through <= MAX_SEQUENCE)?;
        rising(self.entries.iter().map(|entry| entry.dot.sequence))?;
        let inside = |entry: &Entry| {
            entry.dot.origin == self.origin
                && entry.dot.sequence > self.after
                && entry.dot.sequence <= self.through
        };
        ordered(self.entries.iter().all(inside))
    }
}

impl Known {
    fn check(&self) -> Result<(), Violation> {
        bounded(self.origins.len(), MAX_ORIGINS)?;
        rising(self.origins.iter().map(|(origin, _, _)| *origin))?;
        let believed = |(_, at, floor): &(Origin, u64, u64)| floor <= at && *at <= MAX_SEQUENCE;
        ordered(self.origins.iter().all(believed))
    }
}

fn bounded(length: usize, most: usize) -> Result<(), Violation> {
    if length > most {
        return Err(Violation::TooLong(length, most));
    }
    Ok(())
}

fn ordered(holds: bool) -> Result<(), Violation> {
    if holds {
        Ok(())
    } else {
        Err(Violation::Disorder)
    }
}

fn rising<T: Ord>(items: impl Iterator<Item = T>) -> Result<(), Violation> {
    let mut last = None;
    for item in items {
        if last.as_ref().is_some_and(|last| *last >= item) {
            return Err(Violation::Disorder);
        }
        last = Some(item);
    }
    Ok(())
}
