//! etcd's protocol under comparison: operations of every service, a generator of them, and a runner that makes
//! the replies of two servers comparable.
//!
//! A script may `set revisions rank` when a server's revisions rise with gaps, and `set revisions keys` when
//! those of headers tell nothing of those of keys; else they are compared by their
//! distance from the first, so that each change has to raise them by exactly one.
//! With `set place registrations` the root is one that a layout of Causeway claims. With `set wire json` all requests go
//! through the JSON gateway, as far as it has a path for them.

use anyhow::{Result, bail};

use super::compare::Seen;
use super::random::Random;
use super::script::Script;
use super::{Run, Shape, Subject};

mod generate;
mod http;
mod known;
mod names;
mod operation;
mod run;
mod value;

#[cfg(test)]
mod tests;

pub use generate::generate;
pub use known::{ALLOWED, KNOWN};
pub use names::{Names, Revisions};
pub use operation::{Call, Extra, Operation, StreamKind, StreamName};
pub use run::REGISTRATIONS;
pub use value::Value;

/// etcd v3: gRPC, every service.
#[derive(Debug, Clone, Copy, Default)]
pub struct Etcd;

impl Subject for Etcd {
    type Op = Operation;

    fn name(&self) -> &'static str {
        "etcd"
    }

    fn generate(&self, seed: u64, shape: &Shape) -> Script<Operation> {
        let revisions = shape.settings.get("revisions").map(String::as_str);
        let exact = matches!(revisions, None | Some("relative"));
        let registrations = shape.place != "general";
        let random = Random::new(seed);
        let mut script = generate(random, shape.length, shape.clients, exact, registrations);
        if registrations {
            let place = shape.place.clone();
            script.settings.insert("place".to_string(), place);
        }
        script
    }

    fn print(&self, op: &Operation) -> String {
        op.to_string()
    }

    fn parse(&self, text: &str) -> Result<Operation> {
        text.parse()
    }

    fn simplify(&self, op: &Operation) -> Vec<Operation> {
        op.simpler()
    }

    fn run(&self, script: &Script<Operation>, address: &str, run: &Run) -> Result<Vec<Seen>> {
        let revisions = match script.settings.get("revisions").map(String::as_str) {
            None | Some("relative") => Revisions::Relative,
            Some("rank") => Revisions::Rank,
            Some("keys") => Revisions::Keys,
            Some(other) => bail!("revisions are relative, rank or keys, not {other}"),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(run::run(
            address,
            &run.root,
            script,
            revisions,
            run.deadline,
        ))
    }
}
