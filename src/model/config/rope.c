/* Rotary positions: reads them from a configuration, and computes their angles. The reference is transformers'
 * modeling_rope_utils.py, whose arithmetic is fp32. */
#include "model/config/rope.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define ORIGINAL "original_max_position_embeddings"

/* Keys of each kind, in addition to those of all kinds. */
static const struct {
    const char *name, *keys[9];
} kinds[] = {
    [SHORE__ROPE_DEFAULT] = {"default", {NULL}},
    [SHORE__ROPE_LINEAR] = {"linear", {"factor"}},
    [SHORE__ROPE_DYNAMIC] = {"dynamic", {"factor"}},
    [SHORE__ROPE_LLAMA3] = {"llama3", {"factor", "low_freq_factor", "high_freq_factor", ORIGINAL}},
    [SHORE__ROPE_YARN] = {"yarn",
                          {"factor", ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
                           "truncate"}},
};
enum { KINDS = sizeof kinds / sizeof kinds[0], NO_KIND = KINDS };
static const char *const keys_of_all[] = {"rope_theta", "partial_rotary_factor", "rope_type", "type", NULL};

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static bool is_among(const char *key, const char *const *keys) {
    while (*keys && strcmp(*keys, key) != 0)
        keys++;
    return *keys;
}

static void refuse_unknown_keys(struct shore__keys *in, uint32_t kind) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)in->object, key, value) {
        char why[160];
        if (json_is_null(value) || is_among(key, keys_of_all) || is_among(key, kinds[kind].keys)) continue;
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
            shore__keys_refuse(in, "rope_type", "default, linear, dynamic, llama3 or yarn is needed");
        return SHORE__ROPE_DEFAULT;
    }
    if (old && strcmp(type, old) != 0)
        shore__keys_refuse(in, "rope_type", "its old name \"type\" beside it says something else: remove one of them");
    while (kind < KINDS && strcmp(kinds[kind].name, type) != 0)
        kind++;
    if (kind == NO_KIND)
        shore__keys_refuse(in, shore__keys_given(in, "rope_type") ? "rope_type" : "type",
                           "only default, linear, dynamic, llama3 and yarn are supported");
    return kind;
}

