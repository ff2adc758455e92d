#include "run/emulation/tempo.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "run/emulation/emulate.h"

#define NS_PER_SECOND 1000000000u
#define SPEED_MOST UINT64_C(1000000000000) /* of a drive without a limit: the most that --drive-speeds takes */
#define SPEED_BYTES 16u                    /* of its text */

struct bucket {
    uint64_t rate;    /* units a second; 0: no limit */
    uint64_t free_ns; /* when everything asked for so far will be served */
    uint64_t rest;    /* part of a nanosecond, in 1 / rate */
    uint64_t busy_ns; /* total time of serving */
};

/* Of a drive, or of all that is no drive's. */
struct lanes {
    struct bucket lane[SHORE_LANES];
};

struct shore__tempo {
    struct shore__gate gate; /* first member: a gate is cast to its tempo */
    struct shore__emulation emulation;
    char *speeds;
    uint32_t ndrives;
    pthread_mutex_t lock; /* guards what follows */
    struct lanes host, drive[];
};

/* Returns when `units` asked for at now_ns will be served. */
static uint64_t serve(struct bucket *b, uint64_t now_ns, uint64_t units) {
    if (!b->rate) return now_ns;
    if (b->free_ns < now_ns) {
        /* it was idle: that time is lost */
        b->free_ns = now_ns;
        b->rest = 0;
    }
    unsigned __int128 work = (unsigned __int128)units * NS_PER_SECOND + b->rest;
    uint64_t ns = (uint64_t)(work / b->rate);
    b->rest = (uint64_t)(work % b->rate);
    b->busy_ns += ns;
    b->free_ns += ns;
    return b->free_ns;
}

static uint64_t over_ns(struct shore__gate *gate, enum shore_lane lane, uint32_t drive, uint64_t amount) {
    struct shore__tempo *t = (struct shore__tempo *)gate;
    bool drives = lane >= SHORE_LANE_DRIVE_READ && lane <= SHORE_LANE_DRIVE_UPDATE;
    struct bucket *of = drives ? t->drive[drive].lane : t->host.lane;
    uint64_t now = shore__now_ns(), mixed = 0;
    assert(drive < t->ndrives);
    if (lane == SHORE_LANE_LINK_OUT && t->emulation.link_shared) lane = SHORE_LANE_LINK_IN;
    if (lane == SHORE_LANE_DRIVE_UPDATE || lane == SHORE_LANE_HOST_UPDATE) amount *= SHORE__COMPUTE_BYTES_PER_ELEM;
    pthread_mutex_lock(&t->lock);
    uint64_t over = serve(&of[lane], now, amount);
    if (lane == SHORE_LANE_DRIVE_READ || lane == SHORE_LANE_DRIVE_WRITE)
        mixed = serve(&of[SHORE_LANE_DRIVE_MIXED], now, amount);
    pthread_mutex_unlock(&t->lock);
    return over > mixed ? over : mixed;
}

/* NULL: not emulated. */
static const struct shore__emulated_drive *drive_of(const struct shore__emulation *e, uint32_t drive) {
    if (!e->ndrives) return NULL;
    return &e->drive[drive < e->ndrives ? drive : e->ndrives - 1];
}

/* Bytes a second that an update moves if it reads as much as it writes, and computes at the same time. */
static uint64_t update_speed(const struct shore__emulated_drive *d) {
    double seconds = 0; /* for a byte read, computed and written */
    const double rates[4] = {(double)d->read, (double)d->write, (double)d->mixed / 2, (double)d->compute * 12 / 16};
    for (int i = 0; i < 4; i++)
        if (rates[i] > 0 && 1 / rates[i] > seconds) seconds = 1 / rates[i];
    return seconds * (double)SPEED_MOST > 2 ? 1 + (uint64_t)(2 / seconds) : SPEED_MOST;
}

int shore__tempo_make(const struct shore__emulation *e, uint32_t ndrives, struct shore__tempo **out,
                      struct shore_diag *diag) {
    struct shore__tempo *t = *out = calloc(1, sizeof *t + ndrives * (sizeof t->drive[0] + SPEED_BYTES));
    if (!t) return shore__out_of_memory(diag);
    pthread_mutex_init(&t->lock, NULL);
    t->gate.over_ns = over_ns;
    t->emulation = *e;
    t->ndrives = ndrives;
    t->speeds = (char *)(t->drive + ndrives);
    t->host.lane[SHORE_LANE_LINK_IN].rate = e->link[0];
    t->host.lane[SHORE_LANE_LINK_OUT].rate = e->link[1];
    t->host.lane[SHORE_LANE_HOST_UPDATE].rate = e->host_update;
    t->host.lane[SHORE_LANE_COMPUTE].rate = NS_PER_SECOND; /* its units are nanoseconds */
    char *speeds = t->speeds;
    for (uint32_t d = 0; d < ndrives && e->ndrives; d++) {
        const struct shore__emulated_drive *as = drive_of(e, d);
        t->drive[d].lane[SHORE_LANE_DRIVE_READ].rate = as->read;
        t->drive[d].lane[SHORE_LANE_DRIVE_WRITE].rate = as->write;
        t->drive[d].lane[SHORE_LANE_DRIVE_MIXED].rate = as->mixed;
        t->drive[d].lane[SHORE_LANE_DRIVE_UPDATE].rate = as->compute;
        speeds += sprintf(speeds, "%s%llu", d ? "," : "", (unsigned long long)update_speed(as));
    }
    return 0;
}

