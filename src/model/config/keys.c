#include "model/config/keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"

void shore__keys_refuse(struct shore__keys *k, const char *key, const char *why) {
    if (k->rc) return;
    const json_t *v = json_object_get(k->object, key);
    char *text = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    char shown[120];
    k->rc = shore__fail(k->diag, SHORE_EINPUT, "%s: \"%s\" is %s: %s", k->name, shore__shown(key).text,
                        text ? shore__printable(text, strlen(text), shown, sizeof shown) : "missing", why);
    free(text);
}

bool shore__keys_given(const struct shore__keys *k, const char *key) {
    const json_t *v = json_object_get(k->object, key);
    return v && !json_is_null(v);
}

uint32_t shore__keys_count(struct shore__keys *k, const char *key, int64_t fallback, int64_t most) {
    if (!shore__keys_given(k, key)) {
        if (fallback < 0) shore__keys_refuse(k, key, "a whole number is needed");
        return fallback < 0 ? 1 : (uint32_t)fallback;
    }
    const json_t *v = json_object_get(k->object, key);
    json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < 1 || n > most) {
        char why[80];
        snprintf(why, sizeof why, "a whole number from 1 to %lld is needed", (long long)most);
        shore__keys_refuse(k, key, why);
        return 1;
    }
    return (uint32_t)n;
}

double shore__keys_number(struct shore__keys *k, const char *key, double fallback, double least, double most) {
    if (!shore__keys_given(k, key)) return fallback;
    const json_t *v = json_object_get(k->object, key);
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= least && x <= most)) {
        char why[80];
        snprintf(why, sizeof why, "a number from %g to %g is needed", least, most);
        shore__keys_refuse(k, key, why);
        return fallback;
    }
    return x;
}

double shore__keys_needed(struct shore__keys *k, const char *key, double least, double most) {
    if (!shore__keys_given(k, key)) shore__keys_refuse(k, key, "a number is needed");
    return shore__keys_number(k, key, 1, least, most);
}

bool shore__keys_flag(struct shore__keys *k, const char *key, bool fallback) {
    const json_t *v = json_object_get(k->object, key);
    if (!v) return fallback;
    if (!json_is_boolean(v) && !json_is_null(v)) shore__keys_refuse(k, key, "true or false is needed");
    return json_is_true(v);
}

const char *shore__keys_string(struct shore__keys *k, const char *key, const char *fallback) {
    if (!shore__keys_given(k, key)) return fallback;
    const json_t *v = json_object_get(k->object, key);
    if (!json_is_string(v)) {
        shore__keys_refuse(k, key, "a string is needed");
        return fallback;
    }
    return json_string_value(v);
}

json_t *shore__real_of(float value) {
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if ((float)strtod(text, NULL) == value) break;
    }
    return json_real(strtod(text, NULL));
}
