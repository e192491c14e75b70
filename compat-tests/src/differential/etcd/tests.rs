use super::*;

#[test]
fn the_same_seed_gives_the_same_script() {
    let script = |seed| Etcd.generate(seed, &Shape::default());
    assert_eq!(script(1), script(1));
    assert_ne!(script(1), script(2));
}

#[test]
fn every_script_prints_and_parses_back() {
    for seed in 0..50 {
        let script = Etcd.generate(seed, &Shape::default());
        let text = script.print(|op| Etcd.print(op));
        let parsed = Script::parse(&text, |op| Etcd.parse(op));
        let parsed = parsed.unwrap_or_else(|error| panic!("{text}: {error:?}"));
        assert_eq!(parsed, script, "{text}");
    }
}

/// A search on two servers that run already; see `CAUSEWAY_DIFF_*`.
#[test]
#[ignore]
fn hunt() {
    let var = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_string());
    let number = |name: &str, default: &str| var(name, default).parse::<u64>().unwrap();
    let from = number("SEED", "0");
    let mut options = crate::differential::Options::new(&var("A", ""), &var("B", ""), from..from + number("SEEDS", "10"));
    options.shape.length = number("LENGTH", "100") as usize;
    options.time = std::time::Duration::from_secs(number("TIME", "300"));
    options.run_time = std::time::Duration::from_secs(120);
    if std::env::var("NOSHRINK").is_ok() { options.limits.runs = 0; }
    let summary = crate::differential::explore(&Etcd, &options).unwrap();
    println!("{}", summary.render());
}
