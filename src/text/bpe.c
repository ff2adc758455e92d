#include "text/bpe.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "text/bytechars.h"
#include "text/utf8.h"
#include "text/vector.h"

#define NONE SHORE__VOCAB_NONE

static int grow_merges(struct shore__bpe *b) {
    struct shore__merge *old = b->merges;
    uint32_t nold = b->nmerge_slots, n = nold ? nold * 2 : 1024;
    struct shore__merge *merges = malloc(n * sizeof *merges);
    if (!merges) return -ENOMEM;
    memset(merges, 0xFF, n * sizeof *merges);
    b->merges = merges;
    b->nmerge_slots = n;
    for (uint32_t i = 0; i < nold; i++)
        if (old[i].result != NONE) *shore__bpe_merge_slot(b, old[i].left, old[i].right) = old[i];
    free(old);
    return 0;
}

int shore__bpe_add_merge(struct shore__bpe *b, const char *left, size_t left_bytes, const char *right,
                         size_t right_bytes) {
    uint32_t l = shore__vocab_find(&b->vocab, left, left_bytes), r = shore__vocab_find(&b->vocab, right, right_bytes);
    if (l == NONE || r == NONE) return SHORE_EINPUT;
    b->mapped.count = 0;
    if (shore__text_append(&b->mapped, left, left_bytes) || shore__text_append(&b->mapped, right, right_bytes))
        return -ENOMEM;
    uint32_t result = shore__vocab_find(&b->vocab, b->mapped.bytes, b->mapped.count);
    if (result == NONE) return SHORE_EINPUT;
    bool grows = left_bytes > 0 && right_bytes > 0;
    size_t chars = grows ? shore__utf8_count(b->mapped.bytes, b->mapped.count) : SIZE_MAX;
    if (chars > b->longest_merge) b->longest_merge = chars;
    if (4 * (uint64_t)b->nmerges >= 3 * (uint64_t)b->nmerge_slots && grow_merges(b)) return -ENOMEM;
    *shore__bpe_merge_slot(b, l, r) = (struct shore__merge){l, r, b->nmerges++, result};
    return 0;
}

static uint64_t *pair_slot(const struct shore__bpe *b, uint64_t key) {
    uint32_t mask = b->npair_slots - 1, at = shore__bpe_mix(key) & mask;
    while (b->pairs[at] && b->pairs[at] != key)
        at = (at + 1) & mask;
    return &b->pairs[at];
}

static int add_pair(struct shore__bpe *b, uint64_t key) {
    if (4 * (uint64_t)b->npairs >= 3 * (uint64_t)b->npair_slots) {
        uint64_t *old = b->pairs;
        uint32_t nold = b->npair_slots, n = nold ? nold * 2 : 1024;
        uint64_t *pairs = calloc(n, sizeof *pairs);
        if (!pairs) return -ENOMEM;
        b->pairs = pairs;
        b->npair_slots = n;
        for (uint32_t i = 0; i < nold; i++)
            if (old[i]) *pair_slot(b, old[i]) = old[i];
        free(old);
    }
    uint64_t *slot = pair_slot(b, key);
    b->npairs += *slot == 0;
    *slot = key;
    return 0;
}

/* never 0: one is added to the left character */
static uint64_t pair_key(const char *left, const char *right) {
    return (uint64_t)(shore__utf8_char(left) + 1) << 32 | shore__utf8_char(right);
}

/* A merge cannot cross a place between two characters that stand beside each other in no token, as its result would be
 * such a token. That holds as long as every symbol is its own text: so no merge may begin from the unknown token or a
 * fallback byte, and unknown characters must not vanish. */
