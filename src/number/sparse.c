#include "number/sparse.h"

#include <math.h>
#include <string.h>

#include "base/units.h"
#include "longshore/error.h"
#include "number/bf16.h"

#define BITMAP_BYTES (SHORE__SPARSE_SEGMENT / 8)
#define GAP_GO_ON 255u

static size_t value_bytes(enum shore_sparse_values values) {
    return values == SHORE_SPARSE_BF16 ? 2 : 4;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static size_t gap_bytes(const uint16_t *index, uint32_t count) {
    size_t bytes = 0;
    uint32_t position = 0;
    for (uint32_t i = 0; i < count; i++) {
        bytes += 1 + (index[i] - position) / GAP_GO_ON;
        position = index[i] + 1u;
    }
    return bytes;
}

static enum shore__sparse_indices smallest(const uint16_t *index, uint32_t count, size_t *bytes) {
    size_t gaps = gap_bytes(index, count), words = 2 * (size_t)count;
    enum shore__sparse_indices form = words < gaps ? SHORE__SPARSE_WORDS : SHORE__SPARSE_GAPS;
    *bytes = words < gaps ? words : gaps;
    if (*bytes <= BITMAP_BYTES) return form;
    *bytes = BITMAP_BYTES;
    return SHORE__SPARSE_BITMAP;
}

int shore_sparse_share(const char *text, double *share) {
    return shore__parse_share(text, share);
}

uint64_t shore_sparse_count(double share, uint64_t elems) {
    if (!(share > 0) || elems == 0) return 0;
    if (share >= 1) return elems;
    /* elems < 2^54 and parts <= 10^9, so 128 bits hold the product */
    uint64_t parts = (uint64_t)llround(share * 1e9);
    uint64_t k = (uint64_t)(((unsigned __int128)elems * parts + 999999999u) / 1000000000u);
    return k < 1 ? 1 : k > elems ? elems : k;
}

uint64_t shore_sparse_bound(enum shore_sparse_values values, uint64_t count, uint32_t segments) {
    /* gaps: one byte per entry, and one more for every 255 elements skipped: 257 of these fit a segment */
    uint64_t more = (uint64_t)segments * (SHORE__SPARSE_SEGMENT / GAP_GO_ON);
    uint64_t index = count + (count < more ? count : more), bitmaps = (uint64_t)segments * BITMAP_BYTES;
    if (index > bitmaps) index = bitmaps;
    return (uint64_t)segments * SHORE__SPARSE_HEADER_BYTES + index + count * value_bytes(values);
}

size_t shore__sparse_bytes(enum shore_sparse_values values, const uint16_t *index, uint32_t count) {
    size_t bytes;
    smallest(index, count, &bytes);
    return SHORE__SPARSE_HEADER_BYTES + bytes + count * value_bytes(values);
}

static void put_gaps(unsigned char *at, const uint16_t *index, uint32_t count) {
    uint32_t position = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t gap = index[i] - position;
        for (; gap >= GAP_GO_ON; gap -= GAP_GO_ON)
            *at++ = GAP_GO_ON;
        *at++ = (unsigned char)gap;
        position = index[i] + 1u;
    }
}

size_t shore__sparse_encode(enum shore_sparse_values values, const uint16_t *index, const uint32_t *bits,
                            uint32_t count, void *code) {
    unsigned char *at = code;
    size_t index_bytes;
    enum shore__sparse_indices form = smallest(index, count, &index_bytes);
    at[0] = (unsigned char)((unsigned)form | (unsigned)values << 4);
    at[1] = 0;
    shore__put_u16(at + 2, (uint16_t)index_bytes);
    shore__put_u32(at + 4, count);
    at += SHORE__SPARSE_HEADER_BYTES;
    if (form == SHORE__SPARSE_GAPS) {
        put_gaps(at, index, count);
    } else if (form == SHORE__SPARSE_WORDS) {
        for (uint32_t i = 0; i < count; i++)
            shore__put_u16(at + 2 * (size_t)i, index[i]);
    } else {
        memset(at, 0, BITMAP_BYTES);
        for (uint32_t i = 0; i < count; i++)
            at[index[i] / 8] |= (unsigned char)(1u << index[i] % 8);
    }
    at += index_bytes;
    for (uint32_t i = 0; i < count; i++) {
        if (values == SHORE_SPARSE_BF16)
            shore__put_u16(at + 2 * (size_t)i, shore__f32_to_bf16(shore__bits_f32(bits[i])));
        else
            shore__put_u32(at + 4 * (size_t)i, bits[i]);
    }
    return SHORE__SPARSE_HEADER_BYTES + index_bytes + count * value_bytes(values);
}

