/* Keys of the rows of plans, with their names in messages and tables, so that a misspelt row does not compile, and
 * with the operations that read them, in the words of operations.c; 0: its code says. An index tells rows of one key
 * apart. Each has a class of memory, for people. */
#ifndef SHORE_PASS_ROW_KEYS_H
#define SHORE_PASS_ROW_KEYS_H

/* Classes of memory, with their names in tables and in JSON. */
#define SHORE__MEMORY_LIST(X)                                                                                   \
    X(PARAMETERS, "parameters")   /* pages that stay, buffers of those that come, what products read of them */ \
    X(BOUNDARIES, "boundaries")   /* inputs of layers */                                                        \
    X(ACTIVATIONS, "activations") /* what else forward leaves for backward */                                   \
    X(LOGITS, "logits")                                                                                         \
    X(GRADIENTS, "gradients")                                                                                   \
    X(OPTIMIZER, "optimizer") /* updates on the host, what compression keeps */                                 \
    X(WORKSPACE, "workspace") /* of operations */                                                               \
    X(DRIVES, "drives")       /* rings and tables */                                                            \
    X(PROCESS, "process")     /* libraries, stacks, the tokenizer: the reserve */                               \
    X(IDLE, "idle")           /* mapped, and of no tensor when the step needs most */

enum shore__memory_class {
#define SHORE__MEMORY_CLASS(KEY, NAME) SHORE__MEMORY_##KEY,
    SHORE__MEMORY_LIST(SHORE__MEMORY_CLASS)
#undef SHORE__MEMORY_CLASS
        SHORE__MEMORY_CLASSES
};

