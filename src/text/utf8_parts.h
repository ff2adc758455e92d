/* Makes text valid UTF-8 that arrives in parts cut anywhere, and passes it on in whole characters. U+FFFD replaces
 * invalid bytes. */
#ifndef SHORE_TEXT_UTF8_PARTS_H
#define SHORE_TEXT_UTF8_PARTS_H

#include <stddef.h>

struct shore__utf8_parts {
    /* whole characters; nonzero ends the feeding with that code */
    int (*sink)(void *ctx, const char *text, size_t bytes);
    void *ctx;
    unsigned char tail[4]; /* of a character whose end is still to come */
    size_t ntail;
};

int shore__utf8_parts_feed(struct shore__utf8_parts *p, const char *text, size_t bytes);
/* Ends the text: a character without its end is invalid. */
int shore__utf8_parts_end(struct shore__utf8_parts *p);

#endif
