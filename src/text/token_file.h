/* The header of a token file: 64 bytes, little-endian, then the tokens, 2 or 4 bytes each.
 *
 *   0  "SHORETOK"          24  documents        48  tokens of a row, 32 bits; 0: the rows are joined
 *   8  version, 32 bits    32  bytes of text    52  zero
 *  12  width, 32 bits      40  XXH3-64 of all   56  XXH3-64 of the 56 bytes before
 *  16  tokens                  that follows
 *
 * Version 1: all tokens count in the loss. Version 2: marks follow the tokens, a bit for each, the lowest first:
 * whether it counts.
 */
#ifndef SHORE_TEXT_TOKEN_FILE_H
#define SHORE_TEXT_TOKEN_FILE_H

#include <stdbool.h>
#include <string.h>
#include <xxhash.h>

#include "base/units.h"

#define SHORE__TOKEN_HEADER_BYTES 64

struct shore__token_header {
    bool marked;
    uint32_t width, row_tokens;
    uint64_t tokens, documents, text_bytes, data_hash;
};

static inline void shore__token_header_put(unsigned char raw[SHORE__TOKEN_HEADER_BYTES],
                                           const struct shore__token_header *h) {
    memset(raw, 0, SHORE__TOKEN_HEADER_BYTES);
    memcpy(raw, "SHORETOK", 8);
    shore__put_u32(raw + 8, h->marked ? 2 : 1);
    shore__put_u32(raw + 12, h->width);
    shore__put_u64(raw + 16, h->tokens);
    shore__put_u64(raw + 24, h->documents);
    shore__put_u64(raw + 32, h->text_bytes);
    shore__put_u64(raw + 40, h->data_hash);
    shore__put_u32(raw + 48, h->row_tokens);
    shore__put_u64(raw + 56, XXH3_64bits(raw, 56));
}

/* Nonzero: this is not such a header. */
static inline int shore__token_header_get(const unsigned char raw[SHORE__TOKEN_HEADER_BYTES],
                                          struct shore__token_header *h) {
    uint32_t version = shore__get_u32(raw + 8);
    if (memcmp(raw, "SHORETOK", 8) != 0 || version < 1 || version > 2) return -1;
    if (shore__get_u64(raw + 56) != XXH3_64bits(raw, 56)) return -1;
    h->marked = version == 2;
    h->width = shore__get_u32(raw + 12);
    h->tokens = shore__get_u64(raw + 16);
    h->documents = shore__get_u64(raw + 24);
    h->text_bytes = shore__get_u64(raw + 32);
    h->data_hash = shore__get_u64(raw + 40);
    h->row_tokens = shore__get_u32(raw + 48);
    if (h->row_tokens && (!h->marked || h->tokens % h->row_tokens)) return -1;
    return (h->width != 2 && h->width != 4) || h->tokens == 0 || h->tokens > UINT64_MAX / 8 ? -1 : 0;
}

/* Bytes of the tokens, and of the marks behind them. */
static inline uint64_t shore__token_bytes(const struct shore__token_header *h) {
    return h->tokens * h->width;
}
static inline uint64_t shore__mark_bytes(const struct shore__token_header *h) {
    return h->marked ? (h->tokens + 7) / 8 : 0;
}

#endif
