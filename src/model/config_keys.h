/* The keys of a config.json: which change what is computed, and which do not. */
#ifndef SHORE_MODEL_CONFIG_KEYS_TABLE_H
#define SHORE_MODEL_CONFIG_KEYS_TABLE_H

#include "model/config/keys.h"

enum shore__key_kind {
    SHORE__KEY_READ,  /* read by the family, and written anew by an export */
    SHORE__KEY_IDLE,  /* changes nothing that is computed */
    SHORE__KEY_FALSE, /* only what Python takes for false is supported */
    SHORE__KEY_TRUE,  /* only true is supported */
};
struct shore__key_row {
    enum shore__key_kind kind;
    const char *keys; /* with spaces between them */
};
struct shore__family;

/* Refuses each key that changes what is computed and that nothing here honours. */
void shore__config_keys_check(struct shore__keys *k, const struct shore__family *family);
/* A new object with the keys that struct shore__arch does not hold: an export has them again. NULL: out of memory. */
json_t *shore__config_keys_kept(const json_t *config, const struct shore__family *family);
/* Lists the keys among the kept ones that the table does not know, in quotes. Returns how many there are. */
size_t shore__config_keys_unknown(const json_t *kept, const struct shore__family *family, char *out, size_t bytes);

#endif
