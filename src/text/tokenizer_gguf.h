/* Describes a tokenizer and its chat template in GGUF's metadata. */
#ifndef SHORE_TEXT_TOKENIZER_GGUF_H
#define SHORE_TEXT_TOKENIZER_GGUF_H

#include "files/gguf_write.h"
#include "text/tokenizer.h"

/* vocab: of the model, which may have more rows than there are tokens. ids: the model's begin and end of a text where
 * the tokenizer's files name none; -1: none. SHORE_EINPUT: llama.cpp has no such tokenizer, or none that is known here.
 */
int shore__tokenizer_gguf(const struct shore__tokenizer *t, uint32_t vocab, const int64_t ids[2], struct shore__gguf *g,
                          struct shore_diag *diag);

#endif
