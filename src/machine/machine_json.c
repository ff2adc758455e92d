/* Descriptions of machines as JSON: reading and writing. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/suggest.h"
#include "base/units.h"
#include "files/json.h"
#include "machine/machine.h"

enum { KEYS_MOST = 16 };
#define RATE_MOST 1e18

static const char *const work_names[SHORE_WORKS] = {
    [SHORE_WORK_PRODUCT] = "product",
    [SHORE_WORK_PRODUCT_INPUT] = "product_input",
    [SHORE_WORK_PRODUCT_WEIGHT] = "product_weight",
    [SHORE_WORK_ATTENTION] = "attention",
    [SHORE_WORK_ATTENTION_BACKWARD] = "attention_backward",
    [SHORE_WORK_ROWS] = "rows",
};
static const char *const precision_names[SHORE_PRECISIONS] = {
    [SHORE_PRECISION_FP32] = "fp32", [SHORE_PRECISION_BF16] = "bf16", [SHORE_PRECISION_FP16] = "fp16",
    [SHORE_PRECISION_TF32] = "tf32", [SHORE_PRECISION_FP8] = "fp8",
};

/* How a key's value is read and written, and the type of its variable. */
enum kind {
    PART,     /* another function's */
    RATE,     /* double, in units a second; divided by the scale, as the next two are */
    ELEMENTS, /* double, elements; the file has bytes */
    CAPACITY, /* uint64_t, bytes */
    SECONDS,  /* double */
    FACTOR,   /* double */
    COUNT,    /* uint32_t */
    BUFFERS,  /* uint32_t */
    INSTANT,  /* int64_t */
    FLAG,     /* bool */
    TEXT,     /* char[bytes] */
};

struct key {
    const char *name;
    enum kind kind;
    void *at;
    size_t bytes;
};

static const struct {
    double low, high;
    const char *takes;
} ranges[] = {
    [RATE] = {1, RATE_MOST, "a number from 1 to 1e18, or a size such as 8GB"},
    [ELEMENTS] = {1, RATE_MOST, "a number from 1 to 1e18, or a size such as 8GB"},
    [CAPACITY] = {1, RATE_MOST, "a number from 1 to 1e18, or a size such as 8GB"},
    [SECONDS] = {0, 86400, "a number from 0 to 86400"},
    [FACTOR] = {1, 1e6, "a number from 1 to 1e+06"},
    [COUNT] = {1, 65536, "a whole number from 1 to 65536"},
    [BUFFERS] = {2, 16, "a whole number from 2 to 16"},
    [INSTANT] = {1, 1e15, "a whole number of seconds"},
    [FLAG] = {0, 0, "true or false"},
    [TEXT] = {0, 0, "a text"},
};

/* ---- objects and their keys -------------------------------------------------------------------------------------- */

/* The keys of each object, which reading and writing share. */
#define KEYS_OF_MACHINE(m)                                                                                          \
    {"name", TEXT, (m)->name, sizeof(m)->name}, {"about", TEXT, (m)->about, sizeof(m)->about},                      \
        {"format", COUNT, &(m)->format, 0}, {"measured", INSTANT, &(m)->measured, 0},                               \
        {"scale", FACTOR, &(m)->scale, 0}, {"host", PART, NULL, 0}, {"gpu", PART, NULL, 0}, {"bus", PART, NULL, 0}, \
        {"link", PART, NULL, 0}, {"drives", PART, NULL, 0}, {"compute", PART, NULL, 0},                             \
        {"host-update", PART, NULL, 0}, {                                                                           \
        "model", PART, NULL, 0                                                                                      \
    }
#define KEYS_OF_HOST(m)                                                                                    \
    {"processor", TEXT, (m)->processor, sizeof(m)->processor}, {"memory", CAPACITY, &(m)->host_memory, 0}, \
        {"cores", COUNT, &(m)->cores, 0}, {                                                                \
        "bandwidth", RATE, &(m)->memory_bandwidth, 0                                                       \
    }
