"""Watches with etcd3: one stream for all of a client."""

from bench import PREFIX, check, equal, lacks, step
from support import connect, event, watch

client, writer = connect(), connect()
key = f"{PREFIX}/key"

with step("put"):
    seen, one = watch(client, key)
    revision = writer.put(key, b"1").header.revision
    got = event(seen, "PUT", key, b"1")
    equal("mod_revision and version", (got.mod_revision, got.version), (revision, 1))
    seen.none("a second event", quiet=0.3)

with step("delete"):
    revision = writer.delete(key, return_response=True).header.revision
    equal("mod_revision", event(seen, "DELETE", key).mod_revision, revision)
    client.cancel_watch(one)

with step("prefix"):
    seen, one = watch(client, f"{PREFIX}/p/", prefix=True)
    revisions = [writer.put(f"{PREFIX}/p/{name}", name).header.revision for name in "bac"]
    writer.put(f"{PREFIX}/p0", b"beside")
    equal("revisions", [event(seen, "PUT", f"{PREFIX}/p/{n}", n.encode()).mod_revision for n in "bac"], revisions)
    seen.none("an event of a key beside the prefix")
    client.cancel_watch(one)

with step("prev-kv"):
    seen, one = watch(client, key, prev_kv=True)
    writer.put(key, b"1")
    check(not event(seen, "PUT", key, b"1")._event.HasField("prev_kv"), "none on create")
    writer.put(key, b"2")
    got = event(seen, "PUT", key, b"2")
    equal("before the update", (got.prev_value, got.prev_version), (b"1", 1))
    writer.delete(key)
    got = event(seen, "DELETE", key)
    equal("before the delete", (got.prev_value, got.prev_version), (b"2", 2))
    client.cancel_watch(one)

lacks("filters", "etcd3 0.12 assigns the argument to a repeated field, which protobuf refuses")

with step("history"):
    start = writer.put(key, b"1").header.revision
    writer.put(key, b"2")
    writer.delete(key)
    seen, one = watch(client, key, start_revision=start)
    equal("mod_revision of the first", event(seen, "PUT", key, b"1").mod_revision, start)
    event(seen, "PUT", key, b"2")
    event(seen, "DELETE", key)
    writer.put(key, b"3")
    event(seen, "PUT", key, b"3")
    seen.none("another event", quiet=0.3)
    client.cancel_watch(one)

with step("txn"):
    names = [f"{PREFIX}/t/{name}" for name in "cab"]
    writer.put(names[1], b"old")
    seen, one = watch(client, f"{PREFIX}/t/", prefix=True)
    tx = writer.transactions
    writer.transaction(compare=[], success=[tx.put(names[0], "0"), tx.delete(names[1]), tx.put(names[2], "2")], failure=[])
    got = [event(seen, "PUT", names[0], b"0"), event(seen, "DELETE", names[1]), event(seen, "PUT", names[2], b"2")]
    equal("revisions", len({event.mod_revision for event in got}), 1)
    client.cancel_watch(one)

with step("many"):
    watches = {name: watch(client, f"{PREFIX}/m/{name}") for name in "abc"}
    equal("watch ids", len({number for _, number in watches.values()}), 3)
    for name in "abc":
        writer.put(f"{PREFIX}/m/{name}", name)
    for name, (seen, _) in watches.items():
        event(seen, "PUT", f"{PREFIX}/m/{name}", name.encode())
        seen.none("an event of another watch", quiet=0.2)

with step("cancel"):
    client.cancel_watch(watches["a"][1])
    for name in "abc":
        writer.put(f"{PREFIX}/m/{name}", b"more")
    for name in "bc":
        event(watches[name][0], "PUT", f"{PREFIX}/m/{name}", b"more")
    watches["a"][0].none("an event of a cancelled watch")

with step("burst"):
    seen, _ = watch(client, f"{PREFIX}/burst/", prefix=True)
    for number in range(500):
        writer.put(f"{PREFIX}/burst/{number:03}", str(number))
    last = 0
    for number in range(500):
        got = event(seen, "PUT", f"{PREFIX}/burst/{number:03}", str(number).encode())
        check(got.mod_revision > last, f"the revision {got.mod_revision} rises")
        last = got.mod_revision
    seen.none("a 501st event", quiet=0.5)
