//! House checks on manifests and sources.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use toml::{Table, Value};

/// Crates that take time and randomness as arguments and wait for nothing.
const PURE: &[&str] = &[
    "causeway-wire",
    "causeway-engine",
    "causeway-registry",
    "causeway-registry-simulation",
];

/// Crates that bring an async runtime or a socket with them.
const RUNTIMES: &[&str] = &[
    "tokio",
    "tokio-stream",
    "tokio-util",
    "async-std",
    "smol",
    "async-io",
    "futures-executor",
    "h2",
    "hyper",
    "hyper-util",
    "tonic",
    "axum",
    "reqwest",
    "openraft",
    "etcd-client",
    "zookeeper-client",
];

/// Which of our crates each of our crates may use: a new edge is a change of the design, and is made here first.
const EDGES: &[(&str, &[&str])] = &[
    ("causeway-wire", &[]),
    ("causeway-registry", &[]),
    ("causeway-engine", &["causeway-registry"]),
    ("causeway-registry-simulation", &["causeway-registry"]),
    ("causeway-registry-council", &["causeway-registry"]),
    // The messages of the native gRPC API, for both of its ends.
    ("causeway-registry-proto", &["causeway-registry"]),
    (
        "causeway-registry-node",
        &["causeway-registry", "causeway-registry-proto"],
    ),
    (
        "causeway-registry-client",
        &["causeway-registry", "causeway-registry-proto"],
    ),
    ("causeway-backend", &[]),
    (
        "causeway-backend-etcd",
        &["causeway-backend", "causeway-wire"],
    ),
    (
        "causeway-backend-zookeeper",
        &["causeway-backend", "causeway-wire"],
    ),
    (
        "causeway-backend-gossip",
        &[
            "causeway-backend",
            "causeway-registry",
            "causeway-registry-node",
        ],
    ),
    (
        "causeway",
        &[
            "causeway-wire",
            "causeway-engine",
            "causeway-backend",
            "causeway-backend-etcd",
            "causeway-backend-zookeeper",
            "causeway-backend-gossip",
            "causeway-registry",
            "causeway-registry-node",
        ],
    ),
    // A client under test, and nothing else: the outside tests know bytes only.
    ("causeway-compat-tests", &["causeway-registry-client"]),
    ("xtask", &[]),
];

/// Further edges that a crate's own tests may have.
const TEST_EDGES: &[(&str, &str)] = &[
    // The client is tried on a node in the same process.
    ("causeway-registry-client", "causeway-registry-node"),
];

/// Code that is not finished, or a test that does not run.
const UNFINISHED: &[&str] = &["todo!(", "unimplemented!(", "#[ignore", "dbg!("];

/// Every fault in the workspace at `root`, a line each.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let text = read(&root.join("Cargo.toml"))?;
    let manifest: Table = text.parse().context("Cargo.toml")?;
    let mut faults = reasons(&text);
    let members = manifest
        .get("workspace")
        .and_then(|workspace| workspace.get("members"))
        .and_then(Value::as_array)
        .context("workspace.members")?;
    for member in members.iter().filter_map(Value::as_str) {
        let folder = root.join(member);
        let manifest: Table = read(&folder.join("Cargo.toml"))?
            .parse()
            .context(member.to_string())?;
        faults.extend(edges(&manifest));
        for source in sources(&folder)? {
            let shown = source
                .strip_prefix(root)
                .unwrap_or(&source)
                .display()
                .to_string();
            // This file names what it forbids.
            if shown != "xtask/src/tidy.rs" {
                faults.extend(unfinished(&shown, &read(&source)?));
            }
        }
    }
    let operations = read(&root.join("docs/operations.md"))?;
    for (source, named) in [("config.rs", FLAGS), ("cli.rs", COMMANDS)] {
        let text = read(&root.join("gateway/causeway/src").join(source))?;
        faults.extend(undocumented(&text, named, &operations));
    }
    Ok(faults)
}

/// How names are taken from a source and how the documentation has to show them.
struct Named {
    /// The type whose fields or variants are the names.
    declaration: &'static str,
    /// What stands before a name in the documentation.
    prefix: &'static str,
}

