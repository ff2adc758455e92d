/* The gradient of a segment as rows of fp32, whatever its form (C++). Codes are spread over the rows as UPDATE takes
 * them: no dense gradient lies anywhere. */
#ifndef SHORE_NEAR_HLS_GRADIENT_ROWS_H
#define SHORE_NEAR_HLS_GRADIENT_ROWS_H

#include "near/hls/chip.h"
#include "number/sparse.h"

/* The longest sparse code has a header, a bitmap and 65,536 values of 4 bytes, and begins anywhere in a word. */
const uint32_t INDEX_WORDS = (64 + SHORE__SPARSE_HEADER_BYTES + SHORE__SPARSE_SEGMENT / 8) / 64 + 2;
const uint32_t MOST_WORDS = ROWS + INDEX_WORDS;

/* Where a code's entries lie in its images; of a dense gradient, all from byte 0 on. */
struct entries_at {
    uint32_t index, value, count; /* bytes; entries */
    uint32_t indices;             /* enum shore__sparse_indices, or DENSE */
    bool narrow;                  /* values are bf16 */
};
const uint32_t DENSE = 3;

/* A segment's gradient or code. Indices get an image of their own. */
inline void read_gradient(const word *port, const uint32_t *starts, uint32_t form, uint32_t segment, uint32_t segments,
                          image<MOST_WORDS> &values, image<INDEX_WORDS> &index, hls::stream<entries_at, 2> &to_find,
                          hls::stream<entries_at, 2> &to_spread) {
    uint32_t words = form == SHORE_GRADIENT_FP32 ? ROWS : HALF_WORDS;
    uint64_t first = (uint64_t)segment * words;
    entries_at at = {0, 0, 0, DENSE, form == SHORE_GRADIENT_BF16};
    if (form == SHORE_GRADIENT_SPARSE) {
        uint32_t start = segment * BLOCKS * 4, kind = starts[segments * BLOCKS * 4 + segment * BLOCKS];
        at = {starts[start], starts[start + 1], starts[start + 3], kind & 15, kind >> 4 == SHORE_SPARSE_BF16};
        first = at.index / 64;
        words = (at.value + at.count * (at.narrow ? 2 : 4) + 63) / 64 - (uint32_t)first;
        at.value -= (uint32_t)first * 64;
        at.index %= 64;
    }
    to_find.write(at);
    to_spread.write(at);
    for (uint32_t i = 0; i < words; i++) {
        HLS(pipeline II = 1);
        word w = port[first + i];
        for (uint32_t b = 0; b < LANES; b++) {
            values.bank[b][i] = w.lane[b];
            if (i < INDEX_WORDS) index.bank[b][i] = w.lane[b];
        }
    }
}

/* Elements of a row that have values, in order. */
struct entry {
    uint32_t row, mask;
};

/* A byte of gaps, a word, or a row of a bitmap at a clock. */
inline void find_entries(const image<INDEX_WORDS> &index, hls::stream<entries_at, 2> &from,
                         hls::stream<entry, 32> &entries) {
    entries_at at = from.read();
    bool gaps = at.indices == SHORE__SPARSE_GAPS, words = at.indices == SHORE__SPARSE_WORDS;
    uint32_t steps = gaps ? at.value - at.index : words ? at.count : ROWS, position = 0;
    for (uint32_t i = 0; i < steps; i++) {
        HLS(pipeline II = 1);
        uint32_t got = get(index, at.indices == DENSE ? 0 : at.index + i * (gaps ? 1 : 2)).lane[0], gap = got & 0xFF;
        position = gaps ? position + gap : got & 0xFFFF;
        entry e = {i, at.indices == DENSE ? 0xFFFF : got & 0xFFFF};
        if (gaps || words) e = {position / LANES, gaps && gap == 255 ? 0u : 1u << position % LANES};
        position += e.mask != 0;
        if (e.mask) entries.write(e);
    }
    entries.write({ROWS, 0});
}

/* Puts the entries of a row together: a clock for each, or for a row that has none. */
inline void spread(const image<MOST_WORDS> &values, hls::stream<entries_at, 2> &from, hls::stream<entry, 32> &entries,
                   hls::stream<word, 32> &gradients) {
    entries_at at = from.read();
    entry e = entries.read();
    word row = {};
    for (uint32_t r = 0; r < ROWS;) {
        HLS(pipeline II = 1);
        word next = get(values, at.value);
        if (e.row == r) {
            uint32_t n = 0;
            for (uint32_t i = 0; i < LANES; i++) {
                HLS(unroll);
                if (!(e.mask >> i & 1)) continue;
                row.lane[i] = at.narrow ? next.lane[n / 2] >> (n % 2 * 16) << 16 : next.lane[n];
                n++;
            }
            at.value += n * (at.narrow ? 2 : 4);
            e = entries.read();
        }
        if (e.row == r) continue;
        gradients.write(row);
        row = {};
        r++;
    }
}

#endif
