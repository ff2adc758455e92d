/* One table says what every setting is called, takes and may be; JSON and the check follow it, and the flags
 * are called the same. */
#include "run/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/suggest.h"
#include "base/units.h"
#include "drive/address.h"
#include "drive/probe/speed.h"
#include "files/json.h"

enum kind { TEXT, LIST, COUNT32, COUNT64, SIZE, REAL, SHARE, CHOICE, TRUTH, PACE };

/* The largest fp32 below 1: where the arithmetic of the update still tells the two apart. */
#define BELOW_ONE 0x1.fffffep-1

struct row {
    const char *key;
    enum kind kind;
    size_t offset;
    uint64_t least, most;     /* COUNT32, COUNT64, SIZE */
    double low, high;         /* REAL, SHARE */
    const char *const *names; /* CHOICE, TRUTH: the values of 0, 1, ... */
    uint64_t unset;           /* COUNT32, COUNT64: stands for "not given", and is allowed too */
    bool may_be_unset;
};

static const char *const precisions[] = {"bf16", "fp32", NULL};
static const char *const optimizers[] = {"adamw", "adam", "sgd", "adagrad", NULL};
static const char *const moments[] = {"fp32", "8bit", NULL};
static const char *const gradient_precisions[] = {"fp32", "bf16", NULL};
static const char *const variances[] = {"live", "frozen", NULL};
static const char *const residuals[] = {"host", "saved", NULL};
static const char *const nonfinite[] = {"stop", "skip", NULL};
static const char *const bad_rows[] = {"stop", "skip", NULL};
static const char *const specials[] = {"text", "parse", NULL};
static const char *const switches[] = {"off", "on", NULL};
static const char *const products[] = {"auto", "bf16", "fp32", NULL};
static const char *const schedules[] = {"constant", "linear", "cosine", NULL};
static const char *const places[] = {"drive", "host", NULL};
static const char *const ios[] = {"auto", "uring", "threads", "buffered", NULL};
static const char *const whens[] = {"auto", "on", "off", NULL};

#define AT(field) offsetof(struct shore__settings, field)

