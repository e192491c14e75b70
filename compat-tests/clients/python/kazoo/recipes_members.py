"""Groups and shares of a set with kazoo."""

import threading

from bench import equal, lacks, step, until
from kazoo.recipe.partitioner import PartitionState
from support import close, connect, make_root

clients = []


def session():
    clients.append(connect())
    return clients[-1]


root = make_root(session())


def together(kind, path):
    """Three join, one leaves, one dies: what all the others see by then."""
    members = {name: session() for name in "abc"}
    parties = {name: getattr(client, kind)(path, name) for name, client in members.items()}

    def seen():
        return {name: sorted(party) for name, party in parties.items()}

    def see(what, *names):
        wanted = {name: list(names) for name in names}
        until(f"{what}: {wanted}", 2, lambda: seen() == wanted)
        equal("their number", [len(party) for party in parties.values()], [len(names)] * len(names))

    for party in parties.values():
        party.join()
    see("all three", "a", "b", "c")
    parties.pop("b").leave()
    see("without the one that left", "a", "c")
    del parties["c"]
    close(members["c"])
    see("without the one whose session was closed", "a")


with step("group"):
    together("Party", f"{root}/group")

with step("names"):
    together("ShallowParty", f"{root}/names")


class Share(threading.Thread):
    """What an application does with its part of the set, as the library's documentation has it."""

    def __init__(self, name):
        super().__init__(daemon=True)
        self.client = session()
        self.changed = threading.Event()
        self.partitioner = self.client.SetPartitioner(
            f"{root}/shares", tuple("123456"), identifier=name, time_boundary=1, state_change_event=self.changed
        )
        self.over = False
        self.start()

    def run(self):
        while not self.over and not self.partitioner.failed:
            self.changed.clear()
            if self.partitioner.release:
                self.partitioner.release_set()
            elif self.partitioner.allocating:
                self.partitioner.wait_for_acquire(1)
            else:
                self.changed.wait(0.1)

    def finish(self):
        self.over = True
        self.join()
        self.partitioner.finish()

    def has(self):
        return sorted(self.partitioner) if self.partitioner.state == PartitionState.ACQUIRED else []


def divided(what, shares, each):
    def whole():
        parts = [share.has() for share in shares]
        return sorted(sum(parts, [])) == list("123456") and [len(part) for part in parts] == [each] * len(shares)

    until(f"{what}: {each} each, none twice; the last that were seen are {[share.has() for share in shares]}", 10, whole)


with step("shares"):
    shares = [Share(name) for name in "ab"]
    divided("two", shares, 3)
    shares.append(Share("c"))
    divided("three", shares, 2)
    gone = shares.pop(0)
    close(gone.client)
    divided("the other two", shares, 3)
    for share in shares:
        share.finish()

lacks("kept", "kazoo has no node that it keeps")
lacks("kept-ttl", "kazoo 2.11 has no time to live")

for client in clients:
    close(client)
