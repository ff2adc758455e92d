#include "run/emulation/emulate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/suggest.h"
#include "files/json.h"
#include "run/value.h"

enum { FILE_BYTES_MOST = 1 << 20 };

/* Place of a value, for messages: the file, and the object in it. */
struct spot {
    const char *file, *object;
    double scale;
    struct shore_diag *diag;
};

struct key {
    const char *name;
    struct shore__value is; /* of kind NONE: another function reads it */
    void *out;
    bool divided; /* by the scale */
};

#define RATE \
    { .kind = SHORE__VALUE_SIZE, .bytes = sizeof(uint64_t), .least = 1, .most = UINT64_C(1000000000000000000) }
#define SECONDS \
    { .kind = SHORE__VALUE_REAL, .bytes = sizeof(double), .high = 86400 }
#define COUNT \
    { .kind = SHORE__VALUE_WHOLE, .bytes = sizeof(uint32_t), .least = 2, .most = 16 }
#define SCALE \
    { .kind = SHORE__VALUE_REAL, .bytes = sizeof(double), .low = 1, .high = 1e6 }

static int wrong(const struct spot *p, const char *key, const char *what) {
    return shore__fail(p->diag, SHORE_EINPUT, "%s: \"%s\"%s%s %s", p->file, key, *p->object ? " of " : "", p->object,
                       what);
}

static int unknown(const struct spot *p, const char *name, const struct key *keys, size_t n) {
    const char *names[16];
    char list[256] = "";
    for (size_t i = 0; i < n; i++) {
        names[i] = keys[i].name;
        shore__append(list, sizeof list, "%s%s", i ? ", " : "", names[i]);
    }
    const char *near = shore__suggest(name, names, n);
    const struct shore__shown shown = shore__shown(name);
    if (near)
        return shore__fail(p->diag, SHORE_EINPUT, "%s: unknown key \"%s\"%s%s: did you mean \"%s\"?", p->file,
                           shown.text, *p->object ? " in " : "", p->object, near);
    return shore__fail(p->diag, SHORE_EINPUT, "%s: unknown key \"%s\"%s%s: there are %s", p->file, shown.text,
                       *p->object ? " in " : "", p->object, list);
}

static int read_key(const struct spot *p, const struct key *key, const json_t *value) {
    char takes[96], text[104];
    if (key->is.kind == SHORE__VALUE_NONE) return 0;
    if (shore__value_read_json(&key->is, key->name, value, key->out, NULL)) {
        snprintf(text, sizeof text, "takes %s", shore__value_takes(&key->is, takes, sizeof takes));
        return wrong(p, key->name, text);
    }
    if (key->divided) {
        double number = (double)*(uint64_t *)key->out / p->scale;
        *(uint64_t *)key->out = number < 1 ? 1 : (uint64_t)(number + 0.5);
    }
    return 0;
}

/* Reads all keys of an object, and leaves those of kind NONE to the caller. */
static int read_object(const struct spot *p, const json_t *json, const struct key *keys, size_t n) {
    const char *name;
    json_t *value;
    if (!json_is_object(json))
        return shore__fail(p->diag, SHORE_EINPUT, "%s: %s is not an object in braces", p->file, p->object);
    json_object_foreach((json_t *)(uintptr_t)json, name, value) {
        size_t i = 0;
        while (i < n && strcmp(keys[i].name, name) != 0)
            i++;
        int rc = i < n ? read_key(p, &keys[i], value) : unknown(p, name, keys, n);
        if (rc) return rc;
    }
    return 0;
}

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

static int read_link(const struct spot *in, const json_t *json, struct shore__emulation *out) {
    struct spot p = *in;
    p.object = "\"link\"";
    uint64_t shared = 0;
    const struct key keys[] = {
        {"shared", RATE, &shared, true},
        {"in", RATE, &out->link[0], true},
        {"out", RATE, &out->link[1], true},
    };
    int rc = read_object(&p, json, keys, COUNT_OF(keys));
    if (rc || !shared) return rc;
    if (out->link[0] || out->link[1])
        return wrong(&p, "shared", "is the rate of both directions together: it does not go with \"in\" and \"out\"");
    out->link_shared = true;
    out->link[0] = shared;
    return 0;
}

