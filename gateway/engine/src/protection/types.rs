//! The words of protection: what goes in, what comes out, what can be set.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// "layout-namespace/service": one service on its union view, whatever its cohorts.
pub type ServiceKey = String;
/// Text of an instance's identity. Several registrations may share one; protection counts instances.
pub type InstanceId = String;
/// Who says that something is there or gone: a store, or the member that holds the lease.
pub type SourceId = String;

/// Why an instance goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Its owner said so: closeSession, revoke, its own delete, a native deregister, a drain.
    Explicit,
    /// Its lease or session ran out.
    Expired,
    /// Somebody else deleted it.
    Foreign,
    /// It was only seen missing in a legacy store.
    Unknown,
}

/// What happened. All inputs of one [`handle_all`](super::Protection::handle_all) happen at the
/// same moment; their order does not matter, and of contradicting ones life beats absence and the
/// owner's removal beats life. A removal followed by a new registration takes two calls.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Input {
    /// The process started. Records known now are from before the start; `sources` each owe a
    /// whole snapshot before such a record of theirs may be removed implicitly. Sources that are
    /// not listed (the gateway's own memory) count as whole.
    Started {
        /// The sources that owe a whole snapshot.
        sources: BTreeSet<SourceId>,
    },
    /// How many gateways can probe instances (themselves included); 1 until told.
    Gateways {
        /// Their number.
        count: u32,
    },
    /// The member rule, or a missing majority, stops (or no longer stops) removal by expiry.
    ExpiryStopped {
        /// Whether it is stopped now. Leaving this state, every lease starts anew.
        stopped: bool,
    },
    /// Before the take-over protection only reports: the longest prefix of a service's key decides
    /// ("" is every service).
    ReportOnly {
        /// Prefix of service keys.
        prefix: String,
        /// Report only (true) or enforce (false).
        on: bool,
    },
    /// Operator: decide for a service (or, without one, for all) until it expires.
    Override {
        /// The service, or all.
        service: Option<ServiceKey>,
        /// What to do.
        kind: OverrideKind,
        /// Who, why, how long.
        order: Order,
    },
    /// Operator: the override ends now.
    OverrideEnd {
        /// The service, or the one for all.
        service: Option<ServiceKey>,
    },
    /// Operator: `causeway hold --explicit`: owners' removals are held as well, until it expires.
    HoldExplicit {
        /// The service, or all.
        service: Option<ServiceKey>,
        /// Who, why, how long.
        order: Order,
    },
    /// Operator: owners' removals pass again, held ones first.
    HoldExplicitEnd {
        /// The service, or the hold for all.
        service: Option<ServiceKey>,
    },
    /// A source cannot be reached, is resyncing or shrank: it may add, not remove.
    SourceFrozen {
        /// Which.
        source: SourceId,
        /// For the alarm.
        reason: String,
    },
    /// No frame from the owner for half the timeout; still visible.
    Silent {
        /// Service.
        service: ServiceKey,
        /// Instance.
        instance: InstanceId,
    },
    /// The holder's verdict on leases: their timeouts have passed.
    Expired {
        /// Service.
        service: ServiceKey,
        /// All that expired at this moment.
        instances: BTreeSet<InstanceId>,
        /// The holder (a member) that says so.
        source: SourceId,
    },
    /// The last registration of each was deleted by somebody else, or is only seen missing.
    Missing {
        /// Service.
        service: ServiceKey,
        /// All that are missing at this moment.
        instances: BTreeSet<InstanceId>,
        /// Where it is missing.
        source: SourceId,
        /// [`Cause::Foreign`] or [`Cause::Unknown`]; any other is taken as unknown.
        cause: Cause,
    },
    /// A gateway that reaches another instance of the service was refused a TCP connect here.
    Refused {
        /// Service.
        service: ServiceKey,
        /// Instance.
        instance: InstanceId,
        /// The gateway that tried.
        gateway: String,
    },
    /// Proof of life from a source: first seen, seen again, or back from silence.
    Present {
        /// Service.
        service: ServiceKey,
        /// Instance.
        instance: InstanceId,
        /// Which source shows it.
        source: SourceId,
        /// Timeout of its lease or session in milliseconds.
        ttl_ms: i64,
    },
    /// As `Present`, by an owner that registered with a gateway since the start: not subject to
    /// the start-up delay.
    Registered {
        /// Service.
        service: ServiceKey,
        /// Instance.
        instance: InstanceId,
        /// Which source took it.
        source: SourceId,
        /// Timeout of its lease or session in milliseconds.
        ttl_ms: i64,
    },
    /// The last registration was removed by its owner. The only explicit cause.
    Removed {
        /// Service.
        service: ServiceKey,
        /// Instance.
        instance: InstanceId,
    },
    /// A source gave a whole snapshot; all its `Present` and `Missing` came before or with this.
    SourceWhole {
        /// Which.
        source: SourceId,
    },
    /// Operator: what is alive now is what is expected.
    Ack {
        /// Service.
        service: ServiceKey,
        /// Who.
        by: String,
        /// Why.
        reason: String,
    },
    /// Time passed.
    Tick,
}

