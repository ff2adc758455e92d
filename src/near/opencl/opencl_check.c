/* The start test of a device: rounds of 65,536 elements, whose bits are random in every way that matters to fp32: from
 * denormals to infinities, and near each other. */
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/prng.h"
#include "near/moments_impl.h"
#include "near/opencl/opencl.h"
#include "number/bf16.h"
#include "number/fpcontrol.h"
#include "number/sparse.h"

enum {
    ELEMS = SHORE_SEGMENT_ELEMS,
    BLOCKS = ELEMS / SHORE__ENGINE_BLOCK_ELEMS,
    FP32_BLOCKS = 4,
    GROUPS = 4,
    ROUNDS = 16
};
#define CODED (ELEMS - FP32_BLOCKS * SHORE__ENGINE_BLOCK_ELEMS) /* with 8-bit moments: these come first */

struct check {
    const struct shore__opencl_config *config;
    unsigned char *plane[SHORE_PLANE_COUNT]; /* of the engine's memory */
    unsigned char *copy[SHORE_PLANE_COUNT];  /* of the reference */
    float gradient[ELEMS];                   /* as the reference takes it */
    unsigned char sent[ELEMS * 4 + ELEMS];
    uint16_t index[ELEMS / 2];
    uint32_t bits[ELEMS / 2], offsets[2];
    unsigned char params[2][ELEMS * 4];
    struct shore_hyper groups[GROUPS];
    unsigned char room[];
};

/* A number of any size, or one near 1, or a special one. */
static float hard(uint64_t bits) {
    static const uint32_t special[] = {0,          0x80000000u, 1,          0x80000001u, 0x7FFFFF,
                                       0x800000,   0x7F7FFFFF,  0x7F800000, 0xFF800000u, 0x7FC00000,
                                       0x7F7F8000, 0x3F800000,  0x3F7FFFFF, 0x33D6BF95};
    uint32_t u = (uint32_t)bits, kind = (uint32_t)(bits >> 32) % 64;
    if (kind == 0) return shore__bits_f32(special[(bits >> 40) % (sizeof special / sizeof *special)]);
    if (kind < 32) u = (u & 0x807FFFFFu) | (uint32_t)(96 + (bits >> 40) % 40) << 23;
    return shore__bits_f32(u);
}

static void fill(struct check *c, uint32_t round) {
    const uint32_t *bytes = c->config->plane_bytes;
    for (uint32_t i = 0; i < ELEMS; i++) {
        float master = hard(shore__random_u64(round, 0, i));
        uint16_t hi, lo;
        shore__split_f32(master, &hi, &lo);
        memcpy(c->copy[SHORE_PLANE_HI] + 2 * i, &hi, 2);
        memcpy(c->copy[SHORE_PLANE_LO] + 2 * i, &lo, 2);
        c->gradient[i] = hard(shore__random_u64(round, 1, i));
    }
    for (int p = SHORE_PLANE_M; p <= SHORE_PLANE_V; p++) {
        bool fp32 = c->config->moments == SHORE_MOMENTS_FP32;
        uint32_t coded = fp32 || !bytes[p] ? 0 : CODED;
        uint32_t words = !bytes[p] ? 0 : coded / 4 + coded / SHORE__MOMENT_BLOCK_ELEMS + ELEMS - coded;
        memset(c->copy[p], 0, bytes[p]); /* behind the last moment, too */
        for (uint32_t i = 0; i < words; i++) {
            uint64_t bits = shore__random_u64(round, 2 + (uint64_t)p, i);
            float x = hard(bits);
            if (p == SHORE_PLANE_V) x = shore__bits_f32(shore__f32_bits(x) & 0x7FFFFFFFu);
            if (i < coded / 4)
                memcpy(c->copy[p] + 4 * i, &bits, 4);
            else
                memcpy(c->copy[p] + 4 * i, &x, 4);
        }
    }
    for (int p = 0; p <= SHORE_PLANE_V; p++)
        if (bytes[p]) memcpy(c->plane[p], c->copy[p], bytes[p]);
}

