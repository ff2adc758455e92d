/* Describes a tokenizer in GGUF's metadata, as llama.cpp reads it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "text/bytechars.h"
#include "text/chat_impl.h"
#include "text/tokenizer_gguf.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE }; /* llama.cpp's types of tokens */

/* ---- how a text is divided --------------------------------------------------------------------------------------- */

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define ENDS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define CL100K(digits)                                       \
    ENDS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits "| " \
         "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define CASED(ends, digits)                                                                                      \
    "[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]*[" LOWER "]+" ends "|[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]+[" LOWER "]*" ends \
    "|\\p{N}" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct {
    const char *name; /* llama.cpp's */
    const char *patterns[2];
    bool ignore_merges;
} divisions[] = {
    {"gpt-2", {GPT2}, false},
    {"smollm", {"\\p{N}", GPT2}, false},
    {"llama-bpe", {CL100K("{1,3}")}, true},
    {"smaug-bpe", {CL100K("{1,3}")}, false},
    {"qwen2", {CL100K("")}, false},
    {"tekken", {CASED("", "")}, true},
    {"gpt-4o", {CASED(ENDS "?", "{1,3}")}, false},
};

static bool is_division(const struct shore__tokenizer *t, size_t number) {
    unsigned n = 0;
    for (unsigned i = 0; i < t->nstages; i++) {
        const struct shore__stage *stage = &t->stages[i];
        if (!stage->pattern && !stage->prefix_space) continue;
        const char *wanted = n < 2 ? divisions[number].patterns[n++] : NULL;
        if (!wanted || !stage->text || strcmp(wanted, stage->text) != 0 || stage->prefix_space || stage->invert ||
            stage->behavior != SHORE__ISOLATED)
            return false;
    }
    return (n == 2 || !divisions[number].patterns[n]) && divisions[number].ignore_merges == t->bpe.ignore_merges;
}

