#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "page/page.h"
#include "text/utf8.h"

static bool make_room(struct shore__page *p, size_t bytes) {
    if (p->failed || p->bytes + bytes < p->room) return !p->failed;
    size_t room = 2 * (p->room + bytes) + 4096;
    char *text = realloc(p->text, room);
    p->failed = !text;
    if (text) p->text = text, p->room = room;
    return !p->failed;
}

static void append(struct shore__page *p, const char *text, size_t bytes) {
    if (!make_room(p, bytes)) return;
    memcpy(p->text + p->bytes, text, bytes);
    p->bytes += bytes;
    p->text[p->bytes] = '\0';
}

void shore__page_put(struct shore__page *p, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    if (n >= 0 && make_room(p, (size_t)n + 1)) {
        vsnprintf(p->text + p->bytes, (size_t)n + 1, format, again);
        p->bytes += (size_t)n;
    }
    va_end(again);
    va_end(args);
}

/* What HTML and SVG have instead; NULL: the character itself. */
static const char *escape_of(unsigned char c) {
    switch (c) {
    case '&':
        return "&amp;";
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '"':
        return "&quot;";
    case '\'':
        return "&#39;";
    case '\t':
    case '\n':
    case '\r':
        return " ";
    default:
        return c < 0x20 || c == 0x7F ? "\xEF\xBF\xBD" : NULL;
    }
}

void shore__page_say(struct shore__page *p, const char *text) {
    const unsigned char *s = (const unsigned char *)text;
    for (size_t left = strlen(text); left;) {
        int n = shore__utf8_check(s, left);
        size_t taken = n > 0 ? (size_t)n : n < 0 ? (size_t)-n : left; /* 0: it breaks off */
        const char *instead = n == 1 ? escape_of(*s) : n > 0 ? NULL : "\xEF\xBF\xBD";
        /* directions that would turn the page's own words around */
        uint32_t c = n == 3 ? shore__utf8_char((const char *)s) : 0;
        if ((c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069)) instead = "\xEF\xBF\xBD";
        append(p, instead ? instead : (const char *)s, instead ? strlen(instead) : taken);
        s += taken;
        left -= taken;
    }
}

struct shore__written shore__say_bytes(double bytes) {
    return shore__format_size(bytes < 1e19 ? (uint64_t)bytes : UINT64_MAX);
}

struct shore__written shore__say_loss(double loss) {
    struct shore__written out;
    snprintf(out.text, sizeof out.text, "%.4f", loss);
    return out;
}

void shore__page_cell(struct shore__page *p, double value, shore__says *say) {
    shore__page_put(p, "<td>%s</td>", value > 0 ? say(value).text : "–");
}
