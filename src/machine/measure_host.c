/* Measures this machine: its memory, UPDATE on it, its drives. What computes is measured above
 * (pass/measure_computing.c) or by another program. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/diag.h"
#include "base/limits.h"
#include "base/sized.h"
#include "base/units.h"
#include "drive/probe/probe.h"
#include "drive/probe/speed.h"
#include "machine/machine.h"
#include "near/opencl/opencl.h"
#include "near/update.h"
#include "storage/blockio.h"
#include "storage/volume.h"
#include "storage/whereabouts.h"

#define COPY_BYTES (UINT64_C(128) << 20) /* more than caches hold */
#define COPIES 7u
#define UPDATE_SEGMENTS 160u          /* more than caches hold: gradients and state come from memory */
#define UPDATES (4 * UPDATE_SEGMENTS) /* a segment each: a tenth of a second */
/* Of all drives; each is measured shortly, then filled twice, read and moved. */
#define DRIVES_SECONDS 30.0
#define DRIVE_SECONDS 2.0                       /* the most for each of these */
#define DRIVE_SECONDS_LEAST 0.5                 /* otherwise only the short measurement */
#define STATE_BYTES (12u * SHORE_SEGMENT_ELEMS) /* of AdamW with moments in fp32 */

void shore__machine_here(struct shore_machine *m) {
    struct utsname system = {.machine = "unknown"};
    uname(&system);
    *m = (struct shore_machine){.scale = 1, .format = SHORE__MACHINE_FORMAT, .measured = (int64_t)time(NULL)};
    snprintf(m->name, sizeof m->name, "this machine");
    if (!*shore__kernel_value("/proc/cpuinfo", "model name", m->processor, sizeof m->processor))
        snprintf(m->processor, sizeof m->processor, "%.60s", system.machine);
    m->host_memory = shore__machine_memory_bytes();
    m->cores = shore__machine_threads();
}

/* ---- the host ---------------------------------------------------------------------------------------------------- */

/* Bytes a second that copies read and write, with all threads. */
static int measure_memory(struct shore_machine *m, struct shore_diag *diag) {
    int threads = (int)m->cores;
    char *from = shore__arena_alloc(NULL, COPY_BYTES), *to = shore__arena_alloc(NULL, COPY_BYTES);
    double took[COPIES];
    for (uint32_t i = 0; from && to && i <= COPIES; i++) {
        uint64_t start = shore__now_ns();
#pragma omp parallel for num_threads(threads)
        for (int t = 0; t < threads; t++) {
            uint64_t begin = COPY_BYTES * (uint64_t)t / (uint64_t)threads,
                     end = COPY_BYTES * (uint64_t)(t + 1) / (uint64_t)threads;
            if (i)
                memcpy(to + begin, from + begin, end - begin);
            else /* touches them */
                memset(from + begin, 1, end - begin), memset(to + begin, 1, end - begin);
        }
        if (i) took[i - 1] = (double)(shore__now_ns() - start) * 1e-9;
    }
    int rc = from && to ? 0 : shore__out_of_memory(diag);
    if (!rc) m->memory_bandwidth = shore__four_digits(2.0 * COPY_BYTES / shore__lower_quartile(took, COPIES));
    shore__arena_free(NULL, from);
    shore__arena_free(NULL, to);
    return rc;
}

/* Elements a second that one thread updates: with the checksums before and after, as a drive's, and alone, as the
 * host's. */
static int measure_update(struct shore_machine *m, double *beside_drive, struct shore_diag *diag) {
    const size_t n = (size_t)UPDATE_SEGMENTS * SHORE_SEGMENT_ELEMS, each = SHORE_SEGMENT_ELEMS;
    struct shore_hyper hyper = {.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.1f};
    char *memory = shore__arena_alloc(NULL, n * 16);
    double all[UPDATES], alone[UPDATES];
    if (!memory) return shore__out_of_memory(diag);
    memset(memory, 0, n * 16);
    shore_hyper_at_step(&hyper, SHORE_ADAMW, 10);
    float *gradient = (float *)(void *)(memory + n * 12);
    for (size_t i = 0; i < n; i++)
        gradient[i] = 1e-3f * (float)((int)(i % 201) - 100);
    for (uint32_t i = 0; i < UPDATES; i++) {
        char *at = memory + i % UPDATE_SEGMENTS * each * 12;
        struct shore__planes p = {(uint16_t *)(void *)at, (uint16_t *)(void *)(at + each * 2),
                                  (float *)(void *)(at + each * 4), (float *)(void *)(at + each * 8)};
        struct shore__leaf leaf;
        uint64_t start = shore__now_ns();
        shore__leaf_make(at, each * 12, 1, &leaf);
        uint64_t checked = shore__now_ns();
        shore__near_update(SHORE_ADAMW, &hyper, 1, &p, &p, gradient + i % UPDATE_SEGMENTS * each, NULL, false, each);
        alone[i] = (double)(shore__now_ns() - checked);
        shore__leaf_make(at, each * 12, 1, &leaf);
        all[i] = (double)(shore__now_ns() - start);
    }
    shore__arena_free(NULL, memory);
    m->host_update = shore__four_digits((double)each * 1e9 / shore__lower_quartile(alone, UPDATES));
    *beside_drive = shore__four_digits((double)each * 1e9 / shore__lower_quartile(all, UPDATES));
    return 0;
}

/* ---- drives ------------------------------------------------------------------------------------------------------ */

