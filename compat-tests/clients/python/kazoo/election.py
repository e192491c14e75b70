"""kazoo's Election: run blocks until it leads, then calls the leader's function."""

import threading

from bench import Seen, check, equal, step
from support import close, connect, make_root

root = make_root(connect())
led = Seen()


class Candidate:
    def __init__(self, name):
        self.name = name
        self.client = connect()
        self.resign = threading.Event()
        threading.Thread(target=self.campaign, daemon=True).start()

    def campaign(self):
        try:
            self.client.Election(f"{root}/election", self.name).run(self.lead)
        except Exception:  # noqa: BLE001: its session was closed under it
            if self.client.connected:
                raise

    def lead(self):
        led(self.name)
        self.resign.wait()


with step("one"):
    candidates = {name: Candidate(name) for name in ("one", "two", "three")}
    leader = candidates.pop(led.next("someone leads"))
    led.none("a second leader")

with step("follows"):
    close(leader.client)
    leader = candidates.pop(led.next("another leads", 3))
    check(len(candidates) == 1, "it is one of the other two")
    led.none("a second leader")

with step("last"):
    leader.resign.set()
    last = led.next("the last one leads", 3)
    equal("leader", [last], list(candidates))
