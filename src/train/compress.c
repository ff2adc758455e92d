#include "train/compress.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/counters.h"
#include "number/norm.h"
#include "number/residual.h"
#include "train/trainer.h"

struct compressed_block {
    struct shore_sparse_size size;
    unsigned char *code; /* the code of all its segments */
    uint32_t *offsets;   /* [segments + 1] */
};

struct compression {
    struct compressed_block *blocks; /* [nblocks] */
    void *work;                      /* for the selection */
    uint64_t work_bytes;
    double *energy, *sent; /* by segment: the squared sum of the elements to send, and of those sent */
    /* Residuals of the whole model, by segment; none without error feedback. The host keeps two, of two steps in turn.
     * On the drives there is one, which is fetched block by block and becomes the next step's. */
    uint16_t *residual[2];
    uint64_t residual_step[2]; /* the step whose state each belongs to */
    unsigned base, next;       /* which one this step reads, and which it writes */
    double dropped;            /* sum over the first steps since the start */
    uint32_t ndropped;
    struct shore_wait *fetch; /* [nblocks] */
    bool *fetching;           /* [nblocks] */
};

static size_t residual_bytes(const struct shore__model *m) {
    return shore__trained_before(m->layout, m->nblocks) * SHORE_SEGMENT_ELEMS * sizeof(uint16_t);
}

static bool keeps_residual(const struct shore__settings *s) {
    return s->compress > 0 && s->error_feedback;
}

#define VALUES SHORE_SPARSE_BF16

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Memory that is laid out in one stretch; base NULL: only its bytes are counted. */
struct room {
    unsigned char *base;
    uint64_t used;
};

static void *take(struct room *room, uint64_t bytes) {
    void *at = room->base ? room->base + room->used : NULL;
    room->used += shore__arena_round(bytes);
    return at;
}

/* Places everything, and counts its bytes. */
static int lay_out(struct compression *z, const struct shore__settings *s, const struct shore__model *m, int threads,
                   struct room *room, struct shore_diag *diag) {
    uint32_t residuals = !keeps_residual(s) ? 0 : s->residual_saved ? 1 : 2;
    z->blocks = take(room, m->nblocks * sizeof *z->blocks);
    z->work_bytes = 0;
    for (uint32_t b = 0; b < m->nblocks; b++) {
        const struct shore_layout_block *block = &m->layout->blocks[b];
        struct compressed_block it = {.code = NULL};
        if (shore__model_rests(m, b)) continue;
        int rc = shore_sparse_size_of(VALUES, s->compress, block, threads, &it.size, diag);
        if (rc) return rc;
        it.code = take(room, it.size.code_bytes);
        it.offsets = take(room, (block->segments + UINT64_C(1)) * sizeof *it.offsets);
        if (it.size.work_bytes > z->work_bytes) z->work_bytes = it.size.work_bytes;
        if (z->blocks) z->blocks[b] = it;
    }
    z->work = take(room, z->work_bytes);
    z->energy = take(room, m->layout->segments * sizeof *z->energy);
    z->sent = take(room, m->layout->segments * sizeof *z->sent);
    for (uint32_t i = 0; i < residuals; i++)
        z->residual[i] = take(room, residual_bytes(m));
    z->fetch = take(room, m->nblocks * sizeof *z->fetch);
    z->fetching = take(room, m->nblocks * sizeof *z->fetching);
    return 0;
}

int shore__compress_bytes(const struct shore__settings *s, const struct shore__model *m, int threads, uint64_t *bytes,
                          struct shore_diag *diag) {
    struct compression unused;
    struct room room = {NULL, 0};
    int rc = s->compress > 0 ? lay_out(&unused, s, m, threads, &room, diag) : 0;
    *bytes = room.used;
    return rc;
}

/* ---- the residual ------------------------------------------------------------------------------------------------ */

static size_t residual_at(const struct trainer *t, uint32_t block, uint32_t segment) {
    return (shore__trained_before(t->m->layout, block) + segment) * SHORE_SEGMENT_ELEMS;
}

