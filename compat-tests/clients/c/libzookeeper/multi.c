/* Transactions. */
#include "compat.h"

#define OPEN &ZOO_OPEN_ACL_UNSAFE

void multi(const struct place *at)
{
    const char *p = text("%s/p", at->prefix), *c = text("%s/c", p), *x = text("%s/x", at->prefix);
    char first[512], second[512];
    struct Stat stat, other_stat;
    struct String_vector names;
    zoo_op_t ops[5];
    zoo_op_result_t results[5];

    begin("all");
    zhandle_t *zk = session_open(at->address, 10000, NULL)->handle;
    create(zk, at->prefix, "");
    zoo_create_op_init(&ops[0], p, "zero", 4, OPEN, 0, first, sizeof first);
    zoo_create_op_init(&ops[1], c, "zero", 4, OPEN, 0, second, sizeof second);
    zoo_set_op_init(&ops[2], c, "one", 3, 0, &stat);
    zoo_check_op_init(&ops[3], c, 1);
    zoo_delete_op_init(&ops[4], c, 1);
    equal_answer(zoo_multi(zk, 5, ops, results), ZOK, "multi");
    for (int i = 0; i < 5; i++)
        equal_answer(results[i].err, ZOK, text("result %d", i));
    equal_text(results[0].value, p, "path of the first");
    equal_text(results[1].value, c, "path of the second");
    equal(stat.version, 1, "version");
    equal(stat.dataLength, 3, "dataLength");
    equal_answer(zoo_get_children(zk, at->prefix, 0, &names), ZOK, "children of the root");
    equal(names.count, 1, "children of the root");
    equal_text(names.data[0], "p", "child of the root");
    equal_answer(zoo_get_children(zk, p, 0, &names), ZOK, "children of P");
    equal(names.count, 0, "children of P");
    equal_value(zk, p, "zero");
    ok();

    begin("one-zxid");
    const char *x1 = text("%s/x1", at->prefix), *x2 = text("%s/x2", at->prefix);
    zoo_create_op_init(&ops[0], x1, "", 0, OPEN, 0, first, sizeof first);
    zoo_create_op_init(&ops[1], x2, "", 0, OPEN, 0, second, sizeof second);
    equal_answer(zoo_multi(zk, 2, ops, results), ZOK, "multi");
    equal_answer(zoo_exists(zk, x1, 0, &stat), ZOK, "exists");
    equal_answer(zoo_exists(zk, x2, 0, &other_stat), ZOK, "exists");
    equal(other_stat.czxid, stat.czxid, "czxid");
    ok();

    begin("none");
    zoo_create_op_init(&ops[0], x, "", 0, OPEN, 0, first, sizeof first);
    zoo_create_op_init(&ops[1], p, "", 0, OPEN, 0, second, sizeof second);
    zoo_delete_op_init(&ops[2], p, -1);
    equal_answer(zoo_multi(zk, 3, ops, results), ZNODEEXISTS, "multi");
    equal(there(zk, x), 0, "X is there");
    equal(there(zk, p), 1, "P is there");
    ok();

    begin("which");
    /* Those before the failure are rolled back with 0 in an error result, those after it never ran. */
    equal_answer(results[0].err, ZOK, "result of the first");
    equal_answer(results[1].err, ZNODEEXISTS, "result of the second");
    equal_answer(results[2].err, ZRUNTIMEINCONSISTENCY, "result of the third");
    ok();

    begin("check-fails");
    zoo_check_op_init(&ops[0], p, 9);
    zoo_create_op_init(&ops[1], x, "", 0, OPEN, 0, first, sizeof first);
    equal_answer(zoo_multi(zk, 2, ops, results), ZBADVERSION, "multi");
    equal_answer(results[0].err, ZBADVERSION, "result of the check");
    equal(there(zk, x), 0, "X is there");
    ok();

    begin("order");
    const char *y = text("%s/y", at->prefix);
    zoo_create_op_init(&ops[0], y, "", 0, OPEN, 0, first, sizeof first);
    zoo_set_op_init(&ops[1], y, "one", 3, 0, &stat);
    zoo_set_op_init(&ops[2], y, "two", 3, 1, &other_stat);
    equal_answer(zoo_multi(zk, 3, ops, results), ZOK, "multi");
    equal(stat.version, 1, "version after the first set");
    equal(other_stat.version, 2, "version after the second set");
    equal_value(zk, y, "two");
    ok();

    begin("sequential");
    const char *row = text("%s/row", at->prefix);
    create(zk, row, "");
    for (int i = 0; i < 2; i++)
        zoo_create_op_init(&ops[i], text("%s/s-", row), "", 0, OPEN, ZOO_PERSISTENT_SEQUENTIAL, i ? second : first, 512);
    equal_answer(zoo_multi(zk, 2, ops, results), ZOK, "multi");
    equal_text(results[0].value, text("%s/s-0000000000", row), "path of the first");
    equal_text(results[1].value, text("%s/s-0000000001", row), "path of the second");
    ok();

    begin("silent");
    zhandle_t *other = session_open(at->address, 10000, NULL)->handle;
    struct events *events = events_new();
    equal_answer(zoo_wget_children(other, p, events_take, events, &names), ZOK, "children");
    zoo_create_op_init(&ops[0], c, "", 0, OPEN, 0, first, sizeof first);
    zoo_create_op_init(&ops[1], p, "", 0, OPEN, 0, second, sizeof second);
    equal_answer(zoo_multi(zk, 2, ops, results), ZNODEEXISTS, "multi");
    events_silent(events, 1000);
    zoo_create_op_init(&ops[1], text("%s/d", p), "", 0, OPEN, 0, second, sizeof second);
    equal_answer(zoo_multi(zk, 2, ops, results), ZOK, "multi");
    events_next(events, ZOO_CHILD_EVENT, p, 2000);
    events_silent(events, 500);
    ok();
}
