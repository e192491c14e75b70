//! The rule as tables: one service loses instances, and what is left and held is compared.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

const SECOND: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const TTL: i64 = 30 * SECOND;
const START: i64 = 1_700_000_000_000;
const S: &str = "dubbo/orders";
const HOLDER: &str = "member-1";

/// A protection with the view that the Core would keep by its outputs.
#[derive(Clone)]
struct Rig {
    protection: Protection,
    now: i64,
    view: BTreeMap<ServiceKey, BTreeSet<InstanceId>>,
    held: BTreeSet<(ServiceKey, InstanceId)>,
    out: Vec<Output>,
}

impl Rig {
    fn new(settings: Settings) -> Self {
        assert_eq!(settings.check(), Vec::<String>::new());
        Rig {
            protection: Protection::new(settings),
            now: START,
            view: BTreeMap::new(),
            held: BTreeSet::new(),
            out: Vec::new(),
        }
    }

    /// `n` instances i00, i01, … of `S`, all there for two minutes.
    fn with(n: usize, settings: Settings) -> Self {
        let mut rig = Rig::new(settings);
        rig.register(S, 0..n);
        rig.wait(2 * MINUTE);
        rig.out.clear();
        rig
    }

    fn feed(&mut self, inputs: Vec<Input>) -> Vec<Output> {
        for input in &inputs {
            if let Input::Present {
                service, instance, ..
            }
            | Input::Registered {
                service, instance, ..
            } = input
            {
                let view = self.view.entry(service.clone()).or_default();
                view.insert(instance.clone());
            }
        }
        let out = self.protection.handle_all(inputs, self.now);
        self.carry_out(&out);
        self.out.extend(out.clone());
        out
    }

    /// The Core's part; every output must make sense where it comes.
    fn carry_out(&mut self, out: &[Output]) {
        for output in out {
            match output {
                Output::Remove {
                    service, instances, ..
                } => {
                    for id in instances {
                        let view = self.view.get_mut(service).expect("a known service");
                        assert!(view.remove(id), "removed twice: {service} {id}");
                        self.held.remove(&(service.clone(), id.clone()));
                    }
                }
                Output::Hold {
                    service, instance, ..
                } => {
                    let held = (service.clone(), instance.clone());
                    assert!(self.held.insert(held), "held twice: {service} {instance}");
                }
                Output::Release { service, instance } => {
                    let held = (service.clone(), instance.clone());
                    assert!(self.held.remove(&held), "not held: {service} {instance}");
                }
                Output::Refuse { .. }
                | Output::Alarm(_)
                | Output::FreezeSource { .. }
                | Output::ThawSource { .. } => {}
            }
        }
        for (service, view) in &self.view {
            let report = self.protection.service(service);
            let published = report.map_or(0, |report| report.published);
            assert_eq!(published, view.len() as u64, "P of {service}");
        }
    }

    fn wait(&mut self, ms: i64) -> Vec<Output> {
        self.now += ms;
        self.feed(vec![Input::Tick])
    }

    fn register(&mut self, service: &str, which: std::ops::Range<usize>) -> Vec<Output> {
        let inputs = which.map(|i| registered(service, i));
        self.feed(inputs.collect())
    }

    fn expire(&mut self, which: std::ops::Range<usize>) -> Vec<Output> {
        self.feed(vec![expired(S, which)])
    }

    fn silence(&mut self, which: std::ops::Range<usize>) -> Vec<Output> {
        self.feed(which.map(|i| silent(S, i)).collect())
    }

    fn deregister(&mut self, which: std::ops::Range<usize>) -> Vec<Output> {
        self.feed(which.map(|i| removed(S, i)).collect())
    }

    fn report(&self) -> ServiceReport {
        self.protection.service(S).expect("the service is known")
    }

    fn published(&self) -> usize {
        self.view.get(S).map_or(0, BTreeSet::len)
    }

    fn held(&self) -> usize {
        self.held.iter().filter(|(service, _)| service == S).count()
    }

    fn alarms(&self, kind: AlarmKind) -> Vec<Alarm> {
        let alarms = self.out.iter().filter_map(|output| match output {
            Output::Alarm(alarm) if alarm.kind == kind => Some(alarm.clone()),
            _ => None,
        });
        alarms.collect()
    }
}

fn id(i: usize) -> InstanceId {
    format!("i{i:02}")
}

fn ids(which: std::ops::Range<usize>) -> BTreeSet<InstanceId> {
    which.map(id).collect()
}

fn registered(service: &str, i: usize) -> Input {
    Input::Registered {
        service: service.to_owned(),
        instance: id(i),
        source: HOLDER.to_owned(),
        ttl_ms: TTL,
    }
}

fn silent(service: &str, i: usize) -> Input {
    Input::Silent {
        service: service.to_owned(),
        instance: id(i),
    }
}

fn expired(service: &str, which: std::ops::Range<usize>) -> Input {
    Input::Expired {
        service: service.to_owned(),
        instances: ids(which),
        source: HOLDER.to_owned(),
    }
}

fn removed(service: &str, i: usize) -> Input {
    Input::Removed {
        service: service.to_owned(),
        instance: id(i),
    }
}

/// Of `n` instances, all there for two minutes, `lost` expire at once: how many stay, how many of
/// those are held, and whether the service is protected.
#[track_caller]
fn check_loss(rule: Rule, n: usize, lost: usize, stay: usize, held: usize, protected: bool) {
    let mut rig = Rig::with(
        n,
        Settings {
            rule,
            ..Settings::default()
        },
    );
    rig.expire(0..lost);
    let found = (rig.published(), rig.held());
    assert_eq!(found, (stay, held), "{lost} of {n}: published, held");
    let entered = rig.alarms(AlarmKind::ProtectionEntered).len();
    assert_eq!(entered, usize::from(protected), "{lost} of {n}: alarms");
    let report = rig.protection.service(S);
    assert_eq!(report.is_some_and(|report| report.protected), protected);
}

#[test]
fn five_of_ten_expiring_at_once_are_all_held_with_an_alarm() {
    check_loss(Rule::default(), 10, 5, 10, 5, true);
}

#[test]
fn four_of_ten_expiring_at_once_go() {
    check_loss(Rule::default(), 10, 4, 6, 0, false);
}

#[test]
fn ten_of_ten_deregistering_are_gone_at_once() {
    let mut rig = Rig::with(10, Settings::default());
    rig.deregister(0..10);
    assert_eq!((rig.published(), rig.held()), (0, 0));
    rig.wait(10 * SECOND);
    let notice = rig.alarms(AlarmKind::ServiceEmptied);
    assert_eq!(notice.len(), 1);
    assert_eq!(notice[0].expected, 0);
    assert!(rig.protection.service(S).is_none(), "nothing is expected");
}

// --- every corner case, by its row ---

/// Row "5 expire in one batch", greedy mode.
#[test]
fn row_five_at_once_greedy() {
    check_loss(greedy(), 10, 5, 6, 1, true);
    check_loss(greedy(), 10, 10, 6, 6, true);
}

/// Row "5 expire one per 10 s": nobody is silent ahead of its expiry, so each is judged alone.
#[test]
fn row_five_one_after_another() {
    for rule in [Rule::default(), greedy()] {
        let mut rig = Rig::with(10, settings(rule));
        for i in 0..5 {
            rig.expire(i..i + 1);
            rig.wait(10 * SECOND);
        }
        assert_eq!((rig.published(), rig.held()), (6, 1));
        assert_eq!(rig.report().held[0].instance, id(4));
    }
}

