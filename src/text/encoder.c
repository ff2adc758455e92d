/* Encodes a text in parts of any size, in stages:
 *
 *   bytes -> valid UTF-8 -> raw added tokens -> normalizing -> normalized added tokens -> pretokens -> ids
 *
 * Each stage holds back only what later text may change.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "text/streaming_match.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"
#include "text/utf8_parts.h"
#include "text/vector.h"

#define PRETOKEN_BYTES (64u << 10) /* longer pretokens are encoded before their end arrives */
#define HELD_LIMIT_MIB 96u
#define PATIENT_BYTES (16u << 10)
#define STATE_LIMIT_BYTES (64u << 10)
#define NOTHING SIZE_MAX

/* Whatever decides how later text is encoded is also in shore__encoder_state() and shore__encoder_reset(). */
struct shore__encoder {
    const struct shore__tokenizer *t;
    struct shore__bpe_work work;
    struct shore__matcher *matcher;
    struct shore__ids *out;
    struct shore_diag *diag;
    struct shore__splitter raw, normalized;
    struct shore__utf8_parts characters;
    struct shore__normalizing normalizing;
    struct shore__text pretoken; /* normalized, not yet encoded: the text of the first stage */
    bool in_pretoken, at_origin; /* at_origin: no part of the text has been encoded */
    struct {
        bool open;     /* the stage has the start of a pretoken whose end is still to come */
        bool encoding; /* the pretoken's first tokens have been encoded */
        int before;    /* the byte before the pretoken's text, or SHORE__PATTERN_BEGINS */
        struct shore__text text;
        size_t patience; /* bytes that must be there before text is searched again */
        bool following;  /* text starts in a match whose end is far away; the next stage may have its start */
        bool passed;     /* the next stage has it */
        struct shore__follow follow;
    } begun[SHORE__STEP_LIMIT + 1];
};

static int divide(struct shore__encoder *e, unsigned stage, const char *text, size_t bytes, bool final, size_t *used);
static int encode_part(struct shore__encoder *e, unsigned stage, const char *text, size_t bytes, bool final);

static int refuse_endless(struct shore__encoder *e, unsigned mib) {
    return shore__fail(e->diag, SHORE_EINPUT,
                       "the tokenizer finds no place to divide more than %u MiB of text; break the line, or use the "
                       "byte-level tokenizer",
                       mib);
}

static int encoded(struct shore__encoder *e, int rc) {
    return rc == SHORE_EINPUT ? refuse_endless(e, 1) : rc;
}

static int encode_text(struct shore__encoder *e, const char *text, size_t bytes) {
    return encoded(e, shore__bpe_encode(&e->t->bpe, &e->work, text, bytes, e->out));
}

static int encode_pretoken(struct shore__encoder *e, unsigned stage, const char *text, size_t bytes) {
    size_t used;
    if (bytes == 0) return 0;
    if (stage == e->t->nstages) return encode_text(e, text, bytes);
    if (stage > 0 && e->t->stages[stage].prefix_space) return encode_part(e, stage, text, bytes, true);
    return divide(e, stage, text, bytes, true, &used);
}

/* Joins matches and the stretches between them, as the behavior of a stage says. */
struct gather {
    struct shore__encoder *e;
    unsigned stage;
    const char *text;
    size_t start, end; /* a pretoken that the next stretch may still join; start NOTHING: none */
    bool after_match;
};

static int let_go(struct gather *g) {
    size_t start = g->start;
    g->start = NOTHING;
    return start == NOTHING ? 0 : encode_pretoken(g->e, g->stage + 1, g->text + start, g->end - start);
}

static int stretch(struct gather *g, size_t start, size_t end, bool match) {
    const struct shore__stage *s = &g->e->t->stages[g->stage];
    bool joins = false, holds = false;
    if (start == end) return 0;
    match ^= s->invert;
    switch (s->behavior) {
    case SHORE__REMOVED:
        if (match) return 0;
        break;
    case SHORE__MERGED_WITH_PREVIOUS:
        joins = match && !g->after_match && g->start != NOTHING;
        holds = !joins;
        break;
    case SHORE__MERGED_WITH_NEXT:
        joins = !match && g->after_match && g->start != NOTHING;
        holds = match;
        break;
    case SHORE__CONTIGUOUS:
        joins = match == g->after_match && g->start != NOTHING;
        holds = true;
        break;
    default:
        break;
    }
    g->after_match = match;
    if (joins) {
        g->end = end;
        return holds ? 0 : let_go(g);
    }
    int rc = let_go(g);
    if (rc) return rc;
    g->start = start;
    g->end = end;
    return holds ? 0 : let_go(g);
}

