/* A session whose client is away for too long ends, and takes its nodes with it. */
#include "compat.h"

void session_expiry(const struct place *at)
{
    const char *node = text("%s/e", at->prefix);
    struct events *events = events_new();
    char made[512];
    struct Stat stat;

    begin("created");
    zhandle_t *b = session_open(at->address, 10000, NULL)->handle;
    create(b, at->prefix, "");
    struct session *a = session_open(at->link, 4000, NULL);
    const int64_t id = session_id(a);
    create_as(a->handle, node, "mine", ZOO_EPHEMERAL, made, sizeof made);
    equal_answer(zoo_wexists(b, node, events_take, events, &stat), ZOK, "exists");
    equal(stat.ephemeralOwner, id, "ephemeralOwner");
    ok();

    begin("kept");
    fault("cut");
    const long long cut = now_ms();
    sleep_ms(1500);
    equal(there(b, node), 1, "the node is there");
    ok();

    begin("gone");
    events_next(events, ZOO_DELETED_EVENT, node, (long)(9000 - (now_ms() - cut)));
    if (now_ms() - cut < 2000)
        fail("gone after %lld ms", now_ms() - cut);
    equal(there(b, node), 0, "the node is there");
    ok();

    begin("told");
    fault("mend");
    session_wait(a, ZOO_EXPIRED_SESSION_STATE, 10000);
    ok();

    begin("again");
    struct session *next = session_open(at->link, 4000, NULL);
    holds(session_id(next) != id && session_id(next) != 0, "the same session id");
    create_as(next->handle, node, "mine", ZOO_EPHEMERAL, made, sizeof made);
    equal_answer(zoo_exists(b, node, 0, &stat), ZOK, "exists");
    equal(stat.ephemeralOwner, session_id(next), "ephemeralOwner");
    ok();
}
