#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"
#include "text/vector.h"

/* the pattern of GPT-2's encoder.py, which ByteLevel applies unless told not to */
#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static int unsupported(struct shore_diag *diag, const char *part, const char *what) {
    char shown[96];
    if (!what) what = "(without a name)";
    return shore__fail(diag, SHORE_EINPUT, "the tokenizer's %s \"%s\" is not supported", part,
                       shore__escape(what, strlen(what), shown, sizeof shown));
}

static const char *string_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text && strlen(text) == json_string_length(json_object_get(object, key)) ? text : NULL;
}
static const char *type_of(const json_t *object) {
    return string_of(object, "type");
}
static bool is_type(const json_t *object, const char *name) {
    const char *type = type_of(object);
    return type && !strcmp(type, name);
}
static bool flag(const json_t *object, const char *key, bool otherwise) {
    const json_t *value = json_object_get(object, key);
    return json_is_boolean(value) ? json_is_true(value) : otherwise;
}
static bool is_space_mark(const json_t *object, const char *key) {
    const char *text = string_of(object, key);
    return !text || !strcmp(text, SHORE__SPACE_MARK);
}

static bool among(const char *const *names, const char *name) {
    while (*names && strcmp(*names, name) != 0)
        names++;
    return *names;
}

/* NULL: nothing else than what it is. null is what is not there. */
static const char *needs(const char *key, const json_t *value) {
    static const char *const flags[] = {"add_prefix_space",
                                        "use_regex",
                                        "invert",
                                        "individual_digits",
                                        "split",
                                        "byte_fallback",
                                        "fuse_unk",
                                        "ignore_merges",
                                        "normalized",
                                        "special",
                                        "lstrip",
                                        "rstrip",
                                        "single_word",
                                        NULL};
    static const char *const texts[] = {
        "behavior", "prepend_scheme", "replacement", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
        NULL};
    static const char *const lists[] = {"normalizers", "pretokenizers", "decoders", NULL};
    if (json_is_null(value)) return NULL;
    if (among(flags, key)) return json_is_boolean(value) ? NULL : "true or false";
    if (among(texts, key)) return json_is_string(value) ? NULL : "a text";
    if (among(lists, key)) return json_is_array(value) ? NULL : "a list";
    return strcmp(key, "dropout") != 0 || json_is_number(value) ? NULL : "a number";
}

static int check_types(const json_t *value, struct shore_diag *diag) {
    const char *key;
    json_t *m;
    size_t i;
    int rc = 0;
    json_array_foreach((json_t *)value, i, m) {
        rc = check_types(m, diag);
        if (rc) return rc;
    }
    json_object_foreach((json_t *)value, key, m) {
        if (!strcmp(key, "post_processor")) continue; /* not used; its keys may be tokens */
        const char *needed = needs(key, m);
        rc = needed ? shore__fail(diag, SHORE_EINPUT, "\"%s\" takes %s", key, needed) : check_types(m, diag);
        if (rc) return rc;
    }
    return 0;
}

/* The members of a Sequence, or the one thing itself; -1 past the end. */
static const json_t *member(const json_t *value, const char *list, size_t i) {
    if (!is_type(value, "Sequence")) return i == 0 && !json_is_null(value) ? value : NULL;
    return json_array_get(json_object_get(value, list), i);
}

static int add_step(struct shore__tokenizer *t, enum shore__step_kind kind, const char *from, const char *to,
                    struct shore_diag *diag) {
    if (t->nsteps == SHORE__STEP_LIMIT) return unsupported(diag, "normalizer", "more than 8 in a Sequence");
    struct shore__step *step = &t->steps[t->nsteps++];
    *step = (struct shore__step){kind, strdup(from), strdup(to)};
    return step->from && step->to ? 0 : shore__fail(diag, -ENOMEM, "out of memory");
}

