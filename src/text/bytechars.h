/* Byte characters of byte-level vocabularies. Printable Latin-1 characters stand for their own bytes; U+0100 and up
 * stand for the other 68, in order (GPT-2's encoder.py, bytes_to_unicode). */
#ifndef SHORE_TEXT_BYTECHARS_H
#define SHORE_TEXT_BYTECHARS_H

#include <stdbool.h>
#include <stdint.h>

static inline bool shore__byte_is_printable(unsigned b) {
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

static inline uint32_t shore__byte_char(unsigned byte) {
    uint32_t rank = 0;
    if (shore__byte_is_printable(byte)) return byte;
    for (unsigned b = 0; b < byte; b++)
        rank += !shore__byte_is_printable(b);
    return 256 + rank;
}

#endif
