/* Encodes text with a byte-pair encoding model.
 *
 * A pretoken that is too long to hold comes in parts. The result is exact with any list of merges, for two reasons.
 * Between two tokens of an encoding, no merge has reached across, so each side was encoded as if it were alone. And if
 * each two neighbours in a row of tokens are the encoding of their own text, then the row is the encoding of the whole,
 * because the first merge to reach across would do so in those two alone.
 *
 * Later text can therefore change a token only by moving the start of a later token. Take all prefixes of the text that
 * end so late that the next token must start at one of those ends. If the token at a place is the same in the encodings
 * of all of them, it is settled, together with everything before it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "text/bpe.h"
#include "text/utf8.h"
#include "text/vector.h"

#define NONE SHORE__VOCAB_NONE
#define SHORT_SYMBOLS 32
#define WINDOW_SYMBOLS (64u << 10) /* of a pretoken in parts, initially */
#define WINDOW_SYMBOLS_MOST (1u << 20)
#define MARGIN_SYMBOLS 32u        /* that must follow a token to settle it, initially */
#define LONGEST_MERGE_CHARS 4096u /* settling longer ones is too much work */
#define SLICE_BYTES (16u << 10)

void shore__bpe_work_fini(struct shore__bpe_work *w) {
    free(w->cache);
    free(w->merging);
    free(w->mapped.bytes);
    free(w->symbols.ids);
}

/* Symbols of a pretoken, as a doubly linked list in an array, so that a merge is O(1). */
struct symbol {
    uint32_t id, previous, next;
};
struct candidate {
    uint32_t rank, at, result;
};

/* The symbols before any merge, in the order of the `tokenizers` library; at most one more than there are bytes.
 * waiting: an unknown token behind them may still swallow the next one. */
static size_t first_symbols(const struct shore__bpe *b, const char *pretoken, size_t bytes, bool *waiting,
                            uint32_t *ids) {
    size_t n = 0;
    if (b->byte_level && b->unknown == NONE) {
        for (size_t i = 0; i < bytes; i++)
            if (b->byte_ids[(unsigned char)pretoken[i]] != NONE) ids[n++] = b->byte_ids[(unsigned char)pretoken[i]];
        return n;
    }
    for (size_t i = 0, step; i < bytes; i += step) {
        step = b->byte_level ? 1 : shore__utf8_bytes((unsigned char)pretoken[i]);
        uint32_t id =
            b->byte_level ? b->byte_ids[(unsigned char)pretoken[i]] : shore__vocab_find(&b->vocab, pretoken + i, step);
        if (id != NONE) {
            if (*waiting) ids[n++] = b->unknown;
            *waiting = false;
            ids[n++] = id;
            continue;
        }
        bool fallback = b->byte_fallback && !b->byte_level;
        for (size_t k = 0; fallback && k < step; k++)
            fallback = b->byte_ids[(unsigned char)pretoken[i + k]] != NONE;
        if (fallback) {
            for (size_t k = 0; k < step; k++)
                ids[n++] = b->byte_ids[(unsigned char)pretoken[i + k]];
        } else if (b->unknown != NONE) {
            if (*waiting && !b->fuse_unknown) ids[n++] = b->unknown;
            *waiting = true;
        }
    }
    return n;
}

/* Merges a word: searches for the best pair again after each merge. */
static size_t merge_short(const struct shore__bpe *b, uint32_t *ids, size_t n) {
    struct shore__merge *pairs[SHORT_SYMBOLS];
    for (size_t i = 0; i + 1 < n; i++)
        pairs[i] = shore__merges_at(&b->merges, ids[i], ids[i + 1]);
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
        if (best > 0) pairs[best - 1] = shore__merges_at(&b->merges, ids[best - 1], ids[best]);
        if (best + 1 < n) pairs[best] = shore__merges_at(&b->merges, ids[best], ids[best + 1]);
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
    const struct shore__merge *m = shore__merges_at(&b->merges, s[at].id, s[s[at].next].id);
    if (m->result != NONE) push(heap, n, (struct candidate){m->rank, at, m->result});
}

/* Merges a long pretoken with a heap of candidates. An outdated candidate is dropped when it comes up. Each merge adds
 * at most two candidates and takes one, so the heap never holds more than two per symbol. */
