"""What etcd3 can ask of a server first."""

import re
import socket
import time

from bench import PREFIX, check, equal, note, refused, step
from etcd3.exceptions import ConnectionFailedError
from support import connect

client = connect()

with step("status"):
    status = client.status()
    check(re.fullmatch(r"\d+\.\d+\.\d+", status.version), f"version {status.version!r} has three numbers")
    check(status.leader is not None and status.leader.id != 0, f"the leader {status.leader} is a member")
    check(status.raft_term > 0, f"raft term {status.raft_term} is above 0")
    note("etcd3 does not show the header of Status; the one of a read is checked in its place")
    header = client.get_response(f"{PREFIX}/none").header
    for field in ("cluster_id", "member_id", "revision", "raft_term"):
        check(getattr(header, field) != 0, f"{field} is not 0")

with step("members"):
    members = list(client.members)
    check(members, "there is a member")
    for member in members:
        check(member.id != 0, "its id is not 0")
        urls = list(member.client_urls)
        check(urls and all(re.match(r"https?://.+:\d+$", url) for url in urls), f"client URLs {urls}")
    check(header.member_id in [member.id for member in members], f"{header.member_id:x} is one of the members")
    note("etcd3 does not show the header of MemberList")

with step("header"):
    for _ in range(3):  # a lease of an earlier scenario may end meanwhile
        first, second = (client.get_response(f"{PREFIX}/none") for _ in range(2))
        if first.header.revision == second.header.revision:
            break
    equal("count", (first.count, second.count), (0, 0))
    equal("cluster", second.header.cluster_id, first.header.cluster_id)
    equal("revision", second.header.revision, first.header.revision)
    check(first.header.revision > 0, "the revision is above 0")

with step("unreachable"):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        lonely = connect(f"127.0.0.1:{nobody.getsockname()[1]}", timeout=3)
        start = time.monotonic()
        refused(ConnectionFailedError, lonely.get, "any")
    check(time.monotonic() - start < 3.5, "the error came within the timeout")
