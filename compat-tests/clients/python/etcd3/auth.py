"""Users and tokens. etcd3 logs in, but has no calls to manage users: these go by the messages that it generates."""

import etcd3.etcdrpc as rpc
from bench import PREFIX, equal, step
from etcd3.etcdrpc.auth_pb2 import Permission
from support import connect, rejected

ROOT = {"user": "root", "password": "secret-of-root"}
READER = {"user": "reader", "password": "secret-of-reader"}
ROLE = "reader-role"
key = f"{PREFIX}/key"
anonymous = connect()


def manage(client, call, request):
    getattr(rpc.AuthStub(client.channel), call)(request, 10, metadata=client.metadata)


def login(user):
    """The token goes twice: as metadata, and as a credential that gRPC now refuses to send over plain text. An
    application without TLS has to drop the second."""
    client = connect(**user)
    client.call_credentials = None
    return client


with step("off"):
    rejected("etcdserver: authentication is not enabled", connect, **ROOT)

with step("setup"):
    anonymous.put(key, b"value")
    for user in (ROOT, READER):
        manage(anonymous, "UserAdd", rpc.AuthUserAddRequest(name=user["user"], password=user["password"]))
    for role in ("root", ROLE):
        manage(anonymous, "RoleAdd", rpc.AuthRoleAddRequest(name=role))
    permission = Permission(permType=Permission.READ, key=PREFIX.encode(), range_end=(PREFIX + "0").encode())
    manage(anonymous, "RoleGrantPermission", rpc.AuthRoleGrantPermissionRequest(name=ROLE, perm=permission))
    for user, role in (("root", "root"), ("reader", ROLE)):
        manage(anonymous, "UserGrantRole", rpc.AuthUserGrantRoleRequest(user=user, role=role))
    manage(anonymous, "AuthEnable", rpc.AuthEnableRequest())

with step("anonymous"):
    rejected("etcdserver: user name is empty", anonymous.put, key, b"")

with step("wrong"):
    rejected(
        "etcdserver: authentication failed, invalid user ID or password", connect, user="reader", password="wrong"
    )

with step("reader"):
    reader = login(READER)
    equal("value", reader.get(key)[0], b"value")
    equal("values", [value for value, _ in reader.get_prefix(f"{PREFIX}/")], [b"value"])
    rejected("etcdserver: permission denied", reader.put, key, b"")

with step("root"):
    root = login(ROOT)
    root.put(key, b"of root")
    equal("value", root.get(key)[0], b"of root")

with step("cleanup"):
    manage(root, "AuthDisable", rpc.AuthDisableRequest())
    for user in ("reader", "root"):
        manage(anonymous, "UserDelete", rpc.AuthUserDeleteRequest(name=user))
    for role in (ROLE, "root"):
        manage(anonymous, "RoleDelete", rpc.AuthRoleDeleteRequest(role=role))
    rejected("etcdserver: authentication is not enabled", connect, **ROOT)
    anonymous.put(key, b"free")
    equal("value", anonymous.get(key)[0], b"free")
