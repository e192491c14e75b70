//! ZooKeeper's operations, generated, run raw and normalised.
//!
//! `op` is the alphabet and its text; `generate` draws from it; `run` plays a script on a server and
//! `normalise` makes what it saw comparable.

mod generate;
mod normalise;
mod op;
mod run;
mod tables;

use anyhow::Result;

use super::{Run, Script, Seen, Shape, Subject};

pub use op::Op;
pub use tables::{ALLOWED, KNOWN};

/// ZooKeeper as a [`Subject`].
#[derive(Debug, Clone, Copy)]
pub struct ZooKeeper;

impl Subject for ZooKeeper {
    type Op = Op;

    fn name(&self) -> &'static str {
        "zookeeper"
    }

    fn generate(&self, seed: u64, shape: &Shape) -> Script<Op> {
        generate::generate(seed, shape)
    }

    fn print(&self, op: &Op) -> String {
        op.to_string()
    }

    fn parse(&self, text: &str) -> Result<Op> {
        text.parse()
    }

    fn simplify(&self, op: &Op) -> Vec<Op> {
        op.simpler()
    }

    fn run(&self, script: &Script<Op>, address: &str, run: &Run) -> Result<Vec<Seen>> {
        run::run(script, address, run)
    }
}
