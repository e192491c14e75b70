/* A session is granted, with a timeout inside the server's bounds, and its end takes its nodes. */
#include "compat.h"

static void negotiated(const struct place *at, const char *step, int asked, int expected)
{
    begin(step);
    struct session *session = session_open(at->address, asked, NULL);
    equal(zoo_recv_timeout(session->handle), expected, "negotiated timeout");
    session_close(session);
    ok();
}

void connection(const struct place *at)
{
    const char *node = text("%s/e", at->prefix);
    char made[512];

    begin("session");
    struct session *other = session_open(at->address, 10000, NULL);
    holds(session_id(other) != 0, "the session id is 0");
    static const char zeros[16];
    equal(sizeof zoo_client_id(other->handle)->passwd, 16, "length of the password");
    holds(memcmp(zoo_client_id(other->handle)->passwd, zeros, 16) != 0, "the password is all zeros");
    create(other->handle, at->prefix, "");
    ok();

    negotiated(at, "timeout-low", 100, 4000);
    negotiated(at, "timeout-high", 100000, 40000);

    begin("idle");
    struct session *client = session_open(at->address, 4000, NULL);
    create_as(client->handle, node, "here", ZOO_EPHEMERAL, made, sizeof made);
    sleep_ms(10000);
    equal(session_lost(client), 0, "disconnections");
    struct Stat stat;
    equal_answer(zoo_exists(other->handle, node, 0, &stat), ZOK, "exists");
    equal(stat.ephemeralOwner, session_id(client), "ephemeralOwner");
    ok();

    begin("close");
    session_close(client);
    until_there(other->handle, node, 0, 1000);
    ok();
}
