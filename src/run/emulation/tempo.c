#include "run/emulation/tempo.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "plan/lanes.h"
#include "run/emulation/emulate.h"

#define SPEED_BYTES 16u /* of its text */

/* Of a drive, or of all that is no drive's. */
struct lanes {
    struct shore__bucket lane[SHORE_LANES];
};

struct shore__tempo {
    struct shore__gate gate; /* first member: a gate is cast to its tempo */
    struct shore_machine machine;
    char *speeds;
    uint32_t ndrives;
    uint64_t opened_ns;    /* buckets count from here on */
    double computed, late; /* seconds of computing since the last question, and by how much this machine took longer */
    pthread_mutex_t lock;  /* guards what follows */
    struct lanes host, drive[];
};

/* Asks a bucket at an instant; returns the instant when it has served. */
static uint64_t ask(struct shore__tempo *t, struct lanes *of, enum shore_lane lane, uint64_t now_ns, double work) {
    double now = (double)(now_ns - t->opened_ns) * 1e-9;
    pthread_mutex_lock(&t->lock);
    double over = shore__lane_serve(of->lane, lane, now, work);
    pthread_mutex_unlock(&t->lock);
    return now_ns + (uint64_t)((over - now) * 1e9 + 0.5);
}

static bool is_drives(enum shore_lane lane) {
    return lane >= SHORE_LANE_DRIVE_READ && lane <= SHORE_LANE_DRIVE_UPDATE;
}

static uint64_t over_ns(struct shore__gate *gate, enum shore_lane lane, uint32_t drive, uint64_t amount) {
    struct shore__tempo *t = (struct shore__tempo *)gate;
    assert(drive < t->ndrives);
    if (lane != SHORE_LANE_DRIVE_UPDATE && drive < t->machine.ndrives && t->machine.drive[drive].shares)
        drive = t->machine.drive[drive].shares - 1;
    if (lane == SHORE_LANE_LINK_OUT && t->machine.link_shared) lane = SHORE_LANE_LINK_IN;
    return ask(t, is_drives(lane) ? &t->drive[drive] : &t->host, lane, shore__now_ns(), (double)amount);
}

/* What was asked for up to now is served without a break until the bucket is free. */
static uint64_t worked_ns(const struct shore__bucket *b, double now) {
    double ahead = b->free > now ? b->free - now : 0;
    return (uint64_t)((b->busy > ahead ? b->busy - ahead : 0) * 1e9);
}

static void worked(struct shore__gate *gate, uint32_t ndrives, uint64_t (*ns)[SHORE_LANES]) {
    struct shore__tempo *t = (struct shore__tempo *)gate;
    assert(ndrives == t->ndrives);
    pthread_mutex_lock(&t->lock);
    double now = (double)(shore__now_ns() - t->opened_ns) * 1e-9;
    for (uint32_t d = 0; d < ndrives; d++)
        for (int lane = 0; lane < SHORE_LANES; lane++)
            ns[d][lane] = worked_ns(is_drives(lane) ? &t->drive[d].lane[lane] : &t->host.lane[lane], now);
    pthread_mutex_unlock(&t->lock);
}

static void take_rates(struct shore__tempo *t) {
    for (uint32_t d = 0; d < t->ndrives && t->machine.ndrives; d++) {
        const struct shore__machine_drive *as = shore__machine_drive(&t->machine, d);
        t->drive[d].lane[SHORE_LANE_DRIVE_READ].each = shore__rate_each(as->read);
        t->drive[d].lane[SHORE_LANE_DRIVE_WRITE].each = shore__rate_each(as->write);
        t->drive[d].lane[SHORE_LANE_DRIVE_MIXED].each = shore__rate_each(as->mixed);
        t->drive[d].lane[SHORE_LANE_DRIVE_UPDATE].each = shore__rate_each(as->update);
    }
}

void shore__tempo_take_step(struct shore__tempo *t, uint64_t step) {
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    shore__machine_take_step(&t->machine, step);
    take_rates(t);
    pthread_mutex_unlock(&t->lock);
}