/// Row "5 expire one per 10 s" differs from the rule where the five are silent already when the
/// first expires: the rule waits for the silent, so that they are judged together and all held
/// (greedy: the oldest four go).
#[test]
fn row_five_one_after_another_while_all_are_silent() {
    for (rule, published, held) in [(Rule::default(), 10, 5), (greedy(), 6, 1)] {
        let mut rig = Rig::new(settings(rule));
        let ttl_ms = 100 * SECOND;
        rig.feed((0..10).map(|i| present(S, i, HOLDER, ttl_ms)).collect());
        rig.wait(2 * MINUTE);
        rig.silence(0..5);
        for i in 0..5 {
            rig.expire(i..i + 1);
            rig.wait(10 * SECOND);
        }
        assert_eq!((rig.published(), rig.held()), (published, held));
    }
}

/// Row "4 lost, 1 h later 1 more": E does not bleed.
#[test]
fn row_no_bleed() {
    let mut rig = Rig::with(10, Settings::default());
    rig.expire(0..4);
    rig.wait(HOUR);
    rig.expire(4..5);
    assert_eq!((rig.published(), rig.held()), (6, 1));
    assert_eq!(rig.report().expected, 10);
}

/// Row "Small services": what may go of 1 to 5, and the same with `strict`.
#[test]
fn row_small_services() {
    for (n, may_go) in [(2, 1), (3, 1), (4, 1), (5, 2)] {
        check_loss(Rule::default(), n, may_go, n - may_go, 0, false);
        check_loss(Rule::default(), n, may_go + 1, n, may_go + 1, true);
    }
    for (n, may_go) in [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)] {
        check_loss(strict(), n, may_go, n - may_go, 0, false);
        check_loss(strict(), n, may_go + 1, n, may_go + 1, true);
    }
    check_loss(Rule::default(), 1, 1, 1, 1, false);
}

/// Row "Small services": the last of one, and the second of two, is held 300 s, then removed.
#[test]
fn row_last_instance() {
    for n in [1, 2] {
        let mut rig = Rig::with(n, Settings::default());
        for i in 0..n {
            rig.expire(i..i + 1);
        }
        assert_eq!((rig.published(), rig.held()), (1, 1));
        assert_eq!(rig.report().held[0].why, HoldReason::LastInstance);
        rig.wait(5 * MINUTE - 1);
        assert_eq!(rig.published(), 1);
        rig.wait(1);
        assert_eq!(rig.published(), 0);
        assert_eq!(rig.alarms(AlarmKind::LastInstanceRemoved).len(), 1);
        assert_eq!(rig.alarms(AlarmKind::ProtectionEntered).len(), 0);
    }
}

/// Row "kill -9 rolling restart, same ip:port back": no output at all. The row's grace after the
/// timeout is not in the rule: judgement comes at the timeout itself.
#[test]
fn row_back_in_time() {
    let mut rig = Rig::with(10, Settings::default());
    for i in 0..10 {
        rig.silence(i..i + 1);
        rig.wait(TTL / 2 - 1);
        rig.register(S, i..i + 1);
    }
    assert_eq!(rig.out, Vec::new());
}

/// Row "blue/green: +10 new, old 10 killed within `rise`": no trip. Where these twenty are most of
/// all instances, the source brake comes before the rule; it is set aside here.
#[test]
fn row_blue_green() {
    let mut rig = Rig::with(10, single_source());
    rig.wait(HOUR);
    rig.register(S, 10..20);
    rig.wait(9 * MINUTE);
    rig.expire(0..10);
    assert_eq!((rig.published(), rig.held()), (10, 0));
    assert_eq!(rig.report().expected, 10);
}

/// Row "blue/green overlap longer than `rise` with kill -9": trip; `ack` resolves it, by way of
/// the usual exit; owners' removals avoid it. The row's "verified-dead" is in the rule only as
/// the six hours inside protection (`forget_inside_protection_needs_proof`).
#[test]
fn row_blue_green_overlap() {
    let mut rig = Rig::with(10, single_source());
    rig.register(S, 10..20);
    rig.wait(11 * MINUTE);
    let mut drained = rig.clone();
    drained.deregister(0..10);
    assert_eq!((drained.published(), drained.held()), (10, 0));

    rig.expire(0..10);
    assert_eq!((rig.published(), rig.held()), (20, 10));
    rig.feed(vec![ack()]);
    rig.wait(MINUTE - 1);
    assert!(rig.report().protected);
    rig.wait(1);
    assert!(!rig.report().protected);
    rig.wait(TTL - 1);
    assert_eq!(rig.published(), 20);
    rig.wait(1);
    assert_eq!((rig.published(), rig.held()), (10, 0));
}

/// Row "Flap: 6 instances flap every 20 s": held while lost, E unmoved, one entry.
#[test]
fn row_flap() {
    let mut rig = Rig::with(10, Settings::default());
    for _ in 0..30 {
        rig.expire(0..6);
        assert_eq!((rig.published(), rig.held()), (10, 6));
        rig.wait(20 * SECOND);
        rig.register(S, 0..6);
        assert_eq!((rig.published(), rig.held()), (10, 0));
        rig.wait(20 * SECOND);
    }
    assert_eq!(rig.report().expected, 10);
    assert_eq!(rig.alarms(AlarmKind::ProtectionEntered).len(), 1);
    let removals = rig
        .out
        .iter()
        .filter(|o| matches!(o, Output::Remove { .. }));
    assert_eq!(removals.count(), 0);
}

/// Row "Source returns with 3 of 10": frozen until whole and stable (for a TTL, where the row says
/// grace), then the rule holds the seven.
#[test]
fn row_source_returns_with_less() {
    let mut rig = Rig::new(Settings::default());
    rig.feed((0..10).map(|i| present(S, i, "zk", TTL)).collect());
    rig.wait(2 * MINUTE);
    rig.feed(vec![source_frozen("zk")]);
    rig.wait(MINUTE);
    rig.feed(vec![
        missing("zk", 3..10, Cause::Unknown),
        source_whole("zk"),
    ]);
    assert_eq!((rig.published(), rig.held()), (10, 7));
    assert_eq!(rig.report().held[0].why, HoldReason::SourceFrozen);
    assert!(!rig.report().protected);
    rig.wait(TTL - 1);
    assert_eq!(rig.protection.frozen_sources().len(), 1);
    rig.wait(1);
    assert_eq!(rig.protection.frozen_sources().len(), 0);
    assert_eq!((rig.published(), rig.held()), (10, 7));
    assert!(rig.report().protected);
    assert_eq!(rig.report().held[0].why, HoldReason::Protected);
}

/// Row "Tool deletes 10 znodes it does not own": through a gateway it is refused; done in L it is
/// held. The alarm names the source; the row's session is what the caller puts there.
#[test]
fn row_foreign_deletes() {
    let mut rig = Rig::with(10, Settings::default());
    let refused = |rig: &Rig, which| {
        let p = &rig.protection;
        p.would_refuse_foreign(S, &ids(which), "zk session 0x1f", rig.now)
    };
    assert!(refused(&rig, 0..10));
    assert!(refused(&rig, 0..5));
    assert!(!refused(&rig, 0..4));
    rig.feed(vec![missing("zk session 0x1f", 0..10, Cause::Foreign)]);
    assert_eq!((rig.published(), rig.held()), (10, 10));
    let alarm = &rig.alarms(AlarmKind::ProtectionEntered)[0];
    assert_eq!(alarm.causes, BTreeMap::from([(Cause::Foreign, 10)]));
    assert_eq!(alarm.sources, BTreeSet::from(["zk session 0x1f".into()]));
    assert_eq!((alarm.expected, alarm.live, alarm.held.len()), (10, 0, 10));
    assert!(refused(&rig, 0..1), "already held");
}

/// Row "Owner re-creates its path while held": released, no removal in between.
#[test]
fn row_owner_recreates_while_held() {
    let mut rig = Rig::with(10, Settings::default());
    rig.expire(0..5);
    let out = rig.register(S, 0..1);
    let release = Output::Release {
        service: S.into(),
        instance: id(0),
    };
    assert_eq!(out, [release]);
    assert_eq!((rig.published(), rig.held()), (10, 4));
}

