#include "text/utf8_parts.h"

#include <string.h>

#include "text/utf8.h"

#define PART_BYTES (64u << 10)

static int pass_replacement(const struct shore__utf8_parts *p) {
    return p->sink(p->ctx, "\xEF\xBF\xBD", 3);
}

/* Feeds the characters whose first bytes came with the previous part. */
static int feed_tail(struct shore__utf8_parts *p, const char **text, size_t *bytes) {
    int rc = 0;
    while (rc == 0 && p->ntail > 0) {
        int n = shore__utf8_check(p->tail, p->ntail);
        if (n == 0 && *bytes == 0) return 0;
        if (n == 0) {
            p->tail[p->ntail++] = (unsigned char)*(*text)++;
            --*bytes;
            continue;
        }
        size_t used = (size_t)(n > 0 ? n : -n);
        rc = n > 0 ? p->sink(p->ctx, (char *)p->tail, used) : pass_replacement(p);
        p->ntail -= used;
        memmove(p->tail, p->tail + used, p->ntail);
    }
    return rc;
}

int shore__utf8_parts_feed(struct shore__utf8_parts *p, const char *text, size_t bytes) {
    int rc = feed_tail(p, &text, &bytes);
    while (rc == 0 && bytes > 0) {
        int n = 1;
        size_t valid = shore__ascii_bytes(text, bytes < PART_BYTES ? bytes : PART_BYTES);
        while (valid < bytes && valid < PART_BYTES &&
               (n = shore__utf8_check((const unsigned char *)text + valid, bytes - valid)) > 0)
            valid += (size_t)n;
        rc = p->sink(p->ctx, text, valid);
        text += valid;
        bytes -= valid;
        if (rc || n > 0) continue;
        if (n == 0) {
            memcpy(p->tail, text, bytes);
            p->ntail = bytes;
            return 0;
        }
        rc = pass_replacement(p);
        text -= n;
        bytes -= (size_t)-n;
    }
    return rc;
}

int shore__utf8_parts_end(struct shore__utf8_parts *p) {
    int rc = p->ntail ? pass_replacement(p) : 0;
    p->ntail = 0;
    return rc;
}
