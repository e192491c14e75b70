"""Keys, values and ranges with etcd3gw. It shows no answer of a put or a delete, only whether one deleted something; in a
transaction, which it takes and shows as JSON, they can be seen."""

from bench import PREFIX, check, equal, note, step, undisturbed
from support import connect, decode, delete, pair, put, rejected, revision, transact

client = connect()
key = f"{PREFIX}/key"
everything = bytes(range(256))

with step("put"):

    def put_anew():
        client.delete(key)
        before = revision(client)
        client.put(key, everything)
        global first
        first = pair(client, key)
        return revision(client), before + 1

    undisturbed("the revision after the put", put_anew)
    equal("key and value", (first["key"], first["value"]), (key.encode(), everything))
    equal("mod_revision", first["mod_revision"], first["create_revision"])
    check(first["mod_revision"] > 0, "mod_revision is above 0")
    equal("version and lease", (first["version"], first["lease"]), (1, 0))

with step("again"):
    client.put(key, b"second")
    second = pair(client, key)
    check(second["mod_revision"] > first["mod_revision"], "mod_revision rises")
    equal("create_revision and version", (second["create_revision"], second["version"]), (first["create_revision"], 2))

with step("prev-kv"):

    def before(operation):
        """The pair that the operation gives as that before it."""
        (answer,) = transact(client, [operation])["responses"][0].values()
        return [answer["prev_kv"]] if "prev_kv" in answer else answer.get("prev_kvs", [])

    def numbers(found):
        return [(decode(one["value"]), int(one["mod_revision"]), int(one["version"])) for one in found]

    wanted = [(b"second", second["mod_revision"], 2)]
    equal("pair before a put", numbers(before(put(key, b"third", prev_kv=True))), wanted)
    third = pair(client, key)
    wanted = [(b"third", third["mod_revision"], 3)]
    equal("pairs before a delete", numbers(before(delete(key, prev_kv=True))), wanted)
    equal("pair before a new key", before(put(key, b"anew", prev_kv=True)), [])
    note("in transactions: etcd3gw shows no other answer of a put or a delete")

with step("missing"):
    equal("get", client.get(f"{PREFIX}/none"), [])

with step("delete"):

    def delete_it():
        client.put(key, b"")
        before = revision(client)
        equal("deleted", client.delete(key), True)
        return revision(client), before + 1

    undisturbed("the revision after the delete", delete_it)
    equal("the pair", pair(client, key), None)
    client.put(key, b"anew")
    equal("version", pair(client, key)["version"], 1)

with step("delete-none"):

    def delete_none():
        before = revision(client)
        equal("deleted", client.delete(f"{PREFIX}/none"), False)
        return revision(client), before

    undisturbed("the revision after a delete of nothing", delete_none)

with step("prefix"):
    folder = f"{PREFIX}/range"
    names = [f"{folder}/{name}" for name in "abcde"]
    for name in ("c", "a", "e", "b", "d"):
        client.put(f"{folder}/{name}", name)
    for neighbour in (f"{folder}.", f"{folder}0"):
        client.put(neighbour, b"neighbour")

    def keys(pairs):
        return [metadata["key"].decode() for _, metadata in pairs]

    def ranged(start=f"{folder}/", **named):
        return client.get(start, metadata=True, range_end=f"{folder}0", **named)

    equal("keys", keys(client.get_prefix(f"{folder}/")), names)

with step("limit"):
    equal("keys", keys(ranged(limit=2)), names[:2])
    note("etcd3gw does not show more and count")

with step("sort"):
    written = [f"{folder}/{name}" for name in ("c", "a", "e", "b", "d")]
    for order, target, wanted in (
        ("descend", "key", names[::-1]),
        ("ascend", "mod", written),
        ("descend", "mod", written[::-1]),
    ):
        found = client.get_prefix(f"{folder}/", sort_order=order, sort_target=target)
        equal(f"by {target}, {order}", keys(found), wanted)

with step("keys-only"):
    whole = {metadata["key"]: metadata["mod_revision"] for _, metadata in ranged()}
    found = ranged(keys_only=True)
    equal("values", [value for value, _ in found], [b""] * 5)
    equal("revisions", {metadata["key"]: metadata["mod_revision"] for _, metadata in found}, whole)

with step("count-only"):
    equal("pairs", ranged(count_only=True), [])
    note("etcd3gw does not show the count")

with step("from-key"):
    equal("keys", keys(ranged(f"{folder}/c")), names[2:])

with step("past"):
    earlier = pair(client, f"{folder}/a")
    client.put(f"{folder}/a", b"later")
    equal("then", pair(client, f"{folder}/a", revision=earlier["mod_revision"]), earlier)
    equal("now", client.get(f"{folder}/a"), [b"later"])
    note("etcd3gw does not show the header of a range")

with step("future"):
    rejected(
        "etcdserver: mvcc: required revision is a future revision", client.get, key, revision=revision(client) + 1_000_000
    )

with step("serializable"):
    equal("value", client.get(f"{folder}/b", serializable=True), [b"b"])

with step("delete-prefix"):

    def delete_prefix():
        for name in names:
            client.put(name, b"")
        before = revision(client)
        equal("deleted", client.delete_prefix(f"{folder}/"), True)
        return revision(client), before + 1

    undisturbed("the revision after the delete", delete_prefix)
    equal("keys", ranged(), [])
    equal("a neighbour", client.get(f"{folder}0"), [b"neighbour"])

with step("ignore-value"):
    name = f"{PREFIX}/ignored"
    rejected("etcdserver: key not found", transact, client, [put(name, b"", ignore_value=True)])
    client.put(name, b"stays")
    made = pair(client, name)
    transact(client, [put(name, b"", ignore_value=True)])
    now = pair(client, name)
    equal("value and version", (now["value"], now["version"]), (b"stays", 2))
    check(now["mod_revision"] > made["mod_revision"], "mod_revision rises")
    note("in transactions: put has no such argument")

with step("empty-key"):
    rejected("etcdserver: key is not provided", client.put, "", b"value")

with step("too-large"):
    rejected("etcdserver: request is too large", client.put, f"{PREFIX}/large", bytes(2_000_000))
    large = bytes(number % 251 for number in range(1_000_000))
    client.put(f"{PREFIX}/large", large)
    check(client.get(f"{PREFIX}/large") == [large], "the value comes back")
