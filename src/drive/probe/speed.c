#include "drive/probe/speed.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/probe/probe.h"
#include "storage/blockio.h"
#include "storage/rate.h"
#include "storage/whereabouts.h"

#define HALF_BYTES (UINT64_C(48) << 20)
#define CHUNK_BYTES 1u /* the least: this memory is outside the arena */
#define BUFFERS 4u
#define BUFFERS_LEAST 3u
#define PASSES 2u
#define FLUSHES 5u
/* As a drive has them with the memory that it wants: see choose_ring(). */
#define ENGINE_CHUNK_BYTES (UINT64_C(2) * 12 * SHORE_SEGMENT_ELEMS)
#define HALF_BYTES_MOST (UINT64_C(2) << 30)

int shore__drive_measure(const char *path, enum shore_io io, uint64_t *speed, struct shore_diag *diag) {
    struct shore__rate r;
    char *file = NULL;
    if (asprintf(&file, "%s.speed-%ld", path, (long)getpid()) < 0) return shore__fail(diag, -ENOMEM, "out of memory");
    int rc = shore__rate_open_unnamed(&r, file, HALF_BYTES, CHUNK_BYTES, BUFFERS, io, diag);
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

static uint64_t rate_since(struct shore__rate *r, uint64_t start) {
    uint64_t ns = shore__now_ns() - start, moved = r->moved_bytes;
    r->moved_bytes = 0;
    return (uint64_t)((double)moved * 1e9 / (double)(ns ? ns : 1));
}

static int fill(struct shore__rate *r, uint32_t i, struct shore_diag *diag) {
    return shore__rate_fill(r, diag);
}
static int read_all(struct shore__rate *r, uint32_t i, struct shore_diag *diag) {
    return shore__rate_read(r, diag);
}
static int move(struct shore__rate *r, uint32_t i, struct shore_diag *diag) {
    return shore__rate_pass(r, i % 2 == 0, diag);
}

/* Repeats work at least `least` times, and for so many seconds. */
static int rate_of(struct shore__rate *r, int (*work)(struct shore__rate *, uint32_t, struct shore_diag *),
                   uint32_t least, double seconds, uint64_t *rate, struct shore_diag *diag) {
    uint64_t start = shore__now_ns();
    int rc = 0;
    r->moved_bytes = 0;
    for (uint32_t i = 0; !rc && (i < least || (double)(shore__now_ns() - start) < seconds * 1e9); i++)
        rc = work(r, i, diag);
    if (!rc) *rate = rate_since(r, start);
    return rc;
}

/* Seconds of a flush that has one small write before it, as those of a commit do. */
static int flush(struct shore__rate *r, double *seconds, struct shore_diag *diag) {
    double took[FLUSHES];
    int rc = 0;
    for (uint32_t i = 0; !rc && i < FLUSHES; i++) {
        rc = shore__io_do(r->io, SHORE__IO_WRITE, r->memory, i * (uint64_t)SHORE__IO_ALIGN, SHORE__IO_ALIGN);
        uint64_t start = shore__now_ns();
        if (!rc) rc = shore__io_do(r->io, SHORE__IO_FLUSH, NULL, 0, 0);
        took[i] = (double)(shore__now_ns() - start) * 1e-9;
    }
    if (rc) return shore__fail(diag, rc, "%s: flushing failed: %s", r->file.path, shore_error_text(rc));
    *seconds = shore__median(took, FLUSHES);
    return 0;
}

static int measure(const char *path, uint64_t half_bytes, uint64_t chunk_bytes, double seconds, bool (*stop)(void),
                   struct shore__drive_rates *out, struct shore_diag *diag) {
    struct shore__rate r;
    int rc = shore__rate_open_unnamed(&r, path, half_bytes, chunk_bytes, BUFFERS, SHORE_IO_AUTO, diag);
    r.stop = stop;
    if (!rc) {
        out->direct = r.file.direct;
        out->backend = shore__io_backend(r.io);
        out->shares_blocks = shore__files_share_blocks(path);
        rc = rate_of(&r, fill, 1, 0, &out->write, diag);
    }
    if (!rc && seconds > 0) rc = rate_of(&r, fill, 1, 0, &out->write, diag); /* over blocks that it has, as in a run */
    if (!rc) rc = rate_of(&r, read_all, 1, seconds, &out->read, diag);
    if (!rc) rc = rate_of(&r, move, PASSES, seconds, &out->update, diag);
    if (!rc) rc = flush(&r, &out->flush_seconds, diag);
    shore__rate_close(&r);
    return rc;
}

/* Of UPDATE with the least ring: three chunks of a segment, one of which may be computed meanwhile. */
static int measure_least(const char *path, uint64_t half_bytes, double seconds, double segment_seconds,
                         bool (*stop)(void), uint64_t *rate, struct shore_diag *diag) {
    struct shore__rate r;
    int rc = shore__rate_open_unnamed(&r, path, half_bytes, 1, BUFFERS_LEAST, SHORE_IO_AUTO, diag);
    r.stop = stop;
    r.compute_ns = (uint64_t)(segment_seconds * 1e9);
    if (!rc) rc = shore__rate_fill(&r, diag);
    if (!rc) rc = rate_of(&r, move, PASSES, seconds, rate, diag);
    shore__rate_close(&r);
    return rc;
}

int shore__drive_rates_measure(const char *path, double seconds, double segment_seconds, bool (*stop)(void),
                               struct shore__drive_rates *out, struct shore_diag *diag) {
    struct shore__whereabouts lies = {.free_bytes = 0};
    *out = (struct shore__drive_rates){.backend = ""};
    int rc = measure(path, HALF_BYTES, CHUNK_BYTES, 0, stop, out, diag);
    if (!rc && seconds > 0) rc = shore__whereabouts(path, &lies, diag);
    if (rc || seconds <= 0) return rc;
    uint64_t half = (uint64_t)((double)out->write * seconds / 2), most = lies.free_bytes / 8;
    if (most > HALF_BYTES_MOST) most = HALF_BYTES_MOST;
    if (half > most) half = most;
    if (half < HALF_BYTES) half = HALF_BYTES;
    rc = measure(path, half, ENGINE_CHUNK_BYTES, seconds, stop, out, diag);
    return rc ? rc : measure_least(path, half / 2, seconds / 2, segment_seconds, stop, &out->update_least, diag);
}

/* Parses "2,1" or "2.8GB,1.4GB": all or none have units. Plain numbers are scaled, so that fractions count. */
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
                               "drive speeds %s: '%s' is not a speed: give numbers such as 2,1 or 2.8GB,1.4GB, one for "
                               "each drive",
                               shore__escape(text, strlen(text), shown, sizeof shown), item);
        plain[number] = true;
        if (speeds && n < ndrives) speeds[n] = speed;
        at = at[bytes] ? at + bytes + 1 : NULL;
    }
    if (plain[0] && plain[1])
        return shore__fail(diag, SHORE_EUSAGE, "drive speeds %.60s: give a unit to all of them, or to none", text);
    if (n != ndrives)
        return shore__fail(diag, SHORE_EUSAGE, "drive speeds %.60s: %u speeds for %u drives: give one for each", text,
                           n, ndrives);
    return 0;
}

