"""kazoo's locks beyond the plain one."""

import datetime

from bench import background, check, equal, lacks, refused, step, until
from kazoo.exceptions import LockTimeout
from support import children_are, close, connect, heard, make_root

clients = [connect() for _ in range(4)]
a, b, c, d = clients
root = make_root(a)


def waits(what, call):
    """The call, going on in the background, which does not come through by itself."""
    waiting = background(call)
    waiting.none(f"{what} has it", quiet=0.5)
    return waiting


def passes(what, waiting):
    equal(what, waiting.next(f"{what} has it", 2), True)


def spare():
    client = connect()
    clients.append(client)
    return client


with step("read-write"):
    path = f"{root}/shared"
    readers = [client.ReadLock(path, "reader") for client in (a, b, d)]
    writer = c.WriteLock(path, "writer")
    for reader in readers[:2]:
        equal("a reader has it", reader.acquire(timeout=5), True)
    writing = waits("the writer", lambda: writer.acquire(timeout=20))
    heard(c, root)
    equal("in the queue", writer.contenders(), ["reader", "reader", "writer"])
    reading = waits("the third reader", lambda: readers[2].acquire(timeout=20))
    readers[0].release()
    writing.none("the writer has it while a reader holds it", quiet=0.3)
    readers[1].release()
    passes("the writer", writing)
    reading.none("the third reader has it while the writer holds it", quiet=0.3)
    writer.release()
    passes("the third reader", reading)
    readers[2].release()

with step("reader-dies"):
    dying = spare()
    equal("the reader has it", dying.ReadLock(path, "dying").acquire(timeout=5), True)
    writing = waits("the writer", lambda: writer.acquire(timeout=20))
    close(dying)
    passes("the writer", writing)
    writer.release()

with step("semaphore"):
    counted = f"{root}/counted"
    places = [client.Semaphore(counted, name, max_leases=2) for client, name in zip((a, b, c), "abc")]
    for place in places[:2]:
        equal("a lease", place.acquire(timeout=5), True)
    equal("who has one", sorted(heard(c, root).Semaphore(counted, max_leases=2).lease_holders()), ["a", "b"])
    refused(LockTimeout, places[2].acquire, timeout=0.5)
    third = waits("the third", lambda: places[2].acquire(timeout=20))
    places[0].release()
    passes("the third", third)
    equal("who has one", sorted(heard(a, root).Semaphore(counted, max_leases=2).lease_holders()), ["b", "c"])
    places[1].release()

with step("semaphore-dies"):
    dying = spare()
    equal("a lease", dying.Semaphore(counted, "dying", max_leases=2).acquire(timeout=5), True)
    next_one = waits("the next", lambda: places[0].acquire(timeout=20))
    close(dying)
    passes("the next", next_one)
    for place in (places[0], places[2]):
        place.release()

lacks("again", "kazoo's locks are not taken twice")

with step("given-up"):
    path = f"{root}/queue"
    first, second, third = (client.Lock(path, name) for client, name in zip((a, b, c), ("first", "second", "third")))
    equal("the first has it", first.acquire(timeout=5), True)
    giving_up = background(lambda: second.acquire(timeout=2))
    until("the second is in the queue", 1, lambda: heard(d, root).Lock(path).contenders() == ["first", "second"])
    waiting = waits("the third", lambda: third.acquire(timeout=20))
    equal("in the queue", heard(d, root).Lock(path).contenders(), ["first", "second", "third"])
    check(isinstance(giving_up.next("the second gives up", 4), LockTimeout), "the second has given up")
    equal("in the queue", heard(d, root).Lock(path).contenders(), ["first", "third"])
    first.release()
    passes("the third", waiting)
    third.release()

lacks("several", "kazoo has no lock made of several")
lacks("revoked", "kazoo's locks cannot be asked back")

with step("for-a-time"):
    now = datetime.datetime(2030, 1, 1)
    hour = datetime.timedelta(hours=1)

    def lease(client, holder, hours):
        """Whether the holder gets the lease, or keeps it, so many hours later."""
        return bool(heard(client, root).NonBlockingLease(f"{root}/lease", hour, holder, utcnow=lambda: now + hours * hour))

    def several(client, holder, hours):
        return bool(
            heard(client, root).MultiNonBlockingLease(2, f"{root}/leases", hour, holder, utcnow=lambda: now + hours * hour)
        )

    seen = [lease(a, "a", 0), lease(b, "b", 0.5), lease(a, "a", 0.9), lease(b, "b", 1.5), lease(b, "b", 2), lease(a, "a", 2.5)]
    equal("one holder: a, b too early, a again, b too early, b, a too early", seen, [True, False, True, False, True, False])
    seen = [several(a, "a", 0), several(b, "b", 0.5), several(c, "c", 0.6), several(c, "c", 1.1), several(a, "a", 1.2)]
    equal("two holders: a, b, c too early, c in a's place, a too early", seen, [True, True, False, True, False])

with step("clean"):
    for path in ("shared", "queue", "counted", "lease"):
        children_are(heard(a, root), f"{root}/{path}", ["lease_holder"] if path == "lease" else [])

for client in clients[:4]:
    close(client)