static int read_normalizer(struct shore__tokenizer *t, const json_t *value, struct shore_diag *diag) {
    const json_t *m;
    int rc = 0;
    for (size_t i = 0; rc == 0 && (m = member(value, "normalizers", i)); i++) {
        const char *from = string_of(json_object_get(m, "pattern"), "String"), *to;
        if (is_type(m, "NFC")) {
            rc = t->nsteps == 0 ? add_step(t, SHORE__STEP_NFC, "", "", diag)
                                : unsupported(diag, "normalizer", "NFC after another one");
        } else if (is_type(m, "Prepend") && (to = string_of(m, "prepend")) && *to) {
            rc = add_step(t, SHORE__STEP_PREPEND, "", to, diag);
        } else if (is_type(m, "Replace") && (to = string_of(m, "content"))) {
            /* of one character, so that parts of a text can be replaced by themselves */
            bool one = from && *from && strlen(from) == shore__utf8_bytes((unsigned char)*from);
            rc = one ? add_step(t, SHORE__STEP_REPLACE, from, to, diag)
                     : unsupported(diag, "normalizer", "Replace of something else than one character");
        } else {
            rc = unsupported(diag, "normalizer", type_of(m));
        }
    }
    return rc;
}

static int add_stage(struct shore__tokenizer *t, const char *pattern, bool literal, enum shore__behavior behavior,
                     bool invert, bool prefix_space, struct shore_diag *diag) {
    if (t->nstages == SHORE__STEP_LIMIT) return unsupported(diag, "pre_tokenizer", "more than 8 in a Sequence");
    struct shore__stage *stage = &t->stages[t->nstages++];
    *stage = (struct shore__stage){.behavior = behavior, .invert = invert, .prefix_space = prefix_space};
    return pattern ? shore__pattern_open(pattern, strlen(pattern), literal, &stage->pattern, diag) : 0;
}

static int read_split(struct shore__tokenizer *t, const json_t *m, struct shore_diag *diag) {
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const json_t *pattern = json_object_get(m, "pattern");
    const char *regex = string_of(pattern, "Regex"), *literal = string_of(pattern, "String");
    const char *behavior = string_of(m, "behavior");
    for (unsigned i = 0; i < 5; i++) {
        if (!behavior || strcmp(behavior, names[i]) != 0) continue;
        if (!regex && !literal) return unsupported(diag, "pre_tokenizer", "Split without a Regex or String");
        return add_stage(t, regex ? regex : literal, !regex, (enum shore__behavior)i, flag(m, "invert", false), false,
                         diag);
    }
    return unsupported(diag, "Split behavior", behavior);
}

static int read_prepend(const json_t *m, enum shore__prepend *out, struct shore_diag *diag) {
    const char *scheme = string_of(m, "prepend_scheme");
    if (!scheme)
        *out = flag(m, "add_prefix_space", true) ? SHORE__PREPEND_ALWAYS : SHORE__PREPEND_NEVER;
    else if (!strcmp(scheme, "first"))
        *out = SHORE__PREPEND_FIRST;
    else if (!strcmp(scheme, "always"))
        *out = SHORE__PREPEND_ALWAYS;
    else if (!strcmp(scheme, "never"))
        *out = SHORE__PREPEND_NEVER;
    else
        return unsupported(diag, "Metaspace prepend_scheme", scheme);
    return 0;
}

static int read_metaspace(struct shore__tokenizer *t, const json_t *m, struct shore_diag *diag) {
    if (!is_space_mark(m, "replacement"))
        return unsupported(diag, "Metaspace replacement", string_of(m, "replacement"));
    int rc = read_prepend(m, &t->prepend, diag);
    if (rc) return rc;
    t->space_marks = true;
    return flag(m, "split", true) ? add_stage(t, SHORE__SPACE_MARK, true, SHORE__MERGED_WITH_NEXT, false, false, diag)
                                  : 0;
}

