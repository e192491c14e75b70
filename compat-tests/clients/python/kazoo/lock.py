"""kazoo's Lock."""

from bench import background, check, equal, refused, step, together
from kazoo.exceptions import LockTimeout
from support import children_are, close, connect, make_root

a, b = connect(), connect()
root = make_root(a)
path = f"{root}/lock"
held, wanted = a.Lock(path, "a"), b.Lock(path, "b")

with step("acquire"):
    check(held.acquire(timeout=5), "A has the lock")

with step("refused"):
    refused(LockTimeout, wanted.acquire, timeout=0.5)

with step("passed"):
    waiting = background(lambda: wanted.acquire(timeout=10))
    waiting.none("B has the lock while A holds it", quiet=0.5)
    held.release()
    equal("B has the lock", waiting.next("B has the lock", 2), True)

with step("died"):
    waiting = background(lambda: held.acquire(timeout=10))
    waiting.none("A has the lock while B holds it", quiet=0.5)
    close(b)
    equal("A has the lock", waiting.next("A has the lock", 2), True)
    held.release()

with step("counter"):
    a.create(f"{root}/counter", b"0")
    clients = [connect() for _ in range(3)]

    def count(client):
        lock = client.Lock(path, "counter")
        for _ in range(10):
            with lock:
                value, _ = client.get(f"{root}/counter")
                client.set(f"{root}/counter", str(int(value) + 1).encode(), version=-1)

    together(*[lambda client=client: count(client) for client in clients])
    equal("counter", a.get(f"{root}/counter")[0], b"30")

with step("clean"):
    children_are(a, path, [])

for client in (a, *clients):
    close(client)
