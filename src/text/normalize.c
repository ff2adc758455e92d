/* Normalizes text that comes in parts, with the normalizers of tokenizer.json one after the other. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/diag.h"
#include "text/tokenizer_impl.h"
#include "text/unicode_table.h"
#include "text/utf8.h"
#include "text/vector.h"

#define HELD_LIMIT_BYTES (1u << 20)

#define IN_RANGES(c, ranges) in_ranges(c, ranges, sizeof(ranges) / sizeof *(ranges))
static bool in_ranges(uint32_t c, const uint32_t (*ranges)[2], size_t n) {
    size_t low = 0;
    for (size_t high = n; low < high;) {
        size_t middle = low + (high - low) / 2;
        if (ranges[middle][1] < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && ranges[low][0] <= c;
}

static int put_char(struct shore__text *out, uint32_t c) {
    utf8proc_uint8_t bytes[4];
    return shore__text_append(out, (char *)bytes, (size_t)utf8proc_encode_char((utf8proc_int32_t)c, bytes));
}

/* Whether composition can be cut before a character: neither it nor its decomposition ever joins the text before it.
 * Those that do join are only marks, Hangul's vowels and finals in their several forms, and the vowels of Kirat Rai. */
static bool composes_alone(uint32_t c) {
    if (c < 0x300) return true;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CN:
        return false;
    default:
        return !((c >= 0x1100 && c <= 0x11FF) || (c >= 0xD7B0 && c <= 0xD7FF) || (c >= 0x3131 && c <= 0x318E) ||
                 (c >= 0xFF9E && c <= 0xFFDC) || (c >= 0x16D40 && c <= 0x16D7F));
    }
}

static size_t last_place_to_cut(const char *text, size_t bytes) {
    for (size_t i = bytes; i > 0;) {
        i--;
        if (((unsigned char)text[i] & 0xC0) != 0x80 && composes_alone(shore__utf8_char(text + i))) return i;
    }
    return 0;
}

static int map_known(utf8proc_option_t form, const char *text, size_t bytes, struct shore__text *out) {
    utf8proc_uint8_t *mapped;
    if (bytes == 0) return 0;
    utf8proc_ssize_t n =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, &mapped, UTF8PROC_STABLE | form);
    if (n < 0) return -ENOMEM; /* the text is valid, so only memory can fail */
    int rc = shore__text_append(out, (char *)mapped, (size_t)n);
    free(mapped);
    return rc;
}

