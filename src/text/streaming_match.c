#include "text/streaming_match.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <errno.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/utf8.h"

#define STEPS_MOST 4096
#define KINDS_MOST 256
#define DEPTH_MOST 50
#define TABLE_CHARS 0x400u

enum op { CHAR, LOOK, LOOK_NOT, SPLIT, MATCH };
/* A step of the machine. SPLIT goes to `next` rather than to `other`; the other kinds go to the step behind them. */
struct step {
    enum op op;
    uint16_t next, other, kind;
};

struct kind { /* of characters */
    const char *text;
    size_t bytes;
    bool any_case;
    pcre2_code *code;
    unsigned char table[TABLE_CHARS / 8];
};

struct shore__machine {
    struct step steps[STEPS_MOST];
    uint16_t nsteps;
    struct kind kinds[KINDS_MOST];
    unsigned nkinds;
    pcre2_match_data *match; /* for making the tables */
    /* only while the machine is made */
    const char *end;
    bool any_case;
    unsigned depth;
};

static bool in_pcre(const struct kind *k, const char *c, size_t bytes, pcre2_match_data *match) {
    return pcre2_match(k->code, (PCRE2_SPTR)c, bytes, 0, PCRE2_NO_UTF_CHECK, match, NULL) > 0;
}

static bool make_kind(struct shore__machine *m, struct kind *k) {
    char text[1024];
    int code, n = snprintf(text, sizeof text, "(?%s:%.*s)", k->any_case ? "i" : "", (int)k->bytes, k->text);
    size_t at;
    if (n < 0 || (size_t)n >= sizeof text) return false;
    k->code = pcre2_compile((PCRE2_SPTR)text, (size_t)n,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_NEVER_BACKSLASH_C, &code,
                            &at, NULL);
    if (!k->code) return false;
    pcre2_jit_compile(k->code, PCRE2_JIT_COMPLETE);
    for (uint32_t c = 0; c < TABLE_CHARS; c++) {
        char utf8[2];
        if (in_pcre(k, utf8, shore__utf8_put_short(utf8, c), m->match)) k->table[c / 8] |= (unsigned char)(1u << c % 8);
    }
    return true;
}

/* The character's kind; -1: unknown. */
static int kind_of(struct shore__machine *m, const char *text, size_t bytes) {
    for (unsigned i = 0; i < m->nkinds; i++) {
        const struct kind *k = &m->kinds[i];
        if (k->bytes == bytes && k->any_case == m->any_case && !memcmp(k->text, text, bytes)) return (int)i;
    }
    if (m->nkinds == KINDS_MOST) return -1;
    struct kind *k = &m->kinds[m->nkinds++];
    *k = (struct kind){.text = text, .bytes = bytes, .any_case = m->any_case};
    return make_kind(m, k) ? (int)m->nkinds - 1 : -1;
}

/* End of the atom that starts at p; NULL: there is none, or it is an anchor. */
static const char *atom_end(const struct shore__machine *m, const char *p) {
    if (*p == '\\') {
        if (p + 1 >= m->end) return NULL;
        bool braced = strchr("xpP", p[1]) && p + 2 < m->end && p[2] == '{';
        const char *brace = braced ? memchr(p, '}', (size_t)(m->end - p)) : p + 1;
        return brace ? brace + 1 : NULL;
    }
    if (*p == '[') {
        p += p + 1 < m->end && p[1] == '^' ? 2 : 1;
        for (bool first = true; p < m->end && (first || *p != ']'); first = false)
            p += *p == '\\' ? 2 : 1;
        return p < m->end ? p + 1 : NULL;
    }
    if (*p == '(') {
        for (p++; p && p < m->end && *p != ')';)
            p = atom_end(m, p);
        return p && p < m->end ? p + 1 : NULL;
    }
    return p + shore__utf8_bytes((unsigned char)*p);
}

static bool is_char(const char *p) {
    if (*p == '\\') return strchr("xpPnrtf", p[1]) || !((p[1] >= 'a' && p[1] <= 'z') || (p[1] >= 'A' && p[1] <= 'Z'));
    return !strchr("(^$|)*+?{", *p);
}

static bool add(struct shore__machine *m, struct step step) {
    if (m->nsteps == STEPS_MOST) return false;
    m->steps[m->nsteps++] = step;
    return true;
}

static bool add_kind(struct shore__machine *m, enum op op, const char *text, size_t bytes) {
    int kind = kind_of(m, text, bytes);
    return kind >= 0 && add(m, (struct step){.op = op, .kind = (uint16_t)kind});
}

static bool add_split(struct shore__machine *m, unsigned next, unsigned other, bool lazy) {
    return add(m, (struct step){
                      .op = SPLIT, .next = (uint16_t)(lazy ? other : next), .other = (uint16_t)(lazy ? next : other)});
}

static const char *add_alternatives(struct shore__machine *m, const char *p);