/* Adds the stage's prefix to a pretoken that starts with text. */
static int put_prefix(const struct shore__encoder *e, unsigned stage, const char *text, struct shore__text *out) {
    bool wanted = stage < e->t->nstages && e->t->stages[stage].prefix_space && text[0] != ' ';
    return wanted ? shore__text_append(out, " ", 1) : 0;
}

static void drop_used(struct shore__encoder *e, unsigned stage, struct shore__text *text, size_t used, bool final) {
    if (used) e->begun[stage].before = (unsigned char)text->bytes[used - 1];
    if (final) e->begun[stage].before = SHORE__PATTERN_BEGINS;
    shore__text_drop(text, used);
}

/* Encodes the held pretoken in parts, once it is longer than any token. */
static int encode_held(struct shore__encoder *e, unsigned stage, bool final) {
    struct shore__text *held = &e->begun[stage].text;
    bool *encoding = &e->begun[stage].encoding;
    size_t least = e->t->bpe.longest_token > PRETOKEN_BYTES ? e->t->bpe.longest_token : PRETOKEN_BYTES;
    int rc = 0;
    if (!final && held->count <= least) return 0;
    if (final && !*encoding) {
        rc = encode_text(e, held->bytes, held->count);
    } else {
        rc = encoded(e, shore__bpe_feed(&e->t->bpe, &e->work, held->bytes, held->count, e->out));
        if (rc == 0 && final) rc = shore__bpe_end(&e->t->bpe, &e->work, e->out);
    }
    *encoding = !final;
    held->count = 0;
    return rc;
}

/* Bytes to wait for before searching held text again. Requiring half as much again keeps the work from growing with the
 * square of its length. */
static size_t patience_for(const struct shore__text *held) {
    return held->count > PATIENT_BYTES ? held->count + held->count / 2 : 0;
}

/* Divides the text held for a stage. */
static int divide_held(struct shore__encoder *e, unsigned stage, struct shore__text *held, bool final) {
    size_t used, *patience = &e->begun[stage].patience;
    if (!final && held->count < *patience) return 0;
    int rc = divide(e, stage, held->bytes, held->count, final, &used);
    if (rc) return rc;
    drop_used(e, stage, held, used, final);
    *patience = patience_for(held);
    return held->count > (size_t)HELD_LIMIT_MIB << 20 ? refuse_endless(e, HELD_LIMIT_MIB) : 0;
}

/* Encodes a part of a pretoken that is too long to wait for or to copy. The last part may be empty. */
static int encode_part(struct shore__encoder *e, unsigned stage, const char *text, size_t bytes, bool final) {
    struct shore__text *held = &e->begun[stage].text;
    int rc = e->begun[stage].open ? 0 : put_prefix(e, stage, text, held);
    e->begun[stage].open = !final;
    if (rc == 0) rc = shore__text_append(held, text, bytes);
    if (rc) return rc;
    return stage == e->t->nstages ? encode_held(e, stage, final) : divide_held(e, stage, held, final);
}

/* Ends a stretch that does not match; the next stage may have its start. */
static int rest_of_stretch(struct gather *g, size_t start, size_t end) {
    return g->e->begun[g->stage + 1].open ? encode_part(g->e, g->stage + 1, g->text + start, end - start, true)
                                          : stretch(g, start, end, false);
}

/* Passes on what certainly belongs to the match that text starts in. */
static int follow(struct shore__encoder *e, unsigned stage, const char *text, size_t bytes, bool final, size_t *used) {
    struct shore__follow *f = &e->begun[stage].follow;
    bool *passed = &e->begun[stage].passed;
    int rc = 0;
    shore__follow_feed(f, shore__matcher_data(e->matcher), text + f->at, bytes - f->at, final);
    *used = f->end;
    if (f->end || (f->over && *passed)) rc = encode_part(e, stage + 1, text, f->end, f->over);
    *passed |= f->end > 0;
    f->at -= f->end;
    f->end = 0;
    e->begun[stage].following = !f->over;
    return rc;
}

