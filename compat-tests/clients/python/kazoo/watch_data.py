"""One-shot watches on a value, set by get."""

from bench import Seen, check, equal, refused, step, until
from kazoo.exceptions import NoNodeError
from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler
from support import close, connect, event, make_root


class Ordered(SequentialThreadingHandler):
    """Keeps the order in which kazoo's reading thread hands out events and replies: behind it they go through different
    threads."""

    def __init__(self):
        super().__init__()
        self.order = []

    def dispatch_callback(self, callback):
        if callback.type == "watch":
            self.order.append(callback.args[0].type)
        super().dispatch_callback(callback)

    def async_result(self):
        return Reply(self)


class Reply(AsyncResult):
    def set(self, value=None):
        self._handler.order.append(value)
        super().set(value)


handler = Ordered()
a, b = connect(handler=handler), connect()
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
    # Many times over: whenever a reply shows the change, its event was handed out before.
    for number in range(20):
        seen = Seen()
        value = f"value {number}".encode()
        a.get(node, watch=seen)
        handler.order.clear()
        b.set_async(node, value)
        until("a get shows the change", 5, lambda: a.get(node)[0] == value)
        order = [what if isinstance(what, str) else what[0] for what in handler.order]
        check("CHANGED" in order, f"the event is there: {order}")
        check(order.index("CHANGED") < order.index(value), f"the event came before the reply that shows the change: {order}")
        event(seen, "CHANGED", node, limit=2)

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