static void merge_long(const struct shore__bpe *b, const uint32_t *ids, size_t n, struct symbol *s,
                       struct candidate *heap) {
    size_t nheap = 0;
    for (uint32_t i = 0; i < n; i++)
        s[i] = (struct symbol){ids[i], i ? i - 1 : NONE, i + 1 < n ? i + 1 : NONE};
    for (uint32_t i = 0; i < n; i++)
        consider(b, s, i, heap, &nheap);
    while (nheap > 0) {
        struct candidate c = pop(heap, &nheap);
        uint32_t right = s[c.at].next;
        if (s[c.at].id == NONE || right == NONE) continue;
        if (shore__merges_at(&b->merges, s[c.at].id, s[right].id)->result != c.result) continue;
        s[c.at].id = c.result;
        s[c.at].next = s[right].next;
        s[right].id = NONE;
        if (s[c.at].next != NONE) s[s[c.at].next].previous = c.at;
        if (s[c.at].previous != NONE) consider(b, s, s[c.at].previous, heap, &nheap);
        consider(b, s, c.at, heap, &nheap);
    }
}

struct token {
    uint32_t id, start;
};
/* Arrays in one allocation, with one element per symbol; the heap has two. */
struct arrays {
    struct candidate *heap;
    struct symbol *symbols;
    struct token *tokens;
};

static int reserve(struct shore__bpe_work *w, size_t n, struct arrays *a) {
    size_t need = n * (sizeof(struct symbol) + 2 * sizeof(struct candidate) + sizeof(struct token));
    if (need > w->merging_bytes) {
        free(w->merging);
        w->merging_bytes = 0;
        w->merging = malloc(need);
        if (!w->merging) return -ENOMEM;
        w->merging_bytes = need;
    }
    a->heap = w->merging;
    a->symbols = (struct symbol *)(a->heap + 2 * n);
    a->tokens = (struct token *)(a->symbols + n);
    return 0;
}

static size_t merge_all(const struct shore__bpe *b, const uint32_t *ids, size_t n, const struct arrays *a) {
    size_t count = 0;
    merge_long(b, ids, n, a->symbols, a->heap);
    for (uint32_t i = 0; i < n; i = a->symbols[i].next)
        a->tokens[count++] = (struct token){a->symbols[i].id, i};
    return count;
}

static int put_tokens(const struct arrays *a, size_t count, struct shore__ids *out) {
    for (size_t i = 0; i < count; i++)
        if (shore__ids_push(out, a->tokens[i].id)) return -ENOMEM;
    return 0;
}

/* Whether the token that ends at `end` comes first in the encodings of all prefixes of least to n symbols. */
static bool begins_with(const struct shore__bpe *b, const uint32_t *ids, size_t least, size_t n, uint32_t token,
                        size_t end, const struct arrays *a) {
    bool same = true;
    for (size_t p = least; same && p <= n; p++) {
        merge_long(b, ids, p, a->symbols, a->heap);
        uint32_t next = a->symbols[0].next;
        same = a->symbols[0].id == token && (next == NONE ? p : next) == end;
    }
    return same;
}

/* Counts the settled tokens in the encoding of n symbols, which no later text changes. 0: unknown. */
static size_t count_settled(const struct shore__bpe *b, struct shore__bpe_work *w, size_t count,
                            const struct arrays *a) {
    const uint32_t *ids = w->symbols.ids;
    size_t n = w->symbols.count, longest = b->longest_merge > 1 ? b->longest_merge : 1;
    if (longest > LONGEST_MERGE_CHARS || longest >= n || count < 2) return 0;
    size_t least = n - longest + 1; /* the next token starts here or later */
    if (!w->margin) w->margin = MARGIN_SYMBOLS;
    for (size_t i = count - 2; w->margin < least; w->margin *= 2) {
        while (i > 0 && (a->tokens[i].start > least - w->margin || a->tokens[i + 1].start > least))
            i--;
        size_t start = a->tokens[i].start, end = a->tokens[i + 1].start;
        if (end > least) break;
        if (begins_with(b, ids + start, least - start, n - start, a->tokens[i].id, end - start, a)) return i + 1;
    }
    w->margin = MARGIN_SYMBOLS;
    return 0;
}

/* Encodes text that later text cannot change. */
static int settle(const struct shore__bpe *b, struct shore__bpe_work *w, struct shore__ids *out) {
    struct arrays a;
    size_t n = w->symbols.count;
    if (reserve(w, n, &a)) return -ENOMEM;
    size_t count = merge_all(b, w->symbols.ids, n, &a), settled = count_settled(b, w, count, &a);
    if (settled == 0) { /* perhaps with more text */
        w->window *= 2;
        return w->window > WINDOW_SYMBOLS_MOST ? SHORE_EINPUT : 0;
    }
    size_t end = a.tokens[settled].start;
    if (put_tokens(&a, settled, out)) return -ENOMEM;
    w->symbols.count = n - end;
    memmove(w->symbols.ids, w->symbols.ids + end, (n - end) * sizeof *w->symbols.ids);
    return 0;
}