static void whole_heads_turn(struct shore__keys *k) {
    if (shore__keys_number(k, "partial_rotary_factor", 1, 0, 1) != 1)
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

/* key: rope_scaling, rope_parameters, or NULL if there is neither. */
static void read_from(struct shore__keys *config, const char *key, uint32_t max_positions, struct shore__rope *out) {
    const json_t *object = key ? json_object_get(config->object, key) : NULL;
    *out = (struct shore__rope){.theta = shore__keys_number(config, "rope_theta", 10000.0, 1, 1e12), .factor = 1};
    if (key && !json_is_object(object)) shore__keys_refuse(config, key, "an object is needed");
    if (config->rc || !key) return;
    struct shore__keys in = {object, config->name, config->diag, 0};
    whole_heads_turn(&in);
    double beside = out->theta;
    out->theta = shore__keys_number(&in, "rope_theta", beside, 1, 1e12);
    if (shore__keys_given(config, "rope_theta") && out->theta != beside) refuse_another(&in, "rope_theta");
    uint32_t kind = kind_of(&in);
    if (!in.rc) refuse_unknown_keys(&in, kind);
    if (!in.rc) {
        out->kind = (enum shore__rope_kind)kind;
        if (out->kind == SHORE__ROPE_YARN)
            read_yarn(config, &in, max_positions, out);
        else if (out->kind == SHORE__ROPE_LLAMA3)
            read_llama3(config, &in, max_positions, out);
        else if (out->kind != SHORE__ROPE_DEFAULT)
            out->factor = shore__keys_needed(&in, "factor", 1, 1e6);
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

void shore__rope_read(struct shore__keys *config, uint32_t max_positions, struct shore__rope *out) {
    bool old = says_something(config, "rope_scaling"), new = says_something(config, "rope_parameters");
    struct shore__rope other;
    whole_heads_turn(config);
    read_from(config, old ? "rope_scaling" : new ? "rope_parameters" : NULL, max_positions, out);
    if (!old || !new) return;
    read_from(config, "rope_parameters", max_positions, &other);
    if (!config->rc && !mean_the_same(out, &other))
        shore__keys_refuse(config, "rope_scaling", "\"rope_parameters\" says something else: remove one of them");
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static void put(json_t *object, const char *key, double value) {
    if (value != 0) json_object_set_new(object, key, json_real(value));
}

void shore__rope_write(const struct shore__rope *rope, json_t *config) {
    put(config, "rope_theta", rope->theta);
    if (rope->kind == SHORE__ROPE_DEFAULT || (rope->kind == SHORE__ROPE_LINEAR && rope->factor == 1)) return;
    json_t *scaling = json_object();
    json_object_set_new(scaling, "rope_type", json_string(kinds[rope->kind].name));
    put(scaling, "factor", rope->factor);
    put(scaling, "low_freq_factor", rope->low_freq);
    put(scaling, "high_freq_factor", rope->high_freq);
    if (rope->original_positions != 0)
        json_object_set_new(scaling, ORIGINAL, json_integer((json_int_t)rope->original_positions));
    put(scaling, "attention_factor", rope->attention_factor);
    put(scaling, "beta_fast", rope->beta_fast);
    put(scaling, "beta_slow", rope->beta_slow);
    put(scaling, "mscale", rope->mscale);
    put(scaling, "mscale_all_dim", rope->mscale_all_dim);
    if (rope->fractional) json_object_set_new(scaling, "truncate", json_false());
    json_object_set_new(config, "rope_scaling", scaling);
}

/* ---- angles ------------------------------------------------------------------------------------------------------ */

static float plain_wavelength(const struct shore__arch *a, const struct shore__rope *r, size_t i) {
    return powf((float)r->theta, (float)(2 * i) / (float)a->head_dim);
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
    return a->head_dim * log(r->original_positions / (turns * 2 * M_PI)) / (2 * log(r->theta));
}

/* YaRN (Peng et al. 2023): dimensions up to `low` keep their wave, those from `high` on are stretched. */
static float yarn_frequency(const struct shore__arch *a, const struct shore__rope *r, size_t i) {
    double low = yarn_dimension(a, r, r->beta_fast ? r->beta_fast : 32);
    double high = yarn_dimension(a, r, r->beta_slow ? r->beta_slow : 1);
    if (!r->fractional) low = floor(low), high = ceil(high);
    low = fmax(low, 0);
    high = fmin(high, a->head_dim - 1);
    if (low == high) high += 0.001;
    float ramp = fminf(fmaxf(((float)i - (float)low) / (float)(high - low), 0), 1), stays = 1 - ramp;
    float wavelength = plain_wavelength(a, r, i);
    return 1 / ((float)r->factor * wavelength) * (1 - stays) + 1 / wavelength * stays;
}

static double yarn_scale(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* Factor of queries and keys. Only one of the two mscales changes nothing, as in transformers. */
static float scale_of(const struct shore__rope *r) {
    if (r->kind != SHORE__ROPE_YARN) return 1;
    if (r->attention_factor != 0) return (float)r->attention_factor;
    if (r->mscale != 0 && r->mscale_all_dim != 0)
        return (float)(yarn_scale(r->factor, r->mscale) / yarn_scale(r->factor, r->mscale_all_dim));
    return (float)yarn_scale(r->factor, 1);
}

float shore__rope_frequency(const struct shore__arch *a, uint32_t table, size_t i) {
    const struct shore__rope *r = &a->rope[table];
    float frequency = 1.0f / plain_wavelength(a, r, i);
    switch (r->kind) {
    case SHORE__ROPE_LINEAR:
        return frequency / (float)r->factor;
    case SHORE__ROPE_LLAMA3:
        return llama3_frequency(r, frequency);
    case SHORE__ROPE_YARN:
        return yarn_frequency(a, r, i);
    default:
        return frequency;
    }
}

void shore__rope_table(const struct shore__arch *a, uint32_t table, size_t positions, float *out) {
    size_t half = a->head_dim / 2;
    float scale = scale_of(&a->rope[table]);
    for (size_t i = 0; i < half; i++) {
        float frequency = shore__rope_frequency(a, table, i);
        for (size_t p = 0; p < positions; p++) {
            float angle = (float)p * frequency;
            out[p * a->head_dim + i] = scale * cosf(angle);
            out[p * a->head_dim + half + i] = scale * sinf(angle);
        }
    }
}
