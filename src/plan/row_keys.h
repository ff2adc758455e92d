/* Keys of the rows of plans, with their names in messages and tables, so that a misspelt row does not compile. An index
 * tells rows of one key apart. */
#ifndef SHORE_PLAN_ROW_KEYS_H
#define SHORE_PLAN_ROW_KEYS_H

#define SHORE__ROWS(ROW)                              \
    ROW(WORKSPACE, "workspace")                       \
    /* of a batch, or of a text that is continued */  \
    ROW(TOKENS, "tokens")                             \
    ROW(TARGETS, "targets")                           \
    ROW(X, "x")                                       \
    ROW(NORMED, "normed")                             \
    ROW(STATS, "stats")                               \
    ROW(MAX, "max")                                   \
    ROW(SUM, "sum")                                   \
    ROW(TARGET_LOGIT, "target logit")                 \
    ROW(LOSS, "loss")                                 \
    ROW(LOGITS, "logits")                             \
    ROW(INNER, "inner")                               \
    ROW(ROTARY, "rotary")                             \
    ROW(CACHE, "cache")                               \
    ROW(GENERATION, "generation")                     \
    ROW(SAMPLE, "sample")                             \
    /* of parameters */                               \
    ROW(PAGE, "page")                                 \
    ROW(LAYER_BUFFER, "layer buffer")                 \
    ROW(SLICE_BUFFER, "slice buffer")                 \
    ROW(LAYER_THERE, "layer there")                   \
    ROW(SLICE_THERE, "slice there")                   \
    ROW(TAIL_THERE, "tail there")                     \
    ROW(PREPARED_LAYER, "prepared layer")             \
    ROW(PREPARED_SLICE, "prepared slice")             \
    ROW(PREPARED_TAIL, "prepared tail")               \
    /* of what forward leaves for backward */         \
    ROW(PASSING_BOUNDARY, "passing boundary")         \
    ROW(BOUNDARY, "boundary")                         \
    ROW(INNER_KEPT, "inner kept")                     \
    ROW(INNER_PASSING, "inner passing")               \
    ROW(LOGITS_KEPT, "logits kept")                   \
    /* of backward */                                 \
    ROW(DX, "dx")                                     \
    ROW(DX_FP32, "dx fp32")                           \
    ROW(DLOGITS, "dlogits")                           \
    ROW(BACKWARD_SCRATCH, "backward scratch")         \
    ROW(TABLE_GRADIENT, "table gradient")             \
    ROW(TABLE_GRADIENT_BF16, "table gradient bf16")   \
    ROW(WHOLE_GRADIENT, "whole gradient")             \
    ROW(GRADIENT, "gradient")                         \
    ROW(PARTIAL_SUMS, "partial sums")                 \
    ROW(HOST_UPDATE, "host update")                   \
    ROW(COMPRESSION, "compression")                   \
    /* of a process, which have no place in a plan */ \
    ROW(DRIVES, "drives")                             \
    ROW(PROCESS, "process")                           \
    ROW(HOLES, "holes")

enum shore__row {
#define SHORE__ROW(KEY, NAME) SHORE__ROW_##KEY,
    SHORE__ROWS(SHORE__ROW)
#undef SHORE__ROW
};

const char *shore__row_name(enum shore__row key);

#endif