const FLAGS: Named = Named {
    declaration: "pub struct Flags {",
    prefix: "--",
};
const COMMANDS: Named = Named {
    declaration: "pub enum Operator {",
    prefix: "causeway ",
};

/// Flags and commands of the binary that `docs/operations.md` does not show.
fn undocumented(source: &str, named: Named, documentation: &str) -> Vec<String> {
    let names: Vec<String> = source
        .split(named.declaration)
        .nth(1)
        .unwrap_or_default()
        .lines()
        .take_while(|line| *line != "}")
        // Fields and variants stand one level in; what belongs to a variant stands deeper.
        .filter(|line| line.starts_with("    ") && !line.starts_with("     "))
        .filter_map(|line| {
            let name = line.trim_start().trim_start_matches("pub ");
            let name = name
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()?;
            (!name.is_empty()).then(|| kebab(name))
        })
        .collect();
    if names.is_empty() {
        return vec![format!(
            "no names under {:?}: has it moved?",
            named.declaration
        )];
    }
    let shown = |name: &String| {
        let whole = format!("{}{name}", named.prefix);
        documentation.match_indices(&whole).any(|(at, _)| {
            let after = documentation[at + whole.len()..].chars().next();
            !after.is_some_and(|c| c.is_alphanumeric() || c == '-')
        })
    };
    names
        .into_iter()
        .filter(|name| !shown(name))
        .map(|name| format!("docs/operations.md does not show {}{name}", named.prefix))
        .collect()
}

/// `TakeOver` and `take_over` become `take-over`.
fn kebab(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.extend(letter.to_lowercase());
    }
    text.replace('_', "-")
}

/// A dependency of the workspace without a comment above its group.
fn reasons(manifest: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut inside = false;
    let mut reason = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line == "[workspace.dependencies]";
            reason = false;
        } else if line.trim().is_empty() {
            reason = false;
        } else if line.starts_with('#') {
            reason = true;
        } else if inside && !reason && !line.starts_with([' ', ']', '}']) {
            let name = line.split('=').next().unwrap_or_default().trim();
            faults.push(format!("Cargo.toml: {name} has no comment that says why"));
        }
    }
    faults
}

/// What a member's manifest lists and may not.
fn edges(manifest: &Table) -> Vec<String> {
    let name = manifest
        .get("package")
        .and_then(|package| package.get("name"))
        .and_then(Value::as_str)
        .unwrap_or_default();
    let allowed: BTreeMap<&str, &[&str]> = EDGES.iter().copied().collect();
    let Some(allowed) = allowed.get(name) else {
        return vec![format!(
            "{name}: a crate that xtask/src/tidy.rs does not place"
        )];
    };
    let mut faults = Vec::new();
    for (dependency, for_tests) in dependencies(manifest) {
        let ours = EDGES
            .iter()
            .any(|(crate_name, _)| *crate_name == dependency);
        // A crate may list itself for its own tests, with a feature switched on.
        let placed = allowed.contains(&dependency.as_str())
            || dependency == name
            || (for_tests && TEST_EDGES.contains(&(name, dependency.as_str())));
        if ours && !placed {
            faults.push(format!("{name} may not depend on {dependency}"));
        }
        if PURE.contains(&name) && RUNTIMES.contains(&dependency.as_str()) {
            faults.push(format!("{name} is pure and may not depend on {dependency}"));
        }
    }
    faults
}

/// Names in every dependency table, of targets too, and whether they are for tests alone. Build scripts run elsewhere and may use what they like.
fn dependencies(manifest: &Table) -> Vec<(String, bool)> {
    let mut names = Vec::new();
    let mut tables = vec![manifest];
    let targets = manifest.get("target").and_then(Value::as_table);
    tables.extend(
        targets
            .into_iter()
            .flat_map(|t| t.values())
            .filter_map(Value::as_table),
    );
    for table in tables {
        for kind in ["dependencies", "dev-dependencies"] {
            let Some(list) = table.get(kind).and_then(Value::as_table) else {
                continue;
            };
            for (key, value) in list {
                let package = value.get("package").and_then(Value::as_str);
                names.push((
                    package.unwrap_or(key).to_string(),
                    kind == "dev-dependencies",
                ));
            }
        }
    }
    names
}

