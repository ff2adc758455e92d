#include "cli/utf8.h"

#include <string.h>

/* Length of the character at p (Unicode 15, table 3-7); 0: not one; -1: its rest is missing. */
static int character(const unsigned char *p, size_t bytes) {
    if (p[0] < 0x80) return 1;
    if (p[0] < 0xC2 || p[0] > 0xF4) return 0;
    size_t length = p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    unsigned char low = p[0] == 0xE0 ? 0xA0 : p[0] == 0xF0 ? 0x90 : 0x80;
    unsigned char high = p[0] == 0xED ? 0x9F : p[0] == 0xF4 ? 0x8F : 0xBF;
    for (size_t i = 1; i < length; i++) {
        if (i == bytes) return -1;
        if (p[i] < low || p[i] > high) return 0;
        low = 0x80;
        high = 0xBF;
    }
    return (int)length;
}

size_t shore__utf8_clean(const char *text, size_t bytes, bool last, char *out, size_t out_bytes, size_t *used) {
    size_t at = 0, written = 0;
    while (at < bytes) {
        int n = character((const unsigned char *)text + at, bytes - at);
        if (n < 0 && !last) break;
        const char *from = n > 0 ? text + at : "\xEF\xBF\xBD";
        size_t length = n > 0 ? (size_t)n : 3;
        if (written + length > out_bytes) break;
        memcpy(out + written, from, length);
        written += length;
        at += n > 0 ? (size_t)n : 1;
    }
    *used = at;
    return written;
}