static const struct row rows[] = {
    {"model", TEXT, AT(model), .names = NULL},
    {"init", TEXT, AT(init), .names = NULL},
    {"tokenizer", TEXT, AT(tokenizer), .names = NULL},
    {"seed", COUNT64, AT(seed), .most = UINT64_MAX},
    {"data", LIST, AT(data), .names = NULL},
    {"val-data", LIST, AT(val_data), .names = NULL},
    {"text-field", TEXT, AT(text_field), .names = NULL},
    {"bad-rows", TRUTH, AT(skip_bad_rows), .names = bad_rows},
    {"special-tokens", TRUTH, AT(parse_special), .names = specials},
    {"val-share", REAL, AT(val_share), .low = 0, .high = 0.9},
    {"batch", COUNT32, AT(batch), .least = 1, .most = SHORE__TOKENS_MOST},
    {"seq-len", COUNT32, AT(seq_len), .least = 1, .most = SHORE__TOKENS_MOST, .may_be_unset = true},
    {"precision", TRUTH, AT(fp32), .names = precisions},
    {"optimizer", CHOICE, AT(optimizer), .names = optimizers},
    {"moments", CHOICE, AT(moments), .names = moments},
    {"shuffle", TRUTH, AT(shuffle), .names = switches},
    {"products", CHOICE, AT(products), .names = products},
    {"threads", COUNT32, AT(threads), .most = SHORE__THREADS_MOST},
    {"steps", COUNT64, AT(steps), .least = 1, .most = SHORE__STEPS_MOST, .may_be_unset = true},
    {"epochs", REAL, AT(epochs), .low = 0, .high = 1e9},
    {"lr", REAL, AT(lr), .low = 0, .high = 1e6, .may_be_unset = true},
    {"min-lr", REAL, AT(min_lr), .low = 0, .high = 1e6, .may_be_unset = true},
    {"warmup", COUNT64, AT(warmup), .most = SHORE__STEPS_MOST, .unset = SHORE__WARMUP_CHOSEN, .may_be_unset = true},
    {"schedule", CHOICE, AT(schedule), .names = schedules},
    {"beta1", REAL, AT(beta1), .low = 0, .high = BELOW_ONE},
    {"beta2", REAL, AT(beta2), .low = 0, .high = BELOW_ONE, .may_be_unset = true},
    {"eps", REAL, AT(eps), .low = 1e-37, .high = 1}, /* at 0, what never had a gradient would be 0 / 0 */
    {"momentum", REAL, AT(momentum), .low = 0, .high = BELOW_ONE},
    {"weight-decay", REAL, AT(weight_decay), .low = 0, .high = 1e3},
    {"clip", REAL, AT(clip), .low = 0, .high = 1e30},
    {"on-nonfinite", TRUTH, AT(skip_nonfinite), .names = nonfinite},
    {"grad-precision", TRUTH, AT(gradient_bf16), .names = gradient_precisions},
    {"compress", SHARE, AT(compress), .low = 0, .high = 1},
    {"compress-values", TRUTH, AT(compress_fp32), .names = precisions},
    {"compress-after", COUNT64, AT(compress_after), .most = SHORE__STEPS_MOST},
    {"compress-variance", TRUTH, AT(frozen_variance), .names = variances},
    {"error-feedback", TRUTH, AT(error_feedback), .names = switches},
    {"residual", TRUTH, AT(residual_saved), .names = residuals},
    {"memory", SIZE, AT(memory_bytes), .most = UINT64_MAX},
    {"drive", LIST, AT(drives), .names = NULL},
    {"drive-speeds", TEXT, AT(drive_speeds), .names = NULL},
    {"chunk-size", SIZE, AT(chunk_bytes), .most = SHORE__CHUNK_BYTES_MOST},
    {"io", CHOICE, AT(io), .names = ios},
    {"speculate", CHOICE, AT(speculate), .names = whens},
    {"offload", CHOICE, AT(offload), .names = whens},
    {"reconnect-timeout", REAL, AT(reconnect_seconds), .low = 0, .high = 1e7},
    {"snapshot-every", COUNT64, AT(snapshot_every), .most = SHORE__STEPS_MOST},
    {"keep", COUNT64, AT(keep), .most = 1u << 20},
    {"update", TRUTH, AT(host_update), .names = places},
    {"emulate", TEXT, AT(emulate), .names = NULL},
    {"stop-at", COUNT64, AT(stop_at), .most = SHORE__STEPS_MOST},
    {"eval-every", COUNT64, AT(eval_every), .most = SHORE__STEPS_MOST},
    {"sample-every", COUNT64, AT(sample_every), .most = SHORE__STEPS_MOST},
    {"log-every", PACE, AT(log_every), .least = 1, .most = SHORE__STEPS_MOST},
    {"quiet", TRUTH, AT(quiet), .names = switches},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static void *field(const struct row *r, const struct shore__settings *s) {
    return (char *)s + r->offset;
}

void shore__settings_defaults(struct shore__settings *s) {
    *s = (struct shore__settings){
        .text_field = strdup("text"), /* NULL is taken for it, too */
        .batch = 8,
        .optimizer = SHORE_ADAMW,
        .shuffle = true,
        .products = SHORE__PRODUCTS_AUTO,
        .lr = NAN,
        .min_lr = NAN,
        .warmup = SHORE__WARMUP_CHOSEN,
        .schedule = SHORE__COSINE,
        .beta1 = 0.9,
        .beta2 = NAN,
        .eps = 1e-8,
        .weight_decay = 0.1,
        .clip = 1,
        .error_feedback = true,
        .io = SHORE_IO_AUTO,
        .speculate = SHORE__AUTO,
        .offload = SHORE__AUTO,
        .reconnect_seconds = 300,
        .log_every = {.seconds = 10},
    };
}

int shore__strings_add(struct shore__strings *list, const char *item) {
    char **grown = realloc(list->item, (list->count + 1) * sizeof *grown);
    if (!grown) return -ENOMEM;
    list->item = grown;
    if (!(grown[list->count] = strdup(item))) return -ENOMEM;
    list->count++;
    return 0;
}

void shore__strings_free(struct shore__strings *list) {
    for (size_t i = 0; i < list->count; i++)
        free(list->item[i]);
    free(list->item);
    *list = (struct shore__strings){0};
}

void shore__settings_free(struct shore__settings *s) {
    for (size_t i = 0; i < ROWS; i++) {
        if (rows[i].kind == TEXT) {
            free(*(char **)field(&rows[i], s));
            *(char **)field(&rows[i], s) = NULL;
        } else if (rows[i].kind == LIST) {
            shore__strings_free(field(&rows[i], s));
        }
    }
}

int shore__settings_copy(const struct shore__settings *s, struct shore__settings *out) {
    int rc = 0;
    *out = *s;
    for (size_t i = 0; i < ROWS; i++) {
        if (rows[i].kind == TEXT) {
            const char *text = *(char **)field(&rows[i], s);
            char *copy = text ? strdup(text) : NULL;
            if (text && !copy) rc = -ENOMEM;
            *(char **)field(&rows[i], out) = copy;
        } else if (rows[i].kind == LIST) {
            const struct shore__strings *from = field(&rows[i], s);
            struct shore__strings *to = field(&rows[i], out);
            *to = (struct shore__strings){0};
            for (size_t k = 0; k < from->count && rc == 0; k++)
                rc = shore__strings_add(to, from->item[k]);
        }
    }
    if (rc < 0) shore__settings_free(out);
    return rc;
}

static const struct row *find(const char *key) {
    for (size_t i = 0; i < ROWS; i++)
        if (strcmp(rows[i].key, key) == 0) return &rows[i];
    return NULL;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static bool is_unset(const struct row *r, const struct shore__settings *s) {
    if (!r->may_be_unset) return false;
    switch (r->kind) {
    case COUNT32:
        return *(uint32_t *)field(r, s) == r->unset;
    case COUNT64:
        return *(uint64_t *)field(r, s) == r->unset;
    case REAL:
        return isnan(*(double *)field(r, s));
    default:
        return false;
    }
}

/* What a setting may be, in words. */
static void describe(const struct row *r, char *text, size_t bytes) {
    size_t used = 0;
    switch (r->kind) {
    case COUNT32:
    case COUNT64:
        if (r->most == UINT64_MAX)
            snprintf(text, bytes, "a whole number");
        else
            snprintf(text, bytes, "a whole number from %" PRIu64 " to %" PRIu64, r->least, r->most);
        break;
    case SIZE:
        snprintf(text, bytes, "a size such as 2GiB or 500M");
        break;
    case REAL:
        if (r->high == BELOW_ONE)
            snprintf(text, bytes, "a number from %g to below 1", r->low);
        else
            snprintf(text, bytes, "a number from %g to %g", r->low, r->high);
        break;
    case PACE:
        snprintf(text, bytes, "a number of steps such as 10, or a time such as 30s or 5m");
        break;
    case SHARE:
        snprintf(text, bytes, "a share above 0 such as top1%%, or none");
        break;
    case CHOICE:
    case TRUTH:
        for (size_t i = 0; r->names[i] && used < bytes; i++)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s",
                                     i == 0            ? ""
                                     : r->names[i + 1] ? ", "
                                                       : " or ",
                                     r->names[i]);
        break;
    case TEXT:
    case LIST:
        snprintf(text, bytes, "a text that is not empty");
        break;
    }
}

/* where: the file that a JSON key is in, or NULL for a flag. */
static int refuse(const struct row *r, const char *where, const char *value, struct shore_diag *diag) {
    char allowed[160], shown[160], file[256];
    describe(r, allowed, sizeof allowed);
    shore__escape(value, strlen(value), shown, sizeof shown);
    if (!where) return shore__fail(diag, SHORE_EUSAGE, "--%s takes %s, not \"%s\"", r->key, allowed, shown);
    return shore__fail(diag, SHORE_EUSAGE, "%s: \"%s\" takes %s, not \"%s\"",
                       shore__escape(where, strlen(where), file, sizeof file), r->key, allowed, shown);
}

static bool put_count(const struct row *r, struct shore__settings *s, uint64_t value) {
    if (value < r->least || value > r->most) return false;
    if (r->kind == COUNT32)
        *(uint32_t *)field(r, s) = (uint32_t)value;
    else
        *(uint64_t *)field(r, s) = value;
    return true;
}

static bool put_pace(const struct row *r, struct shore__settings *s, struct shore__pace value) {
    if (value.steps > r->most || (value.steps < r->least && !(value.seconds > 0))) return false;
    memcpy(field(r, s), &value, sizeof value);
    return true;
}

static bool put_real(const struct row *r, struct shore__settings *s, double value) {
    if (!(value >= r->low && value <= r->high)) return false;
    *(double *)field(r, s) = value;
    return true;
}

static bool put_name(const struct row *r, struct shore__settings *s, const char *text) {
    for (int i = 0; r->names[i]; i++) {
        if (strcmp(text, r->names[i]) != 0) continue;
        if (r->kind == TRUTH)
            *(bool *)field(r, s) = i != 0;
        else
            memcpy(field(r, s), &i, sizeof i); /* enums of ours are ints */
        return true;
    }
    return false;
}

_Static_assert(sizeof(enum shore_optimizer) == sizeof(int) && sizeof(enum shore__products) == sizeof(int) &&
                   sizeof(enum shore__schedule) == sizeof(int) && sizeof(enum shore_io) == sizeof(int) &&
                   sizeof(enum shore_moments) == sizeof(int) && sizeof(enum shore__when) == sizeof(int),
               "choices are stored through ints");

static bool parse_count(const char *text, uint64_t *out) {
    char *end = NULL;
    if (*text < '0' || *text > '9') return false;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0';
}

static int put_text(const struct row *r, struct shore__settings *s, const char *text, const char *where,
                    struct shore_diag *diag) {
    uint64_t count = 0;
    double real = 0;
    struct shore__pace pace;
    bool good = false;
    switch (r->kind) {
    case TEXT:
        if (*text == '\0') break;
        free(*(char **)field(r, s));
        *(char **)field(r, s) = strdup(text);
        if (!*(char **)field(r, s)) return shore__fail(diag, -ENOMEM, "out of memory");
        good = true;
        break;
    case LIST:
        if (*text == '\0') break;
        if (shore__strings_add(field(r, s), text) < 0) return shore__fail(diag, -ENOMEM, "out of memory");
        good = true;
        break;
    case COUNT32:
    case COUNT64:
        good = parse_count(text, &count) && put_count(r, s, count);
        break;
    case SIZE:
        good = shore__parse_size(text, &count) == 0 && put_count(r, s, count);
        break;
    case REAL:
        good = shore__parse_real(text, &real) == 0 && put_real(r, s, real);
        break;
    case PACE:
        good = shore__parse_pace(text, &pace) == 0 && put_pace(r, s, pace);
        break;
    case SHARE:
        good = shore__parse_share(text, &real) == 0 && put_real(r, s, real);
        break;
    case CHOICE:
    case TRUTH:
        good = put_name(r, s, text);
        break;
    }
    return good ? 0 : refuse(r, where, text, diag);
}

static int unknown(const char *key, const char *where, struct shore_diag *diag) {
    const char *names[ROWS];
    char shown[160], file[256], hint[96] = "";
    for (size_t i = 0; i < ROWS; i++)
        names[i] = rows[i].key;
    const char *near = shore__suggest(key, names, ROWS);
    if (near) snprintf(hint, sizeof hint, ": did you mean \"%s\"?", near);
    shore__escape(key, strlen(key), shown, sizeof shown);
    return shore__fail(diag, SHORE_EUSAGE, "%s: unknown key \"%s\"%s",
                       shore__escape(where, strlen(where), file, sizeof file), shown, hint);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static int put_json(const struct row *r, struct shore__settings *s, const json_t *value, const char *where,
                    struct shore_diag *diag) {
    if (json_is_string(value)) {
        if (r->kind == LIST) shore__strings_free(field(r, s));
        return put_text(r, s, json_string_value(value), where, diag);
    }
    if (json_is_integer(value) && json_integer_value(value) >= 0 &&
        (r->kind == COUNT32 || r->kind == COUNT64 || r->kind == SIZE) &&
        put_count(r, s, (uint64_t)json_integer_value(value)))
        return 0;
    if (json_is_integer(value) && json_integer_value(value) >= 0 && r->kind == PACE &&
        put_pace(r, s, (struct shore__pace){.steps = (uint64_t)json_integer_value(value)}))
        return 0;
    if (json_is_number(value) && (r->kind == REAL || r->kind == SHARE) && put_real(r, s, json_number_value(value)))
        return 0;
    if (json_is_boolean(value) && r->kind == TRUTH && r->names == switches) {
        *(bool *)field(r, s) = json_is_true(value);
        return 0;
    }
    if (json_is_array(value) && r->kind == LIST) {
        size_t i = 0;
        json_t *item = NULL;
        shore__strings_free(field(r, s));
        json_array_foreach(value, i, item) {
            if (!json_is_string(item)) break;
            int rc = put_text(r, s, json_string_value(item), where, diag);
            if (rc < 0) return rc;
        }
        if (i == json_array_size(value)) return 0;
    }
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    int rc = refuse(r, where, text ? text : "?", diag);
    free(text);
    return rc;
}

/* Runs have keys of flags that are gone, since they did nothing. */
static bool is_gone(const char *key) {
    return strcmp(key, "micro-batch") == 0;
}

int shore__settings_from_json(const json_t *json, const char *name, struct shore__settings *out,
                              struct shore_diag *diag) {
    const char *key = NULL;
    json_t *value = NULL;
    char shown[256];
    if (!json_is_object(json))
        return shore__fail(diag, SHORE_EUSAGE, "%s: settings are a JSON object whose keys are flags without \"--\"",
                           shore__escape(name, strlen(name), shown, sizeof shown));
    json_object_foreach((json_t *)json, key, value) {
        const struct row *r = find(key);
        if (is_gone(key)) continue;
        int rc = r ? put_json(r, out, value, name, diag) : unknown(key, name, diag);
        if (rc < 0) return rc;
    }
    return 0;
}

static json_t *count_json(uint64_t value) {
    char text[24];
    if (value <= INT64_MAX) return json_integer((json_int_t)value);
    snprintf(text, sizeof text, "%" PRIu64, value);
    return json_string(text);
}

static json_t *row_json(const struct row *r, const struct shore__settings *s) {
    int choice = 0;
    switch (r->kind) {
    case TEXT: {
        const char *text = *(char **)field(r, s);
        return text ? json_string(text) : NULL;
    }
    case LIST: {
        const struct shore__strings *list = field(r, s);
        json_t *array = list->count ? json_array() : NULL;
        for (size_t i = 0; i < list->count; i++)
            json_array_append_new(array, json_string(list->item[i]));
        return array;
    }
    case COUNT32:
        return count_json(*(uint32_t *)field(r, s));
    case COUNT64:
    case SIZE:
        return count_json(*(uint64_t *)field(r, s));
    case PACE: {
        const struct shore__pace *pace = field(r, s);
        char text[32];
        return pace->steps ? count_json(pace->steps) : json_string(shore__format_pace(pace, text, sizeof text));
    }
    case SHARE: /* "none" as the flag has it; runs of earlier versions have 0 */
        if (*(double *)field(r, s) == 0) return json_string("none");
        return json_real(*(double *)field(r, s));
    case REAL:
        return json_real(*(double *)field(r, s));
    case CHOICE:
        memcpy(&choice, field(r, s), sizeof choice);
        return json_string(r->names[choice]);
    case TRUTH:
        if (r->names == switches) return json_boolean(*(bool *)field(r, s));
        return json_string(r->names[*(bool *)field(r, s)]);
    }
    return NULL;
}

json_t *shore__settings_to_json(const struct shore__settings *s) {
    json_t *object = json_object();
    for (size_t i = 0; i < ROWS && object; i++) {
        json_t *value = is_unset(&rows[i], s) ? NULL : row_json(&rows[i], s);
        if (value && json_object_set_new(object, rows[i].key, value) < 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

/* ---- check and schedule ------------------------------------------------------------------------------------------ */

/* JSON, and so run.json, holds only UTF-8. */
static int check_text(const struct row *r, const char *text, struct shore_diag *diag) {
    char shown[256];
    if (shore__json_holds(text)) return 0;
    return shore__fail(diag, SHORE_EUSAGE, "--%s: the name \"%s\" is not UTF-8: rename it", r->key,
                       shore__escape(text, strlen(text), shown, sizeof shown));
}

static int check_row(const struct row *r, const struct shore__settings *s, struct shore_diag *diag) {
    char value[40];
    bool good = true;
    if (is_unset(r, s)) return 0;
    if (r->kind == COUNT32 || r->kind == COUNT64 || r->kind == SIZE) {
        uint64_t n = r->kind == COUNT32 ? *(uint32_t *)field(r, s) : *(uint64_t *)field(r, s);
        good = n >= r->least && n <= r->most;
        snprintf(value, sizeof value, "%" PRIu64, n);
    } else if (r->kind == REAL || r->kind == SHARE) {
        double x = *(double *)field(r, s);
        good = x >= r->low && x <= r->high;
        snprintf(value, sizeof value, "%g", x);
    } else if (r->kind == TEXT && *(char **)field(r, s)) {
        return check_text(r, *(char **)field(r, s), diag);
    } else if (r->kind == LIST) {
        const struct shore__strings *list = field(r, s);
        for (size_t i = 0; i < list->count; i++) {
            int rc = check_text(r, list->item[i], diag);
            if (rc < 0) return rc;
        }
    }
    return good ? 0 : refuse(r, NULL, value, diag);
}

bool shore__settings_in_ram(const struct shore__settings *s) {
    for (size_t i = 0; i < s->drives.count; i++)
        if (shore__kind_of(s->drives.item[i])->id == SHORE__KIND_RAM) return true;
    return false;
}

int shore__settings_check(const struct shore__settings *s, struct shore_diag *diag) {
    for (size_t i = 0; i < ROWS; i++) {
        int rc = check_row(&rows[i], s, diag);
        if (rc < 0) return rc;
    }
    if (!s->model && !s->init)
        return shore__fail(diag, SHORE_EUSAGE,
                           "which model? Give --model DIR, or --init with a preset or a config.json");
    if (s->model && s->init)
        return shore__fail(diag, SHORE_EUSAGE, "--model and --init exclude each other: give one of them");
    if (s->val_data.count > 0 && s->val_share > 0)
        return shore__fail(diag, SHORE_EUSAGE, "--val-data and --val-share exclude each other: give one of them");
    for (size_t i = 0; i < s->drives.count && s->snapshot_every; i++)
        if (!shore__kind_of(s->drives.item[i])->keeps)
            return shore__fail(diag, SHORE_EUSAGE,
                               "--snapshot-every needs drives that keep something: there is nothing beside --drive %s",
                               s->drives.item[i]);
    if (s->drive_speeds) {
        int rc = shore__speeds_parse(s->drive_speeds, (uint32_t)s->drives.count, NULL, diag);
        if (rc) return rc;
    }
    if (s->steps > 0 && s->epochs > 0)
        return shore__fail(diag, SHORE_EUSAGE, "--steps and --epochs exclude each other: give one of them");
    if (s->fp32 && s->products == SHORE__PRODUCTS_BF16)
        return shore__fail(diag, SHORE_EUSAGE, "--products bf16 does not go with --precision fp32");
    if (!isnan(s->lr) && !isnan(s->min_lr) && s->min_lr > s->lr)
        return shore__fail(diag, SHORE_EUSAGE, "--min-lr %g is above --lr %g", s->min_lr, s->lr);
    bool adam = s->optimizer == SHORE_ADAMW || s->optimizer == SHORE_ADAM;
    if (s->residual_saved && !(s->compress > 0 && s->error_feedback))
        return shore__fail(diag, SHORE_EUSAGE, "--residual saved is for --compress with --error-feedback on");
    if (s->frozen_variance && !(adam && s->compress > 0 && s->compress_after > 0))
        return shore__fail(diag, SHORE_EUSAGE,
                           "--compress-variance frozen is for adam and adamw, with --compress and --compress-after N: "
                           "the first N steps make the variance");
    if (s->host_update && s->compress > 0)
        return shore__fail(diag, SHORE_EUSAGE,
                           "--update host is what others do, with whole gradients: it does not go with --compress");
    if (s->compress_after > 0 && !(s->compress > 0))
        return shore__fail(diag, SHORE_EUSAGE, "--compress-after is for --compress");
    if (s->momentum > 0 && s->optimizer != SHORE_SGD)
        return shore__fail(diag, SHORE_EUSAGE, "--momentum is for --optimizer sgd (adam and adamw have --beta1)");
    return 0;
}

/* What begins with random weights meets the whole rate after 100 steps, or a third of few: Adam's first steps are as
 * large as the rate whatever the gradient, and losses jumped (bench/results/first-steps.md). */
uint64_t shore__warmup_for(const struct shore__settings *s, uint64_t steps) {
    uint64_t share = steps / 50, least = steps / 3 < 100 ? steps / 3 : 100;
    return s->model || share > least ? share : least;
}

double shore__learning_rate(const struct shore__settings *s, uint64_t step) {
    uint64_t steps = s->steps ? s->steps : 1000;
    uint64_t warmup = s->warmup == SHORE__WARMUP_CHOSEN ? shore__warmup_for(s, steps) : s->warmup;
    double lr = isnan(s->lr) ? 3e-4 : s->lr;
    double least = isnan(s->min_lr) ? lr / 10 : s->min_lr;
    if (step < warmup) return lr * (double)step / (double)warmup;
    uint64_t first = warmup ? warmup : 1; /* the step that has the whole rate */
    if (s->schedule == SHORE__CONSTANT || step <= first) return lr;
    double done = step >= steps ? 1 : (double)(step - first) / (double)(steps - first);
    double left = s->schedule == SHORE__LINEAR ? 1 - done : 0.5 * (1 + cos(3.14159265358979323846 * done));
    return least + (lr - least) * left;
}
