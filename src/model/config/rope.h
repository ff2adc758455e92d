/* Reads and writes rotary positions in config.json. */
#ifndef SHORE_MODEL_CONFIG_ROPE_H
#define SHORE_MODEL_CONFIG_ROPE_H

#include "model/config/keys.h"
#include "model/model.h"

/* Reads rope_theta, and rope_scaling or rope_parameters. Refuses unknown kinds and keys by name. */
void shore__rope_read(struct shore__keys *config, uint32_t max_positions, struct shore__rope *out);
/* Writes them in the spelling that transformers reads since 4.43. */
void shore__rope_write(const struct shore__rope *rope, json_t *config);

#endif