/* Divides text into pretokens for the next stage. Unless final, the last pretokens wait for the text behind them; used
 * says where they start. */
static int divide(struct shore__encoder *e, unsigned stage, const char *text, size_t bytes, bool final, size_t *used) {
    const struct shore__stage *s = &e->t->stages[stage];
    struct gather g = {.e = e, .stage = stage, .text = text, .start = NOTHING};
    size_t at = 0, start, end;
    int found = 0, rc = 0;
    if (e->begun[stage].following) {
        rc = follow(e, stage, text, bytes, final, &at);
        *used = at;
        if (rc || e->begun[stage].following) return rc;
    }
    *used = final ? bytes : 0;
    while (s->pattern && at < bytes &&
           (found = shore__pattern_find(s->pattern, e->matcher, text, bytes, at, e->begun[stage].before, final, &start,
                                        &end)) == 1) {
        rc = rest_of_stretch(&g, at, start);
        if (rc == 0) rc = stretch(&g, start, end, true);
        if (rc) return rc;
        at = end;
    }
    if (found < 0)
        return shore__fail(e->diag, found, "a pattern of the tokenizer needs more work or memory than is allowed here");
    if (final) {
        rc = rest_of_stretch(&g, at, bytes);
        return rc ? rc : let_go(&g);
    }
    size_t open_end = found == 2 ? start : bytes; /* no match starts before it */
    bool pretoken = s->behavior == SHORE__ISOLATED || (s->behavior == SHORE__REMOVED && s->invert);
    if (found == 2 && pretoken && bytes - start > PRETOKEN_BYTES && shore__pattern_machine(s->pattern)) {
        if (s->behavior == SHORE__ISOLATED) rc = rest_of_stretch(&g, at, start);
        if (rc == 0) rc = let_go(&g);
        if (rc == 0) rc = shore__follow_begin(&e->begun[stage].follow, shore__pattern_machine(s->pattern));
        if (rc) return rc;
        e->begun[stage].following = true;
        e->begun[stage].passed = false;
        rc = follow(e, stage, text + start, bytes - start, false, used);
        *used += start;
        return rc;
    }
    bool alone = s->behavior == SHORE__ISOLATED || s->behavior == SHORE__CONTIGUOUS ||
                 (s->behavior == SHORE__REMOVED && !s->invert);
    if (alone && at < open_end && (e->begun[stage + 1].open || bytes - at > PRETOKEN_BYTES)) {
        *used = open_end;
        rc = let_go(&g);
        return rc ? rc : encode_part(e, stage + 1, text + at, open_end - at, false);
    }
    *used = g.start != NOTHING ? g.start : at;
    return 0;
}

/* Cuts where no token reaches across: SentencePiece-style text is one long pretoken. */
static int cut(struct shore__encoder *e, const char *text, size_t bytes, bool final, size_t *used) {
    size_t start = 0, before = 0;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < bytes && e->t->bpe.cut_anywhere_else;) {
        if (i > start && shore__bpe_may_cut(&e->t->bpe, text + before, text + i)) {
            rc = e->begun[0].open ? encode_part(e, 0, text + start, i - start, true)
                                  : encode_text(e, text + start, i - start);
            start = i;
        }
        before = i;
        i += shore__utf8_bytes((unsigned char)text[i]);
    }
    *used = bytes;
    if (rc) return rc;
    if (final) return encode_part(e, 0, text + start, bytes - start, true);
    *used = start;
    if (before - start <= PRETOKEN_BYTES) return 0;
    *used = before; /* the last character decides whether there is a cut behind it */
    return encode_part(e, 0, text + start, before - start, false);
}

static int encode_pending(struct shore__encoder *e, bool final) {
    size_t used = e->pretoken.count;
    if (e->t->nstages) return divide_held(e, 0, &e->pretoken, final);
    if (!final && e->pretoken.count < e->begun[0].patience) return 0;
    int rc = e->t->bpe.byte_level ? encode_part(e, 0, e->pretoken.bytes, e->pretoken.count, final)
                                  : cut(e, e->pretoken.bytes, e->pretoken.count, final, &used);
    if (rc) return rc;
    shore__text_drop(&e->pretoken, used);
    e->begun[0].patience = patience_for(&e->pretoken);
    return 0;
}

