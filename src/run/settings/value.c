#include "run/value.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "run/strings.h"

#define SWITCH "off|on"

/* Word i of "a|b|c"; NULL: there are fewer. */
static const char *word_of(const char *choices, unsigned i, size_t *bytes) {
    for (; choices && i; i--)
        if ((choices = strchr(choices, '|'))) choices++;
    *bytes = choices ? strcspn(choices, "|") : 0;
    return choices;
}

static const char *choices_of(const struct shore__value *v) {
    return v->kind == SHORE__VALUE_FLAG ? SWITCH : v->choices;
}

static uint64_t whole_at(const struct shore__value *v, const void *at) {
    uint32_t narrow;
    uint64_t wide;
    if (v->bytes == sizeof narrow) return memcpy(&narrow, at, sizeof narrow), narrow;
    return memcpy(&wide, at, sizeof wide), wide;
}

static unsigned choice_at(const struct shore__value *v, const void *at) {
    unsigned choice; /* enums of ours are ints */
    if (v->bytes == sizeof(bool)) return *(const bool *)at;
    return memcpy(&choice, at, sizeof choice), choice;
}

static bool in_range(const struct shore__value *v, uint64_t n) {
    return n >= v->least && (!v->most || n <= v->most);
}

bool shore__value_fits(const struct shore__value *v, const void *at) {
    const struct shore__pace *pace = at;
    const double *real = at;
    switch (v->kind) {
    case SHORE__VALUE_WHOLE:
    case SHORE__VALUE_SIZE:
        return in_range(v, whole_at(v, at));
    case SHORE__VALUE_REAL:
    case SHORE__VALUE_SHARE:
        return *real >= v->low && *real <= v->high;
    case SHORE__VALUE_PACE:
        return pace->seconds > 0 || in_range(v, pace->steps);
    default:
        return true;
    }
}

static bool read_whole(const struct shore__value *v, const char *text, uint64_t *out) {
    errno = 0;
    *out = strtoull(text, NULL, 10);
    return *text && !text[strspn(text, "0123456789")] && !errno && (v->bytes == sizeof *out || *out <= UINT32_MAX);
}

static bool read_choice(const struct shore__value *v, const char *text, unsigned *out) {
    const char *word;
    size_t length;
    for (*out = 0; (word = word_of(choices_of(v), *out, &length)); ++*out)
        if (strlen(text) == length && memcmp(text, word, length) == 0) return true;
    return false;
}

const char *const *shore__value_texts(const struct shore__value *v, const void *at, size_t *count) {
    const struct shore__strings *list = at;
    const struct shore__addresses *places = at;
    char *const *text = at;
    *count = 0;
    switch (v->kind) {
    case SHORE__VALUE_TEXT:
        *count = *text != NULL;
        return (const char *const *)text;
    case SHORE__VALUE_LIST:
        *count = list->count;
        return (const char *const *)list->item;
    case SHORE__VALUE_PLACES:
        *count = places->count;
        return places->text;
    default:
        return NULL;
    }
}

static bool lists(const struct shore__value *v) {
    return v->kind == SHORE__VALUE_LIST || v->kind == SHORE__VALUE_PLACES;
}

static bool has_texts(const struct shore__value *v) {
    return v->kind == SHORE__VALUE_TEXT || lists(v);
}

void shore__value_clear(const struct shore__value *v, void *at) {
    if (v->kind == SHORE__VALUE_LIST) shore__strings_free(at);
    if (v->kind == SHORE__VALUE_PLACES) shore__addresses_free(at);
    if (v->kind != SHORE__VALUE_TEXT) return;
    free(*(char **)at);
    *(char **)at = NULL;
}

/* Sets the text; a list gains one. */
static int take_text(const struct shore__value *v, const char *text, void *at, struct shore_diag *diag) {
    if (v->kind == SHORE__VALUE_PLACES) return shore__addresses_parse(at, text, diag);
    if (v->kind == SHORE__VALUE_LIST) return shore__strings_add(at, text) ? shore__out_of_memory(diag) : 0;
    shore__value_clear(v, at);
    return (*(char **)at = strdup(text)) ? 0 : shore__out_of_memory(diag);
}

int shore__value_copy(const struct shore__value *v, const void *from, void *to) {
    size_t count;
    const char *const *item = shore__value_texts(v, from, &count);
    int rc = 0;
    shore__value_clear(v, to);
    if (!has_texts(v)) memcpy(to, from, v->bytes);
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = take_text(v, item[i], to, NULL);
    return rc;
}

