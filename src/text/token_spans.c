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

/* Bytes of the text, from `at` on, that a part of a token stands for; SIZE_MAX: it is not there. marks: U+2581 in the
 * text is a space of the token. */
static size_t match(const struct shore__chat_text *text, size_t at, const char *part, size_t bytes, bool marks) {
    const size_t first = at, mark = strlen(SHORE__SPACE_MARK);
    for (size_t i = 0; i < bytes; i++) {
        size_t left = text->bytes - at;
        if (left && text->text[at] == part[i])
            at++;
        else if (marks && part[i] == ' ' && left >= mark && !memcmp(text->text + at, SHORE__SPACE_MARK, mark))
            at += mark;
        else
            return SIZE_MAX;
    }
    return at - first;
}

static bool is_space_at(const struct shore__chat_text *text, size_t at) {
    return at < text->bytes && shore__utf8_is_space(shore__utf8_char(text->text + at));
}

/* Moves *at to the token and returns its bytes there, or SIZE_MAX. Spaces may have gone with the added token beside
 * them, and one may have been put before a text. prepended: one has been. */
static size_t find(const struct shore__chat_text *text, const struct shore__text *token, bool marks, bool prepended,
                   size_t *at) {
    bool spaced = token->count && token->bytes[0] == ' ';
    for (;; *at += shore__utf8_bytes((unsigned char)text->text[*at])) {
        size_t n = prepended && spaced ? SIZE_MAX : match(text, *at, token->bytes, token->count, marks);
        if (n == SIZE_MAX && spaced) n = match(text, *at, token->bytes + 1, token->count - 1, marks);
        if (n != SIZE_MAX || !is_space_at(text, *at)) return n;
    }
}

static bool is_blank(const char *at, bool added) {
    return *at == ' ' || (added && shore__utf8_is_space(shore__utf8_char(at)));
}

/* Leaves out the blanks at the ends of a token, as a post-processor with trim_offsets does. first: the token may begin
 * with a space that was put there. An added token is what is in the text, with the blanks that went with it. */
static void trim(const struct shore__chat_text *text, const struct shore__text *token, bool added, bool first,
                 struct shore__chat_span *own) {
    const char *part = added ? text->text + own->begin : token->bytes;
    const size_t bytes = added ? own->end - own->begin : token->count;
    for (size_t i = 0; i < bytes && is_blank(part + i, added); first = false) {
        i += shore__utf8_bytes((unsigned char)part[i]);
        if (!first && own->begin < own->end) own->begin += shore__utf8_bytes((unsigned char)text->text[own->begin]);
    }
    for (size_t i = bytes, before; i > 0 && own->begin < own->end; i = before) {
        before = added ? shore__utf8_before(part, i) : i - 1;
        if (!is_blank(part + before, added)) break;
        own->end = shore__utf8_before(text->text, own->end);
    }
}

/* Whether a normalizer puts a space before each text between added tokens, also before a space. */
static bool prepends(const struct shore__tokenizer *t) {
    bool found = false;
    for (unsigned i = 0; i < t->nsteps; i++)
        found |= t->steps[i].kind == SHORE__STEP_PREPEND && !strcmp(t->steps[i].to, SHORE__SPACE_MARK);
    return found;
}

/* 1: a token is not where it should be. */
static int follow(const struct shore__tokenizer *t, const struct shore__chat_text *text, const struct shore__ids *ids,
                  bool *counts) {
    struct shore__text token = {0};
    size_t at = 0, span = 0, bytes;
    bool begins = prepends(t), prepended = begins;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < ids->count; i++) {
        const struct shore__added_rule *added =
            shore__vocab_text(&t->added, ids->ids[i], &bytes) ? &t->added_rules[ids->ids[i]] : NULL;
        const size_t before = at;
        rc = surface(t, ids->ids[i], &token);
        size_t n = rc ? 0 : find(text, &token, !t->bpe.byte_level && !added, prepended && !added, &at);
        if (n == SIZE_MAX) rc = 1;
        if (rc) break;
        struct shore__chat_span own = {added && added->lstrip ? before : at, at + n};
        while (added && added->rstrip && is_space_at(text, own.end))
            own.end += shore__utf8_bytes((unsigned char)text->text[own.end]);
        at = own.end;
        if (own.begin == own.end && at < text->bytes) /* it has the character before which it was put */
            own.end += shore__utf8_bytes((unsigned char)text->text[at]);
        if (t->trims) trim(text, &token, added != NULL, t->trims_after_prefix && (i == 0 || own.begin == 0), &own);
        while (span < text->ncounts && text->counts[span].end <= own.begin)
            span++;
        counts[i] = span < text->ncounts && text->counts[span].begin < own.end;
        prepended = begins && added && !added->normalized;
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
