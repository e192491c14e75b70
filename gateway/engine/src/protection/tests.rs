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
    let notice = rig.alarms(AlarmKind::ServiceEmptied);
    assert_eq!(notice.len(), 1);
    assert_eq!(notice[0].expected, 0);
    assert!(rig.protection.service(S).is_none(), "nothing is expected");
}