static void note(const struct shore_fleet_options *o, const char *text) {
    if (o->note) o->note(o->note_ctx, text);
}

bool shore__sites_share_device(const struct shore__site *sites, uint32_t nsites) {
    for (uint32_t i = 0; i < nsites; i++) {
        const struct shore__address *a = sites[0].at, *b = sites[i].at;
        if (!sites[i].device || sites[i].device != sites[0].device) return false;
        if (a->kind->here != b->kind->here) return false;
        if (!a->kind->here && !shore__address_shares_server(a, b)) return false;
    }
    return true;
}

int shore__site_measure(const struct shore__site *site, enum shore_io io, size_t state_bytes, uint64_t *speed,
                        uint64_t *link, struct shore_diag *diag) {
    *link = 0;
    if (!site->at->kind->served) return shore__drive_measure(site->volume, io, speed, diag);
    int rc = shore__remote_measure(site->at, speed, link, diag);
    if (rc) return rc;
    /* an update reads and writes the state while its fp32 gradient arrives */
    double carried = (double)*link * 2 * (double)state_bytes / (4.0 * SHORE_SEGMENT_ELEMS);
    if (carried < (double)*speed) *speed = (uint64_t)carried;
    return 0;
}

void shore__sites_measure(const struct shore__site *sites, uint32_t nsites, size_t state_bytes,
                          const struct shore_fleet_options *o, uint64_t *speeds) {
    bool known = true;
    for (uint32_t d = 0; d < nsites; d++) {
        speeds[d] = 1;
        known = known && sites[d].device;
    }
    if (!known || shore__sites_share_device(sites, nsites)) return;
    char text[512] = "measured for placement:";
    for (uint32_t d = 0; d < nsites; d++) {
        struct shore_diag diag = {0};
        uint64_t link;
        if (shore__site_measure(&sites[d], o->io, state_bytes, &speeds[d], &link, &diag)) {
            char why[sizeof diag.text + 64];
            snprintf(why, sizeof why, "drives are taken to be equally fast: %s", diag.text);
            note(o, why);
            for (uint32_t e = 0; e < nsites; e++)
                speeds[e] = 1;
            return;
        }
        shore__append(text, sizeof text, "%s %s %s/s", d ? "," : "", sites[d].at->text,
                      shore__format_size(speeds[d]).text);
        if (link) shore__append(text, sizeof text, " (its link %s/s)", shore__format_size(link).text);
    }
    note(o, text);
}
