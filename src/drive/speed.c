#include "drive/speed.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/units.h"
#include "storage/rate.h"

#define HALF_BYTES (UINT64_C(48) << 20)
#define CHUNK_BYTES 1u /* the least: this memory is outside the arena */
#define BUFFERS 5u
#define PASSES 2u

/* The device that a volume will lie on; false: it is a device, or cannot be found out. */
static bool device_of(const char *path, dev_t *out) {
    struct stat st;
    if (stat(path, &st) == 0) {
        *out = st.st_dev;
        return S_ISREG(st.st_mode);
    }
    char *directory = strdup(path), *slash = directory ? strrchr(directory, '/') : NULL;
    if (slash) slash[slash == directory] = '\0';
    bool found = directory && stat(slash ? directory : ".", &st) == 0;
    free(directory);
    *out = st.st_dev;
    return found;
}

static int measure(const char *path, enum shore_io io, uint64_t *speed, struct shore_diag *diag) {
    struct shore__rate r;
    char *file = NULL;
    if (asprintf(&file, "%s.speed-%ld", path, (long)getpid()) < 0) return shore__fail(diag, -ENOMEM, "out of memory");
    int rc = shore__rate_open(&r, file, HALF_BYTES, CHUNK_BYTES, BUFFERS, io, false, diag);
    if (r.file.fd >= 0) unlink(file); /* so that a kill leaves nothing */
    if (!rc) rc = shore__rate_fill(&r, diag);
    r.moved_bytes = 0;
    uint64_t start = shore__now_ns();
    for (uint32_t i = 0; !rc && i < PASSES; i++)
        rc = shore__rate_pass(&r, i % 2 == 0, diag);
    uint64_t ns = shore__now_ns() - start;
    if (!rc) *speed = (uint64_t)((double)r.moved_bytes * 1e9 / (double)(ns ? ns : 1));
    shore__rate_close(&r);
    free(file);
    return rc;
}

static void note(const struct shore_fleet_options *o, const char *text) {
    if (o->note) o->note(o->note_ctx, text);
}

void shore__drives_measure(char *const *paths, uint32_t ndrives, const struct shore_fleet_options *o,
                           uint64_t *speeds) {
    dev_t first = 0, other = 0;
    bool differ = false, files = true;
    for (uint32_t d = 0; d < ndrives; d++) {
        speeds[d] = 1;
        files = files && paths[d] && device_of(paths[d], d ? &other : &first);
        differ = differ || (files && d && other != first);
    }
    if (!files || !differ) return;
    char text[512] = "measured for placement:";
    for (uint32_t d = 0; d < ndrives; d++) {
        struct shore_diag diag = {{0}};
        char rate[32];
        if (measure(paths[d], o->io, &speeds[d], &diag)) {
            char why[sizeof diag.text + 64];
            snprintf(why, sizeof why, "drives are taken to be equally fast: %s", diag.text);
            note(o, why);
            for (uint32_t e = 0; e < ndrives; e++)
                speeds[e] = 1;
            return;
        }
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s %s %s/s", d ? "," : "", o->drives[d],
                 shore__format_size(speeds[d], rate, sizeof rate));
    }
    note(o, text);
}
