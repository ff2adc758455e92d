/* Selects in one pass over the block. A sample tells which magnitude about 1.5 k elements reach; all of them are
 * collected, and the exact threshold is found among them. If the guess was wrong (too few, or more than there is room
 * for, as with many equal values), histograms of the whole block find it.
 *
 * The guess does not change the result: both ways end with the same threshold and the same number of equals to take,
 * and so with the same elements. */
#include "number/topk.h"

#include <math.h>
#include <string.h>

#include "number/bf16.h"

#define BINS 32768u         /* of the upper 15 bits of a magnitude; as many for the lower 16, halved twice */
#define LOW_BINS 65536u     /* of its lower 16 bits */
#define SAMPLE_GROUPS 2048u /* of 16 elements each, roughly */
#define SLACK 1024u         /* entries per thread beyond its share */

_Static_assert(SHORE__TOPK_SEGMENT - 1 <= UINT16_MAX, "an index fits 16 bits");

static uint32_t magnitude(uint32_t bits) {
    return bits & SHORE__TOPK_MAGNITUDE;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static size_t round_up(size_t bytes) {
    return (bytes + 63) & ~(size_t)63;
}

static uint64_t capacity_of(uint64_t k, uint32_t segments, int threads) {
    uint64_t all = (uint64_t)segments * SHORE__TOPK_SEGMENT, most = 3 * k;
    if (most > all) most = all;
    return most + (uint64_t)threads * SLACK;
}

size_t shore__topk_bytes(uint64_t k, uint32_t segments, int threads) {
    uint64_t capacity = capacity_of(k, segments, threads);
    return round_up(segments * sizeof(struct shore__topk_list)) + 2 * round_up(segments * sizeof(uint32_t)) +
           round_up(LOW_BINS * sizeof(uint32_t)) + round_up(capacity * sizeof(uint32_t)) +
           round_up(capacity * sizeof(uint16_t));
}

void shore__topk_lay_out(struct shore__topk *t, void *memory, uint64_t k, uint32_t segments, int threads) {
    unsigned char *at = memory;
    *t = (struct shore__topk){.segments = segments, .threads = threads, .capacity = capacity_of(k, segments, threads)};
    t->list = (struct shore__topk_list *)(void *)at;
    at += round_up(segments * sizeof *t->list);
    t->above = (uint32_t *)(void *)at;
    at += round_up(segments * sizeof *t->above);
    t->equal = (uint32_t *)(void *)at;
    at += round_up(segments * sizeof *t->equal);
    t->bins = (uint32_t *)(void *)at;
    at += round_up(LOW_BINS * sizeof *t->bins);
    t->bits = (uint32_t *)(void *)at;
    at += round_up(t->capacity * sizeof *t->bits);
    t->index = (uint16_t *)(void *)at;
}

/* ---- the threshold ----------------------------------------------------------------------------------------------- */

/* The k-th largest magnitude, and how many of its equals belong to the k. Magnitude 0: none. */
struct threshold {
    uint32_t least;
    uint64_t ties;
};

/* The highest bin at or above which there are k; *above: the number in higher bins. Also 0 if there are fewer than
 * k. */
static uint32_t crossing(const uint32_t *bins, uint32_t count, uint64_t k, uint64_t *above) {
    *above = 0;
    uint32_t b = count - 1;
    for (; b > 0 && *above + bins[b] < k; b--)
        *above += bins[b];
    return b;
}

/* Counts a range of fp32 values, given as bits: a list, or the block itself. */
static void count_high(uint32_t *bins, const uint32_t *bits, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (magnitude(bits[i])) bins[magnitude(bits[i]) >> 16]++;
}

static void count_low(uint32_t *bins, const uint32_t *bits, size_t n, uint32_t high) {
    for (size_t i = 0; i < n; i++)
        if (magnitude(bits[i]) >> 16 == high && magnitude(bits[i])) bins[bits[i] & 0xFFFFu]++;
}

/* The bits of fp32 values, one span at a time: memory stored as float is read as float. */
#define SPAN 1024u

static void walk(struct shore__topk *t, const float *x, uint32_t segments, bool low, uint32_t high) {
    uint32_t bits[SPAN];
    memset(t->bins, 0, (low ? LOW_BINS : BINS) * sizeof *t->bins);
    for (uint32_t s = 0; s < segments; s++) {
        const uint32_t *from = t->list[s].bits;
        size_t n = x ? SHORE__TOPK_SEGMENT : t->list[s].count;
        for (size_t i = 0; i < n; i += SPAN) {
            size_t span = n - i < SPAN ? n - i : SPAN;
            if (x) memcpy(bits, x + (size_t)s * SHORE__TOPK_SEGMENT + i, span * sizeof *bits);
            if (low)
                count_low(t->bins, x ? bits : from + i, span, high);
            else
                count_high(t->bins, x ? bits : from + i, span);
        }
    }
}

/* Finds the threshold of block x, or of the lists if x is NULL. */
static struct threshold find_threshold(struct shore__topk *t, const float *x, uint32_t segments, uint64_t k) {
    uint64_t above, above_low;
    walk(t, x, segments, false, 0);
    uint32_t high = crossing(t->bins, BINS, k, &above);
    if (above + t->bins[high] < k) return (struct threshold){1, UINT64_MAX}; /* everything that is not 0 */
    walk(t, x, segments, true, high);
    uint32_t low = crossing(t->bins, LOW_BINS, k - above, &above_low);
    return (struct threshold){high << 16 | low, k - above - above_low};
}

/* ---- the guess --------------------------------------------------------------------------------------------------- */

/* A magnitude that slightly more than k elements reach, if the sample is representative. */
static uint32_t guess(struct shore__topk *t, const float *x, uint32_t segments, uint64_t k) {
    uint64_t groups = (uint64_t)segments * (SHORE__TOPK_SEGMENT / SHORE__TOPK_GROUP), above;
    uint64_t stride = groups / SAMPLE_GROUPS;
    if (stride < 4) stride = 4;
    stride |= 1; /* rows of a matrix have even length: the sample must not stay in one column */
    memset(t->bins, 0, BINS * sizeof *t->bins);
    for (uint64_t g = 0; g < groups; g += stride) {
        uint32_t bits[SHORE__TOPK_GROUP];
        memcpy(bits, x + g * SHORE__TOPK_GROUP, sizeof bits);
        count_high(t->bins, bits, SHORE__TOPK_GROUP);
    }
    double expected = (double)k / (double)stride;
    uint64_t wanted = (uint64_t)(1.4 * expected + 8 * sqrt(expected)) + 8;
    uint32_t bin = crossing(t->bins, BINS, wanted, &above);
    return bin ? bin << 16 : 1;
}

/* Collects the elements that reach the guess. Threads take segments in turn, so that a block with its large elements in
 * one place fills all of them. False: there was no room. */
static bool collect(struct shore__topk *t, const float *x, uint32_t segments, uint32_t least, uint64_t *found) {
    int threads = (uint32_t)t->threads < segments ? t->threads : (int)segments;
    if (threads < 1) threads = 1;
    uint64_t share = t->capacity / (uint64_t)threads, total = 0;
    bool full = false;
#pragma omp parallel for schedule(static, 1) num_threads(threads) reduction(+ : total) reduction(|| : full)
    for (int thread = 0; thread < threads; thread++) {
        uint64_t used = 0;
        for (uint32_t s = (uint32_t)thread; s < segments && !full; s += (uint32_t)threads) {
            struct shore__topk_list *list = &t->list[s];
            list->index = t->index + share * (uint64_t)thread + used;
            list->bits = t->bits + share * (uint64_t)thread + used;
            size_t n = shore__topk_collect(x + (size_t)s * SHORE__TOPK_SEGMENT, SHORE__TOPK_SEGMENT, least, list->index,
                                           list->bits, share - used);
            full = n == SHORE__TOPK_FULL;
            list->count = full ? 0 : (uint32_t)n;
            used += list->count;
        }
        total += used;
    }
    *found = total;
    return !full;
}

/* ---- cutting back to exactly k ----------------------------------------------------------------------------------- */

/* Sets t->equal to the number of equals still to take from each segment, in order. */
static uint64_t share_ties(struct shore__topk *t, uint32_t segments, uint64_t ties) {
    uint64_t total = 0;
    for (uint32_t s = 0; s < segments; s++) {
        if (t->equal[s] > ties) t->equal[s] = (uint32_t)ties;
        ties -= t->equal[s];
        total += t->above[s] + t->equal[s];
    }
    return total;
}

static uint64_t cut_lists(struct shore__topk *t, uint32_t segments, struct threshold cut) {
#pragma omp parallel for schedule(static) num_threads(t->threads)
    for (uint32_t s = 0; s < segments; s++) {
        const struct shore__topk_list *list = &t->list[s];
        uint32_t above = 0, equal = 0;
        for (uint32_t i = 0; i < list->count; i++) {
            above += magnitude(list->bits[i]) > cut.least;
            equal += magnitude(list->bits[i]) == cut.least;
        }
        t->above[s] = above;
        t->equal[s] = equal;
    }
    uint64_t total = share_ties(t, segments, cut.ties);
#pragma omp parallel for schedule(static) num_threads(t->threads)
    for (uint32_t s = 0; s < segments; s++) {
        struct shore__topk_list *list = &t->list[s];
        uint32_t kept = 0, equal = t->equal[s];
        for (uint32_t i = 0; i < list->count; i++) {
            uint32_t m = magnitude(list->bits[i]);
            if (m < cut.least || (m == cut.least && equal == 0)) continue;
            equal -= m == cut.least;
            list->index[kept] = list->index[i];
            list->bits[kept++] = list->bits[i];
        }
        list->count = kept;
    }
    return total;
}

/* Counts first, then stores exactly so many entries, each segment's behind the previous one's. */
static uint64_t cut_block(struct shore__topk *t, const float *x, uint32_t segments, struct threshold cut) {
#pragma omp parallel for schedule(static) num_threads(t->threads)
    for (uint32_t s = 0; s < segments; s++) {
        const float *from = x + (size_t)s * SHORE__TOPK_SEGMENT;
        uint32_t above = 0, equal = 0;
        for (uint32_t i = 0; i < SHORE__TOPK_SEGMENT; i++) {
            above += magnitude(shore__f32_bits(from[i])) > cut.least;
            equal += magnitude(shore__f32_bits(from[i])) == cut.least;
        }
        t->above[s] = above;
        t->equal[s] = equal;
    }
    uint64_t total = share_ties(t, segments, cut.ties), first = 0;
    for (uint32_t s = 0; s < segments; s++) {
        t->list[s] = (struct shore__topk_list){t->index + first, t->bits + first, t->above[s] + t->equal[s]};
        first += t->list[s].count;
    }
#pragma omp parallel for schedule(static) num_threads(t->threads)
    for (uint32_t s = 0; s < segments; s++) {
        const float *from = x + (size_t)s * SHORE__TOPK_SEGMENT;
        struct shore__topk_list *list = &t->list[s];
        uint32_t kept = 0, equal = t->equal[s];
        for (uint32_t i = 0; i < SHORE__TOPK_SEGMENT; i++) {
            uint32_t bits = shore__f32_bits(from[i]), m = magnitude(bits);
            if (m < cut.least || (m == cut.least && equal == 0)) continue;
            equal -= m == cut.least;
            list->index[kept] = (uint16_t)i;
            list->bits[kept++] = bits;
        }
    }
    return total;
}

uint64_t shore__topk_select(struct shore__topk *t, const float *x, uint32_t segments, uint64_t k) {
    if (segments == 0) return 0;
    for (uint32_t s = 0; s < segments; s++)
        t->list[s] = (struct shore__topk_list){t->index, t->bits, 0};
    if (k == 0) return 0;
    if (!t->exact_only) {
        uint64_t found;
        uint32_t least = guess(t, x, segments, k);
        bool room = collect(t, x, segments, least, &found);
        if (room && found <= k && (found == k || least == 1)) return found;
        if (room && found > k) return cut_lists(t, segments, find_threshold(t, NULL, segments, k));
    }
    return cut_block(t, x, segments, find_threshold(t, x, segments, k));
}
