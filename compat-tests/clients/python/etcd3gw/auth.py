"""Users and tokens. etcd3gw knows neither: they go by its helper for any request, and by a session with the token."""

import requests

from bench import PREFIX, equal, step
from support import connect, encode, rejected

ROLE = "reader-role"
key = f"{PREFIX}/key"
anonymous = connect()


def manage(client, path, **body):
    return client.post(client.get_url(f"/auth/{path}"), json=body)


def login(name, password):
    token = manage(anonymous, "authenticate", name=name, password=password)["token"]
    session = requests.Session()
    session.headers["Authorization"] = token
    return connect(session=session)


with step("off"):
    rejected("etcdserver: authentication is not enabled", login, "root", "secret-of-root")

with step("setup"):
    anonymous.put(key, b"value")
    for name in ("root", "reader"):
        manage(anonymous, "user/add", name=name, password=f"secret-of-{name}")
    for name in ("root", ROLE):
        manage(anonymous, "role/add", name=name)
    permission = {"permType": "READ", "key": encode(PREFIX), "range_end": encode(PREFIX + "0")}
    manage(anonymous, "role/grant", name=ROLE, perm=permission)
    for name, role in (("root", "root"), ("reader", ROLE)):
        manage(anonymous, "user/grant", user=name, role=role)
    manage(anonymous, "enable")

with step("anonymous"):
    rejected("etcdserver: user name is empty", anonymous.put, key, b"")

with step("wrong"):
    rejected("etcdserver: authentication failed, invalid user ID or password", login, "reader", "wrong")

with step("reader"):
    reader = login("reader", "secret-of-reader")
    equal("value", reader.get(key), [b"value"])
    equal("values", [value for value, _ in reader.get_prefix(f"{PREFIX}/")], [b"value"])
    rejected("etcdserver: permission denied", reader.put, key, b"")

with step("root"):
    root = login("root", "secret-of-root")
    root.put(key, b"of root")
    equal("value", root.get(key), [b"of root"])

with step("cleanup"):
    manage(root, "disable")
    for name in ("reader", "root"):
        manage(anonymous, "user/delete", name=name)
    for role in (ROLE, "root"):
        manage(anonymous, "role/delete", role=role)
    rejected("etcdserver: authentication is not enabled", login, "root", "secret-of-root")
    anonymous.put(key, b"free")
    equal("value", anonymous.get(key), [b"free"])
