#include "run/directory/journal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/directory.h"
#include "files/atomic.h"
#include "files/json.h"
#include "run/paths.h"

bool shore__journal_is_there(const char *run_path, const char *name) {
    return shore__path_exists(run_path, name);
}

int shore__journal_write(const char *run_path, const char *name, json_t *j, struct shore_diag *diag) {
    char *path = shore__path_join(run_path, name);
    int rc = j && path ? shore__json_write(path, j, 2, diag) : shore__out_of_memory(diag);
    json_decref(j);
    free(path);
    return rc;
}

int shore__journal_read(const char *run_path, const char *name, json_t **out, struct shore_diag *diag) {
    *out = NULL;
    if (!shore__journal_is_there(run_path, name)) return SHORE_EMISSING;
    char *path = shore__path_join(run_path, name);
    int rc = path ? shore__json_read(path, SHORE__RUN_JSON_BYTES_MOST, out, diag) : shore__out_of_memory(diag);
    free(path);
    return rc;
}

int shore__journal_refuse(const char *run_path, const char *name, const char *what, struct shore_diag *diag) {
    return shore__fail(diag, SHORE_EINPUT, "%s/%s: has been changed by hand, and says %s; put it back", run_path, name,
                       what);
}

int shore__journal_clear(const char *run_path, const char *name, struct shore_diag *diag) {
    char *path = shore__path_join(run_path, name);
    if (!path) return shore__out_of_memory(diag);
    shore__remove_in(run_path, name);
    int rc = unlink(path) < 0 && errno != ENOENT
                 ? shore__fail(diag, -errno, "%s: cannot be removed: %s", path, strerror(errno))
                 : shore__parent_sync(path, diag);
    free(path);
    return rc;
}
