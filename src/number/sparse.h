/* Code of a segment's selected gradients; longshore/sparse.h defines its bytes. */
#ifndef SHORE_NUMBER_SPARSE_H
#define SHORE_NUMBER_SPARSE_H

#include <stddef.h>
#include <stdint.h>

#include "longshore/sparse.h"

enum shore__sparse_indices { SHORE__SPARSE_GAPS, SHORE__SPARSE_WORDS, SHORE__SPARSE_BITMAP };

#define SHORE__SPARSE_SEGMENT 65536u
#define SHORE__SPARSE_HEADER_BYTES 8u

/* Bytes of the code of these entries. index is strictly ascending. */
size_t shore__sparse_bytes(enum shore_sparse_values values, const uint16_t *index, uint32_t count);

/* Writes the code and returns its bytes. bits: those of the fp32 values, rounded to nearest even for bf16 values. */
size_t shore__sparse_encode(enum shore_sparse_values values, const uint16_t *index, const uint32_t *bits,
                            uint32_t count, void *code);

/* The value that an entry's code stands for. */
uint32_t shore__sparse_value(enum shore_sparse_values values, uint32_t bits);

/* Reads a code in ascending order of elements. */
struct shore__sparse_reader {
    const unsigned char *index, *value;
    enum shore__sparse_indices indices;
    enum shore_sparse_values values;
    uint32_t left;     /* entries */
    uint32_t position; /* the first element at which the next entry can be (gaps, bitmap) */
};

/* Checks a code of any origin completely (sizes, order, range, count), and opens it. Returns 0, or SHORE_ECORRUPT. */
int shore__sparse_open(const void *code, size_t bytes, struct shore__sparse_reader *out);

/* Writes the entries of elements [first, end) to dense[element - first], as fp32; does not clear dense. Calls ascend:
 * first is the previous call's end, initially 0. */
void shore__sparse_scatter(struct shore__sparse_reader *r, uint32_t first, uint32_t end, float *dense);

#endif
