#include "drive/fleet/fleet_snapshot.h"

#include <errno.h>
#include <stdlib.h>

#include "base/diag.h"
#include "base/thread.h"
#include "drive/fleet/fleet.h"

struct part {
    pthread_t thread;
    bool started, made;
    struct shore__drive *drive;
    const char *name;
    int rc;
    struct shore_diag diag;
};

static void *make(void *ctx) {
    struct part *p = ctx;
    p->rc = p->drive->ops->snapshot(p->drive, SHORE__SNAPSHOT_MAKE, p->name, &p->diag);
    p->made = !p->rc;
    return NULL;
}

/* Each drive makes its own copy; the threads only wait. */
static int make_all(struct part *parts, uint32_t n, struct shore_diag *diag) {
    int rc = 0;
    for (uint32_t d = 1; d < n; d++) {
        parts[d].started = shore__thread_start(&parts[d].thread, "shore-snapshot", make, &parts[d]) == 0;
    }
    for (uint32_t d = 0; d < n; d++) {
        if (parts[d].started) {
            pthread_join(parts[d].thread, NULL);
        } else {
            make(&parts[d]);
        }
        if (parts[d].rc && !rc) {
            rc = parts[d].rc;
            *diag = parts[d].diag;
        }
    }
    return rc;
}

int shore__fleet_snapshot(struct shore_fleet *f, const char *name, struct shore_diag *diag) {
    struct shore_diag ignored;
    if (!diag) diag = &ignored;
    if (!shore__snapshot_name_valid(name)) return shore__fail(diag, SHORE_EUSAGE, "this is not a name for a snapshot");
    struct part *parts = calloc(f->ndrives, sizeof *parts);
    if (!parts) return shore__fail(diag, -ENOMEM, "out of memory");
    for (uint32_t d = 0; d < f->ndrives; d++) {
        parts[d].drive = f->drives[d];
        parts[d].name = name;
    }
    int rc = make_all(parts, f->ndrives, diag);
    for (uint32_t d = 0; rc && d < f->ndrives; d++) {
        if (parts[d].made) f->drives[d]->ops->snapshot(f->drives[d], SHORE__SNAPSHOT_REMOVE, name, NULL);
    }
    free(parts);
    return rc;
}

void shore__fleet_snapshot_remove(struct shore_fleet *f, const char *name) {
    for (uint32_t d = 0; d < f->ndrives; d++)
        f->drives[d]->ops->snapshot(f->drives[d], SHORE__SNAPSHOT_REMOVE, name, NULL);
}
