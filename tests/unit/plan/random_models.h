/* Models at random, for the tests of plans: one seed, which is printed, and a stream of numbers for each case. */
#ifndef TESTS_UNIT_PLAN_RANDOM_MODELS_H
#define TESTS_UNIT_PLAN_RANDOM_MODELS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/prng.h"
#include "model/model.h"

static uint64_t seed, stream;

static uint32_t pick(uint64_t *draw, uint32_t first, uint32_t last) {
    return first + (uint32_t)(shore__random_u64(seed, stream, (*draw)++) % (last - first + 1));
}

static struct shore__model *random_model(uint64_t *draw) {
    uint32_t heads = 1u << pick(draw, 0, 3), head_dim = 16u << pick(draw, 0, 2);
    bool llama = pick(draw, 0, 1);
    struct shore__arch arch = {
        .model_type = llama ? "llama" : "gpt2",
        .n_layer = pick(draw, 1, 12),
        .d_model = heads * head_dim,
        .n_head = heads,
        .n_kv_head = llama ? heads >> pick(draw, 0, heads > 1) : heads,
        .head_dim = head_dim,
        .d_ff = heads * head_dim * pick(draw, 1, 4),
        .vocab = pick(draw, 300, 40000),
        .max_positions = 2048,
        .rms_norm = llama,
        .norm_eps = 1e-5f,
        .act = llama ? SHORE__SILU : SHORE__GELU_TANH,
        .gated = llama,
        .qkv_bias = !llama,
        .out_bias = !llama,
        .mlp_bias = !llama,
        .learned_positions = !llama,
        .rope = {.theta = 10000, .factor = 1},
        .tied = pick(draw, 0, 1),
        .init_std = 0.02f,
        .padding = -1,
        .bos = -1,
    };
    struct shore__model *m = NULL;
    assert_int_equal(shore__model_make(&arch, &m, NULL), 0);
    return m;
}

#endif