#define KEYS_OF_GPU(m)                             \
    {"memory", CAPACITY, &(m)->gpu_memory, 0}, {   \
        "pinned", CAPACITY, &(m)->pinned_memory, 0 \
    }
#define KEYS_OF_BUS(m)                                                \
    {"in", RATE, &(m)->bus_in, 0}, {"out", RATE, &(m)->bus_out, 0}, { \
        "both", RATE, &(m)->bus_both, 0                               \
    }
#define KEYS_OF_COMPUTE(m)                                                                                   \
    {"products", PART, NULL, 0}, {"torch", PART, NULL, 0}, {"forward", SECONDS, &(m)->forward_seconds, 0}, { \
        "backward", SECONDS, &(m)->backward_seconds, 0                                                       \
    }
#define KEYS_OF_HOST_UPDATE(m)                    \
    {"rate", ELEMENTS, &(m)->host_update, 0}, {   \
        "buffers", BUFFERS, &(m)->host_buffers, 0 \
    }
#define KEYS_OF_DRIVE(d)                                                                                        \
    {"path", TEXT, (d)->path, sizeof(d)->path}, {"read", RATE, &(d)->read, 0}, {"write", RATE, &(d)->write, 0}, \
        {"mixed", RATE, &(d)->mixed, 0}, {"compute", ELEMENTS, &(d)->update, 0},                                \
        {"on-host", FLAG, &(d)->host_computes, 0}, {"memory", CAPACITY, &(d)->memory, 0},                       \
        {"room", CAPACITY, &(d)->room, 0}, {"flush", SECONDS, &(d)->flush_seconds, 0},                          \
        {"slower-after", COUNT, &(d)->slower_after, 0}, {"slower-by", FACTOR, &(d)->slower_by, 0}, {            \
        "device", TEXT, (d)->device, sizeof(d)->device                                                          \
    }
#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

/* Place of a value, for messages: the file, and the object in it ("": the whole). */
struct spot {
    const char *file, *object;
    double scale;
    struct shore_diag *diag;
};

static int wrong(const struct spot *p, const char *key, const char *what) {
    return shore__fail(p->diag, SHORE_EINPUT, "%s: \"%s\"%s%s %s", p->file, key, *p->object ? " of " : "", p->object,
                       what);
}

static int unknown(const struct spot *p, const char *name, const char *const *names, size_t n) {
    char list[256] = "";
    const char *near = shore__suggest(name, names, n);
    const struct shore__shown shown = shore__shown(name);
    for (size_t i = 0; i < n; i++)
        shore__append(list, sizeof list, "%s%s", i ? ", " : "", names[i]);
    if (near)
        return shore__fail(p->diag, SHORE_EINPUT, "%s: unknown key \"%s\"%s%s: did you mean \"%s\"?", p->file,
                           shown.text, *p->object ? " in " : "", p->object, near);
    return shore__fail(p->diag, SHORE_EINPUT, "%s: unknown key \"%s\"%s%s: there are %s", p->file, shown.text,
                       *p->object ? " in " : "", p->object, list);
}

/* A number, or a text with a unit. */
static bool read_number(const json_t *json, enum kind kind, double *out) {
    uint64_t size;
    bool unit = kind == RATE || kind == ELEMENTS || kind == CAPACITY;
    if (json_is_string(json) && unit && shore__parse_size(json_string_value(json), &size) == 0)
        *out = (double)size;
    else if (json_is_number(json))
        *out = json_number_value(json);
    else
        return false;
    bool whole = kind == COUNT || kind == BUFFERS || kind == INSTANT;
    return *out >= ranges[kind].low && *out <= ranges[kind].high && (!whole || *out == floor(*out));
}

