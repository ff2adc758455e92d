#include "run/exchange/adapter_config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/diag.h"
#include "base/suggest.h"
#include "model/families/families.h"
#include "text/pattern.h"

__attribute__((format(printf, 4, 5))) static int refuse(const struct shore__adapter_config *c, const char *key,
                                                        struct shore_diag *diag, const char *format, ...) {
    char what[400];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return shore__fail(diag, SHORE_EINPUT, "%s: \"%s\" %s", c->path, shore__shown(key).text, what);
}

/* ---- which keys count -------------------------------------------------------------------------------------------- */

/* Keys of LoraConfig that this file reads, that only say how training began or went on, or whose tensors say enough:
 * an adapter's tensors decide about biases and modules that were saved whole, a layer's kind about fan_in_fan_out. */
static const char known[] =
    "peft_type r lora_alpha use_rslora use_dora target_modules exclude_modules layers_to_transform layers_pattern "
    "rank_pattern alpha_pattern init_lora_weights "
    "auto_mapping base_model_name_or_path bias corda_config ensure_weight_tying eva_config fan_in_fan_out "
    "inference_mode loftq_config lora_dropout lora_ga_config megatron_core modules_to_save peft_version "
    "qalora_group_size revision runtime_config task_type";

/* How PEFT writes a feature that is not in use. */
static bool is_off(const json_t *value) {
    return json_is_null(value) || json_is_false(value) || (json_is_array(value) && !json_array_size(value)) ||
           (json_is_object(value) && !json_object_size(value));
}

static int check_start(const struct shore__adapter_config *c, struct shore_diag *diag) {
    static const char *const kept[] = {"gaussian", "eva", "orthogonal"};
    const json_t *value = json_object_get(c->said, "init_lora_weights");
    const char *text = json_string_value(value);
    if (!value || json_is_boolean(value)) return 0;
    for (size_t i = 0; text && i < sizeof kept / sizeof *kept; i++)
        if (strcmp(text, kept[i]) == 0) return 0;
    return refuse(c, "init_lora_weights", diag,
                  "is %.60s, which changes the model's own weights: save the adapter as a plain one "
                  "(save_pretrained with path_initial_model_for_weight_conversion), or merge it in Python with peft",
                  text ? shore__shown(text).text : "no word of PEFT's");
}

static int take_flag(const struct shore__adapter_config *c, const char *key, bool *out, struct shore_diag *diag) {
    const json_t *value = json_object_get(c->said, key);
    *out = json_is_true(value);
    return !value || json_is_boolean(value) || json_is_null(value) ? 0
                                                                   : refuse(c, key, diag, "is neither true nor false");
}

/* Checks that each of the values that name modules or layers is a list of one kind, or one of the kind. */
static int check_lists(const struct shore__adapter_config *c, struct shore_diag *diag) {
    static const struct {
        const char *key;
        json_type kind;
        bool alone; /* one may stand without a list */
    } lists[] = {{"target_modules", JSON_STRING, true},
                 {"exclude_modules", JSON_STRING, true},
                 {"layers_pattern", JSON_STRING, true},
                 {"modules_to_save", JSON_STRING, false},
                 {"layers_to_transform", JSON_INTEGER, true}};
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
        const json_t *value = json_object_get(c->said, lists[k].key), *item;
        bool alone = lists[k].alone && value && json_typeof(value) == lists[k].kind;
        bool fits = !value || is_off(value) || json_is_array(value) || alone;
        size_t i;
        json_array_foreach((json_t *)value, i, item) fits &= json_typeof(item) == lists[k].kind;
        if (!fits)
            return refuse(c, lists[k].key, diag, "is not as PEFT writes it: a list of %s",
                          lists[k].kind == JSON_INTEGER ? "whole numbers" : "texts");
    }
    return 0;
}

int shore__adapter_config_take(const json_t *said, const char *path, struct shore__adapter_config *out,
                               struct shore_diag *diag) {
    struct shore__adapter_config c = {.said = said, .path = path};
    const char *key, *type = json_string_value(json_object_get(said, "peft_type"));
    const json_t *value;
    if (!type || strcmp(type, "LORA") != 0)
        return refuse(&c, "peft_type", diag,
                      "is %.60s, and Longshore merges LORA: merge the adapter in Python with peft",
                      type ? shore__shown(type).text : "missing");
    json_object_foreach((json_t *)said, key, value) {
        if (!shore__has_word(known, key) && !is_off(value))
            return refuse(&c, key, diag,
                          "is in use, and Longshore does not merge that: merge the adapter in Python with peft "
                          "(merge_and_unload)");
    }
    int rc = check_lists(&c, diag);
    if (rc == 0) rc = check_start(&c, diag);
    if (rc == 0) rc = take_flag(&c, "use_rslora", &c.rslora, diag);
    if (rc == 0) rc = take_flag(&c, "use_dora", &c.dora, diag);
    if (rc == 0) *out = c;
    return rc;
}

