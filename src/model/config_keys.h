/* The keys of a config.json: which change what is computed, and which do not. */
#ifndef SHORE_MODEL_CONFIG_KEYS_H
#define SHORE_MODEL_CONFIG_KEYS_H

#include "model/keys.h"

/* Refuses each key that changes what is computed and that nothing here honours. model_type: a supported one. */
void shore__config_keys_check(struct shore__keys *k, const char *model_type);
/* A new object with the keys that struct shore__arch does not hold: an export has them again. NULL: out of memory. */
json_t *shore__config_keys_kept(const json_t *config, const char *model_type);
/* Lists the keys among the kept ones that the table does not know, in quotes. Returns how many there are. */
size_t shore__config_keys_unknown(const json_t *kept, const char *model_type, char *out, size_t bytes);

#endif
