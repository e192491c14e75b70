//! Draws scripts: few paths, so that clients meet on them; every operation, and every bad one now and then.
//!
//! The generator knows of each client only whether it is connected, as far as that can be known beforehand.
//! What it leaves out, since no two runs of one server agree on it: containers and TTL nodes that the server's own
//! round collects while something else goes on (there is a step for each that waits for it), several requests
//! behind an auth (its reply may overtake), createSession from a client (answered with a connect response in the
//! middle of replies), and writes by several clients at once whose outcome depends on the order. Among
//! registrations nothing of the other class is sent in one go with them: a request that goes to the legacy store
//! is answered later, and an event of a registration need not wait for it.

use std::collections::VecDeque;

use crate::differential::{Random, Script, Shape, Step};
use crate::raw::zookeeper::{Acl, Request, op, open_acl};

use super::op::{Op, SeenZxid};

/// The script of a seed.
pub(super) fn generate(seed: u64, shape: &Shape) -> Script<Op> {
    let mut random = Random::new(seed ^ 0x5a6f_6f4b);
    let clients = 1 + random
        .below(shape.clients.clamp(1, 8))
        .max(usize::from(shape.clients > 1));
    let mut script = Script::new("zookeeper", clients);
    script
        .settings
        .insert("place".to_string(), shape.place.clone());
    let setting = |key: &str| shape.settings.get(key).map_or("", String::as_str);
    let registrations = shape.place == "registrations";
    let mut generator = Generator {
        // Not every script has every path: fewer make more collisions.
        paths: paths(&mut random, registrations),
        random,
        connected: vec![true; clients],
        registrations,
        one_writer: setting("zxids") == "stats",
        watches: match (setting("release"), seed % 2) {
            ("3.8", 0) => Watches::OneShot,
            ("3.8", _) => Watches::Kept,
            _ => Watches::All,
        },
        // They take seconds.
        expiries: usize::from(seed % 16 == 3),
        collections: usize::from(seed % 16 == 9),
        planned: VecDeque::new(),
    };
    let mut count = 0;
    while count < shape.length {
        let mut step = generator.step();
        if generator.watches != Watches::All {
            step.ops.retain_mut(|(_, op)| generator.agreed(op));
            if step.ops.is_empty() {
                continue;
            }
        }
        count += step.ops.len();
        script.steps.push(step);
    }
    script
}

fn paths(random: &mut Random, registrations: bool) -> Vec<String> {
    let all: &[&str] = if registrations {
        &["/i1", "/i2", "/i3", "/10.0.0.1:80", "/i1/x", "/%41"]
    } else {
        &["/n1", "/n2", "/n3", "/n1/a", "/n1/b", "/n2/a", "/n1/a/deep"]
    };
    let mut chosen = vec![all[0].to_string()];
    for path in &all[1..] {
        if random.chance(2, 3) {
            chosen.push((*path).to_string());
        }
    }
    chosen
}

/// Containers, whose children are never deleted again.
const BOXES: &[&str] = &["/box1", "/box2"];

#[derive(Clone, Copy, PartialEq)]
enum Watches {
    All,
    OneShot,
    /// Those of addWatch, of one mode on each path.
    Kept,
}

struct Generator {
    random: Random,
    paths: Vec<String>,
    connected: Vec<bool>,
    registrations: bool,
    /// Of several clients at once only one may write something of its own: which zxid came first is not known where
    /// headers do not tell it.
    one_writer: bool,
    /// Which watches are drawn, where a server cannot keep those of several kinds apart.
    watches: Watches,
    /// Sessions that may still expire in this script.
    expiries: usize,
    /// Times that containers and TTL nodes may still be collected.
    collections: usize,
    /// What is done next, come what may.
    planned: VecDeque<Step<Op>>,
}