uint32_t shore__sparse_value(enum shore_sparse_values values, uint32_t bits) {
    return values == SHORE_SPARSE_BF16 ? (uint32_t)shore__f32_to_bf16(shore__bits_f32(bits)) << 16 : bits;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static bool gaps_are_good(const unsigned char *at, size_t bytes, uint32_t count) {
    uint32_t position = 0, found = 0;
    for (size_t i = 0; i < bytes; i++) {
        position += at[i]; /* at most 8,192 * 256 */
        if (at[i] == GAP_GO_ON) continue;
        if (position >= SHORE__SPARSE_SEGMENT) return false;
        position++;
        found++;
    }
    return found == count && (bytes == 0 || at[bytes - 1] != GAP_GO_ON);
}

static bool words_are_good(const unsigned char *at, size_t bytes, uint32_t count) {
    if (bytes != 2 * (size_t)count) return false;
    for (uint32_t i = 1; i < count; i++)
        if (shore__get_u16(at + 2 * (size_t)i) <= shore__get_u16(at + 2 * (size_t)(i - 1))) return false;
    return true;
}

static bool bitmap_is_good(const unsigned char *at, size_t bytes, uint32_t count) {
    uint32_t found = 0;
    if (bytes != BITMAP_BYTES) return false;
    for (size_t i = 0; i < BITMAP_BYTES; i++)
        found += (uint32_t)__builtin_popcount(at[i]);
    return found == count;
}

int shore__sparse_open(const void *code, size_t bytes, struct shore__sparse_reader *out) {
    const unsigned char *at = code;
    if (bytes < SHORE__SPARSE_HEADER_BYTES) return SHORE_ECORRUPT;
    unsigned form = at[0] & 15u, values = at[0] >> 4;
    size_t index_bytes = shore__get_u16(at + 2);
    uint32_t count = shore__get_u32(at + 4);
    if (form > SHORE__SPARSE_BITMAP || values > SHORE_SPARSE_FP32 || at[1] || count > SHORE__SPARSE_SEGMENT)
        return SHORE_ECORRUPT;
    if (index_bytes > BITMAP_BYTES ||
        bytes != SHORE__SPARSE_HEADER_BYTES + index_bytes + count * value_bytes((enum shore_sparse_values)values))
        return SHORE_ECORRUPT;
    at += SHORE__SPARSE_HEADER_BYTES;
    bool good = form == SHORE__SPARSE_GAPS    ? gaps_are_good(at, index_bytes, count)
                : form == SHORE__SPARSE_WORDS ? words_are_good(at, index_bytes, count)
                                              : bitmap_is_good(at, index_bytes, count);
    if (!good) return SHORE_ECORRUPT;
    *out = (struct shore__sparse_reader){.index = at,
                                         .value = at + index_bytes,
                                         .indices = (enum shore__sparse_indices)form,
                                         .values = (enum shore_sparse_values)values,
                                         .left = count};
    return 0;
}

static float take_value(struct shore__sparse_reader *r) {
    uint32_t bits;
    if (r->values == SHORE_SPARSE_BF16) {
        bits = (uint32_t)shore__get_u16(r->value) << 16;
        r->value += 2;
    } else {
        bits = shore__get_u32(r->value);
        r->value += 4;
    }
    r->left--;
    return shore__bits_f32(bits);
}

static void scatter_gaps(struct shore__sparse_reader *r, uint32_t first, uint32_t end, float *dense) {
    while (r->left) {
        while (*r->index == GAP_GO_ON && r->position < end) {
            r->position += GAP_GO_ON;
            r->index++;
        }
        if (*r->index == GAP_GO_ON || r->position + *r->index >= end) return;
        r->position += *r->index++;
        dense[r->position - first] = take_value(r);
        r->position++;
    }
}

static void scatter_words(struct shore__sparse_reader *r, uint32_t first, uint32_t end, float *dense) {
    for (; r->left && shore__get_u16(r->index) < end; r->index += 2)
        dense[shore__get_u16(r->index) - first] = take_value(r);
}

static void scatter_bitmap(struct shore__sparse_reader *r, uint32_t first, uint32_t end, float *dense) {
    for (uint32_t i = first; r->left && i < end; i++)
        if (r->index[i / 8] >> i % 8 & 1) dense[i - first] = take_value(r);
}

void shore__sparse_scatter(struct shore__sparse_reader *r, uint32_t first, uint32_t end, float *dense) {
    if (r->indices == SHORE__SPARSE_GAPS)
        scatter_gaps(r, first, end, dense);
    else if (r->indices == SHORE__SPARSE_WORDS)
        scatter_words(r, first, end, dense);
    else
        scatter_bitmap(r, first, end, dense);
}
