"""Access lists with the digest scheme."""

import base64
import hashlib

from bench import check, equal, refused, step
from kazoo.exceptions import BadVersionError, NoAuthError
from kazoo.security import CREATOR_ALL_ACL, Permissions, make_acl
from support import close, connect, make_root

a, b, c = connect(), connect(), connect()
root = make_root(a)
node = f"{root}/secret"
digest = base64.b64encode(hashlib.sha1(b"user:secret").digest()).decode()


def plain(acls):
    return [(acl.perms, acl.id.scheme, acl.id.id) for acl in acls]


with step("open"):
    a.create(f"{root}/open", b"")
    acls, stat = a.get_acls(f"{root}/open")
    equal("list", plain(acls), [(Permissions.ALL, "world", "anyone")])
    equal("aversion", stat.aversion, 0)

with step("digest"):
    check(a.add_auth("digest", "user:secret"), "the identity is taken")
    a.create(node, b"value", acl=CREATOR_ALL_ACL)

with step("shown"):
    acls, _ = a.get_acls(node)
    equal("list", plain(acls), [(Permissions.ALL, "digest", f"user:{digest}")])

with step("own"):
    equal("value", a.get(node)[0], b"value")
    equal("version", a.set(node, b"changed").version, 1)

with step("stranger"):
    refused(NoAuthError, b.get, node)
    refused(NoAuthError, b.set, node, b"")

with step("admitted"):
    check(b.add_auth("digest", "user:secret"), "the identity is taken")
    equal("value", b.get(node)[0], b"changed")

with step("changed"):
    stat = a.set_acls(node, [make_acl("world", "anyone", read=True)], version=0)
    equal("aversion", stat.aversion, 1)
    equal("value", c.get(node)[0], b"changed")
    refused(NoAuthError, c.set, node, b"")

with step("bad-version"):
    acls, _ = a.get_acls(f"{root}/open")
    refused(BadVersionError, a.set_acls, f"{root}/open", acls, version=7)
    equal("aversion", a.exists(f"{root}/open").aversion, 0)
    # Who may administrate is asked before the version.
    refused(NoAuthError, a.set_acls, node, acls, version=7)
    equal("aversion of the other", a.exists(node).aversion, 1)

for client in (a, b, c):
    close(client)
