"""An etcd3 client, and how its errors and events are told apart."""

import grpc

import etcd3
from bench import ADDRESS, Failed, Seen, brief, describe, equal
from renewal import Renewal


def connect(address=ADDRESS, **named):
    host, _, port = address.partition(",")[0].rpartition(":")
    return etcd3.client(host=host, port=int(port), timeout=named.pop("timeout", 10), **named)


def rejected(words, call, *args, **named):
    """The server refuses the call with these words. etcd3 turns some of its answers into errors of its own without
    text; the answer is then behind them."""
    try:
        got = call(*args, **named)
    except (etcd3.exceptions.Etcd3Exception, grpc.RpcError) as error:
        answer = error if isinstance(error, grpc.RpcError) else error.__context__
        if not isinstance(answer, grpc.RpcError):
            raise Failed(f"expected the refusal {words!r}, saw {describe(error)}") from error
        equal("refusal", answer.details(), words)
        return
    raise Failed(f"expected the refusal {words!r}, saw the result {brief(got)}")


def watch(client, key, prefix=False, **named):
    """What a watch brings, one event at a time; an end of the watch is an exception among them."""
    seen = Seen()

    def callback(response):
        if isinstance(response, Exception):
            seen(response)
        else:
            for event in response.events:
                seen(event)

    add = client.add_watch_prefix_callback if prefix else client.add_watch_callback
    return seen, add(key, callback, **named)


def event(seen, kind, key, value=b"", limit=5):
    """The next event is this one; gives it."""
    got = seen.next(f"the event {kind} of {key}", limit)
    if isinstance(got, Exception):
        raise Failed(f"expected the event {kind} of {key}, saw the end of the watch: {describe(got)}")
    names = {etcd3.events.PutEvent: "PUT", etcd3.events.DeleteEvent: "DELETE"}
    equal("event", (names[type(got)], got.key, got.value), (kind, key.encode(), value))
    return got


def pair(client, key):
    """The key's pair as the server gives it, or nothing."""
    response = client.get_response(key)
    return response.kvs[0] if response.kvs else None


def revision(client, key):
    """The store's revision now, by a read of any key."""
    return client.get_response(key).header.revision


def keep(lease, pause, through=()):
    """Keeps the lease."""
    return Renewal(lambda: lease.refresh()[0].TTL, pause, through)