static int read_key(const struct spot *p, const struct key *key, const json_t *json) {
    char text[96];
    double number = 0;
    bool good;
    if (key->kind == PART) return 0;
    if (key->kind == TEXT)
        good = json_is_string(json);
    else if (key->kind == FLAG)
        good = json_is_boolean(json);
    else
        good = read_number(json, key->kind, &number);
    if (!good) {
        snprintf(text, sizeof text, "takes %s", ranges[key->kind].takes);
        return wrong(p, key->name, text);
    }
    if (key->kind == TEXT)
        shore__printable(json_string_value(json), json_string_length(json), key->at, key->bytes);
    else if (key->kind == FLAG)
        *(bool *)key->at = json_is_true(json);
    else if (key->kind == CAPACITY)
        *(uint64_t *)key->at = (uint64_t)fmax(1, round(number / p->scale));
    else if (key->kind == COUNT || key->kind == BUFFERS)
        *(uint32_t *)key->at = (uint32_t)number;
    else if (key->kind == INSTANT)
        *(int64_t *)key->at = (int64_t)number;
    else
        *(double *)key->at = key->kind == RATE       ? number / p->scale
                             : key->kind == ELEMENTS ? number / p->scale / SHORE__UPDATE_BYTES
                                                     : number;
    return 0;
}

/* Reads all keys of an object, and leaves its parts to the caller. NULL: there is none. */
static int read_object(const struct spot *p, const json_t *json, const struct key *keys, size_t n) {
    const char *names[KEYS_MOST], *name;
    json_t *value;
    if (!json) return 0;
    if (!json_is_object(json))
        return shore__fail(p->diag, SHORE_EINPUT, "%s: %s is not an object in braces", p->file, p->object);
    for (size_t i = 0; i < n; i++)
        names[i] = keys[i].name;
    json_object_foreach((json_t *)(uintptr_t)json, name, value) {
        size_t i = 0;
        while (i < n && strcmp(keys[i].name, name) != 0)
            i++;
        int rc = i < n ? read_key(p, &keys[i], value) : unknown(p, name, names, n);
        if (rc) return rc;
    }
    return 0;
}

static int read_part(const struct spot *in, const json_t *whole, const char *name, const struct key *keys, size_t n) {
    struct spot p = *in;
    char object[40];
    snprintf(object, sizeof object, "\"%s\"", name);
    p.object = object;
    return read_object(&p, json_object_get(whole, name), keys, n);
}

static int read_link(const struct spot *in, const json_t *whole, struct shore_machine *out) {
    struct spot p = *in;
    p.object = "\"link\"";
    double shared = 0;
    const struct key keys[] = {
        {"shared", RATE, &shared, 0}, {"in", RATE, &out->link[0], 0}, {"out", RATE, &out->link[1], 0}};
    int rc = read_object(&p, json_object_get(whole, "link"), keys, COUNT_OF(keys));
    if (rc || !(shared > 0)) return rc;
    if (out->link[0] > 0 || out->link[1] > 0)
        return wrong(&p, "shared", "is the rate of both directions together: it does not go with \"in\" and \"out\"");
    out->link_shared = true;
    out->link[0] = shared;
    return 0;
}

static int read_drives(const struct spot *in, const json_t *json, struct shore_machine *out) {
    struct spot p = *in;
    char object[32];
    size_t n = json_array_size(json);
    p.object = object;
    if (!json_is_array(json) || n == 0 || n > SHORE__MACHINE_DRIVES_MAX)
        return shore__fail(p.diag, SHORE_EINPUT,
                           "%s: \"drives\" is not a list of 1 to %u drives (the last one stands for all that follow)",
                           p.file, SHORE__MACHINE_DRIVES_MAX);
    out->ndrives = (uint32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        struct shore__machine_drive *d = &out->drive[i];
        const struct key keys[] = {KEYS_OF_DRIVE(d)};
        snprintf(object, sizeof object, "drive %u", i + 1);
        int rc = read_object(&p, json_array_get(json, i), keys, COUNT_OF(keys));
        if (rc) return rc;
        if (!d->slower_after != !(d->slower_by > 0))
            return wrong(&p, d->slower_after ? "slower-after" : "slower-by", "goes with the other one of the two");
    }
    shore__machine_share(out);
    return 0;
}

