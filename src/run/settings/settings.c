/* Applies the table of settings: defaults, JSON, ranges. */
#include "run/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/suggest.h"
#include "files/json.h"
#include "run/settings_rows.h"

struct row {
    const char *key;
    enum shore__setting_role role;
    size_t offset;
    struct shore__value is;
    union {
        const char *text;
        uint64_t whole;
        double real;
    } initial;
    bool chosen; /* the initial value stands for "not given", and is allowed too */
};

#define TEXT_INITIAL .text
#define LIST_INITIAL .whole
#define PLACES_INITIAL .whole
#define WHOLE_INITIAL .whole
#define SIZE_INITIAL .whole
#define REAL_INITIAL .real
#define SHARE_INITIAL .real
#define PACE_INITIAL .real
#define CHOICE_INITIAL .whole
#define FLAG_INITIAL .whole
#define ROW(kind_, name, field, role_, initial_, chosen_, least_, most_, value, help)   \
    {.key = name,                                                                       \
     .role = SHORE__##role_,                                                            \
     .offset = offsetof(struct shore__settings, field),                                 \
     .is = {SHORE__VALUE_OF(SHORE__VALUE_##kind_, kind_, field, least_, most_, value)}, \
     .initial = {kind_##_INITIAL = initial_},                                           \
     .chosen = chosen_},

static const struct row rows[] = {SHORE__SETTINGS(ROW)};
enum { ROWS = sizeof rows / sizeof rows[0] };

static void *field(const struct row *r, const struct shore__settings *s) {
    return (char *)s + r->offset;
}

void shore__settings_defaults(struct shore__settings *s) {
    memset(s, 0, sizeof *s);
    for (size_t i = 0; i < ROWS; i++) {
        const struct row *r = &rows[i];
        uint32_t narrow = (uint32_t)r->initial.whole;
        if (r->is.kind == SHORE__VALUE_TEXT) { /* NULL for lack of memory is taken for the initial text, too */
            if (r->initial.text) *(char **)field(r, s) = strdup(r->initial.text);
        } else if (r->is.kind == SHORE__VALUE_PACE) {
            *(struct shore__pace *)field(r, s) = (struct shore__pace){.seconds = r->initial.real};
        } else if (r->is.bytes == sizeof r->initial) {
            memcpy(field(r, s), &r->initial, sizeof r->initial);
        } else if (r->is.bytes == sizeof narrow) {
            memcpy(field(r, s), &narrow, sizeof narrow);
        } else if (r->is.bytes == sizeof(bool)) {
            *(bool *)field(r, s) = narrow;
        }
    }
}

void shore__settings_free(struct shore__settings *s) {
    for (size_t i = 0; i < ROWS; i++)
        shore__value_clear(&rows[i].is, field(&rows[i], s));
}

int shore__settings_copy(const struct shore__settings *s, struct shore__settings *out) {
    int rc = 0;
    *out = *s;
    for (size_t i = 0; i < ROWS; i++) {
        const struct row *r = &rows[i];
        memset(field(r, out), 0, r->is.bytes);
        if (rc == 0) rc = shore__value_copy(&r->is, field(r, s), field(r, out));
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
    if (r->role == SHORE__GONE) return !*(bool *)field(r, s);
    if (r->chosen && r->is.kind == SHORE__VALUE_REAL) return isnan(*(double *)field(r, s));
    if (r->is.bytes == sizeof(uint32_t)) return r->chosen && *(uint32_t *)field(r, s) == r->initial.whole;
    return r->chosen && *(uint64_t *)field(r, s) == r->initial.whole;
}

_Static_assert(sizeof(enum shore_optimizer) == sizeof(int) && sizeof(enum shore__products) == sizeof(int) &&
                   sizeof(enum shore__schedule) == sizeof(int) && sizeof(enum shore_io) == sizeof(int) &&
                   sizeof(enum shore_moments) == sizeof(int) && sizeof(enum shore__when) == sizeof(int),
               "choices are stored through ints");

enum shore__setting_role shore__role_of_setting(const char *key) {
    const struct row *r = find(key);
    return r ? r->role : SHORE__NO_SETTING;
}

static int unknown(const char *key, const char *where, struct shore_diag *diag) {
    const char *names[ROWS];
    char hint[96] = "";
    for (size_t i = 0; i < ROWS; i++)
        names[i] = rows[i].key;
    const char *near = shore__suggest(key, names, ROWS);
    if (near) snprintf(hint, sizeof hint, ": did you mean \"%s\"?", near);
    return shore__fail(diag, SHORE_EUSAGE, "%s: unknown key \"%s\"%s", shore__shown(where).text, shore__shown(key).text,
                       hint);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static int put_json(const struct row *r, struct shore__settings *s, const json_t *value, const char *where,
                    struct shore_diag *diag) {
    char name[sizeof(struct shore__shown) + 80];
    snprintf(name, sizeof name, "%s: \"%s\"", shore__shown(where).text, r->key);
    return shore__value_read_json(&r->is, name, value, field(r, s), diag);
}

int shore__settings_from_json(const json_t *json, const char *name, struct shore__settings *out,
                              struct shore_diag *diag) {
    const char *key = NULL;
    json_t *value = NULL;
    if (!json_is_object(json))
        return shore__fail(diag, SHORE_EUSAGE, "%s: settings are a JSON object whose keys are flags without \"--\"",
                           shore__shown(name).text);
    json_object_foreach((json_t *)json, key, value) {
        const struct row *r = find(key);
        if (strcmp(key, "micro-batch") == 0) continue; /* an old run's flag that is gone: it did nothing */
        int rc = r ? put_json(r, out, value, name, diag) : unknown(key, name, diag);
        if (rc < 0) return rc;
    }
    return 0;
}

static int by_offset(const void *a, const void *b) {
    const struct row *const *x = a, *const *y = b;
    return ((*x)->offset > (*y)->offset) - ((*x)->offset < (*y)->offset);
}

json_t *shore__settings_to_json(const struct shore__settings *s) {
    const struct row *in_order[ROWS];
    json_t *object = json_object();
    for (size_t i = 0; i < ROWS; i++)
        in_order[i] = &rows[i];
    qsort(in_order, ROWS, sizeof *in_order, by_offset);
    for (size_t i = 0; i < ROWS && object; i++) {
        json_t *value = is_unset(in_order[i], s) ? NULL : shore__value_json(&in_order[i]->is, field(in_order[i], s));
        if (value && json_object_set_new(object, in_order[i]->key, value) < 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

/* ---- check ------------------------------------------------------------------------------------------------------- */

/* JSON, and so run.json, holds only UTF-8. */
static int check_text(const struct row *r, const char *text, struct shore_diag *diag) {
    if (shore__json_holds(text)) return 0;
    return shore__fail(diag, SHORE_EUSAGE, "%s: the name \"%s\" is not UTF-8: rename it", r->key,
                       shore__shown(text).text);
}

static int check_row(const struct row *r, const struct shore__settings *s, struct shore_diag *diag) {
    char value[40];
    size_t count;
    if (is_unset(r, s)) return 0;
    const char *const *item = shore__value_texts(&r->is, field(r, s), &count);
    for (size_t i = 0; i < count; i++) {
        int rc = check_text(r, item[i], diag);
        if (rc < 0) return rc;
    }
    if (shore__value_fits(&r->is, field(r, s))) return 0;
    return shore__value_refuse(&r->is, r->key, shore__value_text(&r->is, field(r, s), value, sizeof value), diag);
}

int shore__settings_in_range(const struct shore__settings *s, struct shore_diag *diag) {
    for (size_t i = 0; i < ROWS; i++) {
        int rc = check_row(&rows[i], s, diag);
        if (rc < 0) return rc;
    }
    return 0;
}
