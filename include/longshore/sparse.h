/* Codes of sparse gradients: the elements of a segment that are sent, and their values; all others are 0. An update in
 * form SHORE_GRADIENT_SPARSE takes one code for each of its segments, one after the other, and the offset of each.
 *
 *     byte 0       form of the indices (low 4 bits) and of the values (high 4 bits: enum shore_sparse_values)
 *     byte 1       0
 *     bytes 2-3    bytes of the indices
 *     bytes 4-7    count, at most 65,536
 *     then         the indices, then the values (bf16 or fp32), in order of the elements
 *
 * Numbers are little-endian. Indices are stored in the smallest of three forms (the first of equals):
 *
 *     0, gaps      one byte each: elements passed over since the last one, 255 for "255 passed over, go on"
 *     1, words     16 bits each, growing
 *     2, bitmap    8,192 bytes: bit i % 8 of byte i / 8 for element i; at least as many as count, none beyond
 *
 * At 1 % of random positions, gaps take 1.09 bytes an entry: with bf16 values 3.1 in all.
 *
 * Elements are counted from the first one of the run of segments, in canonical order.
 */
#ifndef LONGSHORE_SPARSE_H
#define LONGSHORE_SPARSE_H

#include <stdint.h>

#include "longshore/error.h"
#include "longshore/layout.h"
#include "longshore/state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How values are stored. BF16: fp32 rounded to nearest, ties to even. */
enum shore_sparse_values { SHORE_SPARSE_BF16, SHORE_SPARSE_FP32 };

/* Parses a share of the gradients as people write it, "top1%", "1%" or "0.01", or "none" for 0, as `longshore train
 * --compress` takes it: above 0, up to 1. Threading: any. Errors: -EINVAL (anything else). */
int shore_sparse_share(const char *text, double *share);

/* Number of elements in a share: rounded up, at least 1. The share counts with nine decimal places, so 0.01 of 100 is
 * 1. Threading: any. */
uint64_t shore_sparse_count(double share, uint64_t elems);

/* The most bytes that the codes of a run of segments take together, however its count entries are spread. Threading:
 * any. */
uint64_t shore_sparse_bound(enum shore_sparse_values values, uint64_t count, uint32_t segments);

/* What it takes to send a share of a block's gradients. */
struct shore_sparse_size {
    uint64_t count;      /* elements that are sent at most: the share of its tensors' elements, without the gaps */
    uint64_t code_bytes; /* of their codes at most */
    uint64_t work_bytes; /* memory that shore_sparse_encode_feedback() works in */
};
/* threads: the most that will select; 0: as many as the process may use. Threading: any. Errors: SHORE_EUSAGE (the
 * codes would take more than 32-bit offsets reach; the message names the block). */
int shore_sparse_size_of(enum shore_sparse_values values, double share, const struct shore_layout_block *block,
                         int threads, struct shore_sparse_size *out, struct shore_diag *diag);

/* Encodes entries of a run of segments: index grows strictly; a value may be 0. Units: *bytes: room in codes, then the
 * size of the codes; offsets: segments + 1, in bytes, from 0, as struct shore_update takes them. Ownership: all
 * borrowed during the call. Threading: any. Errors: -EINVAL (index does not grow, or leaves the run), -ENOSPC (*bytes
 * is the size needed; codes and offsets mean nothing), -E2BIG (more than 32-bit offsets reach), -ENOMEM. */
int shore_sparse_encode(enum shore_sparse_values values, uint32_t segments, const uint64_t *index, const float *value,
                        uint64_t count, void *codes, uint64_t *bytes, uint32_t *offsets);

/* Encodes the k elements of largest magnitude of a run's gradient (segments * SHORE_SEGMENT_ELEMS elements, gaps zero).
 * Among equals it takes the first ones; it never takes a 0; NaN counts as the largest. The choice depends on the values
 * and k alone. Units, Ownership, Errors: as shore_sparse_encode(). Threading: any; computes with OpenMP's threads. */
int shore_sparse_encode_largest(enum shore_sparse_values values, uint32_t segments, const float *gradient, uint64_t k,
                                void *codes, uint64_t *bytes, uint32_t *offsets);

/* Error feedback: the residual that compression has left out of the gradients so far, in bf16, is added to the next
 * ones. This is the first half. For elements of the run that the gather list covers, `sums` becomes gradient +
 * residual, and residual becomes the bf16 of that sum, as if nothing of it will be sent. All other sums become 0, so
 * they are not sent; their residual stays as it is. Units: both have segments * SHORE_SEGMENT_ELEMS elements, and the
 * items' offset_elems count from their start; residual is as SHORE_FETCH_R gives it. The list must be valid (struct
 * shore_gather): it is not checked. Ownership: all borrowed during the call. Threading: any; computes with OpenMP's
 * threads. */
void shore_sparse_add_residual(uint32_t segments, const struct shore_gather *gather, uint32_t ngather, float *sums,
                               uint16_t *residual);

/* The second half: encodes the k largest of sums, as shore_sparse_encode_largest() does. Their residual becomes the
 * bf16 of the sum minus the value as it is stored, for struct shore_update; NULL: there is none. work: memory, aligned
 * to 64 bytes, of shore_sparse_size_of() at this k or a larger one; NULL: from the system. energy, sent: by segment,
 * the sums of squares of its sums, and of those of them that are sent; or NULL. Units, Ownership, Threading: as of
 * these two functions. Errors: as shore_sparse_encode_largest(), -EINVAL (too little work); with any of them, residual
 * stays as it was. */
int shore_sparse_encode_feedback(enum shore_sparse_values values, uint32_t segments, const float *sums, uint64_t k,
                                 void *codes, uint64_t *bytes, uint32_t *offsets, uint16_t *residual, void *work,
                                 uint64_t work_bytes, double *energy, double *sent);

/* Decodes the codes of a run into segments * SHORE_SEGMENT_ELEMS elements, as UPDATE sees them. So a program can keep
 * the rest for the next step. Threading: any. Errors: SHORE_ECORRUPT (gradient then means nothing). */
int shore_sparse_decode(const void *codes, const uint32_t *offsets, uint32_t segments, float *gradient);

#ifdef __cplusplus
}
#endif

#endif