static int read_drives(const struct spot *in, const json_t *json, struct shore__emulation *out) {
    struct spot p = *in;
    char object[32];
    p.object = object;
    size_t n = json_array_size(json);
    if (!json_is_array(json) || n == 0 || n > SHORE__EMULATED_DRIVES_MAX)
        return shore__fail(p.diag, SHORE_EINPUT,
                           "%s: \"drives\" is not a list of 1 to %u drives (the last one stands for all that follow)",
                           p.file, SHORE__EMULATED_DRIVES_MAX);
    out->ndrives = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        struct shore__emulated_drive *d = &out->drive[i];
        const struct key keys[] = {
            {"read", RATE, &d->read, true},           {"write", RATE, &d->write, true},
            {"mixed", RATE, &d->mixed, true},         {"compute", RATE, &d->compute, true},
            {"memory", RATE, &d->memory_bytes, true},
        };
        snprintf(object, sizeof object, "drive %zu", i + 1);
        int rc = read_object(&p, json_array_get(json, i), keys, COUNT_OF(keys));
        if (rc) return rc;
    }
    return 0;
}

static int read_parts(const struct spot *p, const json_t *json, struct shore__emulation *out) {
    struct spot part = *p;
    const json_t *link = json_object_get(json, "link"), *drives = json_object_get(json, "drives");
    const json_t *compute = json_object_get(json, "compute"), *host = json_object_get(json, "host-update");
    const struct key compute_keys[] = {{"forward", SECONDS, &out->forward_seconds, false},
                                       {"backward", SECONDS, &out->backward_seconds, false}};
    const struct key host_keys[] = {{"rate", RATE, &out->host_update, true},
                                    {"buffers", COUNT, &out->host_buffers, false}};
    int rc = link ? read_link(p, link, out) : 0;
    if (!rc && drives) rc = read_drives(p, drives, out);
    part.object = "\"compute\"";
    if (!rc && compute) rc = read_object(&part, compute, compute_keys, COUNT_OF(compute_keys));
    part.object = "\"host-update\"";
    if (!rc && host) rc = read_object(&part, host, host_keys, COUNT_OF(host_keys));
    if (!rc && !link && !drives && !compute && !host)
        rc = shore__fail(p->diag, SHORE_EINPUT,
                         "%s: sets no limit: give \"link\", \"drives\", \"compute\" or \"host-update\"", p->file);
    return rc;
}

int shore__emulation_from_json(const json_t *json, const char *name, struct shore__emulation *out,
                               struct shore_diag *diag) {
    struct spot p = {.file = name, .object = "", .scale = 1, .diag = diag};
    const struct key keys[] = {
        {.name = "name"},        {.name = "about"},  {.name = "scale", SCALE, &p.scale},
        {.name = "link"},        {.name = "drives"}, {.name = "compute"},
        {.name = "host-update"}, {.name = "model"},
    };
    int rc = read_object(&p, json, keys, COUNT_OF(keys));
    if (rc) return rc;
    const json_t *own = json_object_get(json, "name");
    if (own && !json_is_string(own)) return wrong(&p, "name", "is not a text");
    const char *text = own ? json_string_value(own) : name;
    *out = (struct shore__emulation){.scale = p.scale};
    shore__printable(text, strlen(text), out->name, sizeof out->name);
    return read_parts(&p, json, out);
}

int shore__emulation_absolute(char **name, struct shore_diag *diag) {
    if (!*name || strcmp(*name, "none") == 0 || access(*name, F_OK) < 0) return 0;
    char *path = realpath(*name, NULL);
    if (!path) return shore__fail_errno(diag, *name, "cannot be resolved");
    if (!shore__json_holds(path)) {
        shore__fail(diag, SHORE_EUSAGE, "%s: is not UTF-8, so that run.json cannot record it: rename or copy it",
                    shore__shown(path).text);
        free(path);
        return SHORE_EUSAGE;
    }
    free(*name);
    *name = path;
    return 0;
}

int shore__emulation_open(const char *name, struct shore__emulation *out, struct shore_diag *diag) {
    json_t *json;
    if (access(name, F_OK) != 0)
        return shore__fail(diag, SHORE_EUSAGE, "emulate: %s is not a file: give one that describes a machine, or none",
                           shore__shown(name).text);
    int rc = shore__json_read(name, FILE_BYTES_MOST, &json, diag);
    if (rc) return rc;
    rc = shore__emulation_from_json(json, name, out, diag);
    json_decref(json);
    return rc;
}
