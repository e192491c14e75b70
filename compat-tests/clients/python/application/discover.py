"""Lists a directory once: `child NAME OWNER VALUE` for each node, then `end COUNT`."""

from kazoo.exceptions import NoNodeError

from common import arguments, connect, say

parser = arguments(__doc__)
parser.add_argument("--dir", required=True)
options = parser.parse_args()

client = connect(options)
try:
    names = sorted(client.get_children(options.dir))
except NoNodeError:
    names = []
count = 0
for name in names:
    try:
        value, stat = client.get(f"{options.dir.rstrip('/')}/{name}")
    except NoNodeError:
        continue  # gone between the list and the read
    owner = stat.ephemeralOwner & 0xFFFFFFFFFFFFFFFF
    say("child", name, f"{owner:#x}", value.decode("utf-8", "backslashreplace"))
    count += 1
say("end", count)
client.stop()
client.close()
