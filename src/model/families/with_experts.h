/* What families with experts share. */
#ifndef SHORE_MODEL_FAMILIES_WITH_EXPERTS_H
#define SHORE_MODEL_FAMILIES_WITH_EXPERTS_H

#include "model/families/families.h"

/* Tensors of a router, and of experts that files have one by one. */
#define SHORE__EXPERTS_TENSORS                                                                              \
    {SHORE__LAYER, SHORE__ROUTER_W, SHORE__WIDTH_D, false, 0, {{"mlp.gate.weight", SHORE__WIDTH_EXPERTS}}}, \
        {SHORE__EXPERT,                                                                                     \
         SHORE__EXPERT_UP_W,                                                                                \
         SHORE__WIDTH_D,                                                                                    \
         false,                                                                                             \
         0,                                                                                                 \
         {{"gate_proj.weight", SHORE__WIDTH_EXPERT_FF}, {"up_proj.weight", SHORE__WIDTH_EXPERT_FF}}},       \
    {                                                                                                       \
        SHORE__EXPERT, SHORE__EXPERT_DOWN_W, SHORE__WIDTH_D, true, 0, {                                     \
            { "down_proj.weight", SHORE__WIDTH_EXPERT_FF }                                                  \
        }                                                                                                   \
    }
/* Rows of experts, of NORM2. */
#define SHORE__EXPERTS_ROWS                                                                                          \
    SHORE__OP_ROW(LINEAR, NORM2, ROUTER, .weight = SHORE__ROUTER_W, .bias = SHORE__ROUTER_B),                        \
        SHORE__OP_ROW(ROUTE, ROUTER, ROUTE, .cheap = true), SHORE__OP_ROW(GATHER, NORM2, EXPERTS_IN, .cheap = true), \
        SHORE__OP_ROW(EXPERTS, EXPERTS_IN, EXPERTS_UP, .weight = SHORE__EXPERT_UP_W, .bias = SHORE__EXPERT_UP_B),    \
        SHORE__OP_ROW(ACT, EXPERTS_UP, EXPERTS_ACT, .cheap = true),                                                  \
        SHORE__OP_ROW(WEIGHTED, EXPERTS_ACT, EXPERTS_OUT, .weight = SHORE__EXPERT_DOWN_W,                            \
                      .bias = SHORE__EXPERT_DOWN_B, .input_major = true),                                            \
        SHORE__OP_ROW(SCATTER, EXPERTS_OUT, OUT, .aux = SHORE__NO_VALUE)
/* Keys of experts. The loss that balances them is read, and kept as it is given. */
#define SHORE__EXPERTS_KEYS                                                   \
    {SHORE__KEY_READ, "num_experts num_local_experts num_experts_per_tok"}, { \
        SHORE__KEY_IDLE, "output_router_logits router_aux_loss_coef"          \
    }
/* Reads how many experts there are, how many a row goes to, and the loss that balances them. The numbers are
 * transformers' defaults for absent keys. */
void shore__experts_read(struct shore__keys *keys, uint32_t experts, uint32_t chosen, double coefficient,
                         struct shore__arch *out);
/* A layer whose queries and keys are normed, and whose gated product is that of experts. */
#define SHORE__EXPERTS_LAYER_ROWS 16u
extern const struct shore__layer_row shore__experts_layer[SHORE__EXPERTS_LAYER_ROWS];

#endif
