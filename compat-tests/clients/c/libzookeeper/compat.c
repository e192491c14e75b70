#include "compat.h"

#include <ctype.h>
#include <stdarg.h>
#include <time.h>

static char current[64] = "start";

static void line(const char *word, const char *step, const char *rest)
{
    flockfile(stdout);
    printf("%s %s%s%s\n", word, step, *rest ? " " : "", rest);
    fflush(stdout);
    funlockfile(stdout);
}

void begin(const char *step)
{
    snprintf(current, sizeof current, "%s", step);
}

void ok(void)
{
    line("ok", current, "");
}

void note(const char *text)
{
    line("note", text, "");
}

void fail(const char *format, ...)
{
    char reason[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    for (char *c = reason; *c; c++)
        if (iscntrl((unsigned char)*c))
            *c = ' ';
    line("fail", current, reason);
    _Exit(1);
}

void fault(const char *verb)
{
    char answer[256] = "";
    line("do", verb, "");
    if (!fgets(answer, sizeof answer, stdin) || strcmp(answer, "done\n") != 0)
        fail("the bench answered \"%s\" to %s", answer, verb);
}

void equal(long long seen, long long expected, const char *what)
{
    if (seen != expected)
        fail("%s: expected %lld, saw %lld", what, expected, seen);
}

void equal_text(const char *seen, const char *expected, const char *what)
{
    if (strcmp(seen, expected) != 0)
        fail("%s: expected \"%.300s\", saw \"%.300s\"", what, expected, seen);
}

void equal_answer(int seen, int expected, const char *what)
{
    if (seen != expected)
        fail("%s: expected %s (%d), saw %s (%d)", what, zerror(expected), expected, zerror(seen), seen);
}

void holds(int condition, const char *what)
{
    if (!condition)
        fail("%s", what);
}

char *text(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char *made = NULL;
    if (vasprintf(&made, format, arguments) < 0)
        fail("no memory");
    va_end(arguments);
    return made;
}

long long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

void sleep_ms(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* --- Sessions. --- */

static void session_told(zhandle_t *zk, int type, int state, const char *path, void *context)
{
    struct session *session = context;
    (void)zk;
    (void)path;
    if (type != ZOO_SESSION_EVENT)
        return;
    pthread_mutex_lock(&session->lock);
    if (session->state == ZOO_CONNECTED_STATE && state != ZOO_CONNECTED_STATE)
        session->lost++;
    if (state == ZOO_CONNECTED_STATE)
        session->times++;
    session->state = state;
    pthread_mutex_unlock(&session->lock);
}

struct session *session_open(const char *address, int timeout_ms, const clientid_t *of)
{
    struct session *session = calloc(1, sizeof *session);
    if (!session)
        fail("no memory");
    pthread_mutex_init(&session->lock, NULL);
    session->handle = zookeeper_init(address, session_told, timeout_ms, of, session, 0);
    if (!session->handle)
        fail("zookeeper_init of %s", address);
    session_wait(session, ZOO_CONNECTED_STATE, 10000);
    return session;
}

void session_close(struct session *session)
{
    equal_answer(zookeeper_close(session->handle), ZOK, "zookeeper_close");
}

int64_t session_id(const struct session *session)
{
    return zoo_client_id(session->handle)->client_id;
}

int session_state(struct session *session)
{
    pthread_mutex_lock(&session->lock);
    int state = session->state;
    pthread_mutex_unlock(&session->lock);
    return state;
}

int session_lost(struct session *session)
{
    pthread_mutex_lock(&session->lock);
    int lost = session->lost;
    pthread_mutex_unlock(&session->lock);
    return lost;
}

int session_times(struct session *session)
{
    pthread_mutex_lock(&session->lock);
    int times = session->times;
    pthread_mutex_unlock(&session->lock);
    return times;
}

void session_wait(struct session *session, int state, long limit_ms)
{
    long long end = now_ms() + limit_ms;
    int seen;
    while ((seen = session_state(session)) != state) {
        if (now_ms() > end)
            fail("session state: expected %d within %ld ms, saw %d", state, limit_ms, seen);
        sleep_ms(5);
    }
}

/* --- Nodes. --- */

void create(zhandle_t *zk, const char *path, const char *value)
{
    char made[512];
    create_as(zk, path, value, ZOO_PERSISTENT, made, sizeof made);
    equal_text(made, path, "path that was made");
}

void create_as(zhandle_t *zk, const char *path, const char *value, int flags, char *made, int room)
{
    int answer = zoo_create(zk, path, value, (int)strlen(value), &ZOO_OPEN_ACL_UNSAFE, flags, made, room);
    if (answer != ZOK)
        fail("create of %s: %s (%d)", path, zerror(answer), answer);
}

int get(zhandle_t *zk, const char *path, struct value *into)
{
    if (!into->data)
        into->data = malloc(VALUE_MAX);
    if (!into->data)
        fail("no memory");
    into->length = VALUE_MAX;
    return zoo_get(zk, path, 0, into->data, &into->length, &into->stat);
}

void set(zhandle_t *zk, const char *path, const char *value)
{
    int answer = zoo_set(zk, path, value, (int)strlen(value), -1);
    if (answer != ZOK)
        fail("set of %s: %s (%d)", path, zerror(answer), answer);
}

void drop(zhandle_t *zk, const char *path)
{
    int answer = zoo_delete(zk, path, -1);
    if (answer != ZOK)
        fail("delete of %s: %s (%d)", path, zerror(answer), answer);
}

int there(zhandle_t *zk, const char *path)
{
    int answer = zoo_exists(zk, path, 0, NULL);
    if (answer != ZOK && answer != ZNONODE)
        fail("exists of %s: %s (%d)", path, zerror(answer), answer);
    return answer == ZOK;
}

void equal_value(zhandle_t *zk, const char *path, const char *expected)
{
    struct value value = {0};
    equal_answer(get(zk, path, &value), ZOK, text("get of %s", path));
    equal(value.length, (long long)strlen(expected), text("length of %s", path));
    if (memcmp(value.data, expected, strlen(expected)) != 0)
        fail("value of %s: expected \"%s\", saw \"%.*s\"", path, expected, value.length, value.data);
    free(value.data);
}

void equal_stat(const struct Stat *seen, const struct Stat *expected, const char *what)
{
    equal(seen->czxid, expected->czxid, text("czxid of %s", what));
    equal(seen->mzxid, expected->mzxid, text("mzxid of %s", what));
    equal(seen->pzxid, expected->pzxid, text("pzxid of %s", what));
    equal(seen->ctime, expected->ctime, text("ctime of %s", what));
    equal(seen->mtime, expected->mtime, text("mtime of %s", what));
    equal(seen->version, expected->version, text("version of %s", what));
    equal(seen->cversion, expected->cversion, text("cversion of %s", what));
    equal(seen->aversion, expected->aversion, text("aversion of %s", what));
    equal(seen->ephemeralOwner, expected->ephemeralOwner, text("ephemeralOwner of %s", what));
    equal(seen->dataLength, expected->dataLength, text("dataLength of %s", what));
    equal(seen->numChildren, expected->numChildren, text("numChildren of %s", what));
}

void until_there(zhandle_t *zk, const char *path, int expected, long limit_ms)
{
    long long end = now_ms() + limit_ms;
    while (there(zk, path) != expected) {
        if (now_ms() > end)
            fail("%s is %s after %ld ms", path, expected ? "not there" : "still there", limit_ms);
        sleep_ms(20);
    }
}

/* --- Events. --- */

struct events *events_new(void)
{
    struct events *events = calloc(1, sizeof *events);
    if (!events)
        fail("no memory");
    pthread_mutex_init(&events->lock, NULL);
    return events;
}

void events_take(zhandle_t *zk, int type, int state, const char *path, void *context)
{
    struct events *events = context;
    (void)zk;
    (void)state;
    if (type == ZOO_SESSION_EVENT)
        return;
    pthread_mutex_lock(&events->lock);
    if (events->count < 64) {
        events->items[events->count].type = type;
        snprintf(events->items[events->count].path, sizeof events->items[0].path, "%s", path);
        events->count++;
    }
    pthread_mutex_unlock(&events->lock);
}

static int first(struct events *events, struct event *into)
{
    pthread_mutex_lock(&events->lock);
    int found = events->count > 0;
    if (found) {
        *into = events->items[0];
        events->count--;
        memmove(events->items, events->items + 1, (size_t)events->count * sizeof *into);
    }
    pthread_mutex_unlock(&events->lock);
    return found;
}

void events_next(struct events *events, int type, const char *path, long limit_ms)
{
    long long end = now_ms() + limit_ms;
    struct event seen;
    while (!first(events, &seen)) {
        if (now_ms() > end)
            fail("event %d of %s: not within %ld ms", type, path, limit_ms);
        sleep_ms(5);
    }
    if (seen.type != type || strcmp(seen.path, path) != 0)
        fail("event: expected %d of %s, saw %d of %s", type, path, seen.type, seen.path);
}

void events_silent(struct events *events, long ms)
{
    struct event seen;
    sleep_ms(ms);
    if (first(events, &seen))
        fail("event: expected none, saw %d of %s", seen.type, seen.path);
}