/* ---- which modules it names -------------------------------------------------------------------------------------- */

/* Whether a regular expression matches the beginning of a module's name up to *end, or with `whole` all of it. Takes
 * the expression over; NULL: there was no memory for it. Negative: it is none that is understood here. */
static int matches(const struct shore__adapter_config *c, const char *key, char *expression, bool whole,
                   const char *module, size_t *end, struct shore_diag *diag) {
    struct shore_diag why = {0};
    *end = 0;
    int rc = expression ? shore__pattern_of_python(expression, whole, module, end, &why) : -ENOMEM;
    free(expression);
    if (rc == -ENOMEM) return shore__out_of_memory(diag);
    return rc >= 0 ? rc : refuse(c, key, diag, "holds a regular expression that Longshore does not read: %s", why.text);
}

static char *joined(const char *before, const char *expression, const char *behind) {
    char *text;
    return asprintf(&text, "%s%s%s", before, expression, behind) < 0 ? NULL : text;
}

static bool ends_with_parts(const char *module, const char *parts) {
    size_t n = strlen(module), m = strlen(parts);
    return shore__ends_with(module, parts) && (n == m || module[n - m - 1] == '.');
}

/* Whether target_modules or exclude_modules names a module: a regular expression, or a list of ends of names. */
static int names(const struct shore__adapter_config *c, const char *key, const char *module, struct shore_diag *diag) {
    const json_t *value = json_object_get(c->said, key), *item;
    size_t i, end;
    if (json_is_string(value)) {
        const char *text = json_string_value(value);
        if (strcasecmp(text, "all-linear") == 0) return strcmp(module, "lm_head") != 0;
        return matches(c, key, strdup(text), true, module, &end, diag);
    }
    json_array_foreach((json_t *)value, i, item) if (ends_with_parts(module, json_string_value(item))) return 1;
    return 0;
}

/* The layer of a module: the first number in its name behind two parts, or behind what layers_pattern matches; or
 * -1. The expressions are PEFT's. */
static int layer_of(const struct shore__adapter_config *c, const char *module, const char *pattern, json_int_t *layer,
                    struct shore_diag *diag) {
    char *expression =
        pattern ? joined("(?:^|.*?\\.)", pattern, "\\.\\d+\\.") : joined(".*?\\.[^.]*", "", "\\.\\d+\\.");
    size_t end;
    int rc = matches(c, "layers_pattern", expression, false, module, &end, diag);
    size_t from = end ? end - 1 : 0;
    while (from && module[from - 1] >= '0' && module[from - 1] <= '9')
        from--;
    *layer = rc > 0 && from + 1 < end ? strtoll(module + from, NULL, 10) : -1;
    return rc < 0 ? rc : 0;
}

/* Whether layers_to_transform leaves the module's layer in. */
static int in_layers(const struct shore__adapter_config *c, const char *module, struct shore_diag *diag) {
    json_t *layers = json_object_get(c->said, "layers_to_transform"), *item;
    const json_t *pattern = json_object_get(c->said, "layers_pattern");
    json_int_t layer = -1;
    size_t i;
    if (!layers || is_off(layers)) return 1;
    int rc = 0;
    if (!pattern || is_off(pattern) || (json_is_string(pattern) && !*json_string_value(pattern)))
        rc = layer_of(c, module, NULL, &layer, diag);
    else if (json_is_string(pattern))
        rc = layer_of(c, module, json_string_value(pattern), &layer, diag);
    for (i = 0; rc == 0 && layer < 0 && i < json_array_size(pattern); i++)
        rc = layer_of(c, module, json_string_value(json_array_get(pattern, i)), &layer, diag);
    if (rc < 0) return rc;
    if (json_is_integer(layers)) return layer == json_integer_value(layers);
    json_array_foreach(layers, i, item) if (layer == json_integer_value(item)) return 1;
    return 0;
}

/* Whether a module, or one that it is in, is saved as a whole. */
static int is_saved(const struct shore__adapter_config *c, const char *module, struct shore_diag *diag) {
    const json_t *saved = json_object_get(c->said, "modules_to_save");
    size_t i, end;
    int rc = 0;
    for (i = 0; rc == 0 && i < json_array_size(saved); i++) {
        const char *text = json_string_value(json_array_get(saved, i));
        rc = matches(c, "modules_to_save", joined("(^|.*\\.)", text, "($|\\..*)"), false, module, &end, diag);
    }
    return rc;
}

static int is_target(const struct shore__adapter_config *c, const char *module, struct shore_diag *diag) {
    const json_t *targets = json_object_get(c->said, "target_modules");
    size_t i;
    json_t *item;
    int rc = names(c, "exclude_modules", module, diag);
    if (rc == 0) rc = is_saved(c, module, diag);
    if (rc) return rc < 0 ? rc : 0;
    rc = names(c, "target_modules", module, diag);
    if (rc <= 0 || json_is_string(targets)) return rc;
    json_array_foreach((json_t *)targets, i, item) /* a whole name counts in any layer */
        if (strcmp(module, json_string_value(item)) == 0) return 1;
    return in_layers(c, module, diag);
}

