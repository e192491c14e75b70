"""Compaction with etcd3."""

from bench import PREFIX, Failed, check, equal, lacks, step
from etcd3.exceptions import RevisionCompactedError
from support import connect, event, rejected, revision, watch

client = connect()
key = f"{PREFIX}/key"
COMPACTED = "etcdserver: mvcc: required revision has been compacted"

with step("compact"):
    revisions = [client.put(key, str(number)).header.revision for number in range(1, 11)]
    client.compact(revisions[7])

lacks("range", "etcd3 0.12 takes a revision for a range and does not send it")

with step("again"):
    rejected(COMPACTED, client.compact, revisions[7])

with step("future"):
    rejected(
        "etcdserver: mvcc: required revision is a future revision", client.compact, revision(client, key) + 1_000_000
    )

with step("watch"):
    events, cancel = client.watch(key, start_revision=revisions[1])
    try:
        got = next(events)
    except RevisionCompactedError as error:
        equal("the compact revision", error.compacted_revision, revisions[7])
    else:
        raise Failed(f"expected RevisionCompactedError, saw {got}")

with step("watch-later"):
    seen, _ = watch(client, key, start_revision=revisions[8])
    equal("revision", event(seen, "PUT", key, b"9").mod_revision, revisions[8])
    equal("revision", event(seen, "PUT", key, b"10").mod_revision, revisions[9])
    seen.none("another event", quiet=0.3)
    check(client.get(key)[0] == b"10", "the key is as it was")
