#include "drive/snapshot_name.h"

#include <stdio.h>
#include <string.h>

bool shore__snapshot_name_valid(const char *name) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    static const char unmade[] = ".partial"; /* ending of an unfinished snapshot's file */
    size_t n = strlen(name), end = sizeof unmade - 1;
    if (n >= end && strcmp(name + n - end, unmade) == 0) return false;
    return n > 0 && n <= SHORE__SNAPSHOT_NAME_BYTES && name[0] != '.' && name[0] != '-' && strspn(name, letters) == n;
}

char *shore__snapshot_path(const char *path, const char *name) {
    char *out = NULL;
    return asprintf(&out, "%s.snapshot-%s", path, name) < 0 ? NULL : out;
}
