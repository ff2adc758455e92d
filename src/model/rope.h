/* Rotary positions in config.json.
 */
#ifndef SHORE_MODEL_ROPE_H
#define SHORE_MODEL_ROPE_H

#include "model/keys.h"
#include "model/model.h"

/* Reads rope_theta, and rope_scaling or rope_parameters. Kinds and keys that are not understood are refused by name. */
void shore__rope_read(struct shore__keys *config, uint32_t max_positions, struct shore__rope *out);
/* Its inverse, in the spelling that transformers has read since 4.43. */
void shore__rope_write(const struct shore__rope *rope, json_t *config);

#endif
