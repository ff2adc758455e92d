/* Moments beside the weights of a Hugging Face directory. */
#include <string.h>

#include "base/diag.h"
#include "files/atomic.h"
#include "files/json.h"
#include "near/update.h"
#include "run/exchange/moment_files.h"

enum { JSON_BYTES_MOST = 64 << 20 }; /* the file may list a count for each tensor */

const char *shore__moment_name(enum shore_optimizer optimizer, enum shore_plane plane) {
    const struct shore__optimizer *o = shore__optimizer(optimizer);
    return plane == SHORE_PLANE_M ? o->m : o->v;
}

struct shore__path shore__moments_path(const char *directory, const char *name) {
    return shore__path_in(shore__path_in(directory, SHORE__MOMENTS_DIRECTORY).text, name);
}

int shore__moments_describe(const char *directory, enum shore_optimizer optimizer, uint64_t updates,
                            struct shore_diag *diag) {
    json_t *said = json_pack("{s:s}", "optimizer", shore__optimizer(optimizer)->name);
    if (said && updates) json_object_set_new(said, "updates", json_integer((json_int_t)updates));
    return shore__json_write_in(shore__path_in(directory, SHORE__MOMENTS_DIRECTORY).text, SHORE__MOMENTS_FILE, said,
                                diag);
}

static int take_updates(const json_t *said, const char *path, enum shore_optimizer optimizer, uint64_t *updates,
                        struct shore_diag *diag) {
    const char *whose = json_string_value(json_object_get(said, "optimizer"));
    const json_t *updates_said = json_object_get(said, "updates");
    json_int_t count = json_integer_value(updates_said);
    if (!whose || !json_is_integer(updates_said) || count < 0 || (uint64_t)count > SHORE__STEPS_MOST)
        return shore__fail(diag, SHORE_EINPUT,
                           "%s: does not say which optimizer's moments these are (\"optimizer\"), and how many updates "
                           "they have had (\"updates\")",
                           path);
    if (strcmp(whose, shore__optimizer(optimizer)->name) != 0)
        return shore__fail(diag, SHORE_EINPUT,
                           "%s: these are moments of %.40s, not of %s: train with that optimizer, or remove their "
                           "directory to begin without moments",
                           path, whose, shore__optimizer(optimizer)->name);
    if (json_object_size(json_object_get(said, "fewer")))
        return shore__fail(diag, SHORE_EINPUT,
                           "%s: some tensors have had fewer updates than others, and a run has one count for all: "
                           "remove that directory to begin without moments",
                           path);
    *updates = (uint64_t)count;
    return 0;
}

int shore__moments_updates(const char *directory, enum shore_optimizer optimizer, uint64_t *updates,
                           struct shore_diag *diag) {
    json_t *said = NULL;
    const struct shore__path path = shore__moments_path(directory, SHORE__MOMENTS_FILE);
    int rc = shore__json_read(path.text, JSON_BYTES_MOST, &said, diag);
    if (rc == SHORE_EMISSING) {
        if (diag) diag->text[0] = '\0';
        rc = 0;
    } else if (rc == 0) {
        rc = take_updates(said, path.text, optimizer, updates, diag);
    }
    json_decref(said);
    return rc;
}
