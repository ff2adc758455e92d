#include "train/compress.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "number/norm.h"
#include "number/residual.h"
#include "train/trainer.h"

struct compressed_block {
    uint64_t k;
    unsigned char *code; /* the code of all its segments */
    uint64_t code_bytes;
    uint32_t *offsets; /* [segments + 1] */
};

struct compression {
    struct compressed_block *blocks; /* [nblocks] */
    struct shore__topk topk;
    /* Residuals of the whole model, by segment; none without error feedback. The host keeps two, of two steps in turn.
     * On the drives there is one, which is fetched block by block and becomes the next step's. */
    uint16_t *residual[2];
    uint64_t residual_step[2]; /* the step whose state each belongs to */
    unsigned base, next;       /* which one this step reads, and which it writes */
    double *energy, *sent;     /* by segment: the squared sum of the elements to send, and of those sent */
    double dropped;            /* sum over the first steps since the start */
    uint32_t ndropped;
    struct shore_wait *fetch; /* [nblocks] */
    bool *fetching;           /* [nblocks] */
};

static size_t residual_bytes(const struct shore__model *m) {
    return m->layout->segments * SHORE_SEGMENT_ELEMS * sizeof(uint16_t);
}

static bool keeps_residual(const struct shore__settings *s) {
    return s->compress > 0 && s->error_feedback;
}

#define VALUES SHORE_SPARSE_BF16

/* Number of elements to send of a block: the share of its tensors' elements, gaps excluded. */
static uint64_t block_k(const struct shore__settings *s, const struct shore_layout_block *block) {
    uint64_t elems = 0;
    for (uint32_t i = 0; i < block->ntensors; i++)
        elems += block->tensors[i].elems;
    return shore__topk_k(s->compress, elems);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

int shore__compress_check(const struct shore__settings *s, const struct shore__model *m, struct shore_diag *diag) {
    for (uint32_t b = 0; b < m->nblocks; b++) {
        const struct shore_layout_block *block = &m->layout->blocks[b];
        if (shore_sparse_bound(VALUES, block_k(s, block), block->segments) > UINT32_MAX)
            return shore__fail(
                diag, SHORE_EUSAGE,
                "--compress: this share of block %s would take more than 4 GiB; send less, or leave it out",
                block->name);
    }
    return 0;
}

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

/* Places everything, and returns its bytes. */
static uint64_t lay_out(struct compression *z, const struct shore__settings *s, const struct shore__model *m,
                        int threads, struct room room) {
    uint64_t most_k = 0, segments = m->layout->segments;
    uint32_t most_segments = 0, residuals = !keeps_residual(s) ? 0 : s->residual_saved ? 1 : 2;
    z->blocks = take(&room, m->nblocks * sizeof *z->blocks);
    for (uint32_t b = 0; b < m->nblocks; b++) {
        const struct shore_layout_block *block = &m->layout->blocks[b];
        struct compressed_block it = {.k = block_k(s, block)};
        it.code_bytes = shore_sparse_bound(VALUES, it.k, block->segments);
        it.code = take(&room, it.code_bytes);
        it.offsets = take(&room, (block->segments + UINT64_C(1)) * sizeof *it.offsets);
        if (it.k > most_k) most_k = it.k;
        if (block->segments > most_segments) most_segments = block->segments;
        if (z->blocks) z->blocks[b] = it;
    }
    void *selection = take(&room, shore__topk_bytes(most_k, most_segments, threads));
    if (selection) shore__topk_lay_out(&z->topk, selection, most_k, most_segments, threads);
    z->energy = take(&room, segments * sizeof *z->energy);
    z->sent = take(&room, segments * sizeof *z->sent);
    for (uint32_t i = 0; i < residuals; i++)
        z->residual[i] = take(&room, residual_bytes(m));
    z->fetch = take(&room, m->nblocks * sizeof *z->fetch);
    z->fetching = take(&room, m->nblocks * sizeof *z->fetching);
    return room.used;
}

uint64_t shore__compress_bytes(const struct shore__settings *s, const struct shore__model *m, int threads) {
    struct compression unused;
    return s->compress > 0 ? lay_out(&unused, s, m, threads, (struct room){NULL, 0}) : 0;
}

/* ---- the residual ------------------------------------------------------------------------------------------------ */

static size_t residual_at(const struct trainer *t, uint32_t block, uint32_t segment) {
    return (shore__segments_before(t->m->layout, block) + segment) * SHORE_SEGMENT_ELEMS;
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
    struct shore_fleet_info info = {.size = sizeof info};
    if (!z) return shore__fail(diag, -ENOMEM, "out of memory for the trainer");
    if (!(t->s->compress > 0)) return 0;
    lay_out(z, t->s, t->m, t->c->threads, (struct room){shore__memory_host(&t->memory, SHORE__ROW_COMPRESSION, 0), 0});
    memset(z->fetching, 0, t->m->nblocks * sizeof *z->fetching);
    if (!z->residual[1]) return 0;
    z->next = 1;
    shore_fleet_info(t->fleet, &info);
    memset(z->residual[0], 0, residual_bytes(t->m));
    z->residual_step[0] = info.step;
    z->residual_step[1] = UINT64_MAX;
    if (info.step <= t->s->compress_after) return 0; /* nothing was left out so far */
    unsigned char digest[16];
    bool found = false;
    int rc = shore_fleet_digest(t->fleet, false, digest, diag);
    if (!rc) rc = shore__residual_load(t->run, info.step, digest, z->residual[0], &found, diag);
    return rc || found ? rc : lost(t, info.step, diag);
}

int shore__compress_save(struct trainer *t, struct shore_diag *diag) {
    struct compression *z = t->compression;
    struct shore_fleet_info info = {.size = sizeof info};
    unsigned char digest[16];
    if (!z->residual[1]) return 0;
    shore_fleet_info(t->fleet, &info);
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
    uint64_t first = shore__segments_before(t->m->layout, block) + p->segment;
    int rc = wait_for_residual(t, block, diag);
    if (rc) return rc;
#pragma omp parallel for schedule(static)
    for (uint32_t i = 0; i < count; i++)
        z->energy[first + i] = shore_clip_sum(p->gradient + (size_t)i * SHORE_SEGMENT_ELEMS);
    const struct shore_step_gradient whole = {.size = sizeof whole,
                                              .segment = p->segment,
                                              .count = count,
                                              .gradient = p->gradient,
                                              .sums = z->energy + first,
                                              .stays = true};
    rc = shore_step_add(t->step, p->unit, &whole, diag);
    if (rc || !z->residual[0]) return rc;
#pragma omp parallel for schedule(static)
    for (uint32_t i = 0; i < count; i++) {
        float *x = p->gradient + (size_t)i * SHORE_SEGMENT_ELEMS;
        size_t at = (first + i) * SHORE_SEGMENT_ELEMS;
        shore__residual_add(x, z->residual[z->next] + at, z->residual[z->base] + at, SHORE_SEGMENT_ELEMS);
        z->energy[first + i] = shore_clip_sum(x);
    }
    return 0;
}

void shore__compress_block(struct trainer *t, uint32_t block, const float *gradient) {
    struct compression *z = t->compression;
    struct compressed_block *b = &z->blocks[block];
    uint64_t room = b->code_bytes;
    uint16_t *next = z->residual[0] ? z->residual[z->next] + residual_at(t, block, 0) : NULL;
    int rc = shore__residual_encode(&z->topk, VALUES, t->m->layout->blocks[block].segments, gradient, b->k, b->code,
                                    &room, b->offsets, next, z->sent + shore__segments_before(t->m->layout, block));
    assert(!rc); /* the bound is one */
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
