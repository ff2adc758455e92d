#include <errno.h>
#include <string.h>

#include "base/diag.h"
#include "base/suggest.h"
#include "text/tokenizer_impl.h"

/* The pattern of GPT-2's encoder.py, which ByteLevel applies unless told not to. */
#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static int unsupported(struct shore_diag *diag, const char *part, const char *what) {
    if (!what) what = "(without a name)";
    return shore__fail(diag, SHORE_EINPUT, "the tokenizer's %s \"%s\" is not supported", part, shore__shown(what).text);
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
bool shore__tokenizer_flag(const json_t *object, const char *key, bool otherwise) {
    const json_t *value = json_object_get(object, key);
    return json_is_boolean(value) ? json_is_true(value) : otherwise;
}
static bool is_space_mark(const json_t *object, const char *key) {
    const char *text = string_of(object, key);
    return !text || !strcmp(text, SHORE__SPACE_MARK);
}

/* What a value asks for beyond the supported; NULL: nothing. null counts as absent. */
static const char *needs(const char *key, const json_t *value) {
    static const char flags[] = "add_prefix_space use_regex invert individual_digits split byte_fallback fuse_unk "
                                "ignore_merges normalized special lstrip rstrip single_word strip_left strip_right";
    static const char texts[] = "behavior prepend_scheme replacement unk_token continuing_subword_prefix "
                                "end_of_word_suffix";
    static const char lists[] = "normalizers pretokenizers decoders";
    if (json_is_null(value)) return NULL;
    if (shore__has_word(flags, key)) return json_is_boolean(value) ? NULL : "true or false";
    if (shore__has_word(texts, key)) return json_is_string(value) ? NULL : "a text";
    if (shore__has_word(lists, key)) return json_is_array(value) ? NULL : "a list";
    return strcmp(key, "dropout") != 0 || json_is_number(value) ? NULL : "a number";
}

int shore__tokenizer_check_types(const json_t *value, struct shore_diag *diag) {
    const char *key;
    json_t *m;
    size_t i;
    int rc = 0;
    json_array_foreach((json_t *)value, i, m) {
        rc = shore__tokenizer_check_types(m, diag);
        if (rc) return rc;
    }
    json_object_foreach((json_t *)value, key, m) {
        if (!strcmp(key, "post_processor")) continue; /* its keys may be tokens */
        const char *needed = needs(key, m);
        rc = needed ? shore__fail(diag, SHORE_EINPUT, "\"%s\" takes %s", key, needed)
                    : shore__tokenizer_check_types(m, diag);
        if (rc) return rc;
    }
    return 0;
}

/* Member i of a Sequence, or the single value itself; NULL past the end. */
static const json_t *member(const json_t *value, const char *list, size_t i) {
    if (!is_type(value, "Sequence")) return i == 0 && !json_is_null(value) ? value : NULL;
    return json_array_get(json_object_get(value, list), i);
}

static int add_step(struct shore__tokenizer *t, enum shore__step_kind kind, const char *to, struct shore_diag *diag) {
    if (t->nsteps == SHORE__STEP_LIMIT) return unsupported(diag, "normalizer", "more than 8 in a Sequence");
    struct shore__step *step = &t->steps[t->nsteps++];
    *step = (struct shore__step){.kind = kind, .to = strdup(to)};
    return step->to ? 0 : shore__out_of_memory(diag);
}

static int read_replace(struct shore__tokenizer *t, const json_t *m, struct shore_diag *diag) {
    const json_t *pattern = json_object_get(m, "pattern");
    const char *regex = string_of(pattern, "Regex"), *literal = string_of(pattern, "String"),
               *to = string_of(m, "content");
    if ((!regex && !literal) || !to)
        return unsupported(diag, "normalizer", "Replace without a Regex or String and content");
    int rc = add_step(t, SHORE__STEP_REPLACE, to, diag);
    const char *text = regex ? regex : literal;
    return rc ? rc : shore__pattern_open(text, strlen(text), !regex, &t->steps[t->nsteps - 1].pattern, diag);
}