/// Row "Operator force-remove, force-hold, off": reason and expiry within a day, noted, shown.
#[test]
fn row_operator_overrides() {
    use OverrideKind::{ForceHold, ForceRemove, Off};
    // (override, published and held at once, published and held after three more expire)
    let cases = [
        (ForceRemove, (5, 0), (5, 3)),
        (ForceHold, (10, 5), (10, 8)),
        (Off, (5, 0), (2, 0)),
    ];
    for (kind, at_once, later) in cases {
        let mut rig = Rig::with(10, Settings::default());
        rig.expire(0..5);
        rig.feed(vec![override_by(kind, "cleaning up", HOUR, rig.now)]);
        assert_eq!((rig.published(), rig.held()), at_once, "{kind:?}");
        assert_eq!(rig.report().override_kind, Some(kind));
        rig.expire(5..8);
        assert_eq!((rig.published(), rig.held()), later, "{kind:?}");
        assert_eq!(rig.alarms(AlarmKind::OrderSet).len(), 1);
        rig.wait(HOUR);
        assert_eq!(rig.alarms(AlarmKind::OrderEnded).len(), 1);
        assert_eq!(rig.report().override_kind, None);
    }
    let refusals = [
        ("", HOUR, RefuseReason::NoReason),
        ("why", 0, RefuseReason::ExpiryPassed),
        ("why", 24 * HOUR + 1, RefuseReason::ExpiryTooFar),
    ];
    for (reason, ms, why) in refusals {
        let mut rig = Rig::with(10, Settings::default());
        let out = rig.feed(vec![override_by(Off, reason, ms, rig.now)]);
        let service = Some(S.to_owned());
        assert_eq!(out, [Output::Refuse { service, why }]);
    }
}

/// Row "Gateway restarts inside PROTECT": still protected, same E and H.
#[test]
fn row_restart_while_protected() {
    let mut rig = Rig::with(10, Settings::default());
    rig.expire(0..5);
    let before = rig.report();
    rig.protection = reloaded(&rig.protection);
    assert_eq!(rig.report(), before);
    let sources = BTreeSet::from(["zk".to_owned()]);
    rig.wait(MINUTE);
    rig.feed(vec![Input::Started { sources }]);
    let after = rig.report();
    assert_eq!((after.expected, after.held.len()), (10, 5));
    assert_eq!(after.protected_since_ms, before.protected_since_ms);
}

/// Row "Two gateways disagree": in the rule there is one judge, the council's leader, and no vote.
/// What a holder calls alive in the same moment is not lost, whatever another source says.
#[test]
fn row_two_gateways_disagree() {
    let mut rig = Rig::with(10, Settings::default());
    let mut inputs = vec![missing("member-2", 0..5, Cause::Unknown)];
    inputs.extend((0..5).map(|i| present(S, i, HOLDER, TTL)));
    assert_eq!(rig.feed(inputs), Vec::new());
    assert_eq!((rig.published(), rig.held()), (10, 0));
}

// --- the rule, sentence by sentence ---

#[test]
fn expected_starts_at_the_first_whole_snapshot() {
    let mut rig = Rig::new(Settings::default());
    let sources = BTreeSet::from(["zk".to_owned()]);
    rig.feed(vec![Input::Started { sources }]);
    rig.feed((0..10).map(|i| present(S, i, "zk", TTL)).collect());
    assert_eq!(rig.report().expected, 0);
    rig.feed(vec![source_whole("zk")]);
    assert_eq!(rig.report().expected, 10);
    // A service born later starts at 0, and a second snapshot is not the first.
    rig.feed(vec![
        present("dubbo/late", 0, "zk", TTL),
        source_whole("zk"),
    ]);
    let late = rig.protection.service("dubbo/late").expect("known");
    assert_eq!(late.expected, 0);
}

#[test]
fn expected_rises_to_the_smallest_live_number() {
    // (ms after birth of 4, instances added then; ms after birth when read, E)
    let cases = [
        (0, 0, MINUTE - 1, 0),
        (0, 0, MINUTE, 4),
        (30 * SECOND, 6, MINUTE, 10),
        (2 * MINUTE, 6, 9 * MINUTE, 4),
        (2 * MINUTE, 6, 12 * MINUTE - 1, 4),
        (2 * MINUTE, 6, 12 * MINUTE, 10),
        (HOUR, 6, HOUR + 10 * MINUTE - 1, 4),
        (HOUR, 6, HOUR + 10 * MINUTE, 10),
    ];
    for (added_at, added, read_at, expected) in cases {
        let mut rig = Rig::new(Settings::default());
        rig.register(S, 0..4);
        rig.wait(added_at);
        rig.register(S, 4..4 + added);
        rig.wait(read_at - added_at);
        let case = format!("+{added} at {added_at}, read at {read_at}");
        assert_eq!(rig.report().expected, expected, "{case}");
    }
}

#[test]
fn a_dip_delays_the_rise() {
    let mut rig = Rig::with(4, Settings::default());
    rig.register(S, 4..10);
    rig.wait(5 * MINUTE);
    rig.deregister(9..10);
    rig.register(S, 9..10);
    rig.wait(5 * MINUTE);
    assert_eq!(rig.report().expected, 9, "nine were there all the time");
    rig.wait(5 * MINUTE);
    assert_eq!(rig.report().expected, 10);
}

#[test]
fn expected_falls_by_owners_ack_and_six_hours_only() {
    let mut rig = Rig::with(10, Settings::default());
    rig.expire(0..3);
    assert_eq!(rig.report().expected, 10);
    rig.deregister(3..4);
    assert_eq!(rig.report().expected, 9);
    let mut acked = rig.clone();
    acked.feed(vec![ack()]);
    assert_eq!(acked.report().expected, 6);
    rig.wait(6 * HOUR - 1);
    assert_eq!(rig.report().expected, 9);
    rig.wait(1);
    assert_eq!(rig.report().expected, 6);
}

#[test]
fn the_six_hours_start_at_the_last_change() {
    let mut rig = Rig::with(4, Settings::default());
    rig.register(S, 4..5);
    rig.wait(11 * MINUTE);
    rig.expire(4..5);
    rig.wait(6 * HOUR - 1);
    assert_eq!(rig.report().expected, 5);
    rig.wait(1);
    assert_eq!(rig.report().expected, 4);
}

#[test]
fn many_owners_at_once_lower_expected_by_their_number() {
    let mut rig = Rig::with(10, Settings::default());
    rig.deregister(0..7);
    assert_eq!(rig.report().expected, 3);
}

#[test]
fn forget_inside_protection_needs_proof() {
    // (gateways, probed by, sources whole, E afterwards)
    let cases: [(u32, &[&str], bool, u64); 6] = [
        (1, &[], true, 10),
        (1, &["g1"], true, 5),
        (3, &["g1"], true, 10),
        (3, &["g1", "g1"], true, 10),
        (3, &["g1", "g2"], true, 5),
        (3, &["g1", "g2"], false, 10),
    ];
    for (count, gateways, whole, expected) in cases {
        let mut rig = Rig::with(10, Settings::default());
        rig.expire(0..5);
        rig.feed(vec![Input::Gateways { count }]);
        if !whole {
            rig.feed(vec![source_frozen("etcd")]);
        }
        for (i, gateway) in (0..5).flat_map(|i| gateways.iter().map(move |g| (i, g))) {
            rig.feed(vec![Input::Refused {
                service: S.into(),
                instance: id(i),
                gateway: (*gateway).into(),
            }]);
        }
        rig.wait(6 * HOUR - 1);
        assert_eq!(rig.report().expected, 10);
        rig.wait(1);
        assert_eq!(
            rig.report().expected,
            expected,
            "{count} {gateways:?} {whole}"
        );
        rig.wait(MINUTE);
        rig.wait(TTL);
        assert_eq!(rig.published() as u64, if expected == 5 { 5 } else { 10 });
    }
}

