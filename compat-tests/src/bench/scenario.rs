//! What is to be checked: one file a scenario, `compat-tests/scenarios/<protocol>/<name>.toml`.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::files::names;
use crate::protocol::Protocol;

/// Where a scenario works.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// Nodes and keys that no layout claims.
    #[default]
    General,
    /// Where a layout of Causeway claims them.
    Registrations,
}

/// One behaviour, checked in steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scenario {
    /// The protocol.
    pub protocol: Protocol,
    /// The file's name without its ending.
    pub name: String,
    /// One sentence.
    pub about: String,
    /// Where the rule comes from.
    pub rule: String,
    /// The client gets a second address, over a link that it can have cut.
    pub link: bool,
    /// The client can have the server killed and started: all clients of the scenario meet for it.
    pub faults: bool,
    /// It changes the whole server, or checks numbers that every writer moves: nothing else may run beside it.
    pub exclusive: bool,
    /// Where it works.
    pub place: Place,
    /// Name and meaning of each step, in the order in which a client reports them.
    pub steps: Vec<(String, String)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    about: String,
    rule: String,
    #[serde(default)]
    link: bool,
    #[serde(default)]
    faults: bool,
    #[serde(default)]
    exclusive: bool,
    #[serde(default)]
    place: Place,
    steps: toml::Table,
}

impl Scenario {
    fn parse(protocol: Protocol, name: &str, text: &str) -> Result<Scenario> {
        let file: File = toml::from_str(text)?;
        ensure!(!file.steps.is_empty(), "no steps");
        let steps = file
            .steps
            .into_iter()
            .map(|(step, meaning)| {
                let meaning = meaning.as_str().context("a step's meaning is a text")?;
                Ok((step, meaning.to_string()))
            })
            .collect::<Result<_>>()?;
        Ok(Scenario {
            protocol,
            name: name.to_string(),
            about: file.about,
            rule: file.rule,
            link: file.link,
            faults: file.faults,
            exclusive: file.exclusive,
            place: file.place,
            steps,
        })
    }

    /// How long a client may take for all of it. The clients keep shorter limits of their own; this one ends
    /// a client that hangs.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(if self.faults { 240 } else { 120 })
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.protocol, self.name)
    }
}

/// Every scenario, by protocol and name.
///
/// # Errors
/// A file that cannot be read or says what no scenario says; the error names it.
pub fn all() -> Result<Vec<Scenario>> {
    let mut scenarios = Vec::new();
    for protocol in Protocol::ALL {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("scenarios")
            .join(protocol.name());
        for name in names(&folder, "toml")? {
            let path = folder.join(format!("{name}.toml"));
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            scenarios.push(
                Scenario::parse(protocol, &name, &text)
                    .with_context(|| path.display().to_string())?,
            );
        }
    }
    Ok(scenarios)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_a_scenario() {
        let all = all().expect("they parse");
        assert!(
            all.len() >= 29,
            "the folder was read: {} scenarios",
            all.len()
        );
        let data = all.iter().find(|s| s.to_string() == "zookeeper/data");
        let steps = &data.expect("zookeeper/data").steps;
        assert_eq!(
            (steps[0].0.as_str(), steps[1].0.as_str()),
            ("create", "get"),
            "in the file's order"
        );
    }

    #[test]
    fn what_is_no_scenario_is_refused() {
        let check = |text: &str| {
            assert!(
                Scenario::parse(Protocol::Etcd, "x", text).is_err(),
                "{text}"
            );
        };
        check("about = 'a'\nrule = 'r'\n[steps]\n");
        check("about = 'a'\nrule = 'r'\n[steps]\none = 1\n");
        check("about = 'a'\nrule = 'r'\ntypo = true\n[steps]\none = 'x'\n");
        check("rule = 'r'\n[steps]\none = 'x'\n");
    }
}
