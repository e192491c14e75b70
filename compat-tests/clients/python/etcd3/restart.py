"""The server is killed and started again under etcd3. Its watches end with the connection; an application makes
them again from the last revision that it saw."""

import time

import grpc

import etcd3
from bench import PREFIX, Failed, ask, check, equal, note, step, until
from support import connect, event, keep, pair, watch

ERRORS = (etcd3.exceptions.Etcd3Exception, grpc.RpcError)
client = connect(timeout=5)
leased, followed = f"{PREFIX}/leased", f"{PREFIX}/followed/"


def readable():
    try:
        return client.get(leased)[0] is not None
    except ERRORS:
        return False


with step("before"):
    lease, bare = client.lease(15), client.lease(300)
    client.put(leased, b"mine", lease=lease)
    renewal = keep(lease, 1, through=ERRORS)
    seen, _ = watch(client, followed, prefix=True)
    client.put(f"{followed}0", b"0")
    last = event(seen, "PUT", f"{followed}0", b"0").mod_revision
    before = client.get_response(leased)

with step("down"):
    ask("restart")
    until("a get works again", 15, readable)

with step("stays"):
    after = client.get_response(leased)
    equal("pair", after.kvs[0], before.kvs[0])
    equal("its lease", after.kvs[0].lease, lease.id)
    check(after.header.revision >= before.header.revision, f"the revision {after.header.revision} has not fallen")
    kept = client.get_lease_info(bare.id)
    equal("granted to the lease without a key", kept.grantedTTL, 300)
    check(kept.TTL > 200, f"{kept.TTL} s of it remain")

with step("watch"):
    ended = seen.next("the watch ends", 5)
    if not isinstance(ended, Exception):
        raise Failed(f"expected the end of the watch, saw {ended}")
    note("etcd3 ends watches with the connection: made again from the last revision + 1")
    for number in (1, 2):
        client.put(f"{followed}{number}", str(number))
    seen, _ = watch(client, followed, prefix=True, start_revision=last + 1)
    client.put(f"{followed}3", b"3")
    for number in (1, 2, 3):
        event(seen, "PUT", f"{followed}{number}", str(number).encode())
    seen.none("an event twice", quiet=0.5)

with step("alive"):
    time.sleep(10)
    equal("pair", pair(client, leased), before.kvs[0])
    renewal.good()
    remaining = client.get_lease_info(lease.id).TTL
    check(remaining >= 8, f"{remaining} s remain of 15")
    client.put(f"{followed}4", b"4")
    event(seen, "PUT", f"{followed}4", b"4")
    seen.none("another event", quiet=0.3)
