"""What the client programs share: arguments, one connected client, line-based output."""

import argparse
import logging
import sys

from kazoo.client import KazooClient

# kazoo's own messages go to standard error, which the caller keeps as a log.
logging.basicConfig(level=logging.WARNING, stream=sys.stderr)


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--hosts", required=True, help="connect string, as in any ZooKeeper client")
    parser.add_argument("--timeout", type=float, default=4.0, help="session timeout in seconds")
    return parser


def connect(options, on_state=None):
    client = KazooClient(hosts=options.hosts, timeout=options.timeout)
    if on_state:
        client.add_listener(on_state)
    client.start(timeout=15)
    return client


def say(*words):
    print(*words, flush=True)


def session(client):
    return f"{client.client_id[0] & 0xFFFFFFFFFFFFFFFF:#x}"
