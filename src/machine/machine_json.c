/* Descriptions of machines as JSON: reading and writing, by one table of keys. */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/suggest.h"
#include "base/units.h"
#include "files/json.h"
#include "machine/machine.h"

enum { NAMES_MOST = 16 };

static const char *const work_names[SHORE_WORKS] = {
    [SHORE_WORK_PRODUCT] = "product",
    [SHORE_WORK_PRODUCT_INPUT] = "product_input",
    [SHORE_WORK_PRODUCT_WEIGHT] = "product_weight",
    [SHORE_WORK_ATTENTION] = "attention",
    [SHORE_WORK_ATTENTION_BACKWARD] = "attention_backward",
    [SHORE_WORK_ROWS] = "rows",
    [SHORE_WORK_FUNCTIONS] = "functions",
    [SHORE_WORK_CALLS] = "calls",
};
const char *const shore__precision_names[SHORE_PRECISIONS] = {
    [SHORE_PRECISION_FP32] = "fp32", [SHORE_PRECISION_BF16] = "bf16", [SHORE_PRECISION_FP16] = "fp16",
    [SHORE_PRECISION_TF32] = "tf32", [SHORE_PRECISION_FP8] = "fp8",
};

/* What a key's value is, and the type of its variable. Those before SECONDS are divided by the scale. */
enum kind {
    RATE,     /* double, in units a second */
    ELEMENTS, /* double, elements; the file has bytes */
    CAPACITY, /* uint64_t, bytes */
    SECONDS,  /* double */
    FACTOR,   /* double */
    COUNT,    /* uint32_t */
    BUFFERS,  /* uint32_t */
    INSTANT,  /* int64_t */
    FLAG,     /* bool */
    TEXT,     /* char[bytes] */
    PART      /* another function's */
};

#define SIZE "a number from 1 to 1e18, or a size such as 8GB"
static const struct {
    double low, high;
    const char *takes;
} ranges[] = {
    [RATE] = {1, 1e18, SIZE},
    [ELEMENTS] = {1, 1e18, SIZE},
    [CAPACITY] = {1, 1e18, SIZE},
    [SECONDS] = {0, SHORE__DAY_SECONDS, "a number from 0 to 86400"},
    [FACTOR] = {1, 1e6, "a number from 1 to 1e+06"},
    [COUNT] = {1, 65536, "a whole number from 1 to 65536"},
    [BUFFERS] = {2, 16, "a whole number from 2 to 16"},
    [INSTANT] = {1, 1e15, "a whole number of seconds"},
    [FLAG] = {0, 0, "true or false"},
    [TEXT] = {0, 0, "a text"},
};

struct key {
    const char *part, *name; /* part: the object that has it; "": the whole */
    enum kind kind;
    size_t at, bytes; /* of its variable */
};
#define KEY(part, name, kind, field) \
    { part, name, kind, offsetof(struct shore_machine, field), sizeof(((struct shore_machine *)NULL)->field) }
#define OF_DRIVE(name, kind, field)                                   \
    {                                                                 \
        "", name, kind, offsetof(struct shore__machine_drive, field), \
            sizeof(((struct shore__machine_drive *)NULL)->field)      \
    }
static const struct key keys[] = {
    KEY("", "name", TEXT, name),
    KEY("", "about", TEXT, about),
    KEY("", "format", COUNT, format),
    KEY("", "measured", INSTANT, measured),
    KEY("", "scale", FACTOR, scale),
    {"", "host", PART, 0, 0},
    {"", "gpu", PART, 0, 0},
    {"", "bus", PART, 0, 0},
    {"", "link", PART, 0, 0},
    {"", "drives", PART, 0, 0},
    {"", "compute", PART, 0, 0},
    {"", "host-update", PART, 0, 0},
    {"", "model", PART, 0, 0},
    KEY("host", "processor", TEXT, processor),
    KEY("host", "memory", CAPACITY, host_memory),
    KEY("host", "cores", COUNT, cores),
    KEY("host", "bandwidth", RATE, memory_bandwidth),
    KEY("gpu", "memory", CAPACITY, gpu_memory),
    KEY("gpu", "pinned", CAPACITY, pinned_memory),
    KEY("bus", "in", RATE, bus_in),
    KEY("bus", "out", RATE, bus_out),
    KEY("bus", "both", RATE, bus_both),
    KEY("link", "shared", RATE, link_both),
    KEY("link", "in", RATE, link[0]),
    KEY("link", "out", RATE, link[1]),
    KEY("compute", "forward", SECONDS, forward_seconds),
    KEY("compute", "backward", SECONDS, backward_seconds),
    {"compute", "products", PART, 0, 0},
    {"compute", "torch", PART, 0, 0},
    KEY("host-update", "rate", ELEMENTS, host_update),
    KEY("host-update", "buffers", BUFFERS, host_buffers),
};
static const struct key drive_keys[] = {
    OF_DRIVE("path", TEXT, path),
    OF_DRIVE("device", TEXT, device),
    OF_DRIVE("read", RATE, read),
    OF_DRIVE("write", RATE, write),
    OF_DRIVE("mixed", RATE, mixed),
    OF_DRIVE("mixed-least", RATE, mixed_least),
    OF_DRIVE("compute", ELEMENTS, update),
    OF_DRIVE("on-host", FLAG, host_computes),
    OF_DRIVE("memory", CAPACITY, memory),
    OF_DRIVE("room", CAPACITY, room),
    OF_DRIVE("flush", SECONDS, flush_seconds),
    OF_DRIVE("slower-after", COUNT, slower_after),
    OF_DRIVE("slower-by", FACTOR, slower_by),
};
#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])
static const char *const parts[] = {"host", "gpu", "bus", "link", "compute", "host-update"};