static int read_pre_tokenizer(struct shore__tokenizer *t, const json_t *value, struct shore_diag *diag) {
    const json_t *m;
    int rc = 0;
    for (size_t i = 0; rc == 0 && (m = member(value, "pretokenizers", i)); i++) {
        if (t->bpe.byte_level) return unsupported(diag, "pre_tokenizer", "something after ByteLevel");
        if (t->space_marks) return unsupported(diag, "pre_tokenizer", "something after Metaspace");
        if (is_type(m, "ByteLevel")) {
            bool prefix = flag(m, "add_prefix_space", true), regex = flag(m, "use_regex", true);
            t->bpe.byte_level = true;
            if (prefix || regex)
                rc = add_stage(t, regex ? GPT2_PATTERN : NULL, false, SHORE__ISOLATED, false, prefix, diag);
        } else if (is_type(m, "Split")) {
            rc = read_split(t, m, diag);
        } else if (is_type(m, "Digits")) {
            rc =
                add_stage(t, "\\p{N}", false, flag(m, "individual_digits", false) ? SHORE__ISOLATED : SHORE__CONTIGUOUS,
                          false, false, diag);
        } else if (is_type(m, "Metaspace") && i == 0) {
            rc = read_metaspace(t, m, diag);
        } else {
            rc = unsupported(diag, "pre_tokenizer", type_of(m));
        }
    }
    return rc;
}

static int read_decoder(struct shore__tokenizer *t, const json_t *value, struct shore_diag *diag) {
    const json_t *m;
    int rc = 0;
    for (size_t i = 0; rc == 0 && (m = member(value, "decoders", i)); i++) {
        enum shore__prepend prepend = SHORE__PREPEND_NEVER;
        if (is_type(m, "Strip"))
            t->strip_first_space |= json_integer_value(json_object_get(m, "start")) > 0;
        else if (is_type(m, "Metaspace"))
            rc = read_prepend(m, &prepend, diag);
        else if (!is_type(m, "ByteLevel") && !is_type(m, "Replace") && !is_type(m, "ByteFallback") &&
                 !is_type(m, "Fuse"))
            rc = unsupported(diag, "decoder", type_of(m));
        t->strip_first_space |= prepend != SHORE__PREPEND_NEVER;
    }
    return rc;
}

static int read_model(struct shore__tokenizer *t, const json_t *model, struct shore_diag *diag) {
    struct shore__bpe *b = &t->bpe;
    const json_t *dropout = json_object_get(model, "dropout"), *unknown = json_object_get(model, "unk_token");
    const char *prefix = string_of(model, "continuing_subword_prefix"),
               *suffix = string_of(model, "end_of_word_suffix");
    if (json_object_get(model, "type") && !is_type(model, "BPE")) return unsupported(diag, "model", type_of(model));
    if (json_is_number(dropout) && json_number_value(dropout) != 0) return unsupported(diag, "model option", "dropout");
    if (prefix && *prefix) return unsupported(diag, "model option", "continuing_subword_prefix");
    if (suffix && *suffix) return unsupported(diag, "model option", "end_of_word_suffix");
    b->byte_fallback = flag(model, "byte_fallback", false);
    b->fuse_unknown = flag(model, "fuse_unk", false);
    b->ignore_merges = flag(model, "ignore_merges", false);
    b->unknown = SHORE__VOCAB_NONE;
    if (json_is_string(unknown)) {
        b->unknown = shore__vocab_find(&b->vocab, json_string_value(unknown), json_string_length(unknown));
        if (b->unknown == SHORE__VOCAB_NONE)
            return shore__fail(diag, SHORE_EINPUT, "the tokenizer's unk_token is not in its vocabulary");
    }
    return 0;
}