/* ---- its rank and its scale -------------------------------------------------------------------------------------- */

/* A number for all modules, or the one that a pattern gives to this module: the first that matches. */
static int number_of(const struct shore__adapter_config *c, const char *key, const char *patterns, const char *module,
                     double *out, struct shore_diag *diag) {
    json_t *table = json_object_get(c->said, patterns), *item;
    const json_t *value = json_object_get(c->said, key);
    const char *expression, *from = key;
    size_t end;
    if (table && !json_is_null(table) && !json_is_object(table)) return refuse(c, patterns, diag, "is not an object");
    json_object_foreach(table, expression, item) {
        int rc = matches(c, patterns, joined("(.*\\.)?(", expression, ")"), true, module, &end, diag);
        if (rc < 0) return rc;
        if (!rc) continue;
        value = item;
        from = patterns;
        break;
    }
    *out = value ? json_number_value(value) : 8; /* PEFT's */
    return (!value || json_is_number(value)) && fabs(*out) <= 1e9 ? 0 : refuse(c, from, diag, "holds no usable number");
}

int shore__adapter_config_scale(const struct shore__adapter_config *c, const char *module, uint64_t rank, float *scale,
                                struct shore_diag *diag) {
    const struct shore__shown shown = shore__shown(module);
    double r = 0, alpha = 0;
    int rc = is_target(c, module, diag);
    if (rc == 0)
        return refuse(c, "target_modules", diag,
                      "and what goes with it leave out %s, but the adapter has weights for it: PEFT would ignore them",
                      shown.text);
    if (rc > 0) rc = number_of(c, "r", "rank_pattern", module, &r, diag);
    if (rc == 0) rc = number_of(c, "lora_alpha", "alpha_pattern", module, &alpha, diag);
    if (rc < 0) return rc;
    if (rank == 0 || r != (double)rank)
        return refuse(c, "r", diag, "or \"rank_pattern\" gives %s the rank %g, but its weights have the rank %llu",
                      shown.text, r, (unsigned long long)rank);
    *scale = (float)(alpha / (c->rslora ? sqrt(r) : r));
    return 0;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* The last part of the name of an adapter's module. */
static void add_module(json_t *list, const char *tensor) {
    const char *end = strstr(tensor, ".lora_"), *from = end;
    while (from && from > tensor && from[-1] != '.')
        from--;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *has = json_string_value(json_array_get(list, i));
        if (strlen(has) == (size_t)(end - from) && !memcmp(has, from, (size_t)(end - from))) return;
    }
    json_array_append_new(list, json_stringn(from, (size_t)(end - from)));
}

static json_t *modules(const struct shore__model *m, const struct shore__lora *lora) {
    json_t *list = json_array();
    for (size_t i = 0; i < lora->ntargets; i++)
        json_array_append_new(list, json_string(lora->targets[i]));
    for (uint32_t b = 0; b < m->nblocks && !lora->ntargets; b++)
        for (uint32_t t = 0; shore__block_adapts(m, b) && t < m->blocks[b].ntensors; t++)
            add_module(list, m->blocks[b].tensors[t].parts[0].name);
    return list;
}

/* Modules of the text alone, of a multimodal model: their names are those of its other parts, too. What stands before
 * its layers has more than one name. */
static json_t *modules_of_text(json_t *names) {
    char text[4096] = ".*" SHORE__TEXT_PREFIX "(.*\\.)?(";
    size_t i;
    json_t *item;
    json_array_foreach(names, i, item) {
        const char *name = json_string_value(item), *layer = strstr(name, "layers.");
        if (i) shore__append(text, sizeof text, "|");
        for (const char *at = layer ? layer : name; *at; at++)
            shore__append(text, sizeof text, *at == '.' ? "\\%c" : "%c", *at);
    }
    shore__append(text, sizeof text, ")");
    json_decref(names);
    return json_string(text);
}

json_t *shore__adapter_config_make(const struct shore__model *m, const struct shore__lora *lora, const char *base) {
    bool whole = lora->alpha == floor(lora->alpha) && lora->alpha < 1e15;
    return json_pack("{s:s, s:s, s:s*, s:i, s:o, s:f, s:b, s:b, s:s, s:b, s:b, s:o, s:n, s:b}", "peft_type", "LORA",
                     "task_type", "CAUSAL_LM", "base_model_name_or_path", base, "r", (int)lora->rank, "lora_alpha",
                     whole ? json_integer((json_int_t)lora->alpha) : json_real(lora->alpha), "lora_dropout", 0.0,
                     "use_rslora", (int)lora->rslora, "use_dora", 0, "bias", "none", "fan_in_fan_out",
                     (int)m->family->inputs_first, "inference_mode", 1, "target_modules",
                     m->arch.wrapper ? modules_of_text(modules(m, lora)) : modules(m, lora), "modules_to_save",
                     "init_lora_weights", 1);
}
