"""A session over a link that is cut for a while. kazoo forgets one-shot watches when a connection is lost; its
DataWatch and ChildrenWatch set them anew and show what was missed."""

import time

from bench import LINK, Seen, ask, check, equal, note, step
from support import children_are, close, connect, make_root

states = Seen()
b = connect()
root = make_root(b)
w, p = f"{root}/w", f"{root}/p"

with step("created"):
    b.create(w, b"before")
    b.create(p, b"")
    a = connect(LINK, timeout=10, listener=states)
    session = a.client_id[0]
    a.create(f"{root}/ephemeral", b"", ephemeral=True)
    made = b.exists(f"{root}/ephemeral")
    values, children = Seen(), Seen()
    a.DataWatch(w)(lambda value, stat: values(value))
    a.ChildrenWatch(p)(children)
    equal("first value", values.next("the first value"), b"before")
    equal("first list", children.next("the first list"), [])
    states.waiting()

with step("away"):
    ask("cut")
    b.set(w, b"missed")
    b.create(f"{p}/child", b"")
    time.sleep(2)
    ask("mend")

with step("same"):
    equal("state", states.next("A sees that it is cut off", 10), "SUSPENDED")
    equal("state", states.next("A is connected again", 10), "CONNECTED")
    equal("session", a.client_id[0], session)

with step("stays"):
    stat = b.exists(f"{root}/ephemeral")
    check(stat, "the ephemeral node is there")
    equal("czxid and owner", (stat.czxid, stat.ephemeralOwner), (made.czxid, session))

with step("data-watch"):
    equal("value", values.next("the missed value"), b"missed")
    values.none("a second event for W")
    note("by DataWatch, as kazoo drops one-shot watches with the connection")

with step("child-watch"):
    equal("list", children.next("the missed list"), ["child"])
    children.none("a second event for P")

with step("works"):
    a.create(f"{root}/after", b"after")
    equal("value", a.get(f"{root}/after")[0], b"after")
    children_are(b, root, ["after", "ephemeral", "p", "w"])

close(a)
close(b)