/* How often a file's number is the variable's. */
static double factor(enum kind kind, double scale) {
    return kind == ELEMENTS ? scale * SHORE__UPDATE_BYTES : kind < SECONDS ? scale : 1;
}

static void put(enum kind kind, void *at, double number) {
    if (kind == CAPACITY)
        *(uint64_t *)at = (uint64_t)fmax(1, round(number));
    else if (kind == INSTANT)
        *(int64_t *)at = (int64_t)number;
    else if (kind == COUNT || kind == BUFFERS)
        *(uint32_t *)at = (uint32_t)number;
    else
        *(double *)at = number;
}

static double number_at(enum kind kind, const void *at) {
    return kind == CAPACITY                   ? (double)*(const uint64_t *)at
           : kind == INSTANT                  ? (double)*(const int64_t *)at
           : kind == COUNT || kind == BUFFERS ? (double)*(const uint32_t *)at
                                              : *(const double *)at;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

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
    bool whole = kind == COUNT || kind == BUFFERS || kind == INSTANT;
    if (json_is_string(json) && kind < SECONDS && shore__parse_size(json_string_value(json), &size) == 0)
        *out = (double)size;
    else if (json_is_number(json))
        *out = json_number_value(json);
    else
        return false;
    return *out >= ranges[kind].low && *out <= ranges[kind].high && (!whole || *out == floor(*out));
}

static int read_key(const struct spot *p, const struct key *key, const json_t *json, void *in) {
    char text[96], *at = (char *)in + key->at;
    double number;
    if (key->kind == PART) return 0;
    if (key->kind == TEXT && json_is_string(json))
        shore__printable(json_string_value(json), json_string_length(json), at, key->bytes);
    else if (key->kind == FLAG && json_is_boolean(json))
        *(bool *)(void *)at = json_is_true(json);
    else if (key->kind < FLAG && read_number(json, key->kind, &number))
        put(key->kind, at, number / factor(key->kind, p->scale));
    else {
        snprintf(text, sizeof text, "takes %s", ranges[key->kind].takes);
        return wrong(p, key->name, text);
    }
    return 0;
}

/* Reads the keys of a part, those of kind PART excepted. json NULL: there is none. object: for messages. */
static int read_part(const struct spot *given, const json_t *json, const char *object, const char *part,
                     const struct key *all, size_t n, void *in) {
    const char *names[NAMES_MOST], *name;
    struct spot p = *given;
    size_t known = 0;
    json_t *value;
    p.object = object;
    if (!json) return 0;
    if (!json_is_object(json))
        return shore__fail(p.diag, SHORE_EINPUT, "%s: %s is not an object in braces", p.file, object);
    for (size_t i = 0; i < n; i++)
        if (strcmp(all[i].part, part) == 0) names[known++] = all[i].name;
    json_object_foreach((json_t *)(uintptr_t)json, name, value) {
        size_t i = 0;
        while (i < n && (strcmp(all[i].part, part) != 0 || strcmp(all[i].name, name) != 0))
            i++;
        int rc = i < n ? read_key(&p, &all[i], value, in) : unknown(&p, name, names, known);
        if (rc) return rc;
    }
    return 0;
}

