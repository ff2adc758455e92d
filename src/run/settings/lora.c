/* --lora r=16,alpha=32,target=q_proj,v_proj */
#include "run/lora.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/suggest.h"

static const char *const keys[] = {"r", "alpha", "target", "rslora", "dropout"};

static int refuse(const char *item, const char *why, struct shore_diag *diag) {
    return shore__fail(diag, SHORE_EUSAGE, "--lora %s: %s", shore__shown(item).text, why);
}

static bool read_rank(const char *text, uint32_t *out) {
    char *end;
    unsigned long n = strtoul(text, &end, 10);
    *out = (uint32_t)n;
    return *text >= '0' && *text <= '9' && !*end && n >= 1 && n <= SHORE__LORA_RANK_MOST;
}

static bool read_real(const char *text, double *out) {
    char *end;
    *out = strtod(text, &end);
    return *text && !*end && isfinite(*out);
}

/* Refuses a key that was there before. seen: bits. */
static int meet_key(const char *item, unsigned *seen, struct shore_diag *diag) {
    for (unsigned k = 0; k < sizeof keys / sizeof *keys; k++) {
        size_t n = strlen(keys[k]);
        if (strncmp(item, keys[k], n) != 0 || item[n] != '=') continue;
        if (*seen & 1u << k) return refuse(item, "its key stands twice", diag);
        *seen |= 1u << k;
    }
    return 0;
}

/* Reads KEY=VALUE. target's value begins the list of targets. */
static int read_key(struct shore__lora_text *o, const char *item, const char *value, struct shore_diag *diag) {
    double dropout;
    if (!strncmp(item, "r=", 2))
        return read_rank(value, &o->lora.rank) ? 0 : refuse(item, "a rank is a whole number from 1 to 65536", diag);
    if (!strncmp(item, "alpha=", 6))
        return read_real(value, &o->lora.alpha) && o->lora.alpha > 0 ? 0 : refuse(item, "a number above 0", diag);
    if (!strncmp(item, "rslora=", 7)) {
        o->lora.rslora = !strcmp(value, "on");
        return o->lora.rslora || !strcmp(value, "off") ? 0 : refuse(item, "on or off", diag);
    }
    if (!strncmp(item, "dropout=", 8))
        return read_real(value, &dropout) && dropout == 0 ? 0 : refuse(item, "dropout of adapters is 0 here", diag);
    char key[24];
    snprintf(key, sizeof key, "%.*s", (int)strcspn(item, "="), item);
    const char *near = shore__suggest(key, keys, sizeof keys / sizeof *keys);
    return shore__fail(diag, SHORE_EUSAGE, "--lora takes r=, alpha=, target=, rslora= and dropout=0, not '%s'%s%s",
                       shore__shown(item).text, near ? ": did you mean " : "", near ? near : "");
}

static int add_target(struct shore__lora_text *o, const char *name, struct shore_diag *diag) {
    if (!*name) return refuse("target=", "a name of a module is missing", diag);
    if (!strcmp(name, "all-linear")) {
        o->all = true;
        return 0;
    }
    if (o->lora.ntargets == SHORE__LORA_TARGETS_MOST) return refuse(name, "so many targets are not taken", diag);
    o->targets[o->lora.ntargets++] = name;
    return 0;
}

int shore__lora_read(const char *text, struct shore__lora_text *o, struct shore_diag *diag) {
    *o = (struct shore__lora_text){.lora = {.rank = 8, .alpha = 8}, .text = strdup(text)};
    bool targets = false;
    unsigned seen = 0;
    int rc = o->text ? 0 : shore__out_of_memory(diag);
    o->lora.targets = o->targets;
    for (char *at = o->text; !rc && at;) {
        char *item = at, *comma = strchr(at, ','), *equals;
        if (comma) *comma = 0;
        at = comma ? comma + 1 : NULL;
        item += item == o->text ? 0 : strspn(item, " ");
        equals = strchr(item, '=');
        if ((rc = meet_key(item, &seen, diag))) break;
        targets = equals ? !strncmp(item, "target=", 7) : targets;
        if (targets)
            rc = add_target(o, equals ? equals + 1 : item, diag);
        else if (item == o->text && !equals) /* the rank alone */
            rc = read_rank(item, &o->lora.rank) ? 0 : refuse(item, "r=RANK, and what else there is", diag);
        else
            rc = read_key(o, item, equals ? equals + 1 : "", diag);
    }
    if (!rc && o->all && o->lora.ntargets) rc = refuse("target=", "all-linear and names do not go together", diag);
    return rc;
}

void shore__lora_free(struct shore__lora_text *o) {
    free(o->text);
}
