"""kazoo's queues and its counter."""

from bench import background, check, equal, lacks, step, together
from support import close, connect, heard, make_root

# Takers and adders that lose to another try again: kazoo does that by its retries, of which there is one otherwise.
RETRY = {"max_tries": -1, "delay": 0.02, "max_delay": 0.1}
clients = [connect(command_retry=RETRY) for _ in range(3)]
a, b, c = clients
root = make_root(a)


def fill(client, path, name):
    queue = client.Queue(path)
    for number in range(20):
        queue.put(f"{name} {number:02}".encode())


def drain(client, path):
    queue, got = client.Queue(path), []
    while (entry := queue.get()) is not None:
        got.append(entry.decode())
    return got


with step("order"):
    path = f"{root}/order"
    together(lambda: fill(a, path, "a"), lambda: fill(b, path, "b"))
    equal("entries", len(heard(c, root).Queue(path)), 40)
    got = drain(c, path)
    equal("how many came", len(got), 40)
    for name in "ab":
        mine = [entry for entry in got if entry.startswith(name)]
        equal(f"those of {name}", mine, [f"{name} {number:02}" for number in range(20)])
    equal("entries left", len(c.Queue(path)), 0)

with step("shared"):
    path = f"{root}/shared"
    together(lambda: fill(c, path, "x"), lambda: fill(a, path, "y"))
    got = {}

    def consume(client, name):
        queue = client.Queue(path)
        got[name] = [queue.get().decode() for _ in range(20)]

    for consumer in (a, b):
        heard(consumer, root)
    together(lambda: consume(a, "a"), lambda: consume(b, "b"))
    wanted = sorted(f"{name} {number:02}" for name in "xy" for number in range(20))
    equal("what both got", sorted(got["a"] + got["b"]), wanted)
    equal("entries left", len(heard(c, root).Queue(path)), 0)

with step("priority"):
    path = f"{root}/priority"
    queue = a.Queue(path)
    for value, number in (("late", 900), ("first of 5", 5), ("middle", 100), ("second of 5", 5)):
        queue.put(value.encode(), number)
    equal("order", drain(heard(b, root), path), ["first of 5", "second of 5", "middle", "late"])

with step("held"):
    path = f"{root}/held"
    a.LockingQueue(path).put_all([b"one", b"two"])
    taker, holder = connect(), heard(b, root).LockingQueue(path)
    equal("taken", heard(taker, root).LockingQueue(path).get(5), b"one")
    # The other one is free.
    equal("taken by the other", holder.get(5), b"two")
    check(holder.holds_lock(), "it holds it")
    equal("confirmed", holder.consume(), True)
    equal("what is left for it within 500 ms", holder.get(0.5), None)
    waiting = background(lambda: holder.get(20))
    waiting.none("a taken entry comes again", quiet=0.5)
    close(taker)
    equal("the entry of the closed session", waiting.next("it comes to the other", 5), b"one")
    equal("confirmed", holder.consume(), True)
    equal("entries left", len(holder), 0)
    equal("what is left", heard(a, root).LockingQueue(path).get(0.3), None)

lacks("later", "kazoo's queues know no time")
lacks("named", "kazoo's queues know no names")

with step("counter"):
    told = {}

    def add(client, name):
        counter = client.Counter(f"{root}/counter")
        told[name] = []
        for _ in range(10):
            counter += 1
            told[name].append(counter.post_value)

    together(*[lambda client=client, name=name: add(client, name) for client, name in zip(clients, "abc")])
    equal("value", heard(a, root).Counter(f"{root}/counter").value, 30)
    equal("what they were told", sorted(sum(told.values(), [])), list(range(1, 31)))
    curators = a.Counter(f"{root}/curators", support_curator=True)
    curators += 5
    equal("in Curator's form", heard(b, root).get(f"{root}/curators")[0], b"\x00\x00\x00\x05")

lacks("compared", "kazoo's counter has no such condition")
lacks("value", "kazoo has no shared value")
lacks("told", "kazoo's counter tells nobody")

for client in clients:
    close(client)
