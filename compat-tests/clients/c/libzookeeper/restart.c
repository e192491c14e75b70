/* The server is killed and started again under its clients. */
#include "compat.h"

static void back(struct session *session, int64_t id)
{
    for (long long end = now_ms() + 15000; session_times(session) < 2 || session_state(session) != ZOO_CONNECTED_STATE;) {
        holds(now_ms() < end, "not connected again within 15 s");
        sleep_ms(10);
    }
    equal(session_id(session), id, "session id");
}

void restart(const struct place *at)
{
    const char *e = text("%s/e", at->prefix), *node = text("%s/node", at->prefix), *row = text("%s/row", at->prefix);
    struct events *events = events_new();
    char made[512], buffer[64];
    int length = sizeof buffer;
    struct Stat before, stat;

    begin("before");
    struct session *a = session_open(at->address, 20000, NULL), *b = session_open(at->address, 20000, NULL);
    const int64_t of_a = session_id(a), of_b = session_id(b);
    create(b->handle, at->prefix, "");
    create(b->handle, node, "zero");
    create(b->handle, row, "");
    equal_answer(zoo_create2(a->handle, e, "mine", 4, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL, NULL, 0, &before), ZOK,
                 "create2");
    create_as(a->handle, text("%s/s-", row), "", ZOO_PERSISTENT_SEQUENTIAL, made, sizeof made);
    equal_text(made, text("%s/s-0000000000", row), "path");
    equal_answer(zoo_exists(a->handle, made, 0, &stat), ZOK, "exists");
    const int64_t highest = stat.czxid;
    equal_answer(zoo_wget(a->handle, node, events_take, events, buffer, &length, &stat), ZOK, "get");
    ok();

    begin("down");
    fault("restart");
    back(a, of_a);
    back(b, of_b);
    ok();

    begin("stays");
    equal_answer(zoo_exists(a->handle, e, 0, &stat), ZOK, "exists");
    equal_stat(&stat, &before, "ephemeral node");
    equal_value(a->handle, e, "mine");
    equal_value(b->handle, node, "zero");
    ok();

    begin("watch");
    set(b->handle, node, "one");
    events_next(events, ZOO_CHANGED_EVENT, node, 5000);
    events_silent(events, 500);
    ok();

    begin("numbers");
    create_as(a->handle, text("%s/s-", row), "", ZOO_PERSISTENT_SEQUENTIAL, made, sizeof made);
    equal_text(made, text("%s/s-0000000001", row), "path");
    equal_answer(zoo_exists(a->handle, made, 0, &stat), ZOK, "exists");
    if (stat.czxid <= highest)
        fail("czxid %lld, before %lld", (long long)stat.czxid, (long long)highest);
    ok();

    begin("ends");
    session_close(a);
    until_there(b->handle, e, 0, 2000);
    ok();
}
