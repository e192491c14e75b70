/* Container nodes, and nodes with a time to live. */
#include "compat.h"

static void with_ttl(zhandle_t *zk, const char *path, int flags, const char *expected)
{
    char made[512];
    struct Stat stat;
    equal_answer(
        zoo_create2_ttl(zk, path, "", 0, &ZOO_OPEN_ACL_UNSAFE, flags, 1500, made, sizeof made, &stat), ZOK,
        "create2_ttl");
    equal_text(made, expected, "path");
    equal(there(zk, expected), 1, "the node is there");
}

void container_ttl(const struct place *at)
{
    const char *container = text("%s/container", at->prefix), *child = text("%s/child", container);
    char made[512];
    struct Stat stat;

    begin("container");
    zhandle_t *zk = session_open(at->address, 10000, NULL)->handle;
    create(zk, at->prefix, "");
    create_as(zk, container, "zero", ZOO_CONTAINER, made, sizeof made);
    equal_text(made, container, "path");
    create(zk, child, "");
    equal_answer(zoo_set2(zk, container, "one", 3, 0, &stat), ZOK, "set");
    equal(stat.version, 1, "version");
    equal(stat.numChildren, 1, "numChildren");
    equal_value(zk, container, "one");
    ok();

    begin("container-goes");
    drop(zk, child);
    until_there(zk, container, 0, 5000);
    ok();

    begin("container-unused");
    create_as(zk, text("%s/unused", at->prefix), "", ZOO_CONTAINER, made, sizeof made);
    sleep_ms(3000);
    equal(there(zk, text("%s/unused", at->prefix)), 1, "the container is there");
    ok();

    begin("ttl");
    const char *alone = text("%s/ttl", at->prefix);
    with_ttl(zk, alone, ZOO_PERSISTENT_WITH_TTL, alone);
    until_there(zk, alone, 0, 6000);
    ok();

    begin("ttl-set");
    const char *kept = text("%s/ttl-set", at->prefix);
    with_ttl(zk, kept, ZOO_PERSISTENT_WITH_TTL, kept);
    for (int i = 0; i < 6; i++) {
        sleep_ms(500);
        set(zk, kept, "again");
    }
    equal(there(zk, kept), 1, "the node is there");
    ok();

    begin("ttl-sequential");
    create(zk, text("%s/row", at->prefix), "");
    const char *numbered = text("%s/row/s-0000000000", at->prefix);
    with_ttl(zk, text("%s/row/s-", at->prefix), ZOO_PERSISTENT_SEQUENTIAL_WITH_TTL, numbered);
    until_there(zk, numbered, 0, 6000);
    ok();
}