/* A directory or file of this host. like: drives before it; one on the same device has its rates. */
static int measure_files(struct shore_machine *m, uint32_t i, const char *text, struct shore__whereabouts *lie,
                         const struct shore_machine_options *o, double seconds, struct shore_diag *diag) {
    struct shore__machine_drive *d = &m->drive[i];
    struct shore__drive_rates rates;
    struct stat st;
    char *beside = NULL;
    bool there = stat(text, &st) == 0;
    int rc = shore__file_may_be_made(text, diag);
    if (!rc) rc = shore__whereabouts(text, &lie[i], diag);
    if (!rc && lie[i].ground == SHORE__GROUND_DEVICE)
        rc = shore__fail(diag, SHORE_EUSAGE,
                         "%s: a block device, which would be overwritten: name a directory on one like it", text);
    if (rc) return rc;
    shore__machine_device(&lie[i], d->device, sizeof d->device);
    d->room = lie[i].free_bytes;
    for (uint32_t k = 0; k < i && !d->shares; k++)
        if (lie[k].device_id && shore__whereabouts_share(&lie[k], &lie[i])) {
            d->shares = k + 1;
            d->read = m->drive[k].read;
            d->write = m->drive[k].write;
            d->mixed = m->drive[k].mixed;
            d->mixed_least = m->drive[k].mixed_least;
            d->flush_seconds = m->drive[k].flush_seconds;
            memcpy(d->device, m->drive[k].device, sizeof d->device);
        }
    if (d->shares) return 0;
    if (asprintf(&beside, there && S_ISDIR(st.st_mode) ? "%s/longshore.machine-%ld" : "%s.machine-%ld", text,
                 (long)getpid()) < 0)
        return shore__out_of_memory(diag);
    if (lie[i].ground == SHORE__GROUND_MEMORY) seconds = 0; /* large files would take it from others */
    rc = shore__drive_rates_measure(beside, seconds, SHORE_SEGMENT_ELEMS / d->update, o->stop, &rates, diag);
    free(beside);
    if (rc) return rc;
    d->read = shore__four_digits((double)rates.read);
    d->write = shore__four_digits((double)rates.write);
    d->mixed = shore__four_digits((double)rates.update);
    d->mixed_least = shore__four_digits((double)rates.update_least);
    d->flush_seconds = shore__four_digits(rates.flush_seconds);
    return 0;
}

/* Elements a second of a drive whose UPDATE a device computes, while a thread of this host makes the checksums. */
static int measure_device(const struct shore_machine *m, double beside_drive, double *update, struct shore_diag *diag) {
    const double checksums = 1 / (1 / beside_drive - 1 / m->host_update);
    int rc = shore__opencl_rate(getenv(SHORE__OPENCL_VARIABLE), update, diag);
    *update = shore__four_digits(*update < checksums ? *update : checksums);
    return rc;
}

static int measure_drive(struct shore_machine *m, uint32_t i, struct shore__whereabouts *lie, double update,
                         const struct shore_machine_options *o, double seconds, struct shore_diag *diag) {
    struct shore__machine_drive *d = &m->drive[i];
    struct shore__address *at;
    uint64_t speed = 0, link = 0;
    int rc = shore__address_parse(o->drives[i], &at, diag);
    if (rc) return rc;
    char *path = at->kind->has_file ? shore__address_absolute(at->text) : strdup(at->text);
    if (path && strlen(path) < sizeof d->path) snprintf(d->path, sizeof d->path, "%s", path);
    free(path);
    const bool on_device = at->kind->id == SHORE__KIND_OPENCL;
    d->host_computes = !at->kind->served && !on_device;
    if (d->host_computes) d->update = update;
    if (on_device) rc = measure_device(m, update, &d->update, diag);
    if (rc) {
        /* the device says why */
    } else if (at->kind->served) {
        const struct shore__site site = {.at = at};
        rc = shore__site_measure(&site, SHORE_IO_AUTO, STATE_BYTES, &speed, &link, diag);
        d->mixed = shore__four_digits((double)speed);
    } else if (at->kind->has_file) {
        rc = measure_files(m, i, at->path, lie, o, seconds, diag);
    } else {
        shore__machine_memory_drive(m, d);
    }
    free(at);
    return rc;
}

int shore_machine_measure(const struct shore_machine_options *given, struct shore_machine **out,
                          struct shore_diag *diag) {
    struct shore_machine_options o;
    struct shore__whereabouts *lie = NULL;
    double update = 0;
    *out = NULL;
    int rc = shore__sized_in(&o, sizeof o, given, "shore_machine_options", diag);
    if (rc) return rc;
    if (o.ndrives > SHORE__MACHINE_DRIVES_MAX)
        return shore__fail(diag, SHORE_EUSAGE, "%u drives are more than a machine has here: at most %u", o.ndrives,
                           SHORE__MACHINE_DRIVES_MAX);
    struct shore_machine *m = calloc(1, sizeof *m);
    if (m) lie = calloc(o.ndrives + (size_t)1, sizeof *lie);
    if (!lie) {
        free(m);
        return shore__out_of_memory(diag);
    }
    shore__machine_here(m);
    if (o.progress) o.progress(o.ctx, "memory and UPDATE");
    rc = measure_memory(m, diag);
    if (!rc) rc = measure_update(m, &update, diag);
    double seconds = DRIVES_SECONDS / 5 / (o.ndrives ? o.ndrives : 1);
    if (seconds > DRIVE_SECONDS) seconds = DRIVE_SECONDS;
    if (seconds < DRIVE_SECONDS_LEAST) seconds = 0;
    m->ndrives = o.ndrives;
    for (uint32_t i = 0; !rc && i < o.ndrives; i++) {
        if (o.progress) o.progress(o.ctx, o.drives[i]);
        rc = measure_drive(m, i, lie, update, &o, seconds, diag);
        if (!rc && o.stop && o.stop()) rc = shore__fail(diag, -ECANCELED, "stopped");
    }
    free(lie);
    if (rc)
        shore_machine_free(m);
    else
        *out = m;
    return rc;
}
