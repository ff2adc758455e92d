/* Reads moments beside the weights of a Hugging Face directory. A run that begins with both goes on like the exported
 * run. A file of its own, because it needs more than an export does, which the library has. */
#include <unistd.h>

#include "base/diag.h"
#include "near/update.h"
#include "run/exchange/moment_files.h"

/* Refuses moments with another momentum: SGD has a momentum only if it is made with one. */
static int refuse_other_momentum(const char *path, const char *optimizer, bool has, struct shore_diag *diag) {
    bool there = access(path, F_OK) == 0;
    if (there == has) return 0;
    return shore__fail(diag, SHORE_EINPUT,
                       has ? "%s: is missing, so these are moments of %s without momentum: train with momentum 0, or "
                             "remove their directory to begin without moments"
                           : "%s: exists, so these are moments of %s with momentum: train with momentum, or remove "
                             "their directory to begin without moments",
                       path, optimizer);
}

int shore__moments_open(const struct shore__model *m, const struct shore__settings *s,
                        struct shore__moment_sources *out, struct shore_diag *diag) {
    const enum shore_plane planes[] = {SHORE_PLANE_M, SHORE_PLANE_V};
    struct shore__source **sources[] = {&out->m, &out->v};
    unsigned has = shore_optimizer_planes(s->optimizer, s->momentum > 0);
    int rc = 0;
    for (int i = 0; i < 2 && rc == 0; i++) {
        const char *name = shore__moment_name(s->optimizer, planes[i]);
        const struct shore__optimizer *o = shore__optimizer(s->optimizer);
        bool stored = has & 1u << planes[i];
        if (!name) continue;
        const struct shore__path path = shore__moments_path(s->model, name);
        if (o->takes_momentum) rc = refuse_other_momentum(path.text, o->name, stored, diag);
        if (stored && rc == 0) rc = shore__source_directory(m, path.text, sources[i], diag);
        if (*sources[i] && planes[i] == SHORE_PLANE_V) shore__source_holds_squares(*sources[i]);
    }
    return rc;
}