typedef struct shore__rates rates_of[SHORE_PRECISIONS]; /* of a kind */

/* Reads a rate for all rows, or pairs of rows and rate, into the rates of kinds from first to last. */
static int read_rates(const struct spot *p, const char *key, const json_t *json, rates_of *rates, int first, int last,
                      int precision) {
    struct shore__rates r = {.n = 1};
    size_t n = json_array_size(json);
    bool good =
        json_is_array(json) ? n > 0 && n <= SHORE__MACHINE_ROWS_MAX : read_number(json, RATE, &r.at[0].per_second);
    for (size_t i = 0; i < n && good; i++) {
        const json_t *pair = json_array_get(json, i);
        double rows = 0;
        good = json_array_size(pair) == 2 && read_number(json_array_get(pair, 0), COUNT, &rows) &&
               read_number(json_array_get(pair, 1), RATE, &r.at[i].per_second) && (i == 0 || rows > r.at[i - 1].rows);
        r.at[i].rows = good ? (uint32_t)rows : 0;
        r.n = (uint32_t)n;
    }
    if (!good)
        return wrong(p, key, "takes a rate from 1 to 1e18, or one to eight pairs [rows, rate] with ascending rows");
    for (uint32_t i = 0; i < r.n; i++)
        r.at[i].per_second /= p->scale;
    for (int kind = first; kind <= last; kind++)
        rates[kind][precision] = r;
    return 0;
}

static int index_of(const char *name, const char *const *names, int n) {
    int i = 0;
    while (i < n && strcmp(names[i], name) != 0)
        i++;
    return i;
}

/* The rates of one kind, by precision. */
static int read_kind(const struct spot *in, const char *name, int kind, const json_t *json, rates_of *rates) {
    struct spot p = *in;
    const char *key;
    json_t *value;
    char object[40];
    snprintf(object, sizeof object, "\"%s\"", name);
    p.object = object;
    if (!json_is_object(json)) return wrong(in, name, "is not an object in braces: it has a rate for each precision");
    json_object_foreach((json_t *)(uintptr_t)json, key, value) {
        int precision = index_of(key, precision_names, SHORE_PRECISIONS);
        int rc = precision == SHORE_PRECISIONS ? unknown(&p, key, precision_names, SHORE_PRECISIONS)
                                               : read_rates(&p, key, value, rates, kind, kind, precision);
        if (rc) return rc;
    }
    return 0;
}

/* A precision's rate is that of all kinds but rows; what a kind says itself counts before it. */
static int read_products(const struct spot *in, const json_t *json, const char *name, rates_of *rates) {
    struct spot p = *in;
    const char *key, *names[SHORE_WORKS + SHORE_PRECISIONS];
    json_t *value;
    char object[40];
    snprintf(object, sizeof object, "\"%s\"", name);
    p.object = object;
    json = json_object_get(json, name);
    memcpy(names, work_names, sizeof work_names);
    memcpy(names + SHORE_WORKS, precision_names, sizeof precision_names);
    if (json && !json_is_object(json)) return read_object(&p, json, NULL, 0);
    for (int kinds = 0; kinds < 2; kinds++)
        json_object_foreach((json_t *)(uintptr_t)json, key, value) {
            int kind = index_of(key, work_names, SHORE_WORKS);
            int precision = index_of(key, precision_names, SHORE_PRECISIONS), rc = 0;
            if (kind == SHORE_WORKS && precision == SHORE_PRECISIONS) return unknown(&p, key, names, COUNT_OF(names));
            if (kinds && kind < SHORE_WORKS) rc = read_kind(&p, key, kind, value, rates);
            if (!kinds && kind == SHORE_WORKS)
                rc = read_rates(&p, key, value, rates, 0, SHORE_WORK_ROWS - 1, precision);
            if (rc) return rc;
        }
    return 0;
}

