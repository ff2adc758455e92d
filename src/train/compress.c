#include "train/compress.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "number/bf16.h"
#include "number/residual.h"
#include "train/trainer.h"

struct compressed_block {
    uint64_t k;
    unsigned char *code; /* of all its segments */
    uint32_t *offsets;   /* [segments + 1] */
};

struct compression {
    struct compressed_block *blocks; /* [nblocks] */
    struct shore__topk topk;
    /* Of the whole model, by segment; none without error feedback. On the host: of two steps, in turn. Saved on the
     * drives: one, which is fetched block by block and becomes the next step's. */
    uint16_t *residual[2];
    uint64_t residual_step[2]; /* the step whose state it belongs to */
    unsigned base;             /* which is read in this step; the other is written */
    double *energy, *sent;     /* by segment: sum of squares of what could be sent, and of what was */
    double dropped;            /* sum over the first steps of this start */
    uint32_t ndropped;
    struct shore_wait *fetch; /* [nblocks] */
    bool *fetching;           /* [nblocks] */
};

static bool keeps_residual(const struct shore__settings *s) {
    return s->compress > 0 && s->error_feedback;
}

#define VALUES SHORE_SPARSE_BF16

/* Elements of the block's tensors, without the gaps: what the share is a share of. */
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
            return shore__fail(diag, SHORE_EUSAGE,
                               "--compress: so much of block %s would take more than 4 GiB; compress more, or not",
                               block->name);
    }
    return 0;
}

/* The largest of the blocks. */
static void largest(const struct shore__settings *s, const struct shore__model *m, uint64_t *k, uint32_t *segments) {
    *k = *segments = 0;
    for (uint32_t b = 0; b < m->nblocks; b++) {
        const struct shore_layout_block *block = &m->layout->blocks[b];
        if (block_k(s, block) > *k) *k = block_k(s, block);
        if (block->segments > *segments) *segments = block->segments;
    }
}

static void add(struct shore__region_list *rows, enum shore__row key, uint32_t index, uint64_t bytes) {
    shore__regions_add_always(rows, key, index, SHORE__REGION_PLAIN, bytes);
}

static void lay_out(const struct shore__settings *s, const struct shore__model *m, int threads,
                    struct shore__region_list *rows) {
    const struct compression *z = NULL; /* for the sizes of what it points to */
    uint64_t most_k, segments = m->layout->segments;
    uint32_t most_segments, residuals = !keeps_residual(s) ? 0 : s->residual_saved ? 1 : 2;
    shore__regions_open(rows, 1, true);
    largest(s, m, &most_k, &most_segments);
    add(rows, SHORE__ROW_BLOCKS, 0, m->nblocks * sizeof *z->blocks);
    for (uint32_t b = 0; b < m->nblocks; b++) {
        const struct shore_layout_block *block = &m->layout->blocks[b];
        add(rows, SHORE__ROW_CODE, b, shore_sparse_bound(VALUES, block_k(s, block), block->segments));
        add(rows, SHORE__ROW_OFFSETS, b, (block->segments + UINT64_C(1)) * sizeof *z->blocks->offsets);
    }
    add(rows, SHORE__ROW_SELECTION, 0, shore__topk_bytes(most_k, most_segments, threads));
    add(rows, SHORE__ROW_ENERGY, 0, segments * sizeof *z->energy);
    add(rows, SHORE__ROW_SENT, 0, segments * sizeof *z->sent);
    for (uint32_t i = 0; i < residuals; i++)
        add(rows, SHORE__ROW_RESIDUAL, i, segments * SHORE_SEGMENT_ELEMS * sizeof *z->residual[i]);
    add(rows, SHORE__ROW_FETCH, 0, m->nblocks * sizeof *z->fetch);
    add(rows, SHORE__ROW_FETCHING, 0, m->nblocks * sizeof *z->fetching);
    shore__regions_lay_out(rows);
}

uint64_t shore__compress_bytes(const struct shore__settings *s, const struct shore__model *m, int threads) {
    struct shore__region_list rows;
    if (!(s->compress > 0)) return 0;
    lay_out(s, m, threads, &rows);
    uint64_t bytes = rows.failed ? UINT64_MAX / 2 : rows.bytes[0];
    shore__regions_close(&rows);
    return bytes;
}

