/* What the parts of the tokenizer share. */
#ifndef SHORE_TEXT_TOKENIZER_IMPL_H
#define SHORE_TEXT_TOKENIZER_IMPL_H

#include "text/tokenizer.h"

struct shore__bpe;

struct shore__tokenizer {
    struct shore__bpe *bpe; /* NULL: the byte-level tokenizer */
    uint32_t vocab;
    int64_t end_of_text;
    char name[64];
    char *directory; /* where its files are; NULL for the built-in byte-level one */
};

#define SHORE__BYTES_END_OF_TEXT 256u

#endif
