/* The coding of a block of gradients: its largest elements, and error feedback, what compression has left out of the
 * gradients so far, in bf16.
 *
 * Arithmetic is fp32, round to nearest even, denormals kept, so that every processor gives the same bits. Threading:
 * any.
 */
#ifndef SHORE_NUMBER_RESIDUAL_H
#define SHORE_NUMBER_RESIDUAL_H

#include <stddef.h>
#include <stdint.h>

#include "number/sparse.h"
#include "number/topk.h"

/* x += base, and next = bf16 of the sum: the residual if nothing of it is sent. base and next may be the same. */
void shore__residual_add(float *x, uint16_t *next, const uint16_t *base, size_t elems);

/* Takes what is sent out of a segment's residual: next = bf16 of (sum - value sent) for each entry of the list. */
void shore__residual_sent(uint16_t *next, const struct shore__topk_list *sent, enum shore_sparse_values values);

/* What shore_sparse_encode_feedback() does, with a selection that is there; sent: sums of squares of what is sent, one
 * a segment; residual and sent may be NULL. Errors: -ENOSPC and -E2BIG, as of that one. */
int shore__residual_encode(struct shore__topk *select, enum shore_sparse_values values, uint32_t segments,
                           const float *sums, uint64_t k, void *codes, uint64_t *bytes, uint32_t *offsets,
                           uint16_t *residual, double *sent);

#endif
