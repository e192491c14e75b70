"""The server is killed and started again under kazoo."""

from bench import Seen, ask, check, equal, note, step, until
from support import close, connect, make_root

states = Seen()
a = connect(timeout=20, listener=states)
b = connect(timeout=20)
root = make_root(a)
ephemeral, watched, queue = f"{root}/ephemeral", f"{root}/watched", f"{root}/queue"

with step("before"):
    a.create(ephemeral, b"mine", ephemeral=True)
    a.create(queue, b"")
    equal("path", a.create(f"{queue}/n-", b"", sequence=True), f"{queue}/n-0000000000")
    a.create(watched, b"before")
    values = Seen()
    a.DataWatch(watched)(lambda value, stat: values(value))
    equal("first value", values.next("the first value"), b"before")
    sessions = a.client_id[0], b.client_id[0]
    made = a.exists(ephemeral)
    states.waiting()

with step("down"):
    ask("restart")
    equal("state", states.next("A sees that the server is gone", 5), "SUSPENDED")
    equal("state", states.next("A is connected again", 15), "CONNECTED")
    until("B is connected again", 15, lambda: b.connected)
    equal("sessions", (a.client_id[0], b.client_id[0]), sessions)

with step("stays"):
    stat = b.exists(ephemeral)
    check(stat, "the ephemeral node is there")
    equal("its czxid and owner", (stat.czxid, stat.ephemeralOwner), (made.czxid, sessions[0]))
    equal("its value", b.get(ephemeral)[0], b"mine")
    equal("the general node's value", b.get(watched)[0], b"before")

with step("watch"):
    values.none("an event before the change")
    b.set(watched, b"after")
    equal("value", values.next("A sees the change"), b"after")
    values.none("a second event")
    note("by DataWatch, as kazoo drops one-shot watches with the connection")

with step("numbers"):
    path = b.create(f"{queue}/n-", b"", sequence=True)
    equal("path", path, f"{queue}/n-0000000001")
    before = max(made.czxid, b.exists(f"{queue}/n-0000000000").czxid, b.exists(watched).czxid)
    check(b.exists(path).czxid > before, f"czxid {b.exists(path).czxid} is above {before}")

with step("ends"):
    close(a)
    until("the ephemeral node is gone", 2, lambda: b.exists(ephemeral) is None)

close(b)
