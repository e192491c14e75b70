"""A chroot at the end of the hosts string."""

from bench import Seen, check, equal, refused, step
from kazoo.exceptions import NoNodeError
from support import PREFIX, children_are, close, connect, event, make_root

other = connect()

with step("missing"):
    client = connect(chroot=f"{PREFIX}/none")
    check(client.connected, "connected")
    refused(NoNodeError, client.create, "/node", b"")
    close(client)

with step("works"):
    make_root(other)
    client = connect(chroot=PREFIX)
    equal("path", client.create("/node", b"value"), "/node")
    equal("value", client.get("/node")[0], b"value")
    children_are(client, "/", ["node"])
    children_are(other, PREFIX, ["node"])
    equal("value by its whole path", other.get(f"{PREFIX}/node")[0], b"value")

with step("watch"):
    seen = Seen()
    client.get("/node", watch=seen)
    other.set(f"{PREFIX}/node", b"new")
    event(seen, "CHANGED", "/node")
    seen = Seen()
    client.get_children("/", watch=seen)
    other.create(f"{PREFIX}/more", b"")
    event(seen, "CHILD", "/")

close(client)
close(other)
