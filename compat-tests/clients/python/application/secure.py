"""A client that speaks TLS: makes `--own` with the ACL `auth`, reads `--read`, and says what came of it.

Says `acl LIST`, `read OK` or `read REFUSED`, and `done`; or `no connection` when it got none.
"""

from kazoo.client import KazooClient
from kazoo.exceptions import InvalidACLError, NoAuthError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import ACL, Id

from common import arguments, say

parser = arguments(__doc__)
parser.add_argument("--ca")
parser.add_argument("--cert")
parser.add_argument("--key")
parser.add_argument("--patience", type=float, default=20, help="seconds to wait for the connection")
parser.add_argument("--own")
parser.add_argument("--read", action="append", default=[])
options = parser.parse_args()

client = KazooClient(
    hosts=options.hosts,
    timeout=options.timeout,
    use_ssl=options.ca is not None,
    ca=options.ca,
    certfile=options.cert,
    keyfile=options.key,
)
try:
    client.start(timeout=options.patience)
except KazooTimeoutError:
    say("no connection")
    raise SystemExit(0)

if options.own:
    try:
        client.create(options.own, b"own", acl=[ACL(31, Id("auth", ""))], makepath=True)
        acls, _ = client.get_acls(options.own)
        say("acl", " ".join(sorted(f"{a.id.scheme}:{a.id.id}" for a in acls)))
    except InvalidACLError:
        say("acl REFUSED")
for path in options.read:
    try:
        client.get(path)
        say("read OK")
    except NoAuthError:
        say("read REFUSED")
client.stop()
client.close()
say("done")
