//! Scripts out of a seed: few keys, few leases, so that operations meet.

use super::operation::{Call, Extra, Operation, StreamKind, StreamName};
use super::value::Value;
use crate::differential::random::Random;
use crate::differential::script::{Script, Step};

/// Keys of ordinary operations. The last ends with a zero byte: the successor of one before it.
const KEYS: [&[u8]; 6] = [b"$/a", b"$/b", b"$/c", b"$/c/d", b"$/", b"$/a\0"];

/// Where [`Generator::other`] begins to ask the store behind a gateway.
const FORWARDED: usize = 40;

/// The distance of a revision that is to come on any server.
const FAR: i64 = 1 << 50;

/// The name under which scripts lock, and the one under which they campaign.
const LOCK: &str = "$lock";
const ELECTION: &str = "$vote";

/// `length` operations of `clients` clients. The same state of `random` gives the same script. Unless `exact`, one of
/// the servers numbers with gaps: no revision then lies a known distance from another. Of `registrations` the numbers are
/// not those that Compact knows.
pub fn generate(
    mut random: Random,
    length: usize,
    clients: usize,
    exact: bool,
    registrations: bool,
) -> Script<Operation> {
    let coordinates = random.chance(1, 4);
    let odd = random.chance(1, 4);
    let faulty = random.chance(1, 3);
    let watched = !odd && random.chance(2, 3);
    let mut generator = Generator {
        random,
        marks: 0,
        granted: 0,
        watches: 0,
        expiries: 0,
        coordinates,
        odd,
        faulty,
        watched,
        in_txn: false,
        exact,
        registrations,
        script: Script::new("etcd", clients.max(1)),
    };
    for _ in 0..2 {
        if generator.chance(80) {
            generator.grant();
        }
    }
    while generator.script.steps.len() < length {
        generator.next();
    }
    generator.script.steps.truncate(length);
    generator.script
}

struct Generator {
    random: Random,
    /// Operations that have a mark: 1, 2, … up to this.
    marks: u32,
    granted: i64,
    watches: u32,
    expiries: u32,
    /// Whether this script locks and campaigns, and whether it sends unknown enum values and malformed
    /// messages: not all do, since where two servers part over those nothing behind it can be compared.
    coordinates: bool,
    odd: bool,
    /// Whether there are watches. Scripts without are faster by far. In odd ones a watch would show that the
    /// states part before the reply shows why.
    watched: bool,
    /// Whether what is drawn goes into a transaction.
    in_txn: bool,
    /// Whether revisions rise by one everywhere.
    exact: bool,
    registrations: bool,
    /// Whether requests are wrong more often, and in more than one way at once.
    faulty: bool,
    script: Script<Operation>,
}

