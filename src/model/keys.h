/* Values of a configuration's keys, each checked. What is refused first is what the diagnostic says, and stays so. */
#ifndef SHORE_MODEL_KEYS_H
#define SHORE_MODEL_KEYS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "longshore/error.h"

struct shore__keys {
    const json_t *object;
    const char *name; /* the file */
    struct shore_diag *diag;
    int rc;
};

void shore__keys_refuse(struct shore__keys *k, const char *key, const char *why);
/* It is there, and not null. */
bool shore__keys_given(const struct shore__keys *k, const char *key);
/* fallback < 0: the key is needed */
uint32_t shore__keys_count(struct shore__keys *k, const char *key, int64_t fallback, int64_t most);
double shore__keys_number(struct shore__keys *k, const char *key, double fallback, double least, double most);
double shore__keys_needed(struct shore__keys *k, const char *key, double least, double most);
/* Only what is absent has transformers' default: null is None there, which is false. */
bool shore__keys_flag(struct shore__keys *k, const char *key, bool fallback);
const char *shore__keys_string(struct shore__keys *k, const char *key, const char *fallback);

#endif