/* Reads one of the kinds without texts. */
static bool read_plain(const struct shore__value *v, const char *text, void *at) {
    union {
        uint64_t whole;
        uint32_t narrow;
        double real;
        struct shore__pace pace;
        unsigned choice;
        bool truth;
    } is = {.whole = 0};
    bool good = false;
    switch (v->kind) {
    case SHORE__VALUE_WHOLE:
        good = read_whole(v, text, &is.whole);
        if (v->bytes == sizeof is.narrow) is.narrow = (uint32_t)is.whole;
        break;
    case SHORE__VALUE_SIZE:
        good = shore__parse_size(text, &is.whole) == 0 && is.whole > 0;
        break;
    case SHORE__VALUE_REAL:
        good = shore__parse_real(text, &is.real) == 0;
        break;
    case SHORE__VALUE_SHARE:
        good = shore__parse_share(text, &is.real) == 0;
        break;
    case SHORE__VALUE_PACE:
        good = shore__parse_pace(text, &is.pace) == 0;
        break;
    case SHORE__VALUE_FLAG:
    case SHORE__VALUE_CHOICE:
        good = read_choice(v, text, &is.choice);
        if (v->bytes == sizeof is.truth) is.truth = is.choice != 0;
        break;
    default:
        break;
    }
    if (!good || !shore__value_fits(v, &is)) return false;
    memcpy(at, &is, v->bytes);
    return true;
}

int shore__value_refuse(const struct shore__value *v, const char *name, const char *text, struct shore_diag *diag) {
    char wanted[160];
    return shore__fail(diag, SHORE_EUSAGE, "%s takes %s, not '%s'", name, shore__value_takes(v, wanted, sizeof wanted),
                       shore__shown(text).text);
}

int shore__value_read(const struct shore__value *v, const char *name, const char *text, void *at,
                      struct shore_diag *diag) {
    if (has_texts(v) && *text) return take_text(v, text, at, diag);
    return read_plain(v, text, at) ? 0 : shore__value_refuse(v, name, text, diag);
}

static int refuse_json(const struct shore__value *v, const char *name, const json_t *json, struct shore_diag *diag) {
    char *text = json_dumps(json, JSON_ENCODE_ANY | JSON_COMPACT);
    int rc = shore__value_refuse(v, name, text ? text : "?", diag);
    free(text);
    return rc;
}

int shore__value_read_json(const struct shore__value *v, const char *name, const json_t *json, void *at,
                           struct shore_diag *diag) {
    char text[40];
    bool chooses = v->kind == SHORE__VALUE_CHOICE || v->kind == SHORE__VALUE_FLAG;
    bool may_be_none = v->kind == SHORE__VALUE_SIZE || v->kind == SHORE__VALUE_SHARE;
    if (lists(v)) shore__value_clear(v, at);
    if (json_is_string(json)) return shore__value_read(v, name, json_string_value(json), at, diag);
    if (may_be_none && !v->least && json_is_number(json) && json_number_value(json) == 0) { /* as records have it */
        memset(at, 0, v->bytes);
        return 0;
    }
    if (lists(v) && json_is_array(json)) {
        int rc = 0;
        for (size_t i = 0; i < json_array_size(json) && rc == 0; i++) {
            const char *item = json_string_value(json_array_get(json, i));
            rc = item ? shore__value_read(v, name, item, at, diag) : refuse_json(v, name, json, diag);
        }
        return rc;
    }
    if (json_is_integer(json) && !chooses)
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(json));
    else if (json_is_real(json) && !chooses)
        snprintf(text, sizeof text, "%.17g", json_real_value(json));
    else if (json_is_boolean(json) && chooses)
        snprintf(text, sizeof text, "%s", json_is_true(json) ? "on" : "off");
    else
        return refuse_json(v, name, json, diag);
    return read_plain(v, text, at) ? 0 : refuse_json(v, name, json, diag);
}

static void describe_choices(const char *choices, char *out, size_t bytes) {
    const char *word;
    size_t length;
    *out = '\0';
    for (unsigned i = 0; (word = word_of(choices, i, &length)); i++) {
        const char *between = i == 0 ? "" : word[length] ? ", " : " or ";
        shore__append(out, bytes, "%s%.*s", between, (int)length, word);
    }
}

