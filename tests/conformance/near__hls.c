/* The kernel for high-level synthesis gives the bits of the scalar UPDATE and of the scalar moments: all optimizers,
 * moments, forms of gradients and index forms, groups (frozen ones, too), over ten million random elements, of which
 * many are denormal, huge, infinite or NaN. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/prng.h"
#include "near/hls/kernel.h"
#include "near/moments.h"
#include "near/rule.h"
#include "number/bf16.h"
#include "number/sparse.h"
#include "seed.h"

enum { SEGMENTS = 4, SEGMENT = SHORE_SEGMENT_ELEMS, ELEMS = SEGMENTS * SEGMENT, BLOCK = SHORE__MOMENT_BLOCK_ELEMS };
enum { BLOCKS = SEGMENT / BLOCK, GROUPS = 4, LONGEST_CODE = 8 + SEGMENT / 8 + 4 * SEGMENT };
enum form { FP32, BF16, SPARSE_BF16, SPARSE_FP32, FORMS };

static uint64_t seed;

struct state {
    _Alignas(64) uint16_t hi[ELEMS], lo[ELEMS];
    _Alignas(64) unsigned char m[ELEMS * 4], v[ELEMS * 4];
    _Alignas(64) float params[ELEMS]; /* or bf16 */
    struct shore__kernel_block blocks[SEGMENTS * BLOCKS];
};
static struct state before, wanted, got;
static _Alignas(64) float dense[ELEMS];
static _Alignas(64) unsigned char gradient[SEGMENTS * (LONGEST_CODE + 64) + 64];
static struct shore_hyper hypers[GROUPS];
static struct shore__kernel_rule rules[GROUPS];
static uint32_t starts[SEGMENTS * BLOCKS * 5]; /* of the first block of each segment alone */

static float value(uint64_t stream, uint64_t i) {
    static const uint32_t special[] = {0x7F800000u, 0xFF800000u, 0x7FC00000u, 0xFFC12345u, 0x7F812345u, 0x00000000u,
                                       0x80000000u, 0x00000001u, 0x807FFFFFu, 0x7F7FFFFFu, 0x7F7F8000u, 0x7F7F7FFFu,
                                       0x3F800000u, 0x00800000u, 0x5F800000u, 0x1F800000u};
    uint64_t bits = shore__random_u64(seed, stream, i);
    switch (shore__random_u64(seed, 99, i / BLOCK) % 8) { /* a block is of one kind, in all planes */
    case 0:
        return shore__bits_f32((uint32_t)bits & 0x807FFFFFu);
    case 1:
        return shore__bits_f32((uint32_t)bits);
    case 2:
        return shore__bits_f32(special[bits >> 60]);
    case 3: /* squares overflow */
        return shore__bits_f32(((uint32_t)bits & 0x80FFFFFFu) | 0x5E000000u);
    default: /* magnitudes from 2^-32 to 2^0 */
        return shore__bits_f32(((uint32_t)bits & 0x8FFFFFFFu) | 0x30000000u);
    }
}

static void fill_groups(enum shore_optimizer optimizer, uint64_t stream) {
    static const struct shore_hyper hard[] = {
        {.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .momentum = 0.9f},
        {.lr = 0.5f, .beta1 = 0.0f, .beta2 = 0.999f, .eps = 1e-6f, .weight_decay = 0.0f, .momentum = 0.5f},
        {.lr = 1e-3f, .beta1 = 0.3f, .beta2 = 0.0f, .eps = 0.0f, .weight_decay = 0.01f, .momentum = 0.0f},
        {.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .frozen = 1},
    };
    for (size_t g = 0; g < GROUPS; g++) {
        hypers[g] = hard[g];
        shore_hyper_at_step(&hypers[g], optimizer, 1 + (stream + g) % 3);
        struct shore__rule r = shore__rule_make(optimizer, &hypers[g], stream % 2 ? 0.37f : 1.0f);
        const float constants[] = {r.coefficient,     r.lr,        r.eps,           r.weight_decay,
                                   r.decay,           r.momentum,  r.m_weight,      r.beta2,
                                   r.one_minus_beta2, r.step_size, r.inv_sqrt_bias2};
        rules[g] = (struct shore__kernel_rule){.from_gradient = r.m_from_gradient,
                                               .decays_gradient = r.decays_gradient,
                                               .first_step = r.first_step,
                                               .frozen = hypers[g].frozen,
                                               .with_momentum = optimizer != SHORE_SGD || r.momentum != 0};
        memcpy(&rules[g], constants, sizeof constants);
    }
}