/* Groups with and without a first step, decay of gradients, momentum and an eps; the last is frozen. */
static void choose_groups(struct check *c, uint32_t round) {
    for (uint32_t g = 0; g < GROUPS; g++) {
        struct shore_hyper *h = &c->groups[g];
        *h = (struct shore_hyper){.lr = g ? 1e-3f : 0.7f, .beta1 = g == 1 ? 0.3f : 0.9f, .beta2 = 0.999f};
        h->eps = g == 2 ? 1e-37f : 1e-8f;
        h->weight_decay = g == 1 ? 0 : 0.1f;
        h->momentum = g == 2 ? 0 : 0.9f;
        shore_hyper_at_step(h, c->config->optimizer, 1 + round / 2);
        h->frozen = g == GROUPS - 1;
    }
}

/* Whether a compressed gradient has the element, so that indices are gaps, a bitmap, and words. */
static bool is_sent(uint32_t i, uint32_t round) {
    if (round / 4 == 2) return i % 1021 == 0;
    return i % 4096 < 64 || i % (i < ELEMS / 2 ? 100 : 17) == 0 || (round / 4 == 1 && i % 4 == 1);
}

/* Sends the gradient in one of its forms; the reference takes what arrives. */
static void send(struct check *c, enum shore_gradient_form form, uint32_t round, struct shore_update *u) {
    const enum shore_sparse_values values = round < 8 ? SHORE_SPARSE_FP32 : SHORE_SPARSE_BF16;
    uint32_t n = 0;
    u->form = form;
    u->gradient = form == SHORE_GRADIENT_FP32 ? (void *)c->gradient : (void *)c->sent;
    u->offsets = c->offsets;
    for (uint32_t i = 0; i < ELEMS; i++) {
        const uint16_t half = shore__f32_to_bf16(c->gradient[i]);
        if (form == SHORE_GRADIENT_BF16) {
            memcpy(c->sent + 2 * i, &half, 2);
            c->gradient[i] = shore__bf16_to_f32(half);
        } else if (form == SHORE_GRADIENT_SPARSE && is_sent(i, round)) {
            c->index[n] = (uint16_t)i;
            c->bits[n++] = shore__f32_bits(c->gradient[i]);
            c->gradient[i] = shore__bits_f32(shore__sparse_value(values, c->bits[n - 1]));
        } else if (form == SHORE_GRADIENT_SPARSE) {
            c->gradient[i] = 0;
        }
    }
    c->offsets[0] = 0;
    if (form == SHORE_GRADIENT_SPARSE)
        c->offsets[1] = (uint32_t)shore__sparse_encode(values, c->index, c->bits, n, c->sent);
}

static void refer_to(struct check *c, uint32_t b, struct shore__engine_block *block, const struct shore_update *u) {
    const size_t at = (size_t)b * SHORE__ENGINE_BLOCK_ELEMS, size = c->config->fp32_params ? 4 : 2;
    const struct shore_hyper *h = &u->groups[block->group & ~SHORE__ENGINE_CODED];
    const bool coded = block->group & SHORE__ENGINE_CODED, keeps = h->frozen && coded;
    float moments[2][SHORE__ENGINE_BLOCK_ELEMS], *moment[2] = {NULL, NULL};
    struct shore__moment8 codes[2];
    uint64_t control = shore__fp_begin();
    for (int k = 0; k < 2; k++) {
        unsigned char *plane = c->copy[SHORE_PLANE_M + k];
        if (!c->config->plane_bytes[SHORE_PLANE_M + k] || keeps) continue;
        codes[k] = (struct shore__moment8){plane + block->at, (float *)(void *)plane + block->absmax};
        moment[k] = coded ? moments[k] : (float *)(void *)plane + block->at;
        if (coded)
            shore__dequantise_scalar(shore__dynamic_code(k == 0), moments[k], &codes[k], SHORE__ENGINE_BLOCK_ELEMS);
    }
    const struct shore__planes planes = {(uint16_t *)(void *)c->copy[SHORE_PLANE_HI] + at,
                                         (uint16_t *)(void *)c->copy[SHORE_PLANE_LO] + at, moment[0], moment[1]};
    int rc = shore__near_update_with(shore__near_versions(), c->config->optimizer, h, u->coefficient, &planes, &planes,
                                     c->gradient + at, c->params[0] + at * size, c->config->fp32_params,
                                     SHORE__ENGINE_BLOCK_ELEMS);
    for (int k = 0; k < 2 && coded; k++)
        if (moment[k] &&
            shore__quantise_scalar(shore__dynamic_code(k == 0), &codes[k], moments[k], SHORE__ENGINE_BLOCK_ELEMS))
            rc = SHORE_ENONFINITE;
    shore__fp_end(control);
    block->nonfinite = rc != 0;
}

