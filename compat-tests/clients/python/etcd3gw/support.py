"""An etcd3gw client, and how its errors and events are told apart."""

import base64
import json
import threading

import etcd3gw
from bench import ADDRESS, Failed, Seen, brief, equal
from etcd3gw.exceptions import Etcd3Exception
from renewal import Renewal


def connect(address=ADDRESS, **named):
    host, _, port = address.partition(",")[0].rpartition(":")
    return etcd3gw.client(host=host, port=int(port), timeout=named.pop("timeout", 10), **named)


def rejected(words, call, *args, **named):
    """The server refuses the call with these words. etcd3gw shows the answer's body as it is."""
    try:
        got = call(*args, **named)
    except Etcd3Exception as error:
        if not error.detail_text:
            raise
        try:
            said = json.loads(error.detail_text).get("message")
        except ValueError:
            said = error.detail_text
        equal("refusal", said, words)
        return
    raise Failed(f"expected the refusal {words!r}, saw the result {brief(got)}")


def watch(client, key, prefix=False, **named):
    """What a watch brings, one event at a time, and how to cancel it."""
    seen = Seen()
    events, cancel = (client.watch_prefix if prefix else client.watch)(key, **named)

    def follow():
        for event in events:
            seen(event)

    threading.Thread(target=follow, daemon=True).start()
    return seen, cancel


def event(seen, kind, key, value=b"", limit=5):
    """The next event is this one; gives its pair with the pair before."""
    got = seen.next(f"the event {kind} of {key}", limit)
    pair = got["kv"]
    equal("event", (got.get("type", "PUT"), pair["key"], pair.get("value", b"")), (kind, key.encode(), value))
    return {**pair, "before": got.get("prev_kv")}


def pair(client, key, **named):
    """Value and metadata of the key, numbers as numbers; nothing when it is not there."""
    found = client.get(key, metadata=True, **named)
    if not found:
        return None
    value, metadata = found[0]
    numbers = {name: int(metadata.get(name, 0)) for name in ("create_revision", "mod_revision", "version", "lease")}
    return {"key": metadata["key"], "value": value, **numbers}


def encode(text):
    """Keys and values in a transaction, which etcd3gw takes as the gateway's JSON."""
    return base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()


def decode(text):
    return base64.b64decode(text)


def put(key, value, **named):
    return {"request_put": {"key": encode(key), "value": encode(value), **named}}


def get(key, **named):
    return {"request_range": {"key": encode(key), **named}}


def delete(key, **named):
    return {"request_delete_range": {"key": encode(key), **named}}


def transact(client, success, compare=(), failure=()):
    return client.transaction({"compare": list(compare), "success": list(success), "failure": list(failure)})


def revision(client, key="any"):
    """The store's revision now. etcd3gw shows headers of transactions alone."""
    return int(transact(client, [get(key)])["header"]["revision"])


def keep(lease, pause, through=()):
    """Keeps the lease."""
    return Renewal(lambda: lease.refresh(), pause, through)