impl Generator {
    fn step(&mut self) -> Step<Op> {
        if let Some(step) = self.planned.pop_front() {
            return step;
        }
        let client = self.random.below(self.connected.len());
        if !self.connected[client] {
            return self.come_back(client);
        }
        if self.expiries > 0 && self.random.chance(1, 25) {
            self.expiries -= 1;
            self.connected[client] = false;
            return Step::one(client, self.random.pick(&[Op::Expire, Op::Hang]).clone());
        }
        if self.collections > 0 && self.random.chance(1, 25) {
            self.collections -= 1;
            return self.collect(client);
        }
        match self.random.weighted(&[64, 14, 7, 4, 4, 2, 2, 3, 2]) {
            0 => Step::one(client, self.plain(client)),
            1 => self.pipeline(client),
            2 => self.round(),
            3 => self.link(client),
            4 => Step::one(client, self.auth()),
            5 => Step::one(client, self.odd(client)),
            6 => self.queue(client),
            7 => self.watches_of_all_kinds(client),
            _ if self.registrations => self.pipeline(client),
            _ => self.quota(client),
        }
    }

    /// Takes out of an operation what servers of several releases do differently; whether anything is left.
    fn agreed(&self, op: &mut Op) -> bool {
        let everybody_reads = |acl: &mut Option<Vec<Acl>>| {
            let reads = |a: &Acl| a.scheme == "world" && a.id == "anyone" && a.perms & 1 != 0;
            if acl.as_ref().is_some_and(|acl| !acl.iter().any(reads)) {
                *acl = Some(open_acl());
            }
        };
        let Op::Ask(request) = op else {
            return true;
        };
        match request {
            Request::Create { acl, .. } | Request::SetAcl { acl, .. } => everybody_reads(acl),
            Request::Multi { parts, .. } => {
                for part in parts {
                    if let Request::Create { acl, .. } | Request::SetAcl { acl, .. } = part {
                        everybody_reads(acl);
                    }
                }
            }
            Request::Read { watch, .. } => *watch &= self.watches == Watches::OneShot,
            Request::AddWatch { path, mode } => {
                *mode = i32::from(path.len() % 2 == 0);
                return self.watches == Watches::Kept;
            }
            Request::SetWatches { persistent, .. } => {
                return self.watches == Watches::OneShot && persistent.is_none();
            }
            _ => {}
        }
        true
    }

    fn come_back(&mut self, client: usize) -> Step<Op> {
        let op = match self.random.weighted(&[30, 50, 6, 6, 4]) {
            0 => {
                self.connected[client] = true;
                Op::Connect {
                    // What is asked is granted within the server's bounds; short ones are of no use here.
                    timeout: *self.random.pick(&[30_000, 30_000, 60_000, 25_000]),
                    read_only: *self
                        .random
                        .pick(&[Some(false), Some(false), Some(true), None]),
                }
            }
            1 => {
                self.connected[client] = true;
                Op::Reattach {
                    right: true,
                    zxid: SeenZxid::True,
                }
            }
            2 => {
                self.connected[client] = true;
                Op::Reattach {
                    right: true,
                    zxid: SeenZxid::Zero,
                }
            }
            3 => Op::Reattach {
                right: false,
                zxid: SeenZxid::True,
            },
            _ => Op::Reattach {
                right: true,
                zxid: SeenZxid::Future,
            },
        };
        if self.connected[client] && self.random.chance(1, 2) {
            // As client libraries do.
            let watches = Op::Ask(self.set_watches());
            self.planned.push_back(Step::one(client, watches));
        }
        Step::one(client, op)
    }

    /// Several watches of one client on one node, of all kinds.
    fn watches_of_all_kinds(&mut self, client: usize) -> Step<Op> {
        let path = self.path_or_root();
        let count = 2 + self.random.below(4);
        let mut ops = Vec::new();
        for _ in 0..count {
            let read = |op| Request::Read {
                op,
                path: path.clone(),
                watch: true,
            };
            let request = match self.random.below(8) {
                0 => read(op::EXISTS),
                1 => read(op::GET_DATA),
                2 => read(op::GET_CHILDREN),
                3 => read(op::GET_CHILDREN2),
                4 => Request::Watches {
                    op: *self.random.pick(&[op::REMOVE_WATCHES, op::CHECK_WATCHES]),
                    path: path.clone(),
                    kind: *self.random.pick(&[1, 2, 3, 4, 5]),
                },
                mode => Request::AddWatch {
                    path: path.clone(),
                    mode: i32::from(mode > 5),
                },
            };
            ops.push((client, Op::Ask(request)));
        }
        Step { ops }
    }

