/* Reads and writes rotary positions in config.json. */
#ifndef SHORE_MODEL_CONFIG_ROPE_H
#define SHORE_MODEL_CONFIG_ROPE_H

#include "model/config/keys.h"
#include "model/model.h"

/* What a family makes of the keys. */
struct shore__rope_rules {
    double theta; /* where the configuration has none */
    uint32_t max_positions, head_dim;
    double *part;                /* partial_rotary_factor goes there, if it is given; NULL: only 1 is supported */
    bool query_scales;           /* yarn has llama_4_scaling_beta */
    uint32_t original_positions; /* longrope's, where it has none; 0: max_positions */
    const char *theta_key;       /* where theta lies beside rope_parameters; NULL: "rope_theta" */
};
/* Reads rope_theta, and rope_scaling or rope_parameters. Refuses unknown kinds and keys by name. */
void shore__rope_read(struct shore__keys *config, const struct shore__rope_rules *rules, struct shore__rope *out);
/* Writes them in the spelling that transformers reads since 4.43. */
void shore__rope_write(const struct shore__rope *rope, json_t *config);
/* The same of a family whose layers with a window have angles of their own: out[1]. local_key: where configurations of
 * transformers 4 have their theta; NULL: it is that of the other layers. */
void shore__rope_read_both(struct shore__keys *config, const struct shore__rope_rules *rules, const char *local_key,
                           double local_theta, struct shore__rope out[2]);
/* same_theta: without a key of its own, the only one that transformers 4 and 5 both take for all layers. */
void shore__rope_write_both(const struct shore__rope rope[2], const char *local_key, double same_theta, json_t *config);

/* What transformers multiplies cosines and sines by where the configuration does not say it. factor: by which positions
 * were extended. */
double shore__yarn_scale(double factor, double mscale);
double shore__longrope_scale(double factor, double original_positions);

#endif
