#include <errno.h>
#include <stdlib.h>

#include "text/tokenizer_impl.h"
#include "text/vector.h"

struct shore__encoder {
    struct shore__tokenizer *tokenizer;
    bool special;
};

int shore__encoder_open(struct shore__tokenizer *t, bool special, struct shore__encoder **out) {
    struct shore__encoder *e = calloc(1, sizeof *e);
    if (!e) return -ENOMEM;
    e->tokenizer = t;
    e->special = special;
    *out = e;
    return 0;
}

int shore__encoder_feed(struct shore__encoder *e, const char *text, size_t bytes, struct shore__ids *out,
                        struct shore_diag *diag) {
    for (size_t i = 0; i < bytes; i++)
        if (shore__ids_push(out, (unsigned char)text[i])) return -ENOMEM;
    return 0;
}

int shore__encoder_end(struct shore__encoder *e, struct shore__ids *out, struct shore_diag *diag) {
    return 0;
}

void shore__encoder_close(struct shore__encoder *e) {
    free(e);
}