    /// A container that loses its last child and a node whose time is up, and the server's round that collects them.
    fn collect(&mut self, client: usize) -> Step<Op> {
        let (container, child) = ("/gone".to_string(), "/gone/k".to_string());
        for other in 0..self.connected.len() {
            if self.connected[other] && self.random.chance(1, 2) {
                let read = |op, path: &str| Request::Read {
                    op,
                    path: path.to_string(),
                    watch: true,
                };
                let watch = match self.random.below(4) {
                    0 => read(op::GET_CHILDREN, "/"),
                    1 => read(op::EXISTS, "/gone"),
                    2 => read(op::EXISTS, "/brief"),
                    _ => Request::AddWatch {
                        path: "/".to_string(),
                        mode: self.random.below(2) as i32,
                    },
                };
                self.planned.push_back(Step::one(other, Op::Ask(watch)));
            }
        }
        let short = |path: &str| Request::Create {
            op: op::CREATE_TTL,
            path: path.to_string(),
            data: None,
            acl: Some(open_acl()),
            flags: 5,
            ttl: Some(300),
        };
        let requests = [
            Request::Create {
                op: op::CREATE_CONTAINER,
                path: container,
                data: self.data(),
                acl: Some(open_acl()),
                flags: 4,
                ttl: None,
            },
            create(op::CREATE, &child, None, open_acl(), 0),
            short("/kept"),
            create(op::CREATE, "/kept/k", None, open_acl(), 0),
        ];
        // One of them: nobody promised which goes first.
        let last = if self.random.chance(1, 2) {
            Request::Delete {
                path: child,
                version: -1,
            }
        } else {
            short("/brief")
        };
        let mut ops = requests.map(|r| (client, Op::Ask(r))).to_vec();
        ops.push((client, Op::Ask(last)));
        ops.push((client, Op::Wait(2500)));
        self.planned.push_back(Step { ops });
        let look = ["/gone", "/brief", "/kept", "/"].map(|path| Request::Read {
            op: op::GET_CHILDREN2,
            path: path.to_string(),
            watch: false,
        });
        self.planned.push_back(Step {
            ops: look.map(|r| (client, Op::Ask(r))).to_vec(),
        });
        Step::one(client, Op::Ask(self.read()))
    }

    /// Something about the quota of a node: its limits, what the server counts, a change below it.
    fn quota(&mut self, client: usize) -> Step<Op> {
        let path = self.path();
        let node = |name: &str| format!("~{path}{name}");
        let limits = b"count=3,bytes=100".to_vec();
        let request = match self.random.below(8) {
            0 | 1 => {
                // As `setquota` of ZooKeeper's shell does: parents, limits, counts.
                let mut ops = vec![(
                    client,
                    Op::Ask(create(op::CREATE, "~", None, open_acl(), 0)),
                )];
                let mut at = String::from("~");
                for segment in path.split('/').skip(1) {
                    at = format!("{at}/{segment}");
                    ops.push((
                        client,
                        Op::Ask(create(op::CREATE, &at, None, open_acl(), 0)),
                    ));
                }
                let mut names = [
                    ("/zookeeper_limits", limits),
                    ("/zookeeper_stats", b"count=0,bytes=0".to_vec()),
                ];
                if self.random.chance(1, 3) {
                    names.reverse();
                }
                for (name, data) in names {
                    let request = create(op::CREATE, &node(name), Some(data), open_acl(), 0);
                    ops.push((client, Op::Ask(request)));
                }
                return Step { ops };
            }
            2 => {
                let name = *self.random.pick(&["/zookeeper_limits", "/zookeeper_stats"]);
                Request::Delete {
                    path: node(name),
                    version: -1,
                }
            }
            3 => Request::SetData {
                path: node("/zookeeper_limits"),
                data: Some(limits),
                version: -1,
            },
            4 => Request::Read {
                op: op::GET_CHILDREN2,
                path: node(""),
                watch: self.random.chance(1, 2),
            },
            _ => Request::Read {
                op: op::GET_DATA,
                path: node("/zookeeper_stats"),
                watch: self.random.chance(1, 3),
            },
        };
        Step::one(client, Op::Ask(request))
    }

    fn pipeline(&mut self, client: usize) -> Step<Op> {
        let count = 2 + self.random.below(5);
        let mut ops = Vec::new();
        for _ in 0..count {
            let op = self.plain(client);
            let elsewhere = self.registrations && self.goes_elsewhere(&op);
            if !op.stands_alone() && !elsewhere {
                ops.push((client, op));
            }
        }
        if ops.is_empty() {
            ops.push((client, Op::Ask(self.read())));
        }
        Step { ops }
    }

