/* Rotary positions: reads them from a configuration, and computes their angles. The reference is transformers'
 * modeling_rope_utils.py, whose arithmetic is fp32. */
#include "model/config/rope.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define ORIGINAL "original_max_position_embeddings"

/* Keys of each kind, in addition to those of all kinds. */
static const struct {
    const char *name, *keys[11];
} kinds[] = {
    [SHORE__ROPE_DEFAULT] = {"default", {NULL}},
    [SHORE__ROPE_LINEAR] = {"linear", {"factor"}},
    [SHORE__ROPE_DYNAMIC] = {"dynamic", {"factor"}},
    [SHORE__ROPE_LLAMA3] = {"llama3", {"factor", "low_freq_factor", "high_freq_factor", ORIGINAL}},
    [SHORE__ROPE_YARN] = {"yarn",
                          {"factor", ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
                           "truncate"}},
    [SHORE__ROPE_LONGROPE] = {"longrope", {"factor", ORIGINAL, "attention_factor", "short_factor", "long_factor"}},
};
/* Of yarn, where queries are scaled by their position (rules.query_scales). */
static const char *const keys_of_queries[] = {"llama_4_scaling_beta", "max_position_embeddings", NULL};
enum { KINDS = sizeof kinds / sizeof kinds[0], NO_KIND = KINDS };
static const char *const keys_of_all[] = {"rope_theta", "partial_rotary_factor", "rope_type", "type", NULL};

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static bool is_among(const char *key, const char *const *keys) {
    while (*keys && strcmp(*keys, key) != 0)
        keys++;
    return *keys;
}

static void refuse_unknown_keys(struct shore__keys *in, uint32_t kind, bool query_scales) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)in->object, key, value) {
        char why[160];
        if (json_is_null(value) || is_among(key, keys_of_all) || is_among(key, kinds[kind].keys)) continue;
        if (query_scales && kind == SHORE__ROPE_YARN && is_among(key, keys_of_queries)) continue;
        snprintf(why, sizeof why, "rotary positions of the kind %s have no such key here; remove it if it does nothing",
                 kinds[kind].name);
        shore__keys_refuse(in, key, why);
    }
}

static uint32_t kind_of(struct shore__keys *in) {
    const char *old = shore__keys_string(in, "type", NULL), *type = shore__keys_string(in, "rope_type", old);
    uint32_t kind = 0;
    if (!type) {
        /* the default, as in transformers; a factor shows that another kind is meant */
        if (shore__keys_given(in, "factor"))
            shore__keys_refuse(in, "rope_type", "default, linear, dynamic, llama3, yarn or longrope is needed");
        return SHORE__ROPE_DEFAULT;
    }
    if (old && strcmp(type, old) != 0)
        shore__keys_refuse(in, "rope_type", "its old name \"type\" beside it says something else: remove one of them");
    while (kind < KINDS && strcmp(kinds[kind].name, type) != 0)
        kind++;
    if (kind == NO_KIND)
        shore__keys_refuse(in, shore__keys_given(in, "rope_type") ? "rope_type" : "type",
                           "only default, linear, dynamic, llama3, yarn and longrope are supported");
    return kind;
}

/* The part of each head that is rotated. */
static void read_part(struct shore__keys *k, const struct shore__rope_rules *rules) {
    double part = shore__keys_number(k, "partial_rotary_factor", 1, 0, 1);
    if (rules->part && shore__keys_given(k, "partial_rotary_factor"))
        *rules->part = part;
    else if (part != 1)
        shore__keys_refuse(k, "partial_rotary_factor", "only 1 is supported");
}

static void refuse_another(struct shore__keys *in, const char *key) {
    shore__keys_refuse(in, key, "the configuration has another beside it: remove one of them");
}

static double original_positions(struct shore__keys *config, struct shore__keys *in, uint32_t max_positions) {
    const int64_t most = 1000000000;
    uint32_t beside = shore__keys_count(config, ORIGINAL, max_positions, most);
    uint32_t own = shore__keys_count(in, ORIGINAL, beside, most);
    if (shore__keys_given(config, ORIGINAL) && own != beside) refuse_another(in, ORIGINAL);
    return own;
}

