/* Registration by ephemeral children in Curator's form, and a reader that follows the list. */
#include "compat.h"

struct instance {
    struct session *session;
    char id[16];
    int port;
};

/* The reader: a watch says that the list is stale, and the next look lists with a watch anew. */
static volatile int stale = 1;
static char list[1024];

static void changed(zhandle_t *zk, int type, int state, const char *path, void *context)
{
    (void)zk;
    (void)state;
    (void)path;
    (void)context;
    if (type != ZOO_SESSION_EVENT)
        stale = 1;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static const char *look(zhandle_t *reader, const char *service)
{
    if (!stale)
        return list;
    stale = 0;
    struct String_vector names;
    equal_answer(zoo_wget_children(reader, service, changed, NULL, &names), ZOK, "children");
    qsort(names.data, (size_t)names.count, sizeof *names.data, by_name);
    list[0] = 0;
    for (int i = 0; i < names.count; i++) {
        struct value value = {0};
        int answer = get(reader, text("%s/%s", service, names.data[i]), &value);
        if (answer == ZNONODE)
            continue; /* gone between list and read: its event is on its way */
        equal_answer(answer, ZOK, "get");
        value.data[value.length] = 0;
        char address[64] = "";
        int port = 0;
        const char *found = strstr(value.data, "\"address\":"), *at = strstr(value.data, "\"port\":");
        if (!found || !at || sscanf(found, "\"address\":\"%63[^\"]\"", address) != 1 || sscanf(at, "\"port\":%d", &port) != 1)
            fail("value of %s: \"%s\"", names.data[i], value.data);
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s=%s:%d ", names.data[i], address, port);
        free(value.data);
    }
    deallocate_String_vector(&names);
    return list;
}

static void sees(zhandle_t *reader, const char *service, const char *expected, long limit_ms)
{
    long long end = now_ms() + limit_ms;
    const char *seen;
    while (strcmp(seen = look(reader, service), expected) != 0) {
        if (now_ms() > end)
            fail("list: expected \"%s\" within %ld ms, saw \"%s\"", expected, limit_ms, seen);
        sleep_ms(10);
    }
}

static const char *record(const char *service, const char *id, int port, const char *payload)
{
    return text("{\"name\":\"%s\",\"id\":\"%s\",\"address\":\"127.0.0.1\",\"port\":%d,\"sslPort\":null,\"payload\":%s,"
                "\"registrationTimeUTC\":1700000000000,\"serviceType\":\"DYNAMIC\",\"uriSpec\":null}",
                strrchr(service, '/') + 1, id, port, payload);
}

static struct instance enter(const struct place *at, const char *id, int port)
{
    struct instance instance = {.session = session_open(at->address, 10000, NULL), .port = port};
    char made[512];
    snprintf(instance.id, sizeof instance.id, "%s", id);
    create_as(instance.session->handle, text("%s/%s", at->prefix, id), record(at->prefix, id, port, "null"),
              ZOO_EPHEMERAL, made, sizeof made);
    return instance;
}

static void leave(const struct place *at, const struct instance *instance)
{
    drop(instance->session->handle, text("%s/%s", at->prefix, instance->id));
}

/* Another service may have made it before. */
static void make(zhandle_t *zk, const char *path)
{
    int answer = zoo_create(zk, path, "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0);
    if (answer != ZNODEEXISTS)
        equal_answer(answer, ZOK, text("create of %s", path));
}

void discovery(const struct place *at)
{
    begin("empty");
    zhandle_t *reader = session_open(at->address, 10000, NULL)->handle;
    make(reader, text("%.*s", (int)(strrchr(at->prefix, '/') - at->prefix), at->prefix));
    make(reader, at->prefix);
    sees(reader, at->prefix, "", 3000);
    ok();

    begin("registered");
    struct instance one = enter(at, "one", 7001), two = enter(at, "two", 7002), three = enter(at, "three", 7003);
    sees(reader, at->prefix, "one=127.0.0.1:7001 three=127.0.0.1:7003 two=127.0.0.1:7002 ", 3000);
    ok();

    begin("updated");
    const char *value = record(at->prefix, "one", 7001, "\"changed\"");
    set(one.session->handle, text("%s/one", at->prefix), value);
    long long end = now_ms() + 3000;
    for (struct value seen = {0};;) {
        equal_answer(get(reader, text("%s/one", at->prefix), &seen), ZOK, "get");
        seen.data[seen.length] = 0;
        if (strstr(seen.data, "\"payload\":\"changed\""))
            break;
        if (now_ms() > end)
            fail("value after 3 s: %s", seen.data);
        sleep_ms(20);
    }
    ok();

    begin("left");
    leave(at, &two);
    sees(reader, at->prefix, "one=127.0.0.1:7001 three=127.0.0.1:7003 ", 2000);
    ok();

    begin("died");
    struct instance four = enter(at, "four", 7004), five = enter(at, "five", 7005);
    sees(reader, at->prefix, "five=127.0.0.1:7005 four=127.0.0.1:7004 one=127.0.0.1:7001 three=127.0.0.1:7003 ",
         3000);
    session_close(one.session);
    sees(reader, at->prefix, "five=127.0.0.1:7005 four=127.0.0.1:7004 three=127.0.0.1:7003 ", 3000);
    ok();

    begin("all-left");
    leave(at, &three);
    leave(at, &four);
    leave(at, &five);
    sees(reader, at->prefix, "", 3000);
    ok();
}
