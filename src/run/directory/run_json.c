/* Reads and writes run.json. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/diag.h"
#include "files/atomic.h"
#include "files/json.h"
#include "run/internal.h"
#include "run/paths.h"

static json_t *tokens_json(const struct shore__token_record *r) {
    char hash[17];
    snprintf(hash, sizeof hash, "%016" PRIx64, r->hash);
    json_t *j = json_pack("{s:I, s:I, s:I, s:s}", "tokens", (json_int_t)r->tokens, "documents",
                          (json_int_t)r->documents, "text_bytes", (json_int_t)r->text_bytes, "hash", hash);
    if (j && r->bad_rows) json_object_set_new(j, "bad_rows", json_integer((json_int_t)r->bad_rows));
    if (j && r->second) json_object_set_new(j, "second", json_true());
    json_t *ends = r->ends[0] ? json_array() : NULL;
    for (size_t i = 0; ends && i < SHORE__MIX_MOST && r->ends[i]; i++)
        json_array_append_new(ends, json_integer((json_int_t)r->ends[i]));
    if (j && ends) json_object_set_new(j, "ends", ends);
    return j;
}

#define CHECKSUM "checksum"

/* The checksum of all other keys, whatever their order and layout. NULL: out of memory. */
static json_t *checksum_of(const json_t *j) {
    json_t *others = json_copy((json_t *)j);
    json_object_del(others, CHECKSUM);
    char *text = json_dumps(others, JSON_COMPACT | JSON_SORT_KEYS), hex[17] = "";
    if (text) snprintf(hex, sizeof hex, "%016" PRIx64, (uint64_t)XXH3_64bits(text, strlen(text)));
    free(text);
    json_decref(others);
    return hex[0] ? json_string(hex) : NULL;
}

/* Runs of earlier versions have no checksum. */
static int check_checksum(const json_t *j, const char *path, struct shore_diag *diag) {
    const json_t *recorded = json_object_get(j, CHECKSUM);
    json_t *computed = recorded ? checksum_of(j) : NULL;
    int rc = 0;
    if (recorded && !computed) rc = shore__fail(diag, -ENOMEM, "%s: out of memory", path);
    if (computed && !json_equal(recorded, computed))
        rc = shore__fail(diag, SHORE_ECORRUPT,
                         "%s: does not match its checksum: undo the change, or, if you made it on purpose, delete the "
                         "key \"" CHECKSUM "\"",
                         path);
    json_decref(computed);
    return rc;
}

json_t *shore__run_settings_json(const struct shore__run *run) {
    static const char *const of_contents[] = {"precision", "optimizer",    "moments", "memory",
                                              "drive",     "drive-speeds", "io",      NULL};
    json_t *all = shore__settings_to_json(&run->settings);
    if (!run->contents) return all;
    json_t *some = json_object();
    for (const char *const *key = of_contents; *key; key++)
        if (json_object_get(all, *key)) json_object_set(some, *key, json_object_get(all, *key));
    if (run->settings.residual_saved) json_object_set(some, "residual", json_object_get(all, "residual"));
    json_decref(all);
    return some;
}

static json_t *model_json(const struct shore__run *run, const char *fleet, json_t *home) {
    const struct shore__run_private *p = run->private;
    json_t *data = tokens_json(&p->data);
    json_t *val_data = p->val_data.tokens ? tokens_json(&p->val_data) : json_null();
    json_t *j = json_pack("{s:i, s:s, s:I, s:o, s:s, s:s, s:I, s:o, s:o, s:o, s:o, s:I, s:I, s:O}", "longshore",
                          SHORE__RUN_VERSION, "fleet", fleet, "generation", (json_int_t)run->generation, "home", home,
                          "processor", run->processor, "tokenizer", p->tokenizer_name, "parameters",
                          (json_int_t)run->model->parameters, "settings", shore__run_settings_json(run), "model",
                          shore__model_to_json(run->model, &run->model->arch), "data", data, "val_data", val_data,
                          "train_tokens", (json_int_t)p->train_tokens, "val_tokens", (json_int_t)p->val_tokens,
                          "changes", run->changes);
    if (j && run->data_from) json_object_set_new(j, "data_from", json_integer((json_int_t)run->data_from));
    if (j && run->val_from) json_object_set_new(j, "val_from", json_integer((json_int_t)run->val_from));
    if (j && p->end_of_text != SHORE__END_OF_TEXT_UNRECORDED)
        json_object_set_new(j, "end_of_text", json_integer(p->end_of_text));
    return j;
}

