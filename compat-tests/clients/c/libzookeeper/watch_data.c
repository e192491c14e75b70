/* One-shot watches on a value, set by get. */
#include "compat.h"

static void watched(zhandle_t *zk, const char *path, struct events *events)
{
    char buffer[64];
    int length = sizeof buffer;
    struct Stat stat;
    equal_answer(zoo_wget(zk, path, events_take, events, buffer, &length, &stat), ZOK, "get");
}

/* Events and answers of asynchronous calls are handed out by one thread, in one order; this keeps it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int told, answered, told_first, shown;

static void order_event(zhandle_t *zk, int type, int state, const char *path, void *context)
{
    (void)zk;
    (void)state;
    (void)path;
    (void)context;
    pthread_mutex_lock(&lock);
    told = told || type == ZOO_CHANGED_EVENT;
    pthread_mutex_unlock(&lock);
}

static void order_answer(int answer, const char *value, int length, const struct Stat *stat, const void *context)
{
    (void)stat;
    (void)context;
    pthread_mutex_lock(&lock);
    answered++;
    if (!shown && answer == ZOK && length == 5 && memcmp(value, "three", 5) == 0) {
        shown = 1;
        told_first = told;
    }
    pthread_mutex_unlock(&lock);
}

static void written(int answer, const struct Stat *stat, const void *context)
{
    (void)stat;
    (void)context;
    equal_answer(answer, ZOK, "answer to the set");
}

void watch_data(const struct place *at)
{
    const char *node = text("%s/node", at->prefix), *missing = text("%s/missing", at->prefix);
    struct events *events = events_new(), *others = events_new();

    begin("once");
    zhandle_t *a = session_open(at->address, 10000, NULL)->handle;
    zhandle_t *b = session_open(at->address, 10000, NULL)->handle;
    create(b, at->prefix, "");
    create(b, node, "zero");
    watched(a, node, events);
    set(b, node, "one");
    set(b, node, "two");
    events_next(events, ZOO_CHANGED_EVENT, node, 5000);
    events_silent(events, 1000);
    ok();

    begin("before");
    equal_answer(zoo_awget(a, node, order_event, NULL, order_answer, NULL), ZOK, "get");
    for (int armed = 0; !armed; sleep_ms(1)) {
        pthread_mutex_lock(&lock);
        armed = answered;
        pthread_mutex_unlock(&lock);
    }
    equal_answer(zoo_aset(b, node, "three", 5, -1, written, NULL), ZOK, "set");
    for (long long end = now_ms() + 5000;;) {
        pthread_mutex_lock(&lock);
        int done = shown;
        pthread_mutex_unlock(&lock);
        if (done)
            break;
        holds(now_ms() < end, "no reply with the new value within 5 s");
        equal_answer(zoo_aget(a, node, 0, order_answer, NULL), ZOK, "get");
        sleep_ms(1);
    }
    equal(told_first, 1, "the event came before the reply that shows the change");
    ok();

    begin("again");
    for (int i = 0; i < 2; i++) {
        watched(a, node, events);
        set(b, node, i ? "five" : "four");
        events_next(events, ZOO_CHANGED_EVENT, node, 5000);
    }
    ok();

    begin("deleted");
    watched(a, node, events);
    drop(b, node);
    events_next(events, ZOO_DELETED_EVENT, node, 5000);
    create(b, node, "");
    ok();

    begin("both");
    watched(a, node, events);
    watched(a, node, others);
    set(b, node, "six");
    events_next(events, ZOO_CHANGED_EVENT, node, 5000);
    events_next(others, ZOO_CHANGED_EVENT, node, 5000);
    set(b, node, "seven");
    events_silent(events, 500);
    events_silent(others, 0);
    ok();

    begin("none");
    char buffer[64];
    int length = sizeof buffer;
    equal_answer(zoo_wget(a, missing, events_take, events, buffer, &length, NULL), ZNONODE, "get");
    create(b, missing, "");
    events_silent(events, 1000);
    ok();

    begin("own");
    watched(a, node, events);
    set(a, node, "eight");
    events_next(events, ZOO_CHANGED_EVENT, node, 5000);
    events_silent(events, 300);
    ok();
}