static bool add_group(struct shore__machine *m, const char *p, const char *end) {
    bool before = m->any_case, look = !strncmp(p, "(?=", 3) || !strncmp(p, "(?!", 3);
    if (look)
        return is_char(p + 3) && atom_end(m, p + 3) == end - 1 &&
               add_kind(m, p[2] == '=' ? LOOK : LOOK_NOT, p + 3, (size_t)(end - 1 - (p + 3)));
    bool any_case = !strncmp(p, "(?i:", 4);
    if (p[1] == '?' && !any_case && strncmp(p, "(?:", 3) != 0) return false;
    p += any_case ? 4 : p[1] == '?' ? 3 : 1;
    m->any_case |= any_case;
    bool done = m->depth++ < DEPTH_MOST && add_alternatives(m, p) == end - 1;
    m->depth--;
    m->any_case = before;
    return done;
}

static bool add_atom(struct shore__machine *m, const char *p, const char *end) {
    if (*p == '(') return add_group(m, p, end);
    return is_char(p) && add_kind(m, CHAR, p, (size_t)(end - p));
}

struct quantifier {
    unsigned least, most; /* most UINT_MAX: unlimited */
    bool lazy, possessive;
};

static const char *read_quantifier(const struct shore__machine *m, const char *p, struct quantifier *q) {
    char *behind;
    *q = (struct quantifier){1, 1, false, false};
    if (p == m->end || !strchr("*+?{", *p)) return p;
    if (*p != '{') {
        q->least = *p == '+';
        q->most = *p++ == '?' ? 1 : UINT32_MAX;
    } else {
        if (p[1] < '0' || p[1] > '9') return NULL; /* a literal brace */
        q->least = q->most = (unsigned)strtoul(p + 1, &behind, 10);
        if (*behind == ',') {
            bool open = *++behind == '}';
            q->most = open ? UINT32_MAX : (unsigned)strtoul(behind, &behind, 10);
        }
        if (*behind != '}' || q->least > q->most || (q->most != UINT32_MAX && q->most > STEPS_MOST)) return NULL;
        p = behind + 1;
    }
    if (p < m->end && (*p == '?' || *p == '+')) {
        q->lazy = *p == '?';
        q->possessive = *p++ == '+';
    }
    return p;
}

/* Whether a path leads from a step to the end of the machine without a character: a loop of these might not end. */
static bool passes_empty(const struct shore__machine *m, unsigned from, unsigned depth) {
    for (; from < m->nsteps; from++) {
        const struct step *s = &m->steps[from];
        if (s->op == CHAR) return false;
        if (s->op != SPLIT) continue;
        if (depth == 0 || passes_empty(m, s->other, depth - 1)) return true;
        from = s->next - 1u;
    }
    return true;
}

static bool add_repeated(struct shore__machine *m, const char *p, const char *end, const struct quantifier *q) {
    uint16_t options[STEPS_MOST / 8], noptions = 0;
    if (q->possessive && *p == '(') return false;
    if (*p == '(' && (p[1] == '?' && (p[2] == '=' || p[2] == '!')) && (q->least != 1 || q->most != 1)) return false;
    for (unsigned i = 0; i < q->least; i++)
        if (!add_atom(m, p, end)) return false;
    bool done = true;
    if (q->most == UINT32_MAX) {
        unsigned loop = m->nsteps;
        done = add_split(m, loop + 1u, 0, q->lazy) && add_atom(m, p, end) && !passes_empty(m, loop + 1u, 8) &&
               add_split(m, loop, loop, false);
        uint16_t *way_out = q->lazy ? &m->steps[loop].next : &m->steps[loop].other;
        *way_out = m->nsteps;
    }
    for (unsigned i = q->least; done && q->most != UINT32_MAX && i < q->most; i++) {
        if (noptions == sizeof options / sizeof *options) return false;
        options[noptions++] = m->nsteps;
        done = add_split(m, m->nsteps + 1u, 0, q->lazy) && add_atom(m, p, end);
    }
    for (unsigned i = 0; done && i < noptions; i++)
        *(q->lazy ? &m->steps[options[i]].next : &m->steps[options[i]].other) = m->nsteps;
    /* It takes all of them, so something else follows, unless it may have reached its maximum. */
    if (!done || !q->possessive) return done;
    if (q->most == UINT32_MAX) return add_kind(m, LOOK_NOT, p, (size_t)(end - p));
    if (q->least != 0 || q->most != 1) return false;
    uint16_t split = options[0], behind = (uint16_t)(m->nsteps + 2u);
    if (!add_split(m, behind, behind, false)) return false;
    m->steps[split].other = m->nsteps;
    return add_kind(m, LOOK_NOT, p, (size_t)(end - p));
}

/* Adds steps up to a bar or a bracket. NULL: the pattern cannot be followed. */
static const char *add_sequence(struct shore__machine *m, const char *p) {
    while (p && p < m->end && *p != '|' && *p != ')') {
        struct quantifier q;
        const char *end = atom_end(m, p), *behind = end ? read_quantifier(m, end, &q) : NULL;
        if (!behind || !add_repeated(m, p, end, &q)) return NULL;
        p = behind;
    }
    return p;
}

