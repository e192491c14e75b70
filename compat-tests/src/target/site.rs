//! A running target: its servers, and the verbs on them.

use anyhow::{Context as _, Result, bail, ensure};

use super::fault::{Fault, Stores};
use super::node::Node;
use crate::protocol::Protocol;

/// A target that runs. Dropping it ends its servers.
pub trait Running: Send {
    /// Where clients of the protocol connect; several servers as `host:port,host:port`.
    fn address(&self, protocol: Protocol) -> Option<String>;
    /// The first of these servers, for what has to reach the same one each time.
    ///
    /// # Errors
    /// The target does not speak the protocol.
    fn one_address(&self, protocol: Protocol) -> Result<String> {
        let addresses = self
            .address(protocol)
            .with_context(|| format!("this target does not speak {protocol}"))?;
        Ok(addresses.split(',').next().unwrap_or_default().to_string())
    }
    /// Where a gateway's operator connects, `host:port`; a real server has no such place.
    fn admin(&self) -> Option<String> {
        None
    }
    /// Which releases run, as the servers said at the start.
    fn version(&self) -> String;
    /// Does it, and waits until it is done: after a start the target serves, as far as it has a majority.
    /// An error says why the target cannot do it, or why it did not come back.
    fn fault(&mut self, fault: &Fault) -> Result<()>;
    /// Starts all of it again with nothing of what it had, as it was at its start.
    /// An error says why the target cannot, or why it did not come back.
    fn clear(&mut self) -> Result<()> {
        bail!("the bench did not start its servers")
    }
}

/// Servers that clients reach, and the stores behind them if they are a gateway.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) zookeeper: Option<String>,
    pub(super) etcd: Option<String>,
    pub(super) admin: Option<String>,
    pub(super) version: String,
    // Before the stores: a gateway ends before what it needs.
    pub(super) front: Group,
    pub(super) stores: Vec<(Stores, Group)>,
}

impl Running for Site {
    fn address(&self, protocol: Protocol) -> Option<String> {
        match protocol {
            Protocol::ZooKeeper => self.zookeeper.clone(),
            Protocol::Etcd => self.etcd.clone(),
        }
    }

    fn admin(&self) -> Option<String> {
        self.admin.clone()
    }

    fn version(&self) -> String {
        self.version.clone()
    }

    fn fault(&mut self, fault: &Fault) -> Result<()> {
        let Fault::Legacy(which, inner) = fault else {
            return self
                .front
                .apply(fault)
                .with_context(|| format!("cannot `{fault}`"));
        };
        let mut hit = 0;
        for (kind, group) in &mut self.stores {
            if *which == Stores::All || which == kind {
                group
                    .apply(inner)
                    .with_context(|| format!("cannot `{fault}`"))?;
                hit += 1;
            }
        }
        ensure!(hit > 0, "cannot `{fault}`: the target has no such store");
        Ok(())
    }

    fn clear(&mut self) -> Result<()> {
        // The front is down meanwhile: a gateway would write into the empty stores what it still knows.
        self.front.kill();
        for (_, group) in &mut self.stores {
            group.start_empty()?;
        }
        self.front.start_empty()
    }
}

/// Servers that are one thing to their clients: one, or an ensemble.
#[derive(Debug)]
pub(super) struct Group {
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    node: Box<dyn Node>,
    frozen: bool,
}

impl Group {
    pub(super) fn one(node: impl Node + 'static) -> Group {
        Group::of(vec![node])
    }

