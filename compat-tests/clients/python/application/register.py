"""Registers ephemeral nodes, each under a session of its own, and holds them until it is killed.

Says `registered SESSION PATH` for each node and `state SESSION STATE` when a connection changes.
Reads `deregister` (delete, then close) or `close` (close the sessions) from standard input.
"""

import sys

from kazoo.exceptions import NodeExistsError

from common import arguments, connect, say, session

parser = arguments(__doc__)
parser.add_argument("--node", nargs=2, action="append", default=[], metavar=("PATH", "VALUE"))
options = parser.parse_args()

held = []
for path, value in options.node:
    client = connect(options)
    client.ensure_path(path.rpartition("/")[0])
    try:
        client.create(path, value.encode(), ephemeral=True)
    except NodeExistsError:
        # What registration libraries do: the old owner is taken to be gone.
        client.delete(path)
        client.create(path, value.encode(), ephemeral=True)
    name = session(client)
    client.add_listener(lambda state, name=name: say("state", name, state))
    held.append((client, path))
    say("registered", name, path)

for line in sys.stdin:
    if line.strip() == "deregister":
        for client, path in held:
            client.delete(path)
        say("deregistered", len(held))
    if line.strip() in ("deregister", "close"):
        for client, _ in held:
            client.stop()
            client.close()
        say("closed", len(held))
        sys.exit(0)