int shore__tempo_open(const char *name, const struct shore__addresses *drives, struct shore__tempo **out,
                      struct shore_diag *diag) {
    struct shore__emulation e;
    *out = NULL;
    if (!name || strcmp(name, "none") == 0) return 0;
    int rc = shore__emulation_open(name, &e, diag);
    for (size_t i = 0; !rc && i < drives->count; i++) {
        const struct shore__address *drive = drives->item[i];
        if (!drive->kind->keeps)
            rc = shore__fail(diag, SHORE_EUSAGE,
                             "an emulated machine slows down what drives read and write, and %s does neither: give "
                             "directories, such as /dev/shm, which is in memory",
                             drive->text);
        else if (drive->kind->served)
            rc = shore__fail(
                diag, SHORE_EUSAGE,
                "an emulated machine slows down drives of this process, and %s is not one: give directories",
                drive->text);
    }
    return rc ? rc : shore__tempo_make(&e, (uint32_t)drives->count, out, diag);
}

void shore__tempo_close(struct shore__tempo *t) {
    if (!t) return;
    pthread_mutex_destroy(&t->lock);
    free(t);
}

const struct shore__emulation *shore__tempo_emulation(const struct shore__tempo *t) {
    return t ? &t->emulation : NULL;
}

struct shore__gate *shore__tempo_gate(struct shore__tempo *t) {
    return t ? &t->gate : NULL;
}

const char *shore__tempo_speeds(const struct shore__tempo *t) {
    return t && t->emulation.ndrives ? t->speeds : NULL;
}

void shore__tempo_facts(const struct shore__tempo *t, struct shore__facts *f) {
    uint32_t n = f->drives.ndrives;
    if (!t) return;
    for (uint32_t d = 0; d < n; d++) {
        /* buffers of UPDATE lie in the drive's own memory */
        const struct shore__emulated_drive *drive = drive_of(&t->emulation, d);
        if (!drive || !drive->memory_bytes) continue;
        if (!f->ring_bytes_most || drive->memory_bytes * n < f->ring_bytes_most)
            f->ring_bytes_most = drive->memory_bytes * n;
    }
    f->host_buffers_most = t->emulation.host_buffers;
    if (!f->drives.drive_speeds) f->drives.drive_speeds = shore__tempo_speeds(t);
}

/* A block's share of a pass, by its parameters; an embedding table counts as the head alone. */
static double share_of(const struct shore__model *model, uint32_t block) {
    const struct shore_layout_block *blocks = model->layout->blocks;
    uint32_t head = shore__model_head(model);
    double own = 0, all = 0;
    for (uint32_t b = 0; b <= head; b++) {
        double elems = (double)blocks[b].elems;
        if (b == 0) elems = model->arch.tied ? elems : 0;
        all += elems;
        if (b == block || (b == 0 && block == head)) own += elems;
    }
    return own / all;
}

void shore__tempo_computed(struct shore__tempo *t, const struct shore__model *model, uint64_t start_ns, uint32_t block,
                           double share, bool backward) {
    if (!t) return;
    double seconds = backward ? t->emulation.backward_seconds : t->emulation.forward_seconds;
    uint64_t ns = (uint64_t)(seconds * share_of(model, block) * share * 1e9);
    pthread_mutex_lock(&t->lock);
    uint64_t over = serve(&t->host.lane[SHORE_LANE_COMPUTE], start_ns, ns);
    pthread_mutex_unlock(&t->lock);
    shore__sleep_until(over);
}

static void add_busy(double busy[SHORE_LANES], const struct lanes *of) {
    for (int lane = 0; lane < SHORE_LANES; lane++) {
        double seconds = (double)of->lane[lane].busy_ns * 1e-9;
        double *most = &busy[lane == SHORE_LANE_LINK_OUT ? SHORE_LANE_LINK_IN : lane];
        if (seconds > *most) *most = seconds;
    }
}

void shore__tempo_busy(struct shore__tempo *t, double seconds[SHORE_LANES]) {
    memset(seconds, 0, SHORE_LANES * sizeof *seconds);
    pthread_mutex_lock(&t->lock);
    add_busy(seconds, &t->host);
    for (uint32_t d = 0; d < t->ndrives; d++)
        add_busy(seconds, &t->drive[d]);
    pthread_mutex_unlock(&t->lock);
}
