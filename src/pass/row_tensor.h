/* Tensors of our models' programs: rows by key, with their names in messages. */
#ifndef SHORE_PASS_ROW_TENSOR_H
#define SHORE_PASS_ROW_TENSOR_H

#include "longshore/plan.h"
#include "pass/row_keys.h"

/* Groups of tensors that share buffers. */
enum {
    SHORE__GROUP_LAYERS = 1,
    SHORE__GROUP_SLICES,
    SHORE__GROUP_PIECES,
    SHORE__GROUP_INPUTS,
    SHORE__GROUP_INNER,
    SHORE__GROUP_ROWS,
    SHORE__GROUP_SIDES
};

/* A tensor that is always in memory, until its maker says otherwise. */
static inline struct shore_tensor shore__row_tensor(enum shore__row key, uint32_t index, enum shore_place place,
                                                    uint64_t bytes) {
    return (struct shore_tensor){.size = sizeof(struct shore_tensor),
                                 .name = shore__row_name(key),
                                 .key = key,
                                 .index = index,
                                 .place = place,
                                 .bytes = bytes};
}

/* The host's memory that its maker allocates. */
static inline struct shore_tensor shore__row_own(enum shore__row key, uint64_t bytes) {
    struct shore_tensor row = shore__row_tensor(key, 0, SHORE_PLACE_PLAIN, bytes);
    row.own = true;
    return row;
}

static inline uint32_t shore__row_add(struct shore_program *program, enum shore__row key, uint32_t index,
                                      enum shore_place place, uint64_t bytes) {
    struct shore_tensor row = shore__row_tensor(key, index, place, bytes);
    return shore_program_tensor(program, &row);
}

#endif
