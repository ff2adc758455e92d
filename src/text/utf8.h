/* UTF-8: decoding what is known to be valid, and making valid what is not.
 */
#ifndef SHORE_TEXT_UTF8_H
#define SHORE_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the character that begins with this byte of valid UTF-8. */
static inline size_t shore__utf8_bytes(unsigned char lead) {
    return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

/* Characters of valid UTF-8. */
static inline size_t shore__utf8_count(const char *s, size_t bytes) {
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += ((unsigned char)s[i] & 0xC0) != 0x80;
    return n;
}

/* The character at s, which must be whole and valid. */
static inline uint32_t shore__utf8_char(const char *s) {
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) return p[0];
    if (p[0] < 0xE0) return (p[0] & 31u) << 6 | (p[1] & 63u);
    if (p[0] < 0xF0) return (p[0] & 15u) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u);
    return (p[0] & 7u) << 18 | (p[1] & 63u) << 12 | (p[2] & 63u) << 6 | (p[3] & 63u);
}

/* Looks at the n >= 1 bytes at s. Returns the length of a valid character; 0 if the bytes are the start of one that
 * goes on behind them; else minus the number of bytes to replace by one U+FFFD (the longest prefix of a valid
 * character, as Unicode recommends and Python does). */
static inline int shore__utf8_check(const unsigned char *s, size_t n) {
    unsigned char lo = 0x80, hi = 0xBF;
    int length;
    if (s[0] < 0x80) return 1;
    if (s[0] < 0xC2 || s[0] > 0xF4) return -1;
    length = (int)shore__utf8_bytes(s[0]);
    if (s[0] == 0xE0) lo = 0xA0;
    if (s[0] == 0xED) hi = 0x9F;
    if (s[0] == 0xF0) lo = 0x90;
    if (s[0] == 0xF4) hi = 0x8F;
    for (int i = 1; i < length; i++) {
        if ((size_t)i == n) return 0;
        if (s[i] < lo || s[i] > hi) return -i;
        lo = 0x80;
        hi = 0xBF;
    }
    return length;
}

/* Unicode's White_Space */
static inline bool shore__utf8_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

#endif