void shore__compress_fill(const struct trainer *t, uint32_t block, uint32_t segment, struct shore_update *out) {
    const struct compression *z = t->compression;
    const struct compressed_block *b = &z->blocks[block];
    out->gradient = b->code;
    out->offsets = b->offsets + segment;
    if (t->s->residual_saved) out->residual = z->residual[0] + residual_at(t, block, segment);
}

/* Says that the residual was lost, as a crash loses it with the process. */
static int lost(struct trainer *t, uint64_t step, struct shore_diag *diag) {
    static const char what[] = "the residual of compression is lost: error feedback begins anew (--residual saved "
                               "would keep it on the drives)";
    train_note(t, "%s", what);
    return shore__run_record_change(t->run, step, what, diag);
}

int shore__compress_open(struct trainer *t, struct shore_diag *diag) {
    struct compression *z = t->compression = calloc(1, sizeof *z);
    if (!z) return shore__fail(diag, -ENOMEM, "out of memory for the trainer");
    if (!(t->s->compress > 0)) return 0;
    struct room room = {shore__memory_host(&t->memory, SHORE__ROW_COMPRESSION, 0), 0};
    int rc = lay_out(z, t->s, t->m, t->c->threads, &room, diag);
    if (rc) return rc;
    memset(z->fetching, 0, t->m->nblocks * sizeof *z->fetching);
    if (!z->residual[1]) return 0;
    z->next = 1;
    const struct shore_fleet_info info = shore__fleet_info(t->fleet);
    memset(z->residual[0], 0, residual_bytes(t->m));
    z->residual_step[0] = info.step;
    z->residual_step[1] = UINT64_MAX;
    if (info.step <= t->s->compress_after) return 0; /* nothing was left out so far */
    unsigned char digest[16];
    bool found = false;
    rc = shore_fleet_digest(t->fleet, false, digest, diag);
    if (!rc) rc = shore__residual_load(t->run, info.step, digest, z->residual[0], &found, diag);
    return rc || found ? rc : lost(t, info.step, diag);
}

int shore__compress_save(struct trainer *t, struct shore_diag *diag) {
    struct compression *z = t->compression;
    unsigned char digest[16];
    if (!z->residual[1]) return 0;
    const struct shore_fleet_info info = shore__fleet_info(t->fleet);
    if (!t->facts.scratch || info.step <= t->s->compress_after) return 0;
    for (unsigned i = 0; i < 2; i++) {
        if (z->residual_step[i] != info.step) continue;
        int rc = shore_fleet_digest(t->fleet, false, digest, diag);
        return rc ? rc : shore__residual_save(t->run, info.step, digest, z->residual[i], diag);
    }
    return 0;
}

int shore__compress_begin_step(struct trainer *t, struct shore_diag *diag) {
    struct compression *z = t->compression;
    t->compressing = compress_step(t->s, t->base_step);
    if (!t->compressing || !z->residual[1]) return 0;
    if (z->residual_step[z->base] != t->base_step) z->base = 1 - z->base;
    z->next = 1 - z->base;
    z->residual_step[z->next] = UINT64_MAX;
    if (z->residual_step[z->base] == t->base_step) return 0;
    z->residual_step[z->base] = t->base_step;
    memset(z->residual[z->base], 0, residual_bytes(t->m));
    return lost(t, t->base_step, diag);
}

void shore__compress_end_step(struct trainer *t, bool skipped) {
    struct compression *z = t->compression;
    if (!z->residual[1]) return;
    if (!compress_step(t->s, t->base_step)) {
        z->residual_step[0] = t->base_step + 1; /* zeros: whole gradients leave nothing out */
    } else if (!skipped) {
        z->residual_step[z->next] = t->base_step + 1;
    } else {
        for (unsigned i = 0; i < 2; i++)
            if (z->residual_step[i] == t->base_step) z->residual_step[i]++;
    }
}

static int wait_for_residual(struct trainer *t, uint32_t block, struct shore_diag *diag) {
    struct compression *z = t->compression;
    if (!z->fetching[block]) return 0;
    int rc = shore__fleet_wait(t->fleet, SHORE_LANE_DRIVE_READ, &z->fetch[block], diag);
    z->fetching[block] = false;
    return rc;
}

