/* Nodes, their values and their Stats. */
#include "compat.h"

#include <time.h>

static void synced(int answer, const char *value, const void *done)
{
    (void)value;
    *(volatile int *)(uintptr_t)done = answer == ZOK ? 1 : answer;
}

static void remove_tree(zhandle_t *zk, const char *path)
{
    struct String_vector names;
    equal_answer(zoo_get_children(zk, path, 0, &names), ZOK, "children");
    for (int i = 0; i < names.count; i++)
        remove_tree(zk, text("%s/%s", path, names.data[i]));
    deallocate_String_vector(&names);
    drop(zk, path);
}

void data(const struct place *at)
{
    const char *node = text("%s/node", at->prefix), *missing = text("%s/missing", at->prefix);
    char bytes[256], made[512];
    for (int i = 0; i < 256; i++)
        bytes[i] = (char)i;
    struct value value = {0};
    struct Stat stat, first;

    begin("create");
    struct session *session = session_open(at->address, 10000, NULL);
    zhandle_t *zk = session->handle;
    create(zk, at->prefix, "");
    equal_answer(
        zoo_create2(zk, node, bytes, 256, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT, made, sizeof made, &first), ZOK,
        "create2");
    equal_text(made, node, "path");
    ok();

    begin("get");
    equal_answer(get(zk, node, &value), ZOK, "get");
    equal(value.length, 256, "length");
    holds(memcmp(value.data, bytes, 256) == 0, "another value");
    stat = value.stat;
    equal_stat(&stat, &first, "node, against the one of its creation");
    holds(stat.czxid > 0, "czxid is not positive");
    struct Stat expected = {.czxid = stat.czxid, .mzxid = stat.czxid, .pzxid = stat.czxid, .ctime = stat.ctime,
                            .mtime = stat.ctime, .dataLength = 256};
    equal_stat(&stat, &expected, "node");
    holds(llabs(stat.ctime / 1000 - (long long)time(NULL)) < 60, "ctime is not now");
    ok();

    begin("set");
    equal_answer(zoo_set2(zk, node, "one", 3, 0, &stat), ZOK, "set");
    holds(stat.mzxid > stat.czxid, "mzxid is not above czxid");
    holds(stat.mtime >= first.mtime, "mtime went back");
    expected = first;
    expected.version = 1;
    expected.dataLength = 3;
    expected.mzxid = stat.mzxid;
    expected.mtime = stat.mtime;
    equal_stat(&stat, &expected, "node");
    ok();

    begin("bad-version");
    equal_answer(zoo_set(zk, node, "two", 3, 7), ZBADVERSION, "set");
    equal_answer(zoo_delete(zk, node, 7), ZBADVERSION, "delete");
    equal_answer(get(zk, node, &value), ZOK, "get");
    equal_stat(&value.stat, &expected, "node");
    equal_value(zk, node, "one");
    ok();

    begin("any-version");
    equal_answer(zoo_set2(zk, node, "two", 3, -1, &stat), ZOK, "set");
    equal(stat.version, 2, "version");
    ok();

    begin("exists");
    equal_answer(zoo_exists(zk, node, 0, &stat), ZOK, "exists");
    equal_answer(get(zk, node, &value), ZOK, "get");
    equal_stat(&stat, &value.stat, "node");
    equal_answer(zoo_exists(zk, missing, 0, &stat), ZNONODE, "exists of a missing node");
    ok();

    begin("no-node");
    struct String_vector names;
    equal_answer(get(zk, missing, &value), ZNONODE, "get");
    equal_answer(zoo_set(zk, missing, "x", 1, -1), ZNONODE, "set");
    equal_answer(zoo_delete(zk, missing, -1), ZNONODE, "delete");
    equal_answer(zoo_get_children(zk, missing, 0, &names), ZNONODE, "children");
    equal_answer(zoo_create(zk, text("%s/child", missing), "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0), ZNONODE,
                 "create");
    ok();

    begin("node-exists");
    equal_answer(zoo_create(zk, node, "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0), ZNODEEXISTS, "create");
    ok();

    begin("empty-data");
    const char *empty = text("%s/empty", at->prefix);
    create(zk, empty, "");
    equal_answer(get(zk, empty, &value), ZOK, "get");
    equal(value.length, 0, "length");
    equal(value.stat.dataLength, 0, "dataLength");
    ok();

    begin("large-data");
    const char *large = text("%s/large", at->prefix);
    char *million = malloc(1000000);
    for (int i = 0; i < 1000000; i++)
        million[i] = "causeway"[i % 8];
    create(zk, large, "");
    equal_answer(zoo_set(zk, large, million, 1000000, -1), ZOK, "set");
    equal_answer(get(zk, large, &value), ZOK, "get");
    equal(value.length, 1000000, "length");
    equal(value.stat.dataLength, 1000000, "dataLength");
    holds(memcmp(value.data, million, 1000000) == 0, "another value");
    ok();

    begin("children");
    const char *parent = text("%s/parent", at->prefix);
    struct Stat family;
    create(zk, parent, "");
    for (const char *name = "abc"; *name; name++)
        create(zk, text("%s/%c", parent, *name), "");
    equal_answer(zoo_get_children2(zk, parent, 0, &names, &family), ZOK, "children");
    equal(names.count, 3, "number of names");
    for (const char *name = "abc"; *name; name++) {
        int found = 0;
        for (int i = 0; i < names.count; i++)
            found += names.data[i][0] == *name && !names.data[i][1];
        equal(found, 1, text("times that %c is there", *name));
    }
    equal(family.numChildren, 3, "numChildren");
    equal(family.cversion, 3, "cversion");
    equal_answer(zoo_exists(zk, text("%s/c", parent), 0, &stat), ZOK, "exists");
    equal(family.pzxid, stat.czxid, "pzxid");
    ok();

    begin("child-deleted");
    drop(zk, text("%s/b", parent));
    equal_answer(zoo_exists(zk, parent, 0, &stat), ZOK, "exists");
    holds(stat.pzxid > family.pzxid, "pzxid is not greater than before");
    family.numChildren = 2;
    family.cversion = 4;
    family.pzxid = stat.pzxid;
    equal_stat(&stat, &family, "parent");
    ok();

    begin("child-changed");
    set(zk, text("%s/a", parent), "changed");
    equal_answer(zoo_exists(zk, parent, 0, &stat), ZOK, "exists");
    equal_stat(&stat, &family, "parent");
    ok();

    begin("not-empty");
    equal_answer(zoo_delete(zk, parent, -1), ZNOTEMPTY, "delete");
    ok();

    begin("sequential");
    const char *row = text("%s/row", at->prefix);
    create(zk, row, "");
    static const char *const prefixes[] = {"a-", "a-", "b-"};
    for (int i = 0; i < 3; i++) {
        create_as(zk, text("%s/%s", row, prefixes[i]), "", ZOO_PERSISTENT_SEQUENTIAL, made, sizeof made);
        equal_text(made, text("%s/%s%010d", row, prefixes[i], i), "path");
    }
    ok();

    begin("sequential-after");
    drop(zk, text("%s/b-0000000002", row));
    create_as(zk, text("%s/a-", row), "", ZOO_PERSISTENT_SEQUENTIAL, made, sizeof made);
    equal_text(made, text("%s/a-0000000003", row), "path");
    ok();

    begin("ephemeral");
    const char *ephemeral = text("%s/e", at->prefix);
    create_as(zk, ephemeral, "", ZOO_EPHEMERAL, made, sizeof made);
    equal_answer(zoo_exists(zk, ephemeral, 0, &stat), ZOK, "exists");
    equal(stat.ephemeralOwner, session_id(session), "ephemeralOwner");
    ok();

    begin("no-children");
    equal_answer(zoo_create(zk, text("%s/child", ephemeral), "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0),
                 ZNOCHILDRENFOREPHEMERALS, "create");
    ok();

    begin("bad-path");
    equal_answer(zoo_create(zk, text("%s//b", at->prefix), "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0), ZBADARGUMENTS,
                 "create of //b");
    equal_answer(zoo_create(zk, text("%s/../b", at->prefix), "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0), ZBADARGUMENTS,
                 "create of /../b");
    equal_value(zk, node, "two");
    ok();

    begin("sync");
    struct session *other = session_open(at->address, 10000, NULL);
    set(other->handle, node, "three");
    volatile int done = 0;
    equal_answer(zoo_async(zk, node, synced, (void *)(uintptr_t)&done), ZOK, "sync");
    for (long long end = now_ms() + 5000; !done && now_ms() < end;)
        sleep_ms(5);
    equal(done, 1, "answer to sync");
    equal_value(zk, node, "three");
    ok();

    begin("delete");
    remove_tree(zk, at->prefix);
    equal(there(zk, at->prefix), 0, "the root is there");
    ok();
}
