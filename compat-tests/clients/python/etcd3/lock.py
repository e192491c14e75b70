"""etcd3's Lock: a key under /locks/ with a lease, waited for by a watch."""

from bench import PREFIX, background, check, equal, step, together
from support import connect

a, b = connect(), connect()
name = f"{PREFIX}/lock"
held, wanted = a.lock(name, ttl=30), b.lock(name, ttl=30)

with step("acquire"):
    check(held.acquire(timeout=5), "A has the lock")
    check(held.is_acquired(), "A's lock knows it")

with step("refused"):
    equal("B's attempt", wanted.acquire(timeout=0.5), False)

with step("passed"):
    waiting = background(lambda: wanted.acquire(timeout=20))
    waiting.none("B has the lock while A holds it", quiet=0.5)
    equal("A's release", held.release(), True)
    equal("B has the lock", waiting.next("B has the lock", 2), True)

with step("died"):
    waiting = background(lambda: held.acquire(timeout=20))
    waiting.none("A has the lock while B holds it", quiet=0.5)
    wanted.lease.revoke()
    equal("A has the lock", waiting.next("A has the lock", 4), True)
    equal("B's release of what it lost", wanted.release(), False)
    held.release()

with step("counter"):
    counter = f"{PREFIX}/counter"
    a.put(counter, b"0")

    def count():
        client = connect()
        lock = client.lock(name, ttl=30)
        for _ in range(10):
            # A release between its attempt and its watch goes unseen by etcd3; hence short attempts.
            while not lock.acquire(timeout=0.5):
                pass
            client.put(counter, str(int(client.get(counter)[0]) + 1))
            check(lock.release(), "the lock is released")

    together(count, count, count)
    equal("counter", a.get(counter)[0], b"30")
