//! A place where a member can run, the process in it, and what outlives the process.

use std::collections::BTreeMap;

use causeway_registry::{
    LeaseId, MemberId, Node, Origin, RecordKey, Replicator, Revision, Version,
};

/// What a member's folder holds.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// The highest life that was begun; written before the life is used.
    pub incarnation: u64,
    /// The node as it was saved last.
    pub node: Option<Vec<u8>>,
    /// How far the council's log was carried out in that node.
    pub applied: usize,
    /// The list of members that the council's log on this disk ends with.
    pub members: Vec<MemberId>,
    /// What the checker had seen in that node.
    pub seen: BTreeMap<RecordKey, Version>,
}

/// A subscriber of one service.
#[derive(Clone, Debug, Default)]
pub struct Watcher {
    /// What it asks with next time.
    pub since: Option<Revision>,
    /// The list that it has put together.
    pub list: BTreeMap<RecordKey, u64>,
}

/// A removal that its client waits for.
#[derive(Clone, Copy, Debug)]
pub struct Owed {
    /// Whose.
    pub client: usize,
    /// Its connection.
    pub connection: u64,
    /// The position in the own log that another member must have.
    pub sequence: u64,
    /// When the disk is good enough.
    pub until: u64,
}

/// A running member.
#[derive(Debug)]
pub struct Process {
    /// Tells this process from the one before it in the same place.
    pub life: u64,
    /// The table.
    pub node: Node,
    /// Beside it.
    pub replicator: Replicator,
    /// True time minus this is the process's clock.
    pub zero: i64,
    /// When it started.
    pub started: u64,
    /// When it was continued last; before that, when it started.
    pub resumed: u64,
    /// How long it stood still in pauses that it has to notice, in milliseconds.
    pub stood: u64,
    /// When each owner was heard last, or its lease began anew, in milliseconds of running.
    pub renewed: BTreeMap<LeaseId, u64>,
    /// The timer event that is under way, in true time.
    pub timer: Option<u64>,
    /// How far the council's log was carried out.
    pub applied: usize,
    /// The list of members that it was given last.
    pub members: Vec<MemberId>,
    /// Subscribers, by service.
    pub watchers: BTreeMap<String, Watcher>,
    /// Removals to be confirmed.
    pub owed: Vec<Owed>,
    /// It may not serve: forgotten, or another process has its id.
    pub retired: bool,
    /// Peers whose clocks are absurd.
    pub quarantined: Vec<MemberId>,
    /// The highest version of each key that was ever here.
    pub seen: BTreeMap<RecordKey, Version>,
    /// The positions at the last look.
    pub vector: BTreeMap<Origin, u64>,
}

impl Process {
    /// The process's clock at a true time.
    pub fn local(&self, now: u64) -> u64 {
        let local = i64::try_from(now).unwrap_or(i64::MAX) - self.zero;
        u64::try_from(local).unwrap_or(0)
    }

    /// How long the process has run, without pauses, at a true time.
    pub fn running(&self, now: u64) -> u64 {
        now.saturating_sub(self.started).saturating_sub(self.stood)
    }

    /// The true time at which the process's clock shows `local`.
    pub fn global(&self, local: u64) -> u64 {
        let now = i64::try_from(local)
            .unwrap_or(i64::MAX)
            .saturating_add(self.zero);
        u64::try_from(now).unwrap_or(0)
    }
}

/// A place.
#[derive(Debug, Default)]
pub struct Place {
    /// Whose folder is here.
    pub member: MemberId,
    /// The process, if one runs.
    pub process: Option<Process>,
    /// The folder.
    pub disk: Disk,
    /// Wall clock minus true time.
    pub wall_offset: i64,
    /// The process stands still.
    pub paused: bool,
    /// Since when.
    pub paused_at: u64,
    /// What arrived meanwhile.
    pub backlog: Vec<crate::world::Event>,
    /// The member went for good; nothing starts here again under its id.
    pub gone: bool,
}

impl Place {
    /// True when the process does something.
    pub fn runs(&self) -> bool {
        self.process.is_some() && !self.paused
    }
}
