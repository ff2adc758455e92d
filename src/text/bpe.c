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
#define SHORT_SYMBOLS 32

static uint32_t mix(uint64_t key) {
    key *= 0x9E3779B97F4A7C15u;
    return (uint32_t)(key >> 32);
}

static struct shore__merge *merge_slot(const struct shore__bpe *b, uint32_t left, uint32_t right) {
    uint32_t mask = b->nmerge_slots - 1, at = mix((uint64_t)left << 32 | right) & mask;
    while (b->merges[at].result != NONE && (b->merges[at].left != left || b->merges[at].right != right))
        at = (at + 1) & mask;
    return &b->merges[at];
}

static int grow_merges(struct shore__bpe *b) {
    struct shore__merge *old = b->merges;
    uint32_t nold = b->nmerge_slots, n = nold ? nold * 2 : 1024;
    struct shore__merge *merges = malloc(n * sizeof *merges);
    if (!merges) return -ENOMEM;
    memset(merges, 0xFF, n * sizeof *merges);
    b->merges = merges;
    b->nmerge_slots = n;
    for (uint32_t i = 0; i < nold; i++)
        if (old[i].result != NONE) *merge_slot(b, old[i].left, old[i].right) = old[i];
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
    if (4 * (uint64_t)b->nmerges >= 3 * (uint64_t)b->nmerge_slots && grow_merges(b)) return -ENOMEM;
    *merge_slot(b, l, r) = (struct shore__merge){l, r, b->nmerges++, result};
    return 0;
}

static uint64_t *pair_slot(const struct shore__bpe *b, uint64_t key) {
    uint32_t mask = b->npair_slots - 1, at = mix(key) & mask;
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
    b->cache = calloc(SHORE__BPE_CACHE_SLOTS, sizeof *b->cache);
    if (!b->cache) return -ENOMEM;
    return b->byte_level ? 0 : find_cuts(b);
}

void shore__bpe_fini(struct shore__bpe *b) {
    shore__vocab_fini(&b->vocab);
    free(b->merges);
    free(b->pairs);
    free(b->cache);
    free(b->work);
    free(b->mapped.bytes);
}

bool shore__bpe_may_cut(const struct shore__bpe *b, const char *left, const char *right) {
    if (!b->cut_anywhere_else || (b->npair_slots && *pair_slot(b, pair_key(left, right)))) return false;
    if (!b->cut_needs_known) return true;
    return shore__vocab_find(&b->vocab, left, shore__utf8_bytes((unsigned char)*left)) != NONE ||
           shore__vocab_find(&b->vocab, right, shore__utf8_bytes((unsigned char)*right)) != NONE;
}

/* Symbols of a piece: a doubly linked list in an array, so that a merge is O(1). */
struct symbol {
    uint32_t id, previous, next;
};
struct candidate {
    uint32_t rank, at, result;
};

/* The first symbols, before any merge, in the order that the `tokenizers` library gives them. */
static size_t first_symbols(const struct shore__bpe *b, const char *piece, size_t bytes, uint32_t *ids) {
    size_t n = 0;
    if (b->byte_level && b->unknown == NONE) {
        for (size_t i = 0; i < bytes; i++)
            if (b->byte_ids[(unsigned char)piece[i]] != NONE) ids[n++] = b->byte_ids[(unsigned char)piece[i]];
        return n;
    }
    bool waiting = false; /* an unknown token that may yet swallow the next one */
    for (size_t i = 0, step; i < bytes; i += step) {
        step = b->byte_level ? 1 : shore__utf8_bytes((unsigned char)piece[i]);
        uint32_t id =
            b->byte_level ? b->byte_ids[(unsigned char)piece[i]] : shore__vocab_find(&b->vocab, piece + i, step);
        if (id != NONE) {
            if (waiting) ids[n++] = b->unknown;
            waiting = false;
            ids[n++] = id;
            continue;
        }
        bool fallback = b->byte_fallback && !b->byte_level;
        for (size_t k = 0; fallback && k < step; k++)
            fallback = b->byte_ids[(unsigned char)piece[i + k]] != NONE;
        if (fallback) {
            for (size_t k = 0; k < step; k++)
                ids[n++] = b->byte_ids[(unsigned char)piece[i + k]];
        } else if (b->unknown != NONE) {
            if (waiting && !b->fuse_unknown) ids[n++] = b->unknown;
            waiting = true;
        }
    }
    if (waiting) ids[n++] = b->unknown;
    return n;
}

/* For words: looks for the best pair again after each merge. */
static size_t merge_short(const struct shore__bpe *b, uint32_t *ids, size_t n) {
    struct shore__merge *pairs[SHORT_SYMBOLS];
    for (size_t i = 0; i + 1 < n; i++)
        pairs[i] = merge_slot(b, ids[i], ids[i + 1]);
    for (;;) {
        uint32_t rank = NONE;
        size_t best = 0;
        for (size_t i = 0; i + 1 < n; i++)
            if (pairs[i]->rank < rank) {
                rank = pairs[i]->rank;
                best = i;
            }
        if (rank == NONE) return n;
        ids[best] = pairs[best]->result;
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        if (best + 1 < n) memmove(pairs + best + 1, pairs + best + 2, (n - best - 2) * sizeof *pairs);
        if (best > 0) pairs[best - 1] = merge_slot(b, ids[best - 1], ids[best]);
        if (best + 1 < n) pairs[best] = merge_slot(b, ids[best], ids[best + 1]);
    }
}