static int read_drives(const struct spot *p, const json_t *json, struct shore_machine *out) {
    char object[32];
    size_t n = json_array_size(json);
    if (!json_is_array(json) || n == 0 || n > SHORE__MACHINE_DRIVES_MAX)
        return shore__fail(p->diag, SHORE_EINPUT,
                           "%s: \"drives\" is not a list of 1 to %u drives (the last one stands for all that follow)",
                           p->file, SHORE__MACHINE_DRIVES_MAX);
    out->ndrives = (uint32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        struct shore__machine_drive *d = &out->drive[i];
        struct spot here = *p;
        here.object = object;
        snprintf(object, sizeof object, "drive %u", i + 1);
        int rc = read_part(p, json_array_get(json, i), object, "", drive_keys, COUNT_OF(drive_keys), d);
        if (rc) return rc;
        if (!d->slower_after != !(d->slower_by > 0))
            return wrong(&here, d->slower_after ? "slower-after" : "slower-by", "goes with the other one of the two");
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

/* The rates of a kind, by precision. of SHORE_WORKS: of all kinds but rows, and of kinds, which count before that. */
static int read_products(const struct spot *given, const json_t *json, const char *name, rates_of *rates, int of) {
    const char *key, *names[SHORE_PRECISIONS + SHORE_WORKS];
    const bool all = of == SHORE_WORKS;
    const int known = SHORE_PRECISIONS + (all ? SHORE_WORKS : 0), first = all ? 0 : of,
              last = all ? SHORE_WORK_ROWS - 1 : of;
    int rc = 0;
    struct spot p = *given;
    char object[40];
    json_t *value;
    json = json_object_get(json, name);
    if (json && !json_is_object(json)) return wrong(given, name, "is not an object in braces");
    snprintf(object, sizeof object, "\"%s\"", name);
    p.object = object;
    memcpy(names, shore__precision_names, sizeof shore__precision_names);
    memcpy(names + SHORE_PRECISIONS, work_names, sizeof work_names);
    for (int kinds = 0; kinds <= all; kinds++)
        json_object_foreach((json_t *)(uintptr_t)json, key, value) {
            int i = index_of(key, names, known);
            if (i == known)
                rc = unknown(&p, key, names, (size_t)known);
            else if (!kinds && i < SHORE_PRECISIONS)
                rc = read_rates(&p, key, value, rates, first, last, i);
            else if (kinds && i >= SHORE_PRECISIONS)
                rc = read_products(&p, json, key, rates, i - SHORE_PRECISIONS);
            if (rc) return rc;
        }
    return 0;
}

static int from_json(const json_t *json, const char *name, struct shore_machine *m, struct shore_diag *diag) {
    struct spot p = {.file = name, .object = "\"link\"", .scale = 1, .diag = diag};
    const json_t *drives = json_object_get(json, "drives"), *computing = json_object_get(json, "compute");
    size_t given = drives != NULL;
    char object[40];
    m->scale = 1;
    shore__printable(name, strlen(name), m->name, sizeof m->name);
    int rc = read_part(&p, json, "", "", keys, COUNT_OF(keys), m);
    p.scale = m->scale;
    for (size_t i = 0; !rc && i < COUNT_OF(parts); i++) {
        const json_t *part = json_object_get(json, parts[i]);
        given += part != NULL;
        snprintf(object, sizeof object, "\"%s\"", parts[i]);
        rc = read_part(&p, part, object, parts[i], keys, COUNT_OF(keys), m);
    }
    if (!rc && !given)
        rc = shore__fail(diag, SHORE_EINPUT,
                         "%s: describes nothing: give \"drives\", \"compute\", \"host\", \"link\" or another part of a "
                         "machine",
                         name);
    if (!rc && m->link_both > 0 && (m->link[0] > 0 || m->link[1] > 0))
        rc = wrong(&p, "shared", "is the rate of both directions together: it does not go with \"in\" and \"out\"");
    m->link_shared = m->link_both > 0;
    if (m->link_shared) m->link[0] = m->link_both;
    if (!rc && drives) rc = read_drives(&p, drives, m);
    p.object = "\"compute\"";
    if (!rc) rc = read_products(&p, computing, "products", m->rate, SHORE_WORKS);
    if (!rc) rc = read_products(&p, computing, "torch", m->torch_rate, SHORE_WORKS);
    return rc;
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

static json_t *object_of(const char *part, const struct key *all, size_t n, const void *in, double scale) {
    json_t *o = json_object();
    for (size_t i = 0; i < n; i++) {
        const struct key *key = &all[i];
        const char *at = (const char *)in + key->at;
        json_t *value = NULL;
        if (key->kind == PART || strcmp(key->part, part) != 0) continue;
        if (key->kind == TEXT)
            value = *at ? json_string(at) : NULL;
        else if (key->kind == FLAG)
            value = *(const bool *)(const void *)at ? json_true() : NULL;
        else if (number_at(key->kind, at) > 0)
            value = number_json(number_at(key->kind, at) * factor(key->kind, scale));
        if (value) json_object_set_new(o, key->name, value);
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
            if (rates[kind][p].n)
                json_object_set_new(of, shore__precision_names[p], rates_json(&rates[kind][p], scale));
        add(products, work_names[kind], of);
    }
    return products;
}

char *shore_machine_json(const struct shore_machine *given) {
    struct shore_machine m = *given;
    m.link_both = m.link_shared ? m.link[0] : 0;
    if (m.link_shared) m.link[0] = 0;
    json_t *o = object_of("", keys, COUNT_OF(keys), &m, 1), *drives = json_array();
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        json_object_set_new(o, parts[i], object_of(parts[i], keys, COUNT_OF(keys), &m, m.scale));
    for (uint32_t i = 0; i < m.ndrives; i++)
        json_array_append_new(drives, object_of("", drive_keys, COUNT_OF(drive_keys), &m.drive[i], m.scale));
    add(o, "drives", drives);
    add(json_object_get(o, "compute"), "products", products_json(m.rate, m.scale));
    add(json_object_get(o, "compute"), "torch", products_json(m.torch_rate, m.scale));
    for (size_t i = 1; i < COUNT_OF(parts); i++) /* the first one stays: something is described */
        if (!json_object_size(json_object_get(o, parts[i]))) json_object_del(o, parts[i]);
    char *text = json_dumps(o, JSON_INDENT(2));
    json_decref(o);
    return text;
}