static int read_parts(const struct spot *p, const json_t *json, struct shore_machine *m) {
    const struct key host[] = {KEYS_OF_HOST(m)}, gpu[] = {KEYS_OF_GPU(m)}, bus[] = {KEYS_OF_BUS(m)},
                     compute[] = {KEYS_OF_COMPUTE(m)}, update[] = {KEYS_OF_HOST_UPDATE(m)};
    const json_t *drives = json_object_get(json, "drives");
    int rc = read_part(p, json, "host", host, COUNT_OF(host));
    if (!rc) rc = read_part(p, json, "gpu", gpu, COUNT_OF(gpu));
    if (!rc) rc = read_part(p, json, "bus", bus, COUNT_OF(bus));
    if (!rc) rc = read_link(p, json, m);
    if (!rc && drives) rc = read_drives(p, drives, m);
    if (!rc) rc = read_part(p, json, "compute", compute, COUNT_OF(compute));
    if (!rc) rc = read_products(p, json_object_get(json, "compute"), "products", m->rate);
    if (!rc) rc = read_products(p, json_object_get(json, "compute"), "torch", m->torch_rate);
    if (!rc) rc = read_part(p, json, "host-update", update, COUNT_OF(update));
    return rc;
}

static int from_json(const json_t *json, const char *name, struct shore_machine *m, struct shore_diag *diag) {
    static const char *const parts[] = {"host", "gpu", "bus", "link", "drives", "compute", "host-update"};
    struct spot p = {.file = name, .object = "", .scale = 1, .diag = diag};
    const struct key keys[] = {KEYS_OF_MACHINE(m)};
    size_t given = 0;
    m->scale = 1;
    shore__printable(name, strlen(name), m->name, sizeof m->name);
    int rc = read_object(&p, json, keys, COUNT_OF(keys));
    if (rc) return rc;
    p.scale = m->scale;
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        given += json_object_get(json, parts[i]) != NULL;
    if (!given)
        return shore__fail(diag, SHORE_EINPUT,
                           "%s: describes nothing: give \"drives\", \"compute\", \"host\", \"link\" "
                           "or another part of a machine",
                           name);
    return read_parts(&p, json, m);
}

int shore__machine_from_json(json_t *json, const char *name, struct shore_machine **out, struct shore_diag *diag) {
    struct shore_machine *m = calloc(1, sizeof *m);
    int rc = m ? from_json(json, name, m, diag) : shore__out_of_memory(diag);
    json_decref(json);
    if (!rc)
        *out = m;
    else
        shore_machine_free(m);
    return rc;
}

