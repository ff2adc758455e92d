/* --mix: data by weight. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "run/internal.h"

/* Splits "NAME=WEIGHT". Returns where the '=' is, or NULL. */
static const char *weight_of(const char *item, double *weight) {
    const char *equals = strrchr(item, '=');
    char *end = NULL;
    if (!equals || equals == item) return NULL;
    *weight = strtod(equals + 1, &end);
    return equals[1] && !*end && isfinite(*weight) && *weight > 0 ? equals : NULL;
}

int shore__settings_take_mix(struct shore__settings *s, struct shore_diag *diag) {
    int rc = shore__settings_mix(s, NULL, diag);
    for (size_t i = 0; rc == 0 && i < s->mix.count; i++) {
        double weight;
        const char *item = s->mix.item[i];
        char *name = strndup(item, (size_t)(weight_of(item, &weight) - item));
        if (!name || shore__strings_add(&s->data, name)) rc = shore__out_of_memory(diag);
        free(name);
    }
    return rc;
}

/* Shares of a whole, by the largest remainder. */
static int share_out(const struct shore__settings *s, const double *weights, double sum, uint32_t *shares,
                     struct shore_diag *diag) {
    double exact[SHORE__MIX_MOST];
    uint32_t left = SHORE__MIX_SHARES;
    for (size_t i = 0; i < s->mix.count; i++) {
        exact[i] = weights[i] / sum * SHORE__MIX_SHARES;
        shares[i] = (uint32_t)exact[i];
        left -= shares[i];
    }
    for (; left > 0; left--) {
        size_t most = 0;
        for (size_t i = 1; i < s->mix.count; i++)
            if (exact[i] - shares[i] > exact[most] - shares[most]) most = i;
        shares[most]++;
    }
    for (size_t i = 0; i < s->mix.count; i++)
        if (!shares[i])
            return shore__fail(diag, SHORE_EUSAGE, "--mix %s: is less than one sequence in %u: leave it out",
                               shore__shown(s->mix.item[i]).text, SHORE__MIX_SHARES);
    return 0;
}

int shore__settings_mix(const struct shore__settings *s, uint32_t *shares, struct shore_diag *diag) {
    double weights[SHORE__MIX_MOST], sum = 0;
    uint32_t unused[SHORE__MIX_MOST];
    if (!s->mix.count) return 0;
    if (s->mix.count > SHORE__MIX_MOST)
        return shore__fail(diag, SHORE_EUSAGE, "--mix takes %u names at most", SHORE__MIX_MOST);
    for (size_t i = 0; i < s->mix.count; i++) {
        const char *item = s->mix.item[i], *equals = weight_of(item, &weights[i]);
        size_t n = (size_t)(equals - item);
        if (!equals)
            return shore__fail(diag, SHORE_EUSAGE, "--mix %s: give NAME=WEIGHT, with a weight above 0",
                               shore__shown(item).text);
        for (size_t k = 0; k < i; k++)
            if (!strncmp(s->mix.item[k], item, n + 1) && !strchr(s->mix.item[k] + n + 1, '='))
                return shore__fail(diag, SHORE_EUSAGE, "--mix names %s twice", shore__shown(item).text);
        if (s->data.count && (s->data.count != s->mix.count || strncmp(s->data.item[i], item, n) || s->data.item[i][n]))
            return shore__fail(diag, SHORE_EUSAGE, "give --data or --mix, not both");
        sum += weights[i];
    }
    if (s->val_share > 0)
        return shore__fail(diag, SHORE_EUSAGE,
                           "--val-share takes the end of the data, and a mixture has several: give "
                           "--val-data");
    if (s->epochs > 0)
        return shore__fail(diag, SHORE_EUSAGE,
                           "--epochs passes over all data, and a mixture takes shares: give --steps");
    return share_out(s, weights, sum, shares ? shares : unused, diag);
}
