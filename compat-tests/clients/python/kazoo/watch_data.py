"""One-shot watches on a value, set by get."""

from bench import Seen, check, equal, refused, step, until
from kazoo.exceptions import NoNodeError
from support import close, connect, event, make_root

a, b = connect(), connect()
root = make_root(b)
node = f"{root}/node"
b.create(node, b"0")

with step("once"):
    seen = Seen()
    a.get(node, watch=seen)
    b.set(node, b"1")
    b.set(node, b"2")
    event(seen, "CHANGED", node)
    seen.none("a second event")

with step("before"):
    equal("value", a.get(node)[0], b"2")
    # Many times over: whenever a reply shows the change, its event is there. kazoo hands events and replies to
    # different threads, hence the short wait.
    for number in range(20):
        seen = Seen()
        version = a.get(node, watch=seen)[1].version
        b.set_async(node, str(number).encode())
        until("a get shows the change", 5, lambda: a.get(node)[1].version == version + 1)
        event(seen, "CHANGED", node, limit=0.3)

with step("again"):
    for value in (b"x", b"y"):
        seen = Seen()
        a.get(node, watch=seen)
        b.set(node, value)
        event(seen, "CHANGED", node)

with step("deleted"):
    seen = Seen()
    a.get(node, watch=seen)
    b.delete(node)
    event(seen, "DELETED", node)

with step("both"):
    b.create(node, b"")
    first, second = Seen(), Seen()
    a.get(node, watch=first)
    a.get(node, watch=second)
    b.set(node, b"1")
    event(first, "CHANGED", node)
    event(second, "CHANGED", node)
    first.none("a second event of the first watcher")
    check(not second.waiting(), "no second event of the second watcher")

with step("none"):
    seen = Seen()
    refused(NoNodeError, a.get, f"{root}/later", watch=seen)
    b.create(f"{root}/later", b"")
    seen.none("an event of a watch on a missing node")

with step("own"):
    seen = Seen()
    a.get(node, watch=seen)
    a.set(node, b"own")
    event(seen, "CHANGED", node)

close(a)
close(b)