int shore_machine_parse(const char *text, size_t bytes, const char *name, struct shore_machine **out,
                        struct shore_diag *diag) {
    json_t *json;
    *out = NULL;
    int rc = shore__json_parse(text, bytes, name, &json, diag);
    return rc ? rc : shore__machine_from_json(json, name, out, diag);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* A whole number as such, so that people can read it. */
static json_t *number_json(double number) {
    return number == floor(number) && number < 9e15 ? json_integer((json_int_t)number) : json_real(number);
}

static json_t *value_of(const struct key *key, double scale) {
    switch (key->kind) {
    case TEXT:
        return *(const char *)key->at ? json_string(key->at) : NULL;
    case FLAG:
        return *(const bool *)key->at ? json_true() : NULL;
    case CAPACITY:
        return *(const uint64_t *)key->at ? number_json((double)*(const uint64_t *)key->at * scale) : NULL;
    case COUNT:
    case BUFFERS:
        return *(const uint32_t *)key->at ? json_integer(*(const uint32_t *)key->at) : NULL;
    case INSTANT:
        return *(const int64_t *)key->at ? json_integer(*(const int64_t *)key->at) : NULL;
    case RATE:
        return *(const double *)key->at > 0 ? number_json(*(const double *)key->at * scale) : NULL;
    case ELEMENTS:
        return *(const double *)key->at > 0 ? number_json(*(const double *)key->at * scale * SHORE__UPDATE_BYTES)
                                            : NULL;
    case SECONDS:
    case FACTOR:
        return *(const double *)key->at > 0 ? number_json(*(const double *)key->at) : NULL;
    default:
        return NULL;
    }
}

static json_t *object_of(const struct key *keys, size_t n, double scale) {
    json_t *o = json_object();
    for (size_t i = 0; i < n; i++) {
        json_t *value = value_of(&keys[i], scale);
        if (value) json_object_set_new(o, keys[i].name, value);
    }
    return o;
}

/* Adds a part that says something. */
static void add(json_t *whole, const char *name, json_t *part) {
    if (json_object_size(part) || json_array_size(part))
        json_object_set_new(whole, name, part);
    else
        json_decref(part);
}

static json_t *rates_json(const struct shore__rates *r, double scale) {
    if (r->n == 1 && !r->at[0].rows) return number_json(r->at[0].per_second * scale);
    json_t *pairs = json_array();
    for (uint32_t i = 0; i < r->n; i++)
        json_array_append_new(pairs, json_pack("[i, o]", (int)r->at[i].rows, number_json(r->at[i].per_second * scale)));
    return pairs;
}

static json_t *products_json(const rates_of *rates, double scale) {
    json_t *products = json_object();
    for (int kind = 0; kind < SHORE_WORKS; kind++) {
        json_t *of = json_object();
        for (int p = 0; p < SHORE_PRECISIONS; p++)
            if (rates[kind][p].n) json_object_set_new(of, precision_names[p], rates_json(&rates[kind][p], scale));
        add(products, work_names[kind], of);
    }
    return products;
}

char *shore_machine_json(const struct shore_machine *given) {
    /* the keys point to what is written; nothing writes through them here */
    struct shore_machine *m = (struct shore_machine *)(uintptr_t)given;
    double shared = m->link_shared ? m->link[0] : 0, none = 0;
    const struct key whole[] = {KEYS_OF_MACHINE(m)}, host[] = {KEYS_OF_HOST(m)}, gpu[] = {KEYS_OF_GPU(m)},
                     bus[] = {KEYS_OF_BUS(m)}, compute[] = {KEYS_OF_COMPUTE(m)}, update[] = {KEYS_OF_HOST_UPDATE(m)},
                     link[] = {{"shared", RATE, &shared, 0},
                               {"in", RATE, m->link_shared ? &none : &m->link[0], 0},
                               {"out", RATE, &m->link[1], 0}};
    json_t *o = object_of(whole, COUNT_OF(whole), 1), *drives = json_array();
    json_t *computing = object_of(compute, COUNT_OF(compute), m->scale);
    json_object_set_new(o, "host", object_of(host, COUNT_OF(host), m->scale)); /* a part, even if nothing is given */
    add(o, "gpu", object_of(gpu, COUNT_OF(gpu), m->scale));
    add(o, "bus", object_of(bus, COUNT_OF(bus), m->scale));
    add(o, "link", object_of(link, COUNT_OF(link), m->scale));
    for (uint32_t i = 0; i < m->ndrives; i++) {
        const struct key drive[] = {KEYS_OF_DRIVE(&m->drive[i])};
        json_array_append_new(drives, object_of(drive, COUNT_OF(drive), m->scale));
    }
    add(o, "drives", drives);
    add(computing, "products", products_json(given->rate, m->scale));
    add(computing, "torch", products_json(given->torch_rate, m->scale));
    add(o, "compute", computing);
    add(o, "host-update", object_of(update, COUNT_OF(update), m->scale));
    char *text = json_dumps(o, JSON_INDENT(2));
    json_decref(o);
    return text;
}