static int on_normalized_text(void *ctx, const char *text, size_t bytes) {
    struct shore__encoder *e = ctx;
    const struct shore__tokenizer *t = e->t;
    bool first = !e->in_pretoken;
    int rc = 0;
    e->in_pretoken = true;
    if (first && t->space_marks) {
        bool marked = text[0] == ' ' || (bytes >= 3 && !memcmp(text, SHORE__SPACE_MARK, 3));
        bool wanted = t->prepend == SHORE__PREPEND_ALWAYS || (t->prepend == SHORE__PREPEND_FIRST && e->at_origin);
        if (wanted && !marked) rc = shore__text_append(&e->pretoken, SHORE__SPACE_MARK, 3);
    }
    if (rc == 0 && first) rc = put_prefix(e, 0, text, &e->pretoken);
    e->at_origin = false;
    for (size_t i = 0; rc == 0 && i < bytes;) {
        const char *space = t->space_marks ? memchr(text + i, ' ', bytes - i) : NULL;
        size_t plain = space ? (size_t)(space - text) - i : bytes - i;
        rc = shore__text_append(&e->pretoken, text + i, plain);
        if (rc == 0 && space) rc = shore__text_append(&e->pretoken, SHORE__SPACE_MARK, 3);
        i += plain + (space != NULL);
    }
    return rc ? rc : encode_pending(e, false);
}

static int on_normalized_end(void *ctx) {
    struct shore__encoder *e = ctx;
    e->in_pretoken = false;
    return encode_pending(e, true);
}

static int on_token(void *ctx, uint32_t id) {
    struct shore__encoder *e = ctx;
    e->at_origin = false;
    return shore__ids_push(e->out, id);
}

static int on_normalized(void *ctx, const char *text, size_t bytes) {
    struct shore__encoder *e = ctx;
    return shore__splitter_feed(&e->normalized, text, bytes);
}

static int on_raw_text(void *ctx, const char *text, size_t bytes) {
    struct shore__encoder *e = ctx;
    return shore__normalizing_feed(&e->normalizing, text, bytes, e->diag);
}

static int on_raw_end(void *ctx) {
    struct shore__encoder *e = ctx;
    int rc = shore__normalizing_end(&e->normalizing, e->diag);
    return rc ? rc : shore__splitter_end(&e->normalized);
}

static int feed_raw(void *ctx, const char *text, size_t bytes) {
    struct shore__encoder *e = ctx;
    return shore__splitter_feed(&e->raw, text, bytes);
}

int shore__encoder_open(const struct shore__tokenizer *t, bool special, struct shore__encoder **out) {
    struct shore__encoder *e = calloc(1, sizeof *e);
    if (!e) return -ENOMEM;
    e->t = t;
    e->matcher = shore__matcher_open();
    if (!e->matcher) {
        free(e);
        return -ENOMEM;
    }
    e->normalizing = (struct shore__normalizing){.t = t, .matcher = e->matcher, .sink = on_normalized, .ctx = e};
    e->characters = (struct shore__utf8_parts){.sink = feed_raw, .ctx = e};
    e->raw = (struct shore__splitter){.set = &t->raw,
                                      .special = special,
                                      .on_text = on_raw_text,
                                      .on_end = on_raw_end,
                                      .on_token = on_token,
                                      .ctx = e};
    e->normalized = (struct shore__splitter){.set = &t->normalized,
                                             .special = special,
                                             .on_text = on_normalized_text,
                                             .on_end = on_normalized_end,
                                             .on_token = on_token,
                                             .ctx = e};
    shore__encoder_reset(e);
    *out = e;
    return 0;
}

static int explained(struct shore__encoder *e, int rc) {
    if (rc == -ENOMEM) shore__fail(e->diag, rc, "no memory to tokenize a text");
    return rc;
}

