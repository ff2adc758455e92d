#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/tokenizer_impl.h"
#include "text/utf8.h"
#include "text/vector.h"

int shore__compose(const char *text, size_t bytes, struct shore__text *out) {
    bool touched = false;
    utf8proc_uint8_t *composed;
    /* below U+0300 nothing composes */
    for (size_t i = 0; i < bytes && !touched; i++)
        touched = (unsigned char)text[i] >= 0xCC;
    if (!touched) return shore__text_append(out, text, bytes);
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, &composed,
                                      UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (n < 0) return -ENOMEM; /* the text is valid: only memory can fail */
    int rc = shore__text_append(out, (char *)composed, (size_t)n);
    free(composed);
    return rc;
}

static int replace(const struct shore__step *step, struct shore__text *text, struct shore__text *work) {
    size_t from_bytes = strlen(step->from), to_bytes = strlen(step->to), kept = 0;
    work->count = 0;
    for (size_t i = 0; i < text->count;) {
        if (text->bytes[i] != step->from[0] || text->count - i < from_bytes ||
            memcmp(text->bytes + i, step->from, from_bytes) != 0) {
            i++;
            continue;
        }
        if (shore__text_append(work, text->bytes + kept, i - kept) || shore__text_append(work, step->to, to_bytes))
            return -ENOMEM;
        kept = i += from_bytes;
    }
    if (shore__text_append(work, text->bytes + kept, text->count - kept)) return -ENOMEM;
    struct shore__text swap = *text;
    *text = *work;
    *work = swap;
    return 0;
}

int shore__normalize_rest(const struct shore__tokenizer *t, bool first, struct shore__text *text,
                          struct shore__text *work) {
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < t->nsteps && text->count; i++) {
        const struct shore__step *step = &t->steps[i];
        if (step->kind == SHORE__STEP_PREPEND && first) {
            size_t n = strlen(step->to);
            rc = shore__text_append(text, step->to, n);
            if (rc) break;
            memmove(text->bytes + n, text->bytes, text->count - n);
            memcpy(text->bytes, step->to, n);
        } else if (step->kind == SHORE__STEP_REPLACE) {
            rc = replace(step, text, work);
        }
    }
    return rc;
}

int shore__normalize(const struct shore__tokenizer *t, const char *text, size_t bytes, struct shore__text *out) {
    struct shore__text part = {0}, work = {0};
    bool compose = t->nsteps && t->steps[0].kind == SHORE__STEP_NFC;
    int rc = compose ? shore__compose(text, bytes, &part) : shore__text_append(&part, text, bytes);
    if (rc == 0) rc = shore__normalize_rest(t, true, &part, &work);
    if (rc == 0) rc = shore__text_append(out, part.bytes, part.count);
    free(part.bytes);
    free(work.bytes);
    return rc;
}
