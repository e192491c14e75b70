/* Access lists with the digest scheme. */
#include "compat.h"

static const char secret[] = "user:secret";
/* base64 of the SHA-1 of it (ZooKeeper: DigestAuthenticationProvider.generateDigest) */
static const char digest[] = "user:5w9W4eL3797Y4Wq8AcKUPPk8ha4=";

static void shown(zhandle_t *zk, const char *path, int permissions, const char *scheme, const char *id, int aversion)
{
    struct ACL_vector list;
    struct Stat stat;
    equal_answer(zoo_get_acl(zk, path, &list, &stat), ZOK, "getACL");
    equal(list.count, 1, "entries of the list");
    equal(list.data[0].perms, permissions, "permissions");
    equal_text(list.data[0].id.scheme, scheme, "scheme");
    equal_text(list.data[0].id.id, id, "id");
    equal(stat.aversion, aversion, "aversion");
    deallocate_ACL_vector(&list);
}

static void added(int answer, const void *done)
{
    *(volatile int *)(uintptr_t)done = answer == ZOK ? 1 : answer;
}

static void add_secret(zhandle_t *zk)
{
    static volatile int done;
    done = 0;
    equal_answer(zoo_add_auth(zk, "digest", secret, sizeof secret - 1, added, (void *)(uintptr_t)&done), ZOK,
                 "add_auth");
    for (long long end = now_ms() + 5000; !done && now_ms() < end;)
        sleep_ms(5);
    equal(done, 1, "answer to add_auth");
}

void acl(const struct place *at)
{
    const char *node = text("%s/mine", at->prefix);
    struct value value = {0};

    begin("open");
    zhandle_t *a = session_open(at->address, 10000, NULL)->handle;
    create(a, at->prefix, "");
    shown(a, at->prefix, ZOO_PERM_ALL, "world", "anyone", 0);
    ok();

    begin("digest");
    add_secret(a);
    equal_answer(zoo_create(a, node, "zero", 4, &ZOO_CREATOR_ALL_ACL, 0, NULL, 0), ZOK, "create");
    ok();

    begin("shown");
    shown(a, node, ZOO_PERM_ALL, "digest", digest, 0);
    ok();

    begin("own");
    set(a, node, "one");
    equal_value(a, node, "one");
    ok();

    begin("stranger");
    zhandle_t *b = session_open(at->address, 10000, NULL)->handle;
    equal_answer(get(b, node, &value), ZNOAUTH, "get");
    equal_answer(zoo_set(b, node, "two", 3, -1), ZNOAUTH, "set");
    ok();

    begin("admitted");
    add_secret(b);
    equal_value(b, node, "one");
    ok();

    begin("changed");
    equal_answer(zoo_set_acl(a, node, 0, &ZOO_READ_ACL_UNSAFE), ZOK, "setACL");
    shown(a, node, ZOO_PERM_READ, "world", "anyone", 1);
    zhandle_t *c = session_open(at->address, 10000, NULL)->handle;
    equal_value(c, node, "one");
    equal_answer(zoo_set(c, node, "two", 3, -1), ZNOAUTH, "set");
    ok();

    begin("bad-version");
    equal_answer(zoo_set_acl(a, at->prefix, 7, &ZOO_OPEN_ACL_UNSAFE), ZBADVERSION, "setACL");
    shown(a, at->prefix, ZOO_PERM_ALL, "world", "anyone", 0);
    /* Who may administrate is asked before the version. */
    equal_answer(zoo_set_acl(a, node, 7, &ZOO_OPEN_ACL_UNSAFE), ZNOAUTH, "setACL of the other");
    shown(a, node, ZOO_PERM_READ, "world", "anyone", 1);
    ok();
}