static void read_yarn(struct shore__keys *config, struct shore__keys *in, uint32_t max_positions,
                      struct shore__rope *out) {
    out->attention_factor = shore__keys_number(in, "attention_factor", 0, 1e-6, 1e6);
    out->beta_fast = shore__keys_number(in, "beta_fast", 0, 1e-6, 1e6);
    out->beta_slow = shore__keys_number(in, "beta_slow", 0, 1e-6, 1e6);
    out->mscale = shore__keys_number(in, "mscale", 0, 0, 1e6);
    out->mscale_all_dim = shore__keys_number(in, "mscale_all_dim", 0, 0, 1e6);
    out->fractional = !shore__keys_flag(in, "truncate", true);
    out->original_positions = original_positions(config, in, max_positions);
    /* null, in models of DeepSeek's kind: the factor by which positions were extended */
    if (json_is_null(json_object_get(in->object, "factor")))
        out->factor = max_positions / out->original_positions;
    else
        out->factor = shore__keys_needed(in, "factor", 1, 1e6);
    if (out->factor < 1) shore__keys_refuse(in, ORIGINAL, "it is above max_position_embeddings");
    if (out->theta <= 1) shore__keys_refuse(in, "rope_theta", "yarn needs one above 1");
    if (out->beta_fast || out->beta_slow) {
        double fast = out->beta_fast ? out->beta_fast : 32, slow = out->beta_slow ? out->beta_slow : 1;
        if (fast < slow) shore__keys_refuse(in, "beta_fast", "it must be above beta_slow (32 and 1 unless given)");
    }
}

double shore__longrope_scale(double factor, double original_positions) {
    return factor <= 1 ? 1 : sqrt(1 + log(factor) / log(original_positions));
}

static uint32_t read_factors(struct shore__keys *in, const char *key, float *out) {
    const json_t *list = json_object_get(in->object, key);
    size_t n = json_array_size(list);
    if (!n || n > SHORE__ROPE_FACTORS) shore__keys_refuse(in, key, "a list of numbers is needed, of at most 256");
    for (size_t i = 0; i < n && i < SHORE__ROPE_FACTORS; i++) {
        out[i] = (float)json_number_value(json_array_get(list, i));
        if (!(out[i] > 0)) shore__keys_refuse(in, key, "numbers above 0 are needed");
    }
    return (uint32_t)n;
}

static void read_longrope(struct shore__keys *config, struct shore__keys *in, const struct shore__rope_rules *rules,
                          struct shore__rope *out) {
    double part = rules->part ? *rules->part : 1, max_positions = rules->max_positions;
    out->attention_factor = shore__keys_number(in, "attention_factor", 0, 1e-6, 1e6);
    uint32_t absent = rules->original_positions ? rules->original_positions : rules->max_positions;
    out->original_positions = original_positions(config, in, absent);
    out->factor = max_positions / out->original_positions;
    double given = shore__keys_number(in, "factor", out->factor, 1e-6, 1e6);
    if (given != out->factor && out->attention_factor == 0)
        out->attention_factor = shore__longrope_scale(given, out->original_positions);
    out->nfactors = read_factors(in, "short_factor", out->short_factor);
    if (read_factors(in, "long_factor", out->long_factor) != out->nfactors)
        shore__keys_refuse(in, "long_factor", "as many numbers as short_factor has are needed");
    if (out->nfactors != (uint32_t)(rules->head_dim * part) / 2)
        shore__keys_refuse(in, "short_factor", "as many numbers as pairs of a head are rotated are needed");
}

static void read_llama3(struct shore__keys *config, struct shore__keys *in, uint32_t max_positions,
                        struct shore__rope *out) {
    out->factor = shore__keys_needed(in, "factor", 1, 1e6);
    out->low_freq = shore__keys_needed(in, "low_freq_factor", 1e-6, 1e6);
    out->high_freq = shore__keys_needed(in, "high_freq_factor", 1e-6, 1e6);
    out->original_positions = original_positions(config, in, max_positions);
    if (out->high_freq <= out->low_freq) shore__keys_refuse(in, "high_freq_factor", "it must be above low_freq_factor");
}

static bool says_something(const struct shore__keys *config, const char *key) {
    const json_t *v = json_object_get(config->object, key);
    return v && !json_is_null(v) && !(json_is_object(v) && json_object_size(v) == 0);
}