    /// Whether a gateway asks its legacy store, where the other requests of the script are about registrations.
    fn goes_elsewhere(&self, op: &Op) -> bool {
        let text = op.to_string();
        text.starts_with("getEphemerals") || text.contains(" =")
    }

    /// A queue that loses its newest entry and gets another one: numbers are not given out twice. The delete
    /// hits only where its guess of the number is right.
    fn queue(&mut self, client: usize) -> Step<Op> {
        let queue = self.path();
        let entry = format!("{queue}/s-");
        let newest = format!("{entry}{:010}", self.random.below(4));
        let flags = *self.random.pick(&[2, 3]);
        let requests = [
            create(op::CREATE, &queue, None, open_acl(), 0),
            create(op::CREATE, &entry, None, open_acl(), flags),
            Request::Delete {
                path: newest,
                version: -1,
            },
            create(op::CREATE2, &entry, None, open_acl(), flags),
        ];
        Step {
            ops: requests.map(|r| (client, Op::Ask(r))).to_vec(),
        }
    }

    /// Several clients at once: all the same request, which one of them wins; or each in a corner of its own.
    fn round(&mut self) -> Step<Op> {
        let clients: Vec<usize> = (0..self.connected.len())
            .filter(|c| self.connected[*c])
            .collect();
        let mut ops = Vec::new();
        if self.random.chance(1, 2) {
            let path = self.path();
            let request = match self.random.below(8) {
                6 => Request::AddWatch {
                    path,
                    mode: self.random.below(2) as i32,
                },
                7 => Request::Multi {
                    op: op::MULTI,
                    parts: vec![
                        create(op::CREATE, &path, None, open_acl(), 0),
                        Request::SetData {
                            path: path.clone(),
                            data: self.data(),
                            version: 0,
                        },
                    ],
                },
                // Several watchers of one node: none may be passed over by what comes next.
                4 | 5 => Request::Read {
                    op: *self.random.pick(&[
                        op::GET_CHILDREN,
                        op::GET_CHILDREN2,
                        op::EXISTS,
                        op::GET_DATA,
                    ]),
                    path,
                    watch: true,
                },
                0 => create(op::CREATE, &path, Some(b"x".to_vec()), open_acl(), 0),
                1 => Request::Delete { path, version: -1 },
                2 => Request::SetData {
                    path,
                    data: Some(b"r".to_vec()),
                    version: self.version(),
                },
                _ => create(op::CREATE2, &path, None, open_acl(), 0),
            };
            ops.extend(
                clients
                    .iter()
                    .map(|client| (*client, Op::Ask(request.clone()))),
            );
        } else {
            let writer = *self.random.pick(&clients);
            for client in &clients {
                let path = format!("/own{client}");
                let reads = self.one_writer && *client != writer;
                for _ in 0..1 + self.random.below(5) {
                    let request = match self.random.below(10) {
                        _ if reads => Request::Read {
                            op: *self
                                .random
                                .pick(&[op::GET_CHILDREN2, op::EXISTS, op::GET_DATA]),
                            path: path.clone(),
                            watch: self.random.chance(1, 2),
                        },
                        6 => Request::Multi {
                            op: op::MULTI,
                            parts: vec![
                                create(op::CREATE, &path, None, open_acl(), 0),
                                create(op::CREATE2, &format!("{path}/s-"), None, open_acl(), 3),
                            ],
                        },
                        7 => create(op::CREATE2, &format!("{path}/s-"), None, open_acl(), 2),
                        8 => Request::Path {
                            op: *self.random.pick(&[op::SYNC, op::GET_ALL_CHILDREN_NUMBER]),
                            path: path.clone(),
                        },
                        9 => Request::Empty { op: op::PING },
                        0 | 1 => create(
                            op::CREATE,
                            &path,
                            Some(b"o".to_vec()),
                            open_acl(),
                            *self.random.pick(&[0, 1]),
                        ),
                        2 => Request::Delete {
                            path: path.clone(),
                            version: -1,
                        },
                        3 => Request::SetData {
                            path: path.clone(),
                            data: Some(b"p".to_vec()),
                            version: -1,
                        },
                        _ => Request::Read {
                            op: op::GET_DATA,
                            path: path.clone(),
                            watch: self.random.chance(1, 2),
                        },
                    };
                    ops.push((*client, Op::Ask(request)));
                }
            }
        }
        Step { ops }
    }

