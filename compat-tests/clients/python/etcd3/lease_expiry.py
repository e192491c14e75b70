"""Expiry of leases. etcd3 renews nothing by itself: the application calls refresh, here twice a second."""

import time

from bench import PREFIX, check, equal, step
from support import connect, event, keep, watch

client = connect()
key = f"{PREFIX}/key"

with step("expires"):
    seen, _ = watch(client, key)
    granted = time.monotonic()
    lease = client.lease(2)
    client.put(key, b"1", lease=lease)
    event(seen, "PUT", key, b"1")
    event(seen, "DELETE", key, limit=7)
    after = time.monotonic() - granted
    check(1.5 <= after <= 6, f"the key went {after:.1f} s after the grant")
    equal("get", client.get(key), (None, None))

with step("kept"):
    lease = client.lease(2)
    client.put(key, b"2", lease=lease)
    renewal = keep(lease, 0.5)
    event(seen, "PUT", key, b"2")
    seen.none("an event while the lease is renewed", quiet=7)
    equal("value", client.get(key)[0], b"2")

with step("stopped"):
    renewal.stop()
    event(seen, "DELETE", key, limit=7)
    equal("get", client.get(key), (None, None))
