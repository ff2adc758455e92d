/* adapter_config.json of a PEFT adapter: what it says, and how ours is written. */
#ifndef SHORE_RUN_EXCHANGE_ADAPTER_CONFIG_H
#define SHORE_RUN_EXCHANGE_ADAPTER_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "longshore/error.h"
#include "model/adapters.h"

struct shore__adapter_config {
    const json_t *said; /* borrowed */
    const char *path;   /* of the file, for messages; borrowed */
    bool rslora, dora;
};

/* Takes a configuration whose adapter can be merged. Refuses any other one, and what it does not know, by the key. */
int shore__adapter_config_take(const json_t *said, const char *path, struct shore__adapter_config *out,
                               struct shore_diag *diag);
/* The scale of a module's update, whose matrices have this rank. SHORE_EINPUT: PEFT would not load them: the
 * configuration does not target the module, or gives it another rank. */
int shore__adapter_config_scale(const struct shore__adapter_config *c, const char *module, uint64_t rank, float *scale,
                                struct shore_diag *diag);
/* That of a model's own adapters. base: the model's directory, or NULL. NULL: out of memory. */
json_t *shore__adapter_config_make(const struct shore__model *m, const struct shore__lora *lora, const char *base);

#endif
