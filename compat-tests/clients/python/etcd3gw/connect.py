"""What etcd3gw can ask of a server first."""

import re
import socket
import time

from bench import PREFIX, check, equal, note, refused, step
from etcd3gw.exceptions import ConnectionFailedError
from support import connect, get, transact

client = connect()

with step("status"):
    equal("path of the API", client.api_path, "/v3/")
    status = client.status()
    check(re.fullmatch(r"\d+\.\d+\.\d+", status["version"]), f"version {status['version']!r} has three numbers")
    check(int(status["leader"]) != 0, "the leader is not 0")
    for field in ("cluster_id", "member_id", "revision", "raft_term"):
        check(int(status["header"][field]) != 0, f"{field} is not 0")

with step("members"):
    members = client.members()
    check(members, "there is a member")
    for member in members:
        check(int(member["ID"]) != 0, "its id is not 0")
        urls = member["clientURLs"]
        check(urls and all(re.match(r"https?://.+:\d+$", url) for url in urls), f"client URLs {urls}")
    check(status["header"]["member_id"] in [member["ID"] for member in members], "the answering member is in the list")
    note("etcd3gw does not show the header of MemberList")

with step("header"):
    for _ in range(3):  # a lease of an earlier scenario may end meanwhile
        first, second = (transact(client, [get(f"{PREFIX}/none")]) for _ in range(2))
        if first["header"]["revision"] == second["header"]["revision"]:
            break
    equal("pairs", first["responses"][0]["response_range"].get("kvs", []), [])
    equal("cluster", second["header"]["cluster_id"], first["header"]["cluster_id"])
    equal("cluster of Status", status["header"]["cluster_id"], first["header"]["cluster_id"])
    equal("revision", second["header"]["revision"], first["header"]["revision"])
    check(int(first["header"]["revision"]) > 0, "the revision is above 0")
    note("ranges in transactions: etcd3gw shows no header of a range alone")

with step("unreachable"):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        lonely = connect(f"127.0.0.1:{nobody.getsockname()[1]}", timeout=3)
        start = time.monotonic()
        refused(ConnectionFailedError, lonely.get, "any")
    check(time.monotonic() - start < 3.5, "the error came within the timeout")
