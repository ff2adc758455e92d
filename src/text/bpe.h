/* Byte-pair encoding of one pretoken. Other files divide a text into pretokens. */
#ifndef SHORE_TEXT_BPE_H
#define SHORE_TEXT_BPE_H

#include <stdbool.h>

#include "text/tokenizer.h"
#include "text/vocab.h"

#define SHORE__BPE_CACHE_SLOTS 8192u
#define SHORE__BPE_CACHED_BYTES 23u
#define SHORE__BPE_CACHED_IDS 10u

struct shore__merge {
    uint32_t left, right, rank, result; /* result SHORE__VOCAB_NONE: an empty slot */
};
/* A hash table of merges, by pair. */
struct shore__merges {
    struct shore__merge *slots;
    uint32_t nslots, count;
};

struct shore__bpe {
    struct shore__vocab vocab; /* a byte-level model's in byte characters, as in its files */
    struct shore__merges merges;
    bool byte_level, byte_fallback, fuse_unknown, ignore_merges;
    uint32_t unknown;       /* or SHORE__VOCAB_NONE */
    uint32_t byte_ids[256]; /* of each byte's character, or of its fallback token <0xXX> */
    uint16_t byte_chars[256];
    int16_t char_bytes[324]; /* the inverse; -1: the character stands for no byte */
    /* Pairs of characters that are adjacent in some token. cut_anywhere_else: between any other two characters, a text
     * splits into parts that encode independently. */
    struct shore__merges pairs;
    bool cut_anywhere_else, cut_needs_known;
    size_t longest_merge; /* characters of the longest merge result; SIZE_MAX: some merge adds nothing to its symbols */
    size_t longest_token; /* bytes */
    struct shore__text mapped; /* while merges are added */
};

/* Working memory of encoding, separate from the model so that one model serves many encoders. Zeroed before its first
 * use. */
struct shore__bpe_work {
    struct shore__bpe_cached {
        uint8_t bytes, nids;
        char text[SHORE__BPE_CACHED_BYTES - 1];
        uint32_t ids[SHORE__BPE_CACHED_IDS];
    } * cache;
    void *merging; /* for long pretokens; reused */
    size_t merging_bytes;
    struct shore__text mapped;
    struct shore__ids symbols; /* of a pretoken in parts: symbols whose tokens later text may change */
    bool waiting;              /* an unknown token may still swallow the next one */
    size_t window, margin;
};
void shore__bpe_work_fini(struct shore__bpe_work *w);

/* Adds a merge of two tokens of the vocabulary, in order of priority. A repeated pair moves to the later place, as in
 * the `tokenizers` library. SHORE_EINPUT: a token, or the result, is not in the vocabulary. */
int shore__bpe_add_merge(struct shore__bpe *b, const char *left, size_t left_bytes, const char *right,
                         size_t right_bytes);
/* Call it after the vocabulary, the merges and the flags are set. */
int shore__bpe_ready(struct shore__bpe *b);
void shore__bpe_fini(struct shore__bpe *b);

/* Appends the ids of a pretoken of valid UTF-8. Returns 0, -ENOMEM, or SHORE_EINPUT: the pretoken is too long for this
 * model. */
int shore__bpe_encode(const struct shore__bpe *b, struct shore__bpe_work *w, const char *pretoken, size_t bytes,
                      struct shore__ids *out);
/* Encodes a pretoken that comes in parts of whole characters, in bounded memory. It must be longer than any token of
 * the vocabulary. */
int shore__bpe_feed(const struct shore__bpe *b, struct shore__bpe_work *w, const char *part, size_t bytes,
                    struct shore__ids *out);
int shore__bpe_end(const struct shore__bpe *b, struct shore__bpe_work *w, struct shore__ids *out);
/* Whether text may be cut between two adjacent characters, given by their places in valid UTF-8. */
bool shore__bpe_may_cut(const struct shore__bpe *b, const char *left, const char *right);
/* Appends the bytes of a token, given its text. */
int shore__bpe_decode(const struct shore__bpe *b, const char *text, size_t n, struct shore__text *out);

/* The merge of a pair, or an empty slot. */
static inline struct shore__merge *shore__merges_at(const struct shore__merges *m, uint32_t left, uint32_t right) {
    uint64_t mixed = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
    uint32_t mask = m->nslots - 1, at = (uint32_t)(mixed >> 32) & mask;
    while (m->slots[at].result != SHORE__VOCAB_NONE && (m->slots[at].left != left || m->slots[at].right != right))
        at = (at + 1) & mask;
    return &m->slots[at];
}

#endif
