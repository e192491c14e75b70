"""Everyday operations on general nodes, each checked here: says `ok NAME` for each and `done` at the end."""

import sys
import threading

from kazoo.exceptions import (
    BadVersionError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
)

from common import arguments, connect, say

parser = arguments(__doc__)
parser.add_argument("--root", required=True, help="a fresh path to work under")
options = parser.parse_args()
root = options.root
client = connect(options)
client.ensure_path(root)


def refuses(error, call, *args, **named):
    try:
        call(*args, **named)
    except error:
        return
    sys.exit(f"{call.__name__}{args}: expected {error.__name__}")


def check(truth, what):
    if not truth:
        sys.exit(f"not so: {what}")


def data():
    path, stat = client.create(f"{root}/config", b"one", include_data=True)
    check(path == f"{root}/config" and stat.version == 0 and stat.dataLength == 3, "create2 gives the stat")
    value, stat = client.get(f"{root}/config")
    check((value, stat.version, stat.czxid) == (b"one", 0, stat.mzxid), "fresh node")
    changed = client.set(f"{root}/config", b"two", version=0)
    check(changed.version == 1 and changed.mzxid > changed.czxid, "version and mzxid move")
    refuses(BadVersionError, client.set, f"{root}/config", b"three", version=0)
    refuses(NodeExistsError, client.create, f"{root}/config", b"")
    refuses(NoNodeError, client.get, f"{root}/none")
    refuses(NoNodeError, client.create, f"{root}/none/child", b"")
    check(client.exists(f"{root}/none") is None, "exists on nothing")


def tree():
    client.create(f"{root}/a/b/c", b"", makepath=True)
    refuses(NotEmptyError, client.delete, f"{root}/a")
    names, stat = client.get_children(f"{root}/a", include_data=True)
    check(names == ["b"] and stat.numChildren == 1, "children and their number")
    before = stat.cversion
    client.delete(f"{root}/a/b", recursive=True)
    stat = client.exists(f"{root}/a")
    check(stat.numChildren == 0 and stat.cversion == before + 1, "cversion counts the delete")
    client.delete(f"{root}/a")


def ephemerals():
    client.create(f"{root}/e", b"", ephemeral=True)
    refuses(NoChildrenForEphemeralsError, client.create, f"{root}/e/child", b"")
    check(client.exists(f"{root}/e").ephemeralOwner == client.client_id[0], "owner is the session")
    client.delete(f"{root}/e")


def sequences():
    client.create(f"{root}/q", b"")
    names = [client.create(f"{root}/q/n-", b"", sequence=True) for _ in range(3)]
    check([n[-10:] for n in names] == ["0000000000", "0000000001", "0000000002"], f"suffixes {names}")
    client.delete(names[2])
    check(client.create(f"{root}/q/m-", b"", sequence=True).endswith("0000000003"), "no number is used twice")


def watches():
    fired = threading.Event()
    seen = []

    def on_event(event):
        seen.append((event.type, event.path))
        fired.set()

    client.create(f"{root}/w", b"1")
    client.get(f"{root}/w", watch=on_event)
    client.set(f"{root}/w", b"2")
    client.set(f"{root}/w", b"3")
    check(fired.wait(5), "a data watch fires")
    client.get(f"{root}/w")
    check(seen == [("CHANGED", f"{root}/w")], f"once: {seen}")

    fired.clear(), seen.clear()
    check(client.exists(f"{root}/later", watch=on_event) is None, "not there yet")
    client.create(f"{root}/later", b"")
    check(fired.wait(5) and seen == [("CREATED", f"{root}/later")], f"exists watch: {seen}")


def transactions():
    good = client.transaction()
    good.create(f"{root}/t1", b"")
    good.set_data(f"{root}/t1", b"x")
    good.check(f"{root}/t1", 1)
    results = good.commit()
    check(not any(isinstance(r, Exception) for r in results), f"transaction {results}")
    bad = client.transaction()
    bad.create(f"{root}/t2", b"")
    bad.create(f"{root}/t1", b"")
    results = bad.commit()
    check(isinstance(results[0], RolledBackError), f"first is rolled back: {results}")
    check(isinstance(results[1], NodeExistsError), f"second says why: {results}")
    check(client.exists(f"{root}/t2") is None, "nothing of a failed transaction stays")


def locks():
    lock = client.Lock(f"{root}/lock", "one")
    check(lock.acquire(timeout=10), "a free lock")
    second = connect(options)
    other = second.Lock(f"{root}/lock", "two")
    check(not other.acquire(blocking=False), "a held lock is refused")
    lock.release()
    check(other.acquire(timeout=10), "a released lock")
    other.release()
    second.stop()
    second.close()


def housekeeping():
    client.sync(root)
    acls, _ = client.get_acls(root)
    check(acls[0].id.scheme == "world", f"acl {acls}")
    client.add_auth("digest", "user:secret")
    check("zookeeper" in client.get_children("/"), "/zookeeper is listed")


for step in (data, tree, ephemerals, sequences, watches, transactions, locks, housekeeping):
    step()
    say("ok", step.__name__)
client.delete(root, recursive=True)
client.stop()
client.close()
say("done")