/* Gives blocks their groups and places, as drive/moment_tiles.h lays them out. Returns the bytes of a segment's moment.
 */
static uint32_t fill_blocks(bool coded, uint64_t stream) {
    uint32_t most = 0;
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        uint32_t floats = 0, seen[2] = {0, 0};
        struct shore__kernel_block *block = before.blocks + (size_t)s * BLOCKS;
        for (uint32_t b = 0; b < BLOCKS; b++) {
            uint64_t bits = shore__random_u64(seed, stream, (s * BLOCKS + b) / 3);
            bool small = s == 0 ? bits >> 60 == 0 : s == 1 && bits >> 63; /* two segments have none */
            block[b] = (struct shore__kernel_block){.group = (uint32_t)bits % GROUPS};
            if (coded && !small) block[b].group |= SHORE__KERNEL_CODED;
            floats += !coded || small;
        }
        uint32_t codes = (BLOCKS - floats) * BLOCK, begin = codes / 4 + BLOCKS - floats;
        for (uint32_t b = 0; b < BLOCKS; b++) {
            bool is_coded = block[b].group & SHORE__KERNEL_CODED;
            uint32_t n = seen[is_coded]++;
            block[b].at = is_coded ? n * BLOCK : begin + n * BLOCK;
            block[b].absmax = is_coded ? codes / 4 + n : 0;
        }
        uint32_t used = 4 * (begin + floats * BLOCK);
        most = used > most ? used : most;
    }
    most = (most + 4095) / 4096 * 4096;
    for (uint32_t b = 0; b < SEGMENTS * BLOCKS; b++) {
        uint32_t before_it = b / BLOCKS * most, is_coded = before.blocks[b].group & SHORE__KERNEL_CODED;
        before.blocks[b].at += is_coded ? before_it : before_it / 4;
        before.blocks[b].absmax += is_coded ? before_it / 4 : 0;
    }
    return most;
}

static void fill_state(uint64_t stream) {
    for (size_t i = 0; i < ELEMS; i++)
        shore__split_f32(value(stream + 1, i), &before.hi[i], &before.lo[i]);
    memset(before.m, 0, sizeof before.m);
    memset(before.v, 0, sizeof before.v);
    for (uint32_t b = 0; b < SEGMENTS * BLOCKS; b++) {
        const struct shore__kernel_block *block = &before.blocks[b];
        for (size_t i = 0; i < BLOCK; i++) {
            float m = value(stream + 2, (size_t)b * BLOCK + i), v = value(stream + 3, (size_t)b * BLOCK + i);
            if (block->group & SHORE__KERNEL_CODED) {
                uint64_t bits = shore__random_u64(seed, stream + 4, (size_t)b * BLOCK + i);
                before.m[block->at + i] = (unsigned char)bits;
                before.v[block->at + i] = (unsigned char)(bits >> 8);
                float *absmax_m = (float *)(void *)before.m + block->absmax;
                float *absmax_v = (float *)(void *)before.v + block->absmax;
                if (i == 0) *absmax_m = shore__bits_f32(shore__f32_bits(m) & 0x7FFFFFFFu);
                if (i == 0) *absmax_v = shore__bits_f32(shore__f32_bits(v) & 0x7FFFFFFFu);
            } else {
                ((float *)(void *)before.m)[block->at + i] = m;
                /* roots of most are numbers */
                ((float *)(void *)before.v)[block->at + i] = i % 8 ? v * v : v;
            }
        }
    }
}

