#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "text/tokenizer_impl.h"
#include "text/vector.h"

struct shore__added_rule shore__added_rule_of(const json_t *token, bool special) {
    struct shore__added_rule rule = {.special = special || shore__tokenizer_flag(token, "special", false),
                                     .lstrip = shore__tokenizer_flag(token, "lstrip", false),
                                     .rstrip = shore__tokenizer_flag(token, "rstrip", false),
                                     .single_word = shore__tokenizer_flag(token, "single_word", false)};
    rule.normalized = shore__tokenizer_flag(token, "normalized", !rule.special);
    return rule;
}

uint32_t shore__tokenizer_id(const struct shore__tokenizer *t, const char *text, size_t bytes) {
    uint32_t id = shore__vocab_find(&t->added, text, bytes);
    return id == SHORE__VOCAB_NONE ? shore__vocab_find(&t->bpe.vocab, text, bytes) : id;
}

/* The next free id. The tokenizers library takes no id from a file, but counts on. */
static uint32_t next_id(const struct shore__tokenizer *t) {
    return t->added.nids > t->bpe.vocab.count ? t->added.nids : t->bpe.vocab.count;
}

static int put_rule(struct shore__tokenizer *t, uint32_t id, struct shore__added_rule rule) {
    if (id >= t->nrules) {
        uint32_t n = t->nrules ? t->nrules : 1024;
        while (n <= id)
            n *= 2;
        struct shore__added_rule *rules = realloc(t->added_rules, n * sizeof *rules);
        if (!rules) return -ENOMEM;
        memset(rules + t->nrules, 0, (n - t->nrules) * sizeof *rules);
        t->added_rules = rules;
        t->nrules = n;
    }
    rule.special |= t->added_rules[id].special; /* once special, always special */
    t->added_rules[id] = rule;
    return 0;
}

static int add_token(struct shore__tokenizer *t, const char *content, size_t bytes, uint32_t id,
                     struct shore__added_rule rule, struct shore_diag *diag) {
    char shown[96];
    size_t known_bytes;
    const char *known = shore__vocab_text(&t->bpe.vocab, id, &known_bytes);
    uint32_t other = shore__vocab_find(&t->bpe.vocab, content, bytes), next = next_id(t);
    if ((known && (known_bytes != bytes || memcmp(known, content, bytes) != 0)) ||
        (other != SHORE__VOCAB_NONE && other != id))
        return shore__fail(diag, SHORE_EINPUT, "the added token \"%s\" has an id that contradicts the vocabulary",
                           shore__escape(content, bytes, shown, sizeof shown));
    int rc = shore__vocab_add(&t->added, content, bytes, id);
    if (rc)
        return shore__fail(diag, rc, "the added token \"%s\" stands twice, or its id %u is taken or out of range",
                           shore__escape(content, bytes, shown, sizeof shown), id);
    if (other == SHORE__VOCAB_NONE && id != next)
        return shore__fail(diag, SHORE_EINPUT,
                           "the added token \"%s\" has the id %u, but the tokenizers library, which counts on from the "
                           "vocabulary, gives it %u: change its id, or fill the gap with other added tokens",
                           shore__escape(content, bytes, shown, sizeof shown), id, next);
    return put_rule(t, id, rule) ? shore__out_of_memory(diag) : 0;
}

int shore__tokenizer_add(struct shore__tokenizer *t, const json_t *token, struct shore_diag *diag) {
    const json_t *content = json_object_get(token, "content"), *id = json_object_get(token, "id");
    json_int_t number = json_is_integer(id) ? json_integer_value(id) : -1;
    struct shore__added_rule rule = shore__added_rule_of(token, false);
    int rc = shore__tokenizer_check_types(token, diag);
    if (rc) return rc;
    if (!json_is_string(content) || number < 0 || number >= SHORE__VOCAB_ID_LIMIT)
        return shore__fail(diag, SHORE_EINPUT, "an added token has no content, or no id in range");
    if (json_string_length(content) == 0) return shore__fail(diag, SHORE_EINPUT, "an added token is empty");
    rule.normalized = shore__tokenizer_flag(token, "normalized", false);
    return add_token(t, json_string_value(content), json_string_length(content), (uint32_t)number, rule, diag);
}

int shore__tokenizer_add_more(struct shore__tokenizer *t, const char *content, size_t bytes, int64_t id,
                              struct shore__added_rule rule, struct shore_diag *diag) {
    char shown[96];
    uint32_t is = shore__tokenizer_id(t, content, bytes);
    bool known = is != SHORE__VOCAB_NONE;
    if (!known) is = next_id(t);
    if (id >= 0 && id != is)
        return shore__fail(diag, SHORE_EINPUT,
                           known ? "the token \"%s\" has the id %lld, but is %u in the vocabulary"
                                 : "the token \"%s\" has the id %lld, but transformers, which counts on from the "
                                   "vocabulary, gives it %u: change its id, or fill the gap with other added tokens",
                           shore__escape(content, bytes, shown, sizeof shown), (long long)id, is);
    int rc = shore__vocab_find(&t->added, content, bytes) == SHORE__VOCAB_NONE
                 ? shore__vocab_add(&t->added, content, bytes, is)
                 : 0;
    if (rc == 0) rc = put_rule(t, is, rule);
    return rc ? shore__fail(diag, rc, "the token \"%s\" cannot be added, or memory is short",
                            shore__escape(content, bytes, shown, sizeof shown))
              : 0;
}

static int put_in_set(struct shore__tokenizer *t, const char *content, size_t bytes, uint32_t id,
                      struct shore_diag *diag) {
    const struct shore__added_rule *rule = &t->added_rules[id];
    struct shore__text text = {0};
    int rc =
        rule->normalized ? shore__normalize(t, content, bytes, &text, diag) : shore__text_append(&text, content, bytes);
    char *exact = rc || !text.count ? NULL : realloc(text.bytes, text.count); /* there may be many */
    if (exact) text.bytes = exact;
    struct shore__added token = {.content = text.bytes,
                                 .bytes = text.count,
                                 .id = id,
                                 .special = rule->special,
                                 .lstrip = rule->lstrip,
                                 .rstrip = rule->rstrip,
                                 .single_word = rule->single_word};
    if (rc == 0) rc = shore__added_set_add(rule->normalized ? &t->normalized : &t->raw, &token);
    if (rc) free(text.bytes);
    return rc ? shore__fail(diag, rc, "%s: out of memory", t->directory) : 0;
}

int shore__tokenizer_added_ready(struct shore__tokenizer *t, struct shore_diag *diag) {
    for (uint32_t id = 0; id < t->added.nids; id++) {
        size_t bytes;
        const char *content = shore__vocab_text(&t->added, id, &bytes);
        int rc = content ? put_in_set(t, content, bytes, id, diag) : 0;
        if (rc) return rc;
    }
    shore__added_set_ready(&t->raw);
    shore__added_set_ready(&t->normalized);
    return 0;
}
