"""etcd3gw's Lock: a key under /locks/ with a lease. It does not wait: the application tries again."""

import time

from bench import PREFIX, background, check, equal, step, together
from support import connect

a, b = connect(), connect()
name = f"{PREFIX}/lock"
held, wanted = a.lock(name, ttl=30), b.lock(name, ttl=30)


def acquire(lock, limit):
    last = time.monotonic() + limit
    while not lock.acquire():
        lock.lease.revoke()
        if time.monotonic() > last:
            return False
        time.sleep(0.05)
    return True


with step("acquire"):
    equal("A has the lock", held.acquire(), True)
    equal("A's lock knows it", held.is_acquired(), True)

with step("refused"):
    equal("B has the lock", acquire(wanted, 0.5), False)

with step("passed"):
    waiting = background(lambda: acquire(wanted, 20))
    waiting.none("B has the lock while A holds it", quiet=0.5)
    equal("A's release", held.release(), True)
    equal("B has the lock", waiting.next("B has the lock", 2), True)

with step("died"):
    waiting = background(lambda: acquire(held, 20))
    waiting.none("A has the lock while B holds it", quiet=0.5)
    wanted.lease.revoke()
    equal("A has the lock", waiting.next("A has the lock", 4), True)
    equal("B's release of what it lost", wanted.release(), False)
    equal("A's release", held.release(), True)

with step("counter"):
    counter = f"{PREFIX}/counter"
    a.put(counter, b"0")

    def count():
        client = connect()
        lock = client.lock(name, ttl=30)
        for _ in range(10):
            check(acquire(lock, 30), "the lock is acquired")
            client.put(counter, str(int(client.get(counter)[0]) + 1))
            check(lock.release(), "the lock is released")

    together(count, count, count)
    equal("counter", a.get(counter), [b"30"])