static json_t *contents_json(const struct shore__run *run, const char *fleet, json_t *home) {
    json_t *j =
        json_pack("{s:i, s:s, s:I, s:o, s:I, s:o, s:o, s:O, s:O}", "longshore", SHORE__RUN_VERSION_OF_CONTENTS, "fleet",
                  fleet, "generation", (json_int_t)run->generation, "home", home, "parameters",
                  (json_int_t)run->layout->elems, "settings", shore__run_settings_json(run), "blocks",
                  shore__contents_to_json(run->contents), "program", run->contents->program, "changes", run->changes);
    if (j && run->settings.momentum > 0) json_object_set_new(j, "with_momentum", json_true());
    return j;
}

int shore__run_put(const struct shore__run *run, const char *name, struct shore_diag *diag) {
    const struct shore__run_private *p = run->private;
    char fleet[33];
    shore__fleet_id_text(run->fleet_id, fleet);
    json_t *home = json_string(p->origin.home); /* NULL: not in UTF-8 */
    if (!home) home = json_null();
    json_t *j = run->contents ? contents_json(run, fleet, home) : model_json(run, fleet, home);
    if (j && p->origin.mark) json_object_set_new(j, "directory", json_string(p->origin.mark));
    bool summed = j && json_object_set_new(j, CHECKSUM, checksum_of(j)) == 0;
    assert(!summed || check_checksum(j, "", NULL) != SHORE_ECORRUPT);
    if (summed) return shore__json_write_in(run->path, name, j, diag);
    json_decref(j);
    return shore__fail(diag, -ENOMEM, "%s: out of memory for run.json", run->path);
}

