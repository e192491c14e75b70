"""Instances under leases, in the form of etcd's naming package, and a reader that follows a prefix watch."""

import json
import threading

from bench import PREFIX, equal, lacks, step, until
from support import connect, keep, revision


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
    """The list, and what a watch says since the revision that was read before it."""

    def __init__(self):
        self.client = connect()
        start = revision(self.client) + 1
        self.found = {
            metadata["key"].decode(): json.loads(value) for value, metadata in self.client.get_prefix(f"{PREFIX}/")
        }
        self.events, _ = self.client.watch_prefix(f"{PREFIX}/", start_revision=start)
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self):
        for event in self.events:
            pair = event["kv"]
            if event.get("type") == "DELETE":
                self.found.pop(pair["key"].decode(), None)
            else:
                self.found[pair["key"].decode()] = json.loads(pair["value"])

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

lacks("called", "etcd3gw has no resolver")

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
