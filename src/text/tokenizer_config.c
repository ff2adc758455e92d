/* Reads what the files beside tokenizer.json say about tokens, as transformers' AutoTokenizer does:
 * added_tokens_decoder of tokenizer_config.json; without that, special_tokens_map.json over tokenizer_config.json, and
 * added_tokens.json. Then tokens that have a role but do not exist yet get the next ids. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "files/atomic.h"
#include "files/json.h"
#include "files/json_stream.h"
#include "text/tokenizer_impl.h"

#define FILE_LIMIT_BYTES (256u << 20)
#define CONFIG_LIMIT_BYTES (16u << 20)
#define CONFIG "tokenizer_config.json"

static const char *const parts[] = {SHORE__TOKEN_ROLES}; /* then others whose keys end alike */
enum { PARTS = sizeof parts / sizeof *parts };

static bool is_part(const char *key) {
    for (size_t i = 0; i < PARTS; i++)
        if (!strcmp(parts[i], key)) return true;
    return false;
}

static bool ends_in_token(const char *key) {
    size_t n = strlen(key);
    return n > 6 && !strcmp(key + n - 6, "_token");
}

json_t *shore__token_text(json_t *token) {
    json_t *text = json_is_object(token) ? json_object_get(token, "content") : token;
    return json_is_string(text) ? text : NULL;
}

/* The same; NULL: it is empty, too. */
static const json_t *content_of(const json_t *token) {
    const json_t *content = shore__token_text((json_t *)(uintptr_t)token);
    return json_string_length(content) ? content : NULL;
}