int shore__encoder_feed(struct shore__encoder *e, const char *text, size_t bytes, struct shore__ids *out,
                        struct shore_diag *diag) {
    e->out = out;
    e->diag = diag;
    if (!e->t->is_bytes) return explained(e, shore__utf8_parts_feed(&e->characters, text, bytes));
    for (size_t i = 0; i < bytes; i++)
        if (shore__ids_push(out, (unsigned char)text[i])) return explained(e, -ENOMEM);
    return 0;
}

int shore__encoder_end(struct shore__encoder *e, struct shore__ids *out, struct shore_diag *diag) {
    e->out = out;
    e->diag = diag;
    int rc = shore__utf8_parts_end(&e->characters);
    if (rc == 0) rc = shore__splitter_end(&e->raw);
    e->at_origin = true;
    return explained(e, rc);
}

static void reset_splitter(struct shore__splitter *s) {
    s->text.count = s->passed = s->found = s->patience = 0;
    s->after_word = s->in_pretoken = false;
}

void shore__encoder_reset(struct shore__encoder *e) {
    reset_splitter(&e->raw);
    reset_splitter(&e->normalized);
    shore__normalizing_reset(&e->normalizing);
    e->characters.ntail = e->pretoken.count = 0;
    e->in_pretoken = false;
    e->at_origin = true;
    for (unsigned i = 0; i <= SHORE__STEP_LIMIT; i++) {
        e->begun[i].open = e->begun[i].encoding = false;
        e->begun[i].before = SHORE__PATTERN_BEGINS;
        e->begun[i].text.count = e->begun[i].patience = 0;
        e->begun[i].following = false;
    }
    e->work.symbols.count = 0;
    e->work.waiting = false;
}

static int put_state(struct shore__text *out, const void *bytes, size_t count) {
    if (count > STATE_LIMIT_BYTES) return SHORE_EINPUT;
    int rc = shore__text_append(out, (const char *)&count, sizeof count);
    return rc ? rc : shore__text_append(out, bytes, count);
}

static int put_splitter(struct shore__text *out, const struct shore__splitter *s) {
    size_t fields[] = {s->passed, s->found, s->after_word, s->in_pretoken};
    int rc = put_state(out, fields, sizeof fields);
    return rc ? rc : put_state(out, s->text.bytes, s->text.count);
}

int shore__encoder_state(const struct shore__encoder *e, struct shore__text *out) {
    size_t fields[] = {e->in_pretoken, e->at_origin, e->work.waiting};
    out->count = 0;
    int rc = put_splitter(out, &e->raw);
    if (rc == 0) rc = put_splitter(out, &e->normalized);
    if (rc == 0) rc = put_state(out, e->characters.tail, e->characters.ntail);
    if (rc == 0) rc = put_state(out, fields, sizeof fields);
    for (unsigned i = 0; rc == 0 && i < e->t->nsteps; i++) {
        int step[] = {e->normalizing.at[i].begun, e->normalizing.at[i].begun ? e->normalizing.at[i].before : 0};
        rc = put_state(out, step, sizeof step);
        if (rc == 0) rc = put_state(out, e->normalizing.at[i].held.bytes, e->normalizing.at[i].held.count);
    }
    if (rc == 0) rc = put_state(out, e->pretoken.bytes, e->pretoken.count);
    if (rc == 0) rc = put_state(out, e->work.symbols.ids, e->work.symbols.count * sizeof *e->work.symbols.ids);
    for (unsigned i = 0; rc == 0 && i <= e->t->nstages; i++) {
        int more[] = {e->begun[i].open, e->begun[i].encoding, e->begun[i].before};
        rc = e->begun[i].following ? SHORE_EINPUT : put_state(out, more, sizeof more);
        if (rc == 0) rc = put_state(out, e->begun[i].text.bytes, e->begun[i].text.count);
    }
    return rc;
}

void shore__encoder_close(struct shore__encoder *e) {
    if (!e) return;
    shore__matcher_close(e->matcher);
    shore__bpe_work_fini(&e->work);
    free(e->raw.text.bytes);
    free(e->normalized.text.bytes);
    shore__normalizing_fini(&e->normalizing);
    free(e->pretoken.bytes);
    for (unsigned i = 0; i <= SHORE__STEP_LIMIT; i++) {
        free(e->begun[i].text.bytes);
        shore__follow_fini(&e->begun[i].follow);
    }
    free(e);
}
