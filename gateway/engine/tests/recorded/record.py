#!/usr/bin/env python3
"""Records what a real ZooKeeper answers to seeded random requests, one JSON object a line.

    record.py HOST:PORT SEED COUNT > zookeeper-3.8.jsonl

The server must be fresh and have zookeeper.extendedTypesEnabled=true. Speaks the wire protocol
itself, since a client library would normalise paths and regroup events. Two connections send
requests and hold watches, the first (one-shot) and the second (persistent, recursive); after
each request both are drained. Every node stays readable by all: 3.8 does not guard exists and
events by READ as later releases do.
"""
import json, random, socket, struct, sys

EVENTS = {1: "NodeCreated", 2: "NodeDeleted", 3: "NodeDataChanged", 4: "NodeChildrenChanged"}
ERRORS = {-2: "NotTried", -8: "BadArguments", -101: "NoNode", -102: "NoAuth", -103: "BadVersion",
          -108: "NoChildrenForEphemerals", -110: "NodeExists", -111: "NotEmpty", -114: "InvalidAcl"}


def text(s):
    return buf(s.encode())


def buf(b):
    return struct.pack(">i", -1) if b is None else struct.pack(">i", len(b)) + b


def acls(acl):
    return struct.pack(">i", len(acl)) + b"".join(
        struct.pack(">i", p) + text(s) + text(i) for p, s, i in acl)


def texts(paths):
    return struct.pack(">i", len(paths)) + b"".join(map(text, paths))


class Reader:
    def __init__(self, b):
        self.b, self.at = b, 0

    def take(self, form):
        value = struct.unpack_from(form, self.b, self.at)
        self.at += struct.calcsize(form)
        return value if len(value) > 1 else value[0]

    def buf(self):
        n = self.take(">i")
        if n < 0:
            return None
        self.at += n
        return self.b[self.at - n:self.at]

    def text(self):
        return self.buf().decode()

    def stat(self):
        """czxid mzxid ctime mtime version cversion aversion owner data_length num_children pzxid"""
        return self.take(">qqqqiiiqiiq")


class Connection:
    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.s = socket.create_connection((host, int(port)))
        self.xid, self.events = 0, []
        self.send(struct.pack(">iqiq", 0, 0, 30000, 0) + buf(b"\0" * 16) + b"\0")
        r = Reader(self.receive())
        r.take(">ii")
        self.session = r.take(">q")

    def send(self, b):
        self.s.sendall(struct.pack(">i", len(b)) + b)

    def receive(self):
        def exactly(n):
            b = b""
            while len(b) < n:
                more = self.s.recv(n - len(b))
                if not more:
                    raise EOFError
                b += more
            return b
        return exactly(struct.unpack(">i", exactly(4))[0])

    def call(self, op, body):
        """(zxid, error, Reader); events met on the way are kept."""
        self.xid += 1
        self.send(struct.pack(">ii", self.xid, op) + body)
        while True:
            r = Reader(self.receive())
            xid, zxid, error = r.take(">iqi")
            if xid == -1:
                kind, _ = r.take(">ii")
                self.events.append([EVENTS[kind], r.text()])
            else:
                assert xid == self.xid, (xid, self.xid)
                return zxid, error, r

    def auth(self, user):
        self.send(struct.pack(">iii", -4, 100, 0) + text("digest") + text(user))
        assert Reader(self.receive()).take(">iqi")[2] == 0


FLAGS = {"Persistent": 0, "Ephemeral": 1, "PersistentSequential": 2, "EphemeralSequential": 3,
         "Container": 4, "PersistentTtl": 5, "PersistentSequentialTtl": 6}


def create_body(op):
    data = None if op["data"] is None else op["data"].encode()
    body = text(op["path"]) + buf(data) + acls(op["acl"]) + struct.pack(">i", FLAGS[op["mode"]])
    if "Ttl" in op["mode"]:
        return 21, body + struct.pack(">q", op["ttl"])
    return (19 if op["mode"] == "Container" else 15), body