/* object: what the configuration has at `key`, or in it; NULL or null: nothing, which is the default kind. */
static void read_from(struct shore__keys *config, const char *key, const json_t *object,
                      const struct shore__rope_rules *rules, struct shore__rope *out) {
    uint32_t max_positions = rules->max_positions;
    const char *beside_key = rules->theta_key ? rules->theta_key : "rope_theta";
    *out = (struct shore__rope){.theta = shore__keys_number(config, beside_key, rules->theta, 1, 1e12), .factor = 1};
    if (object && !json_is_object(object) && !json_is_null(object))
        shore__keys_refuse(config, key, "an object is needed");
    if (config->rc || !json_is_object(object)) return;
    struct shore__keys in = {object, config->name, config->diag, 0};
    read_part(&in, rules);
    double beside = out->theta;
    out->theta = shore__keys_number(&in, "rope_theta", beside, 1, 1e12);
    if (shore__keys_given(config, beside_key) && out->theta != beside) refuse_another(&in, "rope_theta");
    uint32_t kind = kind_of(&in);
    if (!in.rc) refuse_unknown_keys(&in, kind, rules->query_scales);
    if (!in.rc) {
        out->kind = (enum shore__rope_kind)kind;
        if (out->kind == SHORE__ROPE_YARN)
            read_yarn(config, &in, max_positions, out);
        else if (out->kind == SHORE__ROPE_LLAMA3)
            read_llama3(config, &in, max_positions, out);
        else if (out->kind == SHORE__ROPE_LONGROPE)
            read_longrope(config, &in, rules, out);
        else if (out->kind != SHORE__ROPE_DEFAULT)
            out->factor = shore__keys_needed(&in, "factor", 1, 1e6);
        if (rules->query_scales && out->kind != SHORE__ROPE_YARN)
            shore__keys_refuse(config, key, "yarn is needed, with llama_4_scaling_beta");
        else if (rules->query_scales)
            out->query_beta = shore__keys_needed(&in, "llama_4_scaling_beta", 0, 100);
    }
    if (!config->rc) config->rc = in.rc;
}

static bool mean_the_same(const struct shore__rope *a, const struct shore__rope *b) {
    json_t *x = json_object(), *y = json_object();
    shore__rope_write(a, x);
    shore__rope_write(b, y);
    bool same = json_equal(x, y);
    json_decref(x);
    json_decref(y);
    return same;
}

void shore__rope_read(struct shore__keys *config, const struct shore__rope_rules *rules, struct shore__rope *out) {
    bool old = says_something(config, "rope_scaling"), new = says_something(config, "rope_parameters");
    const char *key = old ? "rope_scaling" : "rope_parameters";
    struct shore__rope other;
    read_part(config, rules);
    read_from(config, key, json_object_get(config->object, key), rules, out);
    if (!old || !new) return;
    read_from(config, "rope_parameters", json_object_get(config->object, "rope_parameters"), rules, &other);
    if (!config->rc && !mean_the_same(out, &other))
        shore__keys_refuse(config, "rope_scaling", "\"rope_parameters\" says something else: remove one of them");
}

