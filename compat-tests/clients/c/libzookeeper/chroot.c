/* A client that works below a path of the tree, by its connect string. */
#include "compat.h"

void chroot_of(const struct place *at)
{
    struct String_vector names;
    char made[512];

    begin("missing");
    zhandle_t *nowhere = session_open(text("%s%s/missing", at->address, at->prefix), 10000, NULL)->handle;
    equal_answer(zoo_create(nowhere, "/node", "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0), ZNONODE, "create");
    ok();

    begin("works");
    zhandle_t *whole = session_open(at->address, 10000, NULL)->handle;
    create(whole, at->prefix, "");
    zhandle_t *inner = session_open(text("%s%s", at->address, at->prefix), 10000, NULL)->handle;
    create_as(inner, "/node", "one", ZOO_PERSISTENT, made, sizeof made);
    equal_text(made, "/node", "path");
    equal_value(inner, "/node", "one");
    equal_value(whole, text("%s/node", at->prefix), "one");
    equal_answer(zoo_get_children(inner, "/", 0, &names), ZOK, "children");
    equal(names.count, 1, "number of names");
    equal_text(names.data[0], "node", "name");
    equal_answer(zoo_get_children(whole, at->prefix, 0, &names), ZOK, "children by the whole path");
    equal(names.count, 1, "number of names by the whole path");
    equal_text(names.data[0], "node", "name by the whole path");
    ok();

    begin("watch");
    struct events *events = events_new();
    char buffer[64];
    int length = sizeof buffer;
    struct Stat stat;
    equal_answer(zoo_wget(inner, "/node", events_take, events, buffer, &length, &stat), ZOK, "get");
    equal_answer(zoo_wexists(inner, "/later", events_take, events, &stat), ZNONODE, "exists");
    equal_answer(zoo_wget_children(inner, "/node", events_take, events, &names), ZOK, "children");
    set(whole, text("%s/node", at->prefix), "two");
    events_next(events, ZOO_CHANGED_EVENT, "/node", 5000);
    create(whole, text("%s/later", at->prefix), "");
    events_next(events, ZOO_CREATED_EVENT, "/later", 5000);
    create(whole, text("%s/node/child", at->prefix), "");
    events_next(events, ZOO_CHILD_EVENT, "/node", 5000);
    events_silent(events, 300);
    ok();
}
