"""Shows the stat of one node, `FIELD NUMBER` on a line each; numbers that are ids in hexadecimal."""

from common import arguments, connect, say

parser = arguments(__doc__)
parser.add_argument("--path", required=True)
options = parser.parse_args()

client = connect(options)
_, stat = client.get(options.path)
for field in ("czxid", "mzxid", "pzxid", "ephemeralOwner"):
    say(field, f"{getattr(stat, field) & 0xFFFFFFFFFFFFFFFF:#x}")
for field in ("version", "cversion", "aversion", "dataLength", "numChildren", "ctime", "mtime"):
    say(field, getattr(stat, field))
client.stop()
client.close()
