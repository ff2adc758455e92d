#include "text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <errno.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "text/streaming_match.h"
#include "text/vector.h"

#define PATTERN_LIMIT_BYTES 16384u
#define MATCH_LIMIT 20000000u
#define HEAP_LIMIT_KIB 16384u
#define DEPTH_LIMIT 10000u
#define JIT_STACK_BYTES (512u << 10)
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
/* outside brackets, Oniguruma uses its own table below U+0100, which also counts these */
#define WORD_ALONE WORD "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"

struct shore__pattern {
    pcre2_code *code;
    struct shore__machine *machine;
    bool begins; /* one of its anchors stands for the start of a text, not of a line */
};

struct shore__matcher {
    pcre2_match_data *match;
    pcre2_match_context *limits;
    pcre2_jit_stack *stack;
};

struct translation {
    const char *text;
    size_t bytes, at;
    bool line_start, text_start; /* the pattern has such anchors */
    struct shore__text out;
    struct shore_diag *diag;
};

static int add(struct translation *t, const char *text) {
    return shore__text_append(&t->out, text, strlen(text)) ? shore__fail(t->diag, -ENOMEM, "out of memory") : 0;
}

static int refuse(struct translation *t, const char *what) {
    char shown[160];
    return shore__fail(t->diag, SHORE_EINPUT, "the pattern \"%s\" has %s, which is not supported",
                       shore__escape(t->text, t->bytes, shown, sizeof shown), what);
}

static char peek(const struct translation *t, size_t ahead) {
    return t->at + ahead < t->bytes ? t->text[t->at + ahead] : 0;
}

static int copy(struct translation *t, size_t n) {
    if (n > t->bytes - t->at) return refuse(t, "an unfinished escape");
    if (shore__text_append(&t->out, t->text + t->at, n)) return shore__fail(t->diag, -ENOMEM, "out of memory");
    t->at += n;
    return 0;
}

/* \x{1F600}, \p{L}, \P{^Lu} */
static int copy_braced(struct translation *t) {
    size_t n = 3;
    if (peek(t, 2) != '{') return refuse(t, "\\x, \\p or \\P without braces");
    while (peek(t, n) && peek(t, n) != '}')
        n++;
    return peek(t, n) ? copy(t, n + 1) : refuse(t, "an unfinished escape");
}

/* Translates Oniguruma's ^ and $, which are those of lines. PCRE2 decides on ^ behind the last line's end, and on \Z
 * before it, without the text that may follow; so the translation makes it look. */
static int anchor(struct translation *t, size_t n) {
    static const struct {
        const char *name, *translated;
    } anchors[] = {{"^", "^(?=[\\s\\S])"}, {"$", "$"}, {"\\A", "(?-m:^)"}, {"\\z", "\\z"}, {"\\Z", "(?=\\n?\\z)"}};
    size_t i = 0;
    while (strncmp(anchors[i].name, t->text + t->at, n) != 0)
        i++;
    t->line_start |= i == 0;
    t->text_start |= i == 2;
    t->at += n;
    if (t->line_start && t->text_start) return refuse(t, "both ^ and \\A");
    if (t->at < t->bytes && strchr("*+?{", peek(t, 0))) return refuse(t, "a repeated anchor");
    return add(t, anchors[i].translated);
}