#[test]
fn forget_inside_protection_takes_late_proof() {
    let mut rig = Rig::with(10, Settings::default());
    rig.expire(0..5);
    rig.wait(7 * HOUR);
    let refused = |i| Input::Refused {
        service: S.into(),
        instance: id(i),
        gateway: "g1".into(),
    };
    rig.feed((0..4).map(refused).collect());
    assert_eq!(rig.report().expected, 10);
    rig.feed(vec![refused(4)]);
    assert_eq!(rig.report().expected, 5);
}

#[test]
fn the_judgement_waits_for_the_silent() {
    let mut waiting = Rig::with(10, Settings::default());
    waiting.silence(0..5);
    waiting.expire(0..3);
    assert_eq!((waiting.published(), waiting.held()), (10, 3));
    assert_eq!(waiting.report().held[0].why, HoldReason::WaitsForSilent);

    let mut returned = waiting.clone();
    returned.register(S, 4..5);
    assert_eq!((returned.published(), returned.held()), (7, 0));

    let mut gone = waiting.clone();
    gone.wait(TTL / 2);
    gone.expire(3..5);
    assert_eq!((gone.published(), gone.held()), (10, 5));
    assert!(gone.report().protected);

    // The holder never speaks again: the wait ends anyway.
    waiting.wait(TTL - 1);
    assert_eq!(waiting.published(), 10);
    waiting.wait(1);
    assert_eq!((waiting.published(), waiting.held()), (7, 0));
}

#[test]
fn the_wait_ends_while_others_keep_falling_silent() {
    let mut rig = Rig::with(10, Settings::default());
    rig.silence(1..5);
    rig.expire(0..1);
    let began = rig.now;
    while rig.published() == 10 {
        rig.wait(SECOND);
        rig.register(S, 1..5);
        // Where nobody is silent for a moment it would end early, which is not the point here.
        if rig.published() < 10 {
            break;
        }
        rig.silence(1..5);
    }
    assert!(rig.now - began <= TTL);

    let mut rig = Rig::with(10, Settings::default());
    rig.silence(1..5);
    rig.expire(0..1);
    let began = rig.now;
    while rig.published() == 10 {
        rig.wait(SECOND);
        let at = usize::try_from((rig.now - began) / SECOND).expect("forward");
        let (back, away) = if at % 2 == 0 {
            (1..5, 5..9)
        } else {
            (5..9, 1..5)
        };
        let mut inputs: Vec<Input> = back.map(|i| registered(S, i)).collect();
        inputs.extend(away.map(|i| silent(S, i)));
        rig.feed(inputs);
    }
    assert_eq!(rig.now - began, TTL);
}

#[test]
fn protected_lets_everything_but_losses_through() {
    let mut rig = Rig::with(10, Settings::default());
    rig.expire(0..5);
    rig.register(S, 10..11);
    assert_eq!((rig.published(), rig.held()), (11, 5));
    rig.deregister(9..10);
    assert_eq!((rig.published(), rig.held()), (10, 5));
    rig.deregister(0..1);
    assert_eq!((rig.published(), rig.held()), (9, 4));
    rig.register(S, 1..2);
    assert_eq!((rig.published(), rig.held()), (9, 3));
    rig.expire(8..9);
    assert_eq!((rig.published(), rig.held()), (9, 4));
}

#[test]
fn protection_ends_when_the_loss_stays_small() {
    let mut rig = Rig::with(10, Settings::default());
    rig.expire(0..5);
    rig.register(S, 0..2);
    rig.wait(HOUR);
    assert!(rig.report().protected, "three of ten are more than a fifth");
    rig.register(S, 2..3);
    rig.wait(59 * SECOND);
    rig.expire(2..3);
    rig.register(S, 2..3);
    rig.wait(59 * SECOND);
    assert!(rig.report().protected, "the minute starts anew");
    rig.wait(SECOND);
    assert!(!rig.report().protected);
    assert_eq!(rig.alarms(AlarmKind::ProtectionEnded).len(), 1);
    assert_eq!(rig.report().held[0].why, HoldReason::Leftover);
    rig.wait(TTL - 1);
    assert_eq!((rig.published(), rig.held()), (10, 2));
    rig.wait(1);
    assert_eq!((rig.published(), rig.held()), (8, 0));
}

#[test]
fn leftovers_count_as_gone_in_the_next_judgement() {
    let mut rig = Rig::with(10, Settings::default());
    rig.expire(0..5);
    rig.register(S, 0..3);
    rig.wait(MINUTE);
    assert!(!rig.report().protected);
    rig.expire(5..8);
    assert_eq!((rig.published(), rig.held()), (10, 5));
    assert!(rig.report().protected);
}

#[test]
fn alarms_come_at_entry_every_five_minutes_and_at_the_exit() {
    let mut rig = Rig::with(10, Settings::default());
    rig.expire(0..5);
    let entered = rig.alarms(AlarmKind::ProtectionEntered);
    assert_eq!(entered.len(), 1);
    let alarm = &entered[0];
    let figures = (alarm.expected, alarm.live, alarm.published);
    assert_eq!(figures, (10, 5, 10));
    assert_eq!(alarm.causes, BTreeMap::from([(Cause::Expired, 5)]));
    assert_eq!(alarm.sources, BTreeSet::from([HOLDER.to_owned()]));
    assert_eq!(alarm.oldest_loss_ms, Some(rig.now));
    for n in 1..=3 {
        rig.wait(5 * MINUTE - 1);
        assert_eq!(rig.alarms(AlarmKind::ProtectionStill).len(), n - 1);
        rig.wait(1);
        assert_eq!(rig.alarms(AlarmKind::ProtectionStill).len(), n);
        assert_eq!(rig.protection.alarms().len(), 1);
    }
    // A long sleep gives one reminder, not all that were missed.
    rig.wait(HOUR + 1);
    assert_eq!(rig.alarms(AlarmKind::ProtectionStill).len(), 4);
    rig.register(S, 0..5);
    rig.wait(MINUTE);
    assert_eq!(rig.alarms(AlarmKind::ProtectionEnded).len(), 1);
    assert_eq!(rig.protection.alarms(), []);
}

#[test]
fn the_last_instance_waits_for_calm() {
    let mut rig = Rig::with(1, Settings::default());
    for n in 0..8 {
        rig.register(&format!("dubbo/other{n}"), 0..4);
    }
    rig.wait(2 * MINUTE);
    rig.expire(0..1);
    rig.wait(4 * MINUTE);
    let left = rig.report().last_instance_left_ms;
    assert_eq!(left, Some(MINUTE), "its own loss does not stop the clock");
    // Another of nine services loses something: that is 10% or more for a minute.
    rig.feed(vec![expired("dubbo/other0", 0..1)]);
    rig.wait(MINUTE);
    assert_eq!(rig.report().last_instance_left_ms, Some(MINUTE));
    rig.wait(30 * SECOND);
    rig.feed(vec![source_frozen("zk")]);
    rig.wait(HOUR);
    assert_eq!(rig.report().last_instance_left_ms, Some(30 * SECOND));
    rig.feed(vec![source_whole("zk")]);
    rig.wait(TTL);
    rig.wait(30 * SECOND - 1);
    assert_eq!(rig.published(), 1);
    rig.wait(1);
    assert_eq!(rig.published(), 0);
}

