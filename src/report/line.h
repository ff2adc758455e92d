/* A line of JSON, written into memory of the caller's. As snprintf() does, it counts what has no room. */
#ifndef SHORE_REPORT_LINE_H
#define SHORE_REPORT_LINE_H

#include <stddef.h>

struct shore__line {
    char *out;
    size_t used, capacity;
};

__attribute__((format(printf, 2, 3))) void shore__line_add(struct shore__line *line, const char *format, ...);
/* Adds a key, and a text of UTF-8 as its value. */
void shore__line_add_text(struct shore__line *line, const char *key, const char *text);

#endif
