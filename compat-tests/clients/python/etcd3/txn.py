"""Transactions with etcd3. It shows the header of a transaction only beside what a get in it gives."""

from bench import PREFIX, check, equal, step, together, undisturbed
from support import connect, pair, rejected, revision

client = connect()
tx = client.transactions
key = f"{PREFIX}/key"

with step("then"):
    succeeded, (put, found) = client.transaction(
        compare=[tx.version(key) == 0], success=[tx.put(key, b"one"), tx.get(key)], failure=[tx.get(key)]
    )
    equal("succeeded", succeeded, True)
    header = found[0][1].response_header.revision
    first = pair(client, key)
    equal("value and version", (first.value, first.version), (b"one", 1))
    equal("its revisions", (first.create_revision, first.mod_revision), (header, header))
    equal("the put's revision", put.response_put.header.revision, header)

with step("otherwise"):
    succeeded, (found,) = client.transaction(
        compare=[tx.version(key) == 0], success=[tx.put(key, b"two")], failure=[tx.get(key)]
    )
    equal("succeeded", succeeded, False)
    equal("what the else branch read", [value for value, _ in found], [b"one"])
    equal("the pair", pair(client, key), first)

with step("compares"):
    other = client.put(key, b"m").header.revision
    for kind, low, same, high in (
        (tx.value, b"a", b"m", b"z"),
        (tx.version, 1, 2, 3),
        (tx.create, header - 1, header, header + 1),
        (tx.mod, other - 1, other, other + 1),
    ):
        for compare, wanted in (
            (kind(key) == same, True),
            (kind(key) == low, False),
            (kind(key) > low, True),
            (kind(key) > same, False),
            (kind(key) < high, True),
            (kind(key) < same, False),
            (kind(key) != low, True),
            (kind(key) != same, False),
        ):
            equal(f"{compare}", client.transaction(compare=[compare], success=[], failure=[])[0], wanted)

with step("several"):
    names = [f"{PREFIX}/several-{number}" for number in range(4)]
    client.put(names[3], b"goes")

    def several():
        before = revision(client, key)
        _, answers = client.transaction(
            compare=[],
            success=[tx.put(names[0], b"0"), tx.put(names[1], b"1"), tx.delete(names[3]), tx.put(names[2], b"2")],
            failure=[],
        )
        kinds = [answer.WhichOneof("response") for answer in answers]
        equal("kinds", kinds, ["response_put", "response_put", "response_delete_range", "response_put"])
        revisions = {pair(client, name).mod_revision for name in names[:3]}
        equal("revisions", len(revisions), 1)
        client.put(names[3], b"goes")
        equal("deleted", answers[2].response_delete_range.deleted, 1)
        return revisions.pop(), before + 1

    undisturbed("the transaction's revision", several)
    equal("values", [pair(client, name).value for name in names[:3]], [b"0", b"1", b"2"])

with step("reads"):
    _, (_, found) = client.transaction(compare=[], success=[tx.put(key, b"new"), tx.get(key)], failure=[])
    equal("value", [value for value, _ in found], [b"new"])

with step("read-only"):

    def read_only():
        before = revision(client, key)
        _, found = client.transaction(compare=[], success=[tx.get(key), tx.get(names[0])], failure=[])
        header = found[0][0][1].response_header.revision
        after = revision(client, key)
        check(before <= header <= after, f"{before}, then {header} in the transaction, then {after}")
        return after, before

    undisturbed("the revision", read_only)

with step("all-or-nothing"):
    succeeded, _ = client.transaction(
        compare=[tx.value(key) == b"new", tx.version(key) == 99],
        success=[tx.put(f"{PREFIX}/never", b""), tx.put(key, b"never")],
        failure=[],
    )
    equal("succeeded", succeeded, False)
    equal("values", (client.get(key)[0], client.get(f"{PREFIX}/never")[0]), (b"new", None))

with step("duplicate"):
    rejected(
        "etcdserver: duplicate key given in txn request",
        client.transaction,
        compare=[],
        success=[tx.put(key, b"a"), tx.put(f"{PREFIX}/never", b""), tx.put(key, b"b")],
        failure=[],
    )
    equal("values", (client.get(key)[0], client.get(f"{PREFIX}/never")[0]), (b"new", None))

with step("nested"):
    inner = tx.txn(
        compare=[tx.version(f"{PREFIX}/inner") == 0], success=[tx.put(f"{PREFIX}/inner", b"made")], failure=[]
    )
    succeeded, (put, nested) = client.transaction(
        compare=[tx.value(key) == b"new"], success=[tx.put(key, b"outer"), inner], failure=[]
    )
    equal("succeeded", (succeeded, nested.response_txn.succeeded), (True, True))
    pairs = pair(client, key), pair(client, f"{PREFIX}/inner")
    equal("values", [pair.value for pair in pairs], [b"outer", b"made"])
    equal("revisions", pairs[1].mod_revision, pairs[0].mod_revision)

with step("cas"):
    counter = f"{PREFIX}/counter"
    client.put(counter, b"0")

    def count():
        mine = connect()
        done = 0
        while done < 10:
            value, metadata = mine.get(counter)
            succeeded, _ = mine.transaction(
                compare=[mine.transactions.mod(counter) == metadata.mod_revision],
                success=[mine.transactions.put(counter, str(int(value) + 1))],
                failure=[],
            )
            done += succeeded

    together(count, count, count, count)
    last = pair(client, counter)
    equal("value and version", (last.value, last.version), (b"40", 41))
    check(last.create_revision < last.mod_revision, "the key was never made anew")
