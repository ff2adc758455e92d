#include "text/bpe.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/bytechars.h"
#include "text/utf8.h"
#include "text/vector.h"

#define NONE SHORE__VOCAB_NONE

static int grow(struct shore__merges *m) {
    struct shore__merges old = *m;
    uint32_t n = old.nslots ? old.nslots * 2 : 1024;
    struct shore__merge *slots = malloc(n * sizeof *slots);
    if (!slots) return -ENOMEM;
    memset(slots, 0xFF, n * sizeof *slots);
    m->slots = slots;
    m->nslots = n;
    for (uint32_t i = 0; i < old.nslots; i++)
        if (old.slots[i].result != NONE) *shore__merges_at(m, old.slots[i].left, old.slots[i].right) = old.slots[i];
    free(old.slots);
    return 0;
}

static int put(struct shore__merges *m, uint32_t left, uint32_t right, uint32_t result) {
    if (4 * (uint64_t)m->count >= 3 * (uint64_t)m->nslots && grow(m)) return -ENOMEM;
    *shore__merges_at(m, left, right) = (struct shore__merge){left, right, m->count++, result};
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
    return put(&b->merges, l, r, result);
}

static bool is_pair(const struct shore__bpe *b, const char *left, const char *right) {
    return shore__merges_at(&b->pairs, shore__utf8_char(left), shore__utf8_char(right))->result != NONE;
}

/* Finds the places where no merge can cross: between two characters that are adjacent in no token, because the result
 * of the merge would be such a token. This holds as long as every symbol is its own text. So no merge may start from
 * the unknown token or a fallback byte, and unknown characters must not vanish. */
static int find_cuts(struct shore__bpe *b) {
    bool complete = true;
    for (unsigned i = 0; i < 256; i++)
        complete &= b->byte_ids[i] != NONE;
    b->cut_anywhere_else = !b->ignore_merges && (b->byte_fallback ? complete : b->unknown != NONE);
    b->cut_needs_known = !b->byte_fallback && b->fuse_unknown;
    for (uint32_t i = 0; b->cut_anywhere_else && i < b->merges.nslots; i++) {
        const struct shore__merge *m = &b->merges.slots[i];
        if (m->result == NONE) continue;
        if (m->left == b->unknown || m->right == b->unknown) b->cut_anywhere_else = false;
        for (unsigned c = 0; b->byte_fallback && c < 256; c++)
            if (m->left == b->byte_ids[c] || m->right == b->byte_ids[c]) b->cut_anywhere_else = false;
    }
    for (uint32_t id = 0; b->cut_anywhere_else && id < b->vocab.nids; id++) {
        size_t n, step;
        const char *text = shore__vocab_text(&b->vocab, id, &n);
        for (size_t i = 0; text && i < n && i + (step = shore__utf8_bytes((unsigned char)text[i])) < n; i += step)
            if (!is_pair(b, text + i, text + i + step) &&
                put(&b->pairs, shore__utf8_char(text + i), shore__utf8_char(text + i + step), 0))
                return -ENOMEM;
    }
    return 0;
}

int shore__bpe_ready(struct shore__bpe *b) {
    if ((!b->merges.nslots && grow(&b->merges)) || grow(&b->pairs)) return -ENOMEM;
    memset(b->char_bytes, 0xFF, sizeof b->char_bytes);
    for (unsigned i = 0; i < 256; i++) {
        b->byte_chars[i] = (uint16_t)shore__byte_char(i);
        b->char_bytes[b->byte_chars[i]] = (int16_t)i;
    }
    for (unsigned i = 0; i < 256; i++) {
        char name[8];
        size_t n = b->byte_level ? shore__utf8_put_short(name, b->byte_chars[i])
                                 : (size_t)snprintf(name, sizeof name, "<0x%02X>", i);
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
    free(b->merges.slots);
    free(b->pairs.slots);
    free(b->mapped.bytes);
}

bool shore__bpe_may_cut(const struct shore__bpe *b, const char *left, const char *right) {
    if (!b->cut_anywhere_else || is_pair(b, left, right)) return false;
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
        if (byte < 0) { /* no byte character: the token stands for itself */
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
