/* A session outlives its connection, and even its handle. */
#include "compat.h"

void reattach(const struct place *at)
{
    const char *e = text("%s/e", at->prefix), *w = text("%s/w", at->prefix), *p = text("%s/p", at->prefix);
    struct events *of_data = events_new(), *of_children = events_new();
    char buffer[64];
    int length = sizeof buffer;
    struct Stat made, stat;
    struct String_vector names;

    begin("created");
    zhandle_t *b = session_open(at->address, 10000, NULL)->handle;
    create(b, at->prefix, "");
    create(b, w, "zero");
    create(b, p, "");
    struct session *a = session_open(at->link, 10000, NULL);
    const int64_t id = session_id(a);
    equal_answer(zoo_create2(a->handle, e, "mine", 4, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL, NULL, 0, &made), ZOK,
                 "create2");
    equal_answer(zoo_wget(a->handle, w, events_take, of_data, buffer, &length, &stat), ZOK, "get");
    equal_answer(zoo_wget_children(a->handle, p, events_take, of_children, &names), ZOK, "children");
    ok();

    begin("away");
    fault("cut");
    for (long long end = now_ms() + 5000; !session_lost(a);) {
        holds(now_ms() < end, "A was not told of the cut within 5 s");
        sleep_ms(5);
    }
    set(b, w, "one");
    create(b, text("%s/c", p), "");
    events_silent(of_data, 1000);
    events_silent(of_children, 1000);
    fault("mend");
    ok();

    begin("same");
    session_wait(a, ZOO_CONNECTED_STATE, 8000);
    equal(session_id(a), id, "session id");
    ok();

    begin("stays");
    equal_answer(zoo_exists(a->handle, e, 0, &stat), ZOK, "exists");
    equal_stat(&stat, &made, "ephemeral node");
    ok();

    begin("data-watch");
    events_next(of_data, ZOO_CHANGED_EVENT, w, 3000);
    events_silent(of_data, 500);
    ok();

    begin("child-watch");
    events_next(of_children, ZOO_CHILD_EVENT, p, 3000);
    events_silent(of_children, 500);
    ok();

    begin("works");
    set(a->handle, w, "two");
    equal_value(a->handle, w, "two");
    /* Another handle takes the session over by its id and password, and ends it. */
    clientid_t session = *zoo_client_id(a->handle);
    struct session *second = session_open(at->address, 10000, &session);
    equal(session_id(second), id, "session id of the second handle");
    equal_answer(zoo_exists(second->handle, e, 0, &stat), ZOK, "exists by the second handle");
    equal_stat(&stat, &made, "ephemeral node by the second handle");
    note("a second handle took the session over by its client id");
    session_close(second);
    until_there(b, e, 0, 2000);
    ok();
}