static int escape(struct translation *t, bool in_class) {
    char c = peek(t, 1), buffer[16];
    int rc;
    switch (c) {
    case 's':
        rc = add(t, "\\p{White_Space}");
        break;
    case 'S':
        rc = add(t, "\\P{White_Space}");
        break;
    case 'w':
        rc = add(t, in_class ? WORD : "[" WORD_ALONE "]");
        break;
    case 'W':
        rc = in_class ? refuse(t, "\\W in brackets") : add(t, "[^" WORD_ALONE "]");
        break;
    case 'd':
        rc = add(t, "\\p{Nd}");
        break;
    case 'D':
        rc = add(t, "\\P{Nd}");
        break;
    case 'x':
    case 'p':
    case 'P':
        return copy_braced(t);
    case 'u':
        if (strspn(t->text + t->at + 2, "0123456789abcdefABCDEF") < 4) return refuse(t, "an unfinished escape");
        snprintf(buffer, sizeof buffer, "\\x{%.4s}", t->text + t->at + 2);
        t->at += 4;
        rc = add(t, buffer);
        break;
    case 'n':
    case 'r':
    case 't':
    case 'f':
        return copy(t, 2);
    case 'A':
    case 'z':
    case 'Z':
        return in_class ? refuse(t, "an escape of another kind") : anchor(t, 2);
    default:
        if (!c || !strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ", c)) return refuse(t, "an escape of another kind");
        return copy(t, 2);
    }
    t->at += 2;
    return rc;
}

static int bracket(struct translation *t) {
    int rc = copy(t, peek(t, 1) == '^' ? 2 : 1);
    bool first = true;
    while (rc == 0) {
        char c = peek(t, 0);
        if (!c) return refuse(t, "an unfinished bracket");
        if (c == ']' && !first) return copy(t, 1);
        if (c == '[' || c == ']' || (c == '&' && peek(t, 1) == '&')) return refuse(t, "a class inside brackets");
        rc = c == '\\' ? escape(t, true) : copy(t, 1);
        first = false;
    }
    return rc;
}

static int group(struct translation *t) {
    static const char *const known[] = {"(?:", "(?=", "(?!", "(?>", "(?i:"};
    if (peek(t, 1) != '?') return peek(t, 1) == '*' ? refuse(t, "a verb") : copy(t, 1);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strncmp(t->text + t->at, known[i], strlen(known[i]))) return copy(t, strlen(known[i]));
    if (t->at == 0 && !strncmp(t->text, "(?i)", 4)) return copy(t, 4);
    return refuse(t, "a group of another kind than (?:, (?=, (?!, (?>, (?i:");
}

static int translate(struct translation *t) {
    int rc = 0;
    while (rc == 0 && t->at < t->bytes) {
        char c = peek(t, 0);
        if (c == '\\')
            rc = escape(t, false);
        else if (c == '[')
            rc = bracket(t);
        else if (c == '(')
            rc = group(t);
        else if (c == '^' || c == '$')
            rc = anchor(t, 1);
        else if (c == 0)
            rc = refuse(t, "the character U+0000");
        else if (c == '{' && peek(t, 1) == ',')
            rc = refuse(t, "{,n}");
        else if (c == '}' && peek(t, 1) == '+')
            rc = refuse(t, "{n,m}+");
        else
            rc = copy(t, 1);
    }
    return rc;
}

static int quote(struct translation *t) {
    for (; t->at < t->bytes;) {
        bool plain = (t->text[t->at] & 0x80) ||
                     strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ", t->text[t->at]);
        int rc = t->text[t->at] == 0 ? refuse(t, "the character U+0000") : plain ? 0 : add(t, "\\");
        if (rc == 0) rc = copy(t, 1);
        if (rc) return rc;
    }
    return 0;
}

static int compile_as(const struct translation *t, const char *text, size_t bytes, uint32_t options, pcre2_code **out) {
    int code;
    size_t offset;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) return shore__out_of_memory(t->diag);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, 50);
    *out = pcre2_compile((PCRE2_SPTR)text, bytes, options | PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code,
                         &offset, context);
    pcre2_compile_context_free(context);
    if (*out) return 0;
    char shown[160], why[128];
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
    return shore__fail(t->diag, SHORE_EINPUT, "the pattern \"%s\" cannot be used: %s",
                       shore__escape(t->text, t->bytes, shown, sizeof shown), why);
}

static int compile(struct shore__pattern *p, struct translation *t) {
    uint32_t behind = 0, empty = 0;
    int rc = compile_as(t, t->out.bytes, t->out.count, PCRE2_MULTILINE | PCRE2_ALT_CIRCUMFLEX, &p->code);
    if (rc) return rc;
    pcre2_pattern_info(p->code, PCRE2_INFO_MAXLOOKBEHIND, &behind);
    pcre2_pattern_info(p->code, PCRE2_INFO_MATCHEMPTY, &empty);
    /* PCRE2 counts \A, which gets what it needs */
    if (behind > t->text_start) return refuse(t, "a look at what was before");
    p->begins = t->text_start;
    if (empty) return refuse(t, "a way to match the empty text");
    /* where JIT is refused (hardened kernels), the interpreter gives the same matches */
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
    p->machine = shore__machine_open(t->out.bytes, t->out.count);
    return 0;
}