static int list(struct shore__tokenizer_config *c, const json_t *content, int64_t id, struct shore__added_rule rule) {
    size_t bytes = json_string_length(content);
    if ((c->nlisted & (c->nlisted - 1)) == 0) { /* a power of two: the array is full */
        struct shore__listed_token *more = realloc(c->listed, (c->nlisted ? 2 * c->nlisted : 1) * sizeof *more);
        if (!more) return -ENOMEM;
        c->listed = more;
    }
    char *copy = malloc(bytes);
    if (!copy) return -ENOMEM;
    memcpy(copy, json_string_value(content), bytes);
    c->listed[c->nlisted++] = (struct shore__listed_token){copy, bytes, id, rule};
    return 0;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

struct reading {
    struct shore__tokenizer_config *c;
    const char *path;
    enum { SKIPPED, KEPT, DECODER } part;
    char *name;
    int64_t id;
    struct shore__json_builder builder;
};

static bool is_kept(const char *key) {
    return !strcmp(key, "tokenizer_class") || !strcmp(key, "add_prefix_space") || !strcmp(key, "legacy") ||
           !strcmp(key, "additional_special_tokens") || !strcmp(key, "extra_special_tokens") ||
           !strcmp(key, "chat_template") || ends_in_token(key);
}

static int on_key(struct reading *r, const struct shore__json_event *e, struct shore_diag *diag) {
    free(r->name);
    r->name = strndup(e->text, e->bytes);
    if (!r->name) return shore__out_of_memory(diag);
    r->part = shore__json_event_is(e, "added_tokens_decoder") ? DECODER : is_kept(r->name) ? KEPT : SKIPPED;
    if ((r->part == DECODER && r->c->has_decoder) || (r->part == KEPT && json_object_get(r->c->kept, r->name)))
        return shore__fail(diag, SHORE_EINPUT, "%s: the key \"%s\" stands twice", r->path, shore__shown(r->name).text);
    r->c->has_decoder |= r->part == DECODER;
    return 0;
}

static int on_listed_id(struct reading *r, const struct shore__json_event *e, struct shore_diag *diag) {
    char shown[96], digits[16] = "";
    bool number = e->bytes > 0 && e->bytes < sizeof digits;
    if (number) memcpy(digits, e->text, e->bytes);
    r->id = number && strspn(digits, "0123456789") == e->bytes ? strtoll(digits, NULL, 10) : -1;
    if (r->id >= 0 && r->id < SHORE__VOCAB_ID_LIMIT) return 0;
    return shore__fail(diag, SHORE_EINPUT, "%s: \"added_tokens_decoder\" has \"%s\", which is no id in range", r->path,
                       shore__escape(e->text, e->bytes, shown, sizeof shown));
}

static int on_listed(struct reading *r, const json_t *token, struct shore_diag *diag) {
    struct shore_diag why = {0};
    const json_t *content = json_is_object(token) ? content_of(token) : NULL;
    if (!content)
        return shore__fail(diag, SHORE_EINPUT, "%s: token %lld of \"added_tokens_decoder\" has no content", r->path,
                           (long long)r->id);
    if (shore__tokenizer_check_types(token, &why)) return shore__fail(diag, SHORE_EINPUT, "%s: %s", r->path, why.text);
    return list(r->c, content, r->id, shore__added_rule_of(token, false))
               ? shore__fail(diag, -ENOMEM, "%s: out of memory", r->path)
               : 0;
}

static int on_kept(struct reading *r, json_t *value, struct shore_diag *diag) {
    const char *needed = NULL;
    if (json_is_null(value))
        needed = NULL;
    else if (is_part(r->name))
        needed = content_of(value) || json_is_string(value) ? NULL : "a text";
    else if (!strcmp(r->name, "tokenizer_class"))
        needed = json_is_string(value) ? NULL : "a text";
    else if (!strcmp(r->name, "add_prefix_space") || !strcmp(r->name, "legacy"))
        needed = json_is_boolean(value) ? NULL : "true or false";
    if (needed) return shore__fail(diag, SHORE_EINPUT, "%s: \"%s\" takes %s", r->path, r->name, needed);
    return json_object_set(r->c->kept, r->name, value) ? shore__fail(diag, -ENOMEM, "%s: out of memory", r->path) : 0;
}

/* Handles one event at a time: the list may hold more added tokens than fit in a tree. */
static int on_event(void *ctx, const struct shore__json_event *e, struct shore_diag *diag) {
    struct reading *r = ctx;
    struct shore_diag why = {0};
    bool opens = e->kind == SHORE__JSON_OBJECT_OPEN, closes = e->kind == SHORE__JSON_OBJECT_CLOSE;
    if (e->depth == 0 || (e->depth == 1 && e->kind == SHORE__JSON_ARRAY_OPEN))
        return shore__fail(diag, SHORE_EINPUT, "%s: is not a JSON object", r->path);
    if (e->depth == 1 && (opens || closes)) return 0;
    if (e->depth == 1 && e->kind == SHORE__JSON_KEY) return on_key(r, e, diag);
    if (r->part == SKIPPED) return 0;
    if (r->part == DECODER) {
        if (e->depth == 2 && (opens || closes)) return 0;
        if (e->depth == 2 && e->kind == SHORE__JSON_KEY) return on_listed_id(r, e, diag);
        if (e->depth == 1 || (e->depth == 2 && e->kind == SHORE__JSON_ARRAY_OPEN))
            return shore__fail(diag, SHORE_EINPUT, "%s: \"added_tokens_decoder\" takes tokens by their ids", r->path);
    }
    int rc = shore__json_builder_feed(&r->builder, e, &why);
    if (rc) return shore__fail(diag, rc, "%s: %s", r->path, why.text);
    if (!r->builder.done) return 0;
    rc = r->part == DECODER ? on_listed(r, r->builder.root, diag) : on_kept(r, r->builder.root, diag);
    shore__json_builder_fini(&r->builder);
    return rc;
}

static int read_config(struct shore__tokenizer_config *c, struct shore_diag *diag) {
    const struct shore__path path = shore__path_in(c->directory, CONFIG);
    struct reading r = {.c = c, .path = path.text};
    int rc = shore__json_stream_file(path.text, FILE_LIMIT_BYTES, on_event, &r, diag);
    shore__json_builder_fini(&r.builder);
    free(r.name);
    return rc == SHORE_EMISSING ? 0 : rc;
}

/* Reads a small JSON file beside the tokenizer; NULL if there is none. */
static int beside(const char *directory, const char *name, json_t **out, struct shore_diag *diag) {
    *out = NULL;
    int rc = shore__json_read(shore__path_in(directory, name).text, CONFIG_LIMIT_BYTES, out, diag);
    return rc == SHORE_EMISSING ? 0 : rc;
}

static bool says(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return value && !json_is_null(value) &&
           (json_is_string(value) || json_array_size(value) || json_object_size(value));
}

/* Renames the other name of the same list. */
static void rename_extra(json_t *kept, bool unless_there) {
    json_t *old = json_object_get(kept, "additional_special_tokens");
    if (!old ||
        (unless_there ? json_object_get(kept, "extra_special_tokens") != NULL : says(kept, "extra_special_tokens")))
        return;
    json_object_set(kept, "extra_special_tokens", old);
    json_object_del(kept, "additional_special_tokens");
}

static int merge_map(struct shore__tokenizer_config *c, struct shore_diag *diag) {
    json_t *map, *value;
    const char *key;
    int rc = beside(c->directory, "special_tokens_map.json", &map, diag);
    const struct shore__path path = shore__path_in(c->directory, "special_tokens_map.json");
    struct reading r = {.c = c, .path = path.text};
    json_object_foreach(map, key, value) {
        if (rc || !is_kept(key)) continue;
        r.name = (char *)key;
        if (json_is_object(value) && content_of(value)) json_object_set_new(value, "special", json_true());
        json_t *extra = json_object_get(c->kept, key);
        if (!strcmp(key, "extra_special_tokens") && json_is_array(value) && json_is_array(extra))
            rc = json_array_extend(extra, value) ? shore__fail(diag, -ENOMEM, "%s: out of memory", r.path) : 0;
        else
            rc = on_kept(&r, value, diag);
    }
    json_decref(map);
    return rc;
}

static bool names(const json_t *token, const char *content) {
    const json_t *text = content_of(token);
    return text && !strcmp(json_string_value(text), content);
}

static bool is_special(const json_t *kept, const char *content) {
    const json_t *extra = json_object_get(kept, "extra_special_tokens"), *token;
    size_t i;
    for (i = 0; i < PARTS; i++)
        if (names(json_object_get(kept, parts[i]), content)) return true;
    json_array_foreach((json_t *)extra, i, token) if (names(token, content)) return true;
    return false;
}

/* Reads added_tokens.json: ids by token. */
static int read_old_list(struct shore__tokenizer_config *c, struct shore_diag *diag) {
    json_t *tokens, *id;
    const char *content;
    int rc = beside(c->directory, "added_tokens.json", &tokens, diag);
    json_object_foreach(tokens, content, id) {
        bool special = is_special(c->kept, content), good = json_is_integer(id) && json_integer_value(id) >= 0;
        struct shore__added_rule rule = {.special = special, .normalized = !special};
        json_t *text = json_string(content);
        if (rc == 0 && (!good || !text || !*content))
            rc = shore__fail(diag, SHORE_EINPUT, "%s/added_tokens.json: the token \"%s\" has no whole number as its id",
                             c->directory, shore__shown(content).text);
        if (rc == 0 && list(c, text, json_integer_value(id), rule))
            rc = shore__fail(diag, -ENOMEM, "%s: out of memory", c->directory);
        json_decref(text);
    }
    json_decref(tokens);
    return rc;
}

int shore__tokenizer_config_read(const char *directory, struct shore__tokenizer_config *out, struct shore_diag *diag) {
    out->directory = directory;
    out->kept = json_object();
    int rc = out->kept ? read_config(out, diag) : shore__fail(diag, -ENOMEM, "%s: out of memory", directory);
    if (rc == 0) rename_extra(out->kept, false);
    if (rc == 0 && !out->has_decoder) {
        rc = merge_map(out, diag);
        if (rc == 0) rc = read_old_list(out, diag); /* a token is not special because the map calls it additional */
        rename_extra(out->kept, true);
    }
    return rc ? rc : beside(directory, "config.json", &out->config, diag);
}

void shore__tokenizer_config_fini(struct shore__tokenizer_config *c) {
    for (size_t i = 0; i < c->nlisted; i++)
        free(c->listed[i].content);
    free(c->listed);
    json_decref(c->kept);
    json_decref(c->config);
    *c = (struct shore__tokenizer_config){0};
}

/* ---- what follows ------------------------------------------------------------------------------------------------ */

static int by_id(const void *a, const void *b) {
    const struct shore__listed_token *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Adds the token of a role, or of the list of others. A known one with a role becomes special, and keeps the rest of
 * its rule; Qwen2's class makes all of them plain. */
static int add_part(const struct shore__tokenizer_config *c, struct shore__tokenizer *t, const json_t *token, bool role,
                    struct shore_diag *diag) {
    const json_t *content = content_of(token);
    if (!content) return 0;
    const char *text = json_string_value(content);
    size_t bytes = json_string_length(content);
    uint32_t known = shore__vocab_find(&t->added, text, bytes);
    struct shore__added_rule rule = c->plain_roles ? (struct shore__added_rule){.special = true}
                                                   : shore__added_rule_of(token, json_is_string(token));
    if (known != SHORE__VOCAB_NONE && !c->plain_roles) {
        t->added_rules[known].special |= role;
        return 0;
    }
    rule.special |= role;
    return shore__tokenizer_add_more(t, text, bytes, -1, rule, diag);
}

static int add_parts(const struct shore__tokenizer_config *c, struct shore__tokenizer *t, struct shore_diag *diag) {
    json_t *extra = json_object_get(c->kept, "extra_special_tokens"), *token;
    const char *key;
    size_t i;
    int rc = 0;
    for (i = 0; rc == 0 && i < PARTS; i++)
        rc = add_part(c, t, json_object_get(c->kept, parts[i]), true, diag);
    json_object_foreach(c->kept, key, token) if (rc == 0 && ends_in_token(key)) rc = add_part(c, t, token, true, diag);
    json_object_foreach(extra, key, token) if (rc == 0) rc = add_part(c, t, token, true, diag);
    json_array_foreach(extra, i, token) if (rc == 0) rc = add_part(c, t, token, false, diag);
    return rc;
}

int shore__tokenizer_config_apply(struct shore__tokenizer_config *c, struct shore__tokenizer *t,
                                  struct shore_diag *diag) {
    struct shore_diag why = {0};
    int rc = 0;
    if (c->nlisted) qsort(c->listed, c->nlisted, sizeof *c->listed, by_id);
    for (size_t i = 0; rc == 0 && i < c->nlisted; i++) {
        const struct shore__listed_token *l = &c->listed[i];
        rc = shore__tokenizer_add_more(t, l->content, l->bytes, l->id, l->rule, &why);
    }
    if (rc)
        return shore__fail(diag, rc, "%s/%s: %s", c->directory, c->has_decoder ? CONFIG : "added_tokens.json",
                           why.text);
    if (t->added.nids > t->needed) t->needed = t->added.nids;
    rc = add_parts(c, t, &why);
    return rc ? shore__fail(diag, rc, "%s: %s", c->directory, why.text) : 0;
}

/* The id that a file of the model states; -1: none. */
static int id_in(const char *directory, const char *name, const json_t *config, const struct shore__tokenizer *t,
                 int64_t *out, struct shore_diag *diag) {
    const json_t *id = json_object_get(config, "eos_token_id");
    size_t bytes;
    *out = -1;
    if (json_is_array(id)) id = json_array_get(id, 0);
    if (!id || json_is_null(id)) return 0;
    json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
    if (value < 0)
        return shore__fail(diag, SHORE_EINPUT, "%s/%s: \"eos_token_id\" takes the id of a token", directory, name);
    bool known = value < UINT32_MAX && (shore__vocab_text(&t->added, (uint32_t)value, &bytes) ||
                                        shore__vocab_text(&t->bpe.vocab, (uint32_t)value, &bytes));
    if (!known)
        return shore__fail(
            diag, SHORE_EINPUT,
            "%s/%s: \"eos_token_id\" is %lld, but the tokenizer has no such token, and its own files name "
            "no eos_token: put it into tokenizer_config.json",
            directory, name, (long long)value);
    *out = value;
    return 0;
}

int shore__tokenizer_config_end_of_text(const struct shore__tokenizer_config *c, struct shore__tokenizer *t,
                                        struct shore_diag *diag) {
    static const char *const usual[] = {"<|endoftext|>", "</s>", "<|end_of_text|>"};
    const json_t *name = content_of(json_object_get(c->kept, "eos_token"));
    const char *class = json_string_value(json_object_get(c->kept, "tokenizer_class"));
    json_t *generation = NULL;
    int64_t *id = &t->end_of_text;
    *id = -1;
    if (name) *id = shore__tokenizer_id(t, json_string_value(name), json_string_length(name));
    if (c->lenient && *id >= t->needed) *id = -1; /* it was no token in older versions */
    if (*id >= 0) return 0;
    int rc = id_in(c->directory, "config.json", c->config, t, id, diag);
    if (rc == 0 && *id < 0) rc = beside(c->directory, "generation_config.json", &generation, diag);
    if (rc == 0 && *id < 0) rc = id_in(c->directory, "generation_config.json", generation, t, id, diag);
    json_decref(generation);
    if (c->lenient && rc == SHORE_EINPUT) rc = 0;
    size_t first = class && !strncmp(class, "LlamaTokenizer", 14); /* transformers' class has its own usual token */
    for (size_t i = 0; rc == 0 && *id < 0 && i < 3; i++) {
        const char *text = usual[(first + i) % 3];
        uint32_t found = shore__tokenizer_id(t, text, strlen(text));
        if (found != SHORE__VOCAB_NONE) *id = found;
    }
    return rc;
}
