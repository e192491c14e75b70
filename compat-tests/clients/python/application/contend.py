"""Contends for what several clients write at once, and says what came of it.

`watch`: one client re-arms a one-shot watch on the children of a node while another creates them; says `lost N`.
`compare`: four clients add one to a node's value, each write on the version that was read; says `counted A V` with
the acknowledged writes and the value they made.
`sequence`: creates sequential nodes and deletes all but the last; says `numbers N,N,…`.
"""

import threading
import time

from kazoo.exceptions import BadVersionError

from common import arguments, connect, say

parser = arguments(__doc__)
parser.add_argument("what", choices=["watch", "compare", "sequence"])
parser.add_argument("--dir", required=True)
parser.add_argument("--rounds", type=int, required=True)
options = parser.parse_args()


def watch():
    reader, writer = connect(options), connect(options)
    lost = 0
    for number in range(options.rounds):
        path = f"{options.dir}/{number}"
        reader.ensure_path(path)
        seen = []
        reader.ChildrenWatch(path)(lambda children, seen=seen: seen.append(len(children)))
        for child in range(6):
            writer.create(f"{path}/{child}")
        limit = time.monotonic() + 3
        while seen[-1] != 6 and time.monotonic() < limit:
            time.sleep(0.01)
        lost += seen[-1] != 6
    say("lost", lost)


def compare():
    clients = [connect(options) for _ in range(4)]
    path = f"{options.dir}/counter"
    clients[0].ensure_path(options.dir)
    clients[0].create(path, b"0")

    def count(client):
        done = 0
        while done < options.rounds:
            value, stat = client.get(path)
            try:
                client.set(path, str(int(value) + 1).encode(), version=stat.version)
                done += 1
            except BadVersionError:
                pass

    threads = [threading.Thread(target=count, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say("counted", 4 * options.rounds, int(clients[0].get(path)[0]))


def sequence():
    client = connect(options)
    client.ensure_path(options.dir)
    paths = [client.create(f"{options.dir}/n-", sequence=True) for _ in range(options.rounds)]
    for path in paths[:-1]:
        client.delete(path)
    say("numbers", ",".join(path[-10:] for path in paths))


{"watch": watch, "compare": compare, "sequence": sequence}[options.what]()
