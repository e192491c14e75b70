/* One-shot watches on the list of children. */
#include "compat.h"

static int watched(zhandle_t *zk, const char *path, struct events *events)
{
    struct String_vector names;
    equal_answer(zoo_wget_children(zk, path, events_take, events, &names), ZOK, "children");
    int count = names.count;
    deallocate_String_vector(&names);
    return count;
}

/* Makes twenty children one by one, while the other thread follows. */
struct writer {
    zhandle_t *zk;
    const char *parent;
};

static void *write_twenty(void *context)
{
    const struct writer *writer = context;
    for (int i = 0; i < 20; i++)
        create(writer->zk, text("%s/c%02d", writer->parent, i), "");
    return NULL;
}

void watch_children(const struct place *at)
{
    const char *parent = text("%s/parent", at->prefix), *child = text("%s/a", parent);
    struct events *events = events_new();
    char made[512];

    begin("created");
    zhandle_t *a = session_open(at->address, 10000, NULL)->handle;
    zhandle_t *b = session_open(at->address, 10000, NULL)->handle;
    create(b, at->prefix, "");
    create(b, parent, "");
    watched(a, parent, events);
    create(b, child, "");
    events_next(events, ZOO_CHILD_EVENT, parent, 2000);
    events_silent(events, 300);
    ok();

    begin("deleted");
    watched(a, parent, events);
    drop(b, child);
    events_next(events, ZOO_CHILD_EVENT, parent, 2000);
    events_silent(events, 300);
    ok();

    begin("data-silent");
    create(b, child, "");
    watched(a, parent, events);
    set(b, child, "one");
    set(b, parent, "one");
    events_silent(events, 1000);
    ok();

    begin("grandchild-silent");
    watched(a, parent, events);
    create(b, text("%s/b", child), "");
    events_silent(events, 1000);
    drop(b, text("%s/b", child));
    drop(b, child);
    /* The same watcher object is armed once, however often it was set. */
    events_next(events, ZOO_CHILD_EVENT, parent, 2000);
    events_silent(events, 300);
    ok();

    begin("parent-deleted");
    watched(a, parent, events);
    drop(b, parent);
    events_next(events, ZOO_DELETED_EVENT, parent, 2000);
    events_silent(events, 300);
    ok();

    begin("ephemeral");
    create(b, parent, "");
    struct session *c = session_open(at->address, 10000, NULL);
    create_as(c->handle, text("%s/e", parent), "", ZOO_EPHEMERAL, made, sizeof made);
    watched(a, parent, events);
    session_close(c);
    events_next(events, ZOO_CHILD_EVENT, parent, 2000);
    events_silent(events, 300);
    ok();

    begin("follow");
    int seen = watched(a, parent, events);
    struct writer writer = {b, parent};
    pthread_t thread;
    pthread_create(&thread, NULL, write_twenty, &writer);
    while (seen < 20) {
        events_next(events, ZOO_CHILD_EVENT, parent, 5000);
        seen = watched(a, parent, events);
    }
    pthread_join(thread, NULL);
    struct String_vector names;
    equal_answer(zoo_get_children(a, parent, 0, &names), ZOK, "children");
    equal(names.count, 20, "children");
    for (int i = 0; i < 20; i++) {
        int found = 0;
        for (int j = 0; j < names.count; j++)
            found += strcmp(names.data[j], text("c%02d", i)) == 0;
        equal(found, 1, text("times that c%02d is there", i));
    }
    ok();
}
