/* Drives behind ssh, without ssh: in its place, the test's own program serves them. */
#ifndef SHORE_TESTS_DRIVE_SSH_H
#define SHORE_TESTS_DRIVE_SSH_H

#include <stdlib.h>

#include "drive/remote/transport.h"
#include "drive/serve/serve.h"

/* What main() does and returns if the program has arguments: HOST longshore drive serve --stdio. */
static inline int serve_as_ssh(void) {
    const struct shore__serve_options options = {.build = "test"};
    struct shore_diag diag;
    return shore__serve(0, 1, &options, &diag) != 0;
}

static inline void take_the_place_of_ssh(void) {
    char *self = realpath("/proc/self/exe", NULL);
    setenv(SHORE__RSH_VARIABLE, self, 1);
    free(self);
}

#endif
