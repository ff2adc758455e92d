#include "text/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "text/tokenizer_impl.h"
#include "text/vector.h"

int shore__tokenizer_bytes(struct shore__tokenizer **out) {
    struct shore__tokenizer *t = calloc(1, sizeof *t);
    if (!t) return -ENOMEM;
    t->is_bytes = true;
    t->vocab = t->needed = SHORE__BYTES_END_OF_TEXT + 1;
    t->end_of_text = SHORE__BYTES_END_OF_TEXT;
    t->behind = -1;
    strcpy(t->name, "bytes");
    *out = t;
    return 0;
}

void shore__tokenizer_drop_rules(struct shore__tokenizer *t) {
    for (unsigned i = 0; i < t->nsteps; i++) {
        shore__pattern_close(t->steps[i].pattern);
        free(t->steps[i].to);
    }
    for (unsigned i = 0; i < t->nstages; i++) {
        shore__pattern_close(t->stages[i].pattern);
        free(t->stages[i].text);
    }
    t->nsteps = t->nstages = 0;
    t->bpe.byte_level = t->space_marks = t->strip_first_space = false;
    t->prepend = SHORE__PREPEND_NEVER;
}

void shore__tokenizer_close(struct shore__tokenizer *t) {
    if (!t) return;
    shore__bpe_fini(&t->bpe);
    shore__added_set_fini(&t->raw);
    shore__added_set_fini(&t->normalized);
    shore__vocab_fini(&t->added);
    shore__tokenizer_drop_rules(t);
    free(t->added_rules);
    free(t->directory);
    free(t);
}

uint32_t shore__tokenizer_vocab(const struct shore__tokenizer *t) {
    return t->vocab;
}

uint32_t shore__tokenizer_needed(const struct shore__tokenizer *t) {
    return t->needed;
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

static int decode_byte(uint32_t id, struct shore__text *out) {
    char byte = (char)id;
    return id == SHORE__BYTES_END_OF_TEXT ? 0 : shore__text_append(out, &byte, 1);
}

int shore__tokenizer_decode(struct shore__tokenizer *t, const uint32_t *ids, size_t count, struct shore__text *out) {
    bool first = out->count == 0;
    for (size_t i = 0; i < count; i++) {
        size_t bytes;
        int rc = 0;
        if (ids[i] >= t->vocab) continue;
        const char *added = shore__vocab_text(&t->added, ids[i], &bytes);
        const char *text = added ? added : shore__vocab_text(&t->bpe.vocab, ids[i], &bytes);
        if (t->is_bytes)
            rc = decode_byte(ids[i], out);
        else if (added && t->added_rules[ids[i]].special)
            continue;
        else if (added && t->bpe.byte_level) /* not in byte characters, though it may look so */
            rc = shore__text_append(out, text, bytes);
        else if (text)
            rc = shore__bpe_decode(&t->bpe, text, bytes, out);
        if (rc) return rc;
        if (!first || out->count == 0) continue;
        if (t->strip_first_space && out->bytes[0] == ' ') shore__text_drop(out, 1);
        first = false;
    }
    return 0;
}
