/* compat-c CLIENT SCENARIO ADDRESS PREFIX: libzookeeper, one scenario, one target. */
#include "compat.h"

#include <unistd.h>

#define ROW(function, name) {name, function},
static const struct {
    const char *name;
    void (*play)(const struct place *);
} scenarios[] = {SCENARIOS(ROW)};

static void *limit(void *seconds)
{
    sleep(*(unsigned *)seconds);
    fail("not through within %u s", *(unsigned *)seconds);
}

int main(int count, char **arguments)
{
    if (count != 5) {
        fprintf(stderr, "usage: compat-c CLIENT SCENARIO ADDRESS PREFIX\n");
        return 64;
    }
    const char *link = getenv("COMPAT_LINK");
    struct place place = {arguments[3], arguments[4], link ? link : ""};
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        if (strcmp(arguments[2], scenarios[i].name) != 0)
            continue;
        static unsigned seconds;
        seconds = strcmp(arguments[2], "restart") == 0 ? 115 : 57;
        pthread_t timer;
        pthread_create(&timer, NULL, limit, &seconds);
        zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);
        scenarios[i].play(&place);
        printf("done\n");
        fflush(stdout);
        _Exit(0);
    }
    fprintf(stderr, "no scenario %s\n", arguments[2]);
    return 64;
}