def encode(op):
    kind = op["op"]
    if kind == "create":
        return create_body(op)
    if kind == "delete":
        return 2, text(op["path"]) + struct.pack(">i", op["version"])
    if kind == "set":
        data = None if op["data"] is None else op["data"].encode()
        return 5, text(op["path"]) + buf(data) + struct.pack(">i", op["version"])
    if kind == "set_acl":
        return 7, text(op["path"]) + acls(op["acl"]) + struct.pack(">i", op["version"])
    if kind == "check":
        return 13, text(op["path"]) + struct.pack(">i", op["version"])
    if kind == "multi":
        body = b""
        for sub in op["ops"]:
            n, b = encode(sub)
            body += struct.pack(">ibi", n, 0, -1) + b
        return 14, body + struct.pack(">ibi", -1, 1, -1)
    if kind == "watch_data":
        return 4, text(op["path"]) + b"\1"
    if kind == "watch_exist":
        return 3, text(op["path"]) + b"\1"
    if kind == "watch_child":
        return 12, text(op["path"]) + b"\1"
    if kind == "add_watch":
        return 106, text(op["path"]) + struct.pack(">i", op["mode"])
    if kind == "remove_watches":
        return 18, text(op["path"]) + struct.pack(">i", op["type"])
    if kind == "set_watches":
        return 105, struct.pack(">q", op["zxid"]) + b"".join(
            texts(op[k]) for k in ("data", "exist", "child", "persistent", "recursive"))
    raise KeyError(kind)


def result(op, error, r):
    if error:
        return ERRORS.get(error, error)
    kind = op["op"]
    if kind == "create":
        return {"path": r.text(), "stat": r.stat()}
    if kind in ("set", "set_acl"):
        return {"stat": r.stat()}
    if kind == "multi":
        results = []
        for sub in op["ops"]:
            t, _, _ = r.take(">ibi")
            if t == -1:
                code = r.take(">i")
                results.append(ERRORS.get(code, "RolledBack" if code == 0 else code))
            elif sub["op"] == "create" and t == 1:
                assert sub["mode"] != "Container" and "Ttl" not in sub["mode"]
                results.append({"path": r.text()})
            else:
                results.append(result(sub, 0, r))
        return results
    if kind == "watch_data":
        data = r.buf()
        return {"data": None if data is None else data.decode(), "stat": r.stat()}
    if kind == "watch_exist":
        return {"stat": r.stat()}
    if kind == "watch_child":
        names = [r.text() for _ in range(r.take(">i"))]
        return {"children": sorted(names), "stat": r.stat()}
    return "ok"


def dump(c, path="/"):
    _, error, r = c.call(12, text(path) + b"\0")
    assert error == 0, (path, error)
    names = sorted(r.text() for _ in range(r.take(">i")))
    stat = r.stat()
    _, error, r = c.call(4, text(path) + b"\0")
    data = r.buf()
    nodes = [{"path": path, "stat": stat, "data": None if data is None else data.decode()}]
    for name in names:
        nodes += dump(c, path.rstrip("/") + "/" + name)
    return nodes


OPEN = [[31, "world", "anyone"]]
MINE = [[1, "world", "anyone"], [31, "auth", ""]]
ACLS = [OPEN] * 40 + [MINE, MINE, [[15, "world", "anyone"]], [[1, "world", "anyone"]],
                      [[27, "world", "anyone"]], [[1, "world", "anyone"], [31, "ip", "127.0.0.0/8"]],
                      [[1, "world", "anyone"], [31, "ip", "10.0.0.0/8"]], OPEN + MINE, [],
                      [[31, "digest", "u"]], [[31, "other", "x"]]]
BAD = ["foo", "/a//b", "/a/", "/a/.", "/a/../b", "/zz\x01", "/a/\ue000", "/zookeeper", "/",
       "/zookeeper/config", "/zookeeper/config/x", "/zookeeper/x"]


def some_path(rng):
    return "/" + "/".join(rng.choice("ab") for _ in range(rng.choices([1, 2, 3], [2, 5, 2])[0]))


MADE = []


