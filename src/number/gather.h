/* Gradients that stay in their tensors, read as parts of their block. */
#ifndef SHORE_NUMBER_GATHER_H
#define SHORE_NUMBER_GATHER_H

#include "longshore/state.h"

struct shore__gather_list {
    const struct shore_gather *item;
    uint32_t count;
};

/* Checks a list against the rules of shore_gather: NULL, or what is wrong with it. */
const char *shore__gather_fault(const struct shore__gather_list *list, const struct shore_layout_block *block);

/* Index of the first item that ends behind an element. */
uint32_t shore__gather_first(const struct shore__gather_list *list, uint64_t elem);

/* Writes elements [first, first + elems) of the block as fp32; 0 where no item covers them. Threading: any. */
void shore__gather_fill(const struct shore__gather_list *list, uint64_t first, uint64_t elems, float *to);
/* The same as bf16: fp32 and fp16 are rounded to nearest even. */
void shore__gather_fill_bf16(const struct shore__gather_list *list, uint64_t first, uint64_t elems, uint16_t *to);

/* The elements from `first` on in place, if they are fp32; otherwise NULL. *elems: wanted, lowered to the number that
 * lie there in a row. */
const float *shore__gather_view(const struct shore__gather_list *list, uint64_t first, uint64_t *elems);

#endif
