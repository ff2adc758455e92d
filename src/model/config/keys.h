/* Reads the values of a configuration's keys, and checks each. The diagnostic keeps the first refusal. */
#ifndef SHORE_MODEL_CONFIG_KEYS_H
#define SHORE_MODEL_CONFIG_KEYS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "longshore/error.h"

struct shore__keys {
    const json_t *object;
    const char *name; /* the file's, for messages */
    struct shore_diag *diag;
    int rc;
};

void shore__keys_refuse(struct shore__keys *k, const char *key, const char *why);
/* Whether the key is present and not null. */
bool shore__keys_given(const struct shore__keys *k, const char *key);
/* fallback < 0: the key is required */
uint32_t shore__keys_count(struct shore__keys *k, const char *key, int64_t fallback, int64_t most);
double shore__keys_number(struct shore__keys *k, const char *key, double fallback, double least, double most);
double shore__keys_needed(struct shore__keys *k, const char *key, double least, double most);
/* Only an absent key has transformers' default. null is None there, which counts as false. */
bool shore__keys_flag(struct shore__keys *k, const char *key, bool fallback);
/* The shortest decimal number that is equal in fp32: the one that somebody wrote. */
json_t *shore__real_of(float value);
const char *shore__keys_string(struct shore__keys *k, const char *key, const char *fallback);

#endif