    fn link(&mut self, client: usize) -> Step<Op> {
        let op = match self.random.weighted(&[50, 20, 20, 10]) {
            0 => {
                self.connected[client] = false;
                Op::Drop
            }
            1 => Op::Reattach {
                right: true,
                zxid: SeenZxid::True,
            },
            2 => {
                self.connected[client] = false;
                Op::Close
            }
            // A stranger who does not know the password: the session's own connection goes on.
            _ if self.random.chance(1, 3) => Op::Reattach {
                right: false,
                zxid: SeenZxid::True,
            },
            _ => Op::Connect {
                timeout: 30_000,
                read_only: Some(false),
            },
        };
        Step::one(client, op)
    }

    fn auth(&mut self) -> Op {
        let word = *self.random.pick(&["u1:p1", "u2:p2", "u3:"]);
        Op::Ask(Request::Auth {
            kind: 0,
            scheme: "digest".to_string(),
            auth: Some(word.as_bytes().to_vec()),
        })
    }

    /// What no well-behaved client sends. Most of it ends the connection.
    fn odd(&mut self, client: usize) -> Op {
        let request = match self.random.below(13) {
            11 => Request::SetData {
                path: self.path(),
                // More than a server takes at once: the connection ends.
                data: Some(vec![b'x'; *self.random.pick(&[1_048_700, 1_100_000])]),
                version: -1,
            },
            12 => Request::Raw {
                op: op::SASL,
                body: vec![0, 0, 0, 3, b'x', b'y', b'z'],
            },
            0 => Request::Raw {
                op: 9999,
                body: vec![],
            },
            1 => Request::Raw {
                op: *self.random.pick(&[0, 10, 23, 108, -1, -2, 500]),
                body: vec![0; 8],
            },
            2 => Request::Auth {
                kind: 0,
                scheme: "nosuch".to_string(),
                auth: Some(b"x".to_vec()),
            },
            3 => Request::Check {
                path: self.path(),
                version: self.version(),
            },
            4 => Request::Auth {
                kind: 0,
                scheme: "digest".to_string(),
                auth: Some(b"nocolon".to_vec()),
            },
            5 => {
                // A record cut short.
                let request = self.plain_request(client);
                let body = request.encode();
                let length = self.random.below(body.len().max(1));
                Request::Raw {
                    op: request.op(),
                    body: body[..length].to_vec(),
                }
            }
            6 => {
                // Bytes behind the record, which servers do not look at.
                let request = Request::Read {
                    op: op::EXISTS,
                    path: "=/zookeeper/quota".to_string(),
                    watch: false,
                };
                let mut body = Request::Read {
                    op: op::EXISTS,
                    path: "/none".to_string(),
                    watch: false,
                }
                .encode();
                body.extend([1, 2, 3]);
                Request::Raw {
                    op: request.op(),
                    body,
                }
            }
            7 => Request::Path {
                op: op::DELETE_CONTAINER,
                path: self.path(),
            },
            8 => {
                // Something in a multi that does not belong there.
                let part = match self.random.below(4) {
                    0 => Request::Path {
                        op: op::SYNC,
                        path: self.path(),
                    },
                    1 => Request::Read {
                        op: op::EXISTS,
                        path: self.path(),
                        watch: false,
                    },
                    2 => Request::Read {
                        op: op::GET_DATA,
                        path: self.path(),
                        watch: false,
                    },
                    _ => Request::SetAcl {
                        path: self.path(),
                        acl: Some(open_acl()),
                        version: -1,
                    },
                };
                let first = create(op::CREATE, &self.path(), None, open_acl(), 0);
                return Op::Ask(Request::Multi {
                    op: op::MULTI,
                    parts: vec![first, part],
                });
            }
            9 => {
                let part = self.write(client);
                return Op::Ask(Request::Multi {
                    op: op::MULTI_READ,
                    parts: vec![part],
                });
            }
            _ => Request::Raw {
                op: op::RECONFIG,
                body: vec![255; 20],
            },
        };
        Op::Ask(request)
    }

