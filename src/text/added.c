#include "text/added.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/utf8.h"
#include "text/vector.h"

#define PATIENT_BYTES (16u << 10)

int shore__added_set_add(struct shore__added_set *set, const struct shore__added *token) {
    struct shore__added *tokens = realloc(set->tokens, (set->count + 1) * sizeof *tokens);
    if (!tokens) return -ENOMEM;
    set->tokens = tokens;
    set->tokens[set->count++] = *token;
    return 0;
}

static int longest_first(const void *a, const void *b) {
    const struct shore__added *x = a, *y = b;
    if (!x->bytes || !y->bytes) return x->bytes ? -1 : y->bytes ? 1 : x->id > y->id ? 1 : -1;
    unsigned char cx = (unsigned char)x->content[0], cy = (unsigned char)y->content[0];
    if (cx != cy) return cx < cy ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    int order = memcmp(x->content, y->content, x->bytes);
    if (order) return order;
    return x->id < y->id ? -1 : x->id > y->id;
}

void shore__added_set_ready(struct shore__added_set *set) {
    if (set->count) qsort(set->tokens, set->count, sizeof *set->tokens, longest_first);
    while (set->count && set->tokens[set->count - 1].bytes == 0) {
        set->empty = &set->tokens[--set->count]; /* the lowest id counts */
        free(set->tokens[set->count].content);
        set->any_lstrip |= set->empty->lstrip;
    }
    for (uint32_t i = 0; i < set->count; i++) {
        for (unsigned c = (unsigned char)set->tokens[i].content[0] + 1u; c <= 256; c++)
            set->first[c] = i + 1;
        if (set->tokens[i].bytes > set->longest) set->longest = set->tokens[i].bytes;
        set->any_lstrip |= set->tokens[i].lstrip;
    }
    for (uint32_t i = set->count; i-- > 0;) {
        struct shore__added *t = &set->tokens[i];
        bool alike = i + 1 < set->count && t[0].content[0] == t[1].content[0] && t[0].bytes == t[1].bytes;
        t->next = alike ? t[1].next : i + 1;
    }
}

void shore__added_set_fini(struct shore__added_set *set) {
    for (uint32_t i = 0; i < set->count; i++)
        free(set->tokens[i].content);
    free(set->tokens);
    *set = (struct shore__added_set){0};
}

static const struct shore__added *longest_at(const struct shore__added_set *set, const char *text, size_t bytes) {
    unsigned c = (unsigned char)text[0];
    for (uint32_t i = set->first[c], end; i < set->first[c + 1]; i = end) {
        size_t length = set->tokens[i].bytes;
        uint32_t low = i, high = end = set->tokens[i].next;
        if (length > bytes) continue;
        while (low < high) {
            uint32_t middle = low + (high - low) / 2;
            if (memcmp(set->tokens[middle].content, text, length) < 0)
                low = middle + 1;
            else
                high = middle;
        }
        if (low < end && !memcmp(set->tokens[low].content, text, length)) return &set->tokens[low];
    }
    return NULL;
}

static bool is_word(uint32_t c) {
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default: /* joiners, and circled letters, which are Alphabetic */
        return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
               (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
    }
}

static size_t without_spaces_at_end(const char *text, size_t least, size_t bytes) {
    while (bytes > least) {
        size_t at = shore__utf8_before(text, bytes);
        if (!shore__utf8_is_space(shore__utf8_char(text + at))) break;
        bytes = at;
    }
    return bytes;
}

static bool stands_alone(const struct shore__splitter *s, size_t start, size_t end) {
    const char *text = s->text.bytes;
    if (start ? is_word(shore__utf8_char(text + shore__utf8_before(text, start))) : s->after_word) return false;
    return end == s->text.count || !is_word(shore__utf8_char(text + end));
}

static int pass_on(struct shore__splitter *s, size_t from, size_t to) {
    if (from >= to) return 0;
    s->in_pretoken = true;
    return s->on_text(s->ctx, s->text.bytes + from, to - from);
}

static int end_pretoken(struct shore__splitter *s) {
    bool had = s->in_pretoken;
    s->in_pretoken = false;
    return had ? s->on_end(s->ctx) : 0;
}

/* Passes on text that later text cannot change. */
static int split(struct shore__splitter *s, bool final) {
    const char *text = s->text.bytes;
    size_t n = s->text.count, passed = s->passed, at = 0, safe = n, spaces_end = 0;
    int rc = 0;
    /* a place is decided once the longest token and one more character fit behind it */
    size_t margin = s->set->longest + 4;
    while (rc == 0 && (at < n || (at == n && final && s->set->empty)) && (final || n - at > margin)) {
        const struct shore__added *token = at < n ? longest_at(s->set, text + at, n - at) : NULL;
        size_t found = at, found_before = s->found, start = at, end;
        if (!token && s->found != at + 1) token = s->set->empty;
        if (!token) {
            if (at == n) break;
            at += shore__utf8_bytes((unsigned char)text[at]);
            continue;
        }
        end = at + token->bytes;
        s->found = end + 1;
        at = token->bytes ? end : at < n ? at + shore__utf8_bytes((unsigned char)text[at]) : n + 1;
        if (token->special && !s->special) continue;
        if (token->single_word && !stands_alone(s, start, end)) continue;
        if (token->lstrip) start = start > passed ? without_spaces_at_end(text, passed, start) : passed;
        if (token->rstrip && end < spaces_end) end = spaces_end; /* seen behind a token before */
        while (token->rstrip && end < n && shore__utf8_is_space(shore__utf8_char(text + end)))
            end += shore__utf8_bytes((unsigned char)text[end]);
        if (token->rstrip) spaces_end = end;
        if (token->rstrip && end == n && !final) { /* more spaces may follow */
            at = found;
            s->found = found_before;
            break;
        }
        /* The tokenizers library also looks for tokens in the spaces that went with one, and continues behind what it
         * finds: the spaces there are text again. A token that takes spaces on its left finds none left. */
        if (start > end || (start == end && token->bytes)) continue;
        rc = pass_on(s, passed, start);
        if (rc == 0) rc = end_pretoken(s);
        if (rc == 0 && start < end) rc = s->on_token(s->ctx, token->id);
        passed = end;
    }
    if (!final) safe = at;
    if (!final && s->set->any_lstrip && passed < at) safe = without_spaces_at_end(text, passed, safe);
    if (rc == 0) rc = pass_on(s, passed, safe);
    s->passed = passed > safe ? passed - safe : 0;
    s->found = s->found > safe ? s->found - safe : 0;
    if (safe > 0) s->after_word = is_word(shore__utf8_char(text + shore__utf8_before(text, safe)));
    shore__text_drop(&s->text, safe);
    return rc;
}

int shore__splitter_feed(struct shore__splitter *s, const char *text, size_t bytes) {
    if (bytes == 0) return 0;
    if (s->set->count == 0 && !s->set->empty) {
        s->in_pretoken = true;
        return s->on_text(s->ctx, text, bytes);
    }
    int rc = shore__text_append(&s->text, text, bytes);
    if (rc || s->text.count < s->patience) return rc;
    rc = split(s, false);
    /* do not search again and again through spaces that may still go with a token */
    s->patience = s->text.count > PATIENT_BYTES ? s->text.count + s->text.count / 2 : 0;
    return rc;
}

int shore__splitter_end(struct shore__splitter *s) {
    int rc = s->text.count ? split(s, true) : 0;
    if (rc == 0) rc = end_pretoken(s);
    s->after_word = false;
    s->found = s->patience = 0;
    return rc;
}