static bool read_count(const json_t *j, const char *key, uint64_t *out) {
    const json_t *value = json_object_get(j, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static bool read_tokens(const json_t *j, struct shore__token_record *out) {
    const char *hash = json_string_value(json_object_get(j, "hash"));
    const json_t *ends = json_object_get(j, "ends");
    for (size_t i = 0; i < json_array_size(ends) && i < SHORE__MIX_MOST; i++)
        out->ends[i] = (uint64_t)json_integer_value(json_array_get(ends, i));
    out->second = json_is_true(json_object_get(j, "second"));
    return hash && strlen(hash) == 16 && sscanf(hash, "%16" SCNx64, &out->hash) == 1 &&
           read_count(j, "tokens", &out->tokens) && read_count(j, "documents", &out->documents) &&
           read_count(j, "text_bytes", &out->text_bytes) &&
           (!json_object_get(j, "bad_rows") || read_count(j, "bad_rows", &out->bad_rows));
}

static int read_model(struct shore__run *run, const json_t *j, const char *path, struct shore_diag *diag) {
    struct shore__run_private *p = run->private;
    const json_t *end_of_text = json_object_get(j, "end_of_text");
    struct shore__arch arch;
    p->end_of_text = json_is_integer(end_of_text) ? json_integer_value(end_of_text) : SHORE__END_OF_TEXT_UNRECORDED;
    if ((json_object_get(j, "data_from") && !read_count(j, "data_from", &run->data_from)) ||
        (json_object_get(j, "val_from") && !read_count(j, "val_from", &run->val_from)))
        return shore__fail(diag, SHORE_EINPUT,
                           "%s: \"data_from\" or \"val_from\" has been changed by hand; put it back", path);
    snprintf(run->processor, sizeof run->processor, "%s", json_string_value(json_object_get(j, "processor")));
    p->tokenizer_name = strdup(json_string_value(json_object_get(j, "tokenizer")));
    if (!p->tokenizer_name || shore__run_settle_tokenizer(&run->settings, p->tokenizer_name))
        return shore__out_of_memory(diag);
    const json_t *config = json_object_get(j, "model");
    int rc = shore__arch_from_json(config, path, &arch, diag);
    if (rc == 0) rc = shore__model_of_config(&arch, config, &run->model, diag);
    if (rc == 0) rc = shore__settings_shape_model(&run->settings, run->model, diag);
    if (rc == 0) run->layout = run->model->layout;
    return rc;
}

static int read_contents(struct shore__run *run, const json_t *j, const char *path, struct shore_diag *diag) {
    int rc = shore__contents_from_json(json_object_get(j, "blocks"), json_object_get(j, "program"), path,
                                       &run->contents, diag);
    if (json_is_true(json_object_get(j, "with_momentum"))) run->settings.momentum = SHORE__MOMENTUM_OF_PROGRAM;
    if (rc == 0) run->layout = run->contents->layout;
    return rc;
}

/* Reads the keys of a run of a model, which a run of contents lacks. Returns whether all are there. */
static bool has_model(struct shore__run_private *p, const json_t *j) {
    const json_t *val_data = json_object_get(j, "val_data");
    return json_is_string(json_object_get(j, "processor")) && json_is_string(json_object_get(j, "tokenizer")) &&
           json_is_object(json_object_get(j, "model")) && read_tokens(json_object_get(j, "data"), &p->data) &&
           (json_is_null(val_data) || read_tokens(val_data, &p->val_data)) &&
           read_count(j, "train_tokens", &p->train_tokens) && read_count(j, "val_tokens", &p->val_tokens);
}

static int read_fields(struct shore__run *run, const json_t *j, const char *path, struct shore_diag *diag) {
    struct shore__run_private *p = run->private;
    const json_t *number = json_object_get(j, "longshore");
    const char *home = json_string_value(json_object_get(j, "home"));
    const char *mark = json_string_value(json_object_get(j, "directory"));
    json_t *changes = json_object_get(j, "changes");
    json_int_t version = json_integer_value(number); /* 0: it is no integer */
    bool of_model = version == SHORE__RUN_VERSION;
    if (!of_model && version != SHORE__RUN_VERSION_OF_CONTENTS)
        return shore__fail(diag, SHORE_EFORMAT, "%s: has another version than %d and %d, which this program reads",
                           path, SHORE__RUN_VERSION, SHORE__RUN_VERSION_OF_CONTENTS);
    int rc = check_checksum(j, path, diag);
    if (rc) return rc;
    bool good = json_is_array(changes) &&
                shore__fleet_id_parse(json_string_value(json_object_get(j, "fleet")), run->fleet_id) &&
                (!of_model || has_model(p, j));
    if (!good)
        return shore__fail(diag, SHORE_EINPUT,
                           "%s: has been changed by hand and lacks keys that a run needs; undo the change", path);
    if (json_object_get(j, "generation") && (!read_count(j, "generation", &run->generation) || !run->generation))
        return shore__fail(diag, SHORE_EINPUT, "%s: \"generation\" has been changed by hand; put it back", path);
    json_decref(run->changes);
    run->changes = json_incref(changes);
    p->origin = (struct shore__origin){home ? strdup(home) : NULL, mark ? strdup(mark) : NULL};
    if ((home && !p->origin.home) || (mark && !p->origin.mark)) return shore__out_of_memory(diag);
    rc = shore__settings_from_json(json_object_get(j, "settings"), path, &run->settings, diag);
    if (rc) return rc;
    return of_model ? read_model(run, j, path, diag) : read_contents(run, j, path, diag);
}

int shore__run_read(struct shore__run *run, struct shore_diag *diag) {
    json_t *j = NULL;
    const struct shore__path path = shore__path_in(run->path, "run.json");
    int rc = shore__json_read(path.text, SHORE__RUN_JSON_BYTES_MOST, &j, diag);
    if (rc == 0) rc = read_fields(run, j, path.text, diag);
    json_decref(j);
    return rc;
}
