"""A session that is cut off for longer than its timeout. kazoo makes a new session by itself and says LOST before."""

import time

from bench import LINK, Seen, ask, check, equal, step
from support import close, connect, event, make_root

states, gone = Seen(), Seen()
b = connect()
root = make_root(b)
node = f"{root}/ephemeral"

with step("created"):
    a = connect(LINK, timeout=4, listener=states)
    session = a.client_id[0]
    a.create(node, b"", ephemeral=True)
    stat = b.exists(node, watch=gone)
    check(stat, "B sees the node")
    equal("owner", stat.ephemeralOwner, session)
    states.waiting()

with step("kept"):
    ask("cut")
    cut = time.monotonic()
    time.sleep(1.5)
    check(b.exists(node), "the node is there 1.5 s after the cut")
    check(not gone.waiting(), "no event yet")

with step("gone"):
    event(gone, "DELETED", node, limit=9)
    after = time.monotonic() - cut
    check(2 <= after <= 9, f"the node went {after:.1f} s after the cut")
    equal("exists", b.exists(node), None)

with step("told"):
    ask("mend")
    equal("state", states.next("A sees that it is cut off"), "SUSPENDED")
    equal("state", states.next("A is told", 15), "LOST")

with step("again"):
    equal("state", states.next("A is connected again", 15), "CONNECTED")
    check(a.client_id[0] not in (0, session), f"the session {a.client_id[0]:#x} is another")
    a.create(node, b"", ephemeral=True)
    equal("owner", b.exists(node).ephemeralOwner, a.client_id[0])

close(a)
close(b)