#[test]
fn a_last_instance_gives_way_to_a_new_one() {
    let mut rig = Rig::with(1, Settings::default());
    rig.expire(0..1);
    rig.wait(4 * MINUTE);
    rig.register(S, 1..2);
    assert_eq!((rig.published(), rig.held()), (1, 0));
    rig.expire(1..2);
    rig.wait(4 * MINUTE);
    assert_eq!(rig.published(), 1, "the hold starts anew");
}

#[test]
fn two_last_instances_do_not_stop_each_other() {
    let mut rig = Rig::with(1, Settings::default());
    rig.register("dubbo/other", 0..1);
    rig.wait(2 * MINUTE);
    rig.feed(vec![expired(S, 0..1), expired("dubbo/other", 0..1)]);
    rig.wait(6 * MINUTE);
    assert_eq!(rig.view.values().map(BTreeSet::len).sum::<usize>(), 0);
}

#[test]
fn a_service_younger_than_a_minute_loses_all_at_once() {
    let mut rig = Rig::new(Settings::default());
    rig.register(S, 0..3);
    rig.wait(MINUTE - 1);
    rig.expire(0..3);
    assert_eq!((rig.published(), rig.held()), (0, 0));
}

#[test]
fn a_service_has_its_own_threshold() {
    let lenient = Rule {
        threshold_percent: 100,
        ..Rule::default()
    };
    check_loss(lenient.clone(), 10, 9, 1, 0, false);
    check_loss(lenient, 10, 10, 1, 1, false);
    let mut settings = Settings::default();
    let timid = Rule {
        threshold_percent: 10,
        ..Rule::default()
    };
    settings.services.insert(S.into(), timid);
    let mut rig = Rig::with(10, settings);
    rig.register("dubbo/other", 0..10);
    rig.wait(2 * MINUTE);
    rig.feed(vec![expired(S, 0..2), expired("dubbo/other", 0..2)]);
    assert_eq!((rig.published(), rig.held()), (10, 2));
    assert_eq!(rig.view["dubbo/other"].len(), 8);
}

#[test]
fn the_brake_freezes_a_source_that_takes_many_instances() {
    // (instances per service in five services, lost of each, frozen)
    for (each, lost, frozen) in [(3, 1, false), (4, 1, true), (10, 2, false), (10, 3, true)] {
        let mut rig = Rig::new(Settings::default());
        for n in 0..5 {
            rig.register(&format!("dubbo/s{n}"), 0..each);
        }
        rig.wait(2 * MINUTE);
        let losses = (0..5).map(|n| expired(&format!("dubbo/s{n}"), 0..lost));
        let out = rig.feed(losses.collect());
        let freezes = out.iter().any(|o| matches!(o, Output::FreezeSource { .. }));
        assert_eq!(freezes, frozen, "{lost} of {each}");
        let left: usize = rig.view.values().map(BTreeSet::len).sum();
        let gone = if frozen { 0 } else { 5 * lost };
        assert_eq!(left, 5 * each - gone);
    }
}

#[test]
fn the_brake_freezes_a_source_that_touches_many_services() {
    for (services, touched, frozen) in [(9, 4, false), (10, 1, false), (10, 2, true)] {
        let mut rig = Rig::new(Settings::default());
        for n in 0..services {
            rig.register(&format!("dubbo/s{n}"), 0..20);
        }
        rig.wait(2 * MINUTE);
        for n in 0..touched {
            rig.feed(vec![expired(&format!("dubbo/s{n}"), 0..1)]);
            rig.wait(SECOND);
        }
        let found = rig.protection.frozen_sources().len();
        assert_eq!(found, usize::from(frozen), "{touched} of {services}");
    }
}

#[test]
fn losses_further_apart_than_the_window_do_not_brake() {
    let mut rig = Rig::new(Settings::default());
    for n in 0..10 {
        rig.register(&format!("dubbo/s{n}"), 0..20);
    }
    rig.wait(2 * MINUTE);
    for n in 0..10 {
        rig.feed(vec![expired(&format!("dubbo/s{n}"), 0..1)]);
        rig.wait(MINUTE);
    }
    assert_eq!(rig.protection.frozen_sources(), []);
}

#[test]
fn a_braked_source_is_believed_after_a_stable_whole_snapshot() {
    let mut rig = Rig::with(20, Settings::default());
    rig.expire(0..8);
    assert_eq!((rig.published(), rig.held()), (20, 8));
    assert_eq!(rig.report().held[0].why, HoldReason::SourceFrozen);
    rig.wait(HOUR);
    assert_eq!(rig.published(), 20, "no snapshot, no belief");
    rig.feed(vec![source_whole(HOLDER)]);
    rig.wait(TTL - 1);
    rig.register(S, 0..1);
    rig.wait(TTL - 1);
    assert_eq!(rig.published(), 20, "it was not stable: one came back");
    let out = rig.wait(1);
    let source = HOLDER.to_owned();
    assert!(out.contains(&Output::ThawSource { source }));
    assert_eq!((rig.published(), rig.held()), (13, 0));
    assert_eq!(rig.protection.frozen_sources(), []);
}

#[test]
fn a_snapshot_that_loses_as_much_again_was_not_whole() {
    let mut rig = Rig::with(20, Settings::default());
    rig.expire(0..8);
    rig.feed(vec![source_whole(HOLDER)]);
    rig.wait(SECOND);
    rig.expire(8..14);
    rig.wait(HOUR);
    assert_eq!((rig.published(), rig.held()), (20, 14));
    assert_eq!(rig.protection.frozen_sources().len(), 1);
}

#[test]
fn a_frozen_source_adds() {
    let mut rig = Rig::with(10, Settings::default());
    rig.feed(vec![source_frozen("zk")]);
    rig.feed(vec![present(S, 10, "zk", TTL)]);
    rig.feed(vec![missing("zk", 0..1, Cause::Unknown)]);
    assert_eq!((rig.published(), rig.held()), (11, 1));
    // A holder that is believed says the same.
    rig.expire(0..1);
    assert_eq!((rig.published(), rig.held()), (10, 0));
}

#[test]
fn start_up_delays_records_from_before_only() {
    let mut rig = Rig::with(10, Settings::default());
    rig.feed((0..1).map(|i| present(S, i, "zk", TTL)).collect());
    rig.protection = reloaded(&rig.protection);
    let sources = BTreeSet::from(["zk".to_owned()]);
    rig.feed(vec![Input::Started { sources }]);
    rig.register(S, 2..3);
    rig.expire(0..3);
    // i02 registered anew; i00 and i01 are from before.
    assert_eq!((rig.published(), rig.held()), (9, 2));
    rig.wait(TTL - 1);
    assert_eq!(rig.published(), 9);
    rig.wait(1);
    assert_eq!((rig.published(), rig.held()), (8, 1), "zk owes a snapshot");
    assert_eq!(rig.report().held[0].why, HoldReason::StartUp);
    rig.feed(vec![source_whole("zk")]);
    assert_eq!((rig.published(), rig.held()), (7, 0));
}

#[test]
fn stopped_expiry_removes_nothing_and_starts_every_lease_anew() {
    let mut rig = Rig::with(10, Settings::default());
    rig.feed(vec![Input::ExpiryStopped { stopped: true }]);
    rig.expire(0..2);
    rig.feed(vec![missing("zk", 2..3, Cause::Unknown)]);
    rig.wait(HOUR);
    assert_eq!((rig.published(), rig.held()), (9, 2));
    assert_eq!(rig.report().held[0].why, HoldReason::ExpiryStopped);
    rig.feed(vec![Input::ExpiryStopped { stopped: false }]);
    rig.register(S, 0..1);
    rig.wait(TTL - 1);
    assert_eq!(rig.published(), 9);
    rig.wait(1);
    assert_eq!((rig.published(), rig.held()), (8, 0));
}