void shore__rope_read_both(struct shore__keys *config, const struct shore__rope_rules *rules, const char *local_key,
                           double local_theta, struct shore__rope out[2]) {
    const struct shore__rope_rules local = {
        .theta = local_theta, .theta_key = local_key, .max_positions = rules->max_positions};
    const bool nested = says_something(config, "rope_parameters");
    const char *key = nested ? "rope_parameters" : "rope_scaling", *which;
    json_t *given = json_object_get(config->object, key), *both = nested ? given : NULL, *value;
    json_object_foreach(both, which, value) if (strcmp(which, "full_attention") && strcmp(which, "sliding_attention"))
        shore__keys_refuse(config, key, "one object for full_attention and one for sliding_attention are needed");
    if (nested && says_something(config, "rope_scaling")) refuse_another(config, "rope_scaling");
    if (!nested && json_object_get(given, "type") && !json_object_get(given, "rope_type"))
        shore__keys_refuse(config, key, "transformers 5 reads no \"type\" here: call it \"rope_type\"");
    read_part(config, rules);
    if (nested && !json_is_object(given)) shore__keys_refuse(config, key, "an object is needed");
    read_from(config, key, nested ? json_object_get(both, "full_attention") : given, rules, &out[0]);
    read_from(config, key, json_object_get(both, "sliding_attention"), &local, &out[1]);
    if (out[0].fractional || out[1].fractional)
        shore__keys_refuse(config, key, "transformers 4 and 5 read alike only a \"truncate\" that is true");
    if (out[0].kind == SHORE__ROPE_LONGROPE || out[1].kind == SHORE__ROPE_LONGROPE ||
        out[1].kind == SHORE__ROPE_DYNAMIC)
        shore__keys_refuse(config, key,
                           "full_attention can be default, linear, dynamic, llama3 or yarn, sliding_attention all "
                           "of these but dynamic; from Python, any model trains");
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static void put(json_t *object, const char *key, double value) {
    if (value != 0) json_object_set_new(object, key, json_real(value));
}

static void put_factors(json_t *object, const char *key, const float *factors, uint32_t n) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(list, shore__real_of(factors[i]));
    json_object_set_new(object, key, list);
}

/* Everything but theta. */
static void write_scaling(const struct shore__rope *rope, json_t *scaling) {
    bool longrope = rope->kind == SHORE__ROPE_LONGROPE;
    /* transformers 4 takes these three keys of longrope, and no others */
    json_object_set_new(scaling, longrope ? "type" : "rope_type", json_string(kinds[rope->kind].name));
    if (longrope) {
        put_factors(scaling, "short_factor", rope->short_factor, rope->nfactors);
        put_factors(scaling, "long_factor", rope->long_factor, rope->nfactors);
        put(scaling, "attention_factor", rope->attention_factor);
        return;
    }
    if (rope->kind != SHORE__ROPE_DEFAULT) put(scaling, "factor", rope->factor);
    put(scaling, "low_freq_factor", rope->low_freq);
    put(scaling, "high_freq_factor", rope->high_freq);
    if (rope->original_positions != 0)
        json_object_set_new(scaling, ORIGINAL, json_integer((json_int_t)rope->original_positions));
    put(scaling, "attention_factor", rope->attention_factor);
    put(scaling, "beta_fast", rope->beta_fast);
    put(scaling, "beta_slow", rope->beta_slow);
    put(scaling, "mscale", rope->mscale);
    put(scaling, "mscale_all_dim", rope->mscale_all_dim);
    put(scaling, "llama_4_scaling_beta", rope->query_beta);
    if (rope->fractional) json_object_set_new(scaling, "truncate", json_false());
}

static bool is_plain(const struct shore__rope *rope) {
    return rope->kind == SHORE__ROPE_DEFAULT || (rope->kind == SHORE__ROPE_LINEAR && rope->factor == 1);
}

void shore__rope_write(const struct shore__rope *rope, json_t *config) {
    put(config, "rope_theta", rope->theta);
    if (is_plain(rope)) return;
    json_t *scaling = json_object();
    write_scaling(rope, scaling);
    json_object_set_new(config, "rope_scaling", scaling);
    if (rope->kind == SHORE__ROPE_LONGROPE)
        json_object_set_new(config, ORIGINAL, json_integer((json_int_t)rope->original_positions));
}

void shore__rope_write_both(const struct shore__rope rope[2], const char *local_key, double same_theta,
                            json_t *config) {
    bool flat = is_plain(&rope[1]) && (local_key || (rope[0].theta == same_theta && rope[1].theta == same_theta));
    if (flat) {
        shore__rope_write(&rope[0], config);
        if (local_key) put(config, local_key, rope[1].theta);
        return;
    }
    json_t *both = json_object();
    json_object_del(config, "rope_theta");
    json_object_del(config, "rope_scaling");
    for (int i = 0; i < 2; i++) {
        json_t *one = json_object();
        put(one, "rope_theta", rope[i].theta);
        write_scaling(&rope[i], one);
        json_object_set_new(both, i ? "sliding_attention" : "full_attention", one);
    }
    json_object_set_new(config, "rope_parameters", both);
}

/* ---- angles ------------------------------------------------------------------------------------------------------ */

