"""Nodes, values and Stats with kazoo."""

import time

from bench import check, equal, note, refused, step
from kazoo.exceptions import (
    BadVersionError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from support import children_are, close, connect, make_root

client, other = connect(), connect()
root = make_root(client)
node = f"{root}/node"
everything = bytes(range(256))

with step("create"):
    equal("path", client.create(node, everything), node)

with step("get"):
    value, first = client.get(node)
    equal("value", value, everything)
    equal("versions", (first.version, first.cversion, first.aversion), (0, 0, 0))
    equal("owner, length, children", (first.ephemeralOwner, first.dataLength, first.numChildren), (0, 256, 0))
    check(first.czxid > 0, f"czxid {first.czxid} is above 0")
    equal("mzxid and pzxid", (first.mzxid, first.pzxid), (first.czxid, first.czxid))
    equal("mtime", first.mtime, first.ctime)
    check(abs(first.ctime / 1000 - time.time()) < 60, f"ctime {first.ctime} is now")

with step("set"):
    time.sleep(0.01)
    stat = client.set(node, everything, version=0)
    equal("version", stat.version, 1)
    check(stat.mzxid > first.czxid, f"mzxid {stat.mzxid} is above czxid {first.czxid}")
    check(stat.mtime >= first.mtime, "mtime does not fall")
    equal("the rest", stat, first._replace(version=1, mzxid=stat.mzxid, mtime=stat.mtime))
    equal("the Stat that get gives", client.get(node), (everything, stat))

with step("bad-version"):
    refused(BadVersionError, client.set, node, b"other", version=7)
    refused(BadVersionError, client.delete, node, version=7)
    equal("the node", client.get(node), (everything, stat))

with step("any-version"):
    after = client.set(node, b"three", version=-1)
    equal("version", after.version, 2)
    equal("value", client.get(node)[0], b"three")

with step("exists"):
    equal("Stat", client.exists(node), client.get(node)[1])
    equal("of a path without a node", client.exists(f"{root}/none"), None)

with step("no-node"):
    missing = f"{root}/none"
    refused(NoNodeError, client.get, missing)
    refused(NoNodeError, client.set, missing, b"")
    refused(NoNodeError, client.delete, missing)
    refused(NoNodeError, client.get_children, missing)
    refused(NoNodeError, client.create, f"{missing}/child", b"")

with step("node-exists"):
    refused(NodeExistsError, client.create, node, b"")

with step("empty-data"):
    client.create(f"{root}/empty", b"")
    value, stat = client.get(f"{root}/empty")
    equal("value and length", (value, stat.dataLength), (b"", 0))

with step("large-data"):
    large = bytes(number % 251 for number in range(1_000_000))
    client.create(f"{root}/large", b"")
    equal("length", client.set(f"{root}/large", large).dataLength, 1_000_000)
    check(client.get(f"{root}/large")[0] == large, "the value comes back")

with step("children"):
    parent = f"{root}/parent"
    client.create(parent, b"")
    for name in ("a", "b", "c"):
        client.create(f"{parent}/{name}", b"")
    names, stat = client.get_children(parent, include_data=True)
    equal("names", sorted(names), ["a", "b", "c"])
    equal("numChildren and cversion", (stat.numChildren, stat.cversion), (3, 3))
    equal("pzxid", stat.pzxid, client.exists(f"{parent}/c").czxid)

with step("child-deleted"):
    before = stat
    client.delete(f"{parent}/b")
    stat = client.exists(parent)
    equal("numChildren and cversion", (stat.numChildren, stat.cversion), (2, 4))
    check(stat.pzxid > before.pzxid, f"pzxid {stat.pzxid} is above {before.pzxid}")
    equal("mzxid and version", (stat.mzxid, stat.version), (before.mzxid, before.version))

with step("child-changed"):
    client.set(f"{parent}/a", b"changed")
    equal("the parent's Stat", client.exists(parent), stat)

with step("not-empty"):
    refused(NotEmptyError, client.delete, parent)

with step("sequential"):
    client.create(f"{root}/queue", b"")
    made = [client.create(f"{root}/queue/{prefix}", b"", sequence=True) for prefix in ("n-", "n-", "m-")]
    wanted = [f"{root}/queue/{name}" for name in ("n-0000000000", "n-0000000001", "m-0000000002")]
    equal("paths", made, wanted)

with step("sequential-after"):
    client.delete(made[2])
    path = client.create(f"{root}/queue/n-", b"", sequence=True)
    equal("path", path, f"{root}/queue/n-0000000003")

with step("ephemeral"):
    client.create(f"{root}/ephemeral", b"", ephemeral=True)
    equal("ephemeralOwner", client.exists(f"{root}/ephemeral").ephemeralOwner, client.client_id[0])

with step("no-children"):
    refused(NoChildrenForEphemeralsError, client.create, f"{root}/ephemeral/child", b"")

with step("bad-path"):
    session = client.client_id[0]
    refused(ValueError, client.create, f"{root}/a/../b", b"")
    note("kazoo takes an empty segment out of a path before it sends it")
    equal("path", client.create(f"{root}//twice", b""), f"{root}/twice")
    children_are(other, f"{root}/twice", [])
    client.get(node)
    equal("session", client.client_id[0], session)

with step("sync"):
    other.set(node, b"by the other")
    equal("path", client.sync(node), node)
    equal("value", client.get(node)[0], b"by the other")

with step("delete"):
    client.delete(root, recursive=True)
    equal("the root", client.exists(root), None)

close(client)
close(other)
