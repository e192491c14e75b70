"""Watches with etcd3gw: a request each, whose answer goes on."""

from bench import PREFIX, check, equal, step
from support import connect, delete, event, pair, put, transact, watch

client, writer = connect(), connect()
key = f"{PREFIX}/key"

with step("put"):
    seen, cancel = watch(client, key)
    writer.put(key, b"1")
    got = event(seen, "PUT", key, b"1")
    equal("mod_revision and version", (int(got["mod_revision"]), got["version"]), (pair(writer, key)["mod_revision"], "1"))
    seen.none("a second event", quiet=0.3)

with step("delete"):
    before = pair(writer, key)["mod_revision"]
    writer.delete(key)
    got = event(seen, "DELETE", key)
    check(int(got["mod_revision"]) > before, f"the delete's revision {got['mod_revision']} is above {before}")
    check("value" not in got, "no value")
    cancel()

with step("prefix"):
    seen, cancel = watch(client, f"{PREFIX}/p/", prefix=True)
    for name in "bac":
        writer.put(f"{PREFIX}/p/{name}", name)
    writer.put(f"{PREFIX}/p0", b"beside")
    revisions = [int(event(seen, "PUT", f"{PREFIX}/p/{name}", name.encode())["mod_revision"]) for name in "bac"]
    equal("revisions", revisions, [pair(writer, f"{PREFIX}/p/{name}")["mod_revision"] for name in "bac"])
    equal("their order", revisions, sorted(revisions))
    seen.none("an event of a key beside the prefix")
    cancel()

with step("prev-kv"):
    seen, cancel = watch(client, key, prev_kv=True)
    writer.put(key, b"1")
    equal("before the create", event(seen, "PUT", key, b"1")["before"], None)
    writer.put(key, b"2")
    # etcd3gw decodes the pair, but not the pair before.
    before = event(seen, "PUT", key, b"2")["before"]
    equal("before the update", (before["value"], before["version"]), ("MQ==", "1"))
    writer.delete(key)
    before = event(seen, "DELETE", key)["before"]
    equal("before the delete", (before["value"], before["version"]), ("Mg==", "2"))
    cancel()

with step("filters"):
    deletes, cancel_deletes = watch(client, key, filters=["NOPUT"])
    puts, cancel_puts = watch(client, key, filters=["NODELETE"])
    for value in (b"1", b"2"):
        writer.put(key, value)
    writer.delete(key)
    event(deletes, "DELETE", key)
    event(puts, "PUT", key, b"1")
    event(puts, "PUT", key, b"2")
    deletes.none("another event", quiet=0.3)
    puts.none("another event", quiet=0.3)
    cancel_deletes()
    cancel_puts()

with step("history"):
    writer.put(key, b"1")
    start = pair(writer, key)["mod_revision"]
    writer.put(key, b"2")
    writer.delete(key)
    seen, cancel = watch(client, key, start_revision=start)
    equal("mod_revision of the first", int(event(seen, "PUT", key, b"1")["mod_revision"]), start)
    event(seen, "PUT", key, b"2")
    event(seen, "DELETE", key)
    writer.put(key, b"3")
    event(seen, "PUT", key, b"3")
    seen.none("another event", quiet=0.3)
    cancel()

with step("txn"):
    names = [f"{PREFIX}/t/{name}" for name in "cab"]
    writer.put(names[1], b"old")
    seen, cancel = watch(client, f"{PREFIX}/t/", prefix=True)
    answer = transact(writer, [put(names[0], "0"), delete(names[1]), put(names[2], "2")])
    got = [event(seen, "PUT", names[0], b"0"), event(seen, "DELETE", names[1]), event(seen, "PUT", names[2], b"2")]
    equal("revisions", {one["mod_revision"] for one in got}, {answer["header"]["revision"]})
    cancel()

with step("many"):
    watches = {name: watch(client, f"{PREFIX}/m/{name}") for name in "abc"}
    for name in "abc":
        writer.put(f"{PREFIX}/m/{name}", name)
    for name, (seen, _) in watches.items():
        event(seen, "PUT", f"{PREFIX}/m/{name}", name.encode())
        seen.none("an event of another watch", quiet=0.2)

with step("cancel"):
    watches["a"][1]()
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
        check(int(got["mod_revision"]) > last, f"the revision {got['mod_revision']} rises")
        last = int(got["mod_revision"])
    seen.none("a 501st event", quiet=0.5)
