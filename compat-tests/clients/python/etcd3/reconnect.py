"""A connection that is cut and comes back. etcd3 ends watches with the connection; the application makes them again."""

import threading
import time

import grpc

import etcd3
from bench import LINK, PREFIX, Failed, ask, check, equal, note, step, until
from support import connect, event, pair, watch

ERRORS = (etcd3.exceptions.Etcd3Exception, grpc.RpcError)
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
        return a.get(leased)[0] is not None
    except ERRORS:
        return False


with step("before"):
    lease = a.lease(15)
    a.put(leased, b"mine", lease=lease)
    threading.Thread(target=renew, args=(lease,), daemon=True).start()
    seen, _ = watch(a, followed, prefix=True)
    b.put(f"{followed}0", b"0")
    last = event(seen, "PUT", f"{followed}0", b"0").mod_revision

with step("away"):
    ask("cut")
    for number in (1, 2, 3):
        b.put(f"{followed}{number}", str(number))
    b.delete(f"{followed}2")
    time.sleep(2)
    ask("mend")

with step("missed"):
    ended = seen.next("the watch ends", 5)
    if not isinstance(ended, Exception):
        raise Failed(f"expected the end of the watch, saw {ended}")
    until("A reads again", 15, readable)
    note("etcd3 ends watches with the connection: made again from the last revision + 1")
    seen, _ = watch(a, followed, prefix=True, start_revision=last + 1)
    for number in (1, 2, 3):
        event(seen, "PUT", f"{followed}{number}", str(number).encode())
    event(seen, "DELETE", f"{followed}2")
    seen.none("an event twice", quiet=0.5)

with step("alive"):
    time.sleep(8)
    found = pair(b, leased)
    check(found is not None, "the leased key is there")
    equal("its lease", found.lease, lease.id)
