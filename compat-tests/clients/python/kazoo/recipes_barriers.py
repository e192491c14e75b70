"""kazoo's barriers. Its leave returns nothing."""

import time

from bench import background, check, equal, step
from support import children_are, close, connect, heard, make_root

clients = [connect() for _ in range(3)]
a, b, c = clients
root = make_root(a)
path = f"{root}/double"


def entering(client, name):
    barrier = client.DoubleBarrier(path, 3, name)

    def enter():
        barrier.enter()
        return barrier.participating

    return barrier, background(enter)


def leaving(barrier):
    def leave():
        barrier.leave()
        return "out"

    return background(leave)


with step("barrier"):
    a.Barrier(f"{root}/barrier").create()
    waiting = [background(heard(client, root).Barrier(f"{root}/barrier").wait) for client in (b, c)]
    for one in waiting:
        one.none("it goes on while the barrier is there", quiet=0.5)
    equal("the barrier was there", a.Barrier(f"{root}/barrier").remove(), True)
    for one in waiting:
        equal("it goes on", one.next("it goes on", 2), True)
    equal("the barrier was there", a.Barrier(f"{root}/barrier").remove(), False)

with step("none"):
    start = time.monotonic()
    equal("it goes on", b.Barrier(f"{root}/none").wait(5), True)
    check(time.monotonic() - start < 1, "at once")

with step("in-time"):
    a.Barrier(f"{root}/stays").create()
    equal("it gives up", heard(b, root).Barrier(f"{root}/stays").wait(0.5), False)
    equal("the barrier was there", a.Barrier(f"{root}/stays").remove(), True)


def all_in():
    """Three barriers that are entered, the last of them later."""
    first, second = entering(a, "a"), entering(b, "b")
    for _, one in (first, second):
        one.none("it is in before the third came", quiet=0.5)
    third = entering(c, "c")
    for _, one in (first, second, third):
        equal("it is in", one.next("it is in", 2), True)
    return [barrier for barrier, _ in (first, second, third)]


with step("enter"):
    barriers = all_in()

with step("leave"):
    going = [leaving(barrier) for barrier in barriers[:2]]
    for one in going:
        one.none("it is out before the third left", quiet=0.5)
    going.append(leaving(barriers[2]))
    for one in going:
        equal("it is out", one.next("it is out", 2), "out")

with step("dies"):
    barriers = all_in()
    close(c)
    for one in [leaving(barrier) for barrier in barriers[:2]]:
        equal("it is out", one.next("it is out", 2), "out")

with step("clean"):
    children_are(heard(a, root), path, [])

for client in (a, b):
    close(client)
