"""Watches a directory: `children A,B,C` at the start and after each change, `state STATE` in between.

Keeps watching over reconnects, as kazoo's ChildrenWatch does, until it is killed.
"""

import sys

from common import arguments, connect, say

parser = arguments(__doc__)
parser.add_argument("--dir", required=True)
options = parser.parse_args()

client = connect(options)
client.ensure_path(options.dir)
client.add_listener(lambda state: say("state", state))


@client.ChildrenWatch(options.dir)
def changed(names):
    say("children", ",".join(sorted(names)))


say("watching", options.dir)
for _ in sys.stdin:
    pass
