use causeway_registry::api::Removed;
use causeway_registry::{Endpoint, Health, StoreKind};

use super::*;

fn instance(name: &str) -> Instance {
    Instance {
        id: format!("native:default/cart/{name}"),
        instance: name.into(),
        store: StoreKind::Native,
        layout: String::new(),
        health: Health::Live,
        endpoints: vec![Endpoint {
            scheme: String::new(),
            host: name.into(),
            port: 1,
        }],
        attributes: BTreeMap::new(),
        stamp: "1.1".into(),
    }
}

fn names(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| format!("i{n:02}")).collect()
}

fn list(range: std::ops::Range<usize>) -> ServiceList {
    ServiceList {
        namespace: "default".into(),
        service: "cart".into(),
        revision: "1.1".into(),
        instances: names(range).iter().map(|name| instance(name)).collect(),
        warming: false,
    }
}

fn gone(range: std::ops::Range<usize>, explicit: bool) -> ServiceDelta {
    let removed = |name: String| Removed {
        id: instance(&name).id,
        instance: name,
        explicit,
    };
    ServiceDelta {
        revision: "1.2".into(),
        changed: Vec::new(),
        removed: names(range).into_iter().map(removed).collect(),
    }
}

fn shown(view: &View) -> Vec<String> {
    view.snapshot(false)
        .instances
        .into_iter()
        .map(|instance| instance.instance)
        .collect()
}

/// A service of `had` instances of which `left` are still there.
fn check(threshold: u8, had: usize, left: usize, held: bool) {
    type Lose = fn(&mut View, usize, usize);
    let ways: [(&str, Lose); 3] = [
        ("missing in a list", |view, left, _| {
            view.apply_full(list(0..left), 1)
        }),
        ("expired at once", |view, left, had| {
            view.apply_delta(gone(left..had, false), 1)
        }),
        (
            "from disk, and missing in the first list",
            |view, left, had| {
                *view = View::new(view.threshold);
                view.restore(list(0..had).instances, 0);
                view.apply_full(list(0..left), 1);
            },
        ),
    ];
    for (way, lose) in ways {
        let mut view = View::new(threshold);
        view.apply_full(list(0..had), 0);
        lose(&mut view, left, had);
        let name = format!("{left} of {had} at {threshold} %, {way}");
        let expected = if held { had } else { left };
        assert_eq!(shown(&view), names(0..expected), "{name}");
        let snapshot = view.snapshot(false);
        assert_eq!(snapshot.protected, held, "{name}");
        assert_eq!(snapshot.held.len(), expected - left, "{name}");
        assert_eq!(view.is_waiting(), held, "{name}");
    }
    // Owners are believed whatever they leave.
    let mut view = View::new(threshold);
    view.apply_full(list(0..had), 0);
    view.apply_delta(gone(left..had, true), 1);
    assert_eq!(shown(&view), names(0..left));
    assert!(!view.snapshot(false).protected);
}

#[test]
fn a_loss_is_believed_up_to_the_threshold() {
    for (threshold, had, left, held) in [
        (40, 10, 6, false),
        (40, 10, 5, true),
        (40, 10, 0, true),
        (40, 5, 3, false),
        (40, 5, 2, true),
        (40, 3, 2, false),
        (40, 3, 1, true),
        (40, 2, 1, false),
        (40, 2, 0, true),
        (40, 1, 0, true),
        (0, 10, 9, true),
        (0, 10, 10, false),
        (100, 10, 1, false),
        (100, 10, 0, true),
    ] {
        check(threshold, had, left, held);
    }
}

#[test]
fn losses_add_up_until_the_service_is_settled() {
    let mut view = View::new(40);
    view.apply_full(list(0..10), 0);
    view.apply_delta(gone(7..10, false), 10);
    assert_eq!(shown(&view), names(0..7));
    view.apply_delta(gone(5..7, false), 20);
    assert_eq!(
        shown(&view),
        names(0..7),
        "5 of the 10 expected would be left"
    );

    let mut view = View::new(40);
    view.apply_full(list(0..10), 0);
    view.apply_delta(gone(7..10, false), 10);
    view.apply_delta(gone(5..7, false), 10 + SETTLED_MS);
    assert_eq!(
        shown(&view),
        names(0..5),
        "after 6 h seven are what is expected"
    );
}

