"""A session with kazoo. It tells the negotiated timeout only in its log."""

import logging
import time

from bench import PREFIX, check, equal, step, until
from support import close, connect

BLATHER = 5  # kazoo's own level below DEBUG


class Negotiated(logging.Handler):
    """Keeps what kazoo logs of each session that it is granted."""

    def __init__(self):
        super().__init__(BLATHER)
        self.milliseconds = []

    def emit(self, record):
        if str(record.msg).startswith("Session created"):
            self.milliseconds.append(record.args[2])


def negotiated(timeout):
    log = logging.getLogger("kazoo.client")
    handler = Negotiated()
    log.addHandler(handler)
    log.setLevel(BLATHER)
    log.propagate = False
    client = connect(timeout=timeout)
    log.setLevel(logging.NOTSET)
    log.propagate = True
    log.removeHandler(handler)
    close(client)
    check(handler.milliseconds, "kazoo logged the session")
    return handler.milliseconds[0]


with step("session"):
    other = connect()
    session, password = other.client_id
    check(session != 0, "the session id is not 0")
    equal("length of the password", len(password), 16)

with step("timeout-low"):
    equal("negotiated", negotiated(0.1), 4000)

with step("timeout-high"):
    equal("negotiated", negotiated(100), 40000)

with step("idle"):
    states = []
    client = connect(timeout=4, listener=states.append)
    session = client.client_id[0]
    client.create(f"{PREFIX}/idle", b"", ephemeral=True, makepath=True)
    time.sleep(10)
    stat = other.exists(f"{PREFIX}/idle")
    check(stat is not None, "the ephemeral node is there after 10 s")
    equal("its owner", stat.ephemeralOwner, session)
    equal("states of the connection", states, ["CONNECTED"])
    equal("the session", client.client_id[0], session)

with step("close"):
    close(client)
    until("the ephemeral node is gone", 1, lambda: other.exists(f"{PREFIX}/idle") is None)

close(other)