    pub(super) fn of<N: Node + 'static>(nodes: Vec<N>) -> Group {
        let members = nodes
            .into_iter()
            .map(|node| Member {
                node: Box::new(node),
                frozen: false,
            })
            .collect();
        Group { members }
    }

    fn kill(&mut self) {
        self.members.iter_mut().for_each(Member::kill);
    }

    /// Starts all members again with nothing of what they had.
    fn start_empty(&mut self) -> Result<()> {
        let keep_data = self
            .members
            .iter()
            .all(|member| member.node.place().is_err());
        self.apply(&Fault::Restart { keep_data })
    }

    fn apply(&mut self, fault: &Fault) -> Result<()> {
        match fault {
            Fault::Member(number, inner) => {
                let size = self.members.len();
                ensure!(
                    (1..=size).contains(number),
                    "member {number} of {size} there is not"
                );
                self.act(&[number - 1], inner)
            }
            other => {
                let all: Vec<usize> = (0..self.members.len()).collect();
                self.act(&all, other)
            }
        }
    }

    fn act(&mut self, chosen: &[usize], fault: &Fault) -> Result<()> {
        match fault {
            Fault::Kill => {
                for member in self.pick(chosen, "is down already", Member::runs)? {
                    member.kill();
                }
                Ok(())
            }
            Fault::Start => {
                for member in self.pick(chosen, "runs already", |member| !member.runs())? {
                    member.node.launch()?;
                }
                self.settle()
            }
            Fault::Stop => {
                let able = |member: &mut Member| member.runs() && !member.frozen;
                for member in self.pick(chosen, "is down or stopped already", able)? {
                    member.node.freeze(true)?;
                    member.frozen = true;
                }
                Ok(())
            }
            Fault::Continue => {
                let able = |member: &mut Member| member.runs() && member.frozen;
                for member in self.pick(chosen, "is not stopped", able)? {
                    member.node.freeze(false)?;
                    member.frozen = false;
                }
                Ok(())
            }
            Fault::Restart { keep_data } => {
                if !keep_data {
                    let alone = chosen.len() < self.members.len();
                    for &index in chosen {
                        self.members[index].node.may_be_emptied(alone)?;
                    }
                }
                for member in self.pick(chosen, "", |_| true)? {
                    member.kill();
                    if !keep_data {
                        member.node.place()?.empty()?;
                    }
                }
                // All are down and empty before the first starts: it must not learn from one that is not.
                for &index in chosen {
                    self.members[index].node.launch()?;
                }
                self.settle()
            }
            Fault::FillDisk => self.each_place(chosen, |place| place.disk()?.fill()),
            Fault::FreeDisk => self.each_place(chosen, |place| place.disk()?.free()),
            Fault::StepClock(seconds) => {
                self.each_place(chosen, |place| place.clock()?.step(*seconds))
            }
            Fault::Member(..) | Fault::Legacy(..) => bail!("it says twice whom it is for"),
        }
    }

    /// Those of `chosen` that can; an error when none can.
    fn pick(
        &mut self,
        chosen: &[usize],
        otherwise: &str,
        mut able: impl FnMut(&mut Member) -> bool,
    ) -> Result<Vec<&mut Member>> {
        let mut names = Vec::new();
        let mut picked = Vec::new();
        for (index, member) in self.members.iter_mut().enumerate() {
            if chosen.contains(&index) {
                names.push(member.node.label());
                if able(member) {
                    picked.push(member);
                }
            }
        }
        ensure!(!picked.is_empty(), "{} {otherwise}", names.join(", "));
        Ok(picked)
    }

    fn each_place(
        &self,
        chosen: &[usize],
        act: impl Fn(&super::node::Place) -> Result<()>,
    ) -> Result<()> {
        for &index in chosen {
            act(self.members[index].node.place()?)?;
        }
        Ok(())
    }

    /// Waits until those that run serve; without a majority none can, and nothing is waited for.
    fn settle(&mut self) -> Result<()> {
        let size = self.members.len();
        let mut running: Vec<&mut Member> = self
            .members
            .iter_mut()
            .filter_map(|member| (member.runs() && !member.frozen).then_some(member))
            .collect();
        if running.len() * 2 > size {
            for member in &mut running {
                member.node.ready()?;
            }
        }
        Ok(())
    }
}

impl Member {
    fn runs(&mut self) -> bool {
        self.node.alive()
    }

    fn kill(&mut self) {
        self.node.kill();
        self.frozen = false;
    }
}
