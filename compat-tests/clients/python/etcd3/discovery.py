"""Instances under leases, in the form of etcd's naming package, and a reader that follows a prefix watch."""

import json

from bench import PREFIX, equal, lacks, step, until
from etcd3.events import PutEvent
from support import connect, keep


def value(address, metadata=None):
    return json.dumps({"Op": 0, "Addr": address, "Metadata": metadata}, separators=(",", ":"))


class Instance:
    """Registers and renews as long as it lives."""

    def __init__(self, port, ttl=10):
        self.address = f"127.0.0.1:{port}"
        self.client = connect()
        self.lease = self.client.lease(ttl)
        self.put()
        self.renewal = keep(self.lease, ttl / 3)

    def put(self, metadata=None):
        self.client.put(f"{PREFIX}/{self.address}", value(self.address, metadata), lease=self.lease)

    def die(self):
        self.renewal.stop()

    def deregister(self):
        self.renewal.stop()
        self.lease.revoke()


class Reader:
    """The list at a revision, and what the watch says since then."""

    def __init__(self):
        self.client = connect()
        response = self.client.get_prefix_response(f"{PREFIX}/")
        self.found = {pair.key.decode(): json.loads(pair.value) for pair in response.kvs}
        self.client.add_watch_prefix_callback(f"{PREFIX}/", self.follow, start_revision=response.header.revision + 1)

    def follow(self, response):
        for event in response.events:
            if isinstance(event, PutEvent):
                self.found[event.key.decode()] = json.loads(event.value)
            else:
                self.found.pop(event.key.decode(), None)

    def has(self, what, limit, *ports):
        wanted = {f"{PREFIX}/127.0.0.1:{port}": f"127.0.0.1:{port}" for port in ports}
        until(
            f"{what}: {sorted(ports)}",
            limit,
            lambda: {key: value["Addr"] for key, value in self.found.copy().items()} == wanted,
        )


with step("empty"):
    reader = Reader()
    equal("list", reader.found, {})

with step("registered"):
    instances = {port: Instance(port) for port in (7001, 7002, 7003)}
    reader.has("three", 3, 7001, 7002, 7003)
    fresh = Reader()
    fresh.has("three in a fresh list", 0, 7001, 7002, 7003)
    equal("value", fresh.found[f"{PREFIX}/127.0.0.1:7001"], json.loads(value("127.0.0.1:7001")))

lacks("called", "etcd3 has no resolver")

with step("left"):
    instances[7001].deregister()
    reader.has("two", 2, 7002, 7003)

with step("updated"):
    instances[7002].put({"weight": 7})
    key = f"{PREFIX}/127.0.0.1:7002"
    until("the metadata", 3, lambda: reader.found[key]["Metadata"] == {"weight": 7})
    equal("a fresh list", Reader().found[key], json.loads(value("127.0.0.1:7002", {"weight": 7})))

with step("died"):
    instances[7004], instances[7005] = Instance(7004, ttl=3), Instance(7005)
    reader.has("four", 3, 7002, 7003, 7004, 7005)
    instances[7004].die()
    reader.has("three", 8, 7002, 7003, 7005)

with step("all-left"):
    for port in (7002, 7003, 7005):
        instances[port].deregister()
    reader.has("none", 3)
    equal("a fresh list", Reader().found, {})