const char *shore__value_takes(const struct shore__value *v, char *out, size_t bytes) {
    const struct shore__written least = shore__format_size(v->least);
    uint64_t limit = v->most ? v->most : v->bytes == sizeof(uint32_t) ? UINT32_MAX : UINT64_MAX;
    switch (v->kind) {
    case SHORE__VALUE_WHOLE:
        if (v->least == 0 && limit == UINT64_MAX)
            snprintf(out, bytes, "a whole number");
        else
            snprintf(out, bytes, "a whole number from %" PRIu64 " to %" PRIu64, v->least, limit);
        break;
    case SHORE__VALUE_SIZE:
        if (limit == UINT64_MAX)
            snprintf(out, bytes, v->least ? "a size of at least %s" : "a size such as 2GiB or 500M", least.text);
        else
            snprintf(out, bytes, "a size %s%s%s %s", v->least ? "from " : "", v->least ? least.text : "",
                     v->least ? " to" : "up to", shore__format_size(limit).text);
        break;
    case SHORE__VALUE_REAL:
        if (v->high == SHORE__BELOW_ONE)
            snprintf(out, bytes, "a number from %g to below 1", v->low);
        else
            snprintf(out, bytes, "a number from %g to %g", v->low, v->high);
        break;
    case SHORE__VALUE_PACE:
        snprintf(out, bytes, "a number of steps such as 10, or a time such as 30s or 5m");
        break;
    case SHORE__VALUE_SHARE:
        snprintf(out, bytes, "a share above 0 such as top1%%, or none");
        break;
    case SHORE__VALUE_FLAG:
    case SHORE__VALUE_CHOICE:
        describe_choices(choices_of(v), out, bytes);
        break;
    default:
        snprintf(out, bytes, "a text that is not empty");
        break;
    }
    return out;
}

const char *shore__value_text(const struct shore__value *v, const void *at, char *out, size_t bytes) {
    const double *real = at;
    char *const *text = at;
    const struct shore__strings *list = at;
    const char *word;
    size_t length;
    out[0] = '\0';
    switch (v->kind) {
    case SHORE__VALUE_WHOLE:
        snprintf(out, bytes, whole_at(v, at) == UINT64_MAX ? "chosen" : "%" PRIu64, whole_at(v, at));
        break;
    case SHORE__VALUE_SIZE:
        snprintf(out, bytes, "%s", shore__format_size_up(whole_at(v, at)).text);
        break;
    case SHORE__VALUE_REAL:
        snprintf(out, bytes, isnan(*real) ? "chosen" : "%g", *real);
        break;
    case SHORE__VALUE_SHARE:
        snprintf(out, bytes, "%s", shore__format_share(*real).text);
        break;
    case SHORE__VALUE_PACE:
        snprintf(out, bytes, "%s", shore__format_pace(at).text);
        break;
    case SHORE__VALUE_FLAG:
    case SHORE__VALUE_CHOICE:
        word = word_of(choices_of(v), choice_at(v, at), &length);
        snprintf(out, bytes, "%.*s", (int)length, word ? word : "");
        break;
    case SHORE__VALUE_TEXT:
        snprintf(out, bytes, "%s", *text ? *text : "none");
        break;
    case SHORE__VALUE_LIST:
        for (size_t i = 0; i < list->count; i++)
            shore__append(out, bytes, "%s%s", i ? " " : "", list->item[i]);
        break;
    default:
        break;
    }
    return out;
}

static json_t *whole_json(uint64_t value) {
    char text[24];
    if (value <= INT64_MAX) return json_integer((json_int_t)value);
    snprintf(text, sizeof text, "%" PRIu64, value);
    return json_string(text);
}

json_t *shore__value_json(const struct shore__value *v, const void *at) {
    char text[64];
    const struct shore__pace *pace = at;
    const double *real = at;
    size_t count;
    const char *const *item = shore__value_texts(v, at, &count);
    switch (v->kind) {
    case SHORE__VALUE_TEXT:
        return count ? json_string(*item) : NULL;
    case SHORE__VALUE_LIST:
    case SHORE__VALUE_PLACES:
        return count ? shore__texts_to_json(item, count) : NULL;
    case SHORE__VALUE_WHOLE:
    case SHORE__VALUE_SIZE:
        return whole_json(whole_at(v, at));
    case SHORE__VALUE_PACE:
        if (pace->steps) return whole_json(pace->steps);
        break;
    case SHORE__VALUE_REAL:
    case SHORE__VALUE_SHARE:
        if (v->kind == SHORE__VALUE_REAL || *real != 0) return json_real(*real);
        break;
    default:
        if (strcmp(choices_of(v), SWITCH) == 0) return json_boolean(choice_at(v, at));
    }
    return json_string(shore__value_text(v, at, text, sizeof text));
}