/// What an operator decides in place of the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OverrideKind {
    /// What is held now goes, and is not held again while the override lasts.
    ForceRemove,
    /// No implicit removal at all.
    ForceHold,
    /// The rule is off for the service; frozen sources still remove nothing.
    Off,
}

/// Who ordered something, why, and until when.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Order {
    /// The operator.
    pub by: String,
    /// Must not be empty.
    pub reason: String,
    /// Wall time in milliseconds; at most [`Settings::override_max_ms`] ahead.
    pub expires_ms: i64,
}

/// What the Core is to do. An instance that was reported lost gets `Remove`, or `Hold` and later
/// `Release` (it is back) or `Remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Output {
    /// Take these out of the view.
    Remove {
        /// Service.
        service: ServiceKey,
        /// Sorted.
        instances: Vec<InstanceId>,
        /// Why they went.
        cause: Cause,
    },
    /// Lost, but stays in the view without any watch event.
    Hold {
        /// Service.
        service: ServiceKey,
        /// Instance.
        instance: InstanceId,
        /// What holds it at first; [`super::Protection::service`] shows what holds it now.
        why: HoldReason,
    },
    /// A held instance lives again.
    Release {
        /// Service.
        service: ServiceKey,
        /// Instance.
        instance: InstanceId,
    },
    /// An operator's request was not accepted; nothing changed.
    Refuse {
        /// Service, where the request named one.
        service: Option<ServiceKey>,
        /// Why not, for the operator.
        why: RefuseReason,
    },
    /// For log, metric and webhook.
    Alarm(Alarm),
    /// The source brake: this source may add, not remove. The Core asks it for a whole snapshot
    /// and reports it as [`Input::SourceWhole`].
    FreezeSource {
        /// Which.
        source: SourceId,
        /// Instances it would have removed within the window.
        instances: u64,
        /// Services it would have touched within the window.
        services: u64,
    },
    /// Its whole snapshot stayed stable: it is believed again.
    ThawSource {
        /// Which.
        source: SourceId,
    },
}

/// What holds a lost instance in the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HoldReason {
    /// The service is protected.
    Protected,
    /// Protection ended; one more TTL of silence is due.
    Leftover,
    /// The service's last instance.
    LastInstance,
    /// The judgement waits for silent instances.
    WaitsForSilent,
    /// The source that reports the loss is frozen.
    SourceFrozen,
    /// From before the start, and its sources or its timeout are outstanding.
    StartUp,
    /// Removal by expiry is stopped (silent members, no majority).
    ExpiryStopped,
    /// An operator's `force-hold`.
    ForceHold,
    /// An operator's `hold --explicit`.
    HoldExplicit,
}

/// Why an operator's request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum RefuseReason {
    /// An order says why.
    #[error("a reason is required")]
    NoReason,
    /// An order names its author.
    #[error("the operator's name is required")]
    NoActor,
    /// An order ends in the future.
    #[error("the expiry has passed already")]
    ExpiryPassed,
    /// An order ends within the limit.
    #[error("the expiry is too far ahead")]
    ExpiryTooFar,
    /// Nothing is known of the service.
    #[error("no such service")]
    UnknownService,
    /// There is nothing to end.
    #[error("nothing of this kind is in force")]
    NotInForce,
}

/// One alarm: what, where, and the figures that an operator needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alarm {
    /// What.
    pub kind: AlarmKind,
    /// The service, unless it is about a source or the whole cluster.
    pub service: Option<ServiceKey>,
    /// When, in milliseconds.
    pub at_ms: i64,
    /// E.
    pub expected: u64,
    /// |V|.
    pub live: u64,
    /// |P|.
    pub published: u64,
    /// What is held; with `report_only` what would be.
    pub held: Vec<InstanceId>,
    /// Causes of the held ones, with their numbers.
    pub causes: BTreeMap<Cause, u64>,
    /// Who reported the losses.
    pub sources: BTreeSet<SourceId>,
    /// Oldest loss among the held, in milliseconds.
    pub oldest_loss_ms: Option<i64>,
    /// Nothing is enforced: L's verdict stands.
    pub report_only: bool,
    /// Operator and reason, or the source's trouble.
    pub note: String,
}

