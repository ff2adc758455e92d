#include "report/line.h"

#include <stdarg.h>
#include <stdio.h>

void shore__line_add(struct shore__line *line, const char *format, ...) {
    va_list args;
    va_start(args, format);
    size_t left = line->used < line->capacity ? line->capacity - line->used : 0;
    line->used += (size_t)vsnprintf(left ? line->out + line->used : NULL, left, format, args);
    va_end(args);
}

void shore__line_add_text(struct shore__line *line, const char *key, const char *text) {
    shore__line_add(line, "%s\"", key);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c < 0x20)
            shore__line_add(line, "\\u%04x", *c);
        else
            shore__line_add(line, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    shore__line_add(line, "\"");
}
