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

uint64_t shore__drive_device(const char *path) {
    struct stat st;
    if (stat(path, &st) == 0) return S_ISREG(st.st_mode) ? st.st_dev : 0;
    char *directory = strdup(path), *slash = directory ? strrchr(directory, '/') : NULL;
    if (slash) slash[slash == directory] = '\0';
    bool found = directory && stat(slash ? directory : ".", &st) == 0;
    free(directory);
    return found ? st.st_dev : 0;
}

int shore__drive_measure(const char *path, enum shore_io io, uint64_t *speed, struct shore_diag *diag) {
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

/* "2,1", "2.8GB,1.4GB": with units in all or in none; what is plain is scaled so that fractions count. */
int shore__speeds_parse(const char *text, uint32_t ndrives, uint64_t *speeds, struct shore_diag *diag) {
    enum { PLAIN = 1000000 };
    bool plain[2] = {false, false};
    uint32_t n = 0;
    for (const char *at = text; at; n++) {
        char item[48], shown[80];
        size_t bytes = strcspn(at, ",");
        uint64_t speed = 0;
        snprintf(item, sizeof item, "%.*s", (int)(bytes < sizeof item ? bytes : sizeof item - 1), at);
        bool number = item[0] && item[strspn(item, "0123456789.")] == '\0';
        char *end = item;
        double value = number ? strtod(item, &end) : 0;
        bool good = bytes < sizeof item && (number ? *end == '\0' && value <= 1e12 : !shore__parse_size(item, &speed));
        if (good && number) speed = (uint64_t)(value * PLAIN);
        if (!good || speed == 0 || speed > UINT64_C(1) << 60)
            return shore__fail(diag, SHORE_EUSAGE,
                               "--drive-speeds %s: '%s' is no speed: give numbers such as 2,1 or 2.8GB,1.4GB, one for "
                               "each drive",
                               shore__escape(text, strlen(text), shown, sizeof shown), item);
        plain[number] = true;
        if (speeds && n < ndrives) speeds[n] = speed;
        at = at[bytes] ? at + bytes + 1 : NULL;
    }
    if (plain[0] && plain[1])
        return shore__fail(diag, SHORE_EUSAGE, "--drive-speeds %.60s: give a unit to all of them, or to none", text);
    if (n != ndrives)
        return shore__fail(diag, SHORE_EUSAGE, "--drive-speeds %.60s: %u speeds for %u drives: give one for each", text,
                           n, ndrives);
    return 0;
}

static void note(const struct shore_fleet_options *o, const char *text) {
    if (o->note) o->note(o->note_ctx, text);
}

bool shore__drives_share_device(char *const *paths, uint32_t ndrives) {
    uint64_t first = shore__drive_device(paths[0]);
    for (uint32_t d = 1; d < ndrives; d++)
        if (shore__drive_device(paths[d]) != first) return false;
    return first != 0;
}

void shore__drives_measure(char *const *paths, uint32_t ndrives, const struct shore_fleet_options *o,
                           uint64_t *speeds) {
    uint64_t first = paths[0] ? shore__drive_device(paths[0]) : 0;
    bool differ = false, files = true;
    for (uint32_t d = 0; d < ndrives; d++) {
        uint64_t device = paths[d] ? shore__drive_device(paths[d]) : 0;
        speeds[d] = 1;
        files = files && device;
        differ = differ || device != first;
    }
    if (!files || !differ) return;
    char text[512] = "measured for placement:";
    for (uint32_t d = 0; d < ndrives; d++) {
        struct shore_diag diag = {{0}};
        char rate[32];
        if (shore__drive_measure(paths[d], o->io, &speeds[d], &diag)) {
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
