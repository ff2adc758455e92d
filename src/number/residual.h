/* Codes a block of gradients: its largest elements, with error feedback. The residual holds what compression has left
 * out so far, in bf16.
 *
 * Arithmetic is fp32, round to nearest even, with denormals, so that every processor gives the same bits. Threading:
 * any. */
#ifndef SHORE_NUMBER_RESIDUAL_H
#define SHORE_NUMBER_RESIDUAL_H

#include <stddef.h>
#include <stdint.h>

#include "number/sparse.h"
#include "number/topk.h"

/* x += base, and next = bf16 of the sum: the residual if nothing is sent. base and next may be the same. */
void shore__residual_add(float *x, uint16_t *next, const uint16_t *base, size_t elems);

/* Subtracts sent values from a segment's residual: next = bf16 of (sum - value sent) for each entry of the list. */
void shore__residual_sent(uint16_t *next, const struct shore__topk_list *sent, enum shore_sparse_values values);

#endif
