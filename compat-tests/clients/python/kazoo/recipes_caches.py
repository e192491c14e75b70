"""kazoo's watchers and its cache of a tree. Two readers, A over the link."""

import time

from bench import LINK, Seen, ask, check, equal, lacks, step, until
from kazoo.recipe.cache import TreeCache, TreeEvent
from kazoo.recipe.watchers import PatientChildrenWatch
from support import close, connect, make_root

states = Seen()
a, b, writer = connect(LINK, listener=states), connect(), connect()
readers = {"A": a, "B": b}
root = make_root(writer)


def all_see(seen, what, wanted, limit=3):
    """Each reader's next is this."""
    for name, one in seen.items():
        equal(f"{what}, for {name}", one.next(f"{what}, for {name}", limit), wanted)


def no_more(seen, what):
    for name, one in seen.items():
        one.none(f"{what}, for {name}", quiet=0.3)


with step("node"):
    node = f"{root}/node"
    writer.create(node, b"0")
    values = {name: Seen() for name in readers}
    for name, reader in readers.items():
        reader.DataWatch(node)(lambda value, stat, *, name=name: values[name]((value, stat and stat.version)))
    all_see(values, "the first value", (b"0", 0))
    for number in (1, 2, 3):
        writer.set(node, str(number).encode())
        all_see(values, "a change", (str(number).encode(), number))
    writer.delete(node)
    all_see(values, "the deletion", (None, None))
    writer.create(node, b"again")
    all_see(values, "the return", (b"again", 0))
    no_more(values, "an event twice")

with step("children"):
    parent = f"{root}/parent"
    writer.ensure_path(f"{parent}/old")
    lists = {name: Seen() for name in readers}
    for name, reader in readers.items():
        reader.ChildrenWatch(parent)(lambda names, name=name: lists[name](sorted(names)))
    all_see(lists, "the first list", ["old"])
    writer.create(f"{parent}/new", b"")
    all_see(lists, "the list with another", ["new", "old"])
    writer.delete(f"{parent}/old")
    all_see(lists, "the list without one", ["new"])
    no_more(lists, "an event twice")

with step("patient"):
    still = f"{root}/still"
    writer.create(still, b"")
    results = {name: PatientChildrenWatch(reader, still, time_boundary=1).start() for name, reader in readers.items()}
    for name in "123":
        time.sleep(0.3)
        writer.create(f"{still}/{name}", b"")
        check(not any(result.ready() for result in results.values()), "no list while children are made")
    later = {}
    for name, result in results.items():
        names, later[name] = result.get(timeout=5)
        equal(f"the list of {name}", sorted(names), ["1", "2", "3"])
    check(not any(result.ready() for result in later.values()), "nothing is told before another change")
    writer.create(f"{still}/4", b"")
    for name, result in later.items():
        result.get(timeout=3)

# The cache tells of its connection too, which `away` watches by itself.
NAMES = {
    TreeEvent.NODE_ADDED: "added",
    TreeEvent.NODE_UPDATED: "updated",
    TreeEvent.NODE_REMOVED: "removed",
    TreeEvent.INITIALIZED: "initialized",
}


def told(event):
    """What it is, the path below the tree, the data."""
    node = event.event_data
    return NAMES[event.event_type], node.path[len(tree) :] if node else "", node.data if node else b""


with step("tree"):
    tree = f"{root}/tree"
    writer.ensure_path(f"{tree}/one")
    writer.set(tree, b"root")
    writer.set(f"{tree}/one", b"1")
    events = {name: Seen() for name in readers}
    caches = {name: TreeCache(reader, tree) for name, reader in readers.items()}
    for name, cache in caches.items():
        cache.listen(lambda event, name=name: events[name](event) if event.event_type in NAMES else None)
        cache.listen_fault(events[name])
        cache.start()

    def all_told(what, *wanted, limit=3):
        for name, one in events.items():
            for expected in wanted:
                got = one.next(f"{what}, for {name}", limit)
                equal(f"{what}, for {name}", told(got) if isinstance(got, TreeEvent) else got, expected)

    all_told("at first", ("added", "", b"root"), ("added", "/one", b"1"), ("initialized", "", b""))
    writer.create(f"{tree}/one/deep", b"2")
    all_told("a grandchild", ("added", "/one/deep", b"2"))
    writer.set(f"{tree}/one/deep", b"3")
    all_told("its change", ("updated", "/one/deep", b"3"))
    writer.delete(f"{tree}/one/deep")
    all_told("its deletion", ("removed", "/one/deep", b"3"))
    writer.delete(f"{tree}/one")
    all_told("the deletion of its parent", ("removed", "/one", b"1"))
    no_more(events, "an event twice")

lacks("persistent", "kazoo 2.11 has no persistent watches")

with step("away"):
    writer.create(f"{tree}/changes", b"before")
    writer.create(f"{tree}/goes", b"before")
    all_told("what is there before", ("added", "/changes", b"before"), ("added", "/goes", b"before"))
    states.waiting()
    session = a.client_id[0]
    ask("cut")
    equal("state", states.next("A sees that it is cut off", 8), "SUSPENDED")
    writer.create(f"{tree}/comes", b"new")
    writer.set(f"{tree}/changes", b"after")
    writer.delete(f"{tree}/goes")
    writer.set(node, b"missed")
    writer.create(f"{parent}/missed", b"")
    time.sleep(2)
    ask("mend")
    equal("state", states.next("A is connected again", 8), "CONNECTED")
    equal("session", a.client_id[0], session)
    wanted = {"changes": b"after", "comes": b"new"}

    def content(cache):
        return {name: data and data.data for name in cache.get_children(tree) for data in [cache.get_data(f"{tree}/{name}")]}

    for name, cache in caches.items():
        until(f"the tree of {name}: {wanted}", 5, lambda: content(cache) == wanted)
    for name in readers:
        equal(f"the node, for {name}", values[name].next(f"the missed value, for {name}", 5), (b"missed", 1))
        equal(f"the children, for {name}", lists[name].next(f"the missed list, for {name}", 5), ["missed", "new"])

with step("after"):
    for one in events.values():
        one.waiting()
    writer.set(f"{tree}/comes", b"once more")
    all_told("a change", ("updated", "/comes", b"once more"))
    writer.set(node, b"last")
    all_see(values, "a change", (b"last", 2))
    writer.delete(f"{parent}/missed")
    all_see(lists, "a list", ["new"])
    no_more(events, "an event twice")
    no_more(values, "an event twice")
    no_more(lists, "an event twice")

for client in (a, b, writer):
    close(client)