static int place(struct compression *z, const struct trainer *t, struct shore_diag *diag) {
    const struct shore__settings *s = t->s;
    const struct shore__model *m = t->m;
    int threads = t->c->threads;
    struct shore__region_list rows;
    uint64_t most_k;
    uint32_t most_segments;
    if (!(s->compress > 0)) return 0;
    lay_out(s, m, threads, &rows);
    if (rows.failed) {
        shore__regions_close(&rows);
        return shore__fail(diag, -ENOMEM, "out of memory for the trainer");
    }
    const struct shore__memory memory =
        shore__memory_lent(&rows, shore__memory_both(&t->memory, SHORE__ROW_COMPRESSION, 0));
    largest(s, m, &most_k, &most_segments);
    z->blocks = shore__memory_host(&memory, SHORE__ROW_BLOCKS, 0);
    for (uint32_t b = 0; b < m->nblocks; b++)
        z->blocks[b] = (struct compressed_block){block_k(s, &m->layout->blocks[b]),
                                                 shore__memory_host(&memory, SHORE__ROW_CODE, b),
                                                 shore__memory_host(&memory, SHORE__ROW_OFFSETS, b)};
    shore__topk_place(&z->topk, shore__memory_host(&memory, SHORE__ROW_SELECTION, 0), most_k, most_segments, threads);
    z->energy = shore__memory_host(&memory, SHORE__ROW_ENERGY, 0);
    z->sent = shore__memory_host(&memory, SHORE__ROW_SENT, 0);
    for (uint32_t i = 0; i < 2; i++)
        z->residual[i] = shore__memory_host(&memory, SHORE__ROW_RESIDUAL, i);
    z->fetch = shore__memory_host(&memory, SHORE__ROW_FETCH, 0);
    z->fetching = shore__memory_host(&memory, SHORE__ROW_FETCHING, 0);
    memset(z->fetching, 0, m->nblocks * sizeof *z->fetching);
    shore__regions_close(&rows);
    return 0;
}

/* ---- the residual ------------------------------------------------------------------------------------------------ */

static size_t residual_bytes(const struct trainer *t) {
    return t->m->layout->segments * SHORE_SEGMENT_ELEMS * sizeof(uint16_t);
}

static uint64_t segments_before(const struct trainer *t, uint32_t block) {
    uint64_t before = 0;
    for (uint32_t b = 0; b < block; b++)
        before += t->m->layout->blocks[b].segments;
    return before;
}

static size_t residual_at(const struct trainer *t, uint32_t block, uint32_t segment) {
    return (segments_before(t, block) + segment) * SHORE_SEGMENT_ELEMS;
}

/* That of the step before, and that of this one: the same where it lives on the drives. */
static uint16_t *residual_base(const struct trainer *t) {
    const struct compression *z = t->compression;
    return t->s->residual_saved ? z->residual[0] : z->residual[z->base];
}
static uint16_t *residual_next(const struct trainer *t) {
    const struct compression *z = t->compression;
    return t->s->residual_saved ? z->residual[0] : z->residual[1 - z->base];
}

void shore__compress_fill(const struct trainer *t, uint32_t block, uint32_t segment, struct shore_update *out) {
    const struct compressed_block *b = &t->compression->blocks[block];
    out->gradient = b->code;
    out->offsets = b->offsets + segment;
    if (t->s->residual_saved) out->residual = residual_next(t) + residual_at(t, block, segment);
}

/* At a crash, it goes with the process. */
static int lost(struct trainer *t, uint64_t step, struct shore_diag *diag) {
    static const char what[] = "what compression had left out of the gradients so far is lost: error feedback begins "
                               "anew (--residual saved would keep it on the drives)";
    if (t->events->note) t->events->note(t->events->ctx, what);
    return shore__run_record_change(t->run, step, what, diag);
}

int shore__compress_open(struct trainer *t, struct shore_diag *diag) {
    struct compression *z = t->compression = calloc(1, sizeof *z);
    struct shore_fleet_info info = {.size = sizeof info};
    int rc = z ? place(z, t, diag) : shore__fail(diag, -ENOMEM, "out of memory for the trainer");
    if (rc || !z->residual[1]) return rc;
    shore_fleet_info(t->fleet, &info);
    memset(z->residual[0], 0, residual_bytes(t));
    z->residual_step[0] = info.step;
    z->residual_step[1] = UINT64_MAX;
    z->base = 0;
    if (info.step <= t->s->compress_after) return 0; /* nothing was left out so far */
    unsigned char digest[16];
    bool found = false;
    rc = shore_fleet_digest(t->fleet, false, digest, diag);
    if (!rc) rc = shore__residual_load(t->run, info.step, digest, z->residual[0], &found, diag);
    return rc || found ? rc : lost(t, info.step, diag);
}

void shore__compress_close(struct compression *z) {
    free(z);
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
    if (z->residual_step[0] == t->base_step) {
        z->base = 0;
    } else if (z->residual_step[1] == t->base_step) {
        z->base = 1;
    } else {
        z->base = 0;
        z->residual_step[0] = t->base_step;
        memset(z->residual[0], 0, residual_bytes(t));
        return lost(t, t->base_step, diag);
    }
    z->residual_step[1 - z->base] = UINT64_MAX;
    return 0;
}

