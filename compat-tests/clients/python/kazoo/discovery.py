"""Instances as kazoo applications register them beside Curator's: ephemeral children with its JSON as value."""

import json
import time

from bench import PREFIX, Seen, equal, step, until
from support import close, connect

service = PREFIX.rpartition("/")[2]


def payload(name, port):
    return json.dumps({
        "name": service,
        "id": name,
        "address": "127.0.0.1",
        "port": port,
        "sslPort": None,
        "payload": None,
        "registrationTimeUTC": int(time.time() * 1000),
        "serviceType": "DYNAMIC",
        "uriSpec": None,
    }).encode()


class Instance:
    def __init__(self, name, port):
        self.path = f"{PREFIX}/{name}"
        self.client = connect()
        self.client.ensure_path(PREFIX)
        self.client.create(self.path, payload(name, port), ephemeral=True)

    def deregister(self):
        self.client.delete(self.path)
        close(self.client)


reader = connect()
lists = []


def listed():
    """Address and port of every instance in the list that the watch brought last."""
    found = set()
    for name in lists[-1]:
        value = json.loads(reader.get(f"{PREFIX}/{name}")[0])
        found.add((value["address"], value["port"]))
    return found


def ports_are(what, limit, *ports):
    wanted = {("127.0.0.1", port) for port in ports}
    until(f"{what}: {sorted(ports)}", limit, lambda: len(lists[-1]) == len(wanted) and listed() == wanted)


with step("empty"):
    reader.ensure_path(PREFIX)
    reader.ChildrenWatch(PREFIX)(lambda names: lists.append(names))
    equal("list", lists[-1], [])

with step("registered"):
    instances = {port: Instance(f"instance-{port}", port) for port in (7001, 7002, 7003)}
    ports_are("three", 3, 7001, 7002, 7003)

with step("updated"):
    changed = Seen()
    reader.get(instances[7001].path, watch=changed)
    instances[7001].client.set(instances[7001].path, payload("instance-7001", 7101))
    equal("event", changed.next("the reader sees the change", 3).type, "CHANGED")
    ports_are("the new value", 3, 7101, 7002, 7003)

with step("left"):
    instances[7002].deregister()
    ports_are("two", 2, 7101, 7003)

with step("died"):
    for port in (7004, 7005):
        instances[port] = Instance(f"instance-{port}", port)
    ports_are("four", 3, 7101, 7003, 7004, 7005)
    close(instances[7004].client)
    ports_are("three", 3, 7101, 7003, 7005)

with step("all-left"):
    for port in (7001, 7003, 7005):
        instances[port].deregister()
    until("an empty list", 3, lambda: lists[-1] == [])
    equal("a fresh list", reader.get_children(PREFIX), [])

close(reader)
