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

/* The parts of the items that lie in [first, first + elems), in a row of bytes as they travel: their number, a head of
 * 16 bytes each, then their elements. */
uint64_t shore__gather_packed_bytes(const struct shore__gather_list *list, uint64_t first, uint64_t elems);
void shore__gather_pack(const struct shore__gather_list *list, uint64_t first, uint64_t elems, unsigned char *out);
/* The items of such bytes, which they point into: aligned to 8, and not trusted. items: room for their number, which
 * shore__gather_packed_count() says (bytes / 16 at most). Returns false if the bytes are damaged. */
uint32_t shore__gather_packed_count(const unsigned char *in, uint64_t bytes);
bool shore__gather_unpack(const unsigned char *in, uint64_t bytes, struct shore_gather *items);

/* The elements from `first` on in place, if they are fp32; otherwise NULL. *elems: wanted, lowered to the number that
 * lie there in a row. */
const float *shore__gather_view(const struct shore__gather_list *list, uint64_t first, uint64_t *elems);

#endif
