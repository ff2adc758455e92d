#include "cli/clean_text.h"

#include <stdlib.h>
#include <string.h>

#include "text/utf8.h"

size_t shore__clean_text(const char *text, size_t bytes, bool last, char *out, size_t out_bytes, size_t *used) {
    size_t at = 0, written = 0;
    while (at < bytes) {
        int n = shore__utf8_check((const unsigned char *)text + at, bytes - at);
        if (n == 0 && !last) break;
        const char *from = n > 0 ? text + at : "\xEF\xBF\xBD";
        size_t length = n > 0 ? (size_t)n : 3;
        if (written + length > out_bytes) break;
        memcpy(out + written, from, length);
        written += length;
        at += n > 0 ? (size_t)n : n < 0 ? (size_t)-n : bytes - at;
    }
    *used = at;
    return written;
}

json_t *shore__clean_json(const char *text, size_t bytes) {
    size_t used, most = 3 * bytes + 1; /* each byte may become U+FFFD */
    char *clean = malloc(most);
    json_t *string = clean ? json_stringn(clean, shore__clean_text(text, bytes, true, clean, most, &used)) : NULL;
    free(clean);
    return string;
}