static bool before(const struct candidate *a, const struct candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void push(struct candidate *heap, size_t *n, struct candidate c) {
    size_t i = (*n)++;
    for (; i > 0 && before(&c, &heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = c;
}

static struct candidate pop(struct candidate *heap, size_t *n) {
    struct candidate top = heap[0], last = heap[--*n];
    size_t i = 0, child;
    for (; (child = 2 * i + 1) < *n; i = child) {
        if (child + 1 < *n && before(&heap[child + 1], &heap[child])) child++;
        if (!before(&heap[child], &last)) break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return top;
}

static void consider(const struct shore__bpe *b, const struct symbol *s, uint32_t at, struct candidate *heap,
                     size_t *n) {
    if (s[at].next == NONE) return;
    const struct shore__merge *m = merge_slot(b, s[at].id, s[s[at].next].id);
    if (m->result != NONE) push(heap, n, (struct candidate){m->rank, at, m->result});
}

/* For long pieces: a heap of candidates; one that no longer stands is dropped when it comes up. Each merge adds at most
 * two candidates and takes one, so the heap never holds more than two per symbol. */
static size_t merge_long(const struct shore__bpe *b, uint32_t *ids, size_t n, struct symbol *s,
                         struct candidate *heap) {
    size_t nheap = 0, kept = 0;
    for (uint32_t i = 0; i < n; i++)
        s[i] = (struct symbol){ids[i], i ? i - 1 : NONE, i + 1 < n ? i + 1 : NONE};
    for (uint32_t i = 0; i < n; i++)
        consider(b, s, i, heap, &nheap);
    while (nheap > 0) {
        struct candidate c = pop(heap, &nheap);
        uint32_t right = s[c.at].next;
        if (s[c.at].id == NONE || right == NONE) continue;
        if (merge_slot(b, s[c.at].id, s[right].id)->result != c.result) continue;
        s[c.at].id = c.result;
        s[c.at].next = s[right].next;
        s[right].id = NONE;
        if (s[c.at].next != NONE) s[s[c.at].next].previous = c.at;
        if (s[c.at].previous != NONE) consider(b, s, s[c.at].previous, heap, &nheap);
        consider(b, s, c.at, heap, &nheap);
    }
    for (size_t i = 0; i < n; i++)
        if (s[i].id != NONE) ids[kept++] = s[i].id;
    return kept;
}

static int encode_long(struct shore__bpe *b, const char *piece, size_t bytes, struct shore__ids *out) {
    size_t need = bytes * (sizeof(uint32_t) + sizeof(struct symbol) + 2 * sizeof(struct candidate));
    if (need > b->work_bytes) {
        free(b->work);
        b->work_bytes = 0;
        b->work = malloc(need);
        if (!b->work) return -ENOMEM;
        b->work_bytes = need;
    }
    struct candidate *heap = b->work;
    struct symbol *symbols = (struct symbol *)(heap + 2 * bytes);
    uint32_t *ids = (uint32_t *)(symbols + bytes);
    size_t n = first_symbols(b, piece, bytes, ids);
    n = merge_long(b, ids, n, symbols, heap);
    for (size_t i = 0; i < n; i++)
        if (shore__ids_push(out, ids[i])) return -ENOMEM;
    return 0;
}

/* The whole piece as one token of the vocabulary. */
static uint32_t whole_token(struct shore__bpe *b, const char *piece, size_t bytes) {
    if (!b->byte_level) return shore__vocab_find(&b->vocab, piece, bytes);
    b->mapped.count = 0;
    for (size_t i = 0; i < bytes; i++) {
        uint32_t c = b->byte_chars[(unsigned char)piece[i]];
        char text[2] = {(char)(c < 128 ? c : (0xC0 | c >> 6)), (char)(0x80 | (c & 63))};
        if (shore__text_append(&b->mapped, text, c < 128 ? 1 : 2)) return NONE;
    }
    return shore__vocab_find(&b->vocab, b->mapped.bytes, b->mapped.count);
}

int shore__bpe_encode(struct shore__bpe *b, const char *piece, size_t bytes, struct shore__ids *out) {
    struct shore__bpe_cached *cached = NULL;
    if (bytes == 0) return 0;
    if (bytes < SHORE__BPE_CACHED_BYTES) {
        cached = &b->cache[XXH3_64bits(piece, bytes) & (SHORE__BPE_CACHE_SLOTS - 1)];
        if (cached->bytes == bytes && !memcmp(cached->text, piece, bytes)) {
            for (unsigned i = 0; i < cached->nids; i++)
                if (shore__ids_push(out, cached->ids[i])) return -ENOMEM;
            return 0;
        }
    }
    if (b->ignore_merges) {
        uint32_t id = whole_token(b, piece, bytes);
        if (id != NONE) return shore__ids_push(out, id);
    }
    if (bytes > SHORT_SYMBOLS) return encode_long(b, piece, bytes, out);
    uint32_t ids[SHORT_SYMBOLS];
    size_t n = merge_short(b, ids, first_symbols(b, piece, bytes, ids));
    for (size_t i = 0; i < n; i++)
        if (shore__ids_push(out, ids[i])) return -ENOMEM;
    if (cached && n <= SHORE__BPE_CACHED_IDS) {
        cached->bytes = (uint8_t)bytes;
        cached->nids = (uint8_t)n;
        memcpy(cached->text, piece, bytes);
        memcpy(cached->ids, ids, n * sizeof *ids);
    }
    return 0;
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
