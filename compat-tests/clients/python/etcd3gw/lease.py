"""Leases with etcd3gw."""

import secrets

from bench import PREFIX, check, equal, lacks, note, step
from etcd3gw.lease import Lease
from support import connect, event, pair, rejected, watch

client = connect()
kept, left = f"{PREFIX}/kept", f"{PREFIX}/left"

with step("grant"):
    lease = client.lease(60)
    check(lease.id > 0, f"the id {lease.id} is positive")
    check(50 <= lease.ttl() <= 60, f"{lease.ttl()} s remain")
    note("etcd3gw does not show the granted TTL")

lacks("own-id", "etcd3gw 2.7 takes no id")

with step("attach"):
    client.put(kept, b"1", lease=lease)
    client.put(left, b"2", lease=lease)
    equal("leases", (pair(client, kept)["lease"], pair(client, left)["lease"]), (lease.id, lease.id))

with step("ttl"):
    check(50 <= lease.ttl() <= 60, f"{lease.ttl()} s remain")
    equal("keys", sorted(lease.keys()), [kept.encode(), left.encode()])

lacks("leases", "etcd3gw 2.7 has no call for the list of leases")

with step("keep-alive"):
    equal("TTL", lease.refresh(), 60)

with step("detach"):
    client.put(left, b"3")
    equal("lease", pair(client, left)["lease"], 0)
    equal("keys of the lease", lease.keys(), [kept.encode()])

with step("no-lease"):
    never = Lease(secrets.randbelow(2**62) + 1, client)
    rejected("etcdserver: requested lease not found", client.put, f"{PREFIX}/none", b"", lease=never)
    equal("the key", pair(client, f"{PREFIX}/none"), None)

with step("revoke"):
    equal("revoke", lease.revoke(), True)
    equal("the key that it held", pair(client, kept), None)
    equal("the detached one", client.get(left), [b"3"])

with step("revoke-again"):
    rejected("etcdserver: requested lease not found", lease.revoke)

with step("gone"):
    equal("TTL and keys", (lease.ttl(), lease.keys()), (-1, []))

with step("keep-alive-gone"):
    # The answer's TTL of 0 is left out of the JSON, of which etcd3gw makes -1.
    equal("TTL", lease.refresh(), -1)

with step("one-revision"):
    lease = client.lease(60)
    names = [f"{PREFIX}/one/{name}" for name in "abc"]
    for name in ("b", "c", "a"):
        client.put(f"{PREFIX}/one/{name}", name, lease=lease)
    seen, _ = watch(connect(), f"{PREFIX}/one/", prefix=True)
    lease.revoke()
    revisions = {event(seen, "DELETE", name)["mod_revision"] for name in names}
    equal("revisions", len(revisions), 1)