#[test]
fn many_explicit_removals_raise_an_alarm_and_pass() {
    // (services hit of ten, removed of ten instances, alarm)
    for (hit, removed_each, alarm) in [(1, 10, 0), (2, 4, 0), (2, 5, 1), (10, 10, 1)] {
        let mut rig = Rig::new(Settings::default());
        for n in 0..10 {
            rig.register(&format!("dubbo/s{n}"), 0..10);
        }
        rig.wait(2 * MINUTE);
        for n in 0..hit {
            let service = format!("dubbo/s{n}");
            rig.feed((0..removed_each).map(|i| removed(&service, i)).collect());
            rig.wait(SECOND);
        }
        rig.wait(10 * SECOND);
        let found = rig.alarms(AlarmKind::MassExplicit).len();
        assert_eq!(found, alarm, "{removed_each} of {hit} services");
        let left: usize = rig.view.values().map(BTreeSet::len).sum();
        assert_eq!(left, 100 - hit * removed_each);
        rig.wait(MINUTE);
        assert_eq!(rig.protection.alarms(), []);
    }
}

/// Curator's discovery deletes and creates its own node at each reconnect: all of a fleet's do so when a
/// gateway restarts, and what stood for them must go on to.
#[test]
fn who_registers_again_soon_was_never_gone() {
    for (n, away, expected, alarms) in [
        (10, 10 * SECOND - 1, 10, 0),
        (10, 10 * SECOND, 0, 1),
        (1, SECOND, 1, 0),
    ] {
        let mut rig = Rig::with(n, Settings::default());
        rig.deregister(0..n);
        assert_eq!(rig.published(), 0, "the view shows it at once");
        rig.wait(away);
        rig.register(S, 0..n);
        rig.wait(SECOND);
        let report = rig.report();
        assert_eq!(
            (report.expected, rig.published()),
            (expected, n),
            "after {away} ms"
        );
        for kind in [AlarmKind::MassExplicit, AlarmKind::ServiceEmptied] {
            assert_eq!(rig.alarms(kind).len(), alarms, "{kind:?} after {away} ms");
        }
        rig.expire(0..n);
        let held = if expected == 0 { 0 } else { n };
        assert_eq!(
            rig.published(),
            held,
            "what protection is for, after {away} ms"
        );
        rig.wait(MINUTE);
        assert_eq!(rig.alarms(AlarmKind::ServiceEmptied).len(), alarms);
    }
}

/// One that is away is not missing, and those that come back give back only what they took.
#[test]
fn who_is_away_for_a_moment_is_not_expected() {
    let mut rig = Rig::with(10, Settings::default());
    rig.deregister(0..4);
    assert_eq!(rig.report().expected, 6);
    rig.expire(4..6);
    assert_eq!(rig.published(), 4, "two of six go");
    rig.register(S, 0..4);
    assert_eq!((rig.report().expected, rig.published()), (10, 8));

    let mut young = Rig::new(Settings::default());
    young.register(S, 0..3);
    young.deregister(0..3);
    young.register(S, 0..3);
    assert_eq!(young.report().expected, 0, "nothing was expected yet");
}

#[test]
fn hold_explicit_stops_owners_until_it_expires() {
    let mut rig = Rig::with(10, Settings::default());
    let order = order("bad rollout", HOUR, rig.now);
    rig.feed(vec![Input::HoldExplicit {
        service: None,
        order,
    }]);
    rig.deregister(0..10);
    assert_eq!((rig.published(), rig.held()), (10, 10));
    assert_eq!(rig.report().held[0].why, HoldReason::HoldExplicit);
    assert_eq!(rig.report().expected, 10);
    rig.register(S, 0..3);
    rig.wait(HOUR - 1);
    assert_eq!((rig.published(), rig.held()), (10, 7));
    rig.wait(1);
    assert_eq!((rig.published(), rig.held()), (3, 0));
    assert_eq!(rig.report().expected, 3);
}

#[test]
fn hold_explicit_ends_by_order() {
    let mut rig = Rig::with(10, Settings::default());
    let service = Some(S.to_owned());
    let order = order("bad rollout", HOUR, rig.now);
    rig.feed(vec![Input::HoldExplicit {
        service: service.clone(),
        order,
    }]);
    rig.deregister(0..2);
    rig.feed(vec![Input::HoldExplicitEnd {
        service: service.clone(),
    }]);
    assert_eq!((rig.published(), rig.held()), (8, 0));
    let out = rig.feed(vec![Input::HoldExplicitEnd {
        service: service.clone(),
    }]);
    let why = RefuseReason::NotInForce;
    assert_eq!(out, [Output::Refuse { service, why }]);
}

#[test]
fn before_the_take_over_protection_only_reports() {
    let mut rig = Rig::with(
        10,
        Settings {
            report_only: true,
            ..Settings::default()
        },
    );
    assert!(
        !rig.protection
            .would_refuse_foreign(S, &ids(0..10), "zk", rig.now)
    );
    rig.expire(0..5);
    assert_eq!((rig.published(), rig.held()), (5, 0));
    let entered = rig.alarms(AlarmKind::ProtectionEntered);
    assert_eq!(entered.len(), 1);
    assert!(entered[0].report_only);
    assert_eq!(entered[0].held.len(), 5);
    rig.expire(5..6);
    assert_eq!(rig.published(), 4);
    assert_eq!(rig.report().would_hold.len(), 6);
    rig.register(S, 0..6);
    rig.wait(MINUTE);
    assert_eq!(rig.alarms(AlarmKind::ProtectionEnded).len(), 1);

    // After the take-over the same loss is held, protocol by protocol.
    let enforce = |prefix: &str| Input::ReportOnly {
        prefix: prefix.into(),
        on: false,
    };
    rig.feed(vec![enforce("grpc/")]);
    let mut other = rig.clone();
    other.expire(0..5);
    assert_eq!((other.published(), other.held()), (5, 0));
    rig.feed(vec![enforce("dubbo/")]);
    rig.expire(0..5);
    assert_eq!((rig.published(), rig.held()), (10, 5));
}

#[test]
fn a_report_of_the_last_instance_is_only_a_report() {
    let mut rig = Rig::with(
        1,
        Settings {
            report_only: true,
            ..Settings::default()
        },
    );
    rig.expire(0..1);
    assert_eq!((rig.published(), rig.held()), (0, 0));
    assert_eq!(rig.alarms(AlarmKind::LastInstanceHeld).len(), 1);
}

#[test]
fn a_foreign_delete_is_refused_where_it_would_be_held() {
    let refused = |rig: &Rig, which| {
        let p = &rig.protection;
        p.would_refuse_foreign(S, &ids(which), "member-1", rig.now)
    };
    let mut silent = Rig::with(10, Settings::default());
    silent.silence(4..5);
    assert!(!refused(&silent, 0..3));
    assert!(refused(&silent, 0..4), "it would wait for the silent");

    assert!(refused(&Rig::with(1, Settings::default()), 0..1));
    assert!(!refused(&Rig::with(2, Settings::default()), 0..1));
    assert!(refused(&Rig::with(20, Settings::default()), 0..5), "brake");
    assert!(!refused(&Rig::with(20, Settings::default()), 0..4));
    assert!(!refused(&Rig::new(Settings::default()), 0..1), "unknown");

    let mut frozen = Rig::with(10, Settings::default());
    frozen.feed(vec![source_frozen("member-1")]);
    assert!(refused(&frozen, 0..1));

    // A timer that is due counts, though nobody ticked.
    let mut off = Rig::with(10, Settings::default());
    let order = override_by(OverrideKind::Off, "tidying", MINUTE, off.now);
    off.feed(vec![order]);
    assert!(!refused(&off, 0..10));
    off.now += MINUTE;
    assert!(refused(&off, 0..10));
}

