"""Readers of the past with etcd3gw. It has no call to compact: that goes by its helper for any request."""

from bench import PREFIX, check, equal, lacks, step
from support import connect, event, pair, rejected, revision, watch

client = connect()
key = f"{PREFIX}/key"
COMPACTED = "etcdserver: mvcc: required revision has been compacted"


def compact(at):
    client.post(client.get_url("/kv/compaction"), json={"revision": at})


with step("compact"):
    revisions = []
    for number in range(1, 11):
        client.put(key, str(number))
        revisions.append(pair(client, key)["mod_revision"])
    compact(revisions[7])

with step("range"):
    rejected(COMPACTED, client.get, key, revision=revisions[1])
    equal("at the ninth's", client.get(key, revision=revisions[8]), [b"9"])

with step("again"):
    rejected(COMPACTED, compact, revisions[7])

with step("future"):
    rejected("etcdserver: mvcc: required revision is a future revision", compact, revision(client) + 1_000_000)

lacks("watch", "etcd3gw 2.7 drops the message that ends a watch")

with step("watch-later"):
    seen, _ = watch(client, key, start_revision=revisions[8])
    equal("revision", int(event(seen, "PUT", key, b"9")["mod_revision"]), revisions[8])
    equal("revision", int(event(seen, "PUT", key, b"10")["mod_revision"]), revisions[9])
    seen.none("another event", quiet=0.3)
    check(client.get(key) == [b"10"], "the key is as it was")