static int put_kind(const struct shore__tokenizer *t, bool marks, struct shore__gguf *g, struct shore_diag *diag) {
    const char *division = marks ? "default" : t->is_bytes ? divisions[0].name : NULL;
    bool prepends = t->prepend != SHORE__PREPEND_NEVER;
    if (!marks && !t->bpe.byte_level && !t->is_bytes)
        return shore__fail(diag, SHORE_EINPUT, "llama.cpp has no tokenizer of this kind (%s): export without GGUF",
                           t->name);
    for (size_t i = 0; !division && i < sizeof divisions / sizeof *divisions; i++)
        if (is_division(t, i)) division = divisions[i].name;
    if (!division)
        return shore__fail(diag, SHORE_EINPUT,
                           "Longshore does not know llama.cpp's name for how this tokenizer divides a text: export "
                           "without GGUF, and convert that with llama.cpp's convert_hf_to_gguf.py, if it knows it");
    for (unsigned i = 0; i < t->nsteps; i++)
        prepends |= t->steps[i].kind == SHORE__STEP_PREPEND;
    shore__gguf_text(g, "tokenizer.ggml.model", marks ? "llama" : "gpt2");
    shore__gguf_text(g, "tokenizer.ggml.pre", division);
    if (marks) shore__gguf_bool(g, "tokenizer.ggml.add_space_prefix", prepends);
    return 0;
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

static bool is_byte(const struct shore__bpe *b, uint32_t id) {
    bool found = false;
    for (unsigned i = 0; i < 256 && !found && b->byte_fallback; i++)
        found = b->byte_ids[i] == id;
    return found;
}

/* The text of a token, its length and its type. scratch: 32 bytes. */
static const char *text_of(const struct shore__tokenizer *t, uint32_t id, char *scratch, size_t *bytes, int32_t *type) {
    const char *added = shore__vocab_text(&t->added, id, bytes);
    *type = NORMAL;
    if (t->is_bytes && id <= SHORE__BYTES_END_OF_TEXT) {
        bool end = id == SHORE__BYTES_END_OF_TEXT;
        if (end) *type = CONTROL;
        *bytes = end ? strlen(SHORE__BYTES_END_OF_TEXT_NAME) : shore__utf8_put_short(scratch, shore__byte_char(id));
        return end ? SHORE__BYTES_END_OF_TEXT_NAME : scratch;
    }
    if (added) {
        *type = id == t->bpe.unknown ? UNKNOWN : t->added_rules[id].special ? CONTROL : USER_DEFINED;
        return added;
    }
    const char *text = shore__vocab_text(&t->bpe.vocab, id, bytes);
    if (text) {
        *type = id == t->bpe.unknown ? UNKNOWN : is_byte(&t->bpe, id) ? BYTE : NORMAL;
        return text;
    }
    *type = UNUSED;
    *bytes = (size_t)snprintf(scratch, 32, "[PAD%u]", id);
    return scratch;
}

static int by_rank(const void *a, const void *b) {
    const struct shore__merge *x = a, *y = b;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* The merges in their order. The caller frees them; NULL: out of memory. */
static struct shore__merge *sorted(const struct shore__merges *m) {
    struct shore__merge *all = malloc((m->count + 1u) * sizeof *all);
    uint32_t n = 0;
    for (uint32_t i = 0; all && i < m->nslots; i++)
        if (m->slots[i].result != SHORE__VOCAB_NONE) all[n++] = m->slots[i];
    if (all) qsort(all, n, sizeof *all, by_rank);
    return all;
}

/* SentencePiece joins what has the highest score: the earlier a token is merged, the higher. */
static int put_scores(const struct shore__merge *merges, uint32_t nmerges, uint32_t vocab, struct shore__gguf *g,
                      struct shore_diag *diag) {
    float *scores = malloc((vocab + 1u) * sizeof *scores);
    if (!scores) return shore__out_of_memory(diag);
    for (uint32_t i = 0; i < vocab; i++)
        scores[i] = -(float)nmerges;
    for (uint32_t i = nmerges; i-- > 0;)
        if (merges[i].result < vocab) scores[merges[i].result] = -(float)i;
    shore__gguf_list(g, "tokenizer.ggml.scores", SHORE__GGUF_F32, vocab);
    for (uint32_t i = 0; i < vocab; i++)
        shore__gguf_item_f32(g, scores[i]);
    free(scores);
    return 0;
}

static int put_merges(const struct shore__tokenizer *t, const struct shore__merge *merges, uint32_t nmerges,
                      struct shore__gguf *g, struct shore_diag *diag) {
    int rc = 0;
    shore__gguf_list(g, "tokenizer.ggml.merges", SHORE__GGUF_TEXT, nmerges);
    for (uint32_t i = 0; i < nmerges && rc == 0; i++) {
        size_t left, right;
        const char *a = shore__vocab_text(&t->bpe.vocab, merges[i].left, &left);
        const char *b = shore__vocab_text(&t->bpe.vocab, merges[i].right, &right);
        char *pair = NULL;
        int n = asprintf(&pair, "%.*s %.*s", (int)left, a, (int)right, b);
        if (n < 0)
            rc = shore__out_of_memory(diag);
        else
            shore__gguf_item_text(g, pair, (size_t)n);
        if (n >= 0) free(pair);
    }
    return rc;
}

static int put_tokens(const struct shore__tokenizer *t, bool marks, uint32_t vocab, struct shore__gguf *g,
                      struct shore_diag *diag) {
    uint32_t nmerges = t->is_bytes ? 0 : t->bpe.merges.count;
    char scratch[32];
    size_t bytes;
    int32_t *types = malloc((vocab + 1u) * sizeof *types);
    if (!types) return shore__out_of_memory(diag);
    shore__gguf_list(g, "tokenizer.ggml.tokens", SHORE__GGUF_TEXT, vocab);
    for (uint32_t id = 0; id < vocab; id++) {
        const char *text = text_of(t, id, scratch, &bytes, &types[id]);
        shore__gguf_item_text(g, text, bytes);
        /* such as Gemma's runs of spaces: of other tokens, llama.cpp prints the mark */
        if (marks && types[id] == USER_DEFINED && memmem(text, bytes, SHORE__SPACE_MARK, 3)) types[id] = NORMAL;
    }
    shore__gguf_list(g, "tokenizer.ggml.token_type", SHORE__GGUF_I32, vocab);
    for (uint32_t id = 0; id < vocab; id++)
        shore__gguf_item_i32(g, types[id]);
    free(types);
    struct shore__merge *merges = sorted(&t->bpe.merges);
    int rc = !merges ? shore__out_of_memory(diag)
             : marks ? put_scores(merges, nmerges, vocab, g, diag)
                     : put_merges(t, merges, nmerges, g, diag);
    free(merges);
    return rc;
}

/* ---- special tokens and the chat template ------------------------------------------------------------------------ */

static void put_special(const struct shore__tokenizer *t, const json_t *kept, const int64_t ids[2],
                        struct shore__gguf *g) {
    static const struct {
        const char *role, *key;
    } roles[] = {
        {"bos_token", "tokenizer.ggml.bos_token_id"},     {"eos_token", "tokenizer.ggml.eos_token_id"},
        {"unk_token", "tokenizer.ggml.unknown_token_id"}, {"sep_token", "tokenizer.ggml.seperator_token_id"},
        {"pad_token", "tokenizer.ggml.padding_token_id"}, {"cls_token", "tokenizer.ggml.cls_token_id"},
        {"mask_token", "tokenizer.ggml.mask_token_id"},
    };
    int64_t of_role[sizeof roles / sizeof *roles];
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        const json_t *text = shore__token_text(json_object_get(kept, roles[i].role));
        uint32_t id =
            text ? shore__tokenizer_id(t, json_string_value(text), json_string_length(text)) : SHORE__VOCAB_NONE;
        of_role[i] = id != SHORE__VOCAB_NONE ? id : i < 2 ? ids[i] : -1;
        if (of_role[i] >= 0) shore__gguf_u32(g, roles[i].key, (uint32_t)of_role[i]);
    }
    static const char *const adds[] = {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"};
    static const char *const said[] = {"add_bos_token", "add_eos_token"};
    const int64_t template[] = {t->nbeginning ? (int64_t)t->beginning[0] : -1, t->behind};
    for (size_t i = 0; i < 2; i++) {
        const json_t *flag = json_object_get(kept, said[i]);
        bool templated = t->templated && !t->is_bytes;
        if (templated || json_is_boolean(flag) || t->bpe.byte_level || t->is_bytes)
            shore__gguf_bool(g, adds[i],
                             templated ? template[i] >= 0 && template[i] == of_role[i] : json_is_true(flag));
    }
}

static int put_template(const struct shore__tokenizer *t, struct shore__gguf *g, struct shore_diag *diag) {
    struct shore__chat chat = {.tokenizer = t};
    int rc = shore__chat_find(&chat, diag);
    const json_t *text = json_object_get(chat.templates, "default");
    if (rc == 0) shore__gguf_text(g, "tokenizer.chat_template", json_string_value(text));
    json_decref(chat.templates);
    json_decref(chat.variables);
    return rc == SHORE_EMISSING ? 0 : rc;
}

int shore__tokenizer_gguf(const struct shore__tokenizer *t, uint32_t vocab, const int64_t ids[2], struct shore__gguf *g,
                          struct shore_diag *diag) {
    struct shore__tokenizer_config config = {0};
    bool marks = !t->is_bytes && !t->bpe.byte_level && t->bpe.byte_fallback;
    int rc = put_kind(t, marks, g, diag);
    if (rc == 0) rc = put_tokens(t, marks, vocab, g, diag);
    if (rc == 0 && t->directory) rc = shore__tokenizer_config_read(t->directory, &config, diag);
    if (rc == 0) put_special(t, config.kept, ids, g);
    shore__tokenizer_config_fini(&config);
    return rc || !t->directory ? rc : put_template(t, g, diag);
}