fn unfinished(file: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for word in UNFINISHED.iter().filter(|word| code.contains(**word)) {
            faults.push(format!("{file}:{}: {word} is left in", number + 1));
        }
    }
    faults
}

fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("target") {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_workspace_is_tidy() {
        assert_eq!(
            check(&crate::root()).expect("readable"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_dependency_needs_a_reason() {
        let check = |text: &str, faults: usize| assert_eq!(reasons(text).len(), faults, "{text}");
        check(
            "[workspace.dependencies]\n# Errors.\nanyhow = \"1\"\nthiserror = \"2\"\n",
            0,
        );
        check("[workspace.dependencies]\nanyhow = \"1\"\n", 1);
        check(
            "[workspace.dependencies]\n# Errors.\nanyhow = \"1\"\n\nrand = \"1\"\n",
            1,
        );
        check(
            "[workspace.dependencies]\n# Long.\nx = { version = \"1\", features = [\n  \"a\",\n] }\n",
            0,
        );
        check("[workspace.package]\nedition = \"2024\"\n", 0);
    }

    #[test]
    fn edges_between_crates_are_the_listed_ones() {
        let check = |text: &str, expected: &[&str]| {
            let manifest: Table = text.parse().expect("a manifest");
            assert_eq!(edges(&manifest), expected, "{text}");
        };
        let wire = "[package]\nname = \"causeway-wire\"\n";
        check(&format!("{wire}[dependencies]\nbytes = \"1\"\n"), &[]);
        check(
            &format!("{wire}[dependencies]\ntokio.workspace = true\n"),
            &["causeway-wire is pure and may not depend on tokio"],
        );
        check(
            &format!("{wire}[dev-dependencies]\nrt = {{ package = \"tokio\", version = \"1\" }}\n"),
            &["causeway-wire is pure and may not depend on tokio"],
        );
        check(
            &format!("{wire}[target.'cfg(unix)'.dependencies]\ncauseway-engine.workspace = true\n"),
            &["causeway-wire may not depend on causeway-engine"],
        );
        let client = "[package]\nname = \"causeway-registry-client\"\n";
        let node = "causeway-registry-node.workspace = true\n";
        check(&format!("{client}[dev-dependencies]\n{node}"), &[]);
        check(
            &format!("{client}[dependencies]\n{node}"),
            &["causeway-registry-client may not depend on causeway-registry-node"],
        );
        check(&format!("{wire}[build-dependencies]\ntonic = \"1\"\n"), &[]);
        check(
            "[package]\nname = \"newcomer\"\n",
            &["newcomer: a crate that xtask/src/tidy.rs does not place"],
        );
    }

    #[test]
    fn every_flag_and_command_is_documented() {
        let check = |source: &str, named: Named, documentation: &str, expected: &[&str]| {
            assert_eq!(
                undocumented(source, named, documentation),
                expected,
                "{source}"
            );
        };
        let flags = "pub struct Flags {\n    /// Doc.\n    #[arg(long)]\n    pub etcd_listen: Option<String>,\n}\n";
        check(flags, FLAGS, "| `--etcd-listen ADDRESS` |", &[]);
        let missing = &["docs/operations.md does not show --etcd-listen"];
        check(flags, FLAGS, "`--etcd-listen-more`", missing);
        let commands = "pub enum Operator {\n    /// Doc.\n    TakeOver(Step),\n    Ack {\n        service: String,\n    },\n}\n";
        check(
            commands,
            COMMANDS,
            "`causeway take-over`, `causeway ack SERVICE`",
            &[],
        );
        let missing = &["docs/operations.md does not show causeway take-over"];
        check(commands, COMMANDS, "causeway ack", missing);
        assert_eq!(undocumented("", FLAGS, "").len(), 1);
    }

    #[test]
    fn unfinished_code_is_found() {
        let check = |text: &str, faults: usize| {
            assert_eq!(unfinished("a.rs", text).len(), faults, "{text}")
        };
        check("fn a() { todo!() }", 1);
        check("#[ignore = \"slow\"]\nfn a() { dbg!(1); }", 2);
        check("// a todo!() in words is none", 0);
        check("fn ignored() {}", 0);
    }
}
