/* Rules of the tokenizer classes of transformers 5 that make them themselves, and take only the vocabulary, the merges
 * and the added tokens of tokenizer.json. All other classes take that file as it is. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/diag.h"
#include "text/tokenizer_impl.h"

#define QWEN2_PATTERN                                                                 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| " \
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*"                                         \
    "|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

/* What each makes, as tokenizer.json would say it. %s: how a text begins. */
static const struct {
    const char *name, *document;
} classes[] = {
    {"GPT2Tokenizer",
     "{\"model\":{\"type\":\"BPE\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":%s}}"},
    {"Qwen2Tokenizer",
     "{\"model\":{\"type\":\"BPE\"},\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\","
     "\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" QWEN2_PATTERN
     "\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"add_prefix_space\":%s,\"use_regex\":false}]}}"},
    {"LlamaTokenizer",
     "{\"model\":{\"type\":\"BPE\",\"fuse_unk\":true,\"byte_fallback\":true},\"pre_tokenizer\":{\"type\":\"Metaspace\","
     "\"prepend_scheme\":\"%s\",\"split\":false}}"},
};
enum { CLASSES = sizeof classes / sizeof *classes };

static bool is(const char *name, const char *class) {
    size_t n = strlen(class);
    return name && !strncmp(name, class, n) && (!name[n] || !strcmp(name + n, "Fast"));
}

/* The class that AutoTokenizer takes, or NULL: one that takes the file as it is. */
static const char *class_of(const struct shore__tokenizer_config *c, bool byte_level) {
    const char *named = json_string_value(json_object_get(c->kept, "tokenizer_class")),
               *family = json_string_value(json_object_get(c->config, "model_type"));
    if (!named) named = json_string_value(json_object_get(c->config, "tokenizer_class"));
    if (family && !strcmp(family, "qwen2")) return "Qwen2Tokenizer"; /* whatever is named */
    if (family && !strcmp(family, "mistral")) return NULL;
    if (!named && family && !strcmp(family, "gpt2")) return "GPT2Tokenizer";
    for (size_t i = 0; i < CLASSES; i++)
        if (is(named, classes[i].name)) return byte_level && is(named, "LlamaTokenizer") ? NULL : classes[i].name;
    return NULL;
}

/* The class with which a run was made: its tokenizer's name ends in that. */
static const char *class_in(const char *name) {
    for (size_t i = 0; i < CLASSES; i++) {
        size_t n = strlen(name), k = strlen(classes[i].name);
        if (n > k && name[n - k - 1] == '-' && !strcmp(name + n - k, classes[i].name)) return classes[i].name;
    }
    return NULL;
}

static const char *beginning(const struct shore__tokenizer_config *c, const char *class) {
    const json_t *prefix = json_object_get(c->kept, "add_prefix_space");
    if (strcmp(class, "LlamaTokenizer") != 0) return json_is_true(prefix) ? "true" : "false";
    if (json_is_false(prefix)) return "never";
    return json_is_true(json_object_get(c->kept, "legacy")) ? "always" : "first";
}

int shore__tokenizer_by_class(struct shore__tokenizer_config *c, struct shore__tokenizer *t, struct shore_diag *diag) {
    char text[768];
    const char *class = c->recorded ? class_in(c->recorded) : class_of(c, t->bpe.byte_level);
    size_t i = 0;
    /* without merges, as the byte-level tokenizer saves itself, all is divided anyway */
    if (!class || t->bpe.merges.count == 0) return 0;
    while (strcmp(classes[i].name, class) != 0)
        i++;
    snprintf(text, sizeof text, classes[i].document, beginning(c, class));
    json_t *document = json_loads(text, 0, NULL);
    if (!document) return shore__fail(diag, -ENOMEM, "%s: out of memory", t->directory);
    c->plain_roles = strcmp(class, "Qwen2Tokenizer") == 0;
    shore__tokenizer_drop_rules(t);
    int rc = shore__tokenizer_rules(t, document, diag);
    t->strip_first_space = t->prepend != SHORE__PREPEND_NEVER;
    json_decref(document);
    shore__append(t->name, sizeof t->name, "-%s", class);
    return rc;
}
