#include "run/lives/journal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/directory.h"
#include "files/atomic.h"
#include "files/json.h"
#include "run/internal.h"

int shore__out_of_memory(struct shore_diag *diag) {
    return shore__fail(diag, -ENOMEM, "out of memory");
}

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

json_t *shore__strings_to_json(const struct shore__strings *list) {
    json_t *array = json_array();
    for (size_t i = 0; i < list->count; i++)
        if (json_array_append_new(array, json_string(list->item[i]))) {
            json_decref(array);
            return NULL;
        }
    return array;
}

int shore__strings_from_json(const json_t *array, struct shore__strings *out) {
    const json_t *item = NULL;
    size_t i = 0;
    int rc = json_is_array(array) ? 0 : -EINVAL;
    json_array_foreach((json_t *)(uintptr_t)array, i, item) {
        if (!rc) rc = json_is_string(item) ? shore__strings_add(out, json_string_value(item)) : -EINVAL;
    }
    return rc;
}
