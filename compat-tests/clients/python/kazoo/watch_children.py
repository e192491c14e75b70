"""One-shot watches on the list of children."""

import threading
import time

from bench import Seen, equal, step, until
from support import children_are, close, connect, event, make_root

a, b = connect(), connect()
root = make_root(b)
node = f"{root}/node"
b.create(node, b"")


def watched(names):
    seen = Seen()
    # In an ensemble a server may not have heard of the other client's writes yet.
    a.sync(root)
    equal("children", sorted(a.get_children(node, watch=seen)), names)
    return seen


with step("created"):
    seen = watched([])
    b.create(f"{node}/child", b"")
    event(seen, "CHILD", node)
    seen.none("a second event", quiet=0.3)

with step("deleted"):
    seen = watched(["child"])
    b.delete(f"{node}/child")
    event(seen, "CHILD", node)
    seen.none("a second event", quiet=0.3)

with step("data-silent"):
    b.create(f"{node}/child", b"")
    seen = watched(["child"])
    b.set(f"{node}/child", b"1")
    b.set(node, b"1")
    seen.none("an event for a value")

with step("grandchild-silent"):
    seen = watched(["child"])
    b.create(f"{node}/child/grandchild", b"")
    seen.none("an event for a grandchild")

with step("parent-deleted"):
    b.delete(f"{node}/child", recursive=True)
    seen = watched([])
    b.delete(node)
    event(seen, "DELETED", node)
    seen.none("a second event", quiet=0.3)

with step("ephemeral"):
    b.create(node, b"")
    c = connect()
    c.create(f"{node}/ephemeral", b"", ephemeral=True)
    seen = watched(["ephemeral"])
    close(c)
    event(seen, "CHILD", node, limit=2)
    children_are(a, node, [])

with step("follow"):
    lists = []
    changed = threading.Event()

    def listing():
        lists.append(sorted(a.get_children(node, watch=lambda _: changed.set())))

    def make():
        for number in range(20):
            b.create(f"{node}/{number:02}", b"")
            time.sleep(0.01)

    listing()
    maker = threading.Thread(target=make)
    maker.start()
    wanted = [f"{number:02}" for number in range(20)]

    def follow():
        if changed.is_set():
            changed.clear()
            listing()
        return lists[-1] == wanted

    until("A has all 20", 10, follow)
    maker.join()
    for shorter, longer in zip(lists, lists[1:]):
        equal("no child is missed between two lists", longer[: len(shorter)], shorter)

close(a)
close(b)