struct shore__matcher *shore__matcher_open(void) {
    struct shore__matcher *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->match = pcre2_match_data_create(1, NULL);
    m->limits = pcre2_match_context_create(NULL);
    if (!m->match || !m->limits) {
        shore__matcher_close(m);
        return NULL;
    }
    pcre2_set_match_limit(m->limits, MATCH_LIMIT);
    pcre2_set_heap_limit(m->limits, HEAP_LIMIT_KIB);
    pcre2_set_depth_limit(m->limits, DEPTH_LIMIT);
    m->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_BYTES, NULL); /* NULL: it uses a smaller one */
    if (m->stack) pcre2_jit_stack_assign(m->limits, NULL, m->stack);
    return m;
}

void shore__matcher_close(struct shore__matcher *m) {
    if (!m) return;
    pcre2_match_data_free(m->match);
    pcre2_match_context_free(m->limits);
    pcre2_jit_stack_free(m->stack);
    free(m);
}

int shore__pattern_open(const char *text, size_t bytes, bool literal, struct shore__pattern **out,
                        struct shore_diag *diag) {
    struct translation t = {.text = text, .bytes = bytes, .diag = diag};
    struct shore__pattern *p = calloc(1, sizeof *p);
    if (!p) return shore__out_of_memory(diag);
    int rc = bytes == 0 ? refuse(&t, "no characters") : 0;
    if (bytes > PATTERN_LIMIT_BYTES) rc = refuse(&t, "more characters than is sensible");
    if (rc == 0) rc = literal ? quote(&t) : translate(&t);
    if (rc == 0) rc = compile(p, &t);
    free(t.out.bytes);
    if (rc) {
        shore__pattern_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

void shore__pattern_close(struct shore__pattern *p) {
    if (!p) return;
    pcre2_code_free(p->code);
    shore__machine_close(p->machine);
    free(p);
}

pcre2_match_data *shore__matcher_data(struct shore__matcher *m) {
    return m->match;
}

const struct shore__machine *shore__pattern_machine(const struct shore__pattern *p) {
    return p->machine;
}

int shore__pattern_find(const struct shore__pattern *p, struct shore__matcher *m, const char *text, size_t bytes,
                        size_t from, int before, bool final, size_t *start, size_t *end) {
    bool continues = before != SHORE__PATTERN_BEGINS && (p->begins || before != '\n');
    uint32_t options = PCRE2_NO_UTF_CHECK | (final ? 0 : PCRE2_PARTIAL_HARD) | (continues ? PCRE2_NOTBOL : 0);
    int n = pcre2_match(p->code, (PCRE2_SPTR)text, bytes, from, options, m->match, m->limits);
    if (n == PCRE2_ERROR_NOMATCH) return 0;
    if (n == PCRE2_ERROR_NOMEMORY) return -ENOMEM;
    if (n < 0 && n != PCRE2_ERROR_PARTIAL) return SHORE_EINPUT;
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(m->match);
    /* \K is refused, so the end is never before the start; the match is not empty either */
    *start = range[0];
    *end = range[1];
    if (n == PCRE2_ERROR_PARTIAL) return 2;
    return *end > *start ? 1 : SHORE_EINPUT;
}

int shore__pattern_of_python(const char *expression, bool whole, const char *text, size_t *end,
                             struct shore_diag *diag) {
    struct translation t = {.text = expression, .bytes = strlen(expression), .diag = diag};
    struct shore__matcher *m = shore__matcher_open();
    pcre2_code *code = NULL;
    int rc = m ? 0 : shore__out_of_memory(diag);
    if (rc == 0 && t.bytes > PATTERN_LIMIT_BYTES) rc = refuse(&t, "more characters than is sensible");
    if (rc == 0 && (strstr(expression, "{,") || (strstr(expression, "[:") && strstr(expression, ":]"))))
        rc = refuse(&t, "{,n} or [:");
    if (rc == 0) rc = compile_as(&t, expression, t.bytes, PCRE2_ANCHORED | (whole ? PCRE2_ENDANCHORED : 0), &code);
    if (rc == 0) {
        pcre2_set_match_limit(m->limits, MATCH_LIMIT / 100); /* names are short */
        int n = pcre2_match(code, (PCRE2_SPTR)text, strlen(text), 0, 0, m->match, m->limits);
        rc = n >= 0 ? 1 : n == PCRE2_ERROR_NOMATCH ? 0 : refuse(&t, "a way to take too long");
        *end = n >= 0 ? pcre2_get_ovector_pointer(m->match)[1] : 0;
    }
    pcre2_code_free(code);
    shore__matcher_close(m);
    return rc;
}
