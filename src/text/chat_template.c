/* Where a model keeps its chat template, and the tokens that the template may name. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "files/atomic.h"
#include "files/json.h"
#include "files/read_file.h"
#include "text/chat_impl.h"
#include "text/tokenizer_impl.h"

#define TEMPLATE_LIMIT_BYTES (1u << 20)
#define JINJA "chat_template.jinja"
#define CONFIG "tokenizer_config.json"
#define JSON "chat_template.json"
#define TOOL_USE "additional_chat_templates/tool_use.jinja"

static int keep(struct shore__chat *c, const char *name, json_t *text, struct shore_diag *diag) {
    if (!json_is_string(text))
        return shore__fail(diag, SHORE_EINPUT, "%s: the chat template \"%s\" is no text", c->file,
                           shore__shown(name).text);
    return json_object_set(c->templates, name, text) ? shore__out_of_memory(diag) : 0;
}

/* Takes a template as JSON files state it: a text, or a list of {"name": ..., "template": ...}. */
static int keep_value(struct shore__chat *c, const char *file, json_t *value, struct shore_diag *diag) {
    size_t i;
    json_t *one;
    int rc = 0;
    if (!value || json_is_null(value)) return 0;
    c->file = file;
    if (!json_is_array(value)) return keep(c, "default", value, diag);
    json_array_foreach(value, i, one) {
        const char *name = json_string_value(json_object_get(one, "name"));
        if (!name) return shore__fail(diag, SHORE_EINPUT, "%s: a template of \"chat_template\" has no name", file);
        rc = rc ? rc : keep(c, name, json_object_get(one, "template"), diag);
    }
    return rc;
}

static int read_jinja(struct shore__chat *c, struct shore_diag *diag) {
    char *text = NULL;
    size_t bytes;
    int rc = shore__file_read(shore__path_in(c->tokenizer->directory, JINJA).text, TEMPLATE_LIMIT_BYTES, &text, &bytes,
                              diag);
    if (rc) return rc == SHORE_EMISSING ? 0 : rc;
    json_t *value = json_stringn(text, bytes);
    free(text);
    if (!value) return shore__fail(diag, SHORE_EINPUT, JINJA ": is not UTF-8");
    rc = keep_value(c, JINJA, value, diag);
    json_decref(value);
    if (rc == 0 && shore__path_exists(c->tokenizer->directory, TOOL_USE))
        rc = shore__fail(diag, SHORE_EINPUT,
                         "%s: rows with tools have a template in " TOOL_USE
                         ", which no run keeps: move it aside, or put "
                         "both into \"chat_template\" of " CONFIG " instead, as [{\"name\": ..., \"template\": ...}]",
                         c->tokenizer->directory);
    return rc;
}

static int read_json(struct shore__chat *c, struct shore_diag *diag) {
    json_t *document;
    int rc =
        shore__json_read(shore__path_in(c->tokenizer->directory, JSON).text, TEMPLATE_LIMIT_BYTES, &document, diag);
    if (rc) return rc == SHORE_EMISSING ? 0 : rc;
    rc = keep_value(c, JSON, json_object_get(document, "chat_template"), diag);
    json_decref(document);
    return rc;
}

static bool is_named(json_t *templates, const char *name) {
    const char *key;
    json_t *text;
    json_object_foreach(templates, key, text) {
        if (strstr(json_string_value(text), name)) return true;
    }
    return false;
}

/* The tokens that a template may name: those of roles that the files name. Some of transformers' classes have others
 * where the files say nothing. */
static int read_tokens(struct shore__chat *c, const json_t *kept, struct shore_diag *diag) {
    static const char *const roles[] = {SHORE__TOKEN_ROLES};
    const char *class = json_string_value(json_object_get(kept, "tokenizer_class"));
    bool has_own = class && strcmp(class, "PreTrainedTokenizerFast") != 0 && strcmp(class, "TokenizersBackend") != 0;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        json_t *token = json_object_get(kept, roles[i]);
        if (has_own && !token && is_named(c->templates, roles[i]))
            return shore__fail(diag, SHORE_EINPUT,
                               "%s/" CONFIG
                               ": the chat template writes the \"%s\", of which the file says nothing: name "
                               "it there, or null",
                               c->tokenizer->directory, roles[i]);
        token = shore__token_text(token);
        if (token && json_object_set(c->variables, roles[i], token)) return shore__out_of_memory(diag);
    }
    return 0;
}

int shore__chat_find(struct shore__chat *c, struct shore_diag *diag) {
    struct shore__tokenizer_config config = {0};
    const char *directory = c->tokenizer->directory;
    c->templates = json_object();
    c->variables = json_object();
    if (!c->templates || !c->variables) return shore__out_of_memory(diag);
    int rc = directory ? shore__tokenizer_config_read(directory, &config, diag) : 0;
    if (rc == 0 && directory) rc = read_jinja(c, diag);
    if (rc == 0 && !c->file) rc = keep_value(c, CONFIG, json_object_get(config.kept, "chat_template"), diag);
    if (rc == 0 && !c->file && directory) rc = read_json(c, diag);
    if (rc == 0) rc = read_tokens(c, config.kept, diag);
    shore__tokenizer_config_fini(&config);
    if (rc) return rc;
    if (!json_object_get(c->templates, "default"))
        return shore__fail(diag, SHORE_EMISSING,
                           "%s: has no chat template: there is no " JINJA ", and no default one in " CONFIG
                           "; put that of a chat model with this tokenizer there, or give rows in which \"prompt\" and "
                           "\"completion\" are texts",
                           directory ? directory : "the byte-level tokenizer");
    return 0;
}