/// Fields of a message under construction.
type Fields = Vec<(&'static str, Value)>;

fn message(fields: Fields) -> Value {
    Value::Message(
        fields
            .into_iter()
            .map(|(name, value)| (name.to_string(), value))
            .collect(),
    )
}

impl Generator {
    fn next(&mut self) {
        match self.random.below(1000) {
            0..210 => {
                let request = self.put();
                self.write("KV/Put", request);
            }
            210..370 => {
                let request = self.range();
                self.unary("KV/Range", request);
            }
            370..440 => {
                let request = self.delete_range();
                self.write("KV/DeleteRange", request);
            }
            440..580 => {
                self.in_txn = true;
                let request = self.txn(0);
                self.in_txn = false;
                self.write("KV/Txn", request);
            }
            580..605 if self.exact || !self.registrations => self.compact(),
            580..605 => self.grant(),
            605..665 => self.grant(),
            665..695 => {
                let request = message(vec![("ID", self.lease())]);
                if self.exact {
                    self.write("Lease/LeaseRevoke", request);
                } else {
                    // Its revision is none of those of keys.
                    self.unary("Lease/LeaseRevoke", request);
                }
            }
            695..725 => self.keep_alive(),
            725..760 => {
                let mut fields = vec![("ID", self.lease())];
                if self.chance(70) {
                    fields.push(("keys", Value::Bool(true)));
                }
                self.unary("Lease/LeaseTimeToLive", message(fields));
            }
            760..770 => self.unary("Lease/LeaseLeases", message(vec![])),
            770..875 => self.watch(),
            875..880 => self.expiry(),
            880..915 if self.coordinates => self.lock(),
            880..950 if self.coordinates => self.election(),
            880..915 => {
                let request = self.put();
                self.write("KV/Put", request);
            }
            915..950 => self.watch(),
            950..985 => self.other(),
            _ => self.outlandish(),
        }
    }

    // Requests of KV.

    fn put(&mut self) -> Value {
        let mut fields = vec![("key", self.key())];
        let fault = if self.faulty { 25 } else { 8 };
        let ignore_value = self.chance(fault);
        let ignore_lease = self.chance(fault);
        if !ignore_value || self.chance(15) {
            fields.push(("value", self.value()));
        }
        if self.chance(if ignore_lease { 15 } else { 30 }) {
            fields.push(("lease", self.lease()));
        }
        if self.chance(40) {
            fields.push(("prev_kv", Value::Bool(true)));
        }
        if ignore_value {
            fields.push(("ignore_value", Value::Bool(true)));
        }
        if ignore_lease {
            fields.push(("ignore_lease", Value::Bool(true)));
        }
        message(fields)
    }

    fn range(&mut self) -> Value {
        let mut fields = self.span();
        if self.chance(25) {
            fields.push(("limit", Value::Int(self.pick(&[1, 1, 2, 3, 100, -1]))));
        }
        if self.chance(30) {
            fields.push(("revision", self.revision()));
        }
        if self.chance(30) {
            let order = if self.odd && self.chance(4) {
                Value::Int(self.pick(&[3, 17, -1]))
            } else {
                self.word(&["ASCEND", "DESCEND", "DESCEND"])
            };
            fields.push(("sort_order", order));
        }
        if self.chance(30) {
            // None that is unknown: etcd before 3.6 dies of it (a nil sorter in applierV3backend.Range), and
            // in a transaction again whenever it replays its log.
            let target = self.word(&["VERSION", "CREATE", "MOD", "VALUE", "KEY"]);
            fields.push(("sort_target", target));
        }
        for (field, percent) in [("serializable", 10), ("keys_only", 12), ("count_only", 10)] {
            if self.chance(percent) {
                fields.push((field, Value::Bool(true)));
            }
        }
        if self.chance(15) {
            for field in [
                "min_mod_revision",
                "max_mod_revision",
                "min_create_revision",
                "max_create_revision",
            ] {
                if self.chance(35) {
                    fields.push((field, self.revision()));
                }
            }
        }
        message(fields)
    }

    fn delete_range(&mut self) -> Value {
        let mut fields = self.span();
        // etcd 3.4 and 3.7 do not see that a delete without an end overlaps a put in the same transaction
        // (v3rpc: checkIntervals). They end when such a put, behind the delete, ignores its value or lease:
        // `success=[{request_delete_range={key="$/" range_end="\x00"}} {request_put={key="$/a" ignore_value=true}}]`
        // with `$/a` there.
        for (name, value) in &mut fields {
            if self.in_txn && *name == "range_end" && *value == Value::text(b"\0") {
                *value = Value::text("$0");
            }
        }
        if self.chance(50) {
            fields.push(("prev_kv", Value::Bool(true)));
        }
        message(fields)
    }

    fn txn(&mut self, depth: u32) -> Value {
        let mut fields = Vec::new();
        let compares = self.pick(&[0, 0, 1, 1, 1, 2, 3]);
        let compares: Vec<_> = (0..compares).map(|_| self.compare()).collect();
        if !compares.is_empty() {
            fields.push(("compare", Value::List(compares)));
        }
        for branch in ["success", "failure"] {
            let count = self.pick(&[0, 1, 1, 2, 2, 3]);
            let mut used = Vec::new();
            let operations: Vec<_> = (0..count)
                .map(|_| self.request_op(depth, &mut used))
                .collect();
            if !operations.is_empty() {
                fields.push((branch, Value::List(operations)));
            }
        }
        message(fields)
    }

    fn request_op(&mut self, depth: u32, used: &mut Vec<Value>) -> Value {
        let operation = match self.random.below(100) {
            0..45 => {
                let mut put = self.put();
                // Most transactions should not fail for two puts on one key.
                for _ in 0..3 {
                    let key = put.field("key").cloned().unwrap_or(Value::Int(0));
                    if !used.contains(&key) || self.chance(if self.faulty { 25 } else { 5 }) {
                        used.push(key);
                        break;
                    }
                    put = self.put();
                }
                ("request_put", put)
            }
            45..70 => ("request_range", self.range()),
            70..85 => ("request_delete_range", self.delete_range()),
            85..97 if depth < 2 => ("request_txn", self.txn(depth + 1)),
            97..98 => return message(vec![]),
            _ => ("request_range", self.range()),
        };
        message(vec![operation])
    }

    fn compare(&mut self) -> Value {
        let mut fields = Vec::new();
        let result = if self.odd && self.chance(3) {
            Value::Int(9)
        } else {
            self.word(&["EQUAL", "EQUAL", "GREATER", "LESS", "NOT_EQUAL"])
        };
        fields.push(("result", result));
        let (target, union, operand) = match self.random.below(5) {
            0 => ("VERSION", "version", Value::Int(self.pick(&[0, 1, 2]))),
            1 => ("CREATE", "create_revision", self.revision()),
            2 => ("MOD", "mod_revision", self.revision()),
            3 => ("VALUE", "value", self.value()),
            _ => ("LEASE", "lease", self.lease()),
        };
        let target = if self.odd && self.chance(3) {
            Value::Int(9)
        } else if self.chance(3) {
            // The kind of operand then does not fit.
            self.word(&["VERSION", "CREATE", "MOD", "VALUE", "LEASE"])
        } else {
            Value::Word(target.to_string())
        };
        fields.push(("target", target));
        fields.push(("key", self.key()));
        if !self.chance(4) {
            fields.push((union, operand));
        }
        if self.chance(20) {
            fields.push(("range_end", self.range_end()));
        }
        message(fields)
    }

    fn compact(&mut self) {
        let mut fields = vec![("revision", self.revision())];
        if self.chance(30) {
            fields.push(("physical", Value::Bool(true)));
        }
        self.write("KV/Compact", message(fields));
    }

    // Leases.

    fn grant(&mut self) {
        let mut fields = Vec::new();
        // Far enough apart that the order of expiry is that of these numbers.
        let ttl = self.pick(&[60, 200, 500, 1000, 3600]);
        let ttl = if self.chance(6) {
            self.pick(&[9_000_000_000, 9_000_000_001])
        } else {
            ttl
        };
        fields.push(("TTL", Value::Int(ttl)));
        if self.chance(75) {
            self.granted = self.granted % 3 + 1;
            let number = if self.chance(10) {
                -1
            } else if self.chance(15) {
                i64::from(self.pick(&[1, 2, 3]))
            } else {
                self.granted
            };
            fields.push(("ID", Value::Lease(number)));
        }
        self.unary("Lease/LeaseGrant", message(fields));
    }

    fn keep_alive(&mut self) {
        let client = self.client();
        let stream = StreamName {
            kind: StreamKind::KeepAlive,
            number: 0,
        };
        if self.chance(15) {
            self.push(client, 0, Call::Close(stream));
            return;
        }
        let count = self.pick(&[1, 1, 2, 3]);
        let requests = (0..count)
            .map(|_| message(vec![("ID", self.lease())]))
            .collect();
        self.push(client, 0, Call::Send { stream, requests });
    }

    /// A lease that runs out while somebody looks.
    fn expiry(&mut self) {
        self.expiries += 1;
        if self.expiries > 1 {
            return;
        }
        let ttl = self.pick(&[0, 1, 1, 2, -5]);
        let mut fields = vec![("ID", Value::Lease(7))];
        if ttl != 0 {
            fields.insert(0, ("TTL", Value::Int(ttl)));
        }
        self.unary("Lease/LeaseGrant", message(fields));
        for _ in 0..self.pick(&[1, 2]) {
            let key = self.key();
            let put = message(vec![
                ("key", key),
                ("value", Value::text("short")),
                ("lease", Value::Lease(7)),
            ]);
            self.write("KV/Put", put);
        }
        let client = self.client();
        self.push(client, 0, Call::Sleep(4000));
        self.unary(
            "Lease/LeaseTimeToLive",
            message(vec![("ID", Value::Lease(7)), ("keys", Value::Bool(true))]),
        );
        let all = message(vec![
            ("key", Value::text("$/")),
            ("range_end", Value::text("$0")),
        ]);
        self.unary("KV/Range", all);
    }

    // Watches.

    fn watch(&mut self) {
        if !self.watched {
            let request = self.put();
            self.write("KV/Put", request);
            return;
        }
        let client = self.client();
        let stream = StreamName {
            kind: StreamKind::Watch,
            number: u8::from(self.chance(15)),
        };
        let call = match self.random.below(100) {
            0..70 => {
                // Every watch makes each later step cost a round trip.
                self.watches += 1;
                if self.watches > 8 {
                    return;
                }
                let count = self.pick(&[1, 1, 1, 2, 3]);
                let requests = (0..count).map(|_| self.create_watch()).collect();
                Call::Send { stream, requests }
            }
            70..83 => {
                let id = Value::Int(self.pick(&[0, 0, 1, 1, 2, 3, 99, -1]));
                let cancel = message(vec![("watch_id", id)]);
                Call::Send {
                    stream,
                    requests: vec![message(vec![("cancel_request", cancel)])],
                }
            }
            83..93 => Call::Send {
                stream,
                requests: vec![message(vec![("progress_request", message(vec![]))])],
            },
            93..95 => Call::Send {
                stream,
                requests: vec![message(vec![])],
            },
            95..98 => Call::Close(stream),
            _ => Call::Drop(stream),
        };
        self.push(client, 0, call);
    }

    fn create_watch(&mut self) -> Value {
        let mut fields = self.span();
        if self.chance(35) {
            let start = self.revision();
            // Where revisions have gaps, one from above is taken for another server's.
            if self.exact || !matches!(start, Value::Revision(_, FAR)) {
                fields.push(("start_revision", start));
            }
        }
        if self.chance(10) {
            fields.push(("progress_notify", Value::Bool(true)));
        }
        if self.chance(20) {
            let filters = match self.random.below(10) {
                0..4 => vec![Value::Word("NOPUT".into())],
                4..8 => vec![Value::Word("NODELETE".into())],
                8 => vec![
                    Value::Word("NOPUT".into()),
                    Value::Word("NODELETE".into()),
                    Value::Word("NOPUT".into()),
                ],
                _ => vec![Value::Int(7)],
            };
            fields.push(("filters", Value::List(filters)));
        }
        if self.chance(45) {
            fields.push(("prev_kv", Value::Bool(true)));
        }
        if self.chance(25) {
            fields.push(("watch_id", Value::Int(self.pick(&[1, 2, 3, 3, 7, -1, -5]))));
        }
        if self.chance(10) {
            fields.push(("fragment", Value::Bool(true)));
        }
        message(vec![("create_request", message(fields))])
    }

    // Locks and elections.

    fn lock(&mut self) {
        if self.chance(55) {
            let mut fields = vec![("name", Value::text(LOCK))];
            if !self.chance(10) {
                fields.push(("lease", self.lease()));
            }
            self.write("Lock/Lock", message(fields));
        } else {
            let key = format!("{LOCK}/{{{}}}", self.lease());
            self.write("Lock/Unlock", message(vec![("key", Value::text(key))]));
        }
    }

    fn election(&mut self) {
        match self.random.below(100) {
            0..40 => {
                let mut fields = vec![("name", Value::text(ELECTION))];
                if !self.chance(10) {
                    fields.push(("lease", self.lease()));
                }
                if !self.chance(10) {
                    fields.push(("value", self.value()));
                }
                self.write("Election/Campaign", message(fields));
            }
            40..55 => {
                let request = message(vec![("name", Value::text(ELECTION))]);
                self.unary("Election/Leader", request);
            }
            55..70 => {
                let mut fields = vec![];
                if !self.chance(5) {
                    fields.push(("leader", self.leader()));
                }
                fields.push(("value", self.value()));
                self.write("Election/Proclaim", message(fields));
            }
            70..90 => {
                let mut fields = vec![];
                if !self.chance(5) {
                    fields.push(("leader", self.leader()));
                }
                self.write("Election/Resign", message(fields));
            }
            _ => {
                let client = self.client();
                let stream = StreamName {
                    kind: StreamKind::Observe,
                    number: u8::from(self.chance(50)),
                };
                let requests = vec![message(vec![("name", Value::text(ELECTION))])];
                let opened = self.operations().any(|(who, operation)| {
                    *who == client
                        && matches!(&operation.call, Call::Send { stream: other, .. } if *other == stream)
                });
                let call = if opened {
                    Call::Drop(stream)
                } else {
                    Call::Send { stream, requests }
                };
                self.push(client, 0, call);
            }
        }
    }

    fn leader(&mut self) -> Value {
        // The key of the last campaign more often than not.
        let campaign = self
            .operations()
            .rev()
            .find_map(|(_, operation)| match &operation.call {
                Call::Unary {
                    method, request, ..
                } if method == "Election/Campaign" => {
                    Some((operation.mark, request.field("lease")?.clone()))
                }
                _ => None,
            });
        let (revision, lease) = match campaign {
            Some((mark, lease)) if self.chance(85) => (Value::Revision(mark, 0), lease),
            _ => (self.revision(), self.lease()),
        };
        message(vec![
            ("name", Value::text(ELECTION)),
            ("key", Value::text(format!("{ELECTION}/{{{lease}}}"))),
            ("rev", revision),
            ("lease", lease),
        ])
    }

    // Everything else.

    fn other(&mut self) {
        let nothing = message(vec![]);
        let among = if self.exact { 100 } else { FORWARDED };
        match self.random.below(among) {
            0..20 => {
                let linearizable = message(vec![("linearizable", Value::Bool(true))]);
                let request = if self.chance(50) {
                    linearizable
                } else {
                    nothing
                };
                self.unary("Cluster/MemberList", request);
            }
            20..40 => self.unary("Maintenance/Status", nothing),
            // From here on what another store answers under numbers of its own, where there is one.
            FORWARDED..55 => {
                let mut fields = vec![("name", Value::text("nobody"))];
                if self.chance(50) {
                    fields.push(("password", Value::text("secret")));
                }
                if self.chance(20) {
                    fields.clear();
                }
                self.unary("Auth/Authenticate", message(fields));
            }
            55..60 => self.unary("Auth/AuthStatus", nothing),
            60..63 => self.unary("Maintenance/Alarm", nothing),
            63..65 => {
                let fields = vec![
                    ("action", Value::Word("DEACTIVATE".into())),
                    ("alarm", Value::Word("NOSPACE".into())),
                ];
                self.unary("Maintenance/Alarm", message(fields));
            }
            65..69 => {
                let method = self.pick(&[
                    "Auth/UserList",
                    "Auth/RoleList",
                    "Auth/AuthDisable",
                    "Auth/AuthEnable",
                ]);
                self.unary(method, nothing);
            }
            69..80 => {
                let client = self.client();
                let method = self.pick(&[
                    "KV/Nope",
                    "Lease/Nope",
                    "no.Service/Range",
                    "KV/Range/more",
                    "Lock/Nope",
                    "grpc.health.v1.Health/Check",
                    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                ]);
                let call = Call::Raw {
                    method: method.to_string(),
                    bytes: vec![],
                };
                self.push(client, 0, call);
            }
            80..90 => {
                let request = self.range();
                let client = self.client();
                let extra = if self.chance(50) {
                    Extra::HasLeader
                } else {
                    Extra::Token
                };
                let call = Call::Unary {
                    method: "KV/Range".to_string(),
                    extra: Some(extra),
                    request,
                };
                self.push(client, 0, call);
            }
            90..95 => self.unary("Maintenance/Defragment", nothing),
            95.. if !self.odd => self.unary("Cluster/MemberList", nothing),
            _ => {
                let client = self.client();
                let method = self.pick(&["KV/Put", "KV/Range", "KV/Txn", "Lease/LeaseGrant"]);
                let bytes = self.pick(&[&b"\xff"[..], b"\x0a\x7fx", b"\x08\x01"]);
                let call = Call::Raw {
                    method: method.to_string(),
                    bytes: bytes.to_vec(),
                };
                self.push(client, 0, call);
            }
        }
    }

    /// What hardly anybody sends.
    fn outlandish(&mut self) {
        let unknown = Value::Int(4242);
        let read = message(vec![("request_range", message(vec![("key", self.key())]))]);
        match self.random.below(9) {
            8 => self.large(),
            0 => {
                let count = self.pick(&[128, 129]);
                let txn = message(vec![("success", Value::List(vec![read; count]))]);
                self.write("KV/Txn", txn);
            }
            1 => {
                let compare = message(vec![
                    ("result", Value::Word("EQUAL".into())),
                    ("target", Value::Word("VERSION".into())),
                    ("key", self.key()),
                ]);
                let txn = message(vec![("compare", Value::List(vec![compare; 129]))]);
                self.write("KV/Txn", txn);
            }
            2 => {
                let inner = message(vec![("success", Value::List(vec![read; 100]))]);
                let inner = message(vec![("request_txn", inner)]);
                let txn = message(vec![("success", Value::List(vec![inner; 2]))]);
                self.write("KV/Txn", txn);
            }
            3 => {
                let length = self.pick(&[1_572_864, 1_572_000, 1_600_000, 2_100_000]);
                let put = message(vec![
                    ("key", self.key()),
                    ("value", Value::text(format!("{{x*{length}}}"))),
                ]);
                self.write("KV/Put", put);
            }
            4 => self.unary("Cluster/MemberRemove", message(vec![("ID", unknown)])),
            5 => self.unary("Cluster/MemberPromote", message(vec![("ID", unknown)])),
            6 => {
                let fields = vec![
                    ("ID", unknown),
                    (
                        "peerURLs",
                        Value::List(vec![Value::text("http://127.0.0.1:1")]),
                    ),
                ];
                self.unary("Cluster/MemberUpdate", message(fields));
            }
            _ => self.unary(
                "Maintenance/MoveLeader",
                message(vec![("targetID", unknown)]),
            ),
        }
    }

    /// Events that do not fit into one message of usual size, with what was there before still less.
    fn large(&mut self) {
        let client = self.client();
        let stream = StreamName {
            kind: StreamKind::Watch,
            number: 2,
        };
        if !self.watched {
            return;
        }
        let mut create = vec![("key", Value::text("$/")), ("range_end", Value::text("$0"))];
        if self.chance(60) {
            create.push(("prev_kv", Value::Bool(true)));
        }
        if self.chance(60) {
            create.push(("fragment", Value::Bool(true)));
        }
        let requests = vec![message(vec![("create_request", message(create))])];
        self.push(client, 0, Call::Send { stream, requests });
        for letter in ["x", "y"] {
            let puts = [&b"$/a"[..], b"$/b"].map(|key| {
                let put = vec![
                    ("key", Value::text(key)),
                    ("value", Value::text(format!("{{{letter}*700000}}"))),
                ];
                message(vec![("request_put", message(put))])
            });
            let txn = message(vec![("success", Value::List(puts.to_vec()))]);
            self.write("KV/Txn", txn);
        }
        self.push(client, 0, Call::Drop(stream));
    }

    // Parts.

    fn key(&mut self) -> Value {
        if self.chance(if self.faulty { 12 } else { 2 }) {
            return Value::text(self.pick(&[&b""[..], b"", b"$/none", b"$/\xff\xfe"]));
        }
        Value::text(self.pick(&KEYS))
    }

    /// A key and perhaps an end.
    fn span(&mut self) -> Fields {
        if self.chance(30) {
            return vec![("key", Value::text("$/")), ("range_end", Value::text("$0"))];
        }
        let mut fields = vec![("key", self.key())];
        if self.chance(40) {
            fields.push(("range_end", self.range_end()));
        }
        fields
    }

    fn range_end(&mut self) -> Value {
        let ends: [&[u8]; 8] = [
            b"$0", b"$/b", b"$/c", b"$/d", b"\0", b"$/a\0", b"$/a", b"$/",
        ];
        let end = self.pick(&ends);
        // All keys there are would be those of two stores.
        Value::text(if self.exact || end != b"\0" {
            end
        } else {
            b"$0"
        })
    }

    fn value(&mut self) -> Value {
        let values: [&[u8]; 5] = [b"1", b"2", b"3", b"", b"\xff\x00v"];
        Value::text(self.pick(&values))
    }

    /// A lease that was probably granted; at times one that was not, and none.
    fn lease(&mut self) -> Value {
        let usual = if self.faulty { 40 } else { 0 };
        match self.random.below(100) + self.random.below(usual + 1) {
            0..65 => Value::Lease(self.pick(&[1, 2, 3]).min(self.granted.max(1))),
            65..80 => Value::Chosen(self.pick(&[1, 2])),
            80..86 => Value::Lease(-1),
            86..90 => Value::Lease(9),
            90..92 => Value::Int(-1),
            92..94 => Value::Int(77),
            _ => Value::Int(0),
        }
    }

    /// A revision near one that an operation got; at times none, a negative one, or one to come.
    fn revision(&mut self) -> Value {
        let to_come = if self.faulty { 25 } else { 14 };
        match self.random.below(100) {
            0..5 => Value::Int(0),
            5..9 => Value::Int(self.pick(&[-1, -7])),
            at if at < to_come && self.exact => Value::Revision(0, self.pick(&[0, 1, 1000])),
            // Far above whatever a server with gaps comes to; the first one alone is at no distance.
            at if at < to_come => Value::Revision(0, self.pick(&[0, 0, FAR])),
            _ => {
                let mark = match self.marks {
                    0 => 0,
                    count => 1 + self.random.below(count as usize) as u32,
                };
                let distance = self.pick(&[-1, 0, 0, 0, 1, 2]);
                Value::Revision(
                    mark,
                    if self.exact {
                        distance
                    } else {
                        distance.min(0)
                    },
                )
            }
        }
    }

    fn word(&mut self, words: &[&str]) -> Value {
        Value::Word(self.pick(words).to_string())
    }

    fn unary(&mut self, method: &str, request: Value) {
        let client = self.client();
        let call = Call::Unary {
            method: method.to_string(),
            extra: None,
            request,
        };
        self.push(client, 0, call);
    }

    fn write(&mut self, method: &str, request: Value) {
        let client = self.client();
        let call = Call::Unary {
            method: method.to_string(),
            extra: None,
            request,
        };
        self.marks += 1;
        self.push(client, self.marks, call);
    }

    fn push(&mut self, client: usize, mark: u32, call: Call) {
        let step = Step::one(client, Operation { mark, call });
        self.script.steps.push(step);
    }

    fn operations(&self) -> impl DoubleEndedIterator<Item = &(usize, Operation)> {
        self.script.steps.iter().flat_map(|step| &step.ops)
    }

    fn client(&mut self) -> usize {
        self.random.below(self.script.clients)
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        *self.random.pick(choices)
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.random.chance(percent, 100)
    }
}