/// Kinds of alarms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AlarmKind {
    /// A service became protected.
    ProtectionEntered,
    /// It still is.
    ProtectionStill,
    /// It no longer is.
    ProtectionEnded,
    /// The last instance is lost and held.
    LastInstanceHeld,
    /// The last instance was removed after its hold.
    LastInstanceRemoved,
    /// Notice: all instances were removed by their owners.
    ServiceEmptied,
    /// Owners remove a large share of many services.
    MassExplicit,
    /// A source was frozen.
    SourceFrozen,
    /// A source is believed again.
    SourceThawed,
    /// Notice for the audit: an operator's override, hold or ack came into force.
    OrderSet,
    /// Notice for the audit: it ended or expired.
    OrderEnded,
}

/// The rule's settings for one service. Percentages are of the expected size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// Trip when more than this share would be gone (1 to 100).
    pub threshold_percent: u64,
    /// Remove the oldest losses up to the limit and hold the rest.
    pub greedy: bool,
    /// No exceptions for small services.
    pub strict: bool,
    /// E rises to the smallest |V| of this long.
    pub rise_ms: i64,
    /// The start of a service's life that does not count for E.
    pub settle_ms: i64,
    /// E falls to |V| after this long of an unchanged |V|.
    pub forget_ms: i64,
    /// The loss must be small for this long before protection ends.
    pub exit_ms: i64,
    /// How long a service's last instance is held.
    pub last_instance_ms: i64,
    /// Between two alarms about the same protected service.
    pub alarm_every_ms: i64,
}

impl Default for Rule {
    fn default() -> Self {
        Rule {
            threshold_percent: 40,
            greedy: false,
            strict: false,
            rise_ms: 600_000,
            settle_ms: 60_000,
            forget_ms: 6 * 3_600_000,
            exit_ms: 60_000,
            last_instance_ms: 300_000,
            alarm_every_ms: 300_000,
        }
    }
}

/// All settings of protection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// For services without their own.
    pub rule: Rule,
    /// A service's own rule, by its key.
    pub services: BTreeMap<ServiceKey, Rule>,
    /// Protection only reports (before the take-over); [`Input::ReportOnly`] changes it.
    pub report_only: bool,
    /// Source brake: share of all instances.
    pub brake_instances_percent: u64,
    /// Source brake: the share counts from so many instances up.
    pub brake_instances_from: u64,
    /// Source brake: share of services.
    pub brake_services_percent: u64,
    /// Source brake: the share counts from so many services up.
    pub brake_services_from: u64,
    /// Source brake, and "services that lose anything": within this long.
    pub brake_window_ms: i64,
    /// The longest that a whole snapshot is watched for stability, whatever the TTLs.
    pub stable_max_ms: i64,
    /// The last instance's hold counts only while fewer services than this share lose anything.
    pub last_instance_services_percent: u64,
    /// Explicit removals: share of a service.
    pub explicit_percent: u64,
    /// Explicit removals: share of the services.
    pub explicit_services_percent: u64,
    /// Explicit removals: within this long.
    pub explicit_window_ms: i64,
    /// An instance that registers again within this long after its owner removed it was never gone: clients
    /// such as Curator's discovery delete and create their node at each reconnect.
    pub return_ms: i64,
    /// Longest life of an operator's order.
    pub override_max_ms: i64,
    /// For a TTL that is unknown or not positive.
    pub default_ttl_ms: i64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            rule: Rule::default(),
            services: BTreeMap::new(),
            report_only: false,
            brake_instances_percent: 20,
            brake_instances_from: 20,
            brake_services_percent: 10,
            brake_services_from: 10,
            brake_window_ms: 60_000,
            stable_max_ms: 300_000,
            last_instance_services_percent: 10,
            explicit_percent: 40,
            explicit_services_percent: 10,
            explicit_window_ms: 60_000,
            return_ms: 10_000,
            override_max_ms: 24 * 3_600_000,
            default_ttl_ms: 30_000,
        }
    }
}