static const char *difference(const struct check *c, const struct shore__engine_block *blocks,
                              const struct shore__engine_block *expected) {
    static const char *const names[] = {"parameters", "parameters", "first moments", "second moments"};
    for (int p = 0; p <= SHORE_PLANE_V; p++)
        if (c->config->plane_bytes[p] && memcmp(c->plane[p], c->copy[p], c->config->plane_bytes[p]) != 0)
            return names[p];
    if (memcmp(c->params[0], c->params[1], ELEMS * (c->config->fp32_params ? 4 : 2)) != 0) return "handed parameters";
    for (uint32_t b = 0; b < BLOCKS; b++)
        if (!blocks[b].nonfinite != !expected[b].nonfinite) return "numbers that are not finite";
    return NULL;
}

static int check_round(struct shore__engine *engine, struct check *c, uint32_t round, struct shore__engine_job *job,
                       struct shore_diag *diag) {
    static const enum shore_gradient_form forms[] = {SHORE_GRADIENT_FP32, SHORE_GRADIENT_BF16, SHORE_GRADIENT_FP32,
                                                     SHORE_GRADIENT_SPARSE};
    struct shore__engine_block expected[BLOCKS];
    fill(c, round);
    choose_groups(c, round);
    send(c, forms[round % 4], round, &job->update);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        bool coded = c->config->moments != SHORE_MOMENTS_FP32 && b < BLOCKS - FP32_BLOCKS;
        uint32_t behind = c->config->moments == SHORE_MOMENTS_FP32 ? 0 : CODED; /* codes and absmax, in floats */
        uint32_t floats = behind ? (behind + behind / SHORE__MOMENT_BLOCK_ELEMS * 4) / 4 : 0;
        uint32_t at = b * SHORE__ENGINE_BLOCK_ELEMS;
        job->blocks[b] = (struct shore__engine_block){
            .group = (b + round) % GROUPS | (coded ? SHORE__ENGINE_CODED : 0),
            .at = coded ? at : floats + (behind ? at - CODED : at),
            .absmax = coded ? behind / 4 + b : 0,
        };
        expected[b] = job->blocks[b];
    }
    for (uint32_t b = 0; b < BLOCKS; b++)
        refer_to(c, b, &expected[b], &job->update);
    engine->ops->submit(engine, job);
    engine->ops->reap(engine, true);
    if (job->rc && job->rc != SHORE_ENONFINITE) return shore__fail_of(diag, job->rc, &job->diag, "%s", job->diag.text);
    const char *what = difference(c, job->blocks, expected);
    return what ? shore__fail(diag, SHORE_EUSAGE,
                              "computes other %s than this program must: its updates would differ; name another device "
                              "with opencl device=, or a program for it and this optimizer with binary=",
                              what)
                : 0;
}

int shore__engine_check(struct shore__engine *engine, const struct shore__opencl_config *config, unsigned char *planes,
                        struct shore__engine_block *blocks, uint32_t *starts, struct shore_diag *diag) {
    size_t room = 0, at = 0;
    for (int p = 0; p < SHORE_PLANE_COUNT; p++)
        room += config->plane_bytes[p];
    struct check *c = malloc(sizeof *c + room);
    if (!c) return shore__out_of_memory(diag);
    c->config = config;
    memset(c->params, 0, sizeof c->params);
    for (int p = 0; p < SHORE_PLANE_COUNT; p++) {
        c->plane[p] = planes + at * config->chunk_segments;
        c->copy[p] = c->room + at;
        at += config->plane_bytes[p];
    }
    struct shore__engine_job job = {
        .update = {.count = 1, .groups = c->groups, .ngroups = GROUPS, .params_out = c->params[1]},
        .blocks = blocks,
        .starts = starts,
    };
    int rc = 0;
    for (uint32_t round = 0; !rc && round < ROUNDS; round++) {
        job.update.coefficient = round % 3 ? 1.0f : 0.37f;
        rc = check_round(engine, c, round, &job, diag);
    }
    free(c);
    return rc;
}