/* Maps to Unicode's normal forms. Characters that the tokenizers library does not know yet divide the text. */
static int map(enum shore__step_kind kind, const char *text, size_t bytes, struct shore__text *out) {
    bool compat = kind == SHORE__STEP_NFKC || kind == SHORE__STEP_NFKD, touched = false;
    bool composes = kind == SHORE__STEP_NFC || kind == SHORE__STEP_NFKC;
    utf8proc_option_t form = (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (compat ? UTF8PROC_COMPAT : 0);
    /* below U+0300 nothing composes, below U+0080 nothing decomposes */
    unsigned char first = kind == SHORE__STEP_NFC ? 0xCC : 0xC2;
    size_t start = 0;
    for (size_t i = 0; i < bytes && !touched; i++)
        touched = (unsigned char)text[i] >= first;
    if (!touched) return shore__text_append(out, text, bytes);
    for (size_t i = 0, n; i < bytes; i += n) {
        n = shore__utf8_bytes((unsigned char)text[i]);
        if (n < 2 || !IN_RANGES(shore__utf8_char(text + i), shore__uncomposed)) continue;
        if (map_known(form, text + start, i - start, out) || shore__text_append(out, text + i, n)) return -ENOMEM;
        start = i + n;
    }
    return map_known(form, text + start, bytes - start, out);
}

static int put_lowercase(struct shore__text *out, uint32_t c) {
    if (c == 0x130) return shore__text_append(out, "i\xCC\x87", 3);
    for (size_t i = 0; i < sizeof shore__other_cases / sizeof *shore__other_cases; i++)
        if ((int32_t)c >= shore__other_cases[i][0] && (int32_t)c <= shore__other_cases[i][1])
            return put_char(out, (uint32_t)((int32_t)c + shore__other_cases[i][2]));
    return put_char(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
}

static bool is_mark(uint32_t c) {
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    bool mark =
        category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
    return mark != IN_RANGES(c, shore__other_marks);
}

/* Applies a step to each character alone. */
static int each_char(enum shore__step_kind kind, const char *text, size_t bytes, struct shore__text *out) {
    for (size_t i = 0, n; i < bytes; i += n) {
        n = shore__utf8_bytes((unsigned char)text[i]);
        uint32_t c = shore__utf8_char(text + i);
        int rc = 0;
        if (kind == SHORE__STEP_LOWERCASE && (n > 1 || (c >= 'A' && c <= 'Z')))
            rc = put_lowercase(out, c);
        else if (n == 1 || !is_mark(c))
            rc = shore__text_append(out, text + i, n);
        if (rc) return rc;
    }
    return 0;
}

static size_t spaces_at_start(const char *text, size_t bytes) {
    size_t at = 0;
    while (at < bytes && shore__utf8_is_space(shore__utf8_char(text + at)))
        at += shore__utf8_bytes((unsigned char)text[at]);
    return at;
}

static size_t end_without_spaces(const char *text, size_t bytes) {
    size_t end = 0;
    for (size_t i = 0; i < bytes;) {
        bool space = shore__utf8_is_space(shore__utf8_char(text + i));
        i += shore__utf8_bytes((unsigned char)text[i]);
        if (!space) end = i;
    }
    return end;
}

/* Strips spaces at the ends. Spaces wait for the text behind them. */
static int strip(struct shore__normalizing *n, unsigned i, const char *text, size_t bytes, struct shore__text *out) {
    const struct shore__step *step = &n->t->steps[i];
    struct shore__text *held = &n->at[i].held;
    if (step->left && !n->at[i].begun) {
        size_t spaces = spaces_at_start(text, bytes);
        text += spaces;
        bytes -= spaces;
        n->at[i].begun = bytes > 0;
    }
    size_t end = step->right ? end_without_spaces(text, bytes) : bytes;
    if (end > 0) {
        if (shore__text_append(out, held->bytes, held->count) || shore__text_append(out, text, end)) return -ENOMEM;
        held->count = 0;
    }
    return shore__text_append(held, text + end, bytes - end);
}

static int replace(struct shore__normalizing *n, unsigned i, bool final, struct shore__text *out,
                   struct shore_diag *diag) {
    const struct shore__step *step = &n->t->steps[i];
    struct shore__text *held = &n->at[i].held;
    int before = n->at[i].begun ? n->at[i].before : SHORE__PATTERN_BEGINS, found = 0;
    size_t at = 0, start, end, to_bytes = strlen(step->to);
    while (at < held->count && (found = shore__pattern_find(step->pattern, n->matcher, held->bytes, held->count, at,
                                                            before, final, &start, &end)) == 1) {
        if (shore__text_append(out, held->bytes + at, start - at) || shore__text_append(out, step->to, to_bytes))
            return -ENOMEM;
        at = end;
    }
    if (found < 0)
        return shore__fail(diag, found, "a normalizer's pattern needs more work or memory than is allowed here");
    size_t used = found == 2 ? start : held->count;
    if (used > at && shore__text_append(out, held->bytes + at, used - at)) return -ENOMEM;
    if (used < at) used = at;
    if (used > 0) {
        n->at[i].before = (unsigned char)held->bytes[used - 1];
        n->at[i].begun = true;
        shore__text_drop(held, used);
    }
    return 0;
}

static int run_step(struct shore__normalizing *n, unsigned i, const char *text, size_t bytes, bool final,
                    struct shore__text *out, struct shore_diag *diag) {
    const struct shore__step *step = &n->t->steps[i];
    struct shore__text *held = &n->at[i].held;
    int rc = 0;
    switch (step->kind) {
    case SHORE__STEP_LOWERCASE:
    case SHORE__STEP_STRIP_ACCENTS:
        return each_char(step->kind, text, bytes, out);
    case SHORE__STEP_STRIP:
        rc = strip(n, i, text, bytes, out);
        break;
    case SHORE__STEP_PREPEND:
        if (bytes && !n->at[i].begun) rc = shore__text_append(out, step->to, strlen(step->to));
        n->at[i].begun |= bytes > 0;
        return rc ? rc : shore__text_append(out, text, bytes);
    case SHORE__STEP_REPLACE:
        rc = shore__text_append(held, text, bytes);
        if (rc == 0) rc = replace(n, i, final, out, diag);
        break;
    default: {
        rc = shore__text_append(held, text, bytes);
        size_t whole = final ? held->count : last_place_to_cut(held->bytes, held->count);
        if (rc == 0) rc = map(step->kind, held->bytes, whole, out);
        if (whole) shore__text_drop(held, whole);
    }
    }
    if (rc == 0 && held->count > HELD_LIMIT_BYTES && !final)
        rc = shore__fail(diag, SHORE_EINPUT, "a normalizer finds no place to divide more than %u bytes of text",
                         HELD_LIMIT_BYTES);
    return rc;
}

static int pass(struct shore__normalizing *n, unsigned i, const char *text, size_t bytes, bool final,
                struct shore_diag *diag) {
    if (i == n->t->nsteps) return bytes ? n->sink(n->ctx, text, bytes) : 0;
    if (bytes == 0 && !final) return 0;
    struct shore__text *out = &n->at[i].out;
    out->count = 0;
    int rc = run_step(n, i, text, bytes, final, out, diag);
    if (final) {
        n->at[i].held.count = 0;
        n->at[i].begun = false;
    }
    return rc ? rc : pass(n, i + 1, out->bytes, out->count, final, diag);
}

int shore__normalizing_feed(struct shore__normalizing *n, const char *text, size_t bytes, struct shore_diag *diag) {
    return pass(n, 0, text, bytes, false, diag);
}

int shore__normalizing_end(struct shore__normalizing *n, struct shore_diag *diag) {
    return pass(n, 0, "", 0, true, diag);
}

void shore__normalizing_reset(struct shore__normalizing *n) {
    for (unsigned i = 0; i < SHORE__STEP_LIMIT; i++) {
        n->at[i].begun = false;
        n->at[i].held.count = 0;
    }
}

void shore__normalizing_fini(struct shore__normalizing *n) {
    for (unsigned i = 0; i < SHORE__STEP_LIMIT; i++) {
        free(n->at[i].held.bytes);
        free(n->at[i].out.bytes);
    }
}

static int append(void *ctx, const char *text, size_t bytes) {
    return shore__text_append(ctx, text, bytes);
}

int shore__normalize(const struct shore__tokenizer *t, const char *text, size_t bytes, struct shore__text *out,
                     struct shore_diag *diag) {
    struct shore__normalizing n = {.t = t, .sink = append, .ctx = out};
    bool searches = false;
    for (unsigned i = 0; i < t->nsteps; i++)
        searches |= t->steps[i].pattern != NULL;
    if (searches && !(n.matcher = shore__matcher_open())) return -ENOMEM;
    int rc = shore__normalizing_feed(&n, text, bytes, diag);
    if (rc == 0) rc = shore__normalizing_end(&n, diag);
    shore__normalizing_fini(&n);
    shore__matcher_close(n.matcher);
    return rc;
}
