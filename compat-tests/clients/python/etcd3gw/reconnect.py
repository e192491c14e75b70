"""A connection that is cut and comes back. etcd3gw's watches fall silent with it; the application makes them again."""

import time

import requests

from bench import LINK, PREFIX, ask, check, equal, note, step, until
from etcd3gw.exceptions import Etcd3Exception
from support import connect, event, keep, pair, watch

ERRORS = (Etcd3Exception, requests.RequestException)
a, b = connect(LINK, timeout=5), connect()
leased, followed = f"{PREFIX}/leased", f"{PREFIX}/followed/"


def readable():
    try:
        return a.get(leased) == [b"mine"]
    except ERRORS:
        return False


with step("before"):
    lease = a.lease(15)
    a.put(leased, b"mine", lease=lease)
    renewal = keep(lease, 1, through=ERRORS)
    seen, _ = watch(a, followed, prefix=True)
    b.put(f"{followed}0", b"0")
    last = int(event(seen, "PUT", f"{followed}0", b"0")["mod_revision"])
    before = pair(b, leased)
    equal("lease of the key", before["lease"], lease.id)

with step("away"):
    ask("cut")
    for number in (1, 2, 3):
        b.put(f"{followed}{number}", str(number))
    b.delete(f"{followed}2")
    time.sleep(2)
    ask("mend")

with step("missed"):
    until("A reads again", 15, readable)
    note("etcd3gw's watches fall silent with the connection: made again from the last revision + 1")
    seen, _ = watch(a, followed, prefix=True, start_revision=last + 1)
    for number in (1, 2, 3):
        event(seen, "PUT", f"{followed}{number}", str(number).encode())
    event(seen, "DELETE", f"{followed}2")
    seen.none("an event twice", quiet=0.5)

with step("alive"):
    time.sleep(8)
    equal("pair", pair(b, leased), before)
    renewal.good()
    remaining = lease.ttl()
    check(remaining >= 8, f"{remaining} s remain of 15")
    b.put(f"{followed}4", b"4")
    event(seen, "PUT", f"{followed}4", b"4")
    seen.none("another event", quiet=0.3)
