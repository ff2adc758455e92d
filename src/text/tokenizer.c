#include "text/tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "files/atomic.h"
#include "files/json.h"
#include "text/tokenizer_impl.h"
#include "text/vector.h"

int shore__tokenizer_bytes(struct shore__tokenizer **out) {
    struct shore__tokenizer *t = calloc(1, sizeof *t);
    if (!t) return -ENOMEM;
    t->vocab = SHORE__BYTES_END_OF_TEXT + 1;
    t->end_of_text = SHORE__BYTES_END_OF_TEXT;
    strcpy(t->name, "bytes");
    *out = t;
    return 0;
}

int shore__tokenizer_open(const char *directory, struct shore__tokenizer **out, struct shore_diag *diag) {
    return shore__fail(diag, SHORE_EMISSING, "%s: has no tokenizer", directory);
}

void shore__tokenizer_close(struct shore__tokenizer *t) {
    if (!t) return;
    free(t->directory);
    free(t);
}

uint32_t shore__tokenizer_vocab(const struct shore__tokenizer *t) {
    return t->vocab;
}

int64_t shore__tokenizer_end_of_text(const struct shore__tokenizer *t) {
    return t->end_of_text;
}

const char *shore__tokenizer_name(const struct shore__tokenizer *t) {
    return t->name;
}

int shore__tokenizer_encode(struct shore__tokenizer *t, const char *text, size_t bytes, bool special,
                            struct shore__ids *out, struct shore_diag *diag) {
    struct shore__encoder *e;
    int rc = shore__encoder_open(t, special, &e);
    if (rc) return shore__fail(diag, rc, "out of memory");
    rc = shore__encoder_feed(e, text, bytes, out, diag);
    if (rc == 0) rc = shore__encoder_end(e, out, diag);
    shore__encoder_close(e);
    return rc;
}

int shore__tokenizer_decode(struct shore__tokenizer *t, const uint32_t *ids, size_t count, struct shore__text *out) {
    for (size_t i = 0; i < count; i++) {
        char byte = (char)ids[i];
        if (ids[i] >= t->vocab) return SHORE_EINPUT;
        if (ids[i] == SHORE__BYTES_END_OF_TEXT) continue;
        if (shore__text_append(out, &byte, 1)) return -ENOMEM;
    }
    return 0;
}
