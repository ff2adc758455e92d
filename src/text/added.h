/* Added tokens: texts that are found as they stand before anything else looks at the text.
 */
#ifndef SHORE_TEXT_ADDED_H
#define SHORE_TEXT_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text/tokenizer.h"

struct shore__added {
    char *content; /* what is looked for: in the text, or in the normalized text */
    size_t bytes;
    uint32_t id;
    uint32_t next; /* after ready: the first that is shorter, or begins otherwise */
    bool special, lstrip, rstrip, single_word;
};

/* A set that is searched: the longest token at the leftmost place. */
struct shore__added_set {
    struct shore__added *tokens; /* after ready: sorted by first byte, then the longest first, then by content */
    uint32_t count;
    uint32_t first[257]; /* of each first byte */
    size_t longest;
    bool any_lstrip;
};
int shore__added_set_add(struct shore__added_set *set, const struct shore__added *token); /* takes the content */
void shore__added_set_ready(struct shore__added_set *set);
void shore__added_set_fini(struct shore__added_set *set);

/* Divides a stream of text at the tokens of a set. */
struct shore__splitter {
    const struct shore__added_set *set;
    bool special;            /* special tokens are found too */
    struct shore__text text; /* still to be searched */
    size_t passed;           /* of it has gone with a token */
    bool after_word;         /* what was searched ends in a word character */
    /* the pretokens between tokens, in parts; the end of a pretoken that had any; a token */
    int (*on_text)(void *ctx, const char *text, size_t bytes);
    int (*on_end)(void *ctx);
    int (*on_token)(void *ctx, uint32_t id);
    void *ctx;
    bool in_pretoken;
    size_t patience; /* text that is there before it is searched again */
};
int shore__splitter_feed(struct shore__splitter *s, const char *text, size_t bytes);
int shore__splitter_end(struct shore__splitter *s);

#endif
