/* Architectures at random: a stream of numbers for each case, of one seed. */
#ifndef TESTS_UNIT_PLAN_RANDOM_ARCH_H
#define TESTS_UNIT_PLAN_RANDOM_ARCH_H

#include <stdint.h>

#include "base/prng.h"
#include "model/model.h"

static uint64_t seed, stream;

static uint32_t pick(uint64_t *draw, uint32_t first, uint32_t last) {
    return first + (uint32_t)(shore__random_u64(seed, stream, (*draw)++) % (last - first + 1));
}

static struct shore__arch random_arch(uint64_t *draw) {
    uint32_t heads = 1u << pick(draw, 0, 3), head_dim = 16u << pick(draw, 0, 2);
    bool llama = pick(draw, 0, 1);
    return (struct shore__arch){
        .model_type = llama ? "llama" : "gpt2",
        .n_layer = pick(draw, 1, 12),
        .d_model = heads * head_dim,
        .n_head = heads,
        .n_kv_head = llama ? heads >> pick(draw, 0, heads > 1) : heads,
        .head_dim = head_dim,
        .d_ff = heads * head_dim * pick(draw, 1, 4),
        .vocab = pick(draw, 300, 40000),
        .max_positions = 2048,
        .norm = llama ? SHORE__RMS_NORM : SHORE__LAYER_NORM,
        .norm_eps = 1e-5f,
        .act = llama ? SHORE__SILU : SHORE__GELU_TANH,
        .gated = llama,
        .qkv_bias = !llama,
        .out_bias = !llama,
        .mlp_bias = !llama,
        .learned_positions = !llama,
        .rope = {{.theta = 10000, .factor = 1}},
        .tied = pick(draw, 0, 1),
        .init_std = 0.02f,
        .padding = -1,
        .bos = -1,
    };
}

#endif
