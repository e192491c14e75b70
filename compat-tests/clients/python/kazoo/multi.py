"""Transactions with kazoo. It tells results in a list; of a failed transaction, an exception an operation."""

from bench import Seen, check, equal, step
from kazoo.exceptions import BadVersionError, NodeExistsError, RolledBackError, RuntimeInconsistency
from kazoo.protocol.states import ZnodeStat
from support import children_are, close, connect, event, make_root

client, other = connect(), connect()
root = make_root(client)
parent, spare = f"{root}/p", f"{root}/x"


def commit(*calls):
    transaction = client.transaction()
    for name, *args in calls:
        getattr(transaction, name)(*args)
    return transaction.commit()


def kinds(results):
    return [type(result) for result in results]


with step("all"):
    results = commit(
        ("create", parent, b"one"),
        ("create", f"{parent}/c", b""),
        ("set_data", f"{parent}/c", b"new"),
        ("check", f"{parent}/c", 1),
        ("delete", f"{parent}/c"),
    )
    equal("kinds of results", kinds(results), [str, str, ZnodeStat, bool, bool])
    equal("paths", results[:2], [parent, f"{parent}/c"])
    equal("the Stat's version and length", (results[2].version, results[2].dataLength), (1, 3))
    equal("check and delete", results[3:], [True, True])
    equal("value of P", client.get(parent)[0], b"one")
    children_are(client, parent, [])

with step("one-zxid"):
    commit(("create", f"{parent}/1", b""), ("create", f"{parent}/2", b""))
    equal("czxid", client.exists(f"{parent}/1").czxid, client.exists(f"{parent}/2").czxid)

with step("none"):
    results = commit(("create", spare, b""), ("create", parent, b""))
    equal("X", client.exists(spare), None)

with step("which"):
    equal("kinds of results", kinds(results), [RolledBackError, NodeExistsError])
    results = commit(("create", parent, b""), ("create", spare, b""))
    equal("the other way round", kinds(results), [NodeExistsError, RuntimeInconsistency])

with step("check-fails"):
    results = commit(("check", parent, 9), ("create", spare, b""))
    equal("kinds of results", kinds(results), [BadVersionError, RuntimeInconsistency])
    equal("X", client.exists(spare), None)

with step("order"):
    later = f"{root}/y"
    results = commit(("create", later, b""), ("set_data", later, b"1", 0), ("set_data", later, b"2", 1))
    equal("kinds of results", kinds(results), [str, ZnodeStat, ZnodeStat])
    equal("value and version", (client.get(later)[0], client.get(later)[1].version), (b"2", 2))

with step("sequential"):
    client.create(f"{root}/queue", b"")
    results = commit(*[("create", f"{root}/queue/n-", b"", None, False, True)] * 2)
    equal("paths", results, [f"{root}/queue/n-0000000000", f"{root}/queue/n-0000000001"])

with step("silent"):
    seen = Seen()
    other.get_children(root, watch=seen)
    commit(("create", spare, b""), ("create", parent, b""))
    seen.none("an event of a failed transaction")
    commit(("create", f"{root}/s1", b""), ("create", f"{root}/s2", b""))
    event(seen, "CHILD", root)
    seen.none("a second event", quiet=0.5)
    check(client.exists(f"{root}/s2"), "the second node is there")

close(client)
close(other)