#[test]
fn unknown_services_and_instances_change_nothing() {
    let mut rig = Rig::with(10, Settings::default());
    let before = rig.protection.services();
    let inputs = vec![
        expired("dubbo/none", 0..3),
        expired(S, 50..60),
        silent(S, 50),
        removed(S, 50),
        missing("zk", 50..51, Cause::Explicit),
        Input::Refused {
            service: S.into(),
            instance: id(0),
            gateway: "g1".into(),
        },
    ];
    assert_eq!(rig.feed(inputs), []);
    assert_eq!(rig.protection.services(), before);
    let unknown = Input::Ack {
        service: "dubbo/none".into(),
        by: "ann".into(),
        reason: "why".into(),
    };
    let why = RefuseReason::UnknownService;
    let service = Some("dubbo/none".to_owned());
    assert_eq!(rig.feed(vec![unknown]), [Output::Refuse { service, why }]);
}

#[test]
fn a_clock_that_goes_back_stands_still() {
    let mut rig = Rig::with(10, Settings::default());
    rig.now -= HOUR;
    rig.expire(0..5);
    rig.wait(10 * MINUTE);
    assert_eq!((rig.published(), rig.held()), (10, 5));
}

#[test]
fn settings_name_every_mistake() {
    let mut settings = Settings {
        brake_services_percent: 101,
        default_ttl_ms: 0,
        ..Settings::default()
    };
    settings.rule.threshold_percent = 0;
    let slow = Rule {
        exit_ms: i64::MAX,
        ..Rule::default()
    };
    settings.services.insert(S.into(), slow);
    let errors = settings.check();
    assert_eq!(errors.len(), 4, "{errors:?}");
}

#[test]
fn a_late_timer_does_not_remove_what_is_back() {
    let mut rig = Rig::with(1, Settings::default());
    rig.expire(0..1);
    rig.now += HOUR;
    let out = rig.register(S, 0..1);
    let release = Output::Release {
        service: S.into(),
        instance: id(0),
    };
    assert!(out.contains(&release));
    assert_eq!((rig.published(), rig.held()), (1, 0));
}

// --- properties, over seeded histories ---

const SEEDS: u64 = 40;
const STEPS: usize = 120;

#[test]
fn enough_stays_after_any_implicit_removal() {
    let mut removals = 0;
    for seed in 0..SEEDS {
        let mut history = History::new(seed, false);
        let mut rig = Rig::new(history.settings());
        for _ in 0..STEPS {
            let (ms, inputs) = history.next();
            let out = rig.wait(ms);
            removals += check_enough_stays(&rig, &out, seed);
            let out = rig.feed(inputs);
            removals += check_enough_stays(&rig, &out, seed);
        }
    }
    assert!(removals > 200, "the histories hardly remove: {removals}");
}

/// a ≥ E − threshold, but for the two exceptions of small services.
fn check_enough_stays(rig: &Rig, out: &[Output], seed: u64) -> usize {
    let mut removals = 0;
    for output in out {
        let Output::Remove { service, cause, .. } = output else {
            continue;
        };
        let (Some(report), true) = (rig.protection.service(service), *cause != Cause::Explicit)
        else {
            continue;
        };
        removals += 1;
        let last = |output: &Output| {
            matches!(output, Output::Alarm(alarm)
                if alarm.kind == AlarmKind::LastInstanceRemoved
                    && alarm.service.as_ref() == Some(service))
        };
        let loss = report.expected.saturating_sub(report.published);
        let two = report.expected == 2 && loss == 1 && !report.strict;
        let within = 100 * loss <= report.threshold_percent * report.expected;
        let known = within || two || out.iter().any(last);
        assert!(known, "seed {seed}: {output:?} leaves {report:?}");
    }
    removals
}

#[test]
fn explicit_is_never_delayed() {
    for seed in 0..SEEDS {
        let mut history = History::new(seed, false);
        let mut rig = Rig::new(history.settings());
        for _ in 0..STEPS {
            let (ms, inputs) = history.next();
            rig.now += ms;
            rig.feed(inputs.clone());
            for input in inputs {
                if let Input::Removed { service, instance } = input {
                    let view = rig.view.get(&service);
                    let there = view.is_some_and(|view| view.contains(&instance));
                    assert!(!there, "seed {seed}: {service} {instance}");
                }
            }
        }
    }
}

#[test]
fn permuting_a_batch_changes_nothing() {
    for seed in 0..SEEDS {
        let mut history = History::new(seed, true);
        let mut rig = Rig::new(history.settings());
        for _ in 0..STEPS {
            let (ms, inputs) = history.next();
            rig.now += ms;
            let mut shuffled = inputs.clone();
            for i in (1..shuffled.len()).rev() {
                shuffled.swap(i, history.below(i as u64 + 1) as usize);
            }
            let mut other = rig.protection.clone();
            let out = rig.feed(inputs);
            assert_eq!(other.handle_all(shuffled, rig.now), out, "seed {seed}");
            assert_eq!(other, rig.protection, "seed {seed}");
        }
    }
}

#[test]
fn a_restart_at_any_point_changes_nothing() {
    for seed in 0..SEEDS / 4 {
        let mut history = History::new(seed, true);
        let mut rig = Rig::new(history.settings());
        for _ in 0..STEPS {
            let (ms, inputs) = history.next();
            rig.now += ms;
            let mut other = reloaded(&rig.protection);
            let out = rig.feed(inputs.clone());
            assert_eq!(other.handle_all(inputs, rig.now), out, "seed {seed}");
            assert_eq!(other, rig.protection, "seed {seed}");
        }
    }
}

#[test]
fn ticks_in_between_change_nothing() {
    let decisions = |out: &[Output]| {
        let reminder =
            |o: &&Output| matches!(o, Output::Alarm(a) if a.kind == AlarmKind::ProtectionStill);
        let rest = out.iter().filter(|o| !reminder(o));
        rest.cloned().collect::<Vec<_>>()
    };
    for seed in 0..SEEDS {
        let mut history = History::new(seed, true);
        let mut rig = Rig::new(history.settings());
        let mut ticked = rig.protection.clone();
        for _ in 0..STEPS {
            let (ms, inputs) = history.next();
            let mut often = Vec::new();
            let mut at = rig.now;
            while let Some(next) = ticked.next_timeout().filter(|next| *next < rig.now + ms) {
                at = next.max(at) + history.below(2) as i64;
                at = at.min(rig.now + ms);
                often.extend(ticked.handle(Input::Tick, at));
            }
            let mut out = rig.wait(ms);
            often.extend(ticked.handle(Input::Tick, rig.now));
            often.extend(ticked.handle_all(inputs.clone(), rig.now));
            out.extend(rig.feed(inputs));
            assert_eq!(decisions(&often), decisions(&out), "seed {seed}");
            let (reports, others) = (rig.protection.services(), ticked.services());
            assert_eq!(others, reports, "seed {seed}");
        }
    }
}

#[test]
fn waiting_on_the_silent_always_ends() {
    let mut waits = 0;
    for seed in 0..SEEDS {
        let mut history = History::new(seed, false);
        let mut rig = Rig::new(history.settings());
        let mut since: BTreeMap<(ServiceKey, InstanceId), i64> = BTreeMap::new();
        for _ in 0..STEPS {
            let (ms, inputs) = history.next();
            rig.now += ms;
            rig.feed(inputs);
            let mut waiting = BTreeSet::new();
            for report in rig.protection.services() {
                for held in report.held {
                    if held.why == HoldReason::WaitsForSilent {
                        waiting.insert((report.service.clone(), held.instance));
                    }
                }
            }
            since.retain(|key, _| waiting.contains(key));
            for key in waiting {
                let began = *since.entry(key).or_insert(rig.now);
                assert!(
                    rig.now - began <= 2 * TTL,
                    "seed {seed}: {rig:?}",
                    rig = rig.held
                );
                waits += 1;
            }
        }
    }
    assert!(waits > 20, "the histories hardly wait: {waits}");
}