int shore__tempo_make(const struct shore_machine *e, uint32_t ndrives, struct shore__tempo **out,
                      struct shore_diag *diag) {
    struct shore__tempo *t = *out = calloc(1, sizeof *t + ndrives * (sizeof t->drive[0] + SPEED_BYTES));
    if (!t) return shore__out_of_memory(diag);
    pthread_mutex_init(&t->lock, NULL);
    t->gate = (struct shore__gate){over_ns, worked};
    t->machine = *e;
    t->ndrives = ndrives;
    t->opened_ns = shore__now_ns();
    t->speeds = (char *)(t->drive + ndrives);
    t->host.lane[SHORE_LANE_LINK_IN].each = shore__rate_each(e->link[0]);
    t->host.lane[SHORE_LANE_LINK_OUT].each = shore__rate_each(e->link[1]);
    t->host.lane[SHORE_LANE_HOST_UPDATE].each = shore__rate_each(e->host_update);
    t->host.lane[SHORE_LANE_COMPUTE].each = 1; /* its units are seconds */
    take_rates(t);
    char *speeds = t->speeds;
    for (uint32_t d = 0; d < ndrives && e->ndrives; d++) {
        const struct shore__machine_drive *as = shore__machine_drive(e, d);
        speeds += sprintf(speeds, "%s%llu", d ? "," : "", (unsigned long long)shore__machine_update_speed(as));
    }
    return 0;
}

int shore__tempo_open(const char *name, const struct shore__addresses *drives, struct shore__tempo **out,
                      struct shore_diag *diag) {
    struct shore_machine *machine = NULL;
    *out = NULL;
    if (!name || strcmp(name, "none") == 0) return 0;
    int rc = shore__emulation_open(name, &machine, diag);
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
    if (!rc) rc = shore__tempo_make(machine, (uint32_t)drives->count, out, diag);
    shore_machine_free(machine);
    return rc;
}

void shore__tempo_close(struct shore__tempo *t) {
    if (!t) return;
    pthread_mutex_destroy(&t->lock);
    free(t);
}

const struct shore_machine *shore__tempo_machine(const struct shore__tempo *t) {
    return t ? &t->machine : NULL;
}

struct shore__gate *shore__tempo_gate(struct shore__tempo *t) {
    return t ? &t->gate : NULL;
}

const char *shore__tempo_speeds(const struct shore__tempo *t) {
    return t && t->machine.ndrives ? t->speeds : NULL;
}

void shore__tempo_facts(const struct shore__tempo *t, struct shore__facts *f) {
    uint32_t n = f->drives.ndrives;
    if (!t) return;
    for (uint32_t d = 0; d < n; d++) {
        /* buffers of UPDATE lie in the drive's own memory */
        const struct shore__machine_drive *drive = shore__machine_drive(&t->machine, d);
        if (!drive || !drive->memory) continue;
        if (!f->ring_bytes_most || drive->memory * n < f->ring_bytes_most) f->ring_bytes_most = drive->memory * n;
    }
    f->host_buffers_most = t->machine.host_buffers;
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

void shore__tempo_take_computing(struct shore__tempo *t, double forward, double backward) {
    if (!t || t->machine.forward_seconds > 0 || t->machine.backward_seconds > 0) return;
    if (!shore__rates_given(t->machine.rate)) return;
    t->machine.forward_seconds = forward;
    t->machine.backward_seconds = backward;
}

void shore__tempo_computed(struct shore__tempo *t, const struct shore__model *model, uint64_t start_ns, uint32_t block,
                           double share, bool backward) {
    if (!t) return;
    double seconds = backward ? t->machine.backward_seconds : t->machine.forward_seconds;
    seconds *= share_of(model, block) * share;
    uint64_t over_ns = ask(t, &t->host, SHORE_LANE_COMPUTE, start_ns, seconds), now_ns = shore__now_ns();
    t->computed += seconds;
    t->late += now_ns > over_ns ? (double)(now_ns - over_ns) * 1e-9 : 0;
    shore__sleep_until(over_ns);
}

bool shore__tempo_is_late(struct shore__tempo *t) {
    bool late = t && t->computed > 0 && t->late > 0.1 * t->computed;
    if (t) t->computed = t->late = 0;
    return late;
}

static void add_busy(double busy[SHORE_LANES], const struct lanes *of) {
    for (int lane = 0; lane < SHORE_LANES; lane++) {
        double seconds = of->lane[lane].busy;
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
