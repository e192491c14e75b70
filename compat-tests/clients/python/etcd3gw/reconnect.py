"""A connection that is cut and comes back. etcd3gw's watches fall silent with it; the application makes them again."""

import threading
import time

import requests

from bench import LINK, PREFIX, ask, check, equal, note, step, until
from etcd3gw.exceptions import Etcd3Exception
from support import connect, event, pair, watch

ERRORS = (Etcd3Exception, requests.RequestException)
a, b = connect(LINK, timeout=5), connect()
leased, followed = f"{PREFIX}/leased", f"{PREFIX}/followed/"


def renew(lease):
    while True:
        time.sleep(1)
        try:
            lease.refresh()
        except ERRORS:
            pass  # the next one


def readable():
    try:
        return a.get(leased) == [b"mine"]
    except ERRORS:
        return False


with step("before"):
    lease = a.lease(15)
    a.put(leased, b"mine", lease=lease)
    threading.Thread(target=renew, args=(lease,), daemon=True).start()
    seen, _ = watch(a, followed, prefix=True)
    b.put(f"{followed}0", b"0")
    last = int(event(seen, "PUT", f"{followed}0", b"0")["mod_revision"])

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
    found = pair(b, leased)
    check(found is not None, "the leased key is there")
    equal("its lease", found["lease"], lease.id)