def some_write(rng, depth=0):
    kind = rng.choices(["create", "delete", "set", "set_acl", "multi", "check"],
                       [40, 14, 14, 4 if depth == 0 else 0, 14 if depth == 0 else 0,
                        8 if depth else 0])[0]
    path = rng.choice(BAD) if rng.random() < .06 else some_path(rng)
    if kind != "create" and MADE and rng.random() < .5:
        path = MADE.pop(rng.randrange(len(MADE))) if kind == "delete" else rng.choice(MADE)
    version = rng.choices([-1, 0, 1, 7], [30, 4, 2, 1])[0]
    data = rng.choice([None, "", "x", "yy"])
    if kind == "create":
        mode = rng.choices(list(FLAGS), [40, 14, 14, 8, 8, 6, 6])[0]
        if "Sequential" in mode:
            path = rng.choice([path, path + "/", path.rsplit("/", 1)[0] + "/", path + "-"])
        op = {"op": kind, "path": path, "data": data, "acl": rng.choice(ACLS), "mode": mode}
        if "Ttl" in mode:
            op["ttl"] = rng.choice([10 ** 9] * 8 + [0, -5, 1 << 40])
        return op
    if kind == "set":
        return {"op": kind, "path": path, "data": data, "version": version}
    if kind == "set_acl":
        return {"op": kind, "path": path, "acl": rng.choice(ACLS), "version": version}
    if kind == "multi":
        return {"op": kind, "ops": [some_write(rng, 1) for _ in range(rng.randint(1, 3))]}
    return {"op": kind, "path": path, "version": version}


def some_watch(rng, who, zxid):
    path = some_path(rng)
    if who == 0:
        return rng.choice([{"op": "watch_" + rng.choice(["data", "exist", "child"]), "path": path},
                           {"op": "watch_" + rng.choice(["data", "exist", "child"]), "path": path},
                           {"op": "remove_watches", "path": path, "type": rng.randint(1, 3)},
                           {"op": "set_watches", "zxid": max(0, zxid - rng.randint(0, 30)),
                            "data": [some_path(rng)], "exist": [some_path(rng)],
                            "child": [some_path(rng)], "persistent": [], "recursive": []}])
    # One mode for each path: 3.8 lets a second one overwrite the first.
    if rng.random() < .4:
        return {"op": "remove_watches", "path": path, "type": 3}
    return {"op": "add_watch", "path": path, "mode": sum(map(ord, path)) % 2}


def main():
    address, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    out = lambda o: print(json.dumps(o, separators=(",", ":")))
    connections = [Connection(address), Connection(address)]
    connections[0].auth("u:p")
    owner = None
    zxid = 0
    for i in range(count):
        who = rng.randint(0, 1)
        if owner is None:
            owner = Connection(address)
        if i % 40 == 39:
            # A session of its own closes: many nodes in one zxid.
            owner.call(-11, b"")
            op, answer = {"op": "close", "session": owner.session}, "ok"
            owner = None
            zxid, who = None, 0
        else:
            op = some_watch(rng, who, zxid) if rng.random() < .25 else some_write(rng)
            n, body = encode(op)
            by = owner if op["op"] == "create" and "Ephemeral" in op["mode"] and rng.random() < .7 \
                else connections[who]
            zxid, error, r = by.call(n, body)
            answer = result(op, error, r)
            op["session"] = by.session
            for made in answer if isinstance(answer, list) else [answer]:
                if isinstance(made, dict) and "path" in made:
                    MADE.append(made["path"])
        time = 0
        for made in answer if op["op"] == "multi" and isinstance(answer, list) else []:
            # Within a multi, a create of type 15 is answered as type 1: without a stat.
            if isinstance(made, dict) and "path" in made and "stat" not in made:
                _, error, r = connections[0].call(3, text(made["path"]) + b"\0")
                time = max(time, 0 if error else r.stat()[2])
        events = []
        for c in connections:
            seen, _, _ = c.call(3, text("/") + b"\0")
            zxid = seen if zxid is None else zxid
            events.append(c.events)
            c.events = []
        out({"zxid": zxid, "time": time, "who": who if op.get("session") == connections[who].session else 2,
             "do": op, "answer": answer, "events": events})
        if i % 60 == 59 or i == count - 1:
            out({"dump": dump(connections[1])})


main()