void shore__compress_forget(struct trainer *t) {
    struct compression *z = t->compression;
    for (uint32_t b = 0; z->fetching && b < t->m->nblocks; b++)
        if (z->fetching[b]) shore_wait(&z->fetch[b], NULL);
    if (z->fetching) memset(z->fetching, 0, t->m->nblocks * sizeof *z->fetching);
}

int shore__compress_want(struct trainer *t, uint32_t block, struct shore_diag *diag) {
    struct compression *z = t->compression;
    if (!t->compressing || !t->s->residual_saved) return 0;
    (void)wait_for_residual(t, block, NULL); /* of an attempt that was given up */
    shore_wait_init(&z->fetch[block]);
    int rc = shore_fleet_fetch(t->fleet, t->base_step, block, 0, t->m->layout->blocks[block].segments, SHORE_FETCH_R,
                               z->residual[0] + residual_at(t, block, 0), shore_wait_completion(&z->fetch[block]));
    z->fetching[block] = !rc;
    return rc ? shore__fail(diag, rc, "the residual cannot be fetched: %s", shore_error_text(rc)) : 0;
}

/* ---- a block ----------------------------------------------------------------------------------------------------- */

int shore__compress_add(struct trainer *t, struct piece *p, struct shore_diag *diag) {
    struct compression *z = t->compression;
    uint32_t block = p->page.block, count = p->count;
    int rc = wait_for_residual(t, block, diag);
    if (rc) return rc;
    const struct shore_step_gradient whole = {
        .size = sizeof whole, .segment = p->segment, .count = count, .gradient = p->gradient, .stays = true};
    rc = shore_step_add(t->step, p->unit, &whole, diag);
    if (rc || !z->residual[0]) return rc;
    const size_t first = residual_at(t, block, p->segment);
#pragma omp parallel for schedule(static)
    for (uint32_t i = 0; i < count; i++) {
        size_t at = first + i * (size_t)SHORE_SEGMENT_ELEMS;
        shore__residual_add(p->gradient + (size_t)i * SHORE_SEGMENT_ELEMS, z->residual[z->next] + at,
                            z->residual[z->base] + at, SHORE_SEGMENT_ELEMS);
    }
    return 0;
}

void shore__compress_block(struct trainer *t, uint32_t block, const float *gradient) {
    struct compression *z = t->compression;
    struct compressed_block *b = &z->blocks[block];
    uint64_t room = b->size.code_bytes, first = shore__segments_before(t->m->layout, block);
    uint16_t *next = z->residual[0] ? z->residual[z->next] + residual_at(t, block, 0) : NULL;
    int rc = shore_sparse_encode_feedback(VALUES, t->m->layout->blocks[block].segments, gradient, b->size.count,
                                          b->code, &room, b->offsets, next, z->work, z->work_bytes, z->energy + first,
                                          z->sent + first);
    assert(!rc); /* the bounds are ones */
    (void)rc;
}

/* With error feedback nothing is lost, only late: most of the sum waits at any time. */
#define LARGE_WAITING 0.97
#define LARGE_LOST 0.5
#define STEPS_TO_JUDGE 20u

static void judge(struct trainer *t, double dropped) {
    struct compression *z = t->compression;
    double large = t->s->error_feedback ? LARGE_WAITING : LARGE_LOST;
    if (z->ndropped >= STEPS_TO_JUDGE) return;
    z->dropped += dropped;
    if (++z->ndropped < STEPS_TO_JUDGE || z->dropped < large * STEPS_TO_JUDGE) return;
    train_note(t, "compression %s %.0f %% of the gradients' energy over the first %u steps: %s",
               t->s->error_feedback ? "holds back" : "drops", 100 * z->dropped / STEPS_TO_JUDGE, STEPS_TO_JUDGE,
               t->s->error_feedback ? "training may lag; send more (--compress)"
                                    : "training may suffer; send more (--compress), or use --error-feedback on");
}

double shore__compress_dropped(struct trainer *t) {
    const struct compression *z = t->compression;
    double energy = 0, sent = 0;
    if (!t->compressing) return NAN;
    for (uint64_t s = 0; s < t->m->layout->segments; s++) {
        energy += z->energy[s];
        sent += z->sent[s];
    }
    double dropped = energy > 0 && sent < energy ? 1 - sent / energy : 0;
    judge(t, dropped);
    return dropped;
}
