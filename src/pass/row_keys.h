/* Keys of the rows of plans, with their names in messages and tables, so that a misspelt row does not compile, and
 * with the operations that read them, in the words of operations.c; 0: its code says. An index tells rows of one key
 * apart. */
#ifndef SHORE_PASS_ROW_KEYS_H
#define SHORE_PASS_ROW_KEYS_H

#define SHORE__ROWS(ROW)                                          \
    ROW(WORKSPACE, "workspace", LAYERS | HEAD | BETWEEN)          \
    /* of a batch, or of a text that is continued */              \
    ROW(TOKENS, "tokens", EMBED | BACKWARD | LOOKUPS)             \
    ROW(TARGETS, "targets", HEAD)                                 \
    ROW(X, "x", 0)                                                \
    ROW(NORMED, "normed", HEAD)                                   \
    ROW(STATS, "stats", HEAD)                                     \
    ROW(MAX, "max", HEAD)                                         \
    ROW(SUM, "sum", HEAD)                                         \
    ROW(TARGET_LOGIT, "target logit", HEAD)                       \
    ROW(LOSS, "loss", HEAD)                                       \
    ROW(LOGITS, "logits", HEAD)                                   \
    ROW(INNER, "inner", LAYERS)                                   \
    ROW(ROTARY, "rotary", LAYERS)                                 \
    ROW(CACHE, "cache", 0)                                        \
    ROW(GENERATION, "generation", 0)                              \
    ROW(SAMPLE, "sample", BETWEEN)                                \
    /* of parameters */                                           \
    ROW(PAGE, "page", 0)                                          \
    ROW(LAYER_BUFFER, "layer buffer", LAYERS | BETWEEN)           \
    ROW(SLICE_BUFFER, "slice buffer", EMBED | HEAD | BETWEEN)     \
    ROW(LAYER_THERE, "layer there", LAYERS | BETWEEN)             \
    ROW(SLICE_THERE, "slice there", EMBED | HEAD | BETWEEN)       \
    ROW(TAIL_THERE, "tail there", EMBED | HEAD | BETWEEN)         \
    ROW(PREPARED_LAYER, "prepared layer", LAYERS | BETWEEN)       \
    ROW(PREPARED_SLICE, "prepared slice", EMBED | HEAD | BETWEEN) \
    ROW(PREPARED_TAIL, "prepared tail", EMBED | HEAD | BETWEEN)   \
    /* of what forward leaves for backward */                     \
    ROW(PASSING_BOUNDARY, "passing boundary", LAYERS)             \
    ROW(BOUNDARY, "boundary", 0)                                  \
    ROW(INNER_KEPT, "inner kept", 0)                              \
    ROW(INNER_PASSING, "inner passing", BACKWARD)                 \
    ROW(LOGITS_KEPT, "logits kept", HEAD)                         \
    /* of backward */                                             \
    ROW(DX, "dx", GRADIENTS)                                      \
    ROW(DX_FP32, "dx fp32", HEAD)                                 \
    ROW(DLOGITS, "dlogits", HEAD)                                 \
    ROW(BACKWARD_SCRATCH, "backward scratch", BACKWARD)           \
    ROW(TABLE_GRADIENT, "table gradient", GRADIENTS)              \
    ROW(TABLE_GRADIENT_BF16, "table gradient bf16", LOOKUPS)      \
    ROW(WHOLE_GRADIENT, "whole gradient", HEAD | LOOKUPS)         \
    ROW(GRADIENT, "gradient", 0)                                  \
    ROW(PARTIAL_SUMS, "partial sums", GRADIENTS)                  \
    ROW(HOST_UPDATE, "host update", GRADIENTS)                    \
    ROW(COMPRESSION, "compression", GRADIENTS)                    \
    /* of a process, which have no place in a plan */             \
    ROW(DRIVES, "drives", 0)                                      \
    ROW(PROCESS, "process", 0)                                    \
    ROW(HOLES, "holes", 0)

enum shore__row {
#define SHORE__ROW(KEY, NAME, READ_BY) SHORE__ROW_##KEY,
    SHORE__ROWS(SHORE__ROW)
#undef SHORE__ROW
};

static inline const char *shore__row_name(enum shore__row key) {
    static const char *const name[] = {
#define SHORE__ROW(KEY, NAME, READ_BY) NAME,
        SHORE__ROWS(SHORE__ROW)
#undef SHORE__ROW
    };
    return name[key];
}

#endif
