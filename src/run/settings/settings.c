/* Applies the table of settings: defaults, JSON, ranges. */
#include "run/run.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/suggest.h"
#include "base/units.h"
#include "files/json.h"
#include "run/settings_rows.h"

/* PLACES: addresses. TRUTH: a bool that is one of two words. FLAG: a bool that is off or on, a flag without a value. */
enum kind { TEXT, LIST, PLACES, COUNT32, COUNT64, SIZE, REAL, SHARE, CHOICE, TRUTH, PACE, FLAG = TRUTH };

struct row {
    const char *key;
    enum kind kind;
    enum shore__setting_role role;
    size_t offset, bytes;
    union {
        const char *text;
        uint64_t count;
        double real;
    } initial;
    bool chosen;          /* the initial value stands for "not given", and is allowed too */
    uint64_t least, most; /* COUNT32, COUNT64, SIZE, PACE */
    double low, high;     /* REAL, SHARE */
    const char *choices;  /* CHOICE, TRUTH: the words of 0, 1, ... */
};

#define NOTHING .most = 0
#define WHOLE(least_, most_) .least = least_, .most = most_
#define BROKEN(least_, most_) .low = least_, .high = most_
#define TEXT_ROW(initial_, least_, most_, value_) .initial.text = initial_
#define LIST_ROW(initial_, least_, most_, value_) NOTHING
#define PLACES_ROW LIST_ROW
#define COUNT32_ROW(initial_, least_, most_, value_) .initial.count = initial_, WHOLE(least_, most_)
#define COUNT64_ROW COUNT32_ROW
#define SIZE_ROW COUNT32_ROW
#define REAL_ROW(initial_, least_, most_, value_) .initial.real = initial_, BROKEN(least_, most_)
#define SHARE_ROW REAL_ROW
#define PACE_ROW(initial_, least_, most_, value_) .initial.real = initial_, WHOLE(least_, most_)
#define CHOICE_ROW(initial_, least_, most_, value_) .initial.count = initial_, .choices = value_
#define TRUTH_ROW CHOICE_ROW
#define FLAG_ROW(initial_, least_, most_, value_) .initial.count = initial_, .choices = SWITCH
#define SWITCH "off|on"
#define ROW(kind_, name, field, role_, initial_, chosen_, least_, most_, value, help) \
    {.key = name,                                                                     \
     .kind = kind_,                                                                   \
     .role = SHORE__##role_,                                                          \
     .offset = offsetof(struct shore__settings, field),                               \
     .bytes = sizeof((struct shore__settings *)0)->field,                             \
     .chosen = chosen_,                                                               \
     kind_##_ROW(initial_, least_, most_, value)},

static const struct row rows[] = {SHORE__SETTINGS(ROW)};
enum { ROWS = sizeof rows / sizeof rows[0] };

/* Word i of "a|b|c"; NULL: there are fewer. */
static const char *word_of(const char *choices, unsigned i, size_t *bytes) {
    for (; choices && i; i--)
        if ((choices = strchr(choices, '|'))) choices++;
    *bytes = choices ? strcspn(choices, "|") : 0;
    return choices;
}

static bool is_switch(const struct row *r) {
    return r->kind == TRUTH && strcmp(r->choices, SWITCH) == 0;
}

static void *field(const struct row *r, const struct shore__settings *s) {
    return (char *)s + r->offset;
}

/* The texts that a row holds. *count: 0 if it holds none, or is of another kind. */
static const char *const *texts(const struct row *r, const struct shore__settings *s, size_t *count) {
    const struct shore__strings *list = field(r, s);
    const struct shore__addresses *places = field(r, s);
    char *const *text = field(r, s);
    *count = r->kind == TEXT ? *text != NULL : r->kind == LIST ? list->count : r->kind == PLACES ? places->count : 0;
    return r->kind == PLACES ? places->text : (const char *const *)(r->kind == LIST ? list->item : text);
}

static void clear(const struct row *r, struct shore__settings *s) {
    if (r->kind == TEXT) {
        free(*(char **)field(r, s));
        *(char **)field(r, s) = NULL;
    } else if (r->kind == LIST) {
        shore__strings_free(field(r, s));
    } else if (r->kind == PLACES) {
        shore__addresses_free(field(r, s));
    }
}

/* Sets the text; a list gains one. */
static int take_text(const struct row *r, struct shore__settings *s, const char *text, struct shore_diag *diag) {
    char **one = field(r, s);
    if (r->kind == PLACES) return shore__addresses_parse(field(r, s), text, diag);
    if (r->kind == TEXT) clear(r, s);
    bool taken = r->kind == LIST ? !shore__strings_add(field(r, s), text) : (*one = strdup(text)) != NULL;
    return taken ? 0 : shore__fail(diag, -ENOMEM, "out of memory");
}

void shore__settings_defaults(struct shore__settings *s) {
    memset(s, 0, sizeof *s);
    for (size_t i = 0; i < ROWS; i++) {
        const struct row *r = &rows[i];
        int choice = (int)r->initial.count;
        switch (r->kind) {
        case TEXT: /* NULL for lack of memory is taken for the initial text, too */
            if (r->initial.text) *(char **)field(r, s) = strdup(r->initial.text);
            break;
        case LIST:
        case PLACES:
            break;
        case COUNT32:
            *(uint32_t *)field(r, s) = (uint32_t)r->initial.count;
            break;
        case COUNT64:
        case SIZE:
            *(uint64_t *)field(r, s) = r->initial.count;
            break;
        case REAL:
        case SHARE:
            *(double *)field(r, s) = r->initial.real;
            break;
        case PACE:
            *(struct shore__pace *)field(r, s) = (struct shore__pace){.seconds = r->initial.real};
            break;
        case CHOICE:
            memcpy(field(r, s), &choice, sizeof choice);
            break;
        case TRUTH:
            *(bool *)field(r, s) = choice;
            break;
        }
    }
}

void shore__settings_free(struct shore__settings *s) {
    for (size_t i = 0; i < ROWS; i++)
        clear(&rows[i], s);
}

int shore__settings_copy(const struct shore__settings *s, struct shore__settings *out) {
    int rc = 0;
    *out = *s;
    for (size_t i = 0; i < ROWS; i++) {
        const struct row *r = &rows[i];
        size_t count;
        const char *const *item = texts(r, s, &count);
        if (count) memset(field(r, out), 0, r->bytes);
        for (size_t k = 0; k < count && rc == 0; k++)
            rc = take_text(r, out, item[k], NULL);
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
    if (r->kind == COUNT32) return r->chosen && *(uint32_t *)field(r, s) == r->initial.count;
    if (r->kind == COUNT64) return r->chosen && *(uint64_t *)field(r, s) == r->initial.count;
    return r->chosen && r->kind == REAL && isnan(*(double *)field(r, s));
}

/* Says in words which values a setting takes. */
static void describe(const struct row *r, char *text, size_t bytes) {
    const char *word = NULL;
    size_t used = 0, length = 0;
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
        if (r->high == SHORE__BELOW_ONE)
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
        for (unsigned i = 0; (word = word_of(r->choices, i, &length)) && used < bytes; i++)
            used += (size_t)snprintf(text + used, bytes - used, "%s%.*s",
                                     i == 0         ? ""
                                     : word[length] ? ", "
                                                    : " or ",
                                     (int)length, word);
        break;
    case TEXT:
    case LIST:
    case PLACES:
        snprintf(text, bytes, "a text that is not empty");
        break;
    }
}

/* where: the file that holds the JSON key; NULL: it is a flag. */
static int refuse(const struct row *r, const char *where, const char *value, struct shore_diag *diag) {
    char allowed[160];
    describe(r, allowed, sizeof allowed);
    const struct shore__shown shown = shore__shown(value);
    if (!where) return shore__fail(diag, SHORE_EUSAGE, "%s takes %s, not \"%s\"", r->key, allowed, shown.text);
    return shore__fail(diag, SHORE_EUSAGE, "%s: \"%s\" takes %s, not \"%s\"", shore__shown(where).text, r->key, allowed,
                       shown.text);
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
    const char *word = NULL;
    size_t length = 0;
    for (int i = 0; (word = word_of(r->choices, (unsigned)i, &length)); i++) {
        if (strlen(text) != length || memcmp(text, word, length) != 0) continue;
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
    case LIST:
    case PLACES:
        if (*text == '\0') break;
        return take_text(r, s, text, diag);
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
    bool list = r->kind == LIST || r->kind == PLACES;
    if (json_is_string(value)) {
        if (list) clear(r, s);
        return put_text(r, s, json_string_value(value), where, diag);
    }
    const bool whole = json_is_integer(value) && json_integer_value(value) >= 0;
    const uint64_t count = whole ? (uint64_t)json_integer_value(value) : 0;
    if (whole && (r->kind == COUNT32 || r->kind == COUNT64 || r->kind == SIZE) && put_count(r, s, count)) return 0;
    if (whole && r->kind == PACE && put_pace(r, s, (struct shore__pace){.steps = count})) return 0;
    if (json_is_number(value) && (r->kind == REAL || r->kind == SHARE) && put_real(r, s, json_number_value(value)))
        return 0;
    if (json_is_boolean(value) && is_switch(r)) {
        *(bool *)field(r, s) = json_is_true(value);
        return 0;
    }
    if (json_is_array(value) && list) {
        size_t i = 0;
        json_t *item = NULL;
        clear(r, s);
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

/* Whether an old run's key is of a flag that is gone, because it did nothing. */
static bool is_gone(const char *key) {
    return strcmp(key, "micro-batch") == 0;
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
    const char *word = NULL;
    const char *const *item = NULL;
    size_t length = 0;
    int choice = 0;
    switch (r->kind) {
    case TEXT:
    case LIST:
    case PLACES:
        item = texts(r, s, &length);
        if (!length) return NULL;
        return r->kind == TEXT ? json_string(*item) : shore__texts_to_json(item, length);
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
    case TRUTH:
    case CHOICE:
        if (is_switch(r)) return json_boolean(*(bool *)field(r, s));
        memcpy(&choice, field(r, s), r->bytes);
        word = word_of(r->choices, (unsigned)choice, &length);
        return json_stringn(word, length);
    }
    return NULL;
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
        json_t *value = is_unset(in_order[i], s) ? NULL : row_json(in_order[i], s);
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
    bool good = true;
    size_t count;
    if (is_unset(r, s)) return 0;
    if (r->kind == COUNT32 || r->kind == COUNT64 || r->kind == SIZE) {
        uint64_t n = r->kind == COUNT32 ? *(uint32_t *)field(r, s) : *(uint64_t *)field(r, s);
        good = n >= r->least && n <= r->most;
        snprintf(value, sizeof value, "%" PRIu64, n);
    } else if (r->kind == REAL || r->kind == SHARE) {
        double x = *(double *)field(r, s);
        good = x >= r->low && x <= r->high;
        snprintf(value, sizeof value, "%g", x);
    }
    const char *const *item = texts(r, s, &count);
    for (size_t i = 0; i < count; i++) {
        int rc = check_text(r, item[i], diag);
        if (rc < 0) return rc;
    }
    return good ? 0 : refuse(r, NULL, value, diag);
}

int shore__settings_in_range(const struct shore__settings *s, struct shore_diag *diag) {
    for (size_t i = 0; i < ROWS; i++) {
        int rc = check_row(&rows[i], s, diag);
        if (rc < 0) return rc;
    }
    return 0;
}
