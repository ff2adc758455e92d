/* UTF-8: decodes valid text, and repairs invalid text. */
#ifndef SHORE_TEXT_UTF8_H
#define SHORE_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the character that starts with this byte of valid UTF-8. */
static inline size_t shore__utf8_bytes(unsigned char lead) {
    return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

/* Number of characters in valid UTF-8. */
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

/* Where the character starts that ends before at > 0, in valid UTF-8. */
static inline size_t shore__utf8_before(const char *s, size_t at) {
    do
        at--;
    while (at > 0 && ((unsigned char)s[at] & 0xC0) == 0x80);
    return at;
}

/* Length of the ASCII prefix, without U+0000. Most texts are nearly all ASCII. */
static inline size_t shore__ascii_bytes(const char *s, size_t n) {
    size_t at = 0;
    while (at < n && (signed char)s[at] > 0)
        at++;
    return at;
}

/* Checks UTF-8 byte by byte. Zeroed before the first byte. */
struct shore__utf8_state {
    unsigned char more, low, top; /* bytes of the character still to come, and the range of the next one */
};
/* Whether the byte may come next. After false, zero the state again. */
static inline bool shore__utf8_next(struct shore__utf8_state *s, unsigned char c) {
    if (s->more) {
        bool fits = c >= s->low && c <= s->top;
        s->more--;
        s->low = 0x80;
        s->top = 0xBF;
        return fits;
    }
    if (c < 0x80) return true;
    if (c < 0xC2 || c > 0xF4) return false;
    s->more = (unsigned char)(shore__utf8_bytes(c) - 1);
    s->low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
    s->top = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    return true;
}

/* Looks at the n >= 1 bytes at s. Returns the length of a valid character; 0 if the bytes are the start of one that
 * goes on behind them; else minus the number of bytes to replace by one U+FFFD (the longest prefix of a valid
 * character, as Unicode recommends and Python does). */
static inline int shore__utf8_check(const unsigned char *s, size_t n) {
    struct shore__utf8_state state = {0};
    for (int i = 0; (size_t)i < n; i++) {
        if (!shore__utf8_next(&state, s[i])) return i ? -i : -1;
        if (!state.more) return i + 1;
    }
    return 0;
}

/* Writes a character below U+0800. Returns its bytes. */
static inline size_t shore__utf8_put_short(char out[2], uint32_t c) {
    out[0] = (char)(c < 0x80 ? c : (0xC0 | c >> 6));
    out[1] = (char)(0x80 | (c & 63));
    return c < 0x80 ? 1 : 2;
}

/* Unicode's White_Space */
static inline bool shore__utf8_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

#endif