static int read_normalizer(struct shore__tokenizer *t, const json_t *value, struct shore_diag *diag) {
    static const struct {
        const char *name;
        enum shore__step_kind kind;
    } plain[] = {{"NFC", SHORE__STEP_NFC},
                 {"NFD", SHORE__STEP_NFD},
                 {"NFKC", SHORE__STEP_NFKC},
                 {"NFKD", SHORE__STEP_NFKD},
                 {"Lowercase", SHORE__STEP_LOWERCASE},
                 {"StripAccents", SHORE__STEP_STRIP_ACCENTS},
                 {"Strip", SHORE__STEP_STRIP}};
    const json_t *m;
    int rc = 0;
    for (size_t i = 0; rc == 0 && (m = member(value, "normalizers", i)); i++) {
        const char *to;
        size_t k = 0;
        while (k < sizeof plain / sizeof *plain && !is_type(m, plain[k].name))
            k++;
        if (k < sizeof plain / sizeof *plain)
            rc = add_step(t, plain[k].kind, "", diag);
        else if (is_type(m, "Prepend") && (to = string_of(m, "prepend")) && *to)
            rc = add_step(t, SHORE__STEP_PREPEND, to, diag);
        else if (is_type(m, "Replace"))
            rc = read_replace(t, m, diag);
        else
            rc = unsupported(diag, "normalizer", type_of(m));
        if (rc == 0 && is_type(m, "Strip")) {
            t->steps[t->nsteps - 1].left = shore__tokenizer_flag(m, "strip_left", true);
            t->steps[t->nsteps - 1].right = shore__tokenizer_flag(m, "strip_right", true);
        }
    }
    return rc;
}

/* Whether the start of the text may be lost. The library tells it by its place before normalizing. */
static bool may_lose_its_beginning(const struct shore__tokenizer *t) {
    for (unsigned i = 0; i < t->nsteps; i++) {
        const struct shore__step *s = &t->steps[i];
        if (s->kind == SHORE__STEP_STRIP || s->kind == SHORE__STEP_STRIP_ACCENTS) return true;
        if (s->kind == SHORE__STEP_REPLACE && !*s->to) return true;
    }
    return false;
}

static int add_stage(struct shore__tokenizer *t, const char *pattern, bool literal, enum shore__behavior behavior,
                     bool invert, bool prefix_space, struct shore_diag *diag) {
    if (t->nstages == SHORE__STEP_LIMIT) return unsupported(diag, "pre_tokenizer", "more than 8 in a Sequence");
    struct shore__stage *stage = &t->stages[t->nstages++];
    *stage = (struct shore__stage){.behavior = behavior, .invert = invert, .prefix_space = prefix_space};
    if (!pattern) return 0;
    if (!(stage->text = strdup(pattern))) return shore__out_of_memory(diag);
    return shore__pattern_open(pattern, strlen(pattern), literal, &stage->pattern, diag);
}

static int read_split(struct shore__tokenizer *t, const json_t *m, struct shore_diag *diag) {
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const json_t *pattern = json_object_get(m, "pattern");
    const char *regex = string_of(pattern, "Regex"), *literal = string_of(pattern, "String");
    const char *behavior = string_of(m, "behavior");
    for (unsigned i = 0; i < 5; i++) {
        if (!behavior || strcmp(behavior, names[i]) != 0) continue;
        if (!regex && !literal) return unsupported(diag, "pre_tokenizer", "Split without a Regex or String");
        return add_stage(t, regex ? regex : literal, !regex, (enum shore__behavior)i,
                         shore__tokenizer_flag(m, "invert", false), false, diag);
    }
    return unsupported(diag, "Split behavior", behavior);
}

static int read_prepend(const json_t *m, enum shore__prepend *out, struct shore_diag *diag) {
    const char *scheme = string_of(m, "prepend_scheme");
    if (!scheme)
        *out = shore__tokenizer_flag(m, "add_prefix_space", true) ? SHORE__PREPEND_ALWAYS : SHORE__PREPEND_NEVER;
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
    if (t->prepend == SHORE__PREPEND_FIRST && may_lose_its_beginning(t))
        return unsupported(diag, "Metaspace prepend_scheme",
                           "first, behind a normalizer that may take the beginning away");
    t->space_marks = true;
    return shore__tokenizer_flag(m, "split", true)
               ? add_stage(t, SHORE__SPACE_MARK, true, SHORE__MERGED_WITH_NEXT, false, false, diag)
               : 0;
}