int shore__bpe_feed(const struct shore__bpe *b, struct shore__bpe_work *w, const char *part, size_t bytes,
                    struct shore__ids *out) {
    size_t window = 64 * (b->longest_merge < LONGEST_MERGE_CHARS ? b->longest_merge : LONGEST_MERGE_CHARS);
    int rc = 0;
    if (!w->window) w->window = window > WINDOW_SYMBOLS ? window : WINDOW_SYMBOLS;
    for (size_t at = 0; rc == 0 && at < bytes;) {
        size_t n = bytes - at < SLICE_BYTES ? bytes - at : SLICE_BYTES;
        while (at + n < bytes && ((unsigned char)part[at + n] & 0xC0) == 0x80)
            n++;
        if (shore__ids_reserve(&w->symbols, n + 1)) return -ENOMEM;
        w->symbols.count += first_symbols(b, part + at, n, &w->waiting, w->symbols.ids + w->symbols.count);
        at += n;
        if (w->symbols.count >= w->window) rc = settle(b, w, out);
    }
    return rc;
}

int shore__bpe_end(const struct shore__bpe *b, struct shore__bpe_work *w, struct shore__ids *out) {
    struct arrays a;
    if (w->waiting && shore__ids_push(&w->symbols, b->unknown)) return -ENOMEM;
    size_t n = w->symbols.count;
    w->waiting = false;
    w->symbols.count = 0;
    if (n == 0) return 0; /* a vocabulary may have none of the text's characters */
    if (reserve(w, n, &a)) return -ENOMEM;
    return put_tokens(&a, merge_all(b, w->symbols.ids, n, &a), out);
}

/* The whole pretoken as one token of the vocabulary. */
static uint32_t whole_token(const struct shore__bpe *b, struct shore__bpe_work *w, const char *pretoken, size_t bytes) {
    if (!b->byte_level) return shore__vocab_find(&b->vocab, pretoken, bytes);
    w->mapped.count = 0;
    for (size_t i = 0; i < bytes; i++) {
        char text[2];
        size_t n = shore__utf8_put_short(text, b->byte_chars[(unsigned char)pretoken[i]]);
        if (shore__text_append(&w->mapped, text, n)) return NONE;
    }
    return shore__vocab_find(&b->vocab, w->mapped.bytes, w->mapped.count);
}

int shore__bpe_encode(const struct shore__bpe *b, struct shore__bpe_work *w, const char *pretoken, size_t bytes,
                      struct shore__ids *out) {
    struct shore__bpe_cached *cached = NULL;
    if (bytes == 0) return 0;
    if (!w->cache && !(w->cache = calloc(SHORE__BPE_CACHE_SLOTS, sizeof *w->cache))) return -ENOMEM;
    if (bytes < SHORE__BPE_CACHED_BYTES) {
        cached = &w->cache[XXH3_64bits(pretoken, bytes) & (SHORE__BPE_CACHE_SLOTS - 1)];
        if (cached->bytes == bytes && !memcmp(cached->text, pretoken, bytes))
            return shore__ids_append(out, cached->ids, cached->nids);
    }
    if (b->ignore_merges) {
        uint32_t id = whole_token(b, w, pretoken, bytes);
        if (id != NONE) return shore__ids_push(out, id);
    }
    if (bytes > SHORT_SYMBOLS) {
        int rc = shore__bpe_feed(b, w, pretoken, bytes, out);
        return rc ? rc : shore__bpe_end(b, w, out);
    }
    uint32_t ids[SHORT_SYMBOLS];
    bool waiting = false;
    size_t n = first_symbols(b, pretoken, bytes, &waiting, ids);
    if (waiting) ids[n++] = b->unknown;
    n = merge_short(b, ids, n);
    if (shore__ids_append(out, ids, n)) return -ENOMEM;
    if (cached && n <= SHORE__BPE_CACHED_IDS) {
        cached->bytes = (uint8_t)bytes;
        cached->nids = (uint8_t)n;
        memcpy(cached->text, pretoken, bytes);
        memcpy(cached->ids, ids, n * sizeof *ids);
    }
    return 0;
}
