"""A connected kazoo client, and the few things that most scenarios need."""

import logging
import sys

from kazoo.client import KazooClient

from bench import ADDRESS, PREFIX, Seen, equal

logging.basicConfig(level=logging.WARNING, stream=sys.stderr)


def connect(address=ADDRESS, timeout=10, chroot="", listener=None, **named):
    client = KazooClient(hosts=address + chroot, timeout=timeout, **named)
    if listener:
        client.add_listener(listener)
    client.start(timeout=15)
    return client


def close(client):
    client.stop()
    client.close()


def make_root(client):
    """The scenario's own path."""
    client.ensure_path(PREFIX)
    return PREFIX


def event(seen, kind, path, limit=5):
    """The next event is this one."""
    got = seen.next(f"the event {kind} of {path}", limit)
    equal("event", (got.type, got.path), (kind, path))


def heard(client, path):
    """In an ensemble a server may not have heard of another client's writes yet: from here on this client sees them."""
    client.sync(path)
    return client


def children_are(client, path, wanted):
    equal(f"children of {path}", sorted(client.get_children(path)), sorted(wanted))


__all__ = ["ADDRESS", "PREFIX", "Seen", "children_are", "close", "connect", "event", "heard", "make_root"]
