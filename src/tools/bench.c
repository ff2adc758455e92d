#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "drive/probe/probe.h"
#include "tools/bench.h"

static int add_place(const struct shore__address *drive, const char *file, struct shore__addresses *places,
                     struct shore_diag *diag) {
    struct stat st;
    bool there = drive->kind->has_file && stat(drive->path, &st) == 0;
    bool inside = drive->kind->served || (there && S_ISDIR(st.st_mode));
    if (there && S_ISREG(st.st_mode))
        return shore__fail(diag, SHORE_EEXISTS, "%s: exists already; name a directory, and a file is made in it",
                           drive->text);
    int rc = inside ? 0 : shore__drive_may_be_made(drive, diag);
    if (rc) return rc;
    rc = shore__addresses_add(places, inside ? shore__address_in(drive, file) : shore__address_copy(drive));
    return rc ? shore__fail(diag, rc, "out of memory") : 0;
}

int shore__bench_places(const struct shore__strings *drives, const char *name, struct shore__addresses *places,
                        struct shore_diag *diag) {
    int rc = drives->count ? 0 : shore__fail(diag, SHORE_EUSAGE, "which drive? Give --drive DIR, a directory on it");
    for (size_t i = 0; !rc && i < drives->count; i++) {
        char file[64];
        struct shore__address *drive;
        snprintf(file, sizeof file, "longshore-%s-%ld-%zu.volume", name, (long)getpid(), i);
        rc = shore__address_parse(drives->item[i], &drive, diag);
        if (!rc) rc = add_place(drive, file, places, diag);
        free(drive);
    }
    return rc;
}

void shore__bench_remove(const struct shore__addresses *places) {
    for (size_t i = 0; i < places->count; i++) {
        const struct shore__address *at = places->item[i];
        struct stat st;
        struct shore__probe probe;
        if (at->kind->served && shore__drive_probe(at, &probe, NULL) == 0) {
            if (probe.is_volume) shore__remote_remove(at, probe.desc.fleet_id, SHORE__ANY_GENERATION, false, NULL);
            shore__probe_free(&probe);
            continue;
        }
        if (stat(at->path, &st) == 0 && S_ISREG(st.st_mode)) unlink(at->path);
    }
}

int shore__bench_parse_count(const char *text, uint64_t *count) {
    char *end;
    double value = strtod(text, &end), unit = 1;
    bool plain = (size_t)(end - text) <= strspn(text, "0123456789.eE+"); /* no hexadecimal, no leading space */
    if (end == text || !plain || !(value > 0)) return -EINVAL;
    if (*end == 'k' || *end == 'K') unit = 1e3;
    if (*end == 'm' || *end == 'M') unit = 1e6;
    if (*end == 'g' || *end == 'G' || *end == 'b' || *end == 'B') unit = 1e9;
    if (unit > 1) end++;
    if (*end || value * unit > 1e13 || value * unit < 1) return -EINVAL;
    *count = (uint64_t)(value * unit + 0.5);
    return 0;
}
