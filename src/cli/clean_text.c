#include "cli/clean_text.h"

#include <stdlib.h>

#include "text/utf8_parts.h"
#include "text/vector.h"

static int append(void *ctx, const char *text, size_t bytes) {
    return shore__text_append(ctx, text, bytes);
}

json_t *shore__clean_json(const char *text, size_t bytes) {
    struct shore__text clean = {0};
    struct shore__utf8_parts parts = {.sink = append, .ctx = &clean};
    bool whole = !shore__utf8_parts_feed(&parts, text, bytes) && !shore__utf8_parts_end(&parts);
    json_t *string = whole ? json_stringn(clean.bytes ? clean.bytes : "", clean.count) : NULL;
    free(clean.bytes);
    return string;
}
