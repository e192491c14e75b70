"""One-shot watches set by exists."""

from bench import Seen, check, equal, step
from support import close, connect, event, make_root

a, b = connect(), connect()
root = make_root(b)
node = f"{root}/node"


def once(seen, kind):
    event(seen, kind, node)
    seen.none("a second event", quiet=0.3)


with step("created"):
    seen = Seen()
    equal("exists", a.exists(node, watch=seen), None)
    b.create(node, b"")
    once(seen, "CREATED")

with step("changed"):
    seen = Seen()
    check(a.exists(node, watch=seen), "the node is there")
    b.set(node, b"1")
    once(seen, "CHANGED")

with step("deleted"):
    seen = Seen()
    check(a.exists(node, watch=seen), "the node is there")
    b.delete(node)
    once(seen, "DELETED")

with step("children-silent"):
    b.create(node, b"")
    seen = Seen()
    check(a.exists(node, watch=seen), "the node is there")
    b.create(f"{node}/child", b"")
    seen.none("an event for a child")

close(a)
close(b)