static int add_token(struct shore__tokenizer *t, const char *content, size_t bytes, uint32_t id, const json_t *options,
                     struct shore_diag *diag) {
    bool normalized = flag(options, "normalized", false);
    struct shore__text text = {0};
    char shown[96];
    size_t known_bytes;
    const char *known = shore__vocab_text(&t->bpe.vocab, id, &known_bytes);
    uint32_t other = shore__vocab_find(&t->bpe.vocab, content, bytes);
    if ((known && (known_bytes != bytes || memcmp(known, content, bytes) != 0)) ||
        (other != SHORE__VOCAB_NONE && other != id))
        return shore__fail(diag, SHORE_EINPUT, "the added token \"%s\" has an id that contradicts the vocabulary",
                           shore__escape(content, bytes, shown, sizeof shown));
    /* The tokenizers library takes no id from the file: it counts on. */
    uint32_t next = t->added.nids > t->bpe.vocab.count ? t->added.nids : t->bpe.vocab.count;
    int rc = shore__vocab_add(&t->added, content, bytes, id);
    if (rc)
        return shore__fail(diag, rc, "the added token \"%s\" stands twice, or its id %u is taken or out of range",
                           shore__escape(content, bytes, shown, sizeof shown), id);
    if (other == SHORE__VOCAB_NONE && id != next)
        return shore__fail(diag, SHORE_EINPUT,
                           "the added token \"%s\" has the id %u, but comes to be %u where the tokenizers library "
                           "counts on from the vocabulary: put it there, or fill the gap with other added tokens",
                           shore__escape(content, bytes, shown, sizeof shown), id, next);
    rc = normalized ? shore__normalize(t, content, bytes, &text) : shore__text_append(&text, content, bytes);
    if (rc == 0 && text.count == 0) rc = SHORE_EINPUT;
    char *exact = rc ? NULL : realloc(text.bytes, text.count); /* there may be many */
    if (exact) text.bytes = exact;
    struct shore__added token = {.content = text.bytes,
                                 .bytes = text.count,
                                 .id = id,
                                 .special = flag(options, "special", false),
                                 .lstrip = flag(options, "lstrip", false),
                                 .rstrip = flag(options, "rstrip", false),
                                 .single_word = flag(options, "single_word", false)};
    if (rc == 0) rc = shore__added_set_add(normalized ? &t->normalized : &t->raw, &token);
    if (rc) free(text.bytes);
    return rc ? shore__fail(diag, rc, "an added token is empty, or memory is short") : 0;
}

int shore__tokenizer_add(struct shore__tokenizer *t, const json_t *token, struct shore_diag *diag) {
    const json_t *content = json_object_get(token, "content"), *id = json_object_get(token, "id");
    json_int_t number = json_is_integer(id) ? json_integer_value(id) : -1;
    int rc = check_types(token, diag);
    if (rc) return rc;
    if (!json_is_string(content) || number < 0 || number >= SHORE__VOCAB_ID_LIMIT)
        return shore__fail(diag, SHORE_EINPUT, "an added token has no content, or no id in range");
    return add_token(t, json_string_value(content), json_string_length(content), (uint32_t)number, token, diag);
}

int shore__tokenizer_added_ready(struct shore__tokenizer *t, struct shore_diag *diag) {
    t->added_special = calloc(t->added.nids + 1u, sizeof *t->added_special);
    if (!t->added_special) return shore__fail(diag, -ENOMEM, "out of memory");
    struct shore__added_set *const sets[] = {&t->raw, &t->normalized};
    for (unsigned k = 0; k < 2; k++) {
        for (uint32_t i = 0; i < sets[k]->count; i++)
            t->added_special[sets[k]->tokens[i].id] = sets[k]->tokens[i].special;
        shore__added_set_ready(sets[k]);
    }
    return 0;
}

int shore__tokenizer_rules(struct shore__tokenizer *t, const json_t *document, struct shore_diag *diag) {
    int rc = check_types(document, diag);
    if (rc == 0) rc = read_model(t, json_object_get(document, "model"), diag);
    if (rc == 0) rc = read_normalizer(t, json_object_get(document, "normalizer"), diag);
    if (rc == 0) rc = read_pre_tokenizer(t, json_object_get(document, "pre_tokenizer"), diag);
    return rc ? rc : read_decoder(t, json_object_get(document, "decoder"), diag);
}

int shore__tokenizer_gpt2_rules(struct shore__tokenizer *t, struct shore_diag *diag) {
    static const char name[] = "<|endoftext|>";
    uint32_t id = shore__vocab_find(&t->bpe.vocab, name, strlen(name));
    json_t *special = json_pack("{s:b}", "special", 1);
    t->bpe.unknown = SHORE__VOCAB_NONE;
    t->bpe.byte_level = true;
    int rc = add_stage(t, GPT2_PATTERN, false, SHORE__ISOLATED, false, false, diag);
    if (rc == 0 && id != SHORE__VOCAB_NONE) rc = add_token(t, name, strlen(name), id, special, diag);
    json_decref(special);
    return rc ? rc : shore__tokenizer_added_ready(t, diag);
}
