/* The header of a token file: 64 bytes, little-endian, then the tokens, 2 or 4 bytes each.
 *
 *   0  "SHORETOK"          24  documents        48  zero
 *   8  version, 32 bits    32  bytes of text    56  XXH3-64 of the 56 bytes before
 *  12  width, 32 bits      40  XXH3-64 of all tokens
 *  16  tokens
 */
#ifndef SHORE_TEXT_TOKEN_FILE_H
#define SHORE_TEXT_TOKEN_FILE_H

#include <string.h>
#include <xxhash.h>

#include "base/units.h"

#define SHORE__TOKEN_HEADER_BYTES 64
#define SHORE__TOKEN_VERSION 1

struct shore__token_header {
    uint32_t width;
    uint64_t tokens, documents, text_bytes, data_hash;
};

static inline void shore__token_header_put(unsigned char raw[SHORE__TOKEN_HEADER_BYTES],
                                           const struct shore__token_header *h) {
    memset(raw, 0, SHORE__TOKEN_HEADER_BYTES);
    memcpy(raw, "SHORETOK", 8);
    shore__put_u32(raw + 8, SHORE__TOKEN_VERSION);
    shore__put_u32(raw + 12, h->width);
    shore__put_u64(raw + 16, h->tokens);
    shore__put_u64(raw + 24, h->documents);
    shore__put_u64(raw + 32, h->text_bytes);
    shore__put_u64(raw + 40, h->data_hash);
    shore__put_u64(raw + 56, XXH3_64bits(raw, 56));
}

/* Nonzero: this is not such a header. */
static inline int shore__token_header_get(const unsigned char raw[SHORE__TOKEN_HEADER_BYTES],
                                          struct shore__token_header *h) {
    if (memcmp(raw, "SHORETOK", 8) != 0 || shore__get_u32(raw + 8) != SHORE__TOKEN_VERSION) return -1;
    if (shore__get_u64(raw + 56) != XXH3_64bits(raw, 56)) return -1;
    h->width = shore__get_u32(raw + 12);
    h->tokens = shore__get_u64(raw + 16);
    h->documents = shore__get_u64(raw + 24);
    h->text_bytes = shore__get_u64(raw + 32);
    h->data_hash = shore__get_u64(raw + 40);
    return (h->width != 2 && h->width != 4) || h->tokens == 0 || h->tokens > UINT64_MAX / 8 ? -1 : 0;
}

#endif
