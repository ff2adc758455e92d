/* What a segment passes through on the chip: streams, images, and the words that ports move (C++). Without Vitis, the
 * pragmas are nothing and a stream is a queue without an end. */
#ifndef SHORE_NEAR_HLS_CHIP_H
#define SHORE_NEAR_HLS_CHIP_H

#include "near/hls/kernel.h"
#include "near/moments.h"

#ifdef __VITIS_HLS__
#include <hls_stream.h>
#define TEXT(...) #__VA_ARGS__
#define HLS(...) _Pragma(TEXT(HLS __VA_ARGS__))
#else
#include <deque>
#define HLS(...) (void)0
namespace hls {
template <class T, int DEPTH> class stream {
    std::deque<T> items;

  public:
    void write(const T &item) { items.push_back(item); }
    T read() {
        T item = items.front();
        items.pop_front();
        return item;
    }
};
} // namespace hls
#endif

using word = shore__word;
const uint32_t LANES = 16, ROWS = SHORE_SEGMENT_ELEMS / LANES, BLOCKS = SHORE_SEGMENT_ELEMS / SHORE__MOMENT_BLOCK_ELEMS;
const uint32_t BLOCK_ROWS = ROWS / BLOCKS, HALF_WORDS = ROWS / 2;
/* Bytes of a segment on the chip, in a bank for each lane. */
template <uint32_t WORDS> struct image {
    uint32_t bank[LANES][WORDS];
    image() { HLS(array_partition variable = bank complete dim = 1); }
};

/* 64 bytes from any on. Each bank is read at most twice: it has two ports. */
template <uint32_t WORDS> word get(const image<WORDS> &from, uint32_t byte) {
    HLS(inline);
    uint32_t first = byte / 4 % LANES, row = byte / 64, shift = byte % 4 * 8, got[LANES];
    word out;
    for (uint32_t b = 0; b < LANES; b++) {
        HLS(unroll);
        got[b] = from.bank[b][row + (b < first)];
    }
    uint32_t next = from.bank[first][row + 1];
    for (uint32_t i = 0; i < LANES; i++) {
        HLS(unroll);
        uint64_t high = i + 1 < LANES ? got[(first + i + 1) % LANES] : next;
        out.lane[i] = (uint32_t)((high << 32 | got[(first + i) % LANES]) >> shift);
    }
    return out;
}

/* Puts the first lanes of a word from any lane on. */
template <uint32_t WORDS> void put(image<WORDS> &to, uint32_t lane, const word &from, uint32_t lanes) {
    HLS(inline);
    uint32_t first = lane % LANES, row = lane / LANES;
    for (uint32_t b = 0; b < LANES; b++) {
        HLS(unroll);
        uint32_t i = (b - first) % LANES;
        if (i < lanes) to.bank[b][row + (b < first)] = from.lane[i];
    }
}

/* `words` of a segment, from a byte of the port on. */
template <uint32_t WORDS>
void load(const word *port, uint64_t byte, uint32_t words, uint32_t segment, image<WORDS> &to) {
    for (uint32_t i = 0; i < words; i++) {
        HLS(pipeline II = 1);
        word w = port[byte / 64 + (uint64_t)segment * words + i];
        for (uint32_t b = 0; b < LANES; b++)
            to.bank[b][i] = w.lane[b];
    }
}

#endif