impl Settings {
    /// Every mistake at once, for `causeway check`.
    pub fn check(&self) -> Vec<String> {
        let mut errors = Vec::new();
        let rules = self
            .services
            .iter()
            .map(|(name, rule)| (format!("services.\"{name}\""), rule));
        for (name, rule) in std::iter::once(("rule".to_owned(), &self.rule)).chain(rules) {
            if !(1..=100).contains(&rule.threshold_percent) {
                errors.push(format!("{name}.threshold_percent must be 1 to 100"));
            }
            check_durations(&mut errors, &name, &rule.durations());
        }
        check_percents(&mut errors, &self.percents());
        check_durations(&mut errors, "protection", &self.durations());
        errors
    }

    /// The rule of one service.
    pub fn rule(&self, service: &str) -> &Rule {
        self.services.get(service).unwrap_or(&self.rule)
    }

    fn percents(&self) -> [(&'static str, u64); 5] {
        [
            ("brake_instances_percent", self.brake_instances_percent),
            ("brake_services_percent", self.brake_services_percent),
            (
                "last_instance_services_percent",
                self.last_instance_services_percent,
            ),
            ("explicit_percent", self.explicit_percent),
            ("explicit_services_percent", self.explicit_services_percent),
        ]
    }

    fn durations(&self) -> [(&'static str, i64); 6] {
        [
            ("brake_window_ms", self.brake_window_ms),
            ("stable_max_ms", self.stable_max_ms),
            ("explicit_window_ms", self.explicit_window_ms),
            ("return_ms", self.return_ms),
            ("override_max_ms", self.override_max_ms),
            ("default_ttl_ms", self.default_ttl_ms),
        ]
    }
}

impl Rule {
    fn durations(&self) -> [(&'static str, i64); 6] {
        [
            ("rise_ms", self.rise_ms),
            ("settle_ms", self.settle_ms),
            ("forget_ms", self.forget_ms),
            ("exit_ms", self.exit_ms),
            ("last_instance_ms", self.last_instance_ms),
            ("alarm_every_ms", self.alarm_every_ms),
        ]
    }
}

/// A year: beyond it a duration is a slip of the pen, and sums of times stay far from overflow.
const LONGEST_MS: i64 = 366 * 24 * 3_600_000;

fn check_durations(errors: &mut Vec<String>, owner: &str, durations: &[(&str, i64)]) {
    for (name, value) in durations {
        if !(1..=LONGEST_MS).contains(value) {
            errors.push(format!("{owner}.{name} must be 1 ms to a year"));
        }
    }
}

fn check_percents(errors: &mut Vec<String>, percents: &[(&str, u64)]) {
    for (name, value) in percents {
        if *value > 100 {
            errors.push(format!("protection.{name} must be 0 to 100"));
        }
    }
}

/// What is known of one service, for `services`, `explain`, metrics and the console.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceReport {
    /// Its key.
    pub service: ServiceKey,
    /// E.
    pub expected: u64,
    /// |P|: instances in the view.
    pub published: u64,
    /// |V|: those with proof of life within their timeout.
    pub live: u64,
    /// Those of V that have been silent for half their timeout.
    pub silent: Vec<InstanceId>,
    /// P without V.
    pub held: Vec<HeldReport>,
    /// Whether the service is protected.
    pub protected: bool,
    /// Since when, in milliseconds.
    pub protected_since_ms: Option<i64>,
    /// The judgement waits for silent instances until then at the latest.
    pub waits_until_ms: Option<i64>,
    /// What is left of the last instance's hold; it runs only while the rest is quiet.
    pub last_instance_left_ms: Option<i64>,
    /// Nothing is enforced: L's verdict stands.
    pub report_only: bool,
    /// What would be held if protection were enforced.
    pub would_hold: Vec<InstanceId>,
    /// The operator's override in force.
    pub override_kind: Option<OverrideKind>,
    /// The threshold in force, percent.
    pub threshold_percent: u64,
    /// Greedy mode.
    pub greedy: bool,
    /// Strict mode.
    pub strict: bool,
}

/// One held instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldReport {
    /// Which.
    pub instance: InstanceId,
    /// Why it would go.
    pub cause: Cause,
    /// Who reported it.
    pub source: SourceId,
    /// When, in milliseconds.
    pub since_ms: i64,
    /// What holds it now.
    pub why: HoldReason,
    /// Gateways that were refused a TCP connect.
    pub refused_by: BTreeSet<String>,
}