    fn plain(&mut self, client: usize) -> Op {
        Op::Ask(self.plain_request(client))
    }

    fn plain_request(&mut self, client: usize) -> Request {
        match self.random.weighted(&[42, 30, 6, 8, 4, 3]) {
            0 => self.write(client),
            1 => self.read(),
            2 => {
                let count = 1 + self.random.below(4);
                Request::Multi {
                    op: op::MULTI,
                    parts: (0..count).map(|_| self.part(client)).collect(),
                }
            }
            3 => self.watch(),
            4 => self.set_watches(),
            _ => {
                let count = self.random.below(4);
                let parts = (0..count).map(|_| Request::Read {
                    op: *self.random.pick(&[op::GET_DATA, op::GET_CHILDREN]),
                    path: self.path(),
                    // A watch there has a script of its own.
                    watch: false,
                });
                Request::Multi {
                    op: op::MULTI_READ,
                    parts: parts.collect(),
                }
            }
        }
    }

    fn part(&mut self, client: usize) -> Request {
        if self.random.chance(1, 5) {
            return Request::Check {
                path: self.path(),
                version: self.version(),
            };
        }
        self.write(client)
    }

    fn write(&mut self, _client: usize) -> Request {
        match self.random.weighted(&[30, 16, 18, 4, 3, 3]) {
            0 => self.create(),
            1 => {
                let path = match self.random.below(12) {
                    0 => (*self.random.pick(BOXES)).to_string(),
                    1 => self.bad_path(),
                    2 => "/".to_string(),
                    3 => self.special_path(),
                    _ => self.path(),
                };
                Request::Delete {
                    path,
                    version: self.version(),
                }
            }
            2 => {
                let path = if self.random.chance(1, 25) {
                    self.bad_path()
                } else {
                    self.path_or_root()
                };
                Request::SetData {
                    path,
                    data: self.data(),
                    version: self.version(),
                }
            }
            3 => Request::SetAcl {
                path: self.path(),
                acl: self.acl(),
                version: *self.random.pick(&[-1, -1, 0, 1]),
            },
            4 => self.container(),
            _ => {
                // Not `flags=0 ttl=-1` nor `flags=1 ttl=-1`: each ends a real 3.8.0 and 3.9.5.
                let (flags, ttl) = *self.random.pick(&[
                    (5, 3_600_000),
                    (5, 86_400_000),
                    (6, 3_600_000),
                    (5, 0),
                    (6, -1),
                    (5, 1 << 45),
                    (0, 3_600_000),
                    (1, 3_600_000),
                ]);
                Request::Create {
                    op: op::CREATE_TTL,
                    path: self.path(),
                    data: self.data(),
                    acl: Some(open_acl()),
                    flags,
                    ttl: Some(ttl),
                }
            }
        }
    }

    fn create(&mut self) -> Request {
        let flags = match self.random.weighted(&[50, 22, 14, 10, 2]) {
            0 => 0,
            1 => 1,
            2 => 2,
            3 => 3,
            _ => *self.random.pick(&[4, 5, 6, 7, -1, 100]),
        };
        let sequential = flags == 2 || flags == 3;
        let path = match self
            .random
            .weighted(&[80, if sequential { 60 } else { 2 }, 5, 4])
        {
            0 => self.path(),
            1 => {
                let parent = *self.random.pick(&["", "/n1", "/n2", "/i1"]);
                match *self
                    .random
                    .pick(&["/s-", "/s-", "/", "/a.b_", "/lock-x-", "/0"])
                {
                    // The root's own sequence is the server's, not the run's.
                    "/" if parent.is_empty() => "/s-".to_string(),
                    name => format!("{parent}{name}"),
                }
            }
            2 => {
                let inside = format!("{}/k{}", self.random.pick(BOXES), self.random.below(2));
                return create(op::CREATE, &inside, self.data(), open_acl(), 0);
            }
            _ if !sequential && self.random.chance(1, 4) => self.special_path(),
            _ => self.bad_path(),
        };
        let number = *self.random.pick(&[op::CREATE, op::CREATE2]);
        Request::Create {
            op: number,
            path,
            data: self.data(),
            acl: self.acl(),
            flags,
            ttl: None,
        }
    }

