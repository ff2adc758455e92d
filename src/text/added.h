/* Added tokens: texts that are found as written, before the rest of the tokenizer sees the text. */
#ifndef SHORE_TEXT_ADDED_H
#define SHORE_TEXT_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text/tokenizer.h"

struct shore__added {
    char *content; /* the text to find, in the raw or the normalized text */
    size_t bytes;
    uint32_t id;
    uint32_t next; /* after ready: the first token that is shorter or starts differently */
    bool special, lstrip, rstrip, single_word;
};

/* A set of tokens to search for: it finds the longest token at the leftmost place. */
struct shore__added_set {
    struct shore__added *tokens; /* after ready: sorted by first byte, then longest first, then by content */
    uint32_t count;
    uint32_t first[257];              /* index of the first token with each first byte */
    const struct shore__added *empty; /* that a normalizer left empty: it is found between all characters; or NULL */
    size_t longest;
    bool any_lstrip;
};
int shore__added_set_add(struct shore__added_set *set, const struct shore__added *token); /* takes over the content */
void shore__added_set_ready(struct shore__added_set *set);
void shore__added_set_fini(struct shore__added_set *set);

/* Splits a stream of text at the tokens of a set. */
struct shore__splitter {
    const struct shore__added_set *set;
    bool special;            /* also finds special tokens */
    struct shore__text text; /* not yet searched */
    size_t passed;           /* bytes of it that went with a token */
    bool after_word;         /* the searched text ends in a word character */
    size_t found;            /* 1 + where in it the last token that was found ends; 0: before it */
    /* text between tokens, in parts; the end of such a text; a token */
    int (*on_text)(void *ctx, const char *text, size_t bytes);
    int (*on_end)(void *ctx);
    int (*on_token)(void *ctx, uint32_t id);
    void *ctx;
    bool in_pretoken;
    size_t patience; /* bytes that must be there before text is searched again */
};
int shore__splitter_feed(struct shore__splitter *s, const char *text, size_t bytes);
int shore__splitter_end(struct shore__splitter *s);

#endif
