"""Leases with etcd3."""

import secrets

from bench import PREFIX, check, equal, lacks, step
from support import connect, event, pair, rejected, watch

client = connect()
kept, left = f"{PREFIX}/kept", f"{PREFIX}/left"

with step("grant"):
    lease = client.lease(60)
    check(lease.id > 0, f"the id {lease.id} is positive")
    equal("TTL", lease.ttl, 60)

with step("own-id"):
    number = secrets.randbelow(2**62) + 1
    own = client.lease(60, lease_id=number)
    equal("id", own.id, number)
    rejected("etcdserver: lease already exists", client.lease, 60, lease_id=number)
    own.revoke()

with step("attach"):
    client.put(kept, b"1", lease=lease)
    client.put(left, b"2", lease=lease)
    equal("leases", (pair(client, kept).lease, pair(client, left).lease), (lease.id, lease.id))

with step("ttl"):
    info = client.get_lease_info(lease.id)
    equal("granted", info.grantedTTL, 60)
    check(50 <= info.TTL <= 60, f"{info.TTL} s remain")
    equal("keys", sorted(info.keys), [kept.encode(), left.encode()])

lacks("leases", "etcd3 0.12 has no call for the list of leases")

with step("keep-alive"):
    answers = lease.refresh()
    equal("answers", [(answer.ID, answer.TTL) for answer in answers], [(lease.id, 60)])

with step("detach"):
    client.put(left, b"3")
    equal("lease", pair(client, left).lease, 0)
    equal("keys of the lease", list(client.get_lease_info(lease.id).keys), [kept.encode()])

with step("no-lease"):
    rejected("etcdserver: requested lease not found", client.put, f"{PREFIX}/none", b"", lease=number)
    equal("the key", pair(client, f"{PREFIX}/none"), None)

with step("revoke"):
    lease.revoke()
    equal("the key that it held", pair(client, kept), None)
    equal("the detached one", client.get(left)[0], b"3")

with step("revoke-again"):
    rejected("etcdserver: requested lease not found", lease.revoke)

with step("gone"):
    info = client.get_lease_info(lease.id)
    equal("TTL, granted, keys", (info.TTL, info.grantedTTL, list(info.keys)), (-1, 0, []))

with step("keep-alive-gone"):
    equal("answers", [(answer.ID, answer.TTL) for answer in lease.refresh()], [(lease.id, 0)])

with step("one-revision"):
    lease = client.lease(60)
    names = [f"{PREFIX}/one/{name}" for name in "abc"]
    for name in ("b", "c", "a"):
        client.put(f"{PREFIX}/one/{name}", name, lease=lease)
    seen, _ = watch(connect(), f"{PREFIX}/one/", prefix=True)
    lease.revoke()
    revisions = {event(seen, "DELETE", name).mod_revision for name in names}
    equal("revisions", len(revisions), 1)