void shore__compress_end_step(struct trainer *t, bool skipped) {
    struct compression *z = t->compression;
    if (!z->residual[1]) return;
    if (!compress_step(t->s, t->base_step)) {
        z->residual_step[0] = t->base_step + 1; /* zeros: whole gradients leave nothing out */
    } else if (!skipped) {
        z->residual_step[1 - z->base] = t->base_step + 1;
    } else {
        for (unsigned i = 0; i < 2; i++)
            if (z->residual_step[i] == t->base_step) z->residual_step[i]++;
    }
}

static int wait_for_residual(struct trainer *t, uint32_t block, struct shore_diag *diag) {
    struct compression *z = t->compression;
    if (!z->fetching[block]) return 0;
    uint64_t start = shore__now_ns();
    int rc = shore_wait(&z->fetch[block], diag);
    t->waits.drives_ns += shore__now_ns() - start;
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
    uint32_t block = p->page.block, segment = p->segment, count = p->count;
    float *gradient = p->gradient;
    uint64_t first = segments_before(t, block) + segment;
    int rc = z->residual[0] ? wait_for_residual(t, block, diag) : 0;
    if (rc) return rc;
    const uint16_t *base = residual_base(t);
    uint16_t *next = residual_next(t);
#pragma omp parallel for schedule(static)
    for (uint32_t i = 0; i < count; i++)
        z->energy[first + i] = shore_clip_sum(gradient + (size_t)i * SHORE_SEGMENT_ELEMS);
    rc = shore__gradients_add_sums(t, p, segment, count, gradient, z->energy + first, diag);
    if (rc || !base) return rc;
#pragma omp parallel for schedule(static)
    for (uint32_t i = 0; i < count; i++) {
        float *x = gradient + (size_t)i * SHORE_SEGMENT_ELEMS;
        size_t at = (first + i) * SHORE_SEGMENT_ELEMS;
        shore__residual_add(x, next + at, base + at, SHORE_SEGMENT_ELEMS);
        z->energy[first + i] = shore_clip_sum(x);
    }
    return 0;
}

static double sum_squares_of(const struct shore__topk_list *list) {
    double sum = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        double x = shore__bits_f32(list->bits[i]);
        sum += x * x;
    }
    return sum;
}

void shore__compress_block(struct trainer *t, uint32_t block, const float *gradient) {
    struct compression *z = t->compression;
    struct compressed_block *b = &z->blocks[block];
    uint32_t segments = t->m->layout->blocks[block].segments;
    uint64_t first = segments_before(t, block);
    uint16_t *next = z->residual[0] ? residual_next(t) + residual_at(t, block, 0) : NULL;
    shore__topk_select(&z->topk, gradient, segments, b->k);
    b->offsets[0] = 0;
    for (uint32_t s = 0; s < segments; s++) {
        const struct shore__topk_list *list = &z->topk.list[s];
        b->offsets[s + 1] = b->offsets[s] + (uint32_t)shore__sparse_bytes(VALUES, list->index, list->count);
    }
#pragma omp parallel for schedule(static)
    for (uint32_t s = 0; s < segments; s++) {
        const struct shore__topk_list *list = &z->topk.list[s];
        shore__sparse_encode(VALUES, list->index, list->bits, list->count, b->code + b->offsets[s]);
        if (next) shore__residual_sent(next + (size_t)s * SHORE_SEGMENT_ELEMS, list, VALUES);
        z->sent[first + s] = sum_squares_of(list);
    }
}

/* With error feedback nothing is lost, only late: most of what has gathered waits at any time. */
#define LARGE_WAITING 0.97
#define LARGE_LOST 0.5
#define STEPS_TO_JUDGE 20u

static void judge(struct trainer *t, double dropped) {
    struct compression *z = t->compression;
    double large = t->s->error_feedback ? LARGE_WAITING : LARGE_LOST;
    char note[256];
    if (z->ndropped >= STEPS_TO_JUDGE || !t->events->note) return;
    z->dropped += dropped;
    if (++z->ndropped < STEPS_TO_JUDGE || z->dropped < large * STEPS_TO_JUDGE) return;
    snprintf(note, sizeof note, "compression %s %.0f %% of the gradients' energy over the first %u steps: %s",
             t->s->error_feedback ? "holds back" : "drops", 100 * z->dropped / STEPS_TO_JUDGE, STEPS_TO_JUDGE,
             t->s->error_feedback ? "training may lag; send more (--compress)"
                                  : "training may suffer; send more (--compress), or use --error-feedback on");
    t->events->note(t->events->ctx, note);
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