#[test]
fn a_foreign_delete_that_is_not_refused_goes_at_once() {
    let mut answers = [0, 0];
    for seed in 0..SEEDS {
        let mut history = History::new(seed, true);
        let mut rig = Rig::new(history.settings());
        for _ in 0..STEPS {
            let (ms, inputs) = history.next();
            rig.now += ms;
            rig.feed(inputs);
            let service = history.service();
            let which = history.instances();
            let Some(view) = rig.view.get(&service) else {
                continue;
            };
            let there: BTreeSet<_> = which.intersection(view).cloned().collect();
            let p = &rig.protection;
            let refused = p.would_refuse_foreign(&service, &there, "zk", rig.now);
            answers[usize::from(refused)] += 1;
            let mut trial = rig.clone();
            trial.feed(vec![Input::Missing {
                service: service.clone(),
                instances: there.clone(),
                source: "zk".into(),
                cause: Cause::Foreign,
            }]);
            let left = trial.view[&service].intersection(&there).count();
            if !rig
                .protection
                .service(&service)
                .is_some_and(|r| r.report_only)
            {
                assert_eq!(left > 0, refused, "seed {seed}: {service} {there:?}");
            }
        }
    }
    assert!(answers.iter().all(|n| *n > 200), "{answers:?}");
}

/// A seeded history over a few services: registrations, silence, losses, removals, sources in
/// trouble and (where asked for) operators' orders.
struct History {
    state: u64,
    orders: bool,
    now: i64,
}

impl History {
    fn new(seed: u64, orders: bool) -> Self {
        History {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            orders,
            now: START,
        }
    }

    /// SplitMix64.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random() % n.max(1)
    }

    fn settings(&mut self) -> Settings {
        let mut settings = Settings::default();
        settings.rule.greedy = self.below(3) == 0;
        settings.rule.strict = self.below(4) == 0;
        settings.rule.threshold_percent = [10, 40, 40, 40, 70, 100][self.below(6) as usize];
        // Half of the histories run without a brake, so that the rule itself has more to do.
        if self.below(2) == 0 {
            settings.brake_instances_percent = 100;
            settings.brake_services_percent = 100;
        }
        settings
    }

    fn service(&mut self) -> ServiceKey {
        ["dubbo/a", "dubbo/b", "dubbo/c", "grpc/d"][self.below(4) as usize].to_owned()
    }

    fn source(&mut self) -> SourceId {
        ["zk", "member-1", "member-2"][self.below(3) as usize].to_owned()
    }

    fn instances(&mut self) -> BTreeSet<InstanceId> {
        let from = self.below(12) as usize;
        let n = 1 + self.below(6) as usize;
        ids(from..from + n)
    }

    /// How long nothing happens, and what happens then.
    fn next(&mut self) -> (i64, Vec<Input>) {
        let longest = [1, SECOND, 20 * SECOND, 2 * MINUTE, 20 * MINUTE, 7 * HOUR];
        let longest = longest[self.below(16).min(5) as usize % 6];
        let ms = self.below(longest as u64 + 1) as i64;
        let ms = if self.below(8) == 0 {
            ms
        } else {
            ms % (2 * MINUTE)
        };
        self.now += ms;
        let n = 1 + self.below(4);
        let inputs = (0..n).flat_map(|_| self.inputs()).collect();
        (ms, inputs)
    }

    fn inputs(&mut self) -> Vec<Input> {
        let (service, source, instances) = (self.service(), self.source(), self.instances());
        let ttl_ms = [TTL, 2 * TTL][self.below(2) as usize];
        let each =
            |make: &dyn Fn(InstanceId) -> Input| instances.iter().cloned().map(make).collect();
        match self.below(if self.orders { 24 } else { 20 }) {
            0..=6 => each(&|instance| Input::Registered {
                service: service.clone(),
                instance,
                source: source.clone(),
                ttl_ms,
            }),
            7 | 8 => each(&|instance| Input::Present {
                service: service.clone(),
                instance,
                source: source.clone(),
                ttl_ms,
            }),
            9 | 10 => each(&|instance| Input::Silent {
                service: service.clone(),
                instance,
            }),
            11..=13 => vec![Input::Expired {
                service,
                instances,
                source,
            }],
            14 => vec![Input::Missing {
                service,
                instances,
                source,
                cause: [Cause::Foreign, Cause::Unknown][self.below(2) as usize],
            }],
            15 | 16 => each(&|instance| Input::Removed {
                service: service.clone(),
                instance,
            }),
            17 => vec![Input::SourceFrozen {
                source,
                reason: "unreachable".into(),
            }],
            18 | 19 => vec![Input::SourceWhole { source }],
            20 => vec![Input::Started {
                sources: BTreeSet::from([source]),
            }],
            21 => vec![Input::ExpiryStopped {
                stopped: self.below(3) == 0,
            }],
            22 => vec![Input::Refused {
                service,
                instance: id(self.below(12) as usize),
                gateway: source,
            }],
            _ => vec![self.order(service)],
        }
    }

    fn order(&mut self, service: ServiceKey) -> Input {
        use OverrideKind::{ForceHold, ForceRemove, Off};
        let order = order("drill", 1 + self.below(HOUR as u64) as i64, self.now);
        let kind = [ForceHold, ForceRemove, Off][self.below(3) as usize];
        let some = (self.below(4) > 0).then_some(service.clone());
        match self.below(6) {
            0 | 1 => Input::Override {
                service: some,
                kind,
                order,
            },
            2 => Input::OverrideEnd { service: some },
            3 => Input::HoldExplicit {
                service: some,
                order,
            },
            4 => Input::HoldExplicitEnd { service: some },
            _ => Input::Ack {
                service,
                by: "ann".into(),
                reason: "drill".into(),
            },
        }
    }
}

// --- helpers ---

fn settings(rule: Rule) -> Settings {
    Settings {
        rule,
        ..Settings::default()
    }
}

fn greedy() -> Rule {
    Rule {
        greedy: true,
        ..Rule::default()
    }
}

fn strict() -> Rule {
    Rule {
        strict: true,
        ..Rule::default()
    }
}

/// For services so large that the source brake would come first.
fn single_source() -> Settings {
    Settings {
        brake_instances_percent: 100,
        ..Settings::default()
    }
}

fn present(service: &str, i: usize, source: &str, ttl_ms: i64) -> Input {
    Input::Present {
        service: service.to_owned(),
        instance: id(i),
        source: source.to_owned(),
        ttl_ms,
    }
}

fn missing(source: &str, which: std::ops::Range<usize>, cause: Cause) -> Input {
    Input::Missing {
        service: S.to_owned(),
        instances: ids(which),
        source: source.to_owned(),
        cause,
    }
}

fn source_frozen(source: &str) -> Input {
    Input::SourceFrozen {
        source: source.to_owned(),
        reason: "unreachable".into(),
    }
}

fn source_whole(source: &str) -> Input {
    Input::SourceWhole {
        source: source.to_owned(),
    }
}

fn ack() -> Input {
    Input::Ack {
        service: S.to_owned(),
        by: "ann".into(),
        reason: "scaled in".into(),
    }
}

fn order(reason: &str, ms: i64, now: i64) -> Order {
    Order {
        by: "ann".into(),
        reason: reason.into(),
        expires_ms: now + ms,
    }
}

fn override_by(kind: OverrideKind, reason: &str, ms: i64, now: i64) -> Input {
    Input::Override {
        service: Some(S.to_owned()),
        kind,
        order: order(reason, ms, now),
    }
}

/// What a restart makes of it.
fn reloaded(protection: &Protection) -> Protection {
    let bytes = serde_json::to_vec(protection).expect("state is plain data");
    serde_json::from_slice(&bytes).expect("state reads back")
}