static int find_cuts(struct shore__bpe *b) {
    bool complete = true;
    for (unsigned i = 0; i < 256; i++)
        complete &= b->byte_ids[i] != NONE;
    b->cut_anywhere_else = !b->ignore_merges && (b->byte_fallback ? complete : b->unknown != NONE);
    b->cut_needs_known = !b->byte_fallback && b->fuse_unknown;
    for (uint32_t i = 0; b->cut_anywhere_else && i < b->nmerge_slots; i++) {
        const struct shore__merge *m = &b->merges[i];
        if (m->result == NONE) continue;
        if (m->left == b->unknown || m->right == b->unknown) b->cut_anywhere_else = false;
        for (unsigned c = 0; b->byte_fallback && c < 256; c++)
            if (m->left == b->byte_ids[c] || m->right == b->byte_ids[c]) b->cut_anywhere_else = false;
    }
    for (uint32_t id = 0; b->cut_anywhere_else && id < b->vocab.nids; id++) {
        size_t n, step;
        const char *text = shore__vocab_text(&b->vocab, id, &n);
        for (size_t i = 0; text && i < n && i + (step = shore__utf8_bytes((unsigned char)text[i])) < n; i += step)
            if (add_pair(b, pair_key(text + i, text + i + step))) return -ENOMEM;
    }
    return 0;
}

int shore__bpe_ready(struct shore__bpe *b) {
    if (!b->merges && grow_merges(b)) return -ENOMEM;
    memset(b->char_bytes, 0xFF, sizeof b->char_bytes);
    for (unsigned i = 0; i < 256; i++) {
        b->byte_chars[i] = (uint16_t)shore__byte_char(i);
        b->char_bytes[b->byte_chars[i]] = (int16_t)i;
    }
    for (unsigned i = 0; i < 256; i++) {
        char name[8];
        size_t n = 6;
        if (b->byte_level) {
            uint32_t c = b->byte_chars[i];
            n = c < 128 ? 1 : 2;
            name[0] = (char)(n == 1 ? c : (0xC0 | c >> 6));
            name[1] = (char)(0x80 | (c & 63));
        } else {
            snprintf(name, sizeof name, "<0x%02X>", i);
        }
        b->byte_ids[i] = shore__vocab_find(&b->vocab, name, n);
    }
    for (uint32_t id = 0; id < b->vocab.nids; id++) {
        size_t n;
        if (shore__vocab_text(&b->vocab, id, &n) && n > b->longest_token) b->longest_token = n;
    }
    return b->byte_level ? 0 : find_cuts(b);
}

void shore__bpe_fini(struct shore__bpe *b) {
    shore__vocab_fini(&b->vocab);
    free(b->merges);
    free(b->pairs);
    free(b->mapped.bytes);
}

bool shore__bpe_may_cut(const struct shore__bpe *b, const char *left, const char *right) {
    if (!b->cut_anywhere_else || (b->npair_slots && *pair_slot(b, pair_key(left, right)))) return false;
    if (!b->cut_needs_known) return true;
    return shore__vocab_find(&b->vocab, left, shore__utf8_bytes((unsigned char)*left)) != NONE ||
           shore__vocab_find(&b->vocab, right, shore__utf8_bytes((unsigned char)*right)) != NONE;
}

static int decode_byte_level(const struct shore__bpe *b, const char *text, size_t n, struct shore__text *out) {
    size_t before_token = out->count;
    for (size_t i = 0; i < n; i += shore__utf8_bytes((unsigned char)text[i])) {
        uint32_t character = shore__utf8_char(text + i);
        int byte = character < 324 ? b->char_bytes[character] : -1;
        char c = (char)byte;
        if (byte < 0) { /* not in byte characters: the token stands for itself */
            out->count = before_token;
            return shore__text_append(out, text, n);
        }
        if (shore__text_append(out, &c, 1)) return -ENOMEM;
    }
    return 0;
}

static int hex_of(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int shore__bpe_decode(const struct shore__bpe *b, const char *text, size_t n, struct shore__text *out) {
    if (b->byte_level) return decode_byte_level(b, text, n, out);
    if (b->byte_fallback && n == 6 && !memcmp(text, "<0x", 3) && text[5] == '>' && hex_of(text[3]) >= 0 &&
        hex_of(text[4]) >= 0) {
        char c = (char)(hex_of(text[3]) << 4 | hex_of(text[4]));
        return shore__text_append(out, &c, 1);
    }
    for (size_t i = 0, step; i < n; i += step) {
        bool space = n - i >= 3 && !memcmp(text + i, "\xE2\x96\x81", 3);
        step = space ? 3 : 1;
        if (shore__text_append(out, space ? " " : text + i, 1)) return -ENOMEM;
    }
    return 0;
}