    fn container(&mut self) -> Request {
        Request::Create {
            op: op::CREATE_CONTAINER,
            path: (*self.random.pick(BOXES)).to_string(),
            data: self.data(),
            acl: Some(open_acl()),
            flags: *self.random.pick(&[4, 4, 4, 0]),
            ttl: None,
        }
    }

    fn read(&mut self) -> Request {
        let watch = self.random.chance(1, 2);
        let path = match self.random.below(25) {
            0 => match self.bad_path() {
                // Servers take it for the top of the tree, which shows what went before.
                path if path == "=" => "=relative".to_string(),
                path => path,
            },
            1 => (*self.random.pick(BOXES)).to_string(),
            _ => self.path_or_root(),
        };
        match self.random.weighted(&[20, 22, 10, 14, 5, 4, 4, 4, 3, 2]) {
            9 => Request::Empty { op: op::PING },
            0 => Request::Read {
                op: op::EXISTS,
                path,
                watch,
            },
            1 => Request::Read {
                op: op::GET_DATA,
                path,
                watch,
            },
            2 => Request::Read {
                op: op::GET_CHILDREN,
                path,
                watch,
            },
            3 => Request::Read {
                op: op::GET_CHILDREN2,
                path,
                watch,
            },
            4 => Request::Path {
                op: op::GET_ACL,
                path,
            },
            5 => Request::Path { op: op::SYNC, path },
            6 => Request::Path {
                op: op::GET_EPHEMERALS,
                path,
            },
            7 => Request::Path {
                op: op::GET_ALL_CHILDREN_NUMBER,
                path,
            },
            _ => Request::Empty { op: op::WHO_AM_I },
        }
    }

    fn watch(&mut self) -> Request {
        let path = if self.random.chance(1, 30) {
            "=relative".to_string()
        } else {
            self.path_or_root()
        };
        match self.random.weighted(&[50, 40, 10]) {
            0 => Request::AddWatch {
                path,
                mode: *self.random.pick(&[0, 0, 1, 1, 1, 2, -1]),
            },
            1 => Request::Watches {
                op: op::REMOVE_WATCHES,
                path,
                kind: *self.random.pick(&[1, 2, 3, 3, 4, 5, 0, 9]),
            },
            _ => Request::Watches {
                op: op::CHECK_WATCHES,
                path,
                kind: *self.random.pick(&[1, 2, 3, 4, 5]),
            },
        }
    }

    fn set_watches(&mut self) -> Request {
        let mut list = |most: usize| -> Vec<String> {
            let count = self.random.below(most + 1);
            (0..count).map(|_| self.path_or_root()).collect()
        };
        let (data, exist, child) = (list(2), list(2), list(2));
        let persistent = (list(2), list(2));
        Request::SetWatches {
            zxid: *self.random.pick(&[-1, -1, -1, 0]),
            data,
            exist,
            child,
            persistent: self.random.chance(1, 3).then_some(persistent),
        }
    }

    fn path(&mut self) -> String {
        self.random.pick(&self.paths).clone()
    }

    fn path_or_root(&mut self) -> String {
        if self.random.chance(1, 6) {
            "/".to_string()
        } else {
            self.path()
        }
    }

    fn bad_path(&mut self) -> String {
        let bad = [
            "=",
            "=relative",
            "/n1/",
            "/n1//x",
            "/./x",
            "/n1/..",
            "/n1/\u{1}",
            "/n1/\u{7f}",
            "/n1/\u{e000}",
            "=//",
            "/n1/\u{fff0}",
            "/n1/ä",
            "/n1/\u{9f}",
        ];
        (*self.random.pick(&bad)).to_string()
    }

    /// Nodes that every server has. What they show depends on what went before, so that they are only created
    /// and deleted, which has to be refused.
    fn special_path(&mut self) -> String {
        let special = [
            "=/",
            "=/zookeeper",
            "=/zookeeper/quota",
            "=/zookeeper/config",
        ];
        (*self.random.pick(&special)).to_string()
    }

    fn version(&mut self) -> i32 {
        *self.random.pick(&[-1, -1, -1, 0, 0, 1, 2, -2])
    }