/* Keys, names, readers and classes of memory. */
#define SHORE__ROWS(ROW)                                                             \
    ROW(WORKSPACE, "workspace", LAYERS | HEAD | BETWEEN, WORKSPACE)                  \
    /* of a batch, or of a text that is continued */                                 \
    ROW(TOKENS, "tokens", EMBED | BACKWARD | LOOKUPS, WORKSPACE)                     \
    ROW(TARGETS, "targets", HEAD, WORKSPACE)                                         \
    ROW(X, "x", 0, WORKSPACE)                                                        \
    ROW(NORMED, "normed", HEAD, WORKSPACE)                                           \
    ROW(STATS, "stats", HEAD, WORKSPACE)                                             \
    ROW(MAX, "max", HEAD, WORKSPACE)                                                 \
    ROW(SUM, "sum", HEAD, WORKSPACE)                                                 \
    ROW(TARGET_LOGIT, "target logit", HEAD, WORKSPACE)                               \
    ROW(LOSS, "loss", HEAD, WORKSPACE)                                               \
    ROW(LOGITS, "logits", HEAD, LOGITS)                                              \
    ROW(INNER, "inner", LAYERS, WORKSPACE)                                           \
    ROW(ADAPTING, "adapter scratch", LAYERS, WORKSPACE)                              \
    ROW(ROTARY, "rotary", LAYERS, WORKSPACE)                                         \
    ROW(CACHE, "cache", 0, WORKSPACE)                                                \
    ROW(GENERATION, "generation", 0, WORKSPACE)                                      \
    ROW(SAMPLE, "sample", BETWEEN, WORKSPACE)                                        \
    /* of parameters */                                                              \
    ROW(PAGE, "page", 0, PARAMETERS)                                                 \
    ROW(LAYER_BUFFER, "layer buffer", LAYERS | BETWEEN, PARAMETERS)                  \
    ROW(SLICE_BUFFER, "slice buffer", EMBED | HEAD | BETWEEN, PARAMETERS)            \
    ROW(SIDE_BUFFER, "side buffer", EMBED | LAYERS | HEAD | BETWEEN, PARAMETERS)     \
    ROW(LAYER_THERE, "layer there", LAYERS | BETWEEN, PARAMETERS)                    \
    ROW(SLICE_THERE, "slice there", EMBED | HEAD | BETWEEN, PARAMETERS)              \
    ROW(SIDE_THERE, "side there", EMBED | LAYERS | HEAD | BETWEEN, PARAMETERS)       \
    ROW(TAIL_THERE, "tail there", EMBED | HEAD | BETWEEN, PARAMETERS)                \
    ROW(PREPARED_LAYER, "prepared layer", LAYERS | BETWEEN, PARAMETERS)              \
    ROW(PREPARED_SLICE, "prepared slice", EMBED | HEAD | BETWEEN, PARAMETERS)        \
    ROW(PREPARED_TAIL, "prepared tail", EMBED | HEAD | BETWEEN, PARAMETERS)          \
    ROW(PREPARED_SIDE, "prepared side", EMBED | LAYERS | HEAD | BETWEEN, PARAMETERS) \
    ROW(GATHERED, "gathered rows", EMBED, PARAMETERS)                                \
    ROW(GATHERED_BUFFER, "gathered row buffer", EMBED | BETWEEN, PARAMETERS)         \
    ROW(PREPARED_ROWS, "prepared rows", EMBED | BETWEEN, PARAMETERS)                 \
    ROW(LOOKUP, "lookup", EMBED | LOOKUPS, WORKSPACE)                                \
    ROW(LOOKUP_LISTS, "lookup lists", 0, WORKSPACE)                                  \
    /* of what forward leaves for backward */                                        \
    ROW(PASSING_BOUNDARY, "passing boundary", LAYERS, BOUNDARIES)                    \
    ROW(BOUNDARY, "boundary", 0, BOUNDARIES)                                         \
    ROW(INNER_KEPT, "inner kept", 0, ACTIVATIONS)                                    \
    ROW(INNER_PASSING, "inner passing", BACKWARD, ACTIVATIONS)                       \
    ROW(LOGITS_KEPT, "logits kept", HEAD, LOGITS)                                    \
    /* of backward */                                                                \
    ROW(DX, "dx", GRADIENTS, GRADIENTS)                                              \
    ROW(EXPERTS_LOAD, "experts' load", LAYERS | HEAD | BACKWARD, WORKSPACE)          \
    ROW(EXPERTS_BALANCE, "experts' balance", BACKWARD, WORKSPACE)                    \
    ROW(DX_FP32, "dx fp32", HEAD_BACKWARD, GRADIENTS)                                \
    ROW(DLOGITS, "dlogits", HEAD, LOGITS)                                            \
    ROW(BACKWARD_SCRATCH, "backward scratch", BACKWARD, WORKSPACE)                   \
    ROW(TABLE_GRADIENT, "table gradient", GRADIENTS, GRADIENTS)                      \
    ROW(TABLE_GRADIENT_BF16, "table gradient bf16", LOOKUPS, GRADIENTS)              \
    ROW(ROW_GRADIENT, "row gradient", LOOKUPS, GRADIENTS)                            \
    ROW(WHOLE_GRADIENT, "whole gradient", HEAD_BACKWARD | LOOKUPS, GRADIENTS)        \
    ROW(GRADIENT, "gradient", 0, GRADIENTS)                                          \
    ROW(PARTIAL_SUMS, "partial sums", GRADIENTS, GRADIENTS)                          \
    ROW(HOST_UPDATE, "host update", GRADIENTS, OPTIMIZER)                            \
    ROW(COMPRESSION, "compression", GRADIENTS, OPTIMIZER)                            \
    /* of a process, which have no place in a plan */                                \
    ROW(DRIVES, "drives", 0, DRIVES)                                                 \
    ROW(PROCESS, "process", 0, PROCESS)                                              \
    ROW(HOLES, "holes", 0, PROCESS)

enum shore__row {
#define SHORE__ROW(KEY, NAME, READ_BY, CLASS) SHORE__ROW_##KEY,
    SHORE__ROWS(SHORE__ROW)
#undef SHORE__ROW
};

static inline const char *shore__row_name(enum shore__row key) {
    static const char *const name[] = {
#define SHORE__ROW(KEY, NAME, READ_BY, CLASS) NAME,
        SHORE__ROWS(SHORE__ROW)
#undef SHORE__ROW
    };
    return name[key];
}

#endif
