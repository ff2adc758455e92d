/* Which tokens of a text lie in spans of it. Inside of text/. */
#ifndef SHORE_TEXT_TOKEN_SPANS_H
#define SHORE_TEXT_TOKEN_SPANS_H

#include <stdbool.h>

#include "text/chat.h"

/* Sets counts[i] for each of the ids of a text: whether it shares a byte with a span, as in transformers' mask. Spans
 * are in order and apart. SHORE_EINPUT: the tokenizer changes the text, so that its tokens cannot be found in it. */
int shore__token_spans(const struct shore__tokenizer *t, const struct shore__chat_text *text,
                       const struct shore__ids *ids, bool *counts, struct shore_diag *diag);

#endif
