"""The server is killed and started again under etcd3gw. Its watches fall silent with the connection; an
application makes them again from the last revision that it saw."""

import time

import requests

from bench import PREFIX, ask, check, equal, note, step, until
from etcd3gw.exceptions import Etcd3Exception
from support import connect, event, keep, pair, revision, watch

ERRORS = (Etcd3Exception, requests.RequestException)
client = connect(timeout=5)
leased, followed = f"{PREFIX}/leased", f"{PREFIX}/followed/"


def readable():
    try:
        return client.get(leased) == [b"mine"]
    except ERRORS:
        return False


with step("before"):
    lease, bare = client.lease(15), client.lease(300)
    client.put(leased, b"mine", lease=lease)
    renewal = keep(lease, 1, through=ERRORS)
    seen, _ = watch(client, followed, prefix=True)
    client.put(f"{followed}0", b"0")
    last = int(event(seen, "PUT", f"{followed}0", b"0")["mod_revision"])
    before, revision_before = pair(client, leased), revision(client)

with step("down"):
    ask("restart")
    until("a get works again", 15, readable)

with step("stays"):
    equal("pair", pair(client, leased), before)
    equal("its lease", before["lease"], lease.id)
    now = revision(client)
    check(now >= revision_before, f"the revision {now} has not fallen below {revision_before}")
    remaining = bare.ttl()
    check(remaining > 200, f"{remaining} s remain of the 300 of the lease without a key")

with step("watch"):
    note("etcd3gw's watches fall silent with the connection: made again from the last revision + 1")
    for number in (1, 2):
        client.put(f"{followed}{number}", str(number))
    seen, _ = watch(client, followed, prefix=True, start_revision=last + 1)
    client.put(f"{followed}3", b"3")
    for number in (1, 2, 3):
        event(seen, "PUT", f"{followed}{number}", str(number).encode())
    seen.none("an event twice", quiet=0.5)

with step("alive"):
    time.sleep(10)
    equal("pair", pair(client, leased), before)
    renewal.good()
    remaining = lease.ttl()
    check(remaining >= 8, f"{remaining} s remain of 15")
    client.put(f"{followed}4", b"4")
    event(seen, "PUT", f"{followed}4", b"4")
    seen.none("another event", quiet=0.3)
