/* Text in parts that are cut anywhere, made valid UTF-8 and passed on in whole characters. What is none becomes U+FFFD.
 */
#ifndef SHORE_TEXT_UTF8_PARTS_H
#define SHORE_TEXT_UTF8_PARTS_H

#include <stddef.h>

struct shore__utf8_parts {
    int (*sink)(void *ctx, const char *text, size_t bytes); /* whole characters; nonzero ends the feeding with that */
    void *ctx;
    unsigned char tail[4]; /* of a character whose end has not come yet */
    size_t ntail;
};

int shore__utf8_parts_feed(struct shore__utf8_parts *p, const char *text, size_t bytes);
/* No more text comes: a character whose end is missing is none. */
int shore__utf8_parts_end(struct shore__utf8_parts *p);

#endif