static int read_pre_tokenizer(struct shore__tokenizer *t, const json_t *value, struct shore_diag *diag) {
    const json_t *m;
    int rc = 0;
    for (size_t i = 0; rc == 0 && (m = member(value, "pretokenizers", i)); i++) {
        if (t->bpe.byte_level) return unsupported(diag, "pre_tokenizer", "something after ByteLevel");
        if (t->space_marks) return unsupported(diag, "pre_tokenizer", "something after Metaspace");
        if (is_type(m, "ByteLevel")) {
            bool prefix = shore__tokenizer_flag(m, "add_prefix_space", true),
                 regex = shore__tokenizer_flag(m, "use_regex", true);
            t->bpe.byte_level = true;
            if (prefix || regex)
                rc = add_stage(t, regex ? GPT2_PATTERN : NULL, false, SHORE__ISOLATED, false, prefix, diag);
        } else if (is_type(m, "Split")) {
            rc = read_split(t, m, diag);
        } else if (is_type(m, "Digits")) {
            rc = add_stage(t, "\\p{N}", false,
                           shore__tokenizer_flag(m, "individual_digits", false) ? SHORE__ISOLATED : SHORE__CONTIGUOUS,
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
    b->byte_fallback = shore__tokenizer_flag(model, "byte_fallback", false);
    b->fuse_unknown = shore__tokenizer_flag(model, "fuse_unk", false);
    b->ignore_merges = shore__tokenizer_flag(model, "ignore_merges", false);
    b->unknown = SHORE__VOCAB_NONE;
    if (json_is_string(unknown)) {
        b->unknown = shore__vocab_find(&b->vocab, json_string_value(unknown), json_string_length(unknown));
        if (b->unknown == SHORE__VOCAB_NONE)
            return shore__fail(diag, SHORE_EINPUT, "the tokenizer's unk_token is not in its vocabulary");
    }
    return 0;
}

/* The ids of a special token of a template; NULL: it is the text. */
static const json_t *ids_of(const json_t *template, const json_t *part) {
    const char *name = string_of(json_object_get(part, "SpecialToken"), "id");
    return name ? json_object_get(json_object_get(json_object_get(template, "special_tokens"), name), "ids") : NULL;
}

/* Reads what a text begins and ends with, of the template for a single text. */
static int read_post_processor(struct shore__tokenizer *t, const json_t *post_processor, struct shore_diag *diag) {
    const json_t *m, *part, *id;
    size_t k, n;
    for (size_t i = 0; (m = member(post_processor, "processors", i)); i++) {
        if (is_type(m, "ByteLevel")) {
            t->trims = shore__tokenizer_flag(m, "trim_offsets", true);
            t->trims_after_prefix = shore__tokenizer_flag(m, "add_prefix_space", true);
        }
        const json_t *single = json_object_get(m, "single");
        const json_t *last = ids_of(m, json_array_get(single, json_array_size(single) - 1));
        t->templated = true;
        if (last) t->behind = json_integer_value(json_array_get(last, 0));
        json_array_foreach((json_t *)(uintptr_t)single, k, part) {
            const json_t *ids = ids_of(m, part);
            if (!ids) break; /* the text */
            json_array_foreach((json_t *)(uintptr_t)ids, n, id) {
                if (t->nbeginning == SHORE__STEP_LIMIT)
                    return unsupported(diag, "post-processor", "more than 8 tokens before a text");
                t->beginning[t->nbeginning++] = (uint32_t)json_integer_value(id);
            }
        }
    }
    return 0;
}

int shore__tokenizer_rules(struct shore__tokenizer *t, const json_t *document, struct shore_diag *diag) {
    int rc = shore__tokenizer_check_types(document, diag);
    if (rc == 0) rc = read_model(t, json_object_get(document, "model"), diag);
    if (rc == 0) rc = read_normalizer(t, json_object_get(document, "normalizer"), diag);
    if (rc == 0) rc = read_pre_tokenizer(t, json_object_get(document, "pre_tokenizer"), diag);
    if (rc == 0) rc = read_decoder(t, json_object_get(document, "decoder"), diag);
    return rc ? rc : read_post_processor(t, json_object_get(document, "post_processor"), diag);
}

int shore__tokenizer_gpt2_rules(struct shore__tokenizer *t, bool prefix_space, struct shore_diag *diag) {
    t->bpe.unknown = SHORE__VOCAB_NONE;
    t->bpe.byte_level = true;
    return add_stage(t, GPT2_PATTERN, false, SHORE__ISOLATED, false, prefix_space, diag);
}