/* A segment's code of a share of the elements; dense becomes what it stands for. Returns its bytes. */
static size_t fill_code(enum shore_sparse_values values, uint32_t s, uint64_t stream, unsigned char *code) {
    static const uint32_t of_1024[] = {10, 100, 500, 1024, 0, 1, 300};
    static uint16_t index[SEGMENT];
    static uint32_t bits[SEGMENT];
    uint32_t share = of_1024[(stream + s) % 7], count = 0;
    float *to = dense + (size_t)s * SEGMENT;
    for (uint32_t i = 0; i < SEGMENT; i++) {
        uint32_t x = shore__f32_bits(to[i]);
        to[i] = 0;
        if (shore__random_u64(seed, stream + 6, (size_t)s * SEGMENT + i) % 1024 >= share) continue;
        index[count] = (uint16_t)i;
        bits[count++] = x;
        to[i] = shore__bits_f32(shore__sparse_value(values, x));
    }
    return shore__sparse_encode(values, index, bits, count, code);
}

static void fill_gradient(enum form form, uint64_t stream) {
    for (size_t i = 0; i < ELEMS; i++)
        dense[i] = value(stream + 5, i);
    size_t at = stream % 61;
    for (uint32_t s = 0; s < SEGMENTS && form >= SPARSE_BF16; s++) {
        const enum shore_sparse_values values = form == SPARSE_BF16 ? SHORE_SPARSE_BF16 : SHORE_SPARSE_FP32;
        struct shore__sparse_reader reader;
        size_t bytes = fill_code(values, s, stream, gradient + at);
        assert_int_equal(shore__sparse_open(gradient + at, bytes, &reader), 0);
        uint32_t *start = starts + (size_t)s * BLOCKS * 4;
        start[0] = (uint32_t)(reader.index - gradient);
        start[1] = (uint32_t)(reader.value - gradient);
        start[3] = reader.left;
        starts[SEGMENTS * BLOCKS * 4 + s * BLOCKS] = (uint32_t)reader.indices | (uint32_t)values << 4;
        at += bytes;
    }
    if (form == FP32) memcpy(gradient, dense, sizeof dense);
    for (size_t i = 0; i < ELEMS && form == BF16; i++) {
        uint16_t narrow = shore__f32_to_bf16(dense[i]);
        memcpy(gradient + 2 * i, &narrow, 2);
        dense[i] = shore__bf16_to_f32(narrow);
    }
}

/* By the scalar versions. */
static int update_block(enum shore_optimizer optimizer, unsigned planes, float coefficient, size_t b) {
    const struct shore__moments_version *moments = shore__moments_versions();
    const struct shore__dynamic_code *m_code = shore__dynamic_code(true), *v_code = shore__dynamic_code(false);
    struct shore__kernel_block *block = &wanted.blocks[b];
    bool coded = block->group & SHORE__KERNEL_CODED, has_m = planes & 1u << SHORE_PLANE_M,
         has_v = planes & 1u << SHORE_PLANE_V;
    const struct shore_hyper *hyper = &hypers[block->group & ~SHORE__KERNEL_CODED];
    if (coded && hyper->frozen) return 0;
    float m[BLOCK], v[BLOCK];
    struct shore__moment8 m8 = {wanted.m + block->at, (float *)(void *)wanted.m + block->absmax},
                          v8 = {wanted.v + block->at, (float *)(void *)wanted.v + block->absmax};
    if (coded && has_m) moments->dequantise(m_code, m, &m8, BLOCK);
    if (coded && has_v) moments->dequantise(v_code, v, &v8, BLOCK);
    float *m_at = coded ? m : (float *)(void *)wanted.m + block->at;
    float *v_at = coded ? v : (float *)(void *)wanted.v + block->at;
    struct shore__planes p = {wanted.hi + b * BLOCK, wanted.lo + b * BLOCK, has_m ? m_at : NULL, has_v ? v_at : NULL};
    int rc = shore__near_update_with(shore__near_versions(), optimizer, hyper, coefficient, &p, &p, dense + b * BLOCK,
                                     NULL, false, BLOCK);
    if (coded && has_m && moments->quantise(m_code, &m8, m, BLOCK)) rc = SHORE_ENONFINITE;
    if (coded && has_v && moments->quantise(v_code, &v8, v, BLOCK)) rc = SHORE_ENONFINITE;
    return rc;
}

