"""Transactions with etcd3gw, which takes them as the gateway's JSON and gives the answer likewise."""

from bench import PREFIX, check, equal, step, together, undisturbed
from support import connect, decode, delete, encode, get, pair, put, rejected, revision, transact

client = connect()
key = f"{PREFIX}/key"


def compare(target, result, wanted, name=key):
    field = {"VALUE": "value", "VERSION": "version", "CREATE": "create_revision", "MOD": "mod_revision"}[target]
    wanted = encode(wanted) if target == "VALUE" else wanted
    return {"key": encode(name), "target": target, "result": result, field: wanted}


def values(answer):
    return [decode(found["value"]) for found in answer["response_range"].get("kvs", [])]


absent = compare("VERSION", "EQUAL", 0)

with step("then"):
    answer = transact(client, [put(key, "one"), get(key)], [absent], [get(key)])
    equal("succeeded", answer.get("succeeded"), True)
    header = int(answer["header"]["revision"])
    first = pair(client, key)
    equal("value and version", (first["value"], first["version"]), (b"one", 1))
    equal("its revisions", (first["create_revision"], first["mod_revision"]), (header, header))

with step("otherwise"):
    answer = transact(client, [put(key, "two")], [absent], [get(key)])
    equal("succeeded", answer.get("succeeded", False), False)
    equal("what the else branch read", [values(one) for one in answer["responses"]], [[b"one"]])
    equal("the pair", pair(client, key), first)

with step("compares"):
    client.put(key, b"m")
    now = pair(client, key)
    for target, low, same, high in (
        ("VALUE", "a", "m", "z"),
        ("VERSION", 1, 2, 3),
        ("CREATE", header - 1, header, header + 1),
        ("MOD", now["mod_revision"] - 1, now["mod_revision"], now["mod_revision"] + 1),
    ):
        for result, wanted, holds in (
            ("EQUAL", same, True),
            ("EQUAL", low, False),
            ("GREATER", low, True),
            ("GREATER", same, False),
            ("LESS", high, True),
            ("LESS", same, False),
            ("NOT_EQUAL", low, True),
            ("NOT_EQUAL", same, False),
        ):
            answer = transact(client, [], [compare(target, result, wanted)])
            equal(f"{target} {result} {wanted}", answer.get("succeeded", False), holds)

with step("several"):
    names = [f"{PREFIX}/several-{number}" for number in range(4)]

    def several():
        client.put(names[3], b"goes")
        before = revision(client)
        answer = transact(client, [put(names[0], "0"), put(names[1], "1"), delete(names[3]), put(names[2], "2")])
        kinds = [list(one) for one in answer["responses"]]
        equal("kinds", kinds, [["response_put"], ["response_put"], ["response_delete_range"], ["response_put"]])
        equal("deleted", answer["responses"][2]["response_delete_range"]["deleted"], "1")
        revisions = {pair(client, name)["mod_revision"] for name in names[:3]}
        equal("revisions", revisions, {int(answer["header"]["revision"])})
        return revisions.pop(), before + 1

    undisturbed("the transaction's revision", several)
    equal("values", [pair(client, name)["value"] for name in names[:3]], [b"0", b"1", b"2"])
    equal("the deleted one", pair(client, names[3]), None)

with step("reads"):
    answer = transact(client, [put(key, "new"), get(key)])
    equal("value", values(answer["responses"][1]), [b"new"])

with step("read-only"):

    def read_only():
        before = revision(client)
        header = int(transact(client, [get(key), get(names[0])])["header"]["revision"])
        after = revision(client)
        check(before <= header <= after, f"{before}, then {header} in the transaction, then {after}")
        return after, before

    undisturbed("the revision", read_only)

with step("all-or-nothing"):
    compares = [compare("VALUE", "EQUAL", "new"), compare("VERSION", "EQUAL", 99)]
    answer = transact(client, [put(f"{PREFIX}/never", ""), put(key, "never")], compares)
    equal("succeeded", answer.get("succeeded", False), False)
    equal("values", (client.get(key), client.get(f"{PREFIX}/never")), ([b"new"], []))

with step("duplicate"):
    operations = [put(key, "a"), put(f"{PREFIX}/never", ""), put(key, "b")]
    rejected("etcdserver: duplicate key given in txn request", transact, client, operations)
    equal("values", (client.get(key), client.get(f"{PREFIX}/never")), ([b"new"], []))

with step("nested"):
    inner = {
        "request_txn": {
            "compare": [compare("VERSION", "EQUAL", 0, name=f"{PREFIX}/inner")],
            "success": [put(f"{PREFIX}/inner", "made")],
        }
    }
    answer = transact(client, [put(key, "outer"), inner], [compare("VALUE", "EQUAL", "new")])
    equal("succeeded", answer.get("succeeded"), True)
    equal("the inner one", answer["responses"][1]["response_txn"].get("succeeded"), True)
    pairs = pair(client, key), pair(client, f"{PREFIX}/inner")
    equal("values", [one["value"] for one in pairs], [b"outer", b"made"])
    equal("revisions", pairs[1]["mod_revision"], pairs[0]["mod_revision"])

with step("cas"):
    counter = f"{PREFIX}/counter"
    client.put(counter, b"0")

    def count():
        mine = connect()
        done = 0
        while done < 10:
            value = mine.get(counter)[0]
            done += mine.replace(counter, value, str(int(value) + 1))

    together(count, count, count, count)
    last = pair(client, counter)
    equal("value and version", (last["value"], last["version"]), (b"40", 41))
    check(last["create_revision"] < last["mod_revision"], "the key was never made anew")
