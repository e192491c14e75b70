//! The frame on a toy: registers that clients put to and get from, on an `address` that names its faults.

use super::*;
use anyhow::bail;

struct Toy;

#[derive(Debug, Clone, PartialEq)]
enum ToyOp {
    Put(usize, u64),
    Get(usize),
}

impl Subject for Toy {
    type Op = ToyOp;

    fn name(&self) -> &'static str {
        "toy"
    }

    fn generate(&self, seed: u64, shape: &Shape) -> Script<ToyOp> {
        let mut random = Random::new(seed);
        let mut script = Script::new("toy", shape.clients);
        for _ in 0..shape.length {
            let op = if random.chance(1, 2) {
                ToyOp::Put(random.below(3), random.draw() % 100)
            } else {
                ToyOp::Get(random.below(3))
            };
            script
                .steps
                .push(Step::one(random.below(shape.clients), op));
        }
        script
    }

    fn print(&self, op: &ToyOp) -> String {
        match op {
            ToyOp::Put(at, value) => format!("put {at} {value}"),
            ToyOp::Get(at) => format!("get {at}"),
        }
    }

    fn parse(&self, text: &str) -> Result<ToyOp> {
        let words: Vec<&str> = script::words(text).collect();
        Ok(match words[..] {
            ["put", at, value] => ToyOp::Put(at.parse()?, value.parse()?),
            ["get", at] => ToyOp::Get(at.parse()?),
            _ => bail!("{text}"),
        })
    }

    fn simplify(&self, op: &ToyOp) -> Vec<ToyOp> {
        match *op {
            ToyOp::Put(at, value) if value > 0 => {
                vec![
                    ToyOp::Put(at, 0),
                    ToyOp::Put(at, value / 2),
                    ToyOp::Put(at, value - 1),
                ]
            }
            _ => vec![],
        }
    }

    fn run(&self, script: &Script<ToyOp>, address: &str, _: &Run) -> Result<Vec<Seen>> {
        let mut registers = [0; 3];
        let mut seen = Vec::new();
        for (step, acts) in script.steps.iter().enumerate() {
            for (client, op) in &acts.ops {
                let text = match *op {
                    ToyOp::Put(at, value) => {
                        // The fault: large values are lost.
                        if !(address.contains("loses") && value >= 90) {
                            registers[at] = value;
                        }
                        "ok".to_string()
                    }
                    ToyOp::Get(at) => format!("ok value={} number={step}", registers[at]),
                };
                seen.push(Seen {
                    step,
                    client: *client,
                    request: self.print(op),
                    text,
                });
            }
        }
        Ok(seen)
    }
}

fn print_script(subject: &Toy, seed: u64, shape: &Shape) -> String {
    subject.generate(seed, shape).print(|op| subject.print(op))
}

fn options(left: &str, right: &str) -> Options {
    let mut options = Options::new(left, right, 0..20);
    options.progress = false;
    options
}

#[test]
fn equal_targets_show_no_difference() {
    let summary = explore(&Toy, &options("good", "good")).unwrap();
    assert!(summary.findings.is_empty());
    assert!(summary.broken.is_empty());
    assert!(summary.unsteady.is_empty());
    assert_eq!((summary.seeds, summary.operations), (20, 2000));
}

#[test]
fn a_fault_is_found_shrunk_and_replayed() {
    let summary = explore(&Toy, &options("good", "loses")).unwrap();
    let [finding] = &summary.findings[..] else {
        panic!("{}", summary.render());
    };
    assert_eq!(finding.class, "get: value");
    assert!(finding.count > 10, "{}", finding.count);
    assert_eq!(finding.operations, 2, "{}", finding.script);
    assert!(finding.script.contains(" 90\n"), "{}", finding.script);
    // The script alone shows it again, and shows nothing on equal targets.
    let again = replay_text(&Toy, &finding.script, &BTreeMap::new(), "good", "loses").unwrap();
    again.check().unwrap();
    let mended = replay_text(&Toy, &finding.script, &BTreeMap::new(), "good", "good").unwrap();
    assert!(mended.check().is_err() && mended.differences.is_empty());
}

#[test]
fn a_seed_is_one_script() {
    let shape = Shape::default();
    assert_eq!(print_script(&Toy, 7, &shape), print_script(&Toy, 7, &shape));
    assert_ne!(print_script(&Toy, 7, &shape), print_script(&Toy, 8, &shape));
}

#[test]
fn ids_of_differences_are_unique() {
    let mut ids: Vec<&str> = allowed()
        .iter()
        .map(|a| a.id)
        .chain(known().iter().map(|k| k.id))
        .collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
}

/// The checkout's folder of kept scripts.
fn kept() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("differential")
}

/// Reads every kept script of a subject, and says by name what it expects.
fn kept_scripts<S: Subject>(subject: &S) -> BTreeMap<String, Expect> {
    let mut expects = BTreeMap::new();
    let folder = kept().join(subject.name());
    let files = |folder: &Path| -> Vec<_> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let mut paths = files(&folder);
    let folders: Vec<_> = paths.iter().filter(|path| path.is_dir()).cloned().collect();
    paths.extend(folders.iter().flat_map(|folder| files(folder)));
    paths.retain(|path| path.is_file());
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        let script = Script::parse(&text, |op| subject.parse(op)).unwrap();
        assert_eq!(script.subject, subject.name(), "{text}");
        assert!(!script.about.is_empty(), "{text}");
        let again = script.print(|op| subject.print(op));
        let back = Script::parse(&again, |op| subject.parse(op)).unwrap();
        assert!(back == script, "{again}");
        let name = path.strip_prefix(&folder).unwrap();
        let name = name.to_string_lossy().into_owned();
        expects.insert(name, script.expect.expect("a script says what it expects"));
    }
    assert!(expects.len() > 5);
    expects
}

/// A difference that is allowed shows nothing in a replay and one that is known shows itself; a script that no
/// entry names holds that a difference stays away.
#[test]
fn differences_and_kept_scripts_name_each_other() {
    for (subject, mut expects) in [
        ("zookeeper", kept_scripts(&zookeeper::ZooKeeper)),
        ("etcd", kept_scripts(&etcd::Etcd)),
    ] {
        for entry in allowed().iter().filter(|entry| entry.subject == subject) {
            assert!(!entry.scripts.is_empty(), "{}", entry.id);
            for script in entry.scripts {
                assert_eq!(expects.remove(*script), Some(Expect::Same), "{script}");
            }
        }
        for entry in known().iter().filter(|entry| entry.subject == subject) {
            assert!(!entry.scripts.is_empty(), "{}", entry.id);
            for script in entry.scripts {
                let expect = expects.remove(*script);
                assert!(
                    matches!(expect, Some(Expect::Differs(_))),
                    "{script}: {expect:?}"
                );
            }
        }
        for (script, expect) in expects {
            assert_eq!(expect, Expect::Same, "no entry names {script}");
        }
    }
}

#[test]
fn the_page_of_divergences_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/divergences.md");
    let page = fs::read_to_string(path).unwrap();
    assert!(
        allowed::write_into(&page).unwrap() == page,
        "`causeway-compat divergences` writes it"
    );
}