static uint32_t nonfinite; /* blocks, of all calls */

static void compare(enum shore_optimizer optimizer, bool momentum, bool coded, enum form form, uint64_t stream) {
    static struct shore__dynamic_code code[2];
    code[0] = *shore__dynamic_code(false);
    code[1] = *shore__dynamic_code(true);
    unsigned planes = shore_optimizer_planes(optimizer, momentum);
    uint32_t bytes = fill_blocks(coded, stream);
    fill_groups(optimizer, stream);
    fill_state(stream);
    fill_gradient(form, stream);
    wanted = before;
    got = before;
    for (size_t b = 0; b < SEGMENTS * BLOCKS; b++) {
        int rc = update_block(optimizer, planes, stream % 2 ? 0.37f : 1.0f, b);
        wanted.blocks[b].nonfinite = rc == SHORE_ENONFINITE;
        nonfinite += rc == SHORE_ENONFINITE;
    }
    const struct state *from = stream % 3 ? &got : &before;
    uint32_t params_form = stream % 7 % 3, at = offsetof(struct state, hi);
    if (params_form == 1) memcpy(wanted.params, wanted.hi, sizeof wanted.hi);
    if (params_form == 2) shore__f32_join(wanted.params, wanted.hi, wanted.lo, ELEMS);
    update((const void *)gradient, starts, (void *)got.hi, (uint32_t)offsetof(struct state, lo) - at,
           (uint32_t)offsetof(struct state, m) - at, (uint32_t)offsetof(struct state, v) - at, (void *)got.params,
           params_form, got.blocks, rules, (const void *)code, (const void *)from->hi, (const void *)from->hi,
           (const void *)from->hi, (const void *)from->hi, (void *)got.hi, (void *)got.hi, (void *)got.hi, from->blocks,
           form < SPARSE_BF16 ? form : SHORE_GRADIENT_SPARSE, optimizer, planes, bytes / 64, SEGMENTS);
    assert_memory_equal(got.params, wanted.params, sizeof got.params);
    for (size_t i = 0; i < ELEMS; i++)
        if (got.hi[i] != wanted.hi[i] || got.lo[i] != wanted.lo[i])
            fail_msg("optimizer %d, form %d, coded %d: element %zu is %04x %04x, not %04x %04x", (int)optimizer,
                     (int)form, coded, i, got.hi[i], got.lo[i], wanted.hi[i], wanted.lo[i]);
    for (size_t i = 0; i < sizeof got.m; i++)
        if (got.m[i] != wanted.m[i] || got.v[i] != wanted.v[i])
            fail_msg("optimizer %d, form %d, coded %d: byte %zu of a segment's moments (of %u) differs", (int)optimizer,
                     (int)form, coded, i, bytes);
    assert_memory_equal(got.blocks, wanted.blocks, sizeof got.blocks);
}

static void bits_are_the_scalar_ones(void **state) {
    uint64_t calls = 0;
    seed = test_seed();
    for (int o = 0; o <= SHORE_OPTIMIZER_COUNT; o++)
        for (int coded = 0; coded < 2; coded++)
            for (int form = 0; form < FORMS; form++, calls++)
                compare(o == SHORE_OPTIMIZER_COUNT ? SHORE_SGD : (enum shore_optimizer)o, o != SHORE_OPTIMIZER_COUNT,
                        coded, (enum form)form, 100 + 10 * calls + seed % 10);
    assert_true(calls * ELEMS >= 10000000);
    assert_in_range(nonfinite, calls * SEGMENTS * BLOCKS / 100, calls * SEGMENTS * BLOCKS * 3 / 4);
    print_message("%.1f million elements are equal\n", (double)(calls * ELEMS) / 1e6);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits_are_the_scalar_ones)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