static const char *add_alternatives(struct shore__machine *m, const char *p) {
    uint16_t ends[STEPS_MOST / 8], nends = 0;
    for (;;) {
        unsigned split = m->nsteps;
        if (!add_split(m, split + 1u, split + 1u, false)) return NULL;
        p = add_sequence(m, p);
        if (!p) return NULL;
        if (p == m->end || *p != '|') break;
        if (nends == sizeof ends / sizeof *ends) return NULL;
        ends[nends++] = m->nsteps;
        if (!add_split(m, 0, 0, false)) return NULL;
        m->steps[split].other = m->nsteps;
        p++;
    }
    for (unsigned i = 0; i < nends; i++)
        m->steps[ends[i]].next = m->steps[ends[i]].other = m->nsteps;
    return p;
}

struct shore__machine *shore__machine_open(const char *pattern, size_t bytes) {
    struct shore__machine *m = calloc(1, sizeof *m);
    char *copy = strndup(pattern, bytes); /* ends in a zero, so looking ahead is safe */
    bool done = m && copy && (m->match = pcre2_match_data_create(1, NULL));
    if (done) {
        const char *p = copy;
        m->end = copy + strlen(copy);
        m->any_case = !strncmp(p, "(?i)", 4);
        if (m->any_case) p += 4;
        done = add_alternatives(m, p) == m->end && add(m, (struct step){.op = MATCH});
    }
    for (unsigned i = 0; m && i < m->nkinds; i++)
        m->kinds[i].text = NULL;
    free(copy);
    if (done) return m;
    shore__machine_close(m);
    return NULL;
}

void shore__machine_close(struct shore__machine *m) {
    if (!m) return;
    for (unsigned i = 0; i < m->nkinds; i++)
        pcre2_code_free(m->kinds[i].code);
    pcre2_match_data_free(m->match);
    free(m);
}

/* ---- following --------------------------------------------------------------------------------------------------- */

int shore__follow_begin(struct shore__follow *f, const struct shore__machine *m) {
    shore__follow_fini(f);
    *f = (struct shore__follow){.machine = m, .places = calloc(5u * STEPS_MOST, sizeof *f->places), .nplaces = 1};
    return f->places ? 0 : -ENOMEM;
}

void shore__follow_fini(struct shore__follow *f) {
    free(f->places);
    f->places = NULL;
}

struct character {
    const char *text; /* NULL: the end */
    size_t bytes;
    uint32_t value;
    pcre2_match_data *match;
};

static bool is_kind(const struct shore__machine *m, unsigned kind, const struct character *c) {
    const struct kind *k = &m->kinds[kind];
    if (!c->text) return false;
    if (c->value < TABLE_CHARS) return k->table[c->value / 8] >> c->value % 8 & 1;
    return in_pcre(k, c->text, c->bytes, c->match);
}

/* Spreads from the places to the steps that want a character, preferred ones first. A match ends everything behind
 * it. */
static size_t spread(struct shore__follow *f, const struct character *c, uint16_t *ready) {
    const struct shore__machine *m = f->machine;
    uint16_t *seen = f->places + 2 * STEPS_MOST, *stack = f->places + 3 * STEPS_MOST;
    size_t nready = 0;
    memset(seen, 0, m->nsteps * sizeof *seen);
    for (size_t i = 0; i < f->nplaces; i++) {
        size_t depth = 0;
        stack[depth++] = f->places[i];
        while (depth > 0) {
            uint16_t at = stack[--depth];
            const struct step *s = &m->steps[at];
            if (seen[at]) continue;
            seen[at] = 1;
            if (s->op == MATCH) {
                f->end = f->at;
                return nready;
            }
            if (s->op == SPLIT) {
                if (s->other != s->next) stack[depth++] = s->other;
                stack[depth++] = s->next;
            } else if (s->op == CHAR) {
                ready[nready++] = at;
            } else if (is_kind(m, s->kind, c) == (s->op == LOOK)) {
                stack[depth++] = (uint16_t)(at + 1);
            }
        }
    }
    return nready;
}

void shore__follow_feed(struct shore__follow *f, pcre2_match_data *match, const char *text, size_t bytes, bool final) {
    const struct shore__machine *m = f->machine;
    uint16_t *ready = f->places + STEPS_MOST;
    for (size_t at = 0; !f->over && (at < bytes || final);) {
        struct character c = {.text = NULL, .match = match};
        if (at < bytes) {
            c.text = text + at;
            c.bytes = shore__utf8_bytes((unsigned char)text[at]);
            c.value = shore__utf8_char(text + at);
        }
        size_t nready = spread(f, &c, ready);
        f->nplaces = 0;
        for (size_t i = 0; i < nready; i++)
            if (is_kind(m, m->steps[ready[i]].kind, &c)) f->places[f->nplaces++] = (uint16_t)(ready[i] + 1);
        f->over = f->nplaces == 0;
        at += c.bytes;
        f->at += c.bytes;
    }
}
