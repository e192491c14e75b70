/* What every scenario shares: reporting of steps, faults asked of the bench, exact checks, sessions, events. */
#ifndef COMPAT_H
#define COMPAT_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zookeeper/zookeeper.h>

/* Where a scenario plays. */
struct place {
    const char *address;
    const char *prefix; /* fresh for this run */
    const char *link;   /* the server over a link that the bench can cut */
};

/* --- The scenarios, a file each. --- */

#define SCENARIOS(of)                                                                                                 \
    of(acl, "acl") of(chroot_of, "chroot") of(connection, "connect") of(container_ttl, "container-ttl")               \
        of(data, "data") of(discovery, "discovery") of(multi, "multi") of(reattach, "reattach")                       \
            of(restart, "restart") of(session_expiry, "session-expiry") of(watch_children, "watch-children")          \
                of(watch_data, "watch-data") of(watch_exists, "watch-exists")

#define DECLARE(function, name) void function(const struct place *);
SCENARIOS(DECLARE)

/* --- The report. A check that fails ends the program: nothing after a wrong state is worth seeing. --- */

void begin(const char *step); /* checks from here on belong to it */
void ok(void);                /* it holds */
void note(const char *text);
void fault(const char *verb);
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

void equal(long long seen, long long expected, const char *what);
void equal_text(const char *seen, const char *expected, const char *what);
void equal_answer(int seen, int expected, const char *what); /* answers of the library, by name */
void holds(int condition, const char *what);

/* A formatted text that lives until the program ends. */
char *text(const char *format, ...) __attribute__((format(printf, 1, 2)));
long long now_ms(void);
void sleep_ms(long ms);

/* --- Sessions. --- */

struct session {
    zhandle_t *handle;
    pthread_mutex_t lock;
    int state; /* as the session's watcher was told last */
    int lost;  /* how often the connection went */
    int times; /* how often it was made */
};

struct session *session_open(const char *address, int timeout_ms, const clientid_t *of);
void session_close(struct session *session);
int64_t session_id(const struct session *session);
int session_state(struct session *session);
int session_lost(struct session *session);
int session_times(struct session *session);
void session_wait(struct session *session, int state, long limit_ms);

/* --- Nodes. --- */

#define VALUE_MAX (1024 * 1024)

struct value {
    char *data;
    int length;
    struct Stat stat;
};

void create(zhandle_t *zk, const char *path, const char *value);
void create_as(zhandle_t *zk, const char *path, const char *value, int flags, char *made, int room);
int get(zhandle_t *zk, const char *path, struct value *into);
void set(zhandle_t *zk, const char *path, const char *value);
void drop(zhandle_t *zk, const char *path);
int there(zhandle_t *zk, const char *path);
void equal_value(zhandle_t *zk, const char *path, const char *expected);
void equal_stat(const struct Stat *seen, const struct Stat *expected, const char *what);
/* Asks until the node is there (1) or is not (0). */
void until_there(zhandle_t *zk, const char *path, int expected, long limit_ms);

/* --- Events, in the order in which the library hands them out; session events go to the session. --- */

struct event {
    int type;
    char path[512];
};

struct events {
    pthread_mutex_t lock;
    int count;
    struct event items[64];
};

struct events *events_new(void);
void events_take(zhandle_t *zk, int type, int state, const char *path, void *events);
void events_next(struct events *events, int type, const char *path, long limit_ms);
void events_silent(struct events *events, long ms);

#endif
