/* Pieces of gradient: each is what one part of backward finishes at once. By number: layers, the tail of the head,
 * input slices, output slices if untied, and the tail of the embedding if that is trained and the table rests. */
#ifndef SHORE_PASS_PIECES_H
#define SHORE_PASS_PIECES_H

#include "pass/pages.h"

struct shore__piece {
    struct shore__page_id page; /* the first of its pages; it rests if the page's block does */
    uint32_t segment, count;    /* of this block; count 0: it rests, or comes with the last slice of its block */
};

uint32_t shore__pieces_count(const struct shore__model *m);
struct shore__piece shore__piece_at(const struct shore__model *m, uint32_t number);
/* block: of the embedding or the head. There is no number of the embedding's tail if it has none. */
uint32_t shore__piece_of_tail(const struct shore__model *m, uint32_t block);
uint32_t shore__piece_of_slice(const struct shore__model *m, uint32_t block, uint32_t slice);

#endif
