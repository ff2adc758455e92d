/* Names of files of resting blocks, and opening one beside a snapshot. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "storage/rest.h"
#include "storage/volume_internal.h"

#define ENDING ".rest"
#define BEGUN ENDING ".partial"
#define BEGIN "longshore-"
enum { FLEET_DIGITS = 16, KEY_DIGITS = 16 };

size_t shore__rest_directory_bytes(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

char *shore__rest_path(const struct shore__volume *snapshot, bool begun) {
    const char *beside = snapshot->file.path;
    char *path = NULL;
    int n =
        asprintf(&path, "%.*s" BEGIN "%016" PRIx64 "-%016" PRIx64 "%s", (int)shore__rest_directory_bytes(beside),
                 beside, snapshot->desc.fleet_id[0], shore__get_u64(snapshot->desc.rest_key), begun ? BEGUN : ENDING);
    return n < 0 ? NULL : path;
}

bool shore__rest_is_name(const char *name, const uint64_t fleet_id[2], uint64_t *key) {
    char begin[sizeof BEGIN + FLEET_DIGITS + 1];
    int n = snprintf(begin, sizeof begin, BEGIN "%016" PRIx64 "-", fleet_id[0]);
    if (strncmp(name, begin, (size_t)n) != 0 || strspn(name + n, "0123456789abcdef") != KEY_DIGITS) return false;
    *key = strtoull(name + n, NULL, 16);
    const char *ending = name + n + KEY_DIGITS;
    return strcmp(ending, ENDING) == 0 || strcmp(ending, BEGUN) == 0;
}

int shore__rest_open(struct shore__volume *snapshot, enum shore_io io, struct shore_diag *diag) {
    struct shore__file *rest = calloc(1, sizeof *rest);
    char *path = shore__rest_path(snapshot, false);
    int rc = rest && path ? shore__file_open_to_read(path, io, SHORE__LOCK_SECONDS, rest, diag)
                          : shore__fail(diag, -ENOMEM, "%s: out of memory", snapshot->file.path);
    if (rc == -ENOENT)
        rc = shore__fail(diag, SHORE_EMISSING,
                         "%s is missing, which holds the frozen blocks of the snapshot %s: put it back", path,
                         snapshot->file.path);
    if (!rc && rest->size_bytes < snapshot->size_bytes) {
        rc = shore__fail(
            diag, SHORE_ECORRUPT,
            "%s: cut off: it has %llu bytes, and the snapshot %s needs %llu; put the file back from a copy", path,
            (unsigned long long)rest->size_bytes, snapshot->file.path, (unsigned long long)snapshot->size_bytes);
        shore__file_close(rest);
    }
    free(path);
    if (rc) {
        free(rest);
        return rc;
    }
    snapshot->file.rest = rest;
    snapshot->file.rest_from = snapshot->at.plane[1][0];
    return 0;
}
