/* The code of one segment's selected gradients: which elements, and their values. What is missing is 0.
 *
 *     byte 0       form of the indices (low 4 bits) and of the values (high 4 bits)
 *     byte 1       0
 *     bytes 2-3    bytes of the indices
 *     bytes 4-7    count, at most 65,536
 *     then         the indices, then the values (bf16 or fp32), in order of the elements
 *
 * Numbers are little-endian. Indices are stored in the smallest of three forms (the first of equals):
 *
 *     gaps         one byte each: elements passed over since the last one, 255 for "255 passed over, go on"
 *     words        16 bits each, growing
 *     bitmap       8,192 bytes: bit i % 8 of byte i / 8 for element i; at least as many as count, none beyond
 *
 * At 1 % of random positions, gaps take 1.09 bytes an entry: with bf16 values 3.1 in all.
 */
#ifndef SHORE_NUMBER_SPARSE_H
#define SHORE_NUMBER_SPARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum shore__sparse_values { SHORE__SPARSE_BF16, SHORE__SPARSE_FP32 };
enum shore__sparse_indices { SHORE__SPARSE_GAPS, SHORE__SPARSE_WORDS, SHORE__SPARSE_BITMAP };

#define SHORE__SPARSE_SEGMENT 65536u
#define SHORE__SPARSE_HEADER_BYTES 8u

/* Most bytes that the codes of a block take together: `count` entries, however they are spread over the segments. */
uint64_t shore__sparse_bound(enum shore__sparse_values values, uint64_t count, uint32_t segments);

/* Bytes of the code of these entries: index grows strictly. */
size_t shore__sparse_bytes(enum shore__sparse_values values, const uint16_t *index, uint32_t count);

/* Writes it; bits are those of the fp32 values, rounded to nearest even where values are bf16. Returns the bytes. */
size_t shore__sparse_encode(enum shore__sparse_values values, const uint16_t *index, const uint32_t *bits,
                            uint32_t count, void *code);

/* The value that the code of an entry stands for. */
uint32_t shore__sparse_value(enum shore__sparse_values values, uint32_t bits);

/* Reads a code in growing order of elements. */
struct shore__sparse_reader {
    const unsigned char *index, *index_end, *value;
    enum shore__sparse_indices indices;
    enum shore__sparse_values values;
    uint32_t left;     /* entries */
    uint32_t position; /* element that the next entry can be at first (gaps, bitmap) */
};

/* Checks a code of any origin, whole: sizes, order, range, count. Then opens it. Returns 0, or SHORE_ECORRUPT. */
int shore__sparse_open(const void *code, size_t bytes, struct shore__sparse_reader *out);

/* Writes the entries of elements [first, end) to dense[element - first], as fp32; dense is not cleared. Calls go up:
 * first is the last call's end, from 0. */
void shore__sparse_scatter(struct shore__sparse_reader *r, uint32_t first, uint32_t end, float *dense);

#endif
