#include "base/cache_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

char *shore__cache_file(const char *name) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool given = cache && cache[0] == '/';
    char *path = NULL;
    if (!given && !(home && *home)) return NULL;
    return asprintf(&path, "%s%s/longshore/%s", given ? cache : home, given ? "" : "/.cache", name) < 0 ? NULL : path;
}

int shore__cache_directories(const char *path, struct shore_diag *diag) {
    char *part = strdup(path);
    int rc = part ? 0 : shore__out_of_memory(diag);
    for (char *slash = part; !rc && (slash = strchr(slash + 1, '/')); *slash = '/') {
        *slash = '\0';
        if (mkdir(part, 0777) && errno != EEXIST) rc = shore__fail_errno(diag, part, "cannot be made");
    }
    free(part);
    return rc;
}
