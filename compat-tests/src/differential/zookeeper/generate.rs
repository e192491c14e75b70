//! Draws scripts: few paths, so that clients meet on them; every operation, and every bad one now and then.
//!
//! The generator knows of each client only whether it is connected, as far as that can be known beforehand.
//! What it leaves out, since no two runs of one server agree on it: removal of containers by the server's own
//! round (nothing under a container is ever deleted), TTLs that end within a run, several requests behind an
//! auth (its reply may overtake), createSession from a client (answered with a connect response in the middle
//! of replies), and writes by several clients at once whose outcome depends on the order.

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
    let registrations = shape.place == "registrations";
    let mut generator = Generator {
        // Not every script has every path: fewer make more collisions.
        paths: paths(&mut random, registrations),
        random,
        connected: vec![true; clients],
        registrations,
        expiries: usize::from(seed % 16 == 3),
    };
    let mut count = 0;
    while count < shape.length {
        let step = generator.step();
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

struct Generator {
    random: Random,
    paths: Vec<String>,
    connected: Vec<bool>,
    registrations: bool,
    /// Sessions that may still expire in this script: each takes seconds.
    expiries: usize,
}

impl Generator {
    fn step(&mut self) -> Step<Op> {
        let client = self.random.below(self.connected.len());
        if !self.connected[client] {
            return self.come_back(client);
        }
        if self.expiries > 0 && self.random.chance(1, 25) {
            self.expiries -= 1;
            self.connected[client] = false;
            return Step::one(client, Op::Expire);
        }
        match self.random.weighted(&[68, 14, 6, 4, 4, 2, 2]) {
            0 => Step::one(client, self.plain(client)),
            1 => self.pipeline(client),
            2 => self.round(),
            3 => self.link(client),
            4 => Step::one(client, self.auth()),
            5 => Step::one(client, self.odd(client)),
            _ => self.queue(client),
        }
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
        Step::one(client, op)
    }

    fn pipeline(&mut self, client: usize) -> Step<Op> {
        let count = 2 + self.random.below(5);
        let mut ops = Vec::new();
        for _ in 0..count {
            let op = self.plain(client);
            if !op.stands_alone() {
                ops.push((client, op));
            }
        }
        if ops.is_empty() {
            ops.push((client, Op::Ask(self.read())));
        }
        Step { ops }
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
            let request = match self.random.below(6) {
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
            for client in &clients {
                let path = format!("/own{client}");
                for _ in 0..1 + self.random.below(3) {
                    let request = match self.random.below(6) {
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
        let request = match self.random.below(11) {
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
        match self.random.weighted(&[20, 22, 10, 14, 5, 4, 4, 4, 3]) {
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
    use super::*;

    #[test]
    fn a_seed_is_one_script_and_its_text_comes_back() {
        for place in ["general", "registrations"] {
            for seed in 0..200 {
                let shape = Shape {
                    length: 120,
                    clients: 4,
                    place: place.to_string(),
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
        ] {
            assert!(drawn.contains(name), "{name} of {drawn:?}");
        }
    }
}
