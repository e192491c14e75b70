/* One-shot watches set by exists, on a node that is there and on one that is not. */
#include "compat.h"

void watch_exists(const struct place *at)
{
    const char *node = text("%s/node", at->prefix);
    struct events *events = events_new();
    struct Stat stat;

    begin("created");
    zhandle_t *a = session_open(at->address, 10000, NULL)->handle;
    zhandle_t *b = session_open(at->address, 10000, NULL)->handle;
    create(b, at->prefix, "");
    equal_answer(zoo_wexists(a, node, events_take, events, &stat), ZNONODE, "exists");
    create(b, node, "");
    events_next(events, ZOO_CREATED_EVENT, node, 5000);
    events_silent(events, 300);
    ok();

    begin("changed");
    equal_answer(zoo_wexists(a, node, events_take, events, &stat), ZOK, "exists");
    set(b, node, "one");
    events_next(events, ZOO_CHANGED_EVENT, node, 5000);
    events_silent(events, 300);
    ok();

    begin("deleted");
    equal_answer(zoo_wexists(a, node, events_take, events, &stat), ZOK, "exists");
    drop(b, node);
    events_next(events, ZOO_DELETED_EVENT, node, 5000);
    events_silent(events, 300);
    ok();

    begin("children-silent");
    create(b, node, "");
    equal_answer(zoo_wexists(a, node, events_take, events, &stat), ZOK, "exists");
    create(b, text("%s/child", node), "");
    events_silent(events, 1000);
    ok();
}
