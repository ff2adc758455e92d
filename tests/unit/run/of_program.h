/* A run of another program, as its header lets one be made: an odd list of tensors, of ranks 0 to 4, several dtypes,
 * one with another name, one that is frozen, two that reach over segments. */
#ifndef SHORE_TESTS_RUN_OF_PROGRAM_H
#define SHORE_TESTS_RUN_OF_PROGRAM_H

#include "longshore/run.h"
#include "unit/run/support.h"

enum { TENSORS = 7, BLOCKS = 3, GROUP_TRAINED = 0, GROUP_FROZEN = 1, GROUPS = 2 };

static const struct shore_tensor_spec stem[] = {{"conv1.weight", 8 * 3 * 3 * 3, GROUP_TRAINED},
                                                {"conv1.bias", 8, GROUP_TRAINED}};
static const struct shore_tensor_spec body[] = {{"conv.weight", 5 * 7 * 11, GROUP_TRAINED},
                                                {"embed.weight", 300 * 257, GROUP_TRAINED},
                                                {"embed.frozen", 33 * 3, GROUP_FROZEN}};
static const struct shore_tensor_spec head[] = {{"temperature", 1, GROUP_TRAINED},
                                                {"out.weight", 70000, GROUP_TRAINED}};
static const struct shore_block_spec block_specs[BLOCKS] = {{"stem", stem, 2}, {"body.0", body, 3}, {"rest", head, 2}};

static const char *const other_names[] = {"lm_head.weight", "decoder.\xC3\xA9.weight"};
static const struct shore_shape shapes_of_program[TENSORS] = {
    {.name = "conv1.weight", .rank = 4, .dims = {8, 3, 3, 3}, .dtype = SHORE_DTYPE_BF16},
    {.name = "conv1.bias", .rank = 1, .dims = {8}, .dtype = SHORE_DTYPE_FP32},
    {.name = "conv.weight", .rank = 3, .dims = {5, 7, 11}, .dtype = SHORE_DTYPE_FP16},
    {.name = "embed.weight", .rank = 2, .dims = {300, 257}, .dtype = SHORE_DTYPE_BF16, .ntied = 2, .tied = other_names},
    {.name = "embed.frozen", .rank = 2, .dims = {33, 3}, .dtype = SHORE_DTYPE_FP32},
    {.name = "temperature", .dtype = SHORE_DTYPE_FP32},
    {.name = "out.weight", .rank = 1, .dims = {70000}, .dtype = SHORE_DTYPE_BF16},
};
static const char program_text[] = "{\"name\": \"a program\", \"lr\": 0.1, \"versions\": {\"torch\": \"2.15\"}}";

static inline struct shore_layout *layout_of_program(void) {
    struct shore_layout *layout = NULL;
    assert_int_equal(shore_layout_make(block_specs, BLOCKS, &layout), 0);
    return layout;
}

/* Of an element of a tensor at the beginning: bf16 and fp16 hold it exactly. */
static inline float first_value(uint32_t block, uint64_t offset) {
    return ((float)(offset % 251) - 125) / 128 + (float)block;
}

static inline void fill_block(const struct shore_layout_block *b, uint32_t block, float *out) {
    memset(out, 0, b->padded_elems * sizeof *out);
    for (uint32_t t = 0; t < b->ntensors; t++)
        for (uint64_t i = 0; i < b->tensors[t].elems; i++)
            out[b->tensors[t].offset_elems + i] = first_value(block, b->tensors[t].offset_elems + i);
}

static const char *const two_drives[] = {"drive0", "drive1"};

static inline struct shore_fleet_options fleet_of_program(const char *const *drives, uint32_t ndrives) {
    return (struct shore_fleet_options){
        .size = sizeof(struct shore_fleet_options), .drives = drives, .ndrives = ndrives, .io = SHORE_IO_THREADS};
}

/* Made and filled, not sealed. */
static inline int begin_run(const char *path, const struct shore_fleet_options *options, struct shore_run **out,
                            struct shore_diag *diag) {
    struct shore_layout *layout = layout_of_program();
    const struct shore_run_making how = {.size = sizeof how, .fleet = options, .program = program_text};
    int rc = shore_run_create(path, layout, shapes_of_program, TENSORS, &how, out, diag);
    for (uint32_t b = 0; rc == 0 && b < BLOCKS; b++) {
        const struct shore_layout_block *block = &layout->blocks[b];
        float *values = aligned_alloc(SHORE_BUFFER_ALIGN_BYTES, block->padded_elems * sizeof *values);
        assert_non_null(values);
        fill_block(block, b, values);
        rc = shore_fleet_init_block(shore_run_fleet(*out), b, 0, block->segments, values, NULL, NULL, diag);
        free(values);
    }
    shore_layout_free(layout);
    return rc;
}

static inline uint64_t step_of(const struct shore_run *run) {
    struct shore_fleet_info info = {.size = sizeof info};
    assert_int_equal(shore_fleet_info(shore_run_fleet(run), &info), 0);
    return info.step;
}

/* Updates all of a run with gradients that are 1. */
static inline int update_run(struct shore_run *run, struct shore_diag *diag) {
    struct shore_fleet *fleet = shore_run_fleet(run);
    const uint64_t base = step_of(run);
    struct shore_hyper groups[GROUPS] = {{.lr = 0.125f, .beta1 = 0.5f, .beta2 = 0.5f, .eps = 1e-8f}, {.frozen = 1}};
    int rc = 0;
    shore_hyper_at_step(&groups[GROUP_TRAINED], SHORE_ADAMW, base + 1);
    for (uint32_t b = 0; rc == 0 && b < BLOCKS; b++) {
        const struct shore_layout_block *block = &shore_run_layout(run)->blocks[b];
        float *gradient = aligned_alloc(SHORE_BUFFER_ALIGN_BYTES, block->padded_elems * sizeof *gradient);
        struct shore_wait wait;
        assert_non_null(gradient);
        memset(gradient, 0, block->padded_elems * sizeof *gradient);
        for (uint32_t t = 0; t < block->ntensors; t++)
            for (uint64_t i = 0; i < block->tensors[t].elems; i++)
                gradient[block->tensors[t].offset_elems + i] = 1;
        const struct shore_update update = {.size = sizeof update,
                                            .base_step = base,
                                            .attempt = shore_fleet_attempt(fleet),
                                            .block = b,
                                            .count = block->segments,
                                            .gradient = gradient,
                                            .groups = groups,
                                            .ngroups = GROUPS,
                                            .coefficient = 1};
        shore_wait_init(&wait);
        rc = shore_fleet_update(fleet, &update, shore_wait_completion(&wait));
        if (rc == 0) rc = shore_wait(&wait, diag);
        free(gradient);
    }
    return rc;
}

#endif