static float plain_wavelength(const struct shore__arch *a, const struct shore__rope *r, size_t i) {
    return powf((float)r->theta, (float)(2 * i) / (float)a->rotary_dim);
}

/* Llama 3.1: long waves are stretched, short ones are not */
static float llama3_frequency(const struct shore__rope *r, float frequency) {
    float wavelength = 2.0f * 3.14159265358979f / frequency;
    float low = (float)(r->original_positions / r->low_freq);
    float high = (float)(r->original_positions / r->high_freq);
    if (wavelength > low) return frequency / (float)r->factor;
    if (wavelength < high) return frequency;
    float smooth =
        ((float)r->original_positions / wavelength - (float)r->low_freq) / (float)(r->high_freq - r->low_freq);
    return (1 - smooth) * frequency / (float)r->factor + smooth * frequency;
}

/* The dimension that turns this often within the original positions. */
static double yarn_dimension(const struct shore__arch *a, const struct shore__rope *r, double turns) {
    return a->rotary_dim * log(r->original_positions / (turns * 2 * M_PI)) / (2 * log(r->theta));
}

/* YaRN (Peng et al. 2023): dimensions up to `low` keep their wave, those from `high` on are stretched. */
static float yarn_frequency(const struct shore__arch *a, const struct shore__rope *r, size_t i) {
    double low = yarn_dimension(a, r, r->beta_fast ? r->beta_fast : 32);
    double high = yarn_dimension(a, r, r->beta_slow ? r->beta_slow : 1);
    if (!r->fractional) low = floor(low), high = ceil(high);
    low = fmax(low, 0);
    high = fmin(high, a->rotary_dim - 1);
    if (low == high) high += 0.001;
    float ramp = fminf(fmaxf(((float)i - (float)low) / (float)(high - low), 0), 1), stays = 1 - ramp;
    float wavelength = plain_wavelength(a, r, i);
    return 1 / ((float)r->factor * wavelength) * (1 - stays) + 1 / wavelength * stays;
}

double shore__yarn_scale(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* Factor of queries and keys. Only one of the two mscales changes nothing, as in transformers. */
static float scale_of(const struct shore__rope *r) {
    if (r->kind != SHORE__ROPE_YARN && r->kind != SHORE__ROPE_LONGROPE) return 1;
    if (r->attention_factor != 0) return (float)r->attention_factor;
    if (r->kind == SHORE__ROPE_LONGROPE) return (float)shore__longrope_scale(r->factor, r->original_positions);
    if (r->mscale != 0 && r->mscale_all_dim != 0)
        return (float)(shore__yarn_scale(r->factor, r->mscale) / shore__yarn_scale(r->factor, r->mscale_all_dim));
    return (float)shore__yarn_scale(r->factor, 1);
}

/* In a text of so many positions. */
static float frequency_in(const struct shore__arch *a, uint32_t table, size_t i, size_t positions) {
    const struct shore__rope *r = &a->rope[table];
    float frequency = 1.0f / plain_wavelength(a, r, i);
    switch (r->kind) {
    case SHORE__ROPE_LINEAR:
        return frequency / (float)r->factor;
    case SHORE__ROPE_LLAMA3:
        return llama3_frequency(r, frequency);
    case SHORE__ROPE_YARN:
        return yarn_frequency(a, r, i);
    case SHORE__ROPE_LONGROPE:
        return 1.0f / (((double)positions > r->original_positions ? r->long_factor : r->short_factor)[i] *
                       plain_wavelength(a, r, i));
    default:
        return frequency;
    }
}

float shore__rope_frequency(const struct shore__arch *a, uint32_t table, size_t i) {
    return frequency_in(a, table, i, 0);
}

void shore__rope_table(const struct shore__arch *a, uint32_t table, size_t positions, float *out) {
    size_t dim = a->rotary_dim, half = dim / 2;
    float scale = scale_of(&a->rope[table]);
    for (size_t i = 0; i < half; i++) {
        float frequency = frequency_in(a, table, i, positions);
        for (size_t p = 0; p < positions; p++) {
            float angle = (float)p * frequency;
            out[p * dim + i] = scale * cosf(angle);
            out[p * dim + half + i] = scale * sinf(angle);
        }
    }
}
