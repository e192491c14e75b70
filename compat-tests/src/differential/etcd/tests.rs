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
