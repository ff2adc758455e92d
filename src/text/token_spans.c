/* Follows the tokens through the text by what each stands for. */
#include "text/token_spans.h"

#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"
#include "text/vector.h"

static int surface(const struct shore__tokenizer *t, uint32_t id, struct shore__text *out) {
    size_t bytes;
    const char byte = (char)id;
    out->count = 0;
    if (t->is_bytes) return shore__text_append(out, &byte, id < SHORE__BYTES_END_OF_TEXT);
    const char *added = shore__vocab_text(&t->added, id, &bytes);
    if (added) return shore__text_append(out, added, bytes);
    const char *text = shore__vocab_text(&t->bpe.vocab, id, &bytes);
    return text ? shore__bpe_decode(&t->bpe, text, bytes, out) : 0;
}

static bool starts(const struct shore__chat_text *text, size_t at, const char *part, size_t bytes) {
    return bytes <= text->bytes - at && !memcmp(text->text + at, part, bytes);
}

/* Moves *at to the token and returns its bytes there, or SIZE_MAX. Spaces may have gone with the added token beside
 * them, and one may have been put before a text. */
static size_t find(const struct shore__chat_text *text, const struct shore__text *token, size_t *at) {
    for (;; *at += shore__utf8_bytes((unsigned char)text->text[*at])) {
        bool spaced = token->count && token->bytes[0] == ' ';
        if (starts(text, *at, token->bytes, token->count)) return token->count;
        if (spaced && starts(text, *at, token->bytes + 1, token->count - 1)) return token->count - 1;
        if (*at >= text->bytes || !shore__utf8_is_space(shore__utf8_char(text->text + *at))) return SIZE_MAX;
    }
}

/* 1: a token is not where it should be. */
static int follow(const struct shore__tokenizer *t, const struct shore__chat_text *text, const struct shore__ids *ids,
                  bool *counts) {
    struct shore__text token = {0};
    size_t at = 0, span = 0;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < ids->count; i++) {
        rc = surface(t, ids->ids[i], &token);
        size_t n = rc ? 0 : find(text, &token, &at);
        if (n == SIZE_MAX) rc = 1;
        if (rc) break;
        while (span < text->ncounts && text->counts[span].end <= at)
            span++;
        counts[i] = span < text->ncounts && text->counts[span].begin < at + (n ? n : 1);
        at += n;
    }
    free(token.bytes);
    return rc;
}

static int append_normal(const struct shore__tokenizer *t, const struct shore__chat_text *text, size_t from, size_t to,
                         struct shore__text *out, struct shore_diag *diag) {
    return from < to ? shore__normalize(t, text->text + from, to - from, out, diag) : 0;
}

/* The text in the normal form of the tokenizer. The caller frees it, also after an error. */
static int normal_form(const struct shore__tokenizer *t, const struct shore__chat_text *text,
                       struct shore__chat_text *out, struct shore_diag *diag) {
    struct shore__text normal = {0};
    size_t at = 0;
    *out = (struct shore__chat_text){.counts = malloc((text->ncounts + 1) * sizeof *out->counts)};
    int rc = out->counts ? 0 : shore__out_of_memory(diag);
    for (; rc == 0 && out->ncounts < text->ncounts; out->ncounts++) {
        const struct shore__chat_span *from = &text->counts[out->ncounts];
        struct shore__chat_span *to = &out->counts[out->ncounts];
        rc = append_normal(t, text, at, from->begin, &normal, diag);
        to->begin = normal.count;
        if (rc == 0) rc = append_normal(t, text, from->begin, from->end, &normal, diag);
        to->end = normal.count;
        at = from->end;
    }
    if (rc == 0) rc = append_normal(t, text, at, text->bytes, &normal, diag);
    out->text = normal.bytes;
    out->bytes = normal.count;
    return rc;
}

int shore__token_spans(const struct shore__tokenizer *t, const struct shore__chat_text *text,
                       const struct shore__ids *ids, bool *counts, struct shore_diag *diag) {
    struct shore__chat_text normal = {0};
    int rc = follow(t, text, ids, counts);
    if (rc == 1 && t->nsteps) {
        rc = normal_form(t, text, &normal, diag);
        if (rc == 0) rc = follow(t, &normal, ids, counts);
    }
    free(normal.text);
    free(normal.counts);
    if (rc == 1)
        return shore__fail(diag, SHORE_EINPUT,
                           "which tokens count cannot be told, because the tokenizer changes the text");
    return rc == -ENOMEM ? shore__out_of_memory(diag) : rc;
}