#[test]
fn what_owners_took_away_is_not_expected_any_more() {
    let mut view = View::new(40);
    view.apply_full(list(0..10), 0);
    view.apply_delta(gone(5..10, true), 10);
    view.apply_delta(gone(3..5, false), 20);
    assert_eq!(shown(&view), names(0..3), "2 of 5 may go");
    view.apply_delta(gone(2..3, false), 30);
    assert_eq!(shown(&view), names(0..3), "3 of 5 may not");
}

#[test]
fn protection_ends_when_the_missing_return_or_time_is_up() {
    let half = || {
        let mut view = View::new(40);
        view.apply_full(list(0..10), 0);
        view.apply_full(list(0..5), 1_000);
        assert!(view.snapshot(false).protected);
        view
    };
    let pass = |view: &mut View, from: u64, to: u64| {
        for now in (from..=to).step_by(1_000) {
            view.handle_timeout(now);
        }
    };

    let mut all_back = half();
    all_back.apply_full(list(0..10), 2_000);
    assert_eq!(
        all_back.snapshot(false),
        View {
            known: all_back.known.clone(),
            ..View::new(40)
        }
        .snapshot(false)
    );

    // Eight of ten: calm, and after a minute of it the two are gone.
    let mut most_back = half();
    most_back.apply_full(list(0..8), 2_000);
    pass(&mut most_back, 2_000, 61_000);
    assert_eq!(shown(&most_back), names(0..10));
    pass(&mut most_back, 62_000, 62_000);
    assert_eq!(shown(&most_back), names(0..8));
    assert!(!most_back.snapshot(false).protected);

    // Calm must last: a relapse starts the minute anew.
    let mut relapse = half();
    relapse.apply_full(list(0..8), 2_000);
    pass(&mut relapse, 2_000, 50_000);
    relapse.apply_full(list(0..5), 50_000);
    relapse.apply_full(list(0..8), 51_000);
    pass(&mut relapse, 51_000, 110_000);
    assert_eq!(shown(&relapse), names(0..10));

    let mut never_back = half();
    pass(&mut never_back, 2_000, 600_000);
    assert_eq!(shown(&never_back), names(0..10));
    pass(&mut never_back, 601_000, 601_000);
    assert_eq!(shown(&never_back), names(0..5));
    // What is left is expected from now on.
    never_back.apply_full(list(0..3), 602_000);
    assert_eq!(shown(&never_back), names(0..3));

    let mut last = View::new(40);
    last.apply_full(list(0..1), 0);
    last.apply_full(list(0..0), 1_000);
    pass(&mut last, 2_000, 300_000);
    assert_eq!(shown(&last), names(0..1));
    pass(&mut last, 301_000, 301_000);
    assert_eq!(shown(&last), names(0..0));
}

#[test]
fn while_protected_owners_and_additions_are_believed() {
    let mut view = View::new(40);
    view.apply_full(list(0..10), 0);
    view.apply_full(list(0..5), 1);
    view.apply_delta(
        ServiceDelta {
            changed: vec![instance("new")],
            ..gone(0..2, true)
        },
        2,
    );
    let mut expected = names(2..10);
    expected.push("new".into());
    assert_eq!(shown(&view), expected);
    assert!(view.snapshot(false).protected);
}

#[test]
fn an_instance_is_there_while_one_of_its_registrations_is() {
    let mut view = View::new(40);
    let mut both = list(0..1);
    let twin = Instance {
        id: "etcd:cart/i00".into(),
        endpoints: Vec::new(),
        ..instance("i00")
    };
    both.instances.push(twin.clone());
    view.apply_full(both, 0);
    assert_eq!(
        view.snapshot(false).instances,
        [instance("i00")],
        "the one that says where"
    );
    view.apply_full(
        ServiceList {
            instances: vec![twin.clone()],
            warming: false,
            ..list(0..0)
        },
        1,
    );
    let snapshot = view.snapshot(false);
    assert_eq!(snapshot.instances, [twin]);
    assert!(!snapshot.protected, "no instance was lost");
    assert!(!view.is_waiting());
}

#[test]
fn a_registration_that_changes_its_identity_is_the_new_one() {
    let mut view = View::new(40);
    view.apply_full(list(0..1), 0);
    let changed = Instance {
        instance: "moved".into(),
        ..instance("i00")
    };
    view.apply_delta(
        ServiceDelta {
            changed: vec![changed],
            ..gone(0..1, true)
        },
        1,
    );
    assert_eq!(shown(&view), ["moved"]);
}