    fn data(&mut self) -> Option<Vec<u8>> {
        match self.random.weighted(&[60, 8, 8, 10, 2]) {
            0 => Some(self.random.pick(&["x", "y", "hello"]).as_bytes().to_vec()),
            1 => None,
            2 => Some(Vec::new()),
            3 if self.registrations => Some(
                br#"{"name":"s","id":"i1","address":"10.0.0.1","port":80,"sslPort":null,"payload":null,"registrationTimeUTC":1,"serviceType":"DYNAMIC","uriSpec":null}"#.to_vec(),
            ),
            3 => Some(vec![0, 255, b'z']),
            _ => Some(vec![b'x'; *self.random.pick(&[1000, 100_000, 900_000])]),
        }
    }

    fn acl(&mut self) -> Option<Vec<Acl>> {
        let entry = |perms: i32, scheme: &str, id: &str| Acl {
            perms,
            scheme: scheme.to_string(),
            id: id.to_string(),
        };
        // The digest of u1:p1.
        let one = "u1:fpT/y03U+EjItKZOSLGvjnJlyng=";
        match self.random.weighted(&[88, 4, 2, 2, 6]) {
            0 => Some(open_acl()),
            1 => Some(vec![entry(*self.random.pick(&[31, 1, 3]), "auth", "")]),
            2 => Some(Vec::new()),
            3 => None,
            _ => Some(match self.random.below(8) {
                0 => vec![entry(1, "world", "anyone")],
                1 => vec![entry(31, "digest", one)],
                2 => vec![entry(1, "world", "anyone"), entry(31, "digest", one)],
                3 => vec![entry(31, "ip", "127.0.0.1")],
                4 => vec![entry(31, "ip", "10.0.0.0/8"), entry(30, "world", "anyone")],
                5 => vec![entry(31, "world", "somebody")],
                6 => vec![entry(31, "nosuch", "x")],
                _ => vec![entry(31, "digest", "nocolon")],
            }),
        }
    }
}

fn create(number: i32, path: &str, data: Option<Vec<u8>>, acl: Vec<Acl>, flags: i32) -> Request {
    Request::Create {
        op: number,
        path: path.to_string(),
        data,
        acl: Some(acl),
        flags,
        ttl: None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_seed_is_one_script_and_its_text_comes_back() {
        for place in ["general", "registrations"] {
            for seed in 0..200 {
                let shape = Shape {
                    length: 120,
                    clients: 4,
                    place: place.to_string(),
                    settings: match seed % 4 {
                        2 => [("zxids".to_string(), "stats".to_string())].into(),
                        3 => [("release".to_string(), "3.8".to_string())].into(),
                        _ => BTreeMap::new(),
                    },
                };
                let script = generate(seed, &shape);
                assert_eq!(script, generate(seed, &shape));
                assert!(script.operations() >= 120);
                let text = script.print(ToString::to_string);
                let back = Script::parse(&text, str::parse::<Op>).unwrap();
                // Malformed requests are bytes in the text, whatever they were drawn as.
                assert_eq!(back.print(ToString::to_string), text);
                assert_eq!(back, script, "{text}");
            }
        }
    }

    #[test]
    fn simpler_variants_end() {
        for seed in 0..50 {
            for step in generate(seed, &Shape::default()).steps {
                for (_, op) in step.ops {
                    let (mut op, mut depth) = (op, 0);
                    while let Some(simpler) = op.simpler().into_iter().last() {
                        assert_ne!(simpler, op);
                        op = simpler;
                        depth += 1;
                        assert!(depth < 200, "{op}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_operation_is_drawn() {
        let mut drawn = std::collections::BTreeSet::new();
        for seed in 0..100 {
            for step in generate(seed, &Shape::default()).steps {
                for (_, op) in step.ops {
                    drawn.insert(op.to_string().split(' ').next().unwrap_or("").to_string());
                }
            }
        }
        for name in [
            "create",
            "create2",
            "createContainer",
            "createTTL",
            "delete",
            "exists",
            "getData",
            "setData",
            "getChildren",
            "getChildren2",
            "getACL",
            "setACL",
            "auth",
            "sync",
            "multi",
            "multiRead",
            "check",
            "addWatch",
            "removeWatches",
            "checkWatches",
            "getEphemerals",
            "getAllChildrenNumber",
            "whoAmI",
            "setWatches",
            "setWatches2",
            "raw",
            "connect",
            "reattach",
            "drop",
            "close",
            "expire",
            "hang",
            "wait",
            "ping",
        ] {
            assert!(drawn.contains(name), "{name} of {drawn:?}");
        }
    }
}
