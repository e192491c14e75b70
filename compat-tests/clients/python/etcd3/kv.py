"""Keys, values and ranges with etcd3."""

from bench import PREFIX, check, equal, lacks, step, undisturbed
from support import connect, pair, rejected, revision

client = connect()
key = f"{PREFIX}/key"
everything = bytes(range(256))
NOT_SENT = "etcd3 0.12 takes the argument and does not send it"

with step("put"):

    def put():
        client.delete(key)
        before = revision(client, key)
        global answer
        answer = client.put(key, everything)
        return answer.header.revision, before + 1

    undisturbed("the revision of the put", put)
    first = pair(client, key)
    equal("key and value", (first.key, first.value), (key.encode(), everything))
    equal("create_revision", first.create_revision, answer.header.revision)
    equal("mod_revision", first.mod_revision, answer.header.revision)
    equal("version and lease", (first.version, first.lease), (1, 0))

with step("again"):
    answer = client.put(key, b"second")
    second = pair(client, key)
    equal("mod_revision", second.mod_revision, answer.header.revision)
    check(second.mod_revision > first.mod_revision, "mod_revision rises")
    equal("create_revision and version", (second.create_revision, second.version), (first.create_revision, 2))

with step("prev-kv"):
    equal("prev_kv of a put", client.put(key, b"third", prev_kv=True).prev_kv, second)
    third = pair(client, key)
    equal("prev_kvs of a delete", list(client.delete(key, prev_kv=True, return_response=True).prev_kvs), [third])
    check(not client.put(key, b"anew", prev_kv=True).HasField("prev_kv"), "a new key has no pair before")

with step("missing"):
    equal("get", client.get(f"{PREFIX}/none"), (None, None))
    response = client.get_response(f"{PREFIX}/none")
    equal("pairs and count", (len(response.kvs), response.count), (0, 0))

with step("delete"):

    def delete():
        client.put(key, b"")
        before = revision(client, key)
        answer = client.delete(key, return_response=True)
        equal("deleted", answer.deleted, 1)
        return answer.header.revision, before + 1

    undisturbed("the revision of the delete", delete)
    equal("the pair", pair(client, key), None)
    client.put(key, b"anew")
    equal("version", pair(client, key).version, 1)

with step("delete-none"):

    def delete_none():
        before = revision(client, key)
        answer = client.delete(f"{PREFIX}/none", return_response=True)
        equal("deleted", answer.deleted, 0)
        return answer.header.revision, before

    undisturbed("the revision of a delete of nothing", delete_none)

with step("prefix"):
    folder = f"{PREFIX}/range"
    names = [f"{folder}/{name}" for name in "abcde"]
    for name in ("c", "a", "e", "b", "d"):
        client.put(f"{folder}/{name}", name)
    for neighbour in (f"{folder}.", f"{folder}0"):
        client.put(neighbour, b"neighbour")

    def keys(**named):
        return [metadata.key.decode() for _, metadata in client.get_prefix(f"{folder}/", **named)]

    equal("keys", keys(), names)
    equal("count", client.get_prefix_response(f"{folder}/").count, 5)

lacks("limit", NOT_SENT)

with step("sort"):
    written = [f"{folder}/{name}" for name in ("c", "a", "e", "b", "d")]
    equal("by key, descending", keys(sort_order="descend", sort_target="key"), names[::-1])
    equal("by mod revision, ascending", keys(sort_order="ascend", sort_target="mod"), written)
    equal("by mod revision, descending", keys(sort_order="descend", sort_target="mod"), written[::-1])

with step("keys-only"):
    whole = {pair.key: pair.mod_revision for pair in client.get_prefix_response(f"{folder}/").kvs}
    pairs = client.get_prefix_response(f"{folder}/", keys_only=True).kvs
    equal("values", [pair.value for pair in pairs], [b""] * 5)
    equal("revisions", {pair.key: pair.mod_revision for pair in pairs}, whole)

lacks("count-only", NOT_SENT)

with step("from-key"):
    found = client.get_range(f"{folder}/c", f"{folder}0")
    equal("keys", [metadata.key.decode() for _, metadata in found], names[2:])

lacks("past", NOT_SENT)
lacks("future", NOT_SENT)

with step("serializable"):
    equal("value", client.get(f"{folder}/a", serializable=True)[0], b"a")

with step("delete-prefix"):

    def delete_prefix():
        for name in names:
            client.put(name, b"")
        before = revision(client, key)
        answer = client.delete_prefix(f"{folder}/")
        equal("deleted", answer.deleted, 5)
        return answer.header.revision, before + 1

    undisturbed("the revision of the delete", delete_prefix)
    equal("keys", keys(), [])
    equal("a neighbour", client.get(f"{folder}0")[0], b"neighbour")

lacks("ignore-value", "etcd3 0.12 has no such argument")

with step("empty-key"):
    rejected("etcdserver: key is not provided", client.put, "", b"value")

with step("too-large"):
    rejected("etcdserver: request is too large", client.put, f"{PREFIX}/large", bytes(2_000_000))
    large = bytes(number % 251 for number in range(1_000_000))
    client.put(f"{PREFIX}/large", large)
    check(client.get(f"{PREFIX}/large")[0] == large, "the value comes back")
